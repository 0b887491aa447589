"""Synthetic input that is the same on every machine: key/value pairs, and edits as Wikipedia's change stream has them.

Row ``i`` of partition ``p`` depends on the seed, ``p`` and ``i`` and on nothing else: numbers come from a counter (splitmix64
over seed, partition, column and index), not from a generator with a state, so a row is the same whatever split it is read
in. Event ``n`` of the whole stream is row ``n // partitions`` of partition ``n % partitions``, so that one number, the events
taken, is the whole offset.

With a ``rate`` events become available as time goes by, and each is born when it was due, whether or not the flow kept up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from meander.connect import wikipedia
from meander.connect.source import Batch, Choice, Split
from meander.errors import ConfigError
from meander.plan.schemas import did_you_mean
from meander.stored import stored

SPLIT_ROWS = 250_000
_DEFAULT_ROWS_PER_EPOCH = 1_000_000
_ORIGIN_US = 1_704_067_200_000_000  # 2024-01-01, where event time starts when no rate says otherwise
_MAX_ZIPF_KEYS = 20_000_000

_KINDS = ("key_value", "wikipedia")
_KEY_VALUE = {"key": pl.Int64(), "value": pl.Float64(), "ts": pl.Datetime("us")}

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


class Generated(Protocol):
    """The part of a generated stream that its cursor needs, whatever the rows are."""

    @property
    def events(self) -> int | None:
        """How many there are in all; None for an endless stream."""

    @property
    def rate(self) -> float | None:
        """How many become available per second; None for all at once."""

    @property
    def partitions(self) -> int: ...

    @property
    def max_rows_per_epoch(self) -> int: ...

    def cut(self, partition: int, first: int, last: int) -> list[Piece]:
        """One partition's share of events [first, last), cut at fixed places."""


@dataclass(frozen=True)
class Piece:
    """The rows of one split of a generated stream: ``count`` rows of a partition from ``start`` on, and the events they are due with."""

    partition: int
    start: int
    count: int
    bytes: int
    due: tuple[int, int]
    """The numbers of the events that the first and the last row are due with: births follow from the rate."""


@stored("generator", called={"kind": "events_of"})
@dataclass(frozen=True)
class GeneratorSource:
    """A seeded stream of ``events`` rows (None: endless) in ``partitions`` interleaved partitions."""

    kind: str
    events: int | None
    rate: float | None
    partitions: int
    seed: int
    keys: int
    skew: float
    max_rows_per_epoch: int
    raw: bool
    split_rows: int = SPLIT_ROWS

    def schema(self) -> pl.Schema:
        if self.kind == "key_value":
            return pl.Schema(_KEY_VALUE)
        return pl.Schema({"line": pl.String()}) if self.raw else pl.Schema(wikipedia.COLUMNS)

    def cursor(self, offset: dict[str, Any], seen: set[str], throttle: float = 1.0) -> GeneratorCursor:
        return GeneratorCursor(self, offset.get("t0"), offset.get("taken", 0), throttle)

    def read(self, payload: dict[str, Any]) -> Batch:
        partition, start, count = payload["partition"], payload["start"], payload["count"]
        index = np.arange(start, start + count, dtype=np.int64)
        number = index * self.partitions + partition
        ts = self._times(number, payload.get("t0"))
        draws = Draws(self.seed, partition, index)
        if self.kind == "key_value":
            frame = pl.DataFrame({"key": choose_keys(draws.uniform(0), self.keys, self.skew), "value": draws.uniform(1), "ts": ts})
        else:
            servers = choose_keys(draws.uniform(0), self.keys, self.skew)
            frame = wikipedia.edits(number, ts, servers, self.keys, draws.bits)
            frame = wikipedia.as_lines(frame) if self.raw else frame
        return Batch(frame)

    def cut(self, partition: int, first: int, last: int) -> list[Piece]:
        step, width = self.partitions, 16 * len(self.schema())
        start, end = (-(-(bound - partition) // step) for bound in (first, last))
        return [
            Piece(partition, begin, stop - begin, (stop - begin) * width, (begin * step + partition, (stop - 1) * step + partition))
            for begin, stop in cut_evenly(start, end, self.split_rows)
        ]

    def describe(self) -> str:
        count = "endless" if self.events is None else f"{self.events} events"
        rate = "" if self.rate is None else f", {self.rate:g}/s"
        shape = f"partitions {self.partitions}, keys {self.keys}, skew {self.skew}{', raw' if self.raw else ''}"
        return f"generator {self.kind}, {count}{rate}, seed {self.seed}, {shape}"

    def canonical(self) -> str:
        return self.describe()

    def _times(self, number: I64, t0: float | None) -> pl.Series:
        if self.rate is None or t0 is None:
            micros = _ORIGIN_US + number * 1000
        else:
            micros = int(t0 * 1e6) + np.floor(number * (1e6 / self.rate)).astype(np.int64)
        return pl.Series("ts", micros).cast(pl.Datetime("us"))


class GeneratorCursor:
    """How many events of the stream are taken; the rest follows from the description and the clock."""

    def __init__(self, source: Generated, t0: float | None, taken: int, throttle: float) -> None:
        self._source = source
        self._t0 = t0
        self._taken = taken
        self._before = (t0, taken)
        """Where the last choice began."""
        self._limit = max(1, int(source.max_rows_per_epoch * throttle))

    def look(self) -> None:
        """All there is follows from the clock."""

    def release(self, names: Sequence[str]) -> None:
        """Events can be made again at any time."""

    def close(self) -> None:
        """Nothing runs in the background."""

    def backlog(self, now: float) -> bool:
        source = self._source
        if source.rate is not None and self._t0 is not None:
            return math.floor((now - self._t0) * source.rate) - self._taken >= self._limit
        return not self.finished()

    def waiting(self, now: float) -> int:
        source = self._source
        there = source.events
        if source.rate is not None and self._t0 is not None:
            due = math.floor((now - self._t0) * source.rate)
            there = due if there is None else min(there, due)
        return max(0, there - self._taken) if there is not None else 0

    def slow_down(self, share: float) -> None:
        self._limit = max(1, int(self._source.max_rows_per_epoch * share))

    def choose(self, now: float, everything: bool) -> Choice | None:
        source = self._source
        self._before = (self._t0, self._taken)
        if source.rate is not None and self._t0 is None:
            self._t0 = now
        end = self._taken + self._limit
        if source.events is not None:
            end = min(end, source.events)
        if source.rate is not None and self._t0 is not None:
            end = min(end, math.floor((now - self._t0) * source.rate))
        if end <= self._taken:
            return None
        pieces = (piece for partition in range(source.partitions) for piece in source.cut(partition, self._taken, end))
        splits = tuple(self._split(piece, now) for piece in pieces)
        self._taken = end
        return Choice(splits, {"taken": end} if self._t0 is None else {"taken": end, "t0": self._t0})

    def follow(self, given: Choice | None, agreed: Choice | None) -> None:
        if given is not None:
            self._t0, self._taken = self._before
        if agreed is not None:
            self._t0, self._taken = agreed.offset.get("t0"), agreed.offset["taken"]

    def finished(self) -> bool:
        return self._source.events is not None and self._taken >= self._source.events

    def _split(self, piece: Piece, now: float) -> Split:
        payload: dict[str, Any] = {"partition": piece.partition, "start": piece.start, "count": piece.count}
        born = (now, now)
        if self._source.rate is not None and self._t0 is not None:
            payload["t0"] = self._t0
            born = (self._t0 + piece.due[0] / self._source.rate, self._t0 + piece.due[1] / self._source.rate)
        return Split(payload, piece.count, piece.bytes, born)


class Draws:
    """Random numbers of given rows, one independent stream per column."""

    def __init__(self, seed: int, partition: int, index: I64) -> None:
        self._origin = _mix_one(_mix_one(seed) + partition)
        self._index = index.astype(np.uint64)

    def bits(self, column: int) -> U64:
        """64 random bits per row: splitmix64 of the row's counter, started at the column's own origin."""
        x = self._index * np.uint64(0x9E3779B97F4A7C15)
        x += np.uint64(_mix_one(self._origin + column))
        x ^= x >> np.uint64(30)
        x *= np.uint64(0xBF58476D1CE4E5B9)
        x ^= x >> np.uint64(27)
        x *= np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
        return x

    def uniform(self, column: int) -> F64:
        """Numbers in [0, 1) with 53 random bits."""
        return (self.bits(column) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def cut_evenly(start: int, end: int, size: int) -> list[tuple[int, int]]:
    """Rows [start, end), cut at the multiples of ``size``.

    >>> cut_evenly(5, 25, 10)
    [(5, 10), (10, 20), (20, 25)]
    """
    edges = [start, *range((start // size + 1) * size, end, size), end]
    return list(pairwise(edges)) if start < end else []


def choose_keys(uniform: F64, keys: int, skew: float) -> I64:
    """Keys 0 … keys-1: all alike, or by Zipf's law with exponent ``skew`` and key 0 the most frequent."""
    if skew == 0.0:
        return (uniform * keys).astype(np.int64)
    return np.searchsorted(_zipf_steps(keys, skew), uniform, side="right").astype(np.int64)


@lru_cache(maxsize=4)
def _zipf_steps(keys: int, skew: float) -> F64:
    weights = np.arange(1, keys + 1, dtype=np.float64) ** -skew
    steps: F64 = np.cumsum(weights)
    steps /= steps[-1]
    return steps


def _mix_one(x: int) -> int:
    """splitmix64 of one number, in Python's integers."""
    mask = (1 << 64) - 1
    x = (x + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def generator(
    kind: str,
    events: int | None = None,
    rate: float | None = None,
    partitions: int = 1,
    seed: int = 0,
    keys: int | None = None,
    skew: float | None = None,
    max_rows_per_epoch: int | None = None,
    raw: bool = False,
) -> GeneratorSource:
    """Synthetic input: ``"key_value"`` (key, value, ts) or ``"wikipedia"`` (edits; ``raw=True`` gives them as JSON text in ``line``).

    ``events`` is how many there are in all (None: without end), ``rate`` how many per second become available (None: all at
    once). ``keys`` is the number of distinct keys (1,000) or server names (300), ``skew`` the exponent of Zipf's law by which
    they are chosen (0 for key_value: all alike; 1 for wikipedia).

    Example: ``md.generator("key_value", rate=1000)``.
    """
    if kind not in _KINDS:
        raise ConfigError(f"generator({kind!r}): unknown kind; there are {', '.join(_KINDS)}{did_you_mean(str(kind), _KINDS)}")
    if raw and kind != "wikipedia":
        raise ConfigError(f"generator({kind!r}, raw=True): only 'wikipedia' has raw lines")
    keys = keys if keys is not None else (1000 if kind == "key_value" else len(wikipedia.SERVERS))
    skew = skew if skew is not None else (0.0 if kind == "key_value" else 1.0)
    limit = _DEFAULT_ROWS_PER_EPOCH if max_rows_per_epoch is None else max_rows_per_epoch
    for name, value, least in (("events", events, 0), ("partitions", partitions, 1), ("keys", keys, 1), ("max_rows_per_epoch", limit, 1)):
        if value is not None and value < least:
            raise ConfigError(f"generator({kind!r}, {name}={value}): must be at least {least}")
    if rate is not None and not (rate > 0 and math.isfinite(rate)):
        raise ConfigError(f"generator({kind!r}, rate={rate}): must be a number of events per second above 0, or None for no limit")
    if not (skew >= 0 and math.isfinite(skew)):
        raise ConfigError(f"generator({kind!r}, skew={skew}): must be 0 (all keys alike) or above")
    if skew > 0 and keys > _MAX_ZIPF_KEYS:
        raise ConfigError(f"generator({kind!r}, keys={keys}, skew={skew}): at most {_MAX_ZIPF_KEYS} keys can have a skew")
    return GeneratorSource(kind, events, None if rate is None else float(rate), partitions, seed, keys, float(skew), limit, raw)

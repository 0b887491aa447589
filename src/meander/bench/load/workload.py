"""The simulated workload: events of any number of keys, skew, size and cost, and the flow that takes them.

``meander workgen`` writes these events as files, the benchmarks generate them in place; ``examples/workload.py`` is the flow. An event
says itself what it costs: ``cpu_us`` microseconds of computing, and ``junk`` bytes that its key holds in the state. So the same flow
serves every workload.

A row depends on the seed, its partition and its number in it and on nothing else, as with ``md.generator``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

import meander as md
from meander.connect.generator import Draws, choose_keys
from meander.connect.sink import Sink
from meander.connect.source import Source
from meander.stored import stored

SCHEMA = pl.Schema(
    {
        "key": pl.Int64(),
        "value": pl.Float64(),
        "created": pl.Datetime("us"),
        "cpu_us": pl.Int64(),
        "junk": pl.Int64(),
        "payload": pl.String(),
    }
)
FLOW, OPERATOR = "workload", "counts"
_ALPHABET = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8)
_LOADING = 1 << 20
"""Added to the seed while loading: these are other events, with other values."""

Numbers = npt.NDArray[np.int64]


@stored("workload_shape")
@dataclass(frozen=True)
class Workload:
    """The parameters of events. ``rate`` is their number per second; event n is due n / rate
    seconds after the first."""

    keys: int = 1_000
    skew: float = 0.0
    rate: float = 1_000.0
    payload: int = 0
    """Bytes of text in every event."""
    junk: int = 0
    """Bytes that every key holds in the state beside its count and sum."""
    cpu_us: int = 0
    """Microseconds of computing per event."""
    partitions: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("keys", 1), ("skew", 0), ("payload", 0), ("junk", 0), ("cpu_us", 0), ("partitions", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise md.ConfigError(f"workload: {name}={getattr(self, name)}: must be at least {least}")
        if not 0 < self.rate < float("inf"):
            raise md.ConfigError(f"workload: rate={self.rate}: must be a number of events per second above 0")

    def events(self, partition: int, start: int, count: int, began: float) -> pl.DataFrame:
        """Rows [start, start + count) of a partition; the stream's first event was due at ``began``, in seconds since 1970.

        Event n of the whole stream is row ``n // partitions`` of partition ``n % partitions``.
        """
        index = np.arange(start, start + count, dtype=np.int64)
        draws = Draws(self.seed, partition, index)
        due = int(began * 1e6) + np.floor((index * self.partitions + partition) * (1e6 / self.rate)).astype(np.int64)
        return self._frame(choose_keys(draws.uniform(0), self.keys, self.skew), draws, due, self.cpu_us)

    def loading(self, start: int, count: int, began: float) -> pl.DataFrame:
        """One event per key, keys [start, start + count): to fill the state before anything is measured. They cost no computing."""
        keys = np.arange(start, start + count, dtype=np.int64)
        return self._frame(keys, Draws(self.seed + _LOADING, 0, keys), np.full(count, int(began * 1e6)), 0)

    def _frame(self, keys: Numbers, draws: Draws, due: Numbers, cpu_us: int) -> pl.DataFrame:
        columns = {
            "key": keys,
            "value": draws.uniform(1),
            "created": pl.Series(due).cast(pl.Datetime("us")),
            "cpu_us": np.full(len(keys), cpu_us),
            "junk": np.full(len(keys), self.junk),
            "payload": _text(draws, len(keys), self.payload),
        }
        return pl.DataFrame(columns, schema=SCHEMA)


def _text(draws: Draws, rows: int, size: int) -> pl.Series:
    """Text that does not compress to nothing: 6 random bits per character, 8 characters of every 64."""
    words = -(-size // 8)
    bits = np.stack([draws.bits(2 + word) for word in range(words)], axis=1) if words and rows else np.zeros((rows, 0), np.uint64)
    letters = np.ascontiguousarray(_ALPHABET[(bits.view(np.uint8) & 63)][:, :size])
    offsets = pa.py_buffer(np.arange(rows + 1, dtype=np.int64) * size)
    return pl.Series("payload", pa.LargeStringArray.from_buffers(rows, offsets, pa.py_buffer(letters)))


# -- the flow --------------------------------------------------------------------------------------------------------


def build_flow(source: Source, sink: Sink, stateful: bool = True) -> md.Flow:
    """Source → burn CPU → count, sum and junk per key → sink; without state, source → burn CPU → sink."""
    flow = md.Flow(FLOW)
    # Not declared deterministic, though it is: a small epoch would then burn every event in every slot.
    burnt = flow.source("events", source).map_batches(burn, name="burn")
    if not stateful:
        return burnt.select("key", "value", name="result").sink("out", sink)
    counts = (
        burnt.map_batches(add_state, name="junk", schema={"key": pl.Int64(), "value": pl.Float64(), "held": pl.Binary()})
        .key_by("key")
        .aggregate(md.count().alias("n"), md.sum("value").alias("total"), md.first("held").alias("held"), name=OPERATOR)
    )
    return counts.select("key", "n", "total", name="result").sink("out", sink)


def burn(frame: pl.DataFrame) -> pl.DataFrame:
    """Compute for as long as the events ask for. Measured in this thread's CPU time: slots that share a core do not get it twice."""
    until = time.thread_time() + float(frame.get_column("cpu_us").sum()) / 1e6
    x = 1
    while time.thread_time() < until:
        for _ in range(200):
            x = x * 6364136223846793005 + 1442695040888963407 & 0xFFFFFFFFFFFFFFFF
    return frame


def add_state(frame: pl.DataFrame) -> pl.DataFrame:
    """The state of each event's key: ``junk`` bytes that depend on the key and do not compress."""
    return frame.select("key", "value", junk_of(frame.get_column("key"), frame.get_column("junk")))


def junk_of(keys: pl.Series, sizes: pl.Series) -> pl.Series:
    size = sizes.to_numpy().astype(np.int64)
    words = -(-size // 8)
    ends = np.cumsum(words)
    nth = (np.arange(int(ends[-1]) if len(ends) else 0, dtype=np.int64) - np.repeat(ends - words, words)).astype(np.uint64)
    x = np.repeat(keys.to_numpy().astype(np.uint64), words) * np.uint64(0x9E3779B97F4A7C15) + nth * np.uint64(0xD1B54A32D192ED03)
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    # Every key's words are whole, what is too much of the last one is cut off by taking only `size` bytes of them.
    if (size % 8).any():
        whole = pl.Series("held", _binary(x, np.concatenate(([0], ends * 8))))
        return pl.DataFrame({"held": whole, "size": size}).select(pl.col("held").bin.slice(0, pl.col("size"))).to_series()
    return pl.Series("held", _binary(x, np.concatenate(([0], ends * 8))))


def _binary(words: npt.NDArray[np.uint64], offsets: Numbers) -> pa.Array:
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(words)]
    )

"""Progress of a running flow: a meter that listens to epochs, and displays that show its readings.

The meter is fed in the flow's thread (``run.on_epoch(meter)``) and read in the command's. Latency is the time from an event's
birth, as its source knows it, to the publication of its epoch; times inside a split are spread evenly, as in the latency file.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from meander.cli import wording

if TYPE_CHECKING:
    from meander.epochs.decision import EpochDone

F64 = npt.NDArray[np.float64]
_POINTS = 500
"""Latencies kept of one split: evenly spaced in it, each standing for its share of the rows."""
_RATE_SECONDS = 3.0
_PIPED_COLUMNS = 1000
"""A pipe has no width. With the 80 that a terminal may have, processes and addresses would be cut off."""


@dataclass(frozen=True)
class Reading:
    """The values of a meter at one moment. Counts are of this run; epoch and state are the
    flow's."""

    epoch: int
    epochs: int
    rows_in: int
    rows_out: int
    dead_letters: int
    rate: float
    """Rows per second over the last few seconds."""
    p50: float
    p99: float
    """Latency of the last epoch's events, in seconds."""
    state_rows: int
    state_bytes: int
    segments: int
    epoch_seconds: float


class Meter:
    """Counts and times the epochs of one run."""

    def __init__(self, keep_latencies: bool = False) -> None:
        self._lock = threading.Lock()
        self._keep = keep_latencies
        self._latencies: list[tuple[float, F64, F64]] = []
        self._recent: deque[tuple[float, int]] = deque()
        self._reading: Reading | None = None
        self._began: float | None = None
        self._ended = 0.0

    def __call__(self, done: EpochDone) -> None:
        now = time.monotonic()
        published = time.time() - done.seconds["tidy"]
        values, weights = _latencies(done, published)
        counts, tables = done.outcome.counts, done.manifest.tables.values()
        seconds = sum(done.seconds.values())
        with self._lock:
            before = self._reading
            self._began = now - seconds if self._began is None else self._began
            self._ended = now
            if self._keep:
                self._latencies.append((now, values, weights))
            if not self._recent:
                self._recent.append((now - seconds, 0))
            self._recent.append((now, counts.get("rows_in", 0)))
            p50, p99 = percentiles(values, weights, (50, 99))
            self._reading = Reading(
                epoch=done.epoch,
                epochs=(before.epochs if before else 0) + 1,
                rows_in=(before.rows_in if before else 0) + counts.get("rows_in", 0),
                rows_out=(before.rows_out if before else 0) + counts.get("rows_out", 0),
                dead_letters=(before.dead_letters if before else 0) + counts.get("dead_letters", 0),
                rate=self._rate(now),
                p50=p50,
                p99=p99,
                state_rows=sum(table.rows for table in tables),
                state_bytes=sum(table.bytes for table in tables),
                segments=sum(len(table.segments) for table in tables),
                epoch_seconds=seconds,
            )

    def read(self) -> Reading | None:
        """The newest reading; None before the first epoch."""
        with self._lock:
            return self._reading

    def latency(self, *ranks: float, second_half: bool = False) -> tuple[float, ...]:
        """Percentiles over all events so far (where they are kept), or over those of the second half of the time."""
        with self._lock:
            since = ((self._began or 0.0) + self._ended) / 2 if second_half else float("-inf")
            kept = [(values, weights) for ended, values, weights in self._latencies if ended >= since]
        if not kept:
            return tuple(0.0 for _ in ranks)
        return percentiles(np.concatenate([v for v, _ in kept]), np.concatenate([w for _, w in kept]), ranks)

    @property
    def seconds(self) -> float:
        """From the start of the first epoch to the end of the last."""
        with self._lock:
            return self._ended - self._began if self._began is not None else 0.0

    def _rate(self, now: float) -> float:
        while len(self._recent) > 2 and self._recent[0][0] < now - _RATE_SECONDS:
            self._recent.popleft()
        span = now - self._recent[0][0]
        # The first entry's rows came before the span begins.
        return sum(rows for _, rows in list(self._recent)[1:]) / span if span > 0 else 0.0


def _latencies(done: EpochDone, published: float) -> tuple[F64, F64]:
    splits = [split for _, split in done.decision.splits if split.rows > 0]
    if not splits:
        return np.zeros(0), np.zeros(0)
    values = [published - np.linspace(*split.born, min(split.rows, _POINTS)) for split in splits]
    weights = [np.full(len(part), split.rows / len(part)) for part, split in zip(values, splits, strict=True)]
    return np.maximum(np.concatenate(values), 0.0), np.concatenate(weights)


def percentiles(values: F64, weights: F64, ranks: tuple[float, ...]) -> tuple[float, ...]:
    """The values below which these percentages of the weight are.

    >>> percentiles(np.array([3.0, 1.0, 2.0]), np.array([1.0, 98.0, 1.0]), (50, 99))
    (1.0, 2.0)
    """
    if not len(values):
        return tuple(0.0 for _ in ranks)
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum() * 100
    at = np.minimum(np.searchsorted(reached, np.array(ranks) - 1e-9), len(values) - 1)
    return tuple(float(value) for value in values[order][at])


def line(reading: Reading) -> str:
    """One reading in one line."""
    parts = [
        f"epoch {reading.epoch}",
        f"{wording.count(reading.rows_in)} rows in",
        f"{wording.count(reading.rate)} rows/s",
        f"latency p50 {wording.duration(reading.p50)}, p99 {wording.duration(reading.p99)}",
    ]
    if reading.segments:
        parts.append(f"state {wording.plural(reading.state_rows, 'row')} stored, {wording.size(reading.state_bytes)}")
    if reading.dead_letters:
        parts.append(wording.plural(reading.dead_letters, "dead letter"))
    return " · ".join(parts)


class Display(Protocol):
    """Shows readings while a flow runs; a context manager."""

    def __enter__(self) -> Display: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def show(self, reading: Reading | None) -> None: ...


class Lines:
    """A line for every second in which an epoch ended, and one for the last: for logs and pipes."""

    def __init__(self, console: Console, every: float = 1.0) -> None:
        self._console = console
        self._every = every
        self._shown: Reading | None = None
        self._newest: Reading | None = None
        self._at = float("-inf")

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._print()

    def show(self, reading: Reading | None) -> None:
        self._newest = reading
        if time.monotonic() - self._at >= self._every:
            self._print()

    def _print(self) -> None:
        if self._newest is not None and self._newest is not self._shown:
            self._shown, self._at = self._newest, time.monotonic()
            self._console.print(line(self._newest), soft_wrap=True)


class StatusLine:
    """One line at the bottom of a terminal that is overwritten; the output of sinks goes above
    it."""

    def __init__(self, console: Console) -> None:
        self._spinner = Spinner("dots", text=Text("waiting for input"))
        self._live = Live(self._spinner, console=console, refresh_per_second=8)

    def __enter__(self) -> StatusLine:
        self._live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, reading: Reading | None) -> None:
        if reading is not None:
            self._spinner.update(text=Text(line(reading), no_wrap=True, overflow="ellipsis"))


def make_console(json: bool, no_color: bool) -> Console:
    """Where a person reads: standard output, or standard error where that is for a program. In files and pipes tables are not cut."""
    console = Console(file=sys.stderr if json else sys.stdout, no_color=True if no_color else None, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPED_COLUMNS
    return console


@contextmanager
def waiting(console: Console, what: str) -> Iterator[None]:
    """Says what is waited for: a spinner on a terminal, a line elsewhere."""
    if not console.is_terminal:
        console.print(what, soft_wrap=True)
        yield
        return
    with console.status(what):
        yield


def watch(ended: Callable[[float], bool], meter: Meter, display: Display, stop: threading.Event) -> None:
    """Show readings until ``ended(timeout)`` says that the flow has, or somebody wants it to stop."""
    with display:
        while not stop.is_set() and not ended(0.2):
            display.show(meter.read())
        display.show(meter.read())

"""The workload as a source of a flow: first every key once, as fast as it goes, then events at their steady rate.

The steady stream begins when the initial load is taken, not before: a backlog from the meantime
would distort the measurement.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from meander.bench.load.workload import SCHEMA, Workload
from meander.connect.source import Batch, Choice, Split
from meander.stored import stored

_SPLIT_ROWS = 100_000
_EVENT_BYTES = 48


@stored("workload")
@dataclass(frozen=True)
class WorkloadSource:
    """``load_rows`` keys per epoch while loading (0: no loading), then the stream, ``events`` of it (None: endless).

    A stream that is not ``paced`` has all its events at once; ``epoch_rows`` bounds an epoch.
    """

    workload: Workload
    load_rows: int = 0
    events: int | None = None
    paced: bool = True
    epoch_rows: int = 1_000_000

    def schema(self) -> pl.Schema:
        return SCHEMA

    def cursor(self, offset: dict[str, Any], seen: set[str], throttle: float = 1.0) -> WorkloadCursor:
        return WorkloadCursor(self, offset)

    def read(self, payload: dict[str, Any]) -> Batch:
        if payload["partition"] is None:
            return Batch(self.workload.loading(payload["start"], payload["count"], payload["began"]))
        return Batch(self.workload.events(payload["partition"], payload["start"], payload["count"], payload["began"]))

    def describe(self) -> str:
        return f"{self.workload}, loading {self.load_rows}, events {self.events}, paced {self.paced}"

    def canonical(self) -> str:
        return self.describe()


class WorkloadCursor:
    """How many keys are loaded, how many events are taken, and when the first of them was due."""

    def __init__(self, source: WorkloadSource, offset: dict[str, Any]) -> None:
        self._source = source
        self._keys = source.workload.keys if source.load_rows else 0
        self._loaded: int = offset.get("loaded", 0)
        self._taken: int = offset.get("taken", 0)
        self._began: float | None = offset.get("began")
        self._before = self._offset()
        """Where the last choice began."""

    def look(self) -> None:
        """All there is follows from the clock."""

    def release(self, names: Sequence[str]) -> None:
        """Events can be made again at any time."""

    def close(self) -> None:
        """Nothing runs in the background."""

    def slow_down(self, share: float) -> None:
        """A benchmark's load is what it was asked for."""

    def backlog(self, now: float) -> bool:
        if self._loaded < self._keys:
            return True
        source = self._source
        return not source.paced and (source.events is None or source.events - self._taken >= source.epoch_rows)

    def waiting(self, now: float) -> int:
        return max(0, self._due(now) - self._taken) if self._loaded >= self._keys else self._keys - self._loaded

    def finished(self) -> bool:
        return self._loaded >= self._keys and self._source.events is not None and self._taken >= self._source.events

    def follow(self, given: Choice | None, agreed: Choice | None) -> None:
        if given is not None or agreed is not None:
            at = self._before if agreed is None else agreed.offset
            self._loaded, self._taken, self._began = at["loaded"], at["taken"], at["began"]

    def choose(self, now: float, everything: bool) -> Choice | None:
        self._before = self._offset()
        if self._loaded < self._keys:
            return self._load(now)
        if self._began is None:
            self._began = now
        end = min(self._due(now), self._taken + self._source.epoch_rows)
        if end <= self._taken:
            return None
        first, self._taken = self._taken, end
        partitions = range(self._source.workload.partitions)
        return Choice(tuple(split for partition in partitions for split in self._cut(partition, first, end)), self._offset())

    def _due(self, now: float) -> int:
        source = self._source
        if self._began is None:
            return 0
        due = math.floor((now - self._began) * source.workload.rate) if source.paced else self._taken + source.epoch_rows
        return due if source.events is None else min(due, source.events)

    def _offset(self) -> dict[str, Any]:
        return {"loaded": self._loaded, "taken": self._taken, "began": self._began}

    def _load(self, now: float) -> Choice:
        first, self._loaded = self._loaded, min(self._keys, self._loaded + self._source.load_rows)
        parts = self._source.workload.partitions
        bounds = [first + (self._loaded - first) * part // parts for part in range(parts + 1)]
        splits = [
            Split(
                {"partition": None, "start": begin, "count": end - begin, "began": now},
                end - begin,
                (end - begin) * _EVENT_BYTES,
                (now, now),
            )
            for begin, end in itertools.pairwise(bounds)
            if begin < end
        ]
        return Choice(tuple(splits), self._offset())

    def _cut(self, partition: int, first: int, last: int) -> list[Split]:
        """The splits of one partition's share of events [first, last), cut at multiples of the split size."""
        workload, splits = self._source.workload, []
        step, rate, began = workload.partitions, workload.rate, self._began or 0.0
        start, end = (-(-(bound - partition) // step) for bound in (first, last))
        while start < end:
            stop = min(end, (start // _SPLIT_ROWS + 1) * _SPLIT_ROWS)
            born = (began + (start * step + partition) / rate, began + ((stop - 1) * step + partition) / rate)
            payload = {"partition": partition, "start": start, "count": stop - start, "began": began}
            splits.append(Split(payload, stop - start, (stop - start) * (_EVENT_BYTES + workload.payload), born))
            start = stop
        return splits

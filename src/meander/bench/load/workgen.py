"""Writing the simulated workload into a folder, for any system that reads files: as fast as it goes, or when events are due.

A file appears whole, by renaming; its name says its partition and its place in it. The same workload gives the same files, but for the
``created`` column of a live one, which begins when it is started.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

import meander as md
from meander.bench.load.workload import Workload

FORMATS = ("parquet", "json")
_ORIGIN = 1_704_067_200.0  # 2024-01-01, where event time starts when nothing is live
_LOAD_ROWS = 100_000


@dataclass(frozen=True)
class Written:
    """The progress of the writer."""

    events: int
    files: int
    bytes: int


class Writer:
    """One workload into one folder."""

    def __init__(self, folder: str | Path, workload: Workload, format: str = "parquet") -> None:
        if format not in FORMATS:
            raise md.ConfigError(f"format '{format}': there are {', '.join(FORMATS)}")
        self._folder, self._workload, self._format = Path(folder), workload, format
        self._events = self._files = self._bytes = 0
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise md.ConfigError(f"folder '{folder}': cannot be made ({error.strerror}); give another one") from error
        if any(self._folder.glob("events-*")) or any(self._folder.glob("load-*")):
            raise md.ConfigError(f"folder '{folder}' has events already; give an empty one, or remove them")

    @property
    def written(self) -> Written:
        return Written(self._events, self._files, self._bytes)

    def load(self, progress: Callable[[Written], None] = lambda written: None) -> None:
        """One event per key, so that the state has its full size before the stream begins."""
        for number, start in enumerate(range(0, self._workload.keys, _LOAD_ROWS)):
            count = min(_LOAD_ROWS, self._workload.keys - start)
            self._publish(f"load-{number:06d}", self._workload.loading(start, count, _ORIGIN))
            progress(self.written)

    def write(self, events: int, per_file: int, live: bool = False, progress: Callable[[Written], None] = lambda written: None) -> None:
        """The stream's first ``events``, ``per_file`` of every partition in a file. ``live`` ones appear when their last event was due."""
        parts, rate = self._workload.partitions, self._workload.rate
        began = time.time() if live else _ORIGIN
        for number, first in enumerate(range(0, events, per_file * parts)):
            last = min(events, first + per_file * parts)
            if live:
                time.sleep(max(0.0, began + last / rate - time.time()))
            for partition in range(parts):
                start, end = (-(-(bound - partition) // parts) for bound in (first, last))
                if start < end:
                    self._publish(f"events-{partition:03d}-{number:08d}", self._workload.events(partition, start, end - start, began))
            progress(self.written)

    def _publish(self, name: str, frame: pl.DataFrame) -> None:
        staged = self._folder / f".{name}"
        if self._format == "json":
            frame.write_ndjson(staged)
        else:
            frame.write_parquet(staged)
        self._events, self._files, self._bytes = self._events + frame.height, self._files + 1, self._bytes + staged.stat().st_size
        os.replace(staged, self._folder / f"{name}.{self._format}")

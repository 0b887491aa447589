"""The per-event latency file: one line per event, its ingestion time and its latency, both in whole milliseconds.

The driver appends after an epoch is published. Times inside a split are spread evenly between the birth of its
first and its last row. A line is ``<ingestion> <latency>``; a file is written by one run, from its first line.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType

import numpy as np
import polars as pl

from meander.connect.source import Split
from meander.errors import ConfigError


class LatencyFile:
    """Appends the events of each published epoch and flushes, so that the file can be read while the flow runs."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        try:
            self._out = open(self.path, "wb")  # noqa: SIM115 (open for as long as the run is)
        except OSError as error:
            raise ConfigError(f"latency file {self.path!r}: cannot be written ({error.strerror}); give another path") from error

    def append(self, splits: Sequence[Split], published: float) -> None:
        """The events of one epoch; ``published`` is when its output became visible, in seconds since 1970."""
        times = [np.linspace(split.born[0], split.born[1], split.rows) for split in splits if split.rows > 0]
        if not times:
            return
        born = np.concatenate(times)
        lines = pl.DataFrame(
            {
                "ingestion": np.rint(born * 1000).astype(np.int64),
                # Clocks of two machines may disagree by a little; a negative latency would only mislead.
                "latency": np.maximum(np.rint((published - born) * 1000), 0).astype(np.int64),
            }
        )
        lines.write_csv(self._out, include_header=False, separator=" ")
        self._out.flush()

    def close(self) -> None:
        self._out.close()

    def __enter__(self) -> LatencyFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

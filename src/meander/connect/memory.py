"""The sink that keeps published rows in the driver's memory, for tests, notebooks and small results.

The description travels to the executors without its content; the rows live where the flow was started.
Publishing is idempotent by epoch, so a recovery that publishes an epoch again adds nothing. The object belongs
to one flow and one store: epochs of a second store would be taken for repetitions of the first one's.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast, overload

import polars as pl
import pyarrow as pa

from meander.connect import arrow_ipc
from meander.connect.sink import Staged
from meander.connect.spool import read_spool
from meander.stored import stored

if TYPE_CHECKING:
    from meander.connect.memory_table import MemoryTable


@stored("memory")
class MemorySink:
    """Published rows by epoch; safe to read from any thread while the flow runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epochs: dict[int, pl.DataFrame] = {}
        self._spool: Path | None = None

    def follow(self, folder: Path) -> None:
        """Take the rows from a folder from now on: other processes run the flow, and publish there."""
        self._spool = folder

    def encode(self, frame: pl.DataFrame) -> bytes:
        return arrow_ipc.encode(frame)

    def open(self) -> None:
        """Nothing to check: memory is always there."""

    def publish(self, epoch: int, files: list[Staged]) -> None:
        with self._lock:
            if epoch in self._epochs:
                return
        frame = arrow_ipc.gather(files)
        with self._lock:
            if frame is not None:
                self._epochs.setdefault(epoch, frame)

    def frame(self) -> pl.DataFrame:
        """All published rows in epoch order; no columns as long as nothing was published."""
        with self._lock:
            self._pull()
            frames = [self._epochs[epoch] for epoch in sorted(self._epochs)]
        # A modification may have changed the columns in mid-stream: rows of either plan stay readable.
        return pl.concat(frames, how="diagonal_relaxed") if frames else pl.DataFrame()

    def rows(self) -> list[tuple[object, ...]]:
        """The same rows as tuples, sorted by all columns from left to right, nulls first."""
        frame = self.frame()
        return frame.sort(pl.all(), nulls_last=False).rows() if frame.width else []

    def table(self) -> pa.Table:
        """The same rows as an Arrow table."""
        return cast(pa.Table, self.frame().to_arrow(compat_level=pl.CompatLevel.oldest()))

    def epochs(self) -> dict[int, pl.DataFrame]:
        """The rows of each published epoch that had any."""
        with self._lock:
            self._pull()
            return dict(sorted(self._epochs.items()))

    def clear(self) -> None:
        """Forget the rows but not the epochs: rows that were published once do not come back."""
        with self._lock:
            self._pull()
            self._epochs = {epoch: frame.clear() for epoch, frame in self._epochs.items()}

    def _pull(self) -> None:
        if self._spool is not None:
            self._epochs.update(read_spool(self._spool, set(self._epochs)))

    def describe(self) -> str:
        return "memory"

    def canonical(self) -> str:
        return self.describe()

    def __reduce__(self) -> tuple[type[MemorySink], tuple[()]]:
        # Executors only encode; the rows must not travel with every task.
        return (MemorySink, ())


@overload
def memory(table: Literal[False] = False) -> MemorySink: ...


@overload
def memory(table: Literal[True]) -> MemoryTable: ...


def memory(table: bool = False) -> MemorySink:
    """A sink whose rows are read back with ``.table()``, ``.frame()`` or, as sorted tuples, ``.rows()``.

    Of a stream of changes these are the log, or, with ``table=True``, the rows that there are now.

    Example: ``rows = md.memory()``, ``totals.sink("out", rows)``, then ``rows.frame()``.
    """
    from meander.connect.memory_table import MemoryTable

    return MemoryTable() if table else MemorySink()

"""The memory sink that shows the current table of a stream of changes: ``md.memory(table=True)``, for tests, notebooks and demos.

Each epoch publishes its net change. Reading the table folds the changes since the last read into
it. So an epoch costs no more than its changes, and memory holds the table and the changes not yet
folded; these are also folded whenever they are larger than the table. For an append-only stream the
table has all rows.

The object belongs to one flow and one store, from their beginning on: a sink that is added to a
flow later does not have the earlier rows.
"""

from __future__ import annotations

import polars as pl

from meander.connect.memory import MemorySink
from meander.connect.net import SIGN, added, check_bag, is_signed, rows_of, signed
from meander.connect.sink import Staged
from meander.errors import ConfigError
from meander.stored import stored

_FEWEST = 10_000


@stored("memory_table")
class MemoryTable(MemorySink):
    """The rows that a stream has now; safe to read from any thread while the flow runs."""

    def __init__(self) -> None:
        super().__init__()
        self._folded: pl.DataFrame | None = None
        """The epochs that are added up; in ``_epochs`` they have no rows any more."""
        self._waiting = 0

    @property
    def shows_table(self) -> bool:
        return True

    @property
    def table_key(self) -> tuple[str, ...] | None:
        return None

    def check(self, schema: pl.Schema, name: str) -> None:
        check_bag(schema, name)

    def publish(self, epoch: int, files: list[Staged]) -> None:
        super().publish(epoch, files)
        with self._lock:
            self._waiting += sum(staged.file.rows for staged in files)
            if self._waiting > max(_FEWEST, 0 if self._folded is None else self._folded.height):
                self._fold()

    def frame(self) -> pl.DataFrame:
        """The rows of the table, in no order; no columns as long as nothing was published."""
        with self._lock:
            self._pull()
            self._fold()
            if self._folded is None:
                return pl.DataFrame()
            if (self._folded.get_column(SIGN) < 0).any():
                raise ConfigError(
                    "memory(table=True): rows are gone that this table never had, so it is not the flow's: the flow has run before, with "
                    "another object. Start it on an empty store, or keep the log of .changes() in md.parquet(...)"
                )
            return rows_of(self._folded)

    def epochs(self) -> dict[int, pl.DataFrame]:
        raise ConfigError("memory(table=True): it keeps the table and not its epochs; use md.memory() behind .changes() for a log")

    def clear(self) -> None:
        raise ConfigError("memory(table=True): the current table cannot be cleared; use md.memory() for a log")

    def _fold(self) -> None:
        new = [frame if is_signed(frame) else signed(frame, 1) for frame in self._epochs.values() if frame.height]
        if new:
            self._folded = added(new if self._folded is None else [self._folded, *new])
            self._epochs = {epoch: frame.clear() for epoch, frame in self._epochs.items()}
            self._waiting = 0

    def describe(self) -> str:
        return "memory, the current table"

    def canonical(self) -> str:
        return self.describe()

    def __reduce__(self) -> tuple[type[MemorySink], tuple[()]]:
        return (MemoryTable, ())

"""The sink that prints every epoch's rows on standard output, for demos and for looking into a flow.

Printing cannot be taken back: an epoch that recovery publishes again is printed again by the new process.
Within one process an epoch is printed once.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import ClassVar

import polars as pl

from meander.connect import arrow_ipc
from meander.connect.sink import Staged
from meander.errors import ConfigError
from meander.stored import stored


@stored("console")
@dataclass(frozen=True)
class ConsoleSink:
    """Prints the epoch, the number of rows and the first ``rows`` of them."""

    done_by_one: ClassVar[bool] = True
    rows: int = 20
    _printed: set[int] = field(default_factory=set, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise ConfigError(f"console(rows={self.rows}): at least one row must be shown; use discard() to show none")

    def encode(self, frame: pl.DataFrame) -> bytes:
        return arrow_ipc.encode(frame)

    def open(self) -> None:
        """Nothing to check: standard output is always there."""

    def publish(self, epoch: int, files: list[Staged]) -> None:
        if epoch in self._printed:
            return
        frame = arrow_ipc.gather(files)
        if frame is not None:
            with pl.Config(tbl_rows=self.rows, tbl_cols=-1, tbl_hide_dataframe_shape=True, tbl_hide_column_data_types=True):
                more = f", first {self.rows}" if frame.height > self.rows else ""
                sys.stdout.write(f"epoch {epoch}: {frame.height} row{'' if frame.height == 1 else 's'}{more}\n{frame.head(self.rows)}\n")
                sys.stdout.flush()
        self._printed.add(epoch)

    def describe(self) -> str:
        return "console"

    def canonical(self) -> str:
        return self.describe()

    def __reduce__(self) -> tuple[type[ConsoleSink], tuple[int]]:
        return (ConsoleSink, (self.rows,))


def console(rows: int = 20) -> ConsoleSink:
    """A sink that prints the first ``rows`` rows of every epoch.

    Example: ``orders.sink("seen", md.console(rows=5))``.
    """
    return ConsoleSink(rows)

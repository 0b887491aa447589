"""The sink that hands every epoch's rows to a function of the user's, on the driver.

**At least once.** The function is called again with the last committed epoch after a failure between its call and
the record that the epoch is published. To make the effect exactly once it must store the epoch together with the
rows and ignore an epoch that is not above the last one stored:

    def save(frame: pl.DataFrame, epoch: int) -> None:
        with connection.transaction():
            last = connection.execute("select coalesce(max(epoch), 0) from applied").fetchone()[0]
            if epoch <= last:
                return                                    # stored before the failure
            connection.execute_many("insert into totals values (?, ?, ?)", frame.rows())
            connection.execute("insert into applied values (?)", [epoch])

Epochs come in order, one at a time; epochs without rows are not passed on. An OSError (a connection that is refused or broken is one) or
``md.Retryable`` says that the function cannot do it now: the flow waits, and calls it again with the same epoch. Any other exception ends
the run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import polars as pl

from meander.connect import arrow_ipc
from meander.connect.sink import Staged
from meander.errors import ConfigError, FlowError
from meander.plan.code import code_of
from meander.stored import stored

Function = Callable[[pl.DataFrame, int], None]


@stored("foreach_batch")
@dataclass(frozen=True)
class ForeachBatchSink:
    """Calls ``function(frame, epoch)`` once per epoch with rows; the module's docstring says how to
    handle repeated epochs."""

    function: Function | None
    name: str
    """The function's: it counts in digests, also of a copy without the function."""
    done_by_one: ClassVar[bool] = True

    def encode(self, frame: pl.DataFrame) -> bytes:
        return arrow_ipc.encode(frame)

    def open(self) -> None:
        self._called()

    def publish(self, epoch: int, files: list[Staged]) -> None:
        function = self._called()
        frame = arrow_ipc.gather(files)
        if frame is not None and frame.height:
            function(frame, epoch)

    def describe(self) -> str:
        return f"foreach_batch {self.name}"

    def canonical(self) -> str:
        return self.describe()

    def place(self) -> str:
        """With the code, and without what a closure holds that may change or be live."""
        function = getattr(self.function, "__func__", self.function)
        cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
        plain = [cell if isinstance(cell, str | bytes | int | float | None) else type(cell) for cell in cells]
        return f"{self.describe()} {code_of((getattr(function, '__code__', type(function)), plain))}"

    def _called(self) -> Function:
        if self.function is None:
            raise ConfigError("foreach_batch: this copy of the sink is an executor's and has no function; publish on the driver")
        return self.function

    def for_tasks(self) -> ForeachBatchSink:
        """The function may hold connections and locks that cannot be pickled, and executors only encode."""
        return replace(self, function=None)


def foreach_batch(fn: Function) -> ForeachBatchSink:
    """A sink that calls ``fn(frame: pl.DataFrame, epoch: int)`` on the driver, at least once per epoch with rows.

    ``fn`` must ignore an epoch that is not above the last one it stored: after a failure the last epoch is passed again.

    Example: ``totals.sink("db", md.foreach_batch(lambda frame, epoch: print(epoch, frame.height)))``.
    """
    if not callable(fn):
        raise FlowError(f"foreach_batch: {fn!r} is not a function; give one that takes (frame, epoch)")
    return ForeachBatchSink(fn, getattr(fn, "__qualname__", type(fn).__qualname__))

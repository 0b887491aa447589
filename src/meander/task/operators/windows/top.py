"""The best rows of every key and window, when the window closes. State is those rows, by their window's beginning.

Windows share nothing here, so that each is a key of its own: also a stream without a key is spread over the slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from meander.coordinate.timing import Timing
from meander.plan.eventtime import END, START
from meander.plan.rowwise import RANK, WindowTop
from meander.plan.windows import Times, Window
from meander.state.grouping import group_rows
from meander.state.segment import DELETED, HASH
from meander.state.table import Kept
from meander.stored import stored
from meander.task.operators.contract import Emitted, Intake, Mask, Partial, Stateful
from meander.task.operators.place import Place
from meander.task.operators.ranking import ARRIVAL, OWNER, Order
from meander.task.operators.wholerows import in_order, positions_of, send_whole
from meander.task.operators.workspace import Workspace
from meander.task.rows import UNIT, Rows

WINDOW, PLACE = "__window", "__place"


@dataclass(frozen=True)
class BestOfWindows(Stateful):
    """Emits a window's list once, when it closes."""

    order: Order
    window: Window
    columns: tuple[str, ...]
    """Those of the rows."""
    time: str | None
    shift: int
    dtype: pl.Datetime
    follows: Timing

    @property
    def timing(self) -> Timing:
        return self.follows

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that identify a list."""
        return (*self.keys, WINDOW)

    def tables(self) -> dict[str, Kept]:
        return {self.name: Kept((*self.identity, PLACE), WINDOW)}

    def refuses(self, frame: pl.DataFrame, side: int, late: int) -> Mask | None:
        if self.time is None:
            return None
        found: Mask = self.window.last_start(self._times(frame, 0)) + self.window.size <= late
        return found

    def parted(self, frame: pl.DataFrame, side: int, late: int) -> bool:
        return self.time is not None and bool((self._times(frame, 0) < self.window.last_end(late)).any())

    def why_late(self) -> str:
        return f"late: its windows of {self.time} had closed"

    def before(self, rows: Rows, side: int, intake: Intake) -> pl.DataFrame:
        """The best rows of a key, window and unit; a row is in several windows where they slide."""
        times = self._times(rows.frame, intake.now)
        last = self.window.last_start(times)
        frame, positions = rows.frame.select(self.columns), positions_of(rows, intake)
        sent = []
        for back in range(self.window.per_pane):
            windows = last - back * self.window.step
            inside = windows + self.window.size > times
            mine = rows.with_frame(frame.with_columns(pl.Series(WINDOW, windows))).filter(pl.Series(inside))
            sent.append(self._best_by_unit(send_whole(mine, self.identity, intake, positions[inside]), rows.units is not None))
        return sent[0] if len(sent) == 1 else pl.concat(sent).sort(HASH, maintain_order=True)

    def _best_by_unit(self, frame: pl.DataFrame, has_units: bool) -> pl.DataFrame:
        units = frame.get_column(UNIT).to_numpy() if has_units else None
        groups = group_rows(frame.select(self.identity), frame.get_column(HASH).to_numpy(), units)
        if len(groups.starts) == frame.height:
            return frame
        owned = frame[groups.order].with_columns(groups.ids().alias(OWNER), pl.Series(ARRIVAL, np.arange(frame.height)))
        return self.order.best(owned).select(frame.columns)

    def work(self, workspace: Workspace, arrived: Sequence[Partial]) -> Emitted | None:
        self._merge(workspace, arrived)
        workspace.lap("state read")
        if workspace.flushes and not self.follows.by_clock and (last := workspace.largest(self.name)) is not None:
            workspace.closed = last + self.window.size
        due = self.due(self.name, workspace.late, workspace.evict)
        rows = pl.DataFrame() if due is None else workspace.ending(self.name, *due)
        if rows.height == 0:
            return None
        rows = rows.sort(HASH, *self.identity, PLACE, maintain_order=True)
        return Emitted(self.reader().finish(rows), rows.get_column(HASH).to_numpy())

    def _merge(self, workspace: Workspace, arrived: Sequence[Partial]) -> None:
        """The lists of the windows that have got rows."""
        found = in_order(arrived)
        if found is None:
            return
        frame = found[0].filter(pl.col(WINDOW) + self.window.size > workspace.late)
        if frame.height == 0:
            return
        groups = group_rows(frame.select(self.identity), frame.get_column(HASH).to_numpy())
        keys = frame.select(self.identity)[groups.heads]
        content = [column for column in self.columns if column not in self.keys]
        owned = [OWNER, ARRIVAL, PLACE, *content]
        new = frame[groups.order].with_columns(groups.ids().cast(pl.Int64).alias(OWNER), pl.Series(ARRIVAL, np.arange(frame.height)))
        rows = [new.with_columns(pl.lit(None, pl.Int64).alias(PLACE)).select(owned)]
        windows = keys.get_column(WINDOW).to_numpy()
        which, stored = workspace.find_rows(self.name, keys, groups.hashes, (PLACE,), content, windows, windows)
        if len(which):
            old = stored.with_columns(pl.Series(OWNER, which.astype(np.int64)))
            rows.append(old.with_columns(self.order.arrival_of_stored(pl.col(PLACE)).alias(ARRIVAL)).select(owned))
        full = self.order.best(pl.concat(rows)).with_columns(pl.int_range(pl.len(), dtype=pl.Int64).over(OWNER).alias("__now"))
        moved = full.filter(pl.col("__now").ne_missing(pl.col(PLACE)))
        best = moved.with_columns(pl.col("__now").alias(PLACE)).select(*owned, pl.lit(False).alias(DELETED))
        if len(which):
            # Equals that count together can all be driven out by one that is better: then a list gets shorter.
            gone = rows[1].join(full.group_by(OWNER).len("__length"), on=OWNER).filter(pl.col(PLACE) >= pl.col("__length"))
            best = pl.concat([best, gone.select(*owned, pl.lit(True).alias(DELETED))])
        owners = best.get_column(OWNER).to_numpy()
        best = best.with_columns(pl.Series(HASH, groups.hashes[owners]), *keys[owners].get_columns())
        columns = [HASH, *self.identity, PLACE, *content]
        best = best.select(*columns, *([DELETED] if best.get_column(DELETED).any() else [])).sort(HASH, *self.identity, PLACE)
        workspace.write(self.name, best)

    def _times(self, frame: pl.DataFrame, now: int) -> Times:
        if self.time is None:
            return np.full(frame.height, now, np.int64)
        found: Times = frame.get_column(self.time).dt.epoch("us").to_numpy()
        return found + self.shift

    def over(self, table: str, evict: int) -> int:
        return self.window.last_end(evict) - self.window.size

    def due(self, table: str, late: int, evict: int) -> tuple[int, int] | None:
        end = self.window.last_end(evict)
        return (late - self.window.size, end - self.window.size) if end > late else None

    def reader(self) -> WindowTopReader:
        return WindowTopReader(self.identity, self.order, self.window.size, self.dtype, tuple(self.schema), self.window)


@stored("window_top_state")
@dataclass(frozen=True)
class WindowTopReader:
    """Shows the lists of windows, rank by rank."""

    identity: tuple[str, ...]
    order: Order
    size: int
    dtype: pl.Datetime
    columns: tuple[str, ...]
    window: Window | None = None
    """None in a store of an older version."""

    def show(self, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
        return self.finish(pl.concat(list(tables.values())).sort(*self.identity, PLACE))

    def finish(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows in order, list by list, with their windows and ranks."""
        zoned = pl.Datetime("us", self.dtype.time_zone)
        begin = pl.col(WINDOW) if self.window is None else self.window.begins(pl.col(WINDOW))
        times = [
            moment.cast(zoned).dt.cast_time_unit(self.dtype.time_unit)
            for moment in (begin.alias(START), (pl.col(WINDOW) + self.size).alias(END))
        ]
        owned = rows.with_columns((pl.col(PLACE) == 0).cast(pl.UInt32).cum_sum().alias(OWNER))
        return owned.with_columns(*times, self.order.rank().alias(RANK)).select(self.columns)


def make_window_top(place: Place, op: WindowTop) -> BestOfWindows:
    dtype, follows = pl.Datetime("us"), Timing(by_clock=True)
    if op.time is not None:
        found, time = place.schema()[op.time], place.time()
        assert time is not None
        assert isinstance(found, pl.Datetime)
        dtype, follows = found, Timing(time.marks, time.delay)
    return BestOfWindows(
        **place.common(op.keys),
        order=Order(op.n, op.by, op.descending, op.ties),
        window=op.window,
        columns=tuple(column for column in place.schema() if column not in (START, END)),
        time=op.time,
        shift=op.shift,
        dtype=dtype,
        follows=follows,
    )

"""Aggregates per key and window: late rows, the state of a window, and its output when it closes.

State is one row per key and *pane* (see ``plan.windows``), which is over when no window needs it any more.

A window that is emitted whenever it changes may have panes from a plan that emitted it only when it
closed, or that had windows of another length: these panes have not been emitted. The same holds if
such a plan was on probation and is taken back. The operator *owes* these windows: panes that it
writes are marked as emitted, and a window with an unmarked pane is emitted when it closes, whether
or not it was emitted before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import polars as pl

from meander.aggregates import Agg, Part
from meander.coordinate.marks import lates
from meander.coordinate.timing import Timing
from meander.plan.change.layout import UNTOLD
from meander.plan.computed import with_computed
from meander.plan.eventtime import END, START, WindowAggregate
from meander.plan.windows import NEVER, Times, Window
from meander.state.grouping import fold_states, group_rows
from meander.state.hashing import Hashes, hash_keys, spread_within_groups
from meander.state.manifest import Manifest
from meander.state.segment import HASH
from meander.state.table import Kept, conform, fill_empty, find_states, merge_found
from meander.stored import stored
from meander.task.operators.contract import Emitted, Intake, Mask, Partial, Stateful
from meander.task.operators.folding import fold_after, fold_before, take
from meander.task.operators.place import Place, parts_of
from meander.task.operators.replacing import replaced_rows
from meander.task.operators.workspace import Workspace
from meander.task.rows import Rows

PANE, TOLD = "__pane", "__told"


@stored("windowing")
@dataclass(frozen=True)
class Windowing:
    """How rows are cut into windows, and how long these are kept."""

    window: Window
    time: str | None
    """The column of the rows' time; None where it is the decision's."""
    shift: int
    dtype: pl.Datetime
    emit: str
    lateness: int
    owes: bool = False
    """Whether stored windows may be from a plan that emits windows when they close, while this one
    emits them whenever they change."""

    @property
    def closes(self) -> bool:
        """Whether it can emit windows because they close."""
        return self.emit == "closed" or self.owes

    def times(self, frame: pl.DataFrame, now: int) -> Times:
        if self.time is None:
            return np.full(frame.height, now, np.int64)
        found: Times = frame.get_column(self.time).dt.epoch("us").to_numpy()
        return found + self.shift


@stored("window_state", without=("closed",), called={"aggs": "aggregates"})
@dataclass(frozen=True)
class WindowReader:
    """Shows windows, finished; to a reader of the state those that are open, as far as they have come."""

    keys: tuple[str, ...]
    aggs: tuple[Agg, ...]
    windowing: Windowing
    types: Mapping[str, pl.DataType] = field(default_factory=dict)
    """The columns of keys and states; stored ones may be of an older plan."""
    name: str = ""
    columns: pl.Schema | None = None
    """None in a store of an older version: it shows what is stored, which for sliding windows are panes."""
    timing: Timing | None = None
    closed: int = NEVER
    """The mark up to which everything has closed."""

    def as_of(self, manifest: Manifest) -> WindowReader:
        """The same, for the state after this manifest's epoch."""
        return self if self.timing is None else replace(self, closed=lates({self.name: self}, manifest, manifest.epoch + 1)[self.name])

    def show(self, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
        columns = {PANE: pl.Int64(), **self.types}
        panes = pl.concat([conform(rows, columns) if self.types else rows for rows in tables.values()])
        return self.finish(panes if self.columns is None else self._open(panes, parts_of(self.aggs, self.columns)))

    def _open(self, panes: pl.DataFrame, parts: Mapping[str, Part]) -> pl.DataFrame:
        """The windows that are open. None of their panes is gone: a pane goes with the last window that needs it."""
        window, lateness = self.windowing.window, self.windowing.lateness
        panes = panes.with_columns([fill_empty(panes.get_column(name), part) for name, part in parts.items()])
        last = pl.Series(START, window.last_start(panes.get_column(PANE).to_numpy()))
        of = [panes.with_columns((last - back * window.step).alias(START)) for back in range(window.per_pane)]
        ends = pl.col(START) + window.size
        rows = pl.concat(of).filter((ends + lateness > self.closed) & (ends > pl.col(PANE)))
        return rows if window.per_pane == 1 else fold_panes(rows.sort(PANE, maintain_order=True), self.keys, window, parts)

    def finish(self, rows: pl.DataFrame) -> pl.DataFrame:
        window, dtype = self.windowing.window, self.windowing.dtype
        begin, size = (START, window.size) if START in rows.columns else (PANE, window.pane)
        return finish_windows(rows, self.keys, self.aggs, window.begins(pl.col(begin)), pl.col(begin) + size, dtype)


def finish_windows(
    rows: pl.DataFrame, keys: Sequence[str], aggs: Sequence[Agg], start: pl.Expr, end: pl.Expr, dtype: pl.Datetime
) -> pl.DataFrame:
    """The output rows of windows, from their states and their two times in microseconds."""
    counted = [pl.col(f"{agg.name}.values").list.len().cast(pl.Int64).alias(f"{agg.name}.n") for agg in aggs if agg.keeps == "set"]
    zoned = pl.Datetime("us", dtype.time_zone)
    times = [moment.cast(zoned).dt.cast_time_unit(dtype.time_unit) for moment in (start.alias(START), end.alias(END))]
    return rows.with_columns(counted).select(*(pl.col(key) for key in keys), *times, *(agg.finish() for agg in aggs))


@dataclass(frozen=True)
class WindowAggregation(Stateful):
    """Folds rows into panes; emits windows when they close, or whenever they change."""

    parts: Mapping[str, Part]
    aggs: tuple[Agg, ...]
    windowing: Windowing
    follows: Timing
    columns: pl.Schema
    """Of the rows that come in."""
    retracts: bool = False
    """Whether a reader needs removals."""
    folds: ClassVar[bool] = True

    @property
    def timing(self) -> Timing:
        return self.follows

    @property
    def identity(self) -> tuple[str, ...]:
        return (*self.keys, PANE)

    def tables(self) -> dict[str, Kept]:
        return {self.name: Kept(self.identity, PANE)}

    def refuses(self, frame: pl.DataFrame, side: int, late: int) -> Mask | None:
        """Rows whose windows have all closed, and are not open for late rows either. By the clock,
        no row is late."""
        if self.windowing.time is None:
            return None
        window = self.windowing.window
        found: Mask = window.last_start(self.windowing.times(frame, 0)) + (window.size + self.windowing.lateness) <= late
        return found

    def why_late(self) -> str:
        return f"late: its windows of {self.windowing.time} had closed"

    def before(self, rows: Rows, side: int, intake: Intake) -> pl.DataFrame:
        panes = self.windowing.window.pane_of(self.windowing.times(rows.frame, intake.now))
        rows = rows.with_frame(rows.frame.with_columns(pl.Series(PANE, panes)))
        return fold_before(rows, hash_panes(rows.frame, self.keys, self.windowing.window), self.identity, self.parts, intake)

    def work(self, workspace: Workspace, arrived: Sequence[Partial]) -> Emitted | None:
        merge = WindowMerge(self.name, self.windowing, {key: self.schema[key] for key in self.keys}, self.parts, workspace, self.retracts)
        if arrived:
            folded = fold_after(arrived, self.identity, self.parts)
            workspace.lap("fold")
            merge.merge(*folded)
        rows = merge.emit()
        if workspace.flushes and not self.follows.by_clock and (pane := workspace.largest(self.name)) is not None:
            workspace.closed = pane
        if self.retracts:
            return replaced_rows(merge.gone(), rows, (*self.keys, START), self.reader().finish)
        if rows.height == 0:
            return None
        return Emitted(self.reader().finish(rows), rows.get_column(HASH).to_numpy())

    def reader(self) -> WindowReader:
        types = {key: self.schema[key] for key in self.keys} | {name: part.dtype for name, part in self.parts.items()}
        return WindowReader(self.keys, self.aggs, self.windowing, types, self.name, with_computed(self.columns, self.aggs), self.follows)

    def over(self, table: str, evict: int) -> int:
        return self.windowing.window.over(evict - self.windowing.lateness)

    def floor(self, closed: int) -> int:
        """Of the last pane."""
        window = self.windowing.window
        return int(window.last_start(np.array([closed]))[0]) + window.size + self.windowing.lateness

    def due(self, table: str, late: int, evict: int) -> tuple[int, int] | None:
        return self.windowing.window.due(late, evict) if self.windowing.closes else None


def make_windows(place: Place, op: WindowAggregate) -> WindowAggregation:
    dtype, follows = timing_of(place, op)
    assert isinstance(op.window, Window)
    # Readers that need removals have been given all stored rows: a chain continues as a whole, or
    # begins anew.
    owes = op.emit == "update" and UNTOLD in place.plan.retired.get(place.node.name, ()) and not place.retracts
    windowing = Windowing(op.window, op.time, op.shift, dtype, op.emit, op.lateness, owes)
    # A window's content is bounded: the values of its aggregates stay in its row.
    parts = parts_of(op.aggs, place.schema())
    return WindowAggregation(
        **place.common(op.keys),
        parts=parts,
        aggs=op.aggs,
        windowing=windowing,
        follows=follows,
        columns=place.schema(),
        retracts=place.retracts,
    )


def timing_of(place: Place, op: WindowAggregate) -> tuple[pl.Datetime, Timing]:
    """The type of a window's times, and the time that it follows."""
    flushes = op.emit == "closed"  # what gives updates has given out all it has: a flush has nothing to close there
    if op.time is None:
        return pl.Datetime("us"), Timing(by_clock=True, flushes=flushes)
    dtype, time = place.schema()[op.time], place.time()
    assert time is not None
    assert isinstance(dtype, pl.Datetime)
    return dtype, Timing(time.marks, time.delay, flushes=flushes)


def hash_panes(frame: pl.DataFrame, keys: Sequence[str], window: Window, column: str = PANE) -> Hashes:
    """A key's rows stay in the key's group, whatever their time: windows share panes. Time is the key where there is no other."""
    whole = hash_keys(frame.select(*keys, column))
    if not keys and not window.shares_panes:
        return whole
    return spread_within_groups(hash_keys(frame.select(keys)) if keys else np.zeros(frame.height, np.uint64), whole)


def fold_panes(rows: pl.DataFrame, keys: Sequence[str], window: Window, parts: Mapping[str, Part]) -> pl.DataFrame:
    """Panes of each window, in the order of time, to one state."""
    named = rows.select(*keys, START)
    groups = group_rows(named, hash_panes(rows, keys, window, START))
    states = fold_states(rows, groups, parts)
    return pl.DataFrame([pl.Series(HASH, groups.hashes), *named[groups.heads].get_columns(), *states.values()])


class WindowMerge:
    """One operator in one epoch: merges what has arrived, and makes rows of the windows that are to be emitted."""

    def __init__(
        self,
        name: str,
        windowing: Windowing,
        keys: Mapping[str, pl.DataType],
        parts: Mapping[str, Part],
        workspace: Workspace,
        retracts: bool = False,
    ) -> None:
        self._name, self._windowing, self._keys, self._parts, self._workspace = name, windowing, tuple(keys), parts, workspace
        self._types = {**keys, PANE: pl.Int64(), **{name: part.dtype for name, part in parts.items()}}
        """The columns of a pane in this version of the plan."""
        self._window = windowing.window
        self._told = f"{self._window.size}/{self._window.step}/{self._window.offset}"
        """The windows as part of which a pane was emitted."""
        self._new: pl.DataFrame | None = None
        self._retracts = retracts
        self._old: pl.DataFrame | None = None
        """Where it is asked for, what was stored of the panes that have changed."""
        self._gone: list[pl.DataFrame] = []

    def merge(self, keys: pl.DataFrame, hashes: Hashes, states: Mapping[str, pl.Series]) -> None:
        """Panes that have arrived, one row per key and pane, ascending by hash."""
        workspace, panes = self._workspace, keys.get_column(PANE).to_numpy()
        reach = workspace.reach(self._name, panes, panes)
        which, old = find_states(*workspace.stored(self._name, hashes, reach), keys, hashes, self._parts, workspace.key_groups, reach)
        if self._retracts and len(which):
            self._old = pl.DataFrame([pl.Series(HASH, hashes[which]), *take(keys, which), *old.values()])
        rows = merge_found(which, old, keys, hashes, states, self._parts)
        self._new = rows
        workspace.write(self._name, rows.with_columns(pl.lit(self._told).alias(TOLD)) if self._windowing.owes else rows)

    def emit(self) -> pl.DataFrame:
        """The windows to emit: hash, keys, start and state. Ascending by hash."""
        late, evict, slack = self._workspace.late, self._workspace.evict, self._windowing.lateness
        if self._windowing.emit == "update":
            found = [self._touched(late - slack + 1, None)]
            if self._windowing.owes:
                found.append(self._owed(late, evict, found[0]))
        else:
            found = [self._closing(late, evict)]
            if slack:  # a window that has closed and still takes rows is emitted again
                found.append(self._touched(late - slack + 1, late + 1))
        filled = [frame for frame in found if frame.height]
        if len(filled) < 2:
            return filled[0] if filled else found[0]
        return pl.concat(filled).sort(HASH, maintain_order=True)

    def gone(self) -> pl.DataFrame:
        """The former rows of windows that are emitted, or that would be if they still had rows."""
        return pl.concat(self._gone) if self._gone else self._nothing()

    # -- windows that close ---------------------------------------------------------------------------------------

    def _closing(self, late: int, evict: int) -> pl.DataFrame:
        panes = self._panes(late, evict)
        return self._windows(panes, late + 1, evict + 1) if panes is not None else self._nothing()

    def _owed(self, late: int, evict: int, given: pl.DataFrame) -> pl.DataFrame:
        """Windows that close, have panes that were not emitted, and are not ``given`` in this epoch
        anyway."""
        panes, window = self._panes(late, evict, TOLD), [*self._keys, START]
        if panes is None:
            return self._nothing()
        closing = self._windows(panes.drop(TOLD), late + 1, evict + 1)
        owed = self._windows(panes.filter(pl.col(TOLD).ne_missing(self._told)).drop(TOLD), late + 1, evict + 1)
        if owed.height == 0:
            return owed
        found = closing.join(owed.select(HASH, *window), on=[HASH, *window], how="semi", nulls_equal=True, maintain_order="left")
        if given.height == 0:
            return found
        return found.join(given.select(HASH, *window), on=[HASH, *window], how="anti", nulls_equal=True, maintain_order="left")

    def _panes(self, late: int, evict: int, *also: str) -> pl.DataFrame | None:
        """The panes of windows that end in (late, evict], with the columns that this version of the plan has; None where there are none."""
        due = self._window.due(late, evict)
        if due is None:
            return None
        rows = self._workspace.ending(self._name, *due, {**self._types, **dict.fromkeys(also, pl.String())})
        if rows.height == 0:
            return None
        return rows.with_columns([fill_empty(rows.get_column(name), part) for name, part in self._parts.items()])

    def _windows(self, panes: pl.DataFrame, first: int, end: int | None) -> pl.DataFrame:
        """Windows with an end in [first, end), made of these panes."""
        starts = self._starts(panes, first, end)
        if not starts:
            return self._nothing()
        rows = pl.concat([panes.filter(pl.Series(mask)).with_columns(pl.Series(START, at[mask])) for mask, at in starts])
        if self._window.per_pane == 1:
            return rows.select(HASH, *self._keys, START, *self._parts).sort(HASH, maintain_order=True)
        return fold_panes(rows.sort(PANE, maintain_order=True), self._keys, self._window, self._parts)

    def _starts(self, panes: pl.DataFrame, first: int, end: int | None) -> list[tuple[npt.NDArray[np.bool_], Times]]:
        """For the windows a pane is in, the newest first: whether each ends in [first, end), and where it begins."""
        window = self._window
        begin = panes.get_column(PANE).to_numpy()
        last = window.last_start(begin)
        if len(last) == 0:
            return []
        fewest = 0 if end is None else max(0, -(-(int(last.min()) + window.size - end + 1) // window.step))
        most = min(window.per_pane - 1, (int(last.max()) + window.size - first) // window.step)
        found = []
        for back in range(fewest, most + 1):
            starts = last - back * window.step
            ends = starts + window.size
            mask = (ends >= first) & (ends > begin)
            if end is not None:
                mask &= ends < end
            if mask.any():
                found.append((mask, starts))
        return found

    # -- windows that have changed --------------------------------------------------------------------------------

    def _touched(self, first: int, end: int | None) -> pl.DataFrame:
        """Windows with an end in [first, end) of which a pane has changed."""
        changed = self._new
        if changed is None:
            return self._nothing()
        if self._window.per_pane == 1:
            if self._old is not None:
                self._keep(self._windows(self._old, first, end))
            return self._windows(changed, first, end)
        starts = self._starts(changed, first, end)
        if not starts:
            return self._nothing()
        named = [changed.filter(pl.Series(mask)).with_columns(pl.Series(START, at[mask])).select(*self._keys, START) for mask, at in starts]
        windows = pl.concat(named).unique()
        wanted = [
            windows.with_columns((pl.col(START) + step * self._window.pane).alias(PANE))
            for step in range(self._window.size // self._window.pane)
        ]
        inside = pl.concat(wanted).filter(pl.col(PANE) >= self._window.begins(pl.col(START)))
        panes = self._look_up(inside)
        if self._retracts:
            self._keep(self._before(inside, panes, changed))
        if panes.height == 0:
            return self._nothing()
        return fold_panes(panes.sort(PANE, maintain_order=True), self._keys, self._window, self._parts)

    def _before(self, wanted: pl.DataFrame, panes: pl.DataFrame, changed: pl.DataFrame) -> pl.DataFrame:
        """Windows as they were: their unchanged panes, and the former rows of the changed ones."""
        on = [*self._keys, PANE]
        were = [panes.join(changed.select(on), on=on, how="anti", nulls_equal=True)]
        if self._old is not None:
            old = wanted.join(self._old.drop(HASH), on=on, nulls_equal=True)
            were.append(old.select(*wanted.columns, *self._parts))
        were = [frame for frame in were if frame.height]
        if not were:
            return self._nothing()
        return fold_panes(pl.concat(were).sort(PANE, maintain_order=True), self._keys, self._window, self._parts)

    def _keep(self, gone: pl.DataFrame) -> None:
        if gone.height:
            self._gone.append(gone)

    def _look_up(self, wanted: pl.DataFrame) -> pl.DataFrame:
        """The stored or just arrived panes of these windows: keys, start, pane and state."""
        types = {name: part.dtype for name, part in self._parts.items()}
        hashes = hash_panes(wanted, self._keys, self._window)
        order = np.argsort(hashes, kind="stable")
        rows, hashes = wanted[order], hashes[order]
        panes = rows.get_column(PANE).to_numpy()
        which, states = self._workspace.find(self._name, rows.select(*self._keys, PANE), hashes, types, panes, panes)
        if len(which) == 0:
            return wanted[:0]
        return rows[which].with_columns([fill_empty(series, self._parts[name]) for name, series in states.items()])

    def _nothing(self) -> pl.DataFrame:
        return pl.DataFrame()

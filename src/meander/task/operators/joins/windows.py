"""Joins of two streams in windows that overlap: sliding windows, and windows that cumulate.

A row is stored once, and ends with the last window that it is in. Two rows meet once in each window
that both are in and that is open when the second of them comes: so a pair is emitted once for each
such window, in the epoch of the second row. Which windows those are follows from the two times. For
joins that emit rows alone when a window closes, or only once for all partners in it, a table beside
the rows (``.left_met``) records that a row has a partner in a window, by the row's number and the
window's end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from meander.plan.joins import Join
from meander.plan.windows import Times, Window
from meander.state.grouping import Index
from meander.state.segment import HASH
from meander.state.table import Kept
from meander.task.operators.contract import Mask
from meander.task.operators.joins.pairing import Keys, distinct, pair_up
from meander.task.operators.joins.pairs import ARRIVAL, AT, Arrived, Found, Joining, Pairs, Side, Spans, common_fields
from meander.task.operators.joins.semi import Filtering, Known
from meander.task.operators.place import Place
from meander.task.operators.workspace import Workspace

_NAME = [HASH, ARRIVAL, AT]
"""The columns that identify a row in one of its windows: AT is then the window's last
microsecond."""


@dataclass(frozen=True)
class Overlap:
    """The windows of a join, and which of them a row, or a pair, is in."""

    window: Window

    def spans(self, windows: Times) -> Spans:
        return self.window.begins(windows), windows + self.window.size

    def last(self, windows: Times) -> Times:
        """The last microseconds of windows."""
        return windows + (self.window.size - 1)

    def of(self, side: Side, rows: pl.DataFrame, after: int, upto: int | None = None) -> tuple[Index, Times]:
        """The windows of rows that end after a mark, and up to another: which row each is of. In order."""
        times = side.moments(rows)
        which, windows = self.window.shared(times, times, after)
        if upto is None:
            return which, windows
        inside = windows + self.window.size <= upto
        return which[inside], windows[inside]

    def parted(self, side: Side, rows: pl.DataFrame, late: int) -> bool:
        """Whether rows are in windows that have closed, too."""
        return bool((side.moments(rows) < self.window.last_end(late)).any())

    def due(self, late: int, evict: int) -> tuple[int, int] | None:
        """Between which times (above one, up to another) rows end that are in windows which close."""
        end = self.window.last_end(evict)
        return (late - 1, end - 1 + self.window.size - self.window.step) if end > late else None

    def closing(self, workspace: Workspace, side: Side) -> tuple[pl.DataFrame, Times]:
        """A side's rows in the windows that close in this epoch, for which nothing is noted in those. Each with its window."""
        due = self.due(workspace.late, workspace.evict)
        rows = pl.DataFrame() if due is None else workspace.ending(side.table, *due)
        if rows.height == 0:
            return rows, np.zeros(0, np.int64)
        which, windows = self.of(side, rows, workspace.late, workspace.evict)
        rows = rows[which].with_columns(pl.Series(AT, self.last(windows)), pl.Series("__window", windows))
        noted = workspace.ending(side.met, workspace.late - 1, workspace.evict - 1)
        if noted.height:
            rows = rows.join(noted.select(_NAME), on=_NAME, how="anti", maintain_order="left")
        return rows, rows.get_column("__window").to_numpy()

    def tables(self, sides: Sequence[Side], noted: Sequence[Side]) -> dict[str, Kept]:
        return {side.table: Kept(side.identity, AT) for side in sides} | {side.met: Kept((*side.identity, AT), AT) for side in noted}


@dataclass(frozen=True)
class Overlapping(Joining):
    """Emits pairs once per window, and rows without a partner when the window closes."""

    overlap: Overlap

    def tables(self) -> dict[str, Kept]:
        return self.overlap.tables(self.sides, [side for side in self.sides if side.outer])

    def parted(self, frame: pl.DataFrame, side: int, late: int) -> bool:
        return self.overlap.parted(self.sides[side], frame, late)

    def why_late(self) -> str:
        return "late: its windows had closed"

    def due(self, table: str, late: int, evict: int) -> tuple[int, int] | None:
        side = self._side_of(table)
        return self.overlap.due(late, evict) if side.outer and table == side.table else None

    def _meet(self, workspace: Workspace, new: tuple[Arrived, Arrived], out: Found) -> None:
        workspace.lap("fold")
        keys = self._number(*new)
        notes: dict[str, list[pl.DataFrame]] = defaultdict(list)
        left, right = (with_names(rows) for rows in new)
        if left.height and right.height:
            side = self.sides[0]
            mine, other = pair_up(keys.of[0], new[0].times, keys.of[1], new[1].times, side.low, side.high)
            self._in_windows(workspace, left[mine], right[other], notes, out)
        for number, came in ((0, left), (1, right)):
            found = self._partners(workspace, number, new[number], keys, []) if came.height else None
            if found is not None:
                at, there, stored = found
                halves = (came[at], stored[there])
                self._in_windows(workspace, *(halves if number == 0 else halves[::-1]), notes, out)
        for table, frames in notes.items():
            workspace.write(table, pl.concat(frames).unique(_NAME, keep="first", maintain_order=True).sort(_NAME))
        for number, came in ((0, left), (1, right)):
            if came.height:
                workspace.write(self.sides[number].table, came.with_columns(pl.Series(AT, new[number].times)))

    def _in_windows(
        self, workspace: Workspace, left: pl.DataFrame, right: pl.DataFrame, notes: Mapping[str, list[pl.DataFrame]], out: Found
    ) -> None:
        """Emit pairs in all open windows that they share."""
        first, second = self.sides
        at, windows = self.overlap.window.shared(first.moments(left), second.moments(right), workspace.late)
        left, right = left[at], right[at]
        arrival = (left.get_column(ARRIVAL).to_numpy(), right.get_column(ARRIVAL).to_numpy())
        pairs = Pairs(left.select(first.columns), right.select(second.columns), left.get_column(HASH).to_numpy(), arrival)
        kept = self._pair(workspace, pairs, out, spans=self.overlap.spans(windows))
        for side, half in ((first, left), (second, right)):
            if side.outer and len(kept):
                ends = pl.Series(AT, self.overlap.last(windows[kept]))
                notes[side.met].append(half[kept].select(HASH, *side.identity).with_columns(ends))

    def _let_go(self, workspace: Workspace, number: int, out: Found) -> None:
        rows, windows = self.overlap.closing(workspace, self.sides[number])
        if rows.height:
            self._alone(number, rows, out, self.overlap.spans(windows))


@dataclass(frozen=True)
class FilteringOverlap(Filtering):
    """Emits a row of the left once per window: when its first partner in it is there, or when the window closes without one.

    It keeps all rows of the left until their last window has closed.
    """

    overlap: Overlap

    def tables(self) -> dict[str, Kept]:
        return self.overlap.tables(self.sides, self.sides[:1])

    def parted(self, frame: pl.DataFrame, side: int, late: int) -> bool:
        return self.overlap.parted(self.sides[side], frame, late)

    def why_late(self) -> str:
        return "late: its windows had closed"

    def due(self, table: str, late: int, evict: int) -> tuple[int, int] | None:
        return self.overlap.due(late, evict) if self._is_anti and table == self.sides[0].table else None

    def _asked_for(self, number: int) -> list[str]:
        """Windows follow from a row's own time."""
        side = self.sides[number]
        time = [] if side.time is None else [side.time.column]
        return list(dict.fromkeys((*super()._asked_for(number), *time)))

    def _meet(self, workspace: Workspace, new: tuple[Arrived, Arrived], out: Found) -> None:
        left, right = new
        workspace.lap("fold")
        keys, notes = self._number(left, right), []
        came = self._at_its_moments(Known(keys.of[1], right.times, right.arrival, right.frame))
        if left.frame.height:
            fresh = self._by_window(workspace, Known(keys.of[0], left.times, left.arrival, left.frame))
            met = np.zeros(len(fresh.keys), np.bool_)
            self._match(workspace, fresh, self._at_its_moments(self._stored(workspace, 1, left, keys)), met)
            self._match(workspace, fresh, came, met)
            notes.append(self._note(keys, fresh, met, out))
        if right.frame.height:
            old = self._open(workspace, keys, self._by_window(workspace, self._stored(workspace, 0, right, keys)))
            met = np.zeros(len(old.keys), np.bool_)
            self._match(workspace, old, came, met)
            notes.append(self._note(keys, old, met, out))
        for side, rows in zip(self.sides, new, strict=True):  # what is written is found: not before all is looked up
            if rows.frame.height:
                workspace.write(side.table, with_names(rows).with_columns(pl.Series(AT, rows.times)))
        notes = [frame for frame in notes if frame.height]
        if notes:
            workspace.write(self.sides[0].met, pl.concat(notes).sort(_NAME))

    def _at_its_moments(self, rows: Known) -> Known:
        return replace(rows, times=self.sides[1].moments(rows.frame)) if len(rows.keys) else rows

    def _by_window(self, workspace: Workspace, rows: Known) -> Known:
        """Rows of the left once per window that is open, with the times that partners in it have."""
        if len(rows.keys) == 0:
            return rows
        which, windows = self.overlap.of(self.sides[0], rows.frame, workspace.late)
        begin, end = spans = self.overlap.spans(windows)
        within = (np.zeros(len(which), np.int64), end - 1 - begin)
        return Known(rows.keys[which], begin, rows.arrival[which], rows.frame[which], within, spans)

    def _open(self, workspace: Workspace, keys: Keys, rows: Known) -> Known:
        """Without those for which a partner in the window has been noted."""
        if len(rows.keys) == 0:
            return rows
        side, wanted = self.sides[0], distinct(rows.keys, len(keys.hashes))
        probes = keys.frame[wanted].rename(dict(zip(keys.frame.columns, side.keys, strict=True)))
        whose, noted = workspace.find_rows(side.met, probes, keys.hashes[wanted], (ARRIVAL, AT), ())
        if len(whose) == 0:
            return rows
        found = noted.with_columns(pl.Series("__key", wanted[whose].astype(np.int64)))
        ends = pl.Series(AT, rows.ends - 1)
        mine = pl.DataFrame([pl.Series("__key", rows.keys), pl.Series(ARRIVAL, rows.arrival), ends]).with_row_index("__row")
        left = mine.join(found, on=["__key", ARRIVAL, AT], how="anti", maintain_order="left").get_column("__row").to_numpy()
        return rows.take(left)

    def _note(self, keys: Keys, rows: Known, met: Mask, out: Found) -> pl.DataFrame:
        """Record the rows that have met their first partner in a window. A semi join emits them."""
        at = np.flatnonzero(met)
        if len(at) == 0:
            return pl.DataFrame()
        rows = rows.take(at)
        hashes = keys.hashes[rows.keys]
        if not self._is_anti:
            self._give(rows.frame, hashes, rows.arrival, np.ones(len(at), np.bool_), out, rows.spans)
        names = keys.frame[rows.keys].rename(dict(zip(keys.frame.columns, self.sides[0].keys, strict=True)))
        columns = [pl.Series(HASH, hashes), *names.get_columns(), pl.Series(ARRIVAL, rows.arrival), pl.Series(AT, rows.ends - 1)]
        return pl.DataFrame(columns)

    def _let_go(self, workspace: Workspace, number: int, out: Found) -> None:
        rows, windows = self.overlap.closing(workspace, self.sides[0])
        if rows.height:
            hashes, arrival = rows.get_column(HASH).to_numpy(), rows.get_column(ARRIVAL).to_numpy()
            everything = np.ones(rows.height, np.bool_)
            self._give(rows.select(self.sides[0].columns), hashes, arrival, everything, out, self.overlap.spans(windows))


def with_names(rows: Arrived) -> pl.DataFrame:
    """Rows with the columns that identify them."""
    if rows.frame.height == 0:
        return rows.frame
    return pl.DataFrame([pl.Series(HASH, rows.hashes), *rows.frame.get_columns(), pl.Series(ARRIVAL, rows.arrival)])


def make_overlapping(place: Place, op: Join) -> Overlapping | FilteringOverlap:
    assert isinstance(op.window, Window)
    overlap = Overlap(op.window)
    if op.filters:
        return FilteringOverlap(**common_fields(place, op), left=place.schema(0), overlap=overlap)
    return Overlapping(**common_fields(place, op), overlap=overlap)

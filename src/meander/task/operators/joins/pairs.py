"""Joins of two streams: within a bound of time, in the same window, or without a bound.

State is the rows of both sides, as they came, in one table per side; with a bound, with the time of
each. Arriving rows are paired with each other and with the other side's stored rows, within the
times that they can reach. A row is over when no row can reach it any more: then an outer join emits
it if it has found no partner. A stored row that finds its first partner is not written again: a
table beside it (``.left_met``) has the numbers of such rows.

Rows in one window count as if all were at its last microsecond, with equal times. Windows that
overlap are in ``windows``, sessions in ``sessions``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from meander.coordinate.timing import Timing
from meander.plan.eventtime import END, START
from meander.plan.joins import Join, SideTime
from meander.plan.windows import Times, Window
from meander.state.grouping import Index
from meander.state.hashing import Hashes
from meander.state.segment import HASH, SOONEST
from meander.state.table import Kept
from meander.stored import stored
from meander.task.operators.contract import Emitted, Intake, Mask, Partial, Stateful
from meander.task.operators.joins.conditions import holds, refuse
from meander.task.operators.joins.pairing import Keys, Numbers, distinct, number_keys, numbered, pair_up, stretches, times_of
from meander.task.operators.place import Place
from meander.task.operators.wholerows import in_order, send_whole
from meander.task.operators.workspace import Workspace
from meander.task.rows import Rows

ARRIVAL, MET, AT = "__arrival", "__met", "__at"
_LEFT, _RIGHT = "__left", "__right"
Spans = tuple[Times, Times]
"""Where windows begin, and where they end."""


@dataclass(frozen=True)
class Side:
    """One input of a join, and its stored columns."""

    table: str
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    names: Mapping[str, str]
    """The names of its columns in the output."""
    time: SideTime | None
    window: Window | None
    outer: bool
    """Whether its rows are emitted without a partner, too."""
    low: int
    high: int
    """The other side's time less this one's, at least and at most."""
    ends: bool
    """Whether its rows are over some time."""

    @property
    def met(self) -> str:
        """The table of the stored rows that have found a partner."""
        return f"{self.table}_met"

    @property
    def identity(self) -> tuple[str, ...]:
        return (*self.keys, ARRIVAL)

    def times(self, frame: pl.DataFrame) -> Times:
        """By which rows meet others and end: their own times, or the last microseconds of the last windows that they are in."""
        found = self.moments(frame)
        return found if self.window is None else self.window.last_start(found) + (self.window.size - 1)

    def moments(self, frame: pl.DataFrame) -> Times:
        """Their own times; zeros where these do not count."""
        if self.time is None or not self.ends:
            return np.zeros(frame.height, np.int64)
        return times_of(frame, self.time.column, self.time.shift)

    def over(self, evict: int) -> int:
        """Up to which time no row has a partner among the other side's rows from ``evict`` on, and none is in time that has not come."""
        return evict - (max(0, self.high) if self.window is None else 0) - 1


@dataclass
class Arrived:
    """One side's rows of this epoch, by hash and in the order of arrival, and which of them have found a partner."""

    frame: pl.DataFrame
    hashes: Hashes
    times: Times
    arrival: Numbers
    met: Mask


@dataclass(frozen=True)
class Pairs:
    """Rows of both sides that meet, each with its partner."""

    left: pl.DataFrame
    right: pl.DataFrame
    hashes: Hashes
    arrival: tuple[Numbers, Numbers]
    """The numbers by which each side's rows are ordered."""


@dataclass
class Found:
    """Rows to emit, with the columns that order them."""

    frames: list[pl.DataFrame] = field(default_factory=list)

    def add(self, frame: pl.DataFrame, hashes: Hashes, left: Numbers, right: Numbers) -> None:
        if frame.height:
            self.frames.append(frame.with_columns(pl.Series(HASH, hashes), pl.Series(_LEFT, left), pl.Series(_RIGHT, right)))

    def emit(self, columns: Sequence[str]) -> Emitted | None:
        if not self.frames:
            return None
        whole = pl.concat([f.select(self.frames[0].columns) for f in self.frames])
        whole = whole[np.lexsort([whole.get_column(name).to_numpy() for name in (_RIGHT, _LEFT, HASH)])]
        return Emitted(whole.select(columns), whole.get_column(HASH).to_numpy())


@dataclass(frozen=True)
class Joining(Stateful):
    """Emits a pair when its second row arrives, and rows without a partner when none can come any more."""

    op: Join
    sides: tuple[Side, Side]
    follows: Timing | None
    zoned: pl.Datetime | None
    """The type of the times that it adds."""

    @property
    def timing(self) -> Timing | None:
        return self.follows

    def tables(self) -> dict[str, Kept]:
        stored = {side.table: Kept(side.identity, AT if side.ends else None) for side in self.sides}
        return stored | {side.met: Kept(side.identity, AT) for side in self.sides if side.outer}

    def refuses(self, frame: pl.DataFrame, side: int, late: int) -> Mask | None:
        """Rows behind the mark are late: their partners may be gone, or may have been emitted
        alone."""
        if self.follows is None:
            return None
        behind: Mask = self.sides[side].times(frame) < late
        return behind

    def why_late(self) -> str:
        return "late: its window had closed" if self.op.window is not None else "late: its time is behind the watermark"

    def before(self, rows: Rows, side: int, intake: Intake) -> pl.DataFrame:
        of = self.sides[side]
        if not of.outer and not self.op.matching.nulls_equal:  # a null key meets nothing
            rows = rows.filter(rows.frame.select(pl.all_horizontal(pl.col(*of.keys).is_not_null())).to_series())
        return send_whole(rows, of.keys, intake)

    def work(self, workspace: Workspace, arrived: Sequence[Partial]) -> Emitted | None:
        out = Found()
        if arrived:
            self._meet(workspace, (self._arrived(workspace, arrived, 0), self._arrived(workspace, arrived, 1)), out)
        for number, side in enumerate(self.sides):
            if side.outer:
                self._let_go(workspace, number, out)
        if workspace.flushes and self.follows is not None:
            self._close(workspace)
        return out.emit(self.schema.names())

    def over(self, table: str, evict: int) -> int | None:
        side = self._side_of(table)
        return side.over(evict) if side.ends else None

    def due(self, table: str, late: int, evict: int) -> tuple[int, int] | None:
        """Rows without a partner are emitted, if the join is an outer one on their side; all other
        rows are only over."""
        side = self._side_of(table)
        return (SOONEST, side.over(evict)) if side.outer and table == side.table else None

    def reader(self) -> JoinReader:
        return JoinReader({side.table: side.names for side in self.sides})

    def _side_of(self, table: str) -> Side:
        return self.sides[0] if table in (self.sides[0].table, self.sides[0].met) else self.sides[1]

    # -- what arrives ---------------------------------------------------------------------------------------------

    def _arrived(self, workspace: Workspace, arrived: Sequence[Partial], side: int) -> Arrived:
        of = self.sides[side]
        found = in_order(arrived, side)
        if found is None:
            nothing = np.zeros(0, np.int64)
            return Arrived(pl.DataFrame(), nothing.astype(np.uint64), nothing, nothing, np.zeros(0, np.bool_))
        frame, hashes = found
        frame = frame.select(of.columns)
        return Arrived(frame, hashes, of.times(frame), numbered(hashes, workspace.epoch), np.zeros(len(hashes), np.bool_))

    def _meet(self, workspace: Workspace, new: tuple[Arrived, Arrived], out: Found) -> None:
        """Pair arriving rows with each other and with stored rows; then store them, too."""
        left, right = new
        workspace.lap("fold")
        keys = self._number(left, right)
        if left.frame.height and right.frame.height:
            mine, other = pair_up(keys.of[0], left.times, keys.of[1], right.times, self.sides[0].low, self.sides[0].high)
            pairs = Pairs(left.frame[mine], right.frame[other], left.hashes[mine], (left.arrival[mine], right.arrival[other]))
            kept = self._pair(workspace, pairs, out)
            left.met[mine[kept]] = True
            right.met[other[kept]] = True
        marks: dict[str, list[pl.DataFrame]] = defaultdict(list)
        for number in (0, 1):
            if new[number].frame.height:
                self._look_up(workspace, number, new[number], keys, marks, out)
        for table, frames in marks.items():
            workspace.write(table, pl.concat(frames).unique().sort(HASH, ARRIVAL))
        for side, rows in zip(self.sides, new, strict=True):
            if rows.frame.height:
                self._store(workspace, side, rows)

    def _number(self, left: Arrived, right: Arrived) -> Keys:
        frames = [rows.frame.select(side.keys) if rows.frame.height else None for side, rows in zip(self.sides, (left, right), strict=True)]
        some = next(frame for frame in frames if frame is not None)
        keys = [
            some.clear().rename(dict(zip(some.columns, s.keys, strict=True))) if f is None else f
            for s, f in zip(self.sides, frames, strict=True)
        ]
        return number_keys(keys[0], left.hashes, keys[1], right.hashes, self.op.matching.nulls_equal)

    def _partners(
        self, workspace: Workspace, number: int, rows: Arrived, keys: Keys, also: Sequence[str]
    ) -> tuple[Index, Index, pl.DataFrame] | None:
        """Pairs of one side's new rows and the other side's stored rows: the places of both, and
        the stored columns."""
        mine, other = self.sides[number], self.sides[1 - number]
        known = np.flatnonzero(keys.of[number] >= 0)
        if len(known) == 0:
            return None
        of, times = keys.of[number][known], rows.times[known]
        wanted, first, last = stretches(of, times, mine.low, mine.high) if other.ends else (distinct(of, len(keys.hashes)), None, None)
        columns = [ARRIVAL, *([AT] if other.ends else []), *also, *other.columns]
        probes = keys.frame[wanted].rename(dict(zip(keys.frame.columns, other.keys, strict=True)))
        whose, stored = workspace.find_all(other.table, probes, keys.hashes[wanted], columns, first, last)
        workspace.lap("state read")
        if len(whose) == 0:
            return None
        frame = pl.DataFrame([pl.Series(HASH, keys.hashes[wanted[whose]]), *(stored[name] for name in columns)])
        ends = frame.get_column(AT).to_numpy() if other.ends else np.zeros(frame.height, np.int64)
        at, there = pair_up(of, times, wanted[whose], ends, mine.low, mine.high)
        return known[at], there, frame

    def _look_up(
        self, workspace: Workspace, number: int, rows: Arrived, keys: Keys, marks: dict[str, list[pl.DataFrame]], out: Found
    ) -> None:
        """One side's new rows with the stored rows of the other."""
        other = self.sides[1 - number]
        met = self._partners(workspace, number, rows, keys, [MET] if other.outer else [])
        if met is None:
            return
        at, there, frame = met
        new, old = rows.frame[at], frame[there].select(other.columns)
        came, stood = rows.arrival[at], frame.get_column(ARRIVAL).to_numpy()[there]
        hashes = rows.hashes[at]
        pairs = Pairs(new, old, hashes, (came, stood)) if number == 0 else Pairs(old, new, hashes, (stood, came))
        kept = self._pair(workspace, pairs, out)
        rows.met[at[kept]] = True
        if other.outer:
            found = distinct(there[kept], frame.height)
            unmet = frame[found].filter(~pl.col(MET))
            if unmet.height:
                marks[other.met].append(unmet.select(HASH, *other.identity, AT))

    def _pair(self, workspace: Workspace, pairs: Pairs, out: Found, *, spans: Spans | None = None) -> Index:
        """Rows of both sides to rows of the join. Returns where the condition holds."""
        whole = self._whole(pairs.left, pairs.right, spans)
        kept = np.arange(whole.height)
        if self.op.where is not None and whole.height:
            meets, failures = holds(self.op.where, whole)
            for failure in failures:
                refuse(workspace, self, self.op.where, whole, failure)
            kept = np.flatnonzero(meets)
            whole = whole[kept]
        first, second = pairs.arrival
        out.add(whole, pairs.hashes[kept], first[kept], second[kept])
        return kept

    def _whole(self, left: pl.DataFrame, right: pl.DataFrame, spans: Spans | None = None) -> pl.DataFrame:
        """Pairs, with the columns that a condition can be about."""
        side = self.sides[1]
        others = [right.get_column(column).alias(side.names[column]) for column in right.columns if column not in side.keys]
        return self._timed(pl.DataFrame([*left.get_columns(), *others]), left, right, spans)

    def _timed(
        self, whole: pl.DataFrame, left: pl.DataFrame | None, right: pl.DataFrame | None, spans: Spans | None = None
    ) -> pl.DataFrame:
        """With the times that the join adds. ``spans`` are the windows, where these do not follow from a row."""
        added: list[pl.Series] = []
        halves = [(side, frame) for side, frame in zip(self.sides, (left, right), strict=True) if frame is not None]
        if self.op.time is not None:
            times = [frame.get_column(side.time.column) for side, frame in halves if side.time is not None]
            later = times[0] if len(times) == 1 else pl.select(pl.max_horizontal(times[0].alias("0"), times[1].alias("1"))).to_series()
            added.append(later.alias(self.op.time))
        if self.op.window is not None:
            assert self.zoned is not None
            for name, moment in zip((START, END), self._spans(*halves[0]) if spans is None else spans, strict=True):
                added.append(pl.Series(name, moment).cast(pl.Datetime("us", self.zoned.time_zone)).dt.cast_time_unit(self.zoned.time_unit))
        return whole.with_columns(added) if added else whole

    def _spans(self, side: Side, frame: pl.DataFrame) -> Spans:
        """From when to when the windows last that rows are in, where each is in one."""
        assert side.window is not None
        end = side.times(frame) + 1
        return end - side.window.size, end

    def _store(self, workspace: Workspace, side: Side, rows: Arrived) -> None:
        columns = [pl.Series(HASH, rows.hashes), *rows.frame.get_columns(), pl.Series(ARRIVAL, rows.arrival)]
        if side.outer:
            columns.append(pl.Series(MET, rows.met))
        if side.ends:
            columns.append(pl.Series(AT, rows.times))
        workspace.write(side.table, pl.DataFrame(columns))

    # -- what goes ------------------------------------------------------------------------------------------------

    def _let_go(self, workspace: Workspace, number: int, out: Found) -> None:
        """Rows that are over, and that have found no partner."""
        side = self.sides[number]
        upto = side.over(workspace.evict)
        rows = workspace.ending(side.table, SOONEST, upto)
        if rows.height == 0:
            return
        rows = rows.filter(~pl.col(MET))
        met = workspace.ending(side.met, SOONEST, upto)
        if rows.height and met.height:
            rows = rows.join(met.select(HASH, ARRIVAL), on=[HASH, ARRIVAL], how="anti", maintain_order="left")
        if rows.height:
            self._alone(number, rows, out)

    def _alone(self, number: int, rows: pl.DataFrame, out: Found, spans: Spans | None = None) -> None:
        """Emit rows of one side without a partner."""
        side = self.sides[number]
        alone = rows.select(side.columns)
        named = alone.rename(dict(side.names))
        left, right = (alone, None) if number == 0 else (None, alone)
        timed = self._timed(named, left, right, spans)
        missing = [pl.lit(None, dtype).alias(name) for name, dtype in self.schema.items() if name not in timed.columns]
        whole = timed.with_columns(missing).select(self.schema.names())
        arrival, nobody = rows.get_column(ARRIVAL).to_numpy(), np.full(rows.height, -1, np.int64)
        out.add(whole, rows.get_column(HASH).to_numpy(), *((arrival, nobody) if number == 0 else (nobody, arrival)))

    def _close(self, workspace: Workspace) -> None:
        """After a flush, what could have met a row that is gone must be late, and so must what would be over with it."""
        for side in self.sides:
            if (last := workspace.largest(side.table)) is not None:
                workspace.closed = max(workspace.closed, last - side.over(0))


@stored("join_state")
@dataclass(frozen=True)
class JoinReader:
    """Shows the rows that wait for others: ``__side`` says whose they are, the columns are called as behind the join."""

    sides: Mapping[str, Mapping[str, str]]

    def show(self, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
        return pl.concat(list(self._shown(tables)), how="diagonal")

    def _shown(self, tables: Mapping[str, pl.DataFrame]) -> Iterator[pl.DataFrame]:
        for (table, names), side in zip(self.sides.items(), ("left", "right"), strict=True):
            for name, rows in tables.items():
                if name == table and rows.width:
                    yield rows.select(pl.lit(side).alias("__side"), *(pl.col(column).alias(to) for column, to in names.items()))


def make_join(place: Place, op: Join) -> Joining:
    return Joining(**common_fields(place, op))


def common_fields(place: Place, op: Join) -> dict[str, Any]:
    """The arguments of a join of any kind."""
    schemas = [place.schema(side) for side in (0, 1)]
    left, right = (tuple(schema) for schema in schemas)
    low, high = op.bounds or (0, 0)
    ends = op.bounds is not None
    times = op.times
    matching, name = op.matching, place.node.name
    window = op.window if isinstance(op.window, Window) else None
    if window is not None:
        low, high = -window.spread, window.spread
    sides = (
        Side(f"{name}.left", matching.left_on, left, {c: c for c in left}, times and times[0], window, op.outer[0], low, high, ends),
        Side(
            f"{name}.right",
            matching.right_on,
            right,
            matching.names(left, right),
            times and times[1],
            window,
            op.outer[1],
            -high,
            -low,
            ends,
        ),
    )
    follows = None
    if op.bounds is not None:
        first, second = place.time(0), place.time(1)
        assert first is not None
        assert second is not None
        # The end of the input changes nothing for an inner join: its stored rows may still find
        # partners.
        follows = Timing(first.marks | second.marks, max(first.delay, second.delay), flushes=any(op.outer))
    dtype = schemas[0][op.times[0].column] if op.times is not None else None
    zoned = dtype if isinstance(dtype, pl.Datetime) else None
    return {**place.common(matching.left_on), "op": op, "sides": sides, "follows": follows, "zoned": zoned}

"""Joins of two streams in sessions: the rows of both sides of a key form sessions together.

Sessions are stored like those of aggregates, without aggregates (``.sessions``): a row of either
side is a session of its own at first, and sessions that meet become one. The rows are in a table
per side, by key. When a session closes, its rows are looked up, and all their pairs are emitted,
with rows that have no partner in it. Nothing can be emitted sooner: two sessions can still become
one.

A row ends with its session, as far as that is known when it is written. A row that would be over
while its session goes on is written again, with an end that is later by as much as the session has
lasted: so the number of writes is the number of times that the session has doubled. Nothing is
deleted: if a change is taken back, the former plan may have the session open.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from meander.coordinate.timing import Timing
from meander.plan.joins import Join
from meander.plan.windows import Session
from meander.state.grouping import Groups, group_rows
from meander.state.hashing import Hashes
from meander.state.segment import HASH, SOONEST
from meander.state.table import Kept
from meander.task.operators.contract import Emitted, Intake, Mask, Partial
from meander.task.operators.joins.pairing import Numbers, pair_up
from meander.task.operators.joins.pairs import ARRIVAL, AT, Arrived, Found, Joining, Pairs, Side, Spans, common_fields
from meander.task.operators.joins.semi import Filtering, Known
from meander.task.operators.joins.windows import with_names
from meander.task.operators.place import Place
from meander.task.operators.wholerows import send_whole
from meander.task.operators.windows.sessions import FIRST, LAST, SessionAggregation
from meander.task.operators.workspace import Workspace
from meander.task.rows import Rows


@dataclass(frozen=True)
class Closing:
    """Sessions that close in an epoch."""

    rows: pl.DataFrame
    """Under the names of the left side."""
    keys: Groups
    """Of them: a key can have several sessions that close at once."""
    numbers: Numbers
    """For every session, the number of its key."""

    @property
    def first(self) -> Numbers:
        return self.rows.get_column(FIRST).to_numpy()

    @property
    def last(self) -> Numbers:
        return self.rows.get_column(LAST).to_numpy()


@dataclass(frozen=True)
class Members:
    """Rows of one side that are in sessions which close."""

    rows: pl.DataFrame
    of: Numbers
    """The session of each."""
    keys: Numbers
    """The same; negative, and different on both sides, where a part of the key is null and equals no other."""

    @property
    def hashes(self) -> Hashes:
        return self.rows.get_column(HASH).to_numpy()

    @property
    def arrival(self) -> Numbers:
        return self.rows.get_column(ARRIVAL).to_numpy()


@dataclass(frozen=True)
class InSessions(Joining):
    """The parts common to joins in sessions: everything but the choice of the rows that a closing
    session emits."""

    sessions: SessionAggregation

    def tables(self) -> dict[str, Kept]:
        return self.sessions.tables() | {side.table: Kept(side.identity, AT) for side in self.sides}

    def refuses(self, frame: pl.DataFrame, side: int, late: int) -> Mask | None:
        """Rows whose session would be over, even if it were one of its own."""
        found: Mask = self.sides[side].moments(frame) + self.sessions.session.gap < late
        return found

    def parted(self, frame: pl.DataFrame, side: int, late: int) -> bool:
        return bool((self.sides[side].moments(frame) < late).any())

    def why_late(self) -> str:
        return "late: a session that it could be in had closed"

    def before(self, rows: Rows, side: int, intake: Intake) -> pl.DataFrame:
        of = self.sides[side]
        if not any(self.op.outer) and not self.op.matching.nulls_equal:  # rows with a null key have sessions of their own
            rows = rows.filter(rows.frame.select(pl.all_horizontal(pl.col(*of.keys).is_not_null())).to_series())
        return send_whole(rows, of.keys, intake)

    def work(self, workspace: Workspace, arrived: Sequence[Partial]) -> Emitted | None:
        new, out = (self._arrived(workspace, arrived, 0), self._arrived(workspace, arrived, 1)), Found()
        workspace.lap("fold")
        if arrived:
            self.sessions.merge(workspace, [self._pieces(new)])
        if workspace.flushes:
            self.sessions.close(workspace)
        rows = self.sessions.closing(workspace)
        closing = None if rows is None or rows.height == 0 else self._numbered(rows)
        members = [self._take(workspace, number, new[number], closing) for number in (0, 1)]
        workspace.lap("state read")
        if closing is not None:
            self._give_out(workspace, closing, members[0], members[1], out)
        return out.emit(self.schema.names())

    @abstractmethod
    def _give_out(self, workspace: Workspace, closing: Closing, left: Members, right: Members, out: Found) -> None:
        """The rows that closing sessions emit."""

    def over(self, table: str, evict: int) -> int | None:
        return self.sessions.over(table, evict)

    def due(self, table: str, late: int, evict: int) -> tuple[int, int] | None:
        return self.sessions.due(table, late, evict) if table == self.sessions.name else None

    # -- sessions and their rows ----------------------------------------------------------------------------------

    def _pieces(self, new: tuple[Arrived, Arrived]) -> Partial:
        """Every row as a session."""
        frames = []
        for side, rows in zip(self.sides, new, strict=True):
            if rows.frame.height:
                keys = rows.frame.select(pl.col(key).alias(name) for key, name in zip(side.keys, self.keys, strict=True))
                times = [pl.Series(name, rows.times) for name in (FIRST, LAST)]
                frames.append(pl.DataFrame([pl.Series(HASH, rows.hashes), *keys.get_columns(), *times]))
        return Partial(self.name, 0, pl.concat(frames))

    def _numbered(self, rows: pl.DataFrame) -> Closing:
        groups = group_rows(rows.select(self.keys), rows.get_column(HASH).to_numpy())
        numbers = np.empty(rows.height, np.int64)
        numbers[groups.order] = groups.ids().to_numpy()
        return Closing(rows, groups, numbers)

    def _take(self, workspace: Workspace, number: int, new: Arrived, closing: Closing | None) -> Members:
        """One side's rows of the sessions that close. New rows are stored, and rows that would be
        over too soon are stored again."""
        side = self.sides[number]
        self._keep(workspace, side, new)
        nothing = Members(pl.DataFrame(), np.zeros(0, np.int64), np.zeros(0, np.int64))
        if closing is None:
            return nothing
        keys = closing.rows.select(self.keys)[closing.keys.heads].rename(dict(zip(self.keys, side.keys, strict=True)))
        whose, rows = workspace.find_rows(side.table, keys, closing.keys.hashes, (ARRIVAL,), side.columns)
        if len(whose) == 0:
            return nothing
        rows = rows.with_columns(pl.Series(HASH, closing.keys.hashes[whose]))
        of, at = pair_up(closing.numbers, closing.first, whose.astype(np.int64), side.moments(rows), 0, closing.last - closing.first)
        return self._members(side, number, rows[at], of.astype(np.int64))

    def _keep(self, workspace: Workspace, side: Side, new: Arrived) -> None:
        """Store new rows; new and stored rows that would be over while their session goes on get a
        later end."""
        columns, upto = [HASH, *side.columns, ARRIVAL, AT], self.sessions.over(side.table, workspace.evict)
        frames = []
        if new.frame.height:
            came = with_names(new).with_columns(pl.Series(AT, new.times)).select(columns)
            frames.append(came if workspace.flushes else self._longer(workspace, side, came, upto, fresh=True))
        if not workspace.flushes and (ending := workspace.ending(side.table, SOONEST, upto)).height:
            frames.append(self._longer(workspace, side, ending.select(columns), upto, fresh=False))
        frames = [frame for frame in frames if frame.height]
        if frames:
            workspace.write(side.table, pl.concat(frames).sort(HASH, ARRIVAL))

    def _longer(self, workspace: Workspace, side: Side, rows: pl.DataFrame, upto: int, fresh: bool) -> pl.DataFrame:
        """Rows that end up to there, to end later if their session does. Others as they are if they are ``fresh``, else without them."""
        ends = rows.get_column(AT).to_numpy().copy()
        at = np.flatnonzero(ends <= upto)
        if len(at) == 0:
            return rows
        some = rows[at]
        groups = group_rows(some.select(side.keys), some.get_column(HASH).to_numpy())
        keys = some.select(side.keys)[groups.heads].rename(dict(zip(side.keys, self.keys, strict=True)))
        numbers = np.empty(some.height, np.int64)
        numbers[groups.order] = groups.ids().to_numpy()
        later = np.full(keys.height, upto + 1, np.int64)
        whose, going_on = workspace.find_rows(self.sessions.name, keys, groups.hashes, (FIRST, LAST), (), later)
        if len(whose) == 0:
            return rows if fresh else rows[:0]
        first, last = (going_on.get_column(name).to_numpy() for name in (FIRST, LAST))
        of, which = pair_up(whose.astype(np.int64), first, numbers, side.moments(some), 0, last - first)
        ends[at[which]] = 2 * last[of] - first[of]
        longer = rows.with_columns(pl.Series(AT, ends))
        return longer if fresh else longer.filter(pl.col(AT) > upto)

    def _members(self, side: Side, number: int, rows: pl.DataFrame, of: Numbers) -> Members:
        if self.op.matching.nulls_equal or rows.height == 0:
            return Members(rows, of, of)
        null = rows.select(pl.any_horizontal(pl.col(*side.keys).is_null())).to_series().to_numpy()
        return Members(rows, of, np.where(null, -1 - number, of))

    def _lasting(self, closing: Closing, of: Numbers) -> Spans:
        return closing.first[of], closing.last[of] + self.sessions.session.gap


@dataclass(frozen=True)
class SessionJoining(InSessions):
    """Emits the pairs of a session, and its rows without a partner, when it closes."""

    def _give_out(self, workspace: Workspace, closing: Closing, left: Members, right: Members, out: Found) -> None:
        members, met = (left, right), (np.zeros(len(left.of), np.bool_), np.zeros(len(right.of), np.bool_))
        if len(left.of) and len(right.of):
            zeros = (np.zeros_like(left.of), np.zeros_like(right.of))
            at, there = pair_up(left.keys, zeros[0], right.keys, zeros[1], 0, 0)
            halves = [rows.rows[places].select(side.columns) for rows, places, side in zip(members, (at, there), self.sides, strict=True)]
            spans = self._lasting(closing, left.of[at])
            pairs = Pairs(halves[0], halves[1], left.hashes[at], (left.arrival[at], right.arrival[there]))
            kept = self._pair(workspace, pairs, out, spans=spans)
            met[0][at[kept]] = True
            met[1][there[kept]] = True
        for number, (side, rows) in enumerate(zip(self.sides, members, strict=True)):
            alone = np.flatnonzero(~met[number])
            if side.outer and len(alone):
                self._alone(number, rows.rows[alone], out, self._lasting(closing, rows.of[alone]))


@dataclass(frozen=True)
class FilteringSessions(InSessions, Filtering):
    """Emits the rows of the left that have a partner in their session, or have none, when it closes."""

    def _give_out(self, workspace: Workspace, closing: Closing, left: Members, right: Members, out: Found) -> None:
        if len(left.of) == 0:
            return
        met, spans = np.zeros(len(left.of), np.bool_), self._lasting(closing, left.of)
        mine = left.rows.select(self.sides[0].columns)
        if len(right.of):
            asked = Known(left.keys, np.zeros_like(left.of), left.arrival, mine, spans=spans)
            self._match(
                workspace, asked, Known(right.keys, np.zeros_like(right.of), right.arrival, right.rows.select(self.sides[1].columns)), met
            )
        self._give(mine, left.hashes, left.arrival, met if self.op.how == "semi" else ~met, out, spans)


def make_session_join(place: Place, op: Join) -> InSessions:
    assert isinstance(op.window, Session)
    known = common_fields(place, op)
    timing, zoned = known["follows"], known["zoned"]
    assert isinstance(timing, Timing)
    known["follows"] = replace(timing, flushes=True)  # the pairs of an inner join wait for the close, too
    common = place.common(op.matching.left_on) | {"name": f"{place.node.name}.sessions"}
    sessions = SessionAggregation(
        **common,
        parts={},
        aggs=(),
        session=op.window,
        time=None,
        shift=0,
        dtype=zoned,
        emit="closed",
        lateness=0,
        follows=known["follows"],
    )
    known["sessions"] = sessions
    return FilteringSessions(**known, left=place.schema(0)) if op.filters else SessionJoining(**known)

"""Joins of two streams in sessions: the rows of both sides of a key form sessions together. Spark-free.

Sessions are kept as those of aggregates are, without aggregates (``.sessions``): a row of either side is one of its own at first, and
those that meet become one. The rows are in a table per side, by key. They have no time at which they end, since a session can go on
as long as rows come. When a session closes, its rows are looked up and deleted, and all pairs of them come out; so do rows without a
partner in it. Nothing can come out sooner: two sessions can still become one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from meander.coordinate.timing import Timing
from meander.plan.joins import Join
from meander.plan.windows import FOREVER, Session
from meander.state.grouping import Groups, Index, group_rows
from meander.state.hashing import Hashes
from meander.state.segment import DELETED, HASH
from meander.state.table import Kept
from meander.task.operators.contract import Emitted, Mask, Partial, Seat
from meander.task.operators.desk import Desk
from meander.task.operators.joins.pairing import Numbers, number_keys, pair_up
from meander.task.operators.joins.pairs import ARRIVAL, Arrived, Found, Joining, Side, Spans, told
from meander.task.operators.joins.semi import Filtering, Known
from meander.task.operators.joins.windows import with_names
from meander.task.operators.place import Place
from meander.task.operators.wholerows import send_whole
from meander.task.operators.windows.sessions import FIRST, LAST, SessionAggregation
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
    """What joins in sessions do alike: everything, but for which rows of a session come out when it closes."""

    sessions: SessionAggregation

    def tables(self) -> dict[str, Kept]:
        return self.sessions.tables() | {side.table: Kept(side.identity) for side in self.sides}

    def refuses(self, frame: pl.DataFrame, side: int, late: int) -> Mask | None:
        """Rows whose session would be over, even if it were one of its own."""
        found: Mask = self.sides[side].moments(frame) + self.sessions.session.gap < late
        return found

    def why_late(self) -> str:
        return "late: a session that it could be in had closed"

    def before(self, rows: Rows, side: int, seat: Seat) -> pl.DataFrame:
        of = self.sides[side]
        if not any(self.op.outer) and not self.op.matching.nulls_equal:  # rows with a null key have sessions of their own
            rows = rows.filter(rows.frame.select(pl.all_horizontal(pl.col(*of.keys).is_not_null())).to_series())
        return send_whole(rows, of.keys, seat)

    def work(self, desk: Desk, arrived: Sequence[Partial]) -> Emitted | None:
        new, out = (self._arrived(desk, arrived, 0), self._arrived(desk, arrived, 1)), Found()
        desk.lap("fold")
        if arrived:
            self.sessions.merge(desk, [self._pieces(new)])
        if desk.flushes:
            self.sessions.close(desk)
        rows = self.sessions.closing(desk)
        closing = None if rows is None or rows.height == 0 else self._numbered(rows)
        members = [self._take(desk, number, new[number], closing) for number in (0, 1)]
        desk.lap("state read")
        if closing is not None:
            self._give_out(desk, closing, members[0], members[1], out)
        return out.emit(self.schema.names())

    @abstractmethod
    def _give_out(self, desk: Desk, closing: Closing, left: Members, right: Members, out: Found) -> None:
        """What comes out of sessions that close."""

    def over(self, table: str, evict: int) -> int | None:
        """Rows go with their session, and in a flush all of them."""
        if table == self.sessions.name:
            return self.sessions.over(table, evict)
        return FOREVER if evict == FOREVER else None

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

    def _take(self, desk: Desk, number: int, new: Arrived, closing: Closing | None) -> Members:
        """One side's rows of the sessions that close. The others of those that have come are stored."""
        side, came = self.sides[number], with_names(new)
        if closing is None:
            desk.write(side.table, came)
            return Members(pl.DataFrame(), np.zeros(0, np.int64), np.zeros(0, np.int64))
        keys = closing.rows.select(self.keys)[closing.keys.heads].rename(dict(zip(self.keys, side.keys, strict=True)))
        whose, stored = desk.find_rows(side.table, keys, closing.keys.hashes, (ARRIVAL,), (*side.columns, ARRIVAL))
        frames, owners = [], []
        if len(whose):
            frames.append(stored.with_columns(pl.Series(HASH, closing.keys.hashes[whose])).select(HASH, *side.columns, ARRIVAL))
            owners.append(whose.astype(np.int64))
        if came.height:
            both = number_keys(keys, closing.keys.hashes, came.select(side.keys), new.hashes, nulls_equal=True)
            known = np.full(len(both.hashes), -1, np.int64)
            known[both.of[0]] = np.arange(keys.height)
            frames.append(came)
            owners.append(known[both.of[1]])
        if not frames:
            return Members(pl.DataFrame(), np.zeros(0, np.int64), np.zeros(0, np.int64))
        rows = pl.concat(frames)
        of, at = pair_up(closing.numbers, closing.first, np.concatenate(owners), side.moments(rows), 0, closing.last - closing.first)
        if not desk.flushes:  # a flush empties the tables
            self._write(desk, side, rows, gone=at, known=len(whose))
        return self._members(side, number, rows[at], of.astype(np.int64))

    def _members(self, side: Side, number: int, rows: pl.DataFrame, of: Numbers) -> Members:
        if self.op.matching.nulls_equal or rows.height == 0:
            return Members(rows, of, of)
        null = rows.select(pl.any_horizontal(pl.col(*side.keys).is_null())).to_series().to_numpy()
        return Members(rows, of, np.where(null, -1 - number, of))

    def _write(self, desk: Desk, side: Side, rows: pl.DataFrame, gone: Index, known: int) -> None:
        """The first ``known`` rows are stored, and those of them that are gone are deleted; of the others those are stored that are not."""
        leaves = np.zeros(rows.height, np.bool_)
        leaves[gone] = True
        changed = leaves == (np.arange(rows.height) < known)
        written = rows.with_columns(pl.Series(DELETED, leaves)).filter(pl.Series(changed)).sort(HASH, ARRIVAL)
        desk.write(side.table, written if written.get_column(DELETED).any() else written.drop(DELETED))

    def _lasting(self, closing: Closing, of: Numbers) -> Spans:
        return closing.first[of], closing.last[of] + self.sessions.session.gap


@dataclass(frozen=True)
class SessionJoining(InSessions):
    """Emits the pairs of a session, and its rows without a partner, when it closes."""

    def _give_out(self, desk: Desk, closing: Closing, left: Members, right: Members, out: Found) -> None:
        members, met = (left, right), (np.zeros(len(left.of), np.bool_), np.zeros(len(right.of), np.bool_))
        if len(left.of) and len(right.of):
            zeros = (np.zeros_like(left.of), np.zeros_like(right.of))
            at, there = pair_up(left.keys, zeros[0], right.keys, zeros[1], 0, 0)
            halves = [rows.rows[places].select(side.columns) for rows, places, side in zip(members, (at, there), self.sides, strict=True)]
            spans = self._lasting(closing, left.of[at])
            kept = self._pair(desk, halves[0], halves[1], left.hashes[at], left.arrival[at], right.arrival[there], out, spans)
            met[0][at[kept]] = True
            met[1][there[kept]] = True
        for number, (side, rows) in enumerate(zip(self.sides, members, strict=True)):
            alone = np.flatnonzero(~met[number])
            if side.outer and len(alone):
                self._alone(number, rows.rows[alone], out, self._lasting(closing, rows.of[alone]))


@dataclass(frozen=True)
class FilteringSessions(InSessions, Filtering):
    """Emits the rows of the left that have a partner in their session, or have none, when it closes."""

    def _give_out(self, desk: Desk, closing: Closing, left: Members, right: Members, out: Found) -> None:
        if len(left.of) == 0:
            return
        met, spans = np.zeros(len(left.of), np.bool_), self._lasting(closing, left.of)
        mine = left.rows.select(self.sides[0].columns)
        if len(right.of):
            asked = Known(left.keys, np.zeros_like(left.of), left.arrival, mine, spans=spans)
            self._match(
                desk, asked, Known(right.keys, np.zeros_like(right.of), right.arrival, right.rows.select(self.sides[1].columns)), met
            )
        self._give(mine, left.hashes, left.arrival, met if self.op.how == "semi" else ~met, out, spans)


def make_session_join(place: Place, op: Join) -> InSessions:
    assert isinstance(op.window, Session)
    known = told(place, op)
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

"""Aggregates per key and session. A session is a row (key, first, last, state) that ends with its last event.

Rows arrive as sessions, too: those within one unit. Stored and arrived sessions of a key that come
within the gap of each other become one; their states are folded in the order of arrival, the stored
first, then by unit. Aggregates that depend on the order of rows sort by their times (see
``aggregates.by_time``). A session that grows is written as a new row and a deletion of the old one.

A session is closed when the mark is above its last event plus the gap: an event exactly at the end
still belongs to it. It is dropped when the lateness has passed, too; until then a late row makes it
come again, changed.

If rows have gaps of their own, a row is a stretch, from its time to its time plus its gap, and a
session is the stretches that meet: its last event is the end of the stretch that ends last, and the
gap between stretches is 0. Everything else is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from meander.aggregates import Agg, Part
from meander.aggregates.by_time import TIME
from meander.coordinate.timing import Timing
from meander.plan.eventtime import SessionAggregate
from meander.plan.sessions import GAP, RowSession
from meander.plan.windows import Session, Times
from meander.state.grouping import Groups, fold_rows, fold_states, group_rows
from meander.state.hashing import Hashes, hash_keys
from meander.state.segment import DELETED, HASH, SOONEST
from meander.state.table import Kept
from meander.stored import stored
from meander.task.operators.contract import Emitted, Intake, Mask, Partial, Stateful
from meander.task.operators.folding import keep_groups, take, with_units
from meander.task.operators.place import Place, parts_of
from meander.task.operators.replacing import replaced_rows
from meander.task.operators.windows.time import finish_windows, timing_of
from meander.task.operators.workspace import Workspace
from meander.task.rows import UNIT, Rows

FIRST, LAST = "__first", "__last"
_OWNER, _TURN, _STORED, _CLUSTER = "__owner", "__turn", "__stored", "__cluster"
_SECOND = 1_000_000
_LAST, _LAST_OF_NS = 253_402_300_799_999_999, ((1 << 63) - 1) // 1000
"""The last microsecond of the year 9999, and of the times that are counted in nanoseconds."""
_PER_GAP = 4
"""How often in a gap it is looked, by the clock, what has closed."""


@stored("session_state", called={"aggs": "aggregates"})
@dataclass(frozen=True)
class SessionReader:
    """Shows sessions, finished."""

    keys: tuple[str, ...]
    aggs: tuple[Agg, ...]
    gap: int
    dtype: pl.Datetime

    def show(self, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
        return self.finish(pl.concat(list(tables.values())))

    def finish(self, rows: pl.DataFrame) -> pl.DataFrame:
        return finish_windows(rows, self.keys, self.aggs, pl.col(FIRST), pl.col(LAST) + self.gap, self.dtype)


@dataclass(frozen=True)
class SessionAggregation(Stateful):
    """Emits sessions when they close, or whenever they change."""

    parts: Mapping[str, Part]
    aggs: tuple[Agg, ...]
    session: Session
    time: str | None
    shift: int
    dtype: pl.Datetime
    emit: str
    lateness: int
    follows: Timing
    retracts: bool = False
    """Whether a reader needs removals."""

    @property
    def timing(self) -> Timing:
        return self.follows

    def tables(self) -> dict[str, Kept]:
        return {self.name: Kept((*self.keys, FIRST, LAST), LAST)}

    def refuses(self, frame: pl.DataFrame, side: int, late: int) -> Mask | None:
        """Rows whose session would be over, even if it were one of its own."""
        if self.time is None:
            return None
        found: Mask = self._lasts(frame, self._times(frame, 0)) + (self.session.gap + self.lateness) < late
        return found

    def parted(self, frame: pl.DataFrame, side: int, late: int) -> bool:
        """A row behind the mark can have met a session that had closed by then."""
        return self.time is not None and bool((self._times(frame, 0) < late - self.lateness).any())

    def unfit(self, frame: pl.DataFrame, side: int, now: int) -> pl.Series | None:
        """Rows without a gap, or with one that ends a session at no time that its column can have."""
        assert isinstance(self.session, RowSession)
        gap, about = pl.col(GAP), f"the gap of its session, {self.session.text},"
        longest = (_LAST_OF_NS if self.dtype.time_unit == "ns" else _LAST) - pl.Series(self._times(frame, now))
        reason = (
            pl.when(gap.is_null())
            .then(pl.lit(f"{about} is null or no number"))
            .when(gap <= 0)
            .then(pl.lit(f"{about} is not above zero"))
            .when(gap > longest)
            .then(pl.lit(f"{about} is too long: it would end later than times can be"))
        )
        reasons = frame.select(reason.alias("reason")).to_series()
        return reasons if reasons.null_count() < len(reasons) else None

    def why_late(self) -> str:
        return f"late: a session of {self.time} that it could be in had closed"

    # -- before the exchange --------------------------------------------------------------------------------------

    def before(self, rows: Rows, side: int, intake: Intake) -> pl.DataFrame:
        """The sessions of each key within each unit."""
        rows, hashes = keep_groups(rows, self._hash(rows.frame), intake)
        keys, times = rows.frame.select(self.keys), self._times(rows.frame, intake.now)
        groups = group_rows(keys, hashes, rows.units)
        owners = groups.ids().to_numpy()
        order = groups.order[np.lexsort((times[groups.order], owners))]
        moments, lasts = times[order], self._lasts(rows.frame, times)[order]
        until = _so_far(lasts, owners) if isinstance(self.session, RowSession) else lasts
        begins = np.append(True, (owners[1:] != owners[:-1]) | (moments[1:] - until[:-1] > self.session.gap))[: len(order)]
        starts = np.flatnonzero(begins)
        sessions = Groups(order, starts, hashes[order[starts]], len(order))
        states = fold_rows(rows.frame.with_columns(pl.Series(TIME, times)), sessions, self.parts)
        columns = [pl.Series(HASH, sessions.hashes), *take(keys, sessions.heads)]
        columns += [
            pl.Series(FIRST, moments[starts]),
            pl.Series(LAST, np.maximum.reduceat(lasts, starts) if len(starts) else lasts),
            *states.values(),
        ]
        if rows.units is not None:
            columns.append(pl.Series(UNIT, rows.units[sessions.heads]))
        return pl.DataFrame(columns)

    # -- behind it ------------------------------------------------------------------------------------------------

    def work(self, workspace: Workspace, arrived: Sequence[Partial]) -> Emitted | None:
        changed, were = self.merge(workspace, arrived) if arrived else (None, None)
        workspace.lap("state read")
        found = [changed] if self.emit == "update" else self._closing(workspace, changed)
        if workspace.flushes and not self.follows.by_clock:
            self.close(workspace)
        frames = [frame for frame in found if frame is not None and frame.height]
        columns = [HASH, *self.keys, FIRST, LAST, *self.parts]
        if self.retracts and were is not None:
            # A session that was given out when it closed can be open again: then it is gone until it closes.
            gone = were if self.emit == "update" else were.filter(pl.col(LAST) + self.session.gap < workspace.late)
            if gone.height:
                came = pl.concat([frame.select(columns) for frame in frames]) if frames else gone[:0]
                return replaced_rows(gone, came, (*self.keys, FIRST, LAST), self.reader().finish)
        if not frames:
            return None
        rows = pl.concat([frame.select(columns) for frame in frames]).sort(HASH, *self.keys, FIRST, maintain_order=True)
        return Emitted(self.reader().finish(rows), rows.get_column(HASH).to_numpy())

    def close(self, workspace: Workspace) -> None:
        """In a flush, report the closed windows."""
        last, over = workspace.largest(self.name), self.session.gap + self.lateness
        if last is not None and last + over >= workspace.late:
            # A row up to a session's end would have been part of it: such a row, as a session of its own, must be over, too.
            workspace.closed = last + self.session.gap + over + 1

    def closing(self, workspace: Workspace) -> pl.DataFrame | None:
        """Sessions that close in this epoch."""
        due = self._closes_in(workspace.late, workspace.evict)
        return None if due is None else self._ending(workspace, *due)

    def _closing(self, workspace: Workspace, changed: pl.DataFrame | None) -> list[pl.DataFrame | None]:
        """Sessions that close in this epoch, and those that have changed after they closed."""
        closing = [self.closing(workspace)]
        if changed is not None:
            closing.append(changed.filter(pl.col(LAST) + self.session.gap < workspace.late))
        return closing

    def _ending(self, workspace: Workspace, above: int, upto: int) -> pl.DataFrame | None:
        """Sessions that end there. With gaps of the rows' own some end soon and others in a year:
        the end of the next one is found, too.

        With one gap for all this is not done: sessions end about when the mark gets there, and the
        gap may change while the flow runs, so an end found by one gap would be wrong for another.
        """
        if not isinstance(self.session, RowSession):
            return workspace.ending(self.name, above, upto)
        workspace.next_ends[self.name] = workspace.next_end(self.name, upto)
        return workspace.ending(self.name, above, upto, stored=workspace.quiet.get(self.name, SOONEST) <= upto)

    def merge(self, workspace: Workspace, arrived: Sequence[Partial]) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Join arrived sessions with stored ones, and write them. Returns the changed sessions, and
        their former rows."""
        pieces = pl.concat([with_units(p) for p in arrived]).sort(UNIT, FIRST, maintain_order=True)
        hashes = pieces.get_column(HASH).to_numpy()
        groups = group_rows(pieces.select(self.keys), hashes)
        keys = pl.DataFrame(take(pieces.select(self.keys), groups.heads))
        # The stored come first, so an arrived piece's turn is behind them all.
        new = pieces[groups.order].with_columns(
            groups.ids().cast(pl.Int64).alias(_OWNER), pl.lit(False).alias(_STORED), pl.int_range(pl.len()).alias(_TURN)
        )
        columns = [_OWNER, _STORED, _TURN, FIRST, LAST, *self.parts]
        old = self._stored(workspace, keys, groups, new)
        workspace.lap("state read")
        everything = pl.concat([frame.select(columns) for frame in (*old, new)]) if old else new.select(columns)
        everything = self._clustered(everything)
        touched = everything.filter((~pl.col(_STORED)).any().over(_CLUSTER)).sort(_CLUSTER, _TURN, maintain_order=True)
        merged = self._fold(touched, keys, groups.hashes)
        return merged, self._write(workspace, merged, touched, keys, groups.hashes)

    def _stored(self, workspace: Workspace, keys: pl.DataFrame, groups: Groups, new: pl.DataFrame) -> list[pl.DataFrame]:
        """The keys' sessions that are not over, and that end where arrived sessions can join them,
        directly or through others in between."""
        gap, owners = self.session.gap, groups.starts
        first = np.minimum.reduceat(new.get_column(FIRST).to_numpy(), owners)
        reach = np.maximum(first - gap, workspace.late - gap - self.lateness)
        which, rows = workspace.find_rows(self.name, keys, groups.hashes, (FIRST, LAST), tuple(self.parts), reach)
        if len(which) == 0:
            return []
        rows = rows.with_columns(pl.Series(_OWNER, which.astype(np.int64)), pl.lit(True).alias(_STORED))
        rows = rows.filter(pl.Series(rows.get_column(LAST).to_numpy() >= reach[which]))
        # By time within the stored, and all of them before what has arrived.
        rows = rows.sort(FIRST, maintain_order=True)
        return [rows.with_columns((pl.int_range(pl.len()) - rows.height).alias(_TURN))]

    def _clustered(self, rows: pl.DataFrame) -> pl.DataFrame:
        """With a number for those of an owner that come within the gap of each other."""
        rows = rows.sort(_OWNER, FIRST, LAST, _TURN)
        before = pl.col(LAST).cum_max().shift(1).over(_OWNER)
        begins = (before.is_null() | (pl.col(FIRST) > before + self.session.gap)).cast(pl.UInt32)
        return rows.with_columns(begins.cum_sum().alias(_CLUSTER))

    def _fold(self, pieces: pl.DataFrame, keys: pl.DataFrame, hashes: Hashes) -> pl.DataFrame:
        """The pieces of each cluster to one session, in their turn."""
        clusters = pieces.get_column(_CLUSTER).to_numpy()
        starts = np.flatnonzero(np.append(True, clusters[1:] != clusters[:-1]))
        owners = pieces.get_column(_OWNER).to_numpy()[starts]
        groups = Groups(np.arange(len(clusters)), starts, hashes[owners], len(clusters))
        states = fold_states(pieces, groups, self.parts)
        spans = pieces.group_by(_CLUSTER, maintain_order=True).agg(pl.col(FIRST).min(), pl.col(LAST).max())
        columns = [pl.Series(HASH, groups.hashes), *take(keys, owners), spans.get_column(FIRST), spans.get_column(LAST)]
        return pl.DataFrame([*columns, *states.values(), spans.get_column(_CLUSTER)])

    def _write(self, workspace: Workspace, merged: pl.DataFrame, pieces: pl.DataFrame, keys: pl.DataFrame, hashes: Hashes) -> pl.DataFrame:
        """Write the merged sessions, and delete their stored rows where the stretch of time
        differs. Returns all stored rows."""
        columns = [HASH, *self.keys, FIRST, LAST, *self.parts]
        stored = pieces.filter(pl.col(_STORED))
        owners = stored.get_column(_OWNER).to_numpy()
        stored = stored.with_columns(pl.Series(HASH, hashes[owners]), *take(keys, owners))
        place = [_CLUSTER, FIRST, LAST]
        gone = stored.join(merged.select(place), on=place, how="anti")
        changes = pl.concat(
            [merged.select(*columns, pl.lit(False).alias(DELETED)), gone.select(*columns, pl.lit(True).alias(DELETED))]
        ).sort(HASH, *self.keys, FIRST, LAST, maintain_order=True)
        workspace.write(self.name, changes if changes.get_column(DELETED).any() else changes.drop(DELETED))
        return stored.select(columns)

    def _times(self, frame: pl.DataFrame, now: int) -> Times:
        if self.time is None:
            return np.full(frame.height, now, np.int64)
        found: Times = frame.get_column(self.time).dt.epoch("us").to_numpy()
        return found + self.shift

    def _lasts(self, frame: pl.DataFrame, times: Times) -> Times:
        """Up to where rows keep their sessions open, but for the gap that all have."""
        if not isinstance(self.session, RowSession):
            return times
        gaps: Times = frame.get_column(GAP).to_numpy()
        return times + gaps

    def _hash(self, frame: pl.DataFrame) -> Hashes:
        return hash_keys(frame.select(self.keys)) if self.keys else np.zeros(frame.height, np.uint64)

    def over(self, table: str, evict: int) -> int:
        return evict - self.session.gap - self.lateness - 1

    def due(self, table: str, late: int, evict: int) -> tuple[int, int] | None:
        """By the clock an epoch without input waits for a while: otherwise there would be one at every look."""
        pause = max(_SECOND, self.session.gap // _PER_GAP)
        if self.follows.by_clock and evict // pause <= late // pause:
            return None
        return self._closes_in(late, evict)

    def _closes_in(self, late: int, evict: int) -> tuple[int, int] | None:
        """Between which times (above one, up to another) the last events are of sessions that close: their end is in [late, evict)."""
        gap = self.session.gap
        return (late - gap - 1, evict - gap - 1) if self.emit == "closed" and late < evict else None

    def reader(self) -> SessionReader:
        return SessionReader(self.keys, self.aggs, self.session.gap, self.dtype)


def _so_far(lasts: Times, owners: Times) -> Times:
    """The largest of each owner's, up to each row. Owners stand together."""
    found: Times = pl.DataFrame({"last": lasts, "owner": owners}).select(pl.col("last").cum_max().over("owner")).to_series().to_numpy()
    return found


def make_sessions(place: Place, op: SessionAggregate) -> SessionAggregation:
    dtype, follows = timing_of(place, op)
    assert isinstance(op.window, Session)
    return SessionAggregation(
        **place.common(op.keys),
        parts=parts_of(op.aggs, place.schema(), by_time=True),
        aggs=op.aggs,
        session=op.window,
        time=op.time,
        shift=op.shift,
        dtype=dtype,
        emit=op.emit,
        lateness=op.lateness,
        follows=follows,
        retracts=place.retracts,
    )

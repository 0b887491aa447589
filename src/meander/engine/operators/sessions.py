"""Aggregates per key and session. A session is a row (key, first, last, state) in the bucket of its last event.

What arrives are sessions, too: those within one unit. Stored and arrived ones of a key that come within the gap of each other become one;
their states are folded in the order of arrival, the stored first, then by unit. What depends on the order of rows sorts by their times (see
``aggregates.by_time``). One that grows can move to another bucket, with a deletion in the old one.

A session is closed when the mark is above its last event plus the gap: an event exactly at the end still belongs to it. It goes when
the lateness has passed, too; until then a late row makes it come again, changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from meander.aggregates import Agg, Part
from meander.aggregates.by_time import TIME
from meander.engine.operators.contract import Emitted, Mask, Partial, Seat, Stateful, Timing
from meander.engine.operators.desk import Desk
from meander.engine.operators.folding import keep_groups, take, with_units
from meander.engine.operators.place import Place, parts_of
from meander.engine.operators.windows import finish_windows, timing_of
from meander.engine.rows import UNIT, Rows
from meander.plan.eventtime import SessionAggregate
from meander.plan.windows import Session, Times
from meander.state.grouping import Groups, fold_rows, fold_states, group_rows
from meander.state.hashing import Hashes, hash_keys
from meander.state.manifest import bucket_of, bucket_table
from meander.state.segment import DELETED, HASH

FIRST, LAST = "__first", "__last"
_OWNER, _TURN, _BUCKET, _CLUSTER = "__owner", "__turn", "__bucket", "__cluster"


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

    @property
    def timing(self) -> Timing:
        return self.follows

    def tables(self) -> dict[str, tuple[str, ...]]:
        return {self.name: (*self.keys, FIRST)}

    def refuses(self, frame: pl.DataFrame, side: int, late: int) -> Mask | None:
        """Rows whose session would be over, even if it were one of its own."""
        if self.time is None:
            return None
        found: Mask = self._times(frame, 0) + (self.session.gap + self.lateness) < late
        return found

    def why_late(self) -> str:
        return f"late: a session of {self.time} that it could be in had closed"

    # -- before the exchange --------------------------------------------------------------------------------------

    def before(self, rows: Rows, side: int, seat: Seat) -> pl.DataFrame:
        """The sessions of each key within each unit."""
        rows, hashes = keep_groups(rows, self._hash(rows.frame), seat)
        keys, times = rows.frame.select(self.keys), self._times(rows.frame, seat.now)
        groups = group_rows(keys, hashes, rows.units)
        owners = groups.ids().to_numpy()
        order = groups.order[np.lexsort((times[groups.order], owners))]
        moments = times[order]
        begins = np.append(True, (owners[1:] != owners[:-1]) | (np.diff(moments) > self.session.gap))[: len(order)]
        starts = np.flatnonzero(begins)
        sessions = Groups(order, starts, hashes[order[starts]], len(order))
        ends = np.append(starts[1:], len(order)) - 1
        states = fold_rows(rows.frame.with_columns(pl.Series(TIME, times)), sessions, self.parts)
        columns = [pl.Series(HASH, sessions.hashes), *take(keys, sessions.heads)]
        columns += [pl.Series(FIRST, moments[starts]), pl.Series(LAST, moments[ends[: len(starts)]]), *states.values()]
        if rows.units is not None:
            columns.append(pl.Series(UNIT, rows.units[sessions.heads]))
        return pl.DataFrame(columns)

    # -- behind it ------------------------------------------------------------------------------------------------

    def work(self, desk: Desk, arrived: Sequence[Partial]) -> Emitted | None:
        changed = self._merge(desk, arrived) if arrived else None
        desk.lap("state read")
        found = [changed] if self.emit == "update" else self._closing(desk, changed)
        if desk.flushes and not self.follows.by_clock:
            last, over = desk.largest(self.name, (*self.keys, FIRST), LAST), self.session.gap + self.lateness
            if last is not None and last + over >= desk.late:
                # A row up to a session's end would have been part of it: such a row, as a session of its own, must be over, too.
                desk.closed = last + self.session.gap + over + 1
        frames = [frame for frame in found if frame is not None and frame.height]
        if not frames:
            return None
        columns = [HASH, *self.keys, FIRST, LAST, *self.parts]
        rows = pl.concat([frame.select(columns) for frame in frames]).sort(HASH, *self.keys, FIRST, maintain_order=True)
        return Emitted(self.reader().finish(rows), rows.get_column(HASH).to_numpy())

    def _closing(self, desk: Desk, changed: pl.DataFrame | None) -> list[pl.DataFrame | None]:
        """Sessions that close in this epoch, and those that have changed after they closed."""
        gap, identity = self.session.gap, (*self.keys, FIRST)
        end = pl.col(LAST) + gap
        due = [desk.scan(table, identity) for _, table in desk.buckets(self.name) if self._may_close(table, desk.late, desk.evict)]
        closing: list[pl.DataFrame | None] = [rows.filter((end >= desk.late) & (end < desk.evict)) for rows in due if rows.height]
        if changed is not None:
            closing.append(changed.filter(end < desk.late))
        return closing

    def _merge(self, desk: Desk, arrived: Sequence[Partial]) -> pl.DataFrame:
        """Join what has arrived with what is stored, and write it. Returns the sessions that have changed."""
        pieces = pl.concat([with_units(p) for p in arrived]).sort(UNIT, FIRST, maintain_order=True)
        hashes = pieces.get_column(HASH).to_numpy()
        groups = group_rows(pieces.select(self.keys), hashes)
        keys = pl.DataFrame(take(pieces.select(self.keys), groups.heads))
        # The stored come first, so an arrived piece's turn is behind them all.
        new = pieces[groups.order].with_columns(
            groups.ids().cast(pl.Int64).alias(_OWNER), pl.lit(None, pl.Int64).alias(_BUCKET), pl.int_range(pl.len()).alias(_TURN)
        )
        columns = [_OWNER, _BUCKET, _TURN, FIRST, LAST, *self.parts]
        old = self._stored(desk, keys, groups.hashes, int(pieces.get_column(FIRST).to_numpy().min()))
        desk.lap("state read")
        everything = pl.concat([frame.select(columns) for frame in (*old, new)]) if old else new.select(columns)
        everything = self._clustered(everything)
        touched = everything.filter(pl.col(_BUCKET).is_null().any().over(_CLUSTER)).sort(_CLUSTER, _TURN, maintain_order=True)
        merged = self._fold(touched, keys, groups.hashes)
        self._write(desk, merged, touched, keys, groups.hashes)
        return merged

    def _stored(self, desk: Desk, keys: pl.DataFrame, hashes: Hashes, first: int) -> list[pl.DataFrame]:
        """The keys' sessions that are not over and do not end before anything that has arrived can join them."""
        found = []
        reach = max(first - self.session.gap, desk.late - self.session.gap - self.lateness)
        for bucket, table in desk.buckets(self.name):
            if (bucket + 1) * self.session.bucket <= reach:
                continue
            which, rows = desk.find_rows(table, keys, hashes, (FIRST,), (LAST, *self.parts))
            if len(which):
                rows = rows.with_columns(pl.Series(_OWNER, which.astype(np.int64)), pl.lit(bucket, pl.Int64).alias(_BUCKET))
                found.append(rows.filter(pl.col(LAST) >= reach))
        if not found:
            return []
        # By time within the stored, and all of them before what has arrived.
        stored = pl.concat(found).sort(FIRST, maintain_order=True)
        return [stored.with_columns((pl.int_range(pl.len()) - stored.height).alias(_TURN))]

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

    def _write(self, desk: Desk, merged: pl.DataFrame, pieces: pl.DataFrame, keys: pl.DataFrame, hashes: Hashes) -> None:
        """The merged sessions to their buckets, and what was stored of them out of those in which it is not replaced."""
        length = self.session.bucket
        columns = [HASH, *self.keys, FIRST, LAST, *self.parts]
        merged = merged.with_columns((pl.col(LAST) // length).alias(_BUCKET))
        stored = pieces.filter(pl.col(_BUCKET).is_not_null())
        owners = stored.get_column(_OWNER).to_numpy()
        stored = stored.with_columns(pl.Series(HASH, hashes[owners]), *take(keys, owners))
        place = [_CLUSTER, _BUCKET, FIRST]
        gone = stored.join(merged.select(place), on=place, how="anti")
        changes = pl.concat(
            [
                merged.select(_BUCKET, *columns, pl.lit(False).alias(DELETED)),
                gone.select(_BUCKET, *columns, pl.lit(True).alias(DELETED)),
            ]
        ).sort(_BUCKET, HASH, *self.keys, FIRST, maintain_order=True)
        for (bucket,), rows in changes.group_by(_BUCKET, maintain_order=True):
            assert isinstance(bucket, int)
            rows = rows.drop(_BUCKET)
            desk.write(bucket_table(self.name, bucket), rows if rows.get_column(DELETED).any() else rows.drop(DELETED))

    def _times(self, frame: pl.DataFrame, now: int) -> Times:
        if self.time is None:
            return np.full(frame.height, now, np.int64)
        found: Times = frame.get_column(self.time).dt.epoch("us").to_numpy()
        return found + self.shift

    def _hash(self, frame: pl.DataFrame) -> Hashes:
        return hash_keys(frame.select(self.keys)) if self.keys else np.zeros(frame.height, np.uint64)

    def is_over(self, table: str, evict: int) -> bool:
        bucket = bucket_of(table)
        return bucket is not None and (bucket + 1) * self.session.bucket + self.session.gap + self.lateness <= evict

    def is_due(self, table: str, late: int, evict: int) -> bool:
        """By the clock an epoch without input waits until a whole bucket is over: otherwise there would be one at every look."""
        return self._may_close(table, late, evict) and not self.follows.by_clock

    def _may_close(self, table: str, late: int, evict: int) -> bool:
        """Whether a session in this bucket can end in [late, evict)."""
        bucket = bucket_of(table)
        if bucket is None or self.emit != "closed" or late >= evict:
            return False
        begin = bucket * self.session.bucket + self.session.gap
        return begin < evict and begin + self.session.bucket > late

    def reader(self) -> SessionReader:
        return SessionReader(self.keys, self.aggs, self.session.gap, self.dtype)


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
    )

"""Rows of one stream, each with the newest row of another: a stream joined with a table that changes.

By arrival, the table is one row per key, and its rows that arrive in an epoch count before the
other side's rows of that epoch: a rule that does not depend on which task is faster. If the table
is a stream of changes, rows can be removed from it: a key has no row if its row was removed without
another in its place, or if an expression failed on its row. By event time, rows of both sides wait
until the mark has passed them: then all older rows have come. Of the right side's rows that wait no
more, the last of each key is kept for good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import polars as pl

from meander.coordinate.timing import Timing
from meander.plan.joins import JoinLatest, Matching, SideTime
from meander.state.grouping import Index, group_rows
from meander.state.hashing import Hashes
from meander.state.segment import DELETED, HASH, SOONEST
from meander.state.table import Kept
from meander.stored import stored
from meander.task.operators.contract import Emitted, Intake, Mask, Partial, Stateful
from meander.task.operators.joins.pairing import distinct, last_before, number_keys, numbered, row_of, times_of
from meander.task.operators.joins.pairs import ARRIVAL, AT
from meander.task.operators.place import Place
from meander.task.operators.wholerows import in_order, send_whole
from meander.task.operators.workspace import Workspace
from meander.task.rows import UNIT, Rows


@dataclass(frozen=True)
class Enriching(Stateful):
    """The parts common to both ways: columns, and the frames for the exchange."""

    matching: Matching
    how: str
    columns: tuple[tuple[str, ...], tuple[str, ...]]
    """Of the left and of the right."""

    @property
    def right_on(self) -> tuple[str, ...]:
        return self.matching.right_on

    @property
    def table(self) -> str:
        """The table of the newest rows."""
        return f"{self.name}.latest"

    def before(self, rows: Rows, side: int, intake: Intake) -> pl.DataFrame:
        keys = (self.matching.left_on, self.right_on)[side]
        if (side == 1 or self.how == "inner") and not self.matching.nulls_equal:  # a null key meets nothing
            rows = rows.filter(rows.frame.select(pl.all_horizontal(pl.col(*keys).is_not_null())).to_series())
        return send_whole(rows, keys, intake)

    def _joined(self, left: pl.DataFrame, hashes: Hashes, right: pl.DataFrame, at: Index) -> Emitted | None:
        """Rows of the left with those of the right that stand at ``at``, or with nulls where that is -1."""
        if self.how == "inner":
            there = at >= 0
            left, hashes, at = left.filter(pl.Series(there)), hashes[there], at[there]
        if left.height == 0:
            return None
        names = self.matching.names(*self.columns)
        values = row_of(right.select(c for c in self.columns[1] if c not in self.right_on), at)
        others = [column.alias(names[column.name]) for column in values.get_columns()]
        return Emitted(pl.DataFrame([*left.select(self.columns[0]).get_columns(), *others]).select(self.schema.names()), hashes)

    def _find(self, workspace: Workspace, keys: pl.DataFrame, hashes: Hashes) -> tuple[pl.DataFrame, Index]:
        """The newest rows of these keys (ascending by hash; under the left's names), and where that of each is; -1 for none."""
        probes = keys.rename(dict(zip(keys.columns, self.right_on, strict=True)))
        which, found = workspace.find(self.table, probes, hashes, self.columns[1])
        at = np.full(len(hashes), -1, np.intp)
        at[which] = np.arange(len(which))
        if len(which) == 0:
            return pl.DataFrame(schema=self._right_types()), at
        return pl.DataFrame([found[name] for name in self.columns[1]]), at

    def _right_types(self) -> dict[str, pl.DataType]:
        names = self.matching.names(*self.columns)
        return {column: self.schema[names[column]] for column in self.columns[1]}

    def reader(self) -> LatestReader:
        return LatestReader(self.table, self.columns[1])


@dataclass(frozen=True)
class ByArrival(Enriching):
    """Emits a row of the left at once, with the right side's last row of its key."""

    over_changes: bool = False
    """Whether the right side is a stream of changes."""
    takes_changes: ClassVar[bool] = True

    def tables(self) -> dict[str, Kept]:
        return {self.table: Kept(self.right_on)}

    def before(self, rows: Rows, side: int, intake: Intake) -> pl.DataFrame:
        frame = super().before(rows, side, intake)
        if side == 0 or frame.height == 0:
            return frame
        units = None if rows.units is None else frame.get_column(UNIT).to_numpy()
        last = _last(frame, self.right_on, frame.get_column(HASH).to_numpy(), units)
        return last.with_columns(pl.lit(rows.sign < 0).alias(DELETED)) if self.over_changes else last

    def work(self, workspace: Workspace, arrived: Sequence[Partial]) -> Emitted | None:
        left, right = in_order(arrived, 0), in_order(arrived, 1)
        workspace.lap("fold")
        if right is not None:
            workspace.write(self.table, self._newest(*right))
        if left is None:
            return None
        frame, hashes = left
        keys = frame.select(self.matching.left_on)
        groups = group_rows(keys, hashes)
        rows, at = self._find(workspace, keys[groups.heads], groups.hashes)
        numbers = np.empty(frame.height, np.intp)
        numbers[groups.order] = groups.ids().to_numpy()
        return self._joined(frame, hashes, rows, at[numbers])

    def _newest(self, rows: pl.DataFrame, hashes: Hashes) -> pl.DataFrame:
        """The right side's rows to write: a key's last row or, of changes, the row that was added,
        or a deletion if there is none."""
        columns = [HASH, *self.columns[1]]
        if not self.over_changes:
            return _last(rows, self.right_on, hashes).select(columns)
        order = np.lexsort((~rows.get_column(DELETED).to_numpy(), hashes))  # of a key, what has come is last
        last = _last(rows[order], self.right_on, hashes[order]).select(*columns, DELETED)
        return last if last.get_column(DELETED).any() else last.drop(DELETED)


@dataclass(frozen=True)
class ByTime(Enriching):
    """Emits a row of the left when the mark has passed it, with the right side's last row that is not younger."""

    times: tuple[SideTime, SideTime]
    follows: Timing
    tolerance: int | None = None

    @property
    def timing(self) -> Timing:
        return self.follows

    @property
    def waiting(self) -> tuple[str, str]:
        return f"{self.name}.left", f"{self.name}.right"

    def tables(self) -> dict[str, Kept]:
        left, right = self.waiting
        on = {left: self.matching.left_on, right: self.right_on}
        return {self.table: Kept(self.right_on)} | {table: Kept((*keys, ARRIVAL), AT) for table, keys in on.items()}

    def refuses(self, frame: pl.DataFrame, side: int, late: int) -> Mask | None:
        time = self.times[side]
        behind: Mask = times_of(frame, time.column, time.shift) < late
        return behind

    def why_late(self) -> str:
        return "late: its time is behind the watermark"

    def over(self, table: str, evict: int) -> int | None:
        return evict - 1 if table in self.waiting else None

    def due(self, table: str, late: int, evict: int) -> tuple[int, int] | None:
        return (SOONEST, evict - 1) if table in self.waiting else None

    def work(self, workspace: Workspace, arrived: Sequence[Partial]) -> Emitted | None:
        for side, table in enumerate(self.waiting):
            self._store(workspace, side, table, arrived)
        workspace.lap("fold")
        left, right = (self._due(workspace, table) for table in self.waiting)
        if workspace.flushes:
            for side, rows in enumerate((left, right)):
                if rows.height:
                    workspace.closed = max(workspace.closed, int(self._times(rows, side).max()) + 1)
        emitted = self._join(workspace, left, right) if left.height else None
        if right.height:
            newest = right[np.lexsort((right.get_column(ARRIVAL).to_numpy(), self._times(right, 1), right.get_column(HASH).to_numpy()))]
            workspace.write(self.table, _last(newest, self.right_on, newest.get_column(HASH).to_numpy()).select(HASH, *self.columns[1]))
        return emitted

    def _times(self, frame: pl.DataFrame, side: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return times_of(frame, self.times[side].column, self.times[side].shift)

    def _store(self, workspace: Workspace, side: int, table: str, arrived: Sequence[Partial]) -> None:
        found = in_order(arrived, side)
        if found is None:
            return
        frame, hashes = found
        columns = (pl.Series(ARRIVAL, numbered(hashes, workspace.epoch)), pl.Series(AT, self._times(frame, side)))
        workspace.write(table, frame.select(HASH, *self.columns[side]).with_columns(columns))

    def _due(self, workspace: Workspace, table: str) -> pl.DataFrame:
        """The rows that wait no more, in the order of arrival within each hash."""
        rows = workspace.ending(table, SOONEST, workspace.evict - 1)
        if rows.height == 0:
            return pl.DataFrame()
        return rows[np.lexsort((rows.get_column(ARRIVAL).to_numpy(), rows.get_column(HASH).to_numpy()))]

    def _join(self, workspace: Workspace, left: pl.DataFrame, right: pl.DataFrame) -> Emitted | None:
        hashes = left.get_column(HASH).to_numpy()
        if right.height == 0:
            right = (
                left.clear()
                .select(HASH, *self.matching.left_on, ARRIVAL)
                .rename(dict(zip(self.matching.left_on, self.right_on, strict=True)))
            )
            right = pl.DataFrame(schema={**right.schema, **self._right_types()})
        on, others = self.matching, right.get_column(HASH).to_numpy()
        keys = number_keys(left.select(on.left_on), hashes, right.select(on.right_on), others, on.nulls_equal)
        young = last_before(keys.of[0], self._times(left, 0), keys.of[1], self._times(right, 1))
        # Whatever waits no more is older than all that still does.
        without = distinct(keys.of[0][(young < 0) & (keys.of[0] >= 0)], len(keys.hashes))
        old, at = self._find(workspace, keys.frame[without], keys.hashes[without])
        found = young.copy()
        if len(without):
            place = np.full(len(keys.hashes), -1, np.intp)
            place[without] = np.where(at >= 0, at + right.height, -1)
            asked = (young < 0) & (keys.of[0] >= 0)
            found[asked] = place[keys.of[0][asked]]
        rows = pl.concat([right.select(self.columns[1]), old.select(self.columns[1])])
        if self.tolerance is not None:  # the last row up to a time: where it is too old, so are all the others
            known = np.flatnonzero(found >= 0)
            ages = self._times(left, 0)[known] - self._times(rows, 1)[found[known]]
            found[known[ages > self.tolerance]] = -1
        return self._joined(left, hashes, rows, found)


def _last(
    frame: pl.DataFrame, keys: Sequence[str], hashes: Hashes, units: np.ndarray[tuple[int], np.dtype[np.uint64]] | None = None
) -> pl.DataFrame:
    """The last row of every key (and unit)."""
    groups = group_rows(frame.select(keys), hashes, units)
    ends: Index = np.append(groups.starts[1:], groups.rows) - 1
    return frame[groups.order[ends]]


@stored("join_latest_state")
@dataclass(frozen=True)
class LatestReader:
    """Shows the newest row of every key; by event time, of those that the mark has passed."""

    table: str
    columns: tuple[str, ...]

    def show(self, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
        rows = [frame.select(self.columns) for name, frame in tables.items() if name == self.table and frame.width]
        return pl.concat(rows) if rows else pl.DataFrame()


def make_join_latest(place: Place, op: JoinLatest) -> Enriching:
    columns = (tuple(place.schema(0)), tuple(place.schema(1)))
    common = {**place.common(op.matching.left_on), "matching": op.matching, "how": op.how, "columns": columns}
    if op.times is None:
        return ByArrival(**common, over_changes=place.node.inputs[1] in place.plan.changes)
    first, second = place.time(0), place.time(1)
    assert first is not None
    assert second is not None
    follows = Timing(first.marks | second.marks, max(first.delay, second.delay))
    return ByTime(**common, times=op.times, follows=follows, tolerance=op.tolerance)

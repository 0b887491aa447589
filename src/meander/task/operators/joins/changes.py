"""Joins over streams of changes: the pairs of a key change when rows of either side are added and
removed.

State is all rows of both sides, as bags (see ``bags``), for good. An epoch takes the keys with
added or removed rows: it reads these keys' rows of both sides, as they were and as they are, and
emits the difference between the pairs before and the pairs now. So rows that are added and removed
within an epoch are never emitted, and the result is that of the two tables, however the input is
cut into epochs.

A row is *touched* if its count has changed. Only pairs with a touched row can have changed. A row
can have gained or lost its last partner only if it, or a row that it pairs with, is touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import polars as pl

from meander.plan.change_joins import ChangeJoin
from meander.plan.operators import Filter
from meander.state.grouping import Index, group_rows, order_by_hash
from meander.state.hashing import Hashes, hash_keys
from meander.state.segment import HASH
from meander.state.table import Kept
from meander.stored import stored
from meander.task.operators.bags import OWNER, Bag
from meander.task.operators.contract import Emitted, Intake, Mask, Partial, Stateful
from meander.task.operators.folding import keep_groups, take
from meander.task.operators.joins.conditions import holds, refuse
from meander.task.operators.place import Place
from meander.task.operators.workspace import Workspace
from meander.task.rows import Rows

_NUMBER, _BEFORE, _TIMES = "__number", "__before", "__times"
_AT_ONCE = 1 << 18
"""About how many pairs are looked at together where it is enough to know of one."""
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Half:
    """One side's rows of the keys that are looked at, by key: how often each was there, and is."""

    frame: pl.DataFrame
    """The columns that are no keys."""
    owners: Counts
    before: Counts
    after: Counts
    meets: Mask
    """Whether its key can equal one of the other side: nulls may equal nothing."""

    @property
    def touched(self) -> Mask:
        return np.not_equal(self.before, self.after)


@dataclass(frozen=True)
class Pairs:
    """Rows of the left and of the right that belong together: where they are."""

    left: Index
    right: Index

    def kept(self, mask: Mask) -> Pairs:
        return Pairs(self.left[mask], self.right[mask])

    def with_more(self, others: Sequence[Pairs]) -> Pairs:
        return Pairs(*(np.concatenate(some) for some in zip(*((p.left, p.right) for p in (self, *others)), strict=True)))


@dataclass(frozen=True)
class JoiningChanges(Stateful):
    """Emits pairs, and rows that are alone, that have come; removed ones, too, if a reader needs
    removals."""

    op: ChangeJoin
    bags: tuple[Bag, Bag]
    given: tuple[pl.Schema, pl.Schema]
    """The columns of both inputs."""
    retracts: bool
    takes_changes: ClassVar[bool] = True

    def tables(self) -> dict[str, Kept]:
        return {bag.name: Kept(bag.identity) for bag in self.bags}

    def found_by(self, side: int) -> tuple[str, ...]:
        return self.bags[side].identity

    def before(self, rows: Rows, side: int, intake: Intake) -> pl.DataFrame:
        """Rows as they are, once or taken back once. Their order means nothing, and so does where they come from."""
        bag = self.bags[side]
        if not self.op.matching.nulls_equal and not self.op.alone[side]:  # a null key meets nothing
            rows = rows.filter(rows.frame.select(pl.all_horizontal(pl.col(*bag.keys).is_not_null())).to_series())
        rows, hashes = keep_groups(rows, hash_keys(rows.frame.select(bag.keys)), intake)
        number = pl.lit(rows.sign, pl.Int64).alias(_NUMBER)
        frame = rows.frame.select(bag.identity).with_columns(number).insert_column(0, pl.Series(HASH, hashes))
        return frame[order_by_hash(hashes)]

    def work(self, workspace: Workspace, arrived: Sequence[Partial]) -> Emitted | None:
        if not arrived:
            return None
        came = [self._arrived(arrived, side) for side in (0, 1)]
        names = self.bags[0].keys
        some = pl.concat([frame.select(HASH, *bag.keys).rename(dict(zip(bag.keys, names, strict=True))) for frame, bag in self._zip(came)])
        groups = group_rows(some.select(names), some.get_column(HASH).to_numpy())
        keys = some.select(names)[groups.heads]
        owners = np.empty(some.height, np.int64)
        owners[groups.order] = groups.ids().to_numpy()
        meets = np.ones(keys.height, np.bool_)
        if not self.op.matching.nulls_equal:
            meets = ~keys.select(pl.any_horizontal(pl.all().is_null())).to_series().to_numpy()
        workspace.lap("fold")
        cut = came[0].height
        left = self._half(workspace, 0, keys, groups.hashes, came[0], owners[:cut], meets)
        right = self._half(workspace, 1, keys, groups.hashes, came[1], owners[cut:], meets)
        workspace.lap("state read")
        return self._emit(self._changed(workspace, left, right, keys), groups.hashes)

    def reader(self) -> BagJoinReader:
        names = self.op.matching.names(list(self.given[0]), list(self.given[1]))
        return BagJoinReader({self.bags[0].name: {name: name for name in self.given[0]}, self.bags[1].name: names})

    # -- rows ---------------------------------------------------------------------------------------------------------

    def _zip(self, frames: Sequence[pl.DataFrame]) -> list[tuple[pl.DataFrame, Bag]]:
        return list(zip(frames, self.bags, strict=True))

    def _arrived(self, arrived: Sequence[Partial], side: int) -> pl.DataFrame:
        frames = [partial.frame for partial in arrived if partial.side == side]
        if frames:
            return pl.concat(frames)
        types = {column: self.given[side][column] for column in self.bags[side].identity}
        return pl.DataFrame(schema={HASH: pl.UInt64(), **types, _NUMBER: pl.Int64()})

    def _half(
        self, workspace: Workspace, side: int, keys: pl.DataFrame, hashes: Hashes, came: pl.DataFrame, owners: Counts, meets: Mask
    ) -> Half:
        """One side's rows of these keys, before and now; changed rows are written."""
        bag = self.bags[side]
        changes = came.select(pl.Series(OWNER, owners, pl.Int64()), *bag.columns, _NUMBER)
        named = keys.rename(dict(zip(keys.columns, bag.keys, strict=True)))
        before, after = bag.change(workspace, named, hashes, changes)
        rows = [OWNER, *bag.columns]
        none = pl.lit(0, pl.Int64())
        if came.height:
            old = before.rename({_NUMBER: _BEFORE}).with_columns(none.alias(_NUMBER))
            new = after.with_columns(none.alias(_BEFORE)).select(old.columns)
            both = pl.concat([old, new]).group_by(rows, maintain_order=True).agg(pl.col(_BEFORE, _NUMBER).sum())
            both = both.sort(rows, maintain_order=True)
        else:
            both = after.with_columns(pl.col(_NUMBER).alias(_BEFORE))
        owner = both.get_column(OWNER).to_numpy()
        was, now = (both.get_column(column).to_numpy() for column in (_BEFORE, _NUMBER))
        return Half(both.select(bag.columns), owner, was, now, meets[owner])

    # -- pairs --------------------------------------------------------------------------------------------------------

    def _changed(self, workspace: Workspace, left: Half, right: Half, keys: pl.DataFrame) -> pl.DataFrame:
        """The rows of the output that there are more of, or fewer, than before: how many, and of which key."""
        found: list[pl.DataFrame] = []
        if self.op.where is None:
            partners = self._partners_by_key(left, right, len(keys)), self._partners_by_key(right, left, len(keys))
            if self.op.pairs:
                pairs, _ = self._candidates(left, right)
                found.append(self._paired(left, right, pairs, keys))
        else:
            pairs, known = self._candidates(left, right)
            whole = self._paired(left, right, pairs, keys)
            kept = self._meeting(workspace, self.op.where, whole, known)
            pairs = pairs.kept(kept)
            found.append(whole.filter(pl.Series(kept)))
            partners = self._partners_by_pair(workspace, self.op.where, left, right, pairs, keys)
        if not self.op.pairs:
            found = [self._semi(left, keys, partners[0], alone=self.op.how == "anti")]
        elif self.op.alone[0]:
            found.append(self._semi(left, keys, partners[0], alone=True))
        if self.op.alone[1]:
            found.append(self._lonely_right(right, keys, partners[1]))
        changed = pl.concat([frame.select(found[0].columns) for frame in found]) if len(found) > 1 else found[0]
        changed = changed.filter(pl.col(_TIMES) != 0)
        if len(found) > 1 and changed.height:  # a pair with a row of nulls is what its other row is alone
            columns = [OWNER, *self.schema.names()]
            changed = changed.group_by(columns, maintain_order=True).agg(pl.col(_TIMES).sum()).filter(pl.col(_TIMES) != 0)
        return changed.sort(OWNER, maintain_order=True)

    def _candidates(self, left: Half, right: Half) -> tuple[Pairs, Mask]:
        """All pairs with a touched row, and which of them there are more of now."""
        mine, other = left.touched & left.meets, right.touched & right.meets
        pairs = _cross(left, right, np.flatnonzero(mine), np.flatnonzero(right.meets))
        pairs = pairs.with_more([_cross(left, right, np.flatnonzero(~left.touched & left.meets), np.flatnonzero(other))])
        return pairs, _times(left, right, pairs) > 0

    def _paired(self, left: Half, right: Half, pairs: Pairs, keys: pl.DataFrame) -> pl.DataFrame:
        """Pairs as rows of the join, with how many more of each there are."""
        owners = left.owners[pairs.left]
        return self._whole(keys, take(left.frame, pairs.left), take(right.frame, pairs.right), owners, _times(left, right, pairs))

    def _whole(
        self, keys: pl.DataFrame, left: Sequence[pl.Series], right: Sequence[pl.Series], owners: Counts, times: Counts
    ) -> pl.DataFrame:
        """Rows of the join; nulls for the columns of a side that is not there."""
        names = self.op.matching.names(list(self.given[0]), list(self.given[1]))
        others = [column.alias(names[column.name]) for column in right]
        there = {column.name: column for column in (*keys[owners].get_columns(), *left, *others)}
        columns = dict(self.op.matching.schema(*self.given, self.name))
        made = [there.get(name, pl.Series(name, [None], dtype).new_from_index(0, len(owners))) for name, dtype in columns.items()]
        return pl.DataFrame([*made, pl.Series(OWNER, owners), pl.Series(_TIMES, times)])

    def _semi(self, half: Half, keys: pl.DataFrame, partners: tuple[Mask, Mask], alone: bool) -> pl.DataFrame:
        """The left's rows that have a partner, or that have none."""
        before, after = (~some if alone else some for some in partners)
        times = half.after * after - half.before * before
        rows = np.flatnonzero(times)
        whole = self._whole(keys, take(half.frame, rows), (), half.owners[rows], times[rows])
        return whole.select(*self.schema.names(), OWNER, _TIMES)

    def _lonely_right(self, half: Half, keys: pl.DataFrame, partners: tuple[Mask, Mask]) -> pl.DataFrame:
        before, after = partners
        times = half.after * ~after - half.before * ~before
        rows = np.flatnonzero(times)
        return self._whole(keys, (), take(half.frame, rows), half.owners[rows], times[rows])

    def _partners_by_key(self, half: Half, other: Half, keys: int) -> tuple[Mask, Mask]:
        """The rows that had, and that have, a partner, if every row of the key is a partner."""
        there = (np.bincount(other.owners, count, keys) > 0 for count in (other.before, other.after))
        before, after = (some[half.owners] & half.meets for some in there)
        return before, after

    def _partners_by_pair(
        self, workspace: Workspace, where: Filter, left: Half, right: Half, pairs: Pairs, keys: pl.DataFrame
    ) -> tuple[tuple[Mask, Mask], tuple[Mask, Mask]]:
        """The same where a pair must meet a condition: for the rows of which it can have changed. The others have none, then and now."""
        more = []
        if self.op.alone[0] or not self.op.pairs:
            met = _among(len(left.owners), pairs.left) & ~left.touched
            more.append(self._one_partner(workspace, where, left, right, np.flatnonzero(met), keys))
        if self.op.alone[1]:
            met = _among(len(right.owners), pairs.right) & ~right.touched
            more.append(self._one_partner(workspace, where, left, right, np.flatnonzero(met), keys, flipped=True))
        every = pairs.with_more(more)

        def partners(rows: Index, others: Index, size: int, other: Half) -> tuple[Mask, Mask]:
            before, after = (_among(size, rows[count[others] > 0]) for count in (other.before, other.after))
            return before, after

        return (
            partners(every.left, every.right, len(left.owners), right),
            partners(every.right, every.left, len(right.owners), left),
        )

    def _one_partner(
        self, workspace: Workspace, where: Filter, left: Half, right: Half, rows: Index, keys: pl.DataFrame, flipped: bool = False
    ) -> Pairs:
        """Of each of these rows of the left, or ``flipped`` of the right, a pair with a row of the other side that is not touched.

        One tells as much as all. They are looked for some at a time: a key's rows on both sides, multiplied, may be more than memory holds.
        """
        mine, other = (right, left) if flipped else (left, right)
        among = np.flatnonzero(~other.touched & other.meets)
        owners = other.owners[among]
        at, end = (np.searchsorted(owners, mine.owners[rows], side) for side in ("left", "right"))
        found: list[Pairs] = []
        while len(rows):
            counts = np.minimum(end - at, max(1, _AT_ONCE // len(rows)))
            others = among[np.repeat(at - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())]
            asked = np.repeat(np.arange(len(rows)), counts)
            pairs = Pairs(others, rows[asked]) if flipped else Pairs(rows[asked], others)
            whole = self._paired(left, right, pairs, keys)
            meets = self._meeting(workspace, where, whole, np.zeros(whole.height, np.bool_))
            found.append(pairs.kept(meets))
            at = at + counts
            open_ = ~_among(len(rows), asked[meets]) & (at < end)
            rows, at, end = rows[open_], at[open_], end[open_]
        return Pairs(rows, rows).with_more(found)

    def _meeting(self, workspace: Workspace, where: Filter, whole: pl.DataFrame, tells: Mask) -> Mask:
        """For which pairs the condition holds. One on which it fails is no pair: a dead letter when it comes, and nothing when it goes."""
        found, failures = holds(where, whole)
        for failure in failures:
            if tells[failure[0]]:
                refuse(workspace, self, where, whole.drop(OWNER, _TIMES), failure)
        return found

    def _emit(self, changed: pl.DataFrame, hashes: Hashes) -> Emitted | None:
        if not self.retracts:
            changed = changed.filter(pl.col(_TIMES) > 0)
        if changed.height == 0:
            return None
        times = changed.get_column(_TIMES).to_numpy()
        each = np.repeat(np.arange(len(times)), np.abs(times))
        signs = np.sign(times[each]).astype(np.int8) if self.retracts else None
        owners = changed.get_column(OWNER).to_numpy()[each]
        return Emitted(changed.select(self.schema.names())[each], hashes[owners], signs)


def _cross(left: Half, right: Half, lefts: Index, rights: Index) -> Pairs:
    """All pairs of these rows that have one key. Rows ascend by key."""
    mine, other = left.owners[lefts], right.owners[rights]
    first = np.searchsorted(other, mine, "left")
    counts = np.searchsorted(other, mine, "right") - first
    at = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
    return Pairs(np.repeat(lefts, counts), rights[at])


def _times(left: Half, right: Half, pairs: Pairs) -> Counts:
    """How many more of each pair there are now than before."""
    mine, other = pairs.left, pairs.right
    return left.after[mine] * right.after[other] - left.before[mine] * right.before[other]


def _among(size: int, rows: Index) -> Mask:
    found = np.zeros(size, np.bool_)
    found[rows] = True
    return found


@stored("join_changes_state")
@dataclass(frozen=True)
class BagJoinReader:
    """Shows the rows of both sides: ``__side`` says whose they are, the columns are called as behind the join."""

    sides: Mapping[str, Mapping[str, str]]

    def show(self, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
        found = []
        for (table, names), side in zip(self.sides.items(), ("left", "right"), strict=True):
            rows = tables.get(table)
            if rows is not None and rows.width:
                each = rows[np.repeat(np.arange(rows.height), rows.get_column(_NUMBER).to_numpy())]
                found.append(each.select(pl.lit(side).alias("__side"), *(pl.col(column).alias(to) for column, to in names.items())))
        return pl.concat(found, how="diagonal") if found else pl.DataFrame()


def make_change_join(place: Place, op: ChangeJoin) -> JoiningChanges:
    given = (place.schema(0), place.schema(1))
    bags = [
        Bag(f"{place.node.name}.{side}", keys, tuple(column for column in schema if column not in keys), _NUMBER)
        for side, keys, schema in zip(("left", "right"), (op.matching.left_on, op.matching.right_on), given, strict=True)
    ]
    return JoiningChanges(**place.common(op.matching.left_on), op=op, bags=(bags[0], bags[1]), given=given, retracts=place.retracts)

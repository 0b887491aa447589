"""The best rows of every key, over a stream of changes. State is all rows of a key, since one that is gone lets another in (see ``bags``).

Equal rows have no order of arrival here: which of them is first when is the epochs' business. They are ranked by all of their columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import polars as pl

from meander.plan.rowwise import CHANGED, RANK
from meander.state.grouping import group_rows, order_by_hash, values_same
from meander.state.hashing import hash_keys
from meander.state.segment import HASH
from meander.state.table import Kept
from meander.stored import stored
from meander.task.operators.bags import Bag
from meander.task.operators.contract import Emitted, Intake, Partial, Stateful
from meander.task.operators.folding import keep_groups
from meander.task.operators.place import Place
from meander.task.operators.ranking import ARRIVAL, OWNER, Order, ranked_anew
from meander.task.operators.workspace import Workspace
from meander.task.rows import Rows

_NUMBER = "__number"


@dataclass(frozen=True)
class BestOverChanges(Stateful):
    """Emits a key's whole list when it has changed."""

    order: Order
    bag: Bag
    retracts: bool
    takes_changes: ClassVar[bool] = True

    def tables(self) -> dict[str, Kept]:
        return {self.name: Kept(self.bag.identity)}

    def found_by(self, side: int) -> tuple[str, ...]:
        return self.bag.identity

    def before(self, rows: Rows, side: int, intake: Intake) -> pl.DataFrame:
        """Rows as they are, once or taken back once. Their order means nothing, and so does where they come from."""
        rows, hashes = keep_groups(rows, hash_keys(rows.frame.select(self.keys)), intake)
        number = pl.lit(rows.sign, pl.Int64).alias(_NUMBER)
        frame = rows.frame.select(self.bag.identity).with_columns(number).insert_column(0, pl.Series(HASH, hashes))
        return frame[order_by_hash(hashes)]

    def work(self, workspace: Workspace, arrived: Sequence[Partial]) -> Emitted | None:
        if not arrived:
            return None
        frame = pl.concat([partial.frame for partial in arrived])
        groups = group_rows(frame.select(self.keys), frame.get_column(HASH).to_numpy())
        keys = frame.select(self.keys)[groups.heads]
        changes = frame[groups.order].select(groups.ids().cast(pl.Int64).alias(OWNER), *self.bag.columns, _NUMBER)
        before, after = (self._lists(rows, keys) for rows in self.bag.change(workspace, keys, groups.hashes, changes))
        place = [OWNER, RANK]
        known = before.select(place).with_row_index("__before")
        found = after.select(place).join(known, on=place, how="left", maintain_order="left").get_column("__before").to_numpy()
        same = ~np.isnan(found.astype(np.float64))
        here = np.flatnonzero(same)
        columns = self.bag.columns
        same[here] = values_same(after.select(columns), here, before.select(columns), found[here].astype(np.intp))
        after = after.with_columns(pl.Series(CHANGED, ~same))
        gone = before.join(after.filter(~pl.col(CHANGED)).select(place), on=place, how="anti", maintain_order="left")
        touched = pl.concat([gone.select(OWNER), after.filter(CHANGED).select(OWNER)]).unique()
        after = after.join(touched, on=OWNER, how="semi", maintain_order="left")
        gone, after = (some.with_columns(pl.Series(HASH, groups.hashes[some.get_column(OWNER).to_numpy()])) for some in (gone, after))
        if self.retracts:
            return ranked_anew(gone, after, self.schema)
        return Emitted(after.select(self.schema.names()), after.get_column(HASH).to_numpy())

    def _lists(self, rows: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
        """The best rows of every owner with their ranks, from the rows of a bag, ascending by all columns."""
        times = np.minimum(rows.get_column(_NUMBER).to_numpy(), self.order.n)
        each = rows[np.repeat(np.arange(rows.height), times)].with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias(ARRIVAL))
        owners = each.get_column(OWNER).to_numpy()
        each = each.with_columns([keys.get_column(key).gather(owners) for key in self.keys])
        return self.order.best(each).with_columns(self.order.rank().alias(RANK))

    def reader(self) -> BagTopReader:
        return BagTopReader(self.keys, self.bag.columns, self.order)


@stored("top_over_changes_state")
@dataclass(frozen=True)
class BagTopReader:
    """Shows the lists, rank by rank."""

    keys: tuple[str, ...]
    columns: tuple[str, ...]
    order: Order

    def show(self, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
        (rows,) = tables.values()
        rows = rows.sort(self.keys + self.columns)
        rows = rows[np.repeat(np.arange(rows.height), np.minimum(rows.get_column(_NUMBER).to_numpy(), self.order.n))]
        owner, arrival = pl.struct(self.keys).rank("dense").alias(OWNER), pl.int_range(pl.len(), dtype=pl.Int64).alias(ARRIVAL)
        best = self.order.best(rows.with_columns(owner, arrival)).with_columns(self.order.rank().alias(RANK))
        return best.select(*self.keys, *self.columns, RANK).sort(*self.keys, RANK)


def make_top_over_changes(place: Place, keys: tuple[str, ...], order: Order) -> BestOverChanges:
    columns = tuple(column for column in place.schema() if column not in keys)
    bag = Bag(place.node.name, keys, columns, _NUMBER)
    return BestOverChanges(**place.common(keys), order=order, bag=bag, retracts=place.retracts)

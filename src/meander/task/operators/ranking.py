"""The order of rows, and the output of lists that have changed: common to operators with ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from meander.plan.rowwise import CHANGED, RANK
from meander.state.segment import HASH
from meander.stored import stored
from meander.task.operators.contract import Emitted

OWNER, ARRIVAL = "__owner", "__arrival"


@stored("order")
@dataclass(frozen=True)
class Order:
    """The order of rows, and the number of best rows that count."""

    n: int
    by: tuple[str, ...]
    descending: tuple[bool, ...]
    ties: str
    """The better of equal rows: the ``first`` to arrive or the ``last``; with ``all`` they have one
    rank, and count together."""

    def best(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The best rows of every owner, the best first. Nulls are worse than anything."""
        down = [False, *self.descending, self.ties == "last"]
        ordered = rows.sort(OWNER, *self.by, ARRIVAL, descending=down, nulls_last=True, maintain_order=True)
        return ordered.filter(self.rank() <= self.n)

    def rank(self) -> pl.Expr:
        """The rank of rows that are in order."""
        place = pl.int_range(1, pl.len() + 1, dtype=pl.Int64)
        if self.ties != "all":
            return place.over(OWNER)
        differs = pl.any_horizontal(pl.col(column).ne_missing(pl.col(column).shift(1)) for column in self.by) | (place == 1)
        return pl.when(differs).then(place).forward_fill().over(OWNER)

    def arrival_of_stored(self, place: pl.Expr) -> pl.Expr:
        """Stored rows came before all arriving ones, and keep their order among equals."""
        return -place - 1 if self.ties == "last" else place - (1 << 40)


def ranked_anew(gone: pl.DataFrame, new: pl.DataFrame, schema: pl.Schema) -> Emitted:
    """Changed lists, for readers that need removals: the new lists, and the old rows of ranks that
    have no row now.

    Added and removed rows have ``changed`` set, and unchanged rows do not: a removed row equals the
    row that was added.
    """
    gone = gone.sort(OWNER, RANK, maintain_order=True).with_columns(pl.lit(True).alias(CHANGED))
    both = pl.concat([frame.select(HASH, *schema.names()) for frame in (gone, new)])
    signs = np.concatenate([np.full(gone.height, -1, np.int8), new.get_column(CHANGED).to_numpy().astype(np.int8)])
    return Emitted(both.select(schema.names()), both.get_column(HASH).to_numpy(), signs)

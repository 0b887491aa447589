"""Bags: rows of a key that come and go, each with the number of times that it is there. For operators that are given changes.

A bag is a table with a row per key and different row; all of a key have the key's hash, and are read together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from meander.errors import Corrupted
from meander.state.hashing import Hashes
from meander.state.segment import DELETED, HASH
from meander.stored import stored
from meander.task.operators.workspace import Workspace

OWNER = "__owner"


@stored("bag")
@dataclass(frozen=True)
class Bag:
    """One table."""

    name: str
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    """The columns that distinguish a key's rows."""
    number: str
    """The column of how many times a row is there."""

    @property
    def identity(self) -> tuple[str, ...]:
        return (*self.keys, *self.columns)

    def change(self, workspace: Workspace, keys: pl.DataFrame, hashes: Hashes, changes: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Add to a bag, and take from it. Returns all rows of these keys (ascending by hash) before and after, in an order of their own.

        ``changes`` has the number of the key each row is of (``__owner``), the bag's columns, and how many have come, or are gone if
        that is below 0.
        """
        rows = [OWNER, *self.columns]
        changes = changes.group_by(rows, maintain_order=True).agg(pl.col(self.number).sum()).filter(pl.col(self.number) != 0)
        which, found = workspace.find_rows(self.name, keys, hashes, self.columns, (self.number,))
        before = found.with_columns(pl.Series(OWNER, which.astype(np.int64))) if len(which) else changes[:0]
        before = before.select(changes.columns).sort(rows, maintain_order=True)
        both = pl.concat([before, changes]).group_by(rows, maintain_order=True).agg(pl.col(self.number).sum(), pl.len().alias("__pieces"))
        if (both.get_column(self.number) < 0).any():
            raise Corrupted(f"table '{self.name}': rows are gone that were never there; this is a defect of the flow or of Meander")
        self._write(workspace, keys, hashes, both.join(changes.select(rows), on=rows, how="semi", nulls_equal=True, maintain_order="left"))
        after = both.filter(pl.col(self.number) > 0).select(changes.columns).sort(rows, maintain_order=True)
        return before, after

    def _write(self, workspace: Workspace, keys: pl.DataFrame, hashes: Hashes, rows: pl.DataFrame) -> None:
        gone = pl.col(self.number) == 0
        rows = rows.sort(OWNER, maintain_order=True)
        owners = rows.get_column(OWNER).to_numpy()
        columns: Sequence[str] = [HASH, *self.keys, *self.columns, self.number, DELETED]
        made = [pl.Series(HASH, hashes[owners]), *(keys.get_column(key).gather(owners) for key in self.keys), gone.alias(DELETED)]
        rows = rows.with_columns(made).select(columns)
        workspace.write(self.name, rows if rows.get_column(DELETED).any() else rows.drop(DELETED))

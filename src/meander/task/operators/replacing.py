"""The output of an operator whose readers need removals: old rows and new ones, each marked as
removed or added."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import polars as pl

from meander.state.grouping import Index, group_rows, values_same
from meander.state.hashing import Hashes
from meander.state.segment import HASH
from meander.task.operators.contract import Emitted


def replaced(old: pl.DataFrame, old_owners: Index, new: pl.DataFrame, new_owners: Index, hashes: Hashes) -> Emitted:
    """Of each owner at most one row that was there, and one that is: gone, come, or the same. ``hashes`` are the owners', ascending."""
    before, after = np.full(len(hashes), -1), np.full(len(hashes), -1)
    before[old_owners], after[new_owners] = np.arange(len(old_owners)), np.arange(len(new_owners))
    both = np.flatnonzero((before >= 0) & (after >= 0))
    same = np.zeros(len(hashes), np.bool_)
    same[both] = values_same(old, before[both], new, after[both])
    order = np.argsort(old_owners, kind="stable")
    gone = order[~same[old_owners[order]]]
    order = np.argsort(new_owners, kind="stable")
    came_owners = new_owners[order]
    signs = np.concatenate([np.full(len(gone), -1, np.int8), np.where(same[came_owners], 0, 1).astype(np.int8)])
    whose = np.concatenate([old_owners[gone], came_owners])
    return Emitted(pl.concat([old[gone], new[order]]), hashes[whose], signs)


def replaced_rows(
    gone: pl.DataFrame, came: pl.DataFrame, identity: Sequence[str], finish: Callable[[pl.DataFrame], pl.DataFrame]
) -> Emitted | None:
    """The same for rows with their hashes. Those of equal ``identity`` replace each other; ``finish`` makes of them what leaves."""
    if gone.height + came.height == 0:
        return None
    gone, came = (some if some.height else like[:0] for some, like in ((gone, came), (came, gone)))
    columns = [HASH, *identity]
    both = pl.concat([gone.select(columns), came.select(columns)])
    groups = group_rows(both.select(identity), both.get_column(HASH).to_numpy())
    owners = np.empty(groups.rows, np.intp)
    owners[groups.order] = groups.ids().to_numpy()
    return replaced(finish(gone), owners[: gone.height], finish(came), owners[gone.height :], groups.hashes)

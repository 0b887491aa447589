"""The change that an epoch makes to a table: its added rows and its removed rows, as one bag with
counts.

Tasks stage a bag per slot, and the driver adds the bags up. ``SIGN`` is the number of times that a
row was added, or below 0, removed. Rows that are added and removed within the epoch cancel, in a
task and across tasks. So the bag depends neither on the slots nor on how often a key was touched.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from meander.errors import FlowError

SIGN = "__sign"
"""The column that says how often a row has come, beside the sink's own columns."""


def signed(frame: pl.DataFrame, sign: int) -> pl.DataFrame:
    """Rows that have all come (1), or are all gone (-1)."""
    return frame.with_columns(pl.lit(sign, pl.Int64).alias(SIGN))


def is_signed(frame: pl.DataFrame) -> bool:
    return SIGN in frame.columns


def net(frame: pl.DataFrame) -> pl.DataFrame:
    """The same bag with every row once.

    >>> bag = pl.DataFrame({"k": ["a", "b", "a", "b"], SIGN: [1, 1, -1, 1]})
    >>> net(bag).rows()
    [('b', 2)]
    """
    return frame.group_by(pl.exclude(SIGN), maintain_order=True).agg(pl.col(SIGN).sum()).filter(pl.col(SIGN) != 0)


def added(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Bags as one. Columns may differ where a stream has got others in between: rows of either kind stay apart."""
    return net(pl.concat(frames, how="diagonal_relaxed"))


def rows_of(bag: pl.DataFrame) -> pl.DataFrame:
    """The rows of a bag, each as often as it is there.

    >>> rows_of(pl.DataFrame({"k": ["a", "b"], SIGN: [1, 2]})).rows()
    [('a',), ('b',), ('b',)]
    """
    rows, counts = bag.drop(SIGN), bag.get_column(SIGN).to_numpy()
    return rows if (counts == 1).all() else rows[np.repeat(np.arange(len(counts)), counts)]


def check_bag(schema: pl.Schema, name: str) -> None:
    """FlowError where rows with these columns cannot be counted."""
    if SIGN in schema:
        raise FlowError(f"sink {name!r}: a column is called {SIGN!r}, which the sink needs for itself; rename it")
    for column, dtype in schema.items():
        if isinstance(dtype, pl.Object):
            raise FlowError(f"sink {name!r}: it tells rows apart by all columns, and {column!r} is {dtype}: leave it out with select first")

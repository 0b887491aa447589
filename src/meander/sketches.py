"""Sketches: states of bounded size that summarise many values, and the numpy that merges them for all groups at once.

Three of them. *Moments* are count, mean and squared distances from it: the variance, as exact as floats are.
*KMV* keeps the 1,024 smallest hashes of the values seen: how small the largest of these is tells how many
there are (standard error 3%; exact below 1,024). *Buckets* counts values in buckets that grow by a constant
factor, as DDSketch does: a quantile read from it is within 1% of the value at that rank.

The last two are sets or sums of integers underneath, so merging is associative and commutative: the same rows
give the same state bit for bit, whatever the pieces. Expressions here follow the contract of ``aggregates.Part``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

KMV_SIZE = 1024
ACCURACY = 0.01
BUCKETS = pl.List(pl.Struct({"bucket": pl.Int32(), "n": pl.Int64()}))

_LOG_GAMMA = float(np.log((1 + ACCURACY) / (1 - ACCURACY)))
# A double's logarithm lies in [-745, 710], so its bucket is within 40,000 of 0: shifted above 0, the sign of
# the bucket is the sign of the value, 0 is zero, and buckets sort as values do.
_SHIFT = 40_000
_INFINITE = 2 * _SHIFT
_HASH_SPACE = float(2**64)

Array = npt.NDArray[Any]


def kmv_init(values: pl.Expr) -> pl.Expr:
    # Hashed in one call over the whole column; nulls have a hash too, and go afterwards.
    hashes = values.map_batches(_hash, return_dtype=pl.UInt64, is_elementwise=True)
    return _smallest(hashes.filter(values.is_not_null()))


def kmv_merge(states: pl.Expr) -> pl.Expr:
    return _smallest(states.explode().drop_nulls())


def kmv_estimate(state: pl.Expr) -> pl.Expr:
    n = state.list.len().cast(pl.Int64)
    largest = state.list.last().cast(pl.Float64)
    return pl.when(n < KMV_SIZE).then(n).otherwise(((KMV_SIZE - 1) / (largest / _HASH_SPACE)).round().cast(pl.Int64))


def buckets_init(values: pl.Expr) -> pl.Expr:
    return values.implode().map_batches(_count_values, return_dtype=BUCKETS, is_elementwise=True)


def buckets_merge(states: pl.Expr) -> pl.Expr:
    return states.explode().implode().map_batches(_merge_buckets, return_dtype=BUCKETS, is_elementwise=True)


def buckets_quantile(state: pl.Expr, q: float) -> pl.Expr:
    return state.map_batches(_quantile_at(q), return_dtype=pl.Float64, is_elementwise=True)


def moments_merge(n: pl.Expr, mean: pl.Expr, m2: pl.Expr, wanted: str) -> pl.Expr:
    """The mean, or the sum of squared distances from it, of several (n, mean, m2), by Chan's formula."""
    states = pl.struct(n.implode().alias("n"), mean.implode().alias("mean"), m2.implode().alias("m2"))
    merge = _merged_mean if wanted == "mean" else _merged_m2
    return states.map_batches(merge, return_dtype=pl.Float64, is_elementwise=True)


def _merged_mean(states: pl.Series) -> pl.Series:
    return _merge_moments(states)[0]


def _merged_m2(states: pl.Series) -> pl.Series:
    return _merge_moments(states)[1]


def _merge_moments(states: pl.Series) -> tuple[pl.Series, pl.Series]:
    rows, counts = _rows_and_items(states.struct.field("n"))
    used = counts.to_numpy() > 0  # a state of no values has no mean
    rows, n = rows[used], counts.to_numpy()[used].astype(np.float64)
    mean = _rows_and_items(states.struct.field("mean"))[1].to_numpy()[used]
    m2 = _rows_and_items(states.struct.field("m2"))[1].to_numpy()[used]
    means, m2s = np.full(len(states), np.nan), np.zeros(len(states))
    if len(rows):
        starts = np.flatnonzero(np.r_[True, rows[1:] != rows[:-1]])
        spread = np.diff(np.r_[starts, len(rows)])
        # Measured from the first mean, so that one state alone gives itself back bit for bit.
        origin = mean[starts]
        merged = origin + np.add.reduceat(n * (mean - np.repeat(origin, spread)), starts) / np.add.reduceat(n, starts)
        means[rows[starts]] = merged
        m2s[rows[starts]] = np.add.reduceat(m2, starts) + np.add.reduceat(n * (mean - np.repeat(merged, spread)) ** 2, starts)
    seen = np.zeros(len(states), dtype=bool)
    seen[rows] = True
    return pl.select(pl.when(pl.Series(seen)).then(pl.Series(means)).alias(states.name)).to_series(), pl.Series(states.name, m2s)


def _smallest(hashes: pl.Expr) -> pl.Expr:
    return hashes.unique().sort().head(KMV_SIZE).implode()


def _hash(values: pl.Series) -> pl.Series:
    from meander.state.hashing import hash_series

    return pl.Series(values.name, hash_series(values), dtype=pl.UInt64)


def _rows_and_items(lists: pl.Series) -> tuple[Array, pl.Series]:
    """Every item of every list, and the number of the list it is in."""
    lengths = lists.list.len().fill_null(0).to_numpy()
    items = lists.explode(empty_as_null=False, keep_nulls=False)
    return np.repeat(np.arange(len(lists)), lengths), items


def _count_values(lists: pl.Series) -> pl.Series:
    rows, items = _rows_and_items(lists)
    values = items.cast(pl.Float64).fill_null(float("nan")).to_numpy()
    seen = ~np.isnan(values)
    buckets = _bucket(values[seen])
    return _as_lists(lists, rows[seen], buckets, np.ones(len(buckets), dtype=np.int64))


def _merge_buckets(lists: pl.Series) -> pl.Series:
    rows, items = _rows_and_items(lists)
    return _as_lists(lists, rows, items.struct.field("bucket").to_numpy(), items.struct.field("n").to_numpy())


def _as_lists(like: pl.Series, rows: Array, buckets: Array, counts: Array) -> pl.Series:
    """One sorted list of (bucket, total) per row of ``like``."""
    order = np.lexsort((buckets, rows))
    rows, buckets, counts = rows[order], buckets[order], counts[order]
    if len(rows):
        starts = np.flatnonzero(np.r_[True, (rows[1:] != rows[:-1]) | (buckets[1:] != buckets[:-1])])
        rows, buckets, counts = rows[starts], buckets[starts], np.add.reduceat(counts, starts)
    per_row = pl.DataFrame(
        {"row": rows, "bucket": buckets.astype(np.int32), "n": counts.astype(np.int64)},
        schema={"row": pl.Int64, "bucket": pl.Int32, "n": pl.Int64},
    )
    lists = per_row.group_by("row", maintain_order=True).agg(pl.struct("bucket", "n").alias("list"))
    everyone = pl.DataFrame({"row": np.arange(len(like))}, schema={"row": pl.Int64})
    joined = everyone.join(lists, on="row", how="left", maintain_order="left")
    return joined["list"].fill_null(pl.Series([[]], dtype=BUCKETS)).cast(BUCKETS).alias(like.name)


def _bucket(values: Array) -> Array:
    size = np.abs(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        bucket = np.ceil(np.log(size) / _LOG_GAMMA) + _SHIFT
    bucket = np.where(np.isinf(size), _INFINITE, np.where(size == 0, 0, bucket))
    return np.asarray(np.sign(values) * bucket).astype(np.int32)


def _middle(buckets: Array) -> Array:
    """The value that is within the accuracy of every value of the bucket."""
    size = np.abs(buckets)
    with np.errstate(over="ignore"):
        value = np.exp((size - _SHIFT) * _LOG_GAMMA) * (1 - ACCURACY)
    value = np.where(size == _INFINITE, np.inf, np.where(size == 0, 0.0, value))
    return np.asarray(np.sign(buckets) * value)


def _quantile_at(q: float) -> Callable[[pl.Series], pl.Series]:
    def quantile(lists: pl.Series) -> pl.Series:
        rows, items = _rows_and_items(lists)
        result = np.full(len(lists), np.nan)
        if len(rows):
            buckets, counts = items.struct.field("bucket").to_numpy(), items.struct.field("n").to_numpy()
            starts = np.flatnonzero(np.r_[True, rows[1:] != rows[:-1]])
            totals = np.add.reduceat(counts, starts)
            before = np.repeat(np.cumsum(totals) - totals, np.diff(np.r_[starts, len(rows)]))
            upto = np.cumsum(counts) - before
            rank = np.floor(q * (np.repeat(totals, np.diff(np.r_[starts, len(rows)])) - 1))
            reached = upto > rank
            hits = np.flatnonzero(reached & ~np.r_[False, reached[:-1] & (rows[1:] == rows[:-1])])
            result[rows[hits]] = _middle(buckets[hits])
        return pl.Series(lists.name, result, dtype=pl.Float64).fill_nan(None)

    return quantile

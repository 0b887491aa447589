"""Aggregates: what a key's rows are folded into. Public; used as ``key_by(...).aggregate(count(), sum("amount").alias("total"))``.

Nulls as in SQL: they count for nothing (``count()`` without a column counts rows); an aggregate of nulls only
is null, a list of them empty. ``collect``, ``first`` and ``last`` skip nulls too, and follow the order of rows.
"""

from __future__ import annotations

from meander.aggregates.contract import Agg, Part
from meander.aggregates.kinds import ApproximateCountDistinct, Collect, Count, CountDistinct, Extreme, Mean, Quantile, Sum, TopK, Var
from meander.aggregates.user import Aggregator, as_agg
from meander.errors import FlowError

__all__ = [
    "Agg", "Aggregator", "Part", "as_agg", "collect", "count", "count_distinct", "first", "last", "max", "mean", "min", "quantile", "std",
    "sum", "top_k", "var",
]  # fmt: skip


def count(column: str | None = None) -> Agg:
    """Rows, or with a column those where it is not null."""
    return Count(column)


def sum(column: str) -> Agg:
    """Int64 of signed integers, UInt64 of unsigned, Float64 of floats; null if there is nothing but nulls."""
    return Sum(column)


def min(column: str) -> Agg:
    """The smallest value; NaN only if there is nothing else."""
    return Extreme(column, fold="min")


def max(column: str) -> Agg:
    """The largest value; NaN only if there is nothing else."""
    return Extreme(column, fold="max")


def mean(column: str) -> Agg:
    return Mean(column)


def var(column: str) -> Agg:
    """Sample variance (n - 1); null below two values."""
    return Var(column)


def std(column: str) -> Agg:
    """Sample standard deviation; null below two values."""
    return Var(column, root=True)


def first(column: str) -> Agg:
    """The first value that is not null, in the order of rows."""
    return Extreme(column, fold="first")


def last(column: str) -> Agg:
    """The last value that is not null, in the order of rows."""
    return Extreme(column, fold="last")


def count_distinct(column: str, approximate: bool = False) -> Agg:
    """Different values. Exact keeps every one of them; approximate keeps 1,024 hashes and errs by some 3%."""
    return ApproximateCountDistinct(column) if approximate else CountDistinct(column)


def quantile(column: str, q: float) -> Agg:
    """The value at rank q, within 1% of it, from a sketch of bounded size. NaN counts for nothing."""
    if not 0.0 <= q <= 1.0:
        raise FlowError(f"quantile({column}): q is {q}; it must be between 0 and 1")
    return Quantile(column, q=float(q))


def top_k(column: str, k: int) -> Agg:
    """The k largest values, largest first."""
    if k < 1:
        raise FlowError(f"top_k({column}): k is {k}; it must be at least 1")
    return TopK(column, k=k)


def collect(column: str) -> Agg:
    """All values that are not null, in the order of rows. Grows without bound."""
    return Collect(column)

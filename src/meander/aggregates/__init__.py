"""Aggregates: what a key's rows are folded into. Public; used as ``key_by(...).aggregate(count(), sum("amount").alias("total"))``.

An aggregate is of a column, or of an expression: SQL text as in ``sum("price * quantity")``, or Polars. Then it needs an alias.

Nulls as in SQL: they count for nothing (``count()`` without a column counts rows); an aggregate of nulls only
is null, a list of them empty. ``collect``, ``first`` and ``last`` skip nulls too, and follow the order of rows.

May import: the ground (errors, clock, …) and ``sketches``. Begin with ``contract.py``, then ``kinds.py``.
"""

from __future__ import annotations

import polars as pl

from meander.aggregates.contract import Agg, Part
from meander.aggregates.kinds import ApproximateCountDistinct, Collect, Count, CountDistinct, Extreme, Mean, Quantile, Sum, TopK, Var
from meander.aggregates.user import Aggregator, as_agg
from meander.errors import FlowError

__all__ = [
    "Agg", "Aggregator", "Part", "as_agg", "avg", "collect", "count", "count_distinct", "first", "last", "max", "mean", "min", "quantile",
    "std", "sum", "top_k", "var",
]  # fmt: skip


def count(column: str | pl.Expr | None = None, where: str | pl.Expr | None = None) -> Agg:
    """Rows, or with a column those where it is not null, or those for which a condition holds: ``count(where="amount > 10")``.

    Example: ``md.count().alias("n")``.
    """
    if where is not None:
        if column is not None:
            raise FlowError(f"count({column}, where={where}): give one of them; where={where!r} may say that the column is not null")
        column = pl.when(where).then(1) if isinstance(where, pl.Expr) else f"CASE WHEN {where} THEN 1 END"
    return Count() if column is None else Count.of(column)


def sum(column: str | pl.Expr) -> Agg:
    """Int64 of signed integers, UInt64 of unsigned, Float64 of floats; null if there is nothing but nulls.

    Example: ``md.sum("amount").alias("total")``, ``md.sum("price * quantity")``.
    """
    return Sum.of(column)


def min(column: str | pl.Expr) -> Agg:
    """The smallest value; NaN only if there is nothing else: ``md.min("amount")``."""
    return Extreme.of(column, fold="min")


def max(column: str | pl.Expr) -> Agg:
    """The largest value; NaN only if there is nothing else: ``md.max("amount")``."""
    return Extreme.of(column, fold="max")


def mean(column: str | pl.Expr) -> Agg:
    """The arithmetic mean, Float64: ``md.mean("amount")``."""
    return Mean.of(column)


def avg(column: str | pl.Expr) -> Agg:
    """The same as ``mean``, under the name that it has in SQL.

    Example: ``md.avg("amount")``.
    """
    return Mean.of(column)


def var(column: str | pl.Expr) -> Agg:
    """Sample variance (n - 1); null below two values: ``md.var("amount")``."""
    return Var.of(column)


def std(column: str | pl.Expr) -> Agg:
    """Sample standard deviation; null below two values: ``md.std("amount")``."""
    return Var.of(column, root=True)


def first(column: str | pl.Expr) -> Agg:
    """The first value that is not null, in the order of rows: ``md.first("amount")``."""
    return Extreme.of(column, fold="first")


def last(column: str | pl.Expr) -> Agg:
    """The last value that is not null, in the order of rows: ``md.last("amount")``."""
    return Extreme.of(column, fold="last")


def count_distinct(column: str | pl.Expr, approximate: bool = False) -> Agg:
    """Different values. Exact keeps every one of them; approximate keeps 1,024 hashes and errs by some 3%.

    Example: ``md.count_distinct("customer", approximate=True)``.
    """
    return ApproximateCountDistinct.of(column) if approximate else CountDistinct.of(column)


def quantile(column: str | pl.Expr, q: float) -> Agg:
    """The value at rank q, within 1% of it, from a sketch of bounded size. NaN counts for nothing: ``md.quantile("amount", 0.99)``."""
    if not 0.0 <= q <= 1.0:
        raise FlowError(f"quantile({column}): q is {q}; it must be between 0 and 1")
    return Quantile.of(column, q=float(q))


def top_k(column: str | pl.Expr, k: int) -> Agg:
    """The k largest values, largest first: ``md.top_k("amount", 3)``."""
    if k < 1:
        raise FlowError(f"top_k({column}): k is {k}; it must be at least 1")
    return TopK.of(column, k=k)


def collect(column: str | pl.Expr) -> Agg:
    """All values that are not null, in the order of rows. Grows without bound: ``md.collect("product")``."""
    return Collect.of(column)

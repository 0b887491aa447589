"""The kinds of aggregates there are: the state each keeps, its expressions, and the function that makes one.

To add one, write its class and its function, and put the function's name into ``__all__``: see docs/extending.md.

Merging is associative for all of them, except that sums, means and variances of floats round differently in
another order: that order is what the engine fixes. Integers wrap at 64 bits, as everywhere in Arrow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from meander import sketches
from meander.aggregates.contract import OF_A_COLUMN, Agg, Part, Way
from meander.errors import FlowError
from meander.stored import stored

__all__ = [
    "avg", "collect", "count", "count_distinct", "first", "last", "max", "mean", "min",
    "quantile", "std", "sum", "top_k", "var",
]  # fmt: skip
"""The functions that users call, below the classes: ``md.sum`` and the JSON and SQL names of changes follow from this list."""

_INT = pl.Int64()
_FLOAT = pl.Float64()
_NO_ORDER = "changes have no order of arrival that does not depend on the epochs; use min, max or top_k"


def _numeric(dtype: pl.DataType) -> bool:
    return dtype.is_numeric()


def _summable(dtype: pl.DataType) -> bool:
    return dtype.is_numeric() or isinstance(dtype, pl.Duration)


def _orderable(dtype: pl.DataType) -> bool:
    return dtype.is_numeric() or dtype.is_temporal() or isinstance(dtype, (pl.String, pl.Boolean))


def _flat(dtype: pl.DataType) -> bool:
    return _orderable(dtype) or isinstance(dtype, pl.Binary)


def _hashable(dtype: pl.DataType) -> bool:
    return _flat(dtype) and not dtype.is_decimal()


def _anything(dtype: pl.DataType) -> bool:
    return not isinstance(dtype, pl.Null)


def _summed(agg: Agg, schema: pl.Schema) -> Way:
    """Over changes, what is summed must be exact."""
    if agg.column is not None and agg.column in schema and schema[agg.column].is_float():
        raise FlowError(
            f"{agg.call()}: over changes, floats cannot be subtracted without a rest, which would depend on the epochs; "
            "cast them to integers (cents) or to a decimal first"
        )
    return "summed"


def _sum_or_null(values: pl.Expr) -> pl.Expr:
    """Polars' sum of nulls is 0; SQL's is null, and so is ours."""
    return pl.when(values.count() > 0).then(values.sum())


@stored("count", **OF_A_COLUMN)
class Count(Agg):
    kind = "count"

    def parts(self, schema: pl.Schema) -> dict[str, Part]:
        merge = self._state("n").sum()
        if self.column is None:
            return {"n": Part(_INT, pl.len().cast(_INT), merge, "sum", ("rows", None))}
        self._dtype(schema, lambda _: True, "a column")
        return {"n": Part(_INT, self._value().count().cast(_INT), merge, "sum", ("valid", self.column))}

    def output(self, schema: pl.Schema) -> pl.DataType:
        return _INT

    def over_changes(self, schema: pl.Schema) -> Way:
        return "counted"

    def _finish(self) -> pl.Expr:
        return self._state("n")


@stored("sum", **OF_A_COLUMN)
class Sum(Agg):
    kind = "sum"

    def parts(self, schema: pl.Schema) -> dict[str, Part]:
        dtype = self.output(schema)
        return {
            "sum": Part(dtype, _sum_or_null(self._value().cast(dtype)), _sum_or_null(self._state("sum")), "sum", ("value", self.column))
        }

    def output(self, schema: pl.Schema) -> pl.DataType:
        dtype = self._dtype(schema, _summable, "a number or a duration")
        if dtype.is_signed_integer():
            return _INT
        if dtype.is_unsigned_integer():
            return pl.UInt64()
        if isinstance(dtype, pl.Decimal):
            return pl.Decimal(38, dtype.scale)
        return _FLOAT if dtype.is_float() else dtype

    def over_changes(self, schema: pl.Schema) -> Way:
        return _summed(self, schema)

    def _finish(self) -> pl.Expr:
        return self._state("sum")


@stored("extreme", **OF_A_COLUMN)
@dataclass(frozen=True, eq=False)
class Extreme(Agg):
    """min, max, first and last: one column, folded the same way at every step."""

    fold: str = "min"

    def _fold(self, values: pl.Expr) -> pl.Expr:
        return {
            "min": values.min,
            "max": values.max,
            "first": values.drop_nulls().first,
            "last": values.drop_nulls().last,
        }[self.fold]()

    def parts(self, schema: pl.Schema) -> dict[str, Part]:
        return {
            "value": Part(
                self.output(schema), self._fold(self._value()), self._fold(self._state("value")), self.fold, ("value", self.column)
            )
        }

    def output(self, schema: pl.Schema) -> pl.DataType:
        if self.fold in ("first", "last"):
            return self._dtype(schema, _anything, "a type")
        return self._dtype(schema, _orderable, "something that has an order")

    def over_changes(self, schema: pl.Schema) -> Way:
        if self.fold in ("first", "last"):
            raise self._cannot_forget(_NO_ORDER)
        return "as a bag"

    def fold_values(self, values: pl.Expr, numbers: pl.Expr) -> pl.Expr:
        return values.min() if self.fold == "min" else values.max()  # NaN only if there is nothing else

    def _finish(self) -> pl.Expr:
        return self._state("value")

    def _default_name(self) -> str:
        return f"{self.fold}_{self.column}"

    def call(self) -> str:
        return f"{self.fold}({self.column})"


@stored("mean", **OF_A_COLUMN)
class Mean(Agg):
    kind = "mean"

    def parts(self, schema: pl.Schema) -> dict[str, Part]:
        given = self._dtype(schema, _numeric, "a number")
        dtype = pl.Decimal(38, given.scale) if isinstance(given, pl.Decimal) else _FLOAT  # decimals are exact until they are divided
        return {
            "n": Part(_INT, self._value().count().cast(_INT), self._state("n").sum(), "sum", ("valid", self.column)),
            "sum": Part(dtype, _sum_or_null(self._value().cast(dtype)), _sum_or_null(self._state("sum")), "sum", ("value", self.column)),
        }

    def output(self, schema: pl.Schema) -> pl.DataType:
        return _FLOAT

    def over_changes(self, schema: pl.Schema) -> Way:
        return _summed(self, schema)

    def _finish(self) -> pl.Expr:
        return self._state("sum").cast(_FLOAT) / self._state("n")


@stored("variance", **OF_A_COLUMN)
@dataclass(frozen=True, eq=False)
class Var(Agg):
    """Sample variance by Chan's merge of (n, mean, m2): stable where the sum of squares is not."""

    kind: ClassVar[str] = "var"
    root: bool = False

    def parts(self, schema: pl.Schema) -> dict[str, Part]:
        self._dtype(schema, _numeric, "a number")
        x = self._value().cast(_FLOAT)
        n, mean, m2 = self._state("n"), self._state("mean"), self._state("m2")
        return {
            "n": Part(_INT, self._value().count().cast(_INT), n.sum(), "sum", ("valid", self.column)),
            "mean": Part(_FLOAT, x.mean(), sketches.moments_merge(n, mean, m2, "mean")),
            "m2": Part(_FLOAT, (x.var(ddof=0) * x.count()).fill_null(0.0), sketches.moments_merge(n, mean, m2, "m2")),
        }

    def output(self, schema: pl.Schema) -> pl.DataType:
        return _FLOAT

    def over_changes(self, schema: pl.Schema) -> Way:
        raise self._cannot_forget("its state is floats, from which nothing can be subtracted without a rest")

    def _finish(self) -> pl.Expr:
        value = pl.when(self._state("n") > 1).then(self._state("m2") / (self._state("n") - 1))
        return value.sqrt() if self.root else value

    def memory(self) -> str:
        return f"moments({self.column})"

    def _default_name(self) -> str:
        return f"{'std' if self.root else 'var'}_{self.column}"

    def call(self) -> str:
        return f"{'std' if self.root else 'var'}({self.column})"


@stored("count_distinct", **OF_A_COLUMN)
class CountDistinct(Agg):
    """Every value is a row of a table of its own: a value that is there already costs a lookup, whatever else its key has."""

    kind = "count_distinct"
    keeps = "set"

    def parts(self, schema: pl.Schema) -> dict[str, Part]:
        dtype = self._dtype(schema, _flat, "a flat type that has a stable hash")
        merge = self._state("values").explode().drop_nulls().unique(maintain_order=True).implode()
        return {"values": Part(pl.List(dtype), self._value().drop_nulls().unique(maintain_order=True).implode(), merge)}

    def output(self, schema: pl.Schema) -> pl.DataType:
        return _INT

    def over_changes(self, schema: pl.Schema) -> Way:
        return "as a bag"

    def fold_values(self, values: pl.Expr, numbers: pl.Expr) -> pl.Expr:
        return pl.len().cast(_INT)

    def fold_none(self, dtype: pl.DataType) -> pl.Expr:
        return pl.lit(0, dtype)

    def _finish(self) -> pl.Expr:
        return self._state("n")


@stored("approximate_count_distinct", **OF_A_COLUMN)
class ApproximateCountDistinct(Agg):
    kind = "count_distinct"

    def parts(self, schema: pl.Schema) -> dict[str, Part]:
        self._dtype(schema, _hashable, "a flat type that has a stable hash")
        return {"hashes": Part(pl.List(pl.UInt64), sketches.kmv_init(self._value()), sketches.kmv_merge(self._state("hashes")))}

    def output(self, schema: pl.Schema) -> pl.DataType:
        return _INT

    def call(self) -> str:
        return f"count_distinct({self.column}, approximate=True)"

    def over_changes(self, schema: pl.Schema) -> Way:
        raise self._cannot_forget("a sketch of hashes cannot forget; use count_distinct(...) without approximate=True")

    def _finish(self) -> pl.Expr:
        return sketches.kmv_estimate(self._state("hashes"))


@stored("quantile", **OF_A_COLUMN)
@dataclass(frozen=True, eq=False)
class Quantile(Agg):
    kind: ClassVar[str] = "quantile"
    q: float = 0.5

    def parts(self, schema: pl.Schema) -> dict[str, Part]:
        self._dtype(schema, _numeric, "a number")
        init = sketches.buckets_init(self._value().cast(_FLOAT))
        return {"buckets": Part(sketches.BUCKETS, init, sketches.buckets_merge(self._state("buckets")))}

    def output(self, schema: pl.Schema) -> pl.DataType:
        return _FLOAT

    def memory(self) -> str:
        return f"quantiles({self.column})"

    def over_changes(self, schema: pl.Schema) -> Way:
        return "in buckets"

    def _finish(self) -> pl.Expr:
        return sketches.buckets_quantile(self._state("buckets"), self.q)


@stored("top_k", **OF_A_COLUMN)
@dataclass(frozen=True, eq=False)
class TopK(Agg):
    kind: ClassVar[str] = "top_k"
    k: int = 1

    def _top(self, values: pl.Expr) -> pl.Expr:
        return values.drop_nulls().sort(descending=True).head(self.k).implode()

    def parts(self, schema: pl.Schema) -> dict[str, Part]:
        return {"values": Part(self.output(schema), self._top(self._value()), self._top(self._state("values").explode()))}

    def output(self, schema: pl.Schema) -> pl.DataType:
        return pl.List(self._dtype(schema, _orderable, "something that has an order"))

    def over_changes(self, schema: pl.Schema) -> Way:
        return "as a bag"

    def fold_values(self, values: pl.Expr, numbers: pl.Expr) -> pl.Expr:
        return values.repeat_by(numbers.clip(upper_bound=self.k)).explode().sort(descending=True).head(self.k).implode()

    def fold_none(self, dtype: pl.DataType) -> pl.Expr:
        return pl.lit(pl.Series([[]], dtype=dtype)).first()

    def _finish(self) -> pl.Expr:
        return self._state("values")


@stored("collect", **OF_A_COLUMN)
class Collect(Agg):
    """Every value is a row of a table of its own. A key costs the writing of its new values and the
    reading of all its values when it is emitted."""

    kind = "collect"
    keeps = "list"

    def parts(self, schema: pl.Schema) -> dict[str, Part]:
        merge = self._state("values").explode().drop_nulls().implode()
        return {"values": Part(self.output(schema), self._value().drop_nulls().implode(), merge)}

    def output(self, schema: pl.Schema) -> pl.DataType:
        return pl.List(self._dtype(schema, _flat, "a flat type"))

    def over_changes(self, schema: pl.Schema) -> Way:
        raise self._cannot_forget(_NO_ORDER)

    def _finish(self) -> pl.Expr:
        return self._state("values")


# -- what users call ----------------------------------------------------------------------------------------------


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

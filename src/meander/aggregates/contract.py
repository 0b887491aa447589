"""The contract between an aggregate and the engine: parts of state, and how they begin, merge and end.

An aggregate is a few state columns (*parts*). ``init`` makes them from the rows of a group, ``merge`` makes
one state of several, ``finish`` makes the value. The engine applies ``init`` to fixed pieces of the input and
``merge`` in a fixed order.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import polars as pl

from meander.errors import FlowError
from meander.familiar.values import named
from meander.plan.code import NO_CODE, Code

OF_A_COLUMN: Mapping[str, Any] = {"called": {"expr": "expression"}, "sql": "column"}
"""How aggregates are stored: ``@stored("sum", **OF_A_COLUMN)``. What they are of may have been written as SQL."""

Way = Literal["counted", "summed", "in buckets", "as a bag"]
"""How an aggregate's state is kept over a stream of changes: see ``changing``."""


@dataclass(frozen=True, eq=False)
class Part:
    """One state column of an aggregate.

    ``init`` runs in ``group_by(...).agg`` over input columns, ``merge`` in the same context over state columns
    named ``{alias}.{part}``, several states in order. ``fold`` is set where merge is nothing but that fold of
    this column, nulls ignored and all-null giving null. ``lift`` is set where init is a fold too: of 1 per row
    (``rows``), of 1 where the column is not null and 0 where it is (``valid``), or of the column cast to dtype
    (``value``). Both let the engine take faster ways to the same result.
    """

    dtype: pl.DataType
    init: pl.Expr
    merge: pl.Expr
    fold: str | None = None
    lift: tuple[str, str | None] | None = None
    empty: pl.Series | None = None
    """The state of no rows, where that is not null: the value of existing keys in a column that a
    later version of the plan added."""


@dataclass(frozen=True, eq=False)
class Agg:
    """An aggregate under a name. ``alias`` returns a renamed copy.

    Example: ``md.sum("amount").alias("total")`` is a ``md.Agg``.
    """

    kind: ClassVar[str] = "aggregate"
    keeps: ClassVar[str | None] = None
    """Set where the number of values a key has is unbounded: its part ``values``, a list, is then not stored in the key's row but as rows
    of a table of its own, and the key's row has their number as ``n``. ``"set"`` keeps every value once, and ``finish`` sees ``n`` only;
    ``"list"`` keeps all of them in order, and ``finish`` sees ``values``."""
    column: str | None = None
    label: str | None = None
    expr: pl.Expr | None = None
    """The expression of a computed column; when rows are folded, its values are in the column
    ``column``."""

    @classmethod
    def of(cls, column: str | pl.Expr, **options: Any) -> Agg:
        """Make it of a column's name, of SQL text or of a Polars expression. Names and SQL text are
        told apart later, when the input's columns are known."""
        if not isinstance(column, pl.Expr):
            if not isinstance(column, str):
                raise FlowError(f"{cls.kind}({named(column)}): it is of a column's name, of SQL text, or of a Polars expression")
            return cls(column, **options)
        if column.meta.is_column():
            return cls(column.meta.output_name(), **options)
        # Two expressions can print alike, so the digest is part of the label.
        sign = hashlib.sha256(column.meta.serialize(format="json").encode()).hexdigest()[:8]
        return cls(f"{column} #{sign}", expr=column, **options)

    def alias(self, name: str) -> Agg:
        """A copy whose value is in the column ``name``."""
        if not name:
            raise FlowError(f"{self.call()}: an alias must not be empty")
        return dataclasses.replace(self, label=name)

    @property
    def name(self) -> str:
        return self.label or self._default_name()

    def inputs(self) -> tuple[str, ...]:
        """The input columns it reads."""
        if self.expr is not None:
            return tuple(self.expr.meta.root_names())
        return () if self.column is None else (self.column,)

    def parts(self, schema: pl.Schema) -> dict[str, Part]:
        """The state columns, in order; FlowError on an unknown column or an unsuitable type."""
        raise NotImplementedError

    def state_columns(self, schema: pl.Schema) -> list[str]:
        """The names of all columns that its state may have in any table."""
        return [f"{self.name}.{part}" for part in (*self.parts(schema), *(("n", "nth", "value") if self.keeps else ()))]

    def output(self, schema: pl.Schema) -> pl.DataType:
        raise NotImplementedError

    def finish(self) -> pl.Expr:
        """Row by row from state columns to the value, under ``name``."""
        return self._finish().alias(self.name)

    def describe(self) -> str:
        return f"{self.call()} as {self.name}"

    def memory(self) -> str:
        """A description of its state. Aggregates with equal ``memory`` can continue each other's
        state; their finished values may differ."""
        return self.call()

    def code(self) -> Code:
        """The Python code that decides its results beside ``describe``; none for a built-in one. For digests."""
        return NO_CODE

    def over_changes(self, schema: pl.Schema) -> Way:
        """How its state is kept over a stream of changes; FlowError with the reason where that cannot be exact."""
        raise self._cannot_forget("an aggregator of your own has no way to take rows back")

    def fold_values(self, values: pl.Expr, numbers: pl.Expr) -> pl.Expr:
        """For ``"as a bag"``: the result, from a group's different values, ascending, and their numbers."""
        raise NotImplementedError

    def fold_none(self, dtype: pl.DataType) -> pl.Expr:
        """For ``"as a bag"``: the result where a group has no values."""
        return pl.lit(None, dtype)

    def _cannot_forget(self, why: str) -> FlowError:
        return FlowError(f"{self.call()}: it cannot be kept over changes: {why}")

    def _finish(self) -> pl.Expr:
        raise NotImplementedError

    def _default_name(self) -> str:
        return self.kind if self.column is None else f"{self.kind}_{self.column}"

    def call(self) -> str:
        """``sum(amount)``: how it is named in messages."""
        options = [f"{f.name}={getattr(self, f.name)}" for f in dataclasses.fields(self) if f.name not in ("column", "label", "expr")]
        return f"{self.kind}({', '.join(([self.column] if self.column else []) + options)})"

    def _state(self, part: str) -> pl.Expr:
        return pl.col(f"{self.name}.{part}")

    def _dtype(self, schema: pl.Schema, suits: Callable[[pl.DataType], bool], needs: str) -> pl.DataType:
        assert self.column is not None
        if self.expr is not None:
            schema = pl.Schema({**schema, self.column: self._learned(self.expr, schema)})
        if self.column not in schema:
            raise FlowError(f"{self.call()}: there is no column {self.column!r}; columns are {', '.join(schema)}")
        dtype = schema[self.column]
        if not suits(dtype):
            raise FlowError(f"{self.call()}: column {self.column!r} is {dtype}; it needs {needs}: cast it first")
        return dtype

    def _learned(self, expr: pl.Expr, schema: pl.Schema) -> pl.DataType:
        try:
            (dtype,) = schema.to_frame().select(expr).dtypes
        except Exception as error:
            raise FlowError(f"{self.call()}: {str(error).splitlines()[0]}; columns are {', '.join(schema)}") from error
        return dtype

    def _value(self) -> pl.Expr:
        assert self.column is not None
        return pl.col(self.column)

"""Columns dropped, renamed and exploded: the operators behind ``Stream.drop``, ``rename`` and
``explode``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from meander.errors import FlowError
from meander.familiar.values import no_column_name
from meander.plan.code import NO_CODE, Code
from meander.plan.operators import MapBatches, Select, expect_inputs
from meander.plan.schemas import missing_column, show_type
from meander.stored import stored


@stored("exploded")
@dataclass(frozen=True)
class Exploded:
    """Lists as rows of their own, in order."""

    columns: tuple[str, ...]
    keep_empty: bool

    def __call__(self, frame: pl.DataFrame) -> pl.DataFrame:
        if not self.keep_empty:
            # Where one list has items and another has none they differ in length, which is for ``explode`` to refuse.
            frame = frame.filter(pl.any_horizontal([self._items(column, frame.schema[column]) > 0 for column in self.columns]))
        return frame.explode(self.columns, empty_as_null=True, keep_nulls=True)

    def _items(self, column: str, dtype: pl.DataType) -> pl.Expr:
        """How many items a list has; an array that is null has none."""
        if isinstance(dtype, pl.List):
            return pl.col(column).list.len().fill_null(0)
        assert isinstance(dtype, pl.Array)
        return pl.when(pl.col(column).is_not_null()).then(dtype.size).otherwise(0)


@stored("explode", called={"fn": "function", "written": "code"})
@dataclass(frozen=True, eq=False)
class Explode(MapBatches):
    """One row per item of a list."""

    kind: ClassVar[str] = "explode"
    carries: ClassVar[bool] = True

    @property
    def exploded(self) -> Exploded:
        assert isinstance(self.fn, Exploded)
        return self.fn

    def output_schema(self, inputs: list[pl.Schema], name: str) -> pl.Schema:
        (schema,) = expect_inputs(self.kind, name, inputs, 1)
        output = dict(schema)
        for column in self.exploded.columns:
            if column not in schema:
                raise FlowError(f"explode {name!r}: {missing_column(column, schema)}")
            dtype = schema[column]
            if not isinstance(dtype, pl.List | pl.Array):
                hint = "; split text first, as in with_columns(pl.col('tags').str.split(','))" if dtype == pl.String else ""
                raise FlowError(f"explode {name!r}: column {column!r} is {show_type(dtype)}; a List or an Array is needed{hint}")
            output[column] = pl.Schema({column: dtype.inner})[column]
        return pl.Schema(output)

    def describe(self) -> str:
        return ", ".join(self.exploded.columns) + (", empty ones too" if self.exploded.keep_empty else "")

    def canonical(self) -> str:
        return f"{list(self.exploded.columns)} {self.exploded.keep_empty}"

    def code(self) -> Code:
        return NO_CODE


def plan_explode(columns: Sequence[str], keep_empty: bool, what: str) -> Explode:
    """The operator; FlowError where no columns are given, or no names."""
    if not columns:
        raise FlowError(f"{what}: say which column, as in explode('tags')")
    _check_names(columns, what)
    if len(set(columns)) < len(columns):
        raise FlowError(f"{what}: a column is given twice")
    return Explode(Exploded(tuple(columns), bool(keep_empty)), None, True, True)


def plan_drop(columns: Sequence[str], schema: pl.Schema, what: str) -> Select:
    """All columns but these."""
    if not columns:
        raise FlowError(f"{what}: say which columns, as in drop('note')")
    _check_there(columns, schema, what)
    kept = [column for column in schema if column not in columns]
    if not kept:
        raise FlowError(f"{what}: no column would be left")
    return Select(tuple(pl.col(column) for column in kept), f"all but {', '.join(dict.fromkeys(columns))}")


def plan_rename(names: Mapping[str, str], schema: pl.Schema, what: str) -> Select:
    """All columns, some under new names."""
    if not isinstance(names, Mapping):
        raise FlowError(f"{what}: give old and new names as a dict, as in rename({{'amount': 'total'}})")
    if not names:
        raise FlowError(f"{what}: say which columns, as in rename({{'amount': 'total'}})")
    _check_there(tuple(names), schema, what)
    _check_names(tuple(names.values()), what)
    made: set[str] = set()
    for column in schema:
        new = names.get(column, column)
        if new in made:
            raise FlowError(f"{what}: two columns would be named {new!r}; drop one, or give it another name")
        made.add(new)
    exprs = (pl.col(column).alias(names[column]) if names.get(column, column) != column else pl.col(column) for column in schema)
    return Select(tuple(exprs), ", ".join(f"{old} as {new}" for old, new in names.items()) + ", and all others")


def _check_there(columns: Sequence[str], schema: pl.Schema, what: str) -> None:
    _check_names(columns, what)
    for column in columns:
        if column not in schema:
            raise FlowError(f"{what}: {missing_column(column, schema)}")


def _check_names(columns: Sequence[str], what: str) -> None:
    for column in columns:
        if type(column) is not str or not column:
            raise FlowError(f"{what}: {no_column_name(column)}")

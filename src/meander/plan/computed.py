"""Aggregates over expressions: ``sum("price * quantity")``. The columns that are computed before rows are folded. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import polars as pl

from meander.aggregates import Agg
from meander.errors import FlowError
from meander.plan.expressions import is_name, parse
from meander.plan.rowlocal import batch_dependence


def resolved(aggs: Iterable[Agg], schema: pl.Schema) -> tuple[Agg, ...]:
    """The aggregates, with an expression for each whose argument is SQL text and not a column of
    this input."""
    return tuple(_resolved(agg, schema) for agg in aggs)


def _resolved(agg: Agg, schema: pl.Schema) -> Agg:
    text = agg.column
    if agg.expr is None and text is not None and text not in schema and not is_name(text):
        agg = dataclasses.replace(agg, expr=parse(text, schema))
    if agg.expr is not None and agg.label is None:
        raise FlowError(f"{agg.call()}: give it a name, as in .alias('total')")
    return agg


def check_row_local(agg: Agg, schema: pl.Schema) -> None:
    """FlowError where an expression looks at other rows than its own."""
    if agg.expr is not None and (found := batch_dependence(agg.expr, schema)) is not None:
        raise FlowError(
            f"{agg.call()}: it contains {found}, which is not row-local; aggregate a column, or an expression of one row's columns"
        )


def computed(aggs: Iterable[Agg]) -> tuple[pl.Expr, ...]:
    """The columns that aggregates need beside those of their input."""
    found = {agg.column: agg.expr for agg in aggs if agg.expr is not None and agg.column is not None}
    return tuple(expr.alias(name) for name, expr in found.items())


def with_computed(schema: pl.Schema, aggs: Iterable[Agg]) -> pl.Schema:
    """The columns of an input, and those."""
    exprs = computed(aggs)
    return schema.to_frame().with_columns(*exprs).schema if exprs else schema

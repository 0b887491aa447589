"""Expressions as users write them: SQL text or Polars, and what a person is shown of them."""

from __future__ import annotations

import re
from collections.abc import Mapping

import polars as pl

from meander.errors import FlowError

Expression = pl.Expr | str
_CLOCK = re.compile(r"\b(now\s*\(|current_(timestamp|date|time)\b)", re.IGNORECASE)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_all(exprs: tuple[Expression, ...], named: Mapping[str, Expression], schema: pl.Schema | None = None) -> tuple[pl.Expr, ...]:
    return (*(parse(expr, schema) for expr in exprs), *(parse(expr, schema).alias(name) for name, expr in named.items()))


def parse(given: Expression, schema: pl.Schema | None = None) -> pl.Expr:
    """An expression of SQL text; a text that is a column's name is that column, whatever SQL makes of it."""
    if isinstance(given, pl.Expr):
        return given
    if not isinstance(given, str):
        raise FlowError(f"{given!r} is neither SQL text nor a Polars expression; wrap a constant in pl.lit(...)")
    if _PLAIN.fullmatch(given) or (schema is not None and given in schema):
        return pl.col(given)
    if (clock := _CLOCK.search(_QUOTED.sub("", given))) is not None:
        raise FlowError(
            f"{given!r}: {clock.group()} would be the time at which the flow was written, for ever; take the time from a column"
        )
    try:
        return pl.sql_expr(given)
    except Exception as error:
        raise FlowError(
            f"{given!r} is not an SQL expression: {str(error).splitlines()[0]}; a Polars expression may say it instead"
        ) from error


def is_name(text: str) -> bool:
    """Whether a text is the name of one column, and no expression. A column may have other names, too."""
    return _PLAIN.fullmatch(text) is not None


def text_of(exprs: tuple[Expression, ...], named: Mapping[str, Expression]) -> str:
    """What the user wrote, for explain and status."""
    return ", ".join([*map(str, exprs), *(f"{expr} as {name}" for name, expr in named.items())])

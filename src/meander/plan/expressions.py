"""Expressions as users write them, SQL text or Polars, and their text for messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from meander.errors import FlowError
from meander.familiar.values import no_expression

Expression = pl.Expr | str
_CLOCK = re.compile(r"\b(now\s*\(|current_(timestamp|date|time)\b)", re.IGNORECASE)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_PARTS = re.compile(r"('[^']*'|\"[^\"]*\")")
_SPACES = re.compile(r"\s+")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_all(
    exprs: tuple[Expression | Sequence[Expression], ...], named: Mapping[str, Expression], schema: pl.Schema | None = None
) -> tuple[pl.Expr, ...]:
    return (*(parse(expr, schema) for expr in flat(exprs)), *(parse(expr, schema).alias(name) for name, expr in named.items()))


def parse(given: Expression, schema: pl.Schema | None = None) -> pl.Expr:
    """An expression of SQL text; a text that is a column's name is that column, whatever SQL makes of it."""
    if isinstance(given, pl.Expr):
        return given
    if not isinstance(given, str):
        raise FlowError(no_expression(given))
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


def flat(given: Iterable[Any]) -> Iterator[Any]:
    """Expressions that came one by one, or in lists, as PySpark and Polars take them, too.

    >>> list(flat(("a", ["b", "c"])))
    ['a', 'b', 'c']
    """
    for one in given:
        if isinstance(one, list | tuple):
            yield from one
        else:
            yield one


def is_name(text: str) -> bool:
    """Whether a text is the name of one column, and no expression. A column may have other names, too."""
    return _PLAIN.fullmatch(text) is not None


def one_space(sql: str) -> str:
    """The text with one space for any number of them, but in what is quoted.

    >>> one_space("a  >\\n 1 AND s = 'x  y'")
    "a > 1 AND s = 'x  y'"
    """
    return "".join(_SPACES.sub(" ", part) if n % 2 == 0 else part for n, part in enumerate(_PARTS.split(sql)))


def text_of(exprs: tuple[Expression | Sequence[Expression], ...], named: Mapping[str, Expression]) -> str:
    """The expression as the user wrote it, for explain and status."""
    return ", ".join([*map(str, flat(exprs)), *(f"{expr} as {name}" for name, expr in named.items())])


def sql_of(exprs: tuple[Expression | Sequence[Expression], ...], named: Mapping[str, Expression]) -> tuple[str | None, ...]:
    """Of every expression, the text that the user wrote; None where it was no text."""
    return tuple(expr if isinstance(expr, str) else None for expr in (*flat(exprs), *named.values()))

"""Expressions as data: a column, SQL text where the user gave SQL, or else Polars' own form with the version that wrote it.

An expression that calls Python functions is code, and has no form of its own. Polars would run what it finds in its own form, so that is
read only where code may be run.
"""

from __future__ import annotations

import base64
import io
import json
import warnings
from collections.abc import Iterable
from typing import Any

import polars as pl

from meander.errors import ConfigError

_CALLS_PYTHON = b"PLPY"
"""Polars marks the functions that it has pickled so. Text in an expression may say the same; then it counts as code, too."""


def calls_python(expr: pl.Expr) -> bool:
    return _CALLS_PYTHON in expr.meta.serialize()


def write_expression(expr: pl.Expr, texts: Iterable[str | None]) -> dict[str, Any]:
    """``texts`` is what it may have been written as: SQL is preferred where it means the same.

    >>> write_expression(pl.col("a") > 10, ["a > 10"]), write_expression(pl.col("a").alias("b"), [])
    ({'$sql': 'a > 10', 'as': None}, {'$column': 'a', 'as': 'b'})
    """
    packed = expr.meta.serialize()
    shown = _as_json(expr)
    name = None if expr.meta.has_multiple_outputs() else expr.meta.output_name(raise_if_undetermined=False)
    plain = expr.meta.undo_aliases()
    if plain.meta.is_column() and (column := plain.meta.output_name()) and not column.startswith("^"):
        for alias in (None, name):
            if _as_json(_named(pl.col(column), alias)) == shown:
                return {"$column": column, "as": alias}
    for text in texts:
        for alias in (None, name):
            if text is not None and (found := _of_sql(text)) is not None and _as_json(_named(found, alias)) == shown:
                return {"$sql": text, "as": alias}
    return {"$expression": {"polars": pl.__version__, **_own_form(expr, shown, packed)}}


def read_expression(data: Any, what: str, run_code: bool) -> pl.Expr:
    """ConfigError where this version of Polars cannot read it, or where reading it would run code and must not."""
    match data:
        case {"$column": column, "as": alias}:
            return _named(pl.col(column), alias)
        case {"$sql": text, "as": alias}:
            try:
                return _named(pl.sql_expr(text), alias)
            except Exception as error:
                raise ConfigError(f"{what}: Polars {pl.__version__} does not understand {text!r}: {error}") from error
        case {"$expression": {"polars": version, **form}} if run_code:
            try:
                if "json" in form:
                    return _from_json(json.dumps(form["json"]))
                return pl.Expr.deserialize(io.BytesIO(base64.b64decode(str(form["binary"]))))
            except pl.exceptions.PolarsError as error:
                raise ConfigError(
                    f"{what}: an expression was stored by Polars {version}, and Polars {pl.__version__} cannot read it ({error}): use "
                    f"Polars {version}, or write the expression as SQL text, which every version reads"
                ) from error
    raise ConfigError(f"{what}: it has an expression in Polars' own form, which may hold code; it is not read here")


def _own_form(expr: pl.Expr, shown: str | None, packed: bytes) -> dict[str, Any]:
    """JSON where that is all of it: it has no NaN, for one."""
    if shown is not None:
        try:
            if _from_json(shown).meta.serialize() == packed:
                return {"json": json.loads(shown)}
        except (pl.exceptions.PolarsError, ValueError):
            pass
    return {"binary": base64.b64encode(packed).decode()}


def _as_json(expr: pl.Expr) -> str | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return expr.meta.serialize(format="json")
        except pl.exceptions.PolarsError:
            return None


def _from_json(text: str) -> pl.Expr:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pl.Expr.deserialize(io.StringIO(text), format="json")


def _of_sql(text: str) -> pl.Expr | None:
    try:
        return pl.sql_expr(text)
    except Exception:  # what Polars raises for text that is no SQL is its own business
        return None


def _named(expr: pl.Expr, alias: str | None) -> pl.Expr:
    return expr if alias is None else expr.alias(alias)

"""Messages about columns, for plan nodes and aggregates: the text of a schema, and the error for a
missing column.

Pure. Every message about a column comes from here, so that all of them name what is there instead.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import polars as pl

KEY_TYPES = "integers, booleans, strings, binary, floats, dates, datetimes and durations, and structs of these"


def show_schema(schema: pl.Schema) -> str:
    """``amount (Float64), customer (String)``; long schemas are cut, since a message is read by a person."""
    shown = [f"{name} ({show_type(dtype)})" for name, dtype in schema.items()]
    if len(shown) > 20:
        shown = [*shown[:20], f"and {len(shown) - 20} more"]
    return ", ".join(shown) if shown else "none"


def show_type(dtype: pl.DataType) -> str:
    """``Datetime(us)`` and ``List(String)``: Polars' names without its keyword arguments."""
    if isinstance(dtype, pl.Datetime):
        return f"Datetime({dtype.time_unit}{', ' + dtype.time_zone if dtype.time_zone else ''})"
    if isinstance(dtype, pl.Duration):
        return f"Duration({dtype.time_unit})"
    if isinstance(dtype, pl.List):
        return f"List({show_type(pl.Schema({'x': dtype.inner})['x'])})"
    return str(dtype)


def missing_column(column: str, schema: pl.Schema) -> str:
    return f"there is no column {column!r}; columns are {show_schema(schema)}{did_you_mean(column, schema)}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'amount'?`` where something close is known, else nothing."""
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if not close:  # case is the commonest mistake that the ratio misses
        close = [name for name in known if name.casefold() == word.casefold()]
    return f"; did you mean {close[0]!r}?" if close else ""


def is_key_type(dtype: pl.DataType) -> bool:
    """Whether the stable hash defines this type: a key must hash the same on every machine, for ever."""
    if isinstance(dtype, pl.Struct):
        return bool(dtype.fields) and all(is_key_type(pl.Schema({"x": field.dtype})["x"]) for field in dtype.fields)
    if dtype.is_integer():
        return not isinstance(dtype, (pl.Int128, pl.UInt128))
    return isinstance(dtype, (pl.Boolean, pl.String, pl.Binary, pl.Float32, pl.Float64, pl.Date, pl.Datetime, pl.Duration))

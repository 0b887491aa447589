"""Types as people write them in a processor: ``"int64"``, ``"string"`` or a Polars type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from meander.errors import FlowError

NAMES: dict[str, pl.DataType] = {
    "string": pl.String(),
    "int64": pl.Int64(),
    "bigint": pl.Int64(),
    "long": pl.Int64(),
    "int32": pl.Int32(),
    "int": pl.Int32(),
    "int16": pl.Int16(),
    "int8": pl.Int8(),
    "uint64": pl.UInt64(),
    "uint32": pl.UInt32(),
    "double": pl.Float64(),
    "float64": pl.Float64(),
    "float": pl.Float32(),
    "float32": pl.Float32(),
    "boolean": pl.Boolean(),
    "bool": pl.Boolean(),
    "timestamp": pl.Datetime("us"),
    "date": pl.Date(),
    "duration": pl.Duration("us"),
    "binary": pl.Binary(),
}


def type_of(given: Any, what: str) -> pl.DataType:
    """
    >>> type_of("double", "n"), type_of(pl.Int64, "n")
    (Float64, Int64)
    """
    if isinstance(given, str) and given.lower() in NAMES:
        return NAMES[given.lower()]
    if isinstance(given, str):
        raise FlowError(f"{what}: unknown type {given!r}; there are {', '.join(NAMES)}, or give a Polars type")
    try:
        return pl.Schema({"x": given})["x"]
    except TypeError as error:
        raise FlowError(f"{what}: {given!r} is not a type; give one of {', '.join(NAMES)}, or a Polars type") from error


def schema_of(given: Any, what: str) -> pl.Schema:
    """Columns and their types."""
    if not isinstance(given, Mapping):
        raise FlowError(f"{what}: {given!r} does not say columns and types; write {{'n': 'int64'}}")
    return pl.Schema({name: type_of(dtype, f"{what}, column {name!r}") for name, dtype in given.items()})

"""Schemas as PySpark users write them: DDL text and ``StructType``, turned into columns and Polars types.

Sources call ``as_columns`` on what they were given; a mapping passes through untouched. A ``StructType`` is known by what it can do,
not by its class: nothing here imports Spark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import polars as pl

from meander.errors import FlowError

TYPES: dict[str, pl.DataType] = {
    "string": pl.String(),
    "varchar": pl.String(),
    "char": pl.String(),
    "double": pl.Float64(),
    "float": pl.Float32(),
    "real": pl.Float32(),
    "bigint": pl.Int64(),
    "long": pl.Int64(),
    "int": pl.Int32(),
    "integer": pl.Int32(),
    "smallint": pl.Int16(),
    "short": pl.Int16(),
    "tinyint": pl.Int8(),
    "byte": pl.Int8(),
    "boolean": pl.Boolean(),
    "timestamp": pl.Datetime("us"),
    "timestamp_ntz": pl.Datetime("us"),
    "date": pl.Date(),
    "binary": pl.Binary(),
}
_COLUMN = re.compile(
    r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<plain>\w+))\s*(?::\s*|\s)\s*"
    r"(?P<type>[A-Za-z_]+)(?:\s*\(\s*(?P<size>\d+(?:\s*,\s*\d+)?)\s*\))?"
    r"(?:\s+NOT\s+NULL)?(?:\s+COMMENT\s+'[^']*')?\s*",
    re.IGNORECASE,
)
_NEXT = re.compile(r"\s*(?:,|$)")


def as_columns(schema: Any) -> Mapping[str, Any]:
    """Columns and their types, in order.

    >>> dict(as_columns("customer string, amount double NOT NULL"))
    {'customer': String, 'amount': Float64}
    >>> as_columns({"amount": "double"})
    {'amount': 'double'}
    """
    if isinstance(schema, Mapping):
        return schema
    if isinstance(schema, str):
        return _of_text(schema)
    if hasattr(schema, "fieldNames") and hasattr(schema, "fields"):
        return _unique((field.name, _type(field.name, *_split(field.dataType.simpleString()))) for field in schema.fields)
    raise FlowError(f"schema={schema!r}: give {{column: type}}, text such as 'customer string, amount double', or a StructType")


def _of_text(text: str) -> dict[str, pl.DataType]:
    found = []
    place = 0
    while place < len(text):
        match = _COLUMN.match(text, place)
        end = None if match is None else _NEXT.match(text, match.end())
        if match is None or end is None:
            rest = text[place:].strip()
            raise FlowError(
                f"schema={text!r}: {rest!r} is not understood; write 'column type, column type' with simple types, "
                "or {column: Polars type}"
            )
        name = match["plain"] or match["quoted"].replace("``", "`")
        found.append((name, _type(name, match["type"], match["size"])))
        place = end.end()
    return _unique(found)


def _split(simple: str) -> tuple[str, str | None]:
    match = re.fullmatch(r"(\w+)\(([\d,\s]+)\)", simple)
    return (simple, None) if match is None else (match[1], match[2])


def _type(column: str, name: str, size: str | None) -> pl.DataType:
    if name.lower() in ("decimal", "dec", "numeric"):
        digits, scale = (int(number) for number in (*(size or "10").split(","), "0")[:2])
        return pl.Decimal(digits, scale)
    dtype = TYPES.get(name.lower())
    if dtype is None:
        raise FlowError(
            f"column {column!r}: unknown type {name!r}; there are {', '.join(TYPES)} and decimal, or give {{column: Polars type}}"
        )
    return dtype


def _unique(pairs: Any) -> dict[str, pl.DataType]:
    columns: dict[str, pl.DataType] = {}
    for name, dtype in pairs:
        if name in columns:
            raise FlowError(f"column {name!r} is in the schema twice; remove one")
        columns[name] = dtype
    return columns

"""JSON lines into columns: one object per line, strictly of the declared types.

pyarrow's reader raises on a value of another type, on text after an object and on a repeated field, but makes null of an absent
field, lets an object span lines and takes two objects from one line. The checks here close those gaps without giving up columns:
when every line begins with "{" and ends with "}", no object can span lines (after a "}" inside an open object or list only a comma
or a closing bracket may follow), so as many rows as lines means one each; and only lines with a null are looked at again.
"""

from __future__ import annotations

import io
import json
import re
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.json as pj

if TYPE_CHECKING:
    from meander.connect.text_rows import Lines

_NUMBERS = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64, pl.Float32, pl.Float64)
_FLOATS = (pl.Float32, pl.Float64)
LIKE_A_DATE = re.compile(r"\s*\d{4}-\d\d-\d\d")


class JsonParser:
    """Parses lines into the schema's columns; fields that are not in it are ignored."""

    def __init__(self, schema: pl.Schema, optional: frozenset[str]) -> None:
        self._schema = schema
        self._required = [name for name in schema if name not in optional]
        self._arrow = pa.schema([(name, arrow_type(dtype)) for name, dtype in schema.items()])

    def parse(self, data: bytes) -> pl.DataFrame:
        # One block: a block ends at a line break only if the objects do, which is not known before they are parsed.
        options = pj.ReadOptions(use_threads=False, block_size=len(data) + 1)
        parsing = pj.ParseOptions(explicit_schema=self._arrow, unexpected_field_behavior="ignore")
        table = pj.read_json(io.BytesIO(data), read_options=options, parse_options=parsing)
        return to_schema(table.select(self._schema.names()), self._schema)

    def is_one_row_per_line(self, data: bytes, lines: Lines) -> bool:
        octets = np.frombuffer(data, dtype=np.uint8)
        return bool((octets[lines.starts] == ord("{")).all() and (octets[lines.ends - 1] == ord("}")).all())

    def doubtful(self, frame: pl.DataFrame, lines: Lines) -> dict[int, str]:
        reasons: dict[int, str] = {}
        for name in self._required:
            if not frame[name].null_count():
                continue
            spellings = (f"{json.dumps(name)}:null".encode(), f"{json.dumps(name)}: null".encode())
            for index in frame[name].is_null().arg_true().to_list():
                line = lines[index]
                # In an object without objects inside, this text can only be the field itself: inside a string its quotes would be escaped.
                if line.count(b"{") == 1 and any(spelling in line for spelling in spellings):
                    continue
                if name not in json.loads(line):
                    reasons.setdefault(index, f"no field {name!r}")
        return reasons

    def fault(self, line: bytes) -> str | None:
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            # pyarrow knows one number that Python does not; which lines are bad must not depend on who looked at them.
            return None if b"Inf" in line else f"not JSON: {error}"
        if not isinstance(fields, dict):
            return f"{_kind(fields)}, not an object"
        for name in self._required:
            if name not in fields:
                return f"no field {name!r}"
        for name, dtype in self._schema.items():
            value = fields.get(name)
            if value is not None and not _fits(value, dtype):
                return f"field {name!r} is {_kind(value)} ({json.dumps(value)[:60]}), not {dtype}"
        return None


def arrow_type(dtype: pl.DataType) -> pa.DataType:
    """The type as which pyarrow parses a column of a Polars type; ``to_schema`` converts the
    result."""
    if isinstance(dtype, pl.Date):
        return pa.string()  # pyarrow's JSON reader takes dates for day numbers
    if isinstance(dtype, pl.Datetime):
        return pa.timestamp(dtype.time_unit)
    if isinstance(dtype, _FLOATS):
        return pa.float64()
    if isinstance(dtype, pl.String):
        return pa.string()
    if isinstance(dtype, pl.Binary):
        return pa.binary()
    if isinstance(dtype, pl.List):
        return pa.list_(arrow_type(_instance(dtype.inner)))
    if isinstance(dtype, pl.Struct):
        return pa.struct([(field.name, arrow_type(_instance(field.dtype))) for field in dtype.fields])
    return pl.Series(dtype=dtype).to_arrow().type


def to_schema(table: pa.Table, schema: pl.Schema) -> pl.DataFrame:
    """Parsed columns in the schema's own types; a date that is none raises ValueError."""
    frame = pl.DataFrame(pl.from_arrow(table))
    columns = []
    for name, dtype in schema.items():
        column = pl.col(name)
        if isinstance(dtype, pl.Date) and frame.schema[name] == pl.String:
            column = column.str.to_date("%Y-%m-%d", strict=True)
        elif isinstance(dtype, pl.Datetime):
            given = frame.schema[name]
            zone = given.time_zone if isinstance(given, pl.Datetime) else None
            column = column.dt.replace_time_zone("UTC") if zone is None else column
            column = column.dt.convert_time_zone(dtype.time_zone or "UTC")
            column = column if dtype.time_zone else column.dt.replace_time_zone(None)
        columns.append(column.cast(dtype))
    try:
        return frame.select(columns)
    except pl.exceptions.PolarsError as error:
        raise ValueError(str(error).splitlines()[0]) from error


def _instance(dtype: Any) -> pl.DataType:
    """Inside a list or a struct Polars allows a type's class (``pl.Int64``) where it means the type."""
    return dtype if isinstance(dtype, pl.DataType) else cast(pl.DataType, dtype())


def _fits(value: Any, dtype: pl.DataType) -> bool:
    """False only where parsing would certainly refuse the value."""
    if isinstance(dtype, _NUMBERS):
        return isinstance(value, (int, float) if isinstance(dtype, _FLOATS) else int) and not isinstance(value, bool)
    if isinstance(dtype, pl.Boolean):
        return isinstance(value, bool)
    if isinstance(dtype, pl.List):
        return isinstance(value, list)
    if isinstance(dtype, pl.Struct):
        return isinstance(value, dict)
    if isinstance(dtype, (pl.Datetime, pl.Date)):
        return isinstance(value, str) and LIKE_A_DATE.match(value) is not None
    return isinstance(value, str)


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    kinds = {bool: "a boolean", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
    return kinds[type(value)]

"""CSV lines into columns: a header, one record per line, strictly as many fields as the header and of the declared types.

An empty field is null; a quoted empty field is an empty string. Quotes may hold commas and doubled quotes, not line breaks.
Timestamps may have a zone offset or none (then they are in UTC).
"""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pyarrow.csv as pc

from meander.connect.json_lines import LIKE_A_DATE, arrow_type, to_schema

if TYPE_CHECKING:
    from meander.connect.text_rows import Lines

_INTEGERS = (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64)
_COLUMN = re.compile(r"In CSV column #(\d+): ")
_INTEGER = re.compile(r"[-+]?(0[xX][0-9a-fA-F]+|\d+)")


def read_header(data: bytes) -> tuple[list[str], int]:
    """The column names of a file's first line, and how many bytes that line has with its end."""
    length = data.find(b"\n") + 1 or len(data)
    text = data[:length].decode("utf-8-sig", "replace").rstrip("\r\n")
    return next(csv.reader([text]), []), length


class CsvParser:
    """Parses lines under a known header into the schema's columns; others are ignored, and those that it lacks are null."""

    def __init__(self, schema: pl.Schema, header: list[str]) -> None:
        self._schema = schema
        self._header = header
        self._typed = [(header.index(name), name, dtype) for name, dtype in schema.items() if name in header]
        self._has_times = any(isinstance(dtype, pl.Datetime) for dtype in schema.values())

    def parse(self, data: bytes) -> pl.DataFrame:
        try:
            return self._parse(data, None)
        except pa.ArrowInvalid as error:
            if self._has_times and "zone offset" in str(error):
                return self._parse(data, "UTC")
            raise ValueError(_COLUMN.sub(lambda match: f"column {self._header[int(match.group(1))]!r}: ", str(error))) from error

    def is_one_row_per_line(self, data: bytes, lines: Lines) -> bool:
        # A lone carriage return ends a record for pyarrow. A quote left open swallows lines, which the row count shows,
        # or the end of the data, which an odd number of quotes shows.
        return data.count(b"\r") == data.count(b"\r\n") + data.endswith(b"\r") and data.count(b'"') % 2 == 0

    def doubtful(self, frame: pl.DataFrame, lines: Lines) -> dict[int, str]:
        return {}

    def fault(self, line: bytes) -> str | None:
        if line.count(b'"') % 2:
            return "a quote is not closed on its line"
        if b"\r" in line:
            return "a carriage return inside a line"
        fields = next(csv.reader([line.decode("utf-8")]))
        if len(fields) != len(self._header):
            return f"{len(fields)} fields, the header has {len(self._header)}"
        for position, name, dtype in self._typed:
            text = fields[position]
            if text and not _may_be(text.strip(), dtype):
                return f"column {name!r}: {text[:60]!r} is not {dtype}"
        return None

    def _parse(self, data: bytes, zone: str | None) -> pl.DataFrame:
        types = {}
        for name, dtype in self._schema.items():
            kind = pa.date32() if isinstance(dtype, pl.Date) else arrow_type(dtype)
            types[name] = pa.timestamp(kind.unit, zone) if zone and pa.types.is_timestamp(kind) else kind
        table = pc.read_csv(
            io.BytesIO(data),
            read_options=pc.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=self._header),
            convert_options=pc.ConvertOptions(
                column_types=types,
                include_columns=self._schema.names(),
                include_missing_columns=True,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        return to_schema(table, self._schema)


def _may_be(text: str, dtype: pl.DataType) -> bool:
    """False only where parsing would certainly refuse the text: whether a line is set aside here
    must not depend on its neighbours."""
    if isinstance(dtype, _INTEGERS):
        return _INTEGER.fullmatch(text) is not None
    if isinstance(dtype, (pl.Float32, pl.Float64)):
        try:
            float(text)
        except ValueError:
            return False
    if isinstance(dtype, pl.Boolean):
        return text.lower() in ("true", "false", "0", "1")
    if isinstance(dtype, (pl.Datetime, pl.Date)):
        return LIKE_A_DATE.match(text) is not None
    return True

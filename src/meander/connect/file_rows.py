"""Reads one split of a file, in the task: checks that the file is the one decided on, then the rows by format.

Called by ``FilesSource.read``. Guarantees the same rows in the same order every time; a file that is not what was decided raises
Corrupted; a file or a line that cannot be understood becomes a BadRow. Parquet is here, lines of text are in ``text_rows``.
"""

from __future__ import annotations

import os
from typing import Any

import polars as pl
import pyarrow.parquet as pq

from meander.connect import text_rows
from meander.connect.source import BadRow, Batch
from meander.errors import Corrupted, FlowError, Retryable

FORMATS = ("parquet", "json", "csv")

_SIGNED = (pl.Int8, pl.Int16, pl.Int32, pl.Int64)
_UNSIGNED = (pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64)
_SCALARS = (*_SIGNED, *_UNSIGNED, pl.Float32, pl.Float64, pl.String, pl.Boolean, pl.Datetime, pl.Date, pl.Binary)


def check_readable(name: str, dtype: pl.DataType, format: str) -> None:
    """Refuse a type that files of this format cannot hold, before anything runs."""
    if format == "parquet" or isinstance(dtype, _SCALARS) or (format == "json" and isinstance(dtype, (pl.List, pl.Struct))):
        return
    raise FlowError(f"column {name!r}: {dtype} cannot be read from {format}; read it as a string and cast it in the flow")


def read(folder: str, format: str, schema: pl.Schema, optional: frozenset[str], payload: dict[str, Any]) -> Batch:
    path = os.path.join(folder, payload["path"])
    shown = f"{os.path.basename(folder)}/{payload['path']}"
    if "taken_with" in payload:
        before, size = payload["taken_with"], payload["size"]
        what = "what was added is not read: add rows as new files" if size > before else "it is not read again"
        return _whole_file_bad(schema, shown, f"changed from {before} to {size} bytes after it was read; {what}", size)
    _check_unchanged(path, payload)
    try:
        if payload["size"] == 0:
            batch = _whole_file_bad(schema, shown, "empty file", 0)
        elif format == "parquet":
            batch = _read_parquet(path, shown, schema, optional, payload)
        else:
            batch = text_rows.read(path, shown, format, schema, optional, payload)
    except OSError as error:
        _check_unchanged(path, payload)
        raise Retryable(f"{path}: cannot be read ({error}); check the disk and the file's permissions") from error
    # Again, since the file may have been replaced or written to while it was read.
    _check_unchanged(path, payload)
    return batch


def _check_unchanged(path: str, payload: dict[str, Any]) -> None:
    try:
        stat = os.stat(path)
    except FileNotFoundError as error:
        raise Corrupted(
            f"{path} is gone, but it was decided as input (size {payload['size']}); put the same file back and start again. "
            "Input files must stay until the epoch that reads them is committed"
        ) from error
    if (stat.st_size, stat.st_mtime_ns) != (payload["size"], payload["mtime_ns"]):
        raise Corrupted(
            f"{path} changed after it was decided as input: size {payload['size']} → {stat.st_size}, "
            f"mtime_ns {payload['mtime_ns']} → {stat.st_mtime_ns}. Put the original back (cp -p) and start again; "
            "add new rows as new files"
        )


def _whole_file_bad(schema: pl.Schema, shown: str, reason: str, size: int) -> Batch:
    return Batch(pl.DataFrame(schema=schema), (BadRow(shown, reason, f"<file of {size} bytes, kept>"),))


def _read_parquet(path: str, shown: str, schema: pl.Schema, optional: frozenset[str], payload: dict[str, Any]) -> Batch:
    groups: list[int] | None = payload.get("groups")
    try:
        present = pl.Schema(pl.read_parquet_schema(path))
        wanted = {name: dtype for name, dtype in schema.items() if name in present or name not in optional}
        name, reason = next(((name, text) for name, dtype in wanted.items() if (text := _mismatch(name, dtype, present))), ("", None))
        if reason is not None:
            if not groups or groups[0] == 0:
                return _whole_file_bad(schema, shown, reason, payload["size"])
            if name not in optional:
                return Batch(pl.DataFrame(schema=schema))  # said once for the file, by its first split
            # An optional column may be one that came when the first split had been read already.
            return _whole_file_bad(schema, f"{shown}#groups {groups[0]}-{groups[1] - 1}", reason, payload["size"])
        # Polars was measured at one to two times pyarrow's speed on one core (two where there is text).
        rows = pl.scan_parquet(path, glob=False).select(*(wanted or list(present)[:1]))  # without a column there would be no rows
        skipped = 0
        if groups:
            footer = pq.read_metadata(path)
            counts = [footer.row_group(group).num_rows for group in range(groups[1])]
            skipped = sum(counts[: groups[0]])
            rows = rows.slice(skipped, sum(counts[groups[0] :]))
        frame = rows.collect()
        if frame.schema != schema:
            frame = frame.with_columns(
                _widened(name, dtype, frame.schema[name]) if name in wanted else pl.lit(None, dtype).alias(name)
                for name, dtype in schema.items()
            ).select(*schema)
        return Batch(frame, position=lambda row: f"{shown} row {skipped + row + 1}")
    except OSError:
        raise
    except (Exception, pl.exceptions.PanicException) as error:
        where = shown if not groups else f"{shown}#groups {groups[0]}-{groups[1] - 1}"
        return _whole_file_bad(schema, where, f"not readable as Parquet: {_first_line(error)}", payload["size"])


def _mismatch(name: str, wanted: pl.DataType, present: pl.Schema) -> str | None:
    if name not in present:
        return f"no column {name!r}; the file has {', '.join(present)}"
    if not _widens(present[name], wanted):
        return f"column {name!r} is {present[name]}, not {wanted}"
    return None


def _widens(given: pl.DataType, wanted: pl.DataType) -> bool:
    """True where every value of ``given`` has its equal in ``wanted`` (timestamps: to the wanted resolution)."""
    if given == wanted or isinstance(given, pl.Null):
        return True
    ranks: dict[type[pl.DataType], int] = {kind: rank for kinds in (_SIGNED, _UNSIGNED) for rank, kind in enumerate(kinds)}
    given_rank, wanted_rank = ranks.get(type(given)), ranks.get(type(wanted))
    if given_rank is not None and wanted_rank is not None:
        if isinstance(wanted, _SIGNED):
            return given_rank < wanted_rank
        return isinstance(given, _UNSIGNED) and given_rank < wanted_rank
    if isinstance(wanted, pl.Float64):
        return isinstance(given, pl.Float32) or (given_rank is not None and given_rank < 3)
    if isinstance(wanted, pl.Float32):
        return given_rank is not None and given_rank < 2
    if isinstance(wanted, pl.List) and isinstance(given, pl.List):
        outer, inner = (pl.Schema({"x": dtype.inner})["x"] for dtype in (wanted, given))
        return _widens(inner, outer)
    if isinstance(wanted, pl.Datetime):
        return isinstance(given, pl.Datetime)
    return isinstance(wanted, pl.String) and isinstance(given, (pl.Categorical, pl.Enum))


def _widened(name: str, wanted: pl.DataType, given: pl.DataType) -> pl.Expr:
    column = pl.col(name)
    if isinstance(wanted, pl.Datetime) and isinstance(given, pl.Datetime) and given.time_zone != wanted.time_zone:
        # A time without a zone is in UTC, as everywhere in Meander.
        column = column.dt.replace_time_zone("UTC") if given.time_zone is None else column.dt.convert_time_zone("UTC")
        column = column.dt.convert_time_zone(wanted.time_zone) if wanted.time_zone else column.dt.replace_time_zone(None)
    return column.cast(wanted)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]

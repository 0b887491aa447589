"""Rows as an author of tests writes them, made into rows of a source. Errors name the epoch, row
and column of a value that does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any, TypeAlias

import polars as pl

from meander.connect.schema_text import TYPES, as_columns
from meander.errors import FlowError
from meander.plan.schemas import did_you_mean, show_schema, show_type
from meander.processor.types import type_of
from meander.stored import stored
from meander.testing.script import Part, Script, stored_rows

Rows: TypeAlias = Sequence[Sequence[Any] | Mapping[str, Any]] | pl.DataFrame
"""Tuples in the order of the columns, dicts (what is left out is null), or a frame."""
Epochs: TypeAlias = Sequence[Rows | Mapping[int, Rows]]
"""The rows of each epoch, or those of each partition of it by number."""


def source(schema: Any, epochs: Epochs) -> Script:
    """A source that gives these rows, epoch by epoch: ``epochs`` is a list with a list of rows for each.

    ``schema`` is what ``md.files`` takes. A row is a tuple in the order of the columns, or a dict, in which a column that is left out is
    null; all rows of an epoch may also be one Polars frame. Timestamps and dates may be text.

    >>> from meander import testing
    >>> clicks = testing.source({"user": "string", "ts": "timestamp"}, [
    ...     [("ada", "2026-03-01T10:00:00"), ("bob", "2026-03-01T10:00:05")],
    ...     [{"user": "ada"}],
    ... ])
    >>> clicks.describe()
    '3 rows in 2 epochs'

    A source with several partitions has a dict in the place of an epoch's rows: ``{0: [("ada", …)], 1: []}``. A watermark waits for all
    partitions that it has heard of, unless it has ``idle=``. Of several sources the first epoch takes the first rows of each, and so on.
    """
    columns = schema_of(schema)
    if isinstance(epochs, str | Mapping | pl.DataFrame) or not isinstance(epochs, Sequence):
        raise FlowError(f"epochs: a list with the rows of every epoch is needed, [[row, row], [row]], and {type(epochs).__name__} is given")
    return Rehearsed(columns, tuple(_epoch(rows, columns, f"epoch {number}") for number, rows in enumerate(epochs, start=1)))


@stored("rehearsed")
class Rehearsed(Script):
    """A script that says how long it is."""

    def describe(self) -> str:
        rows = sum(len(part) for epoch in self.epochs for _, part in epoch)
        return f"{rows} row{'' if rows == 1 else 's'} in {len(self.epochs)} epoch{'' if len(self.epochs) == 1 else 's'}"


def schema_of(schema: Any) -> pl.Schema:
    """Columns and types, written in any of the ways there are.

    >>> schema_of("user string, ts timestamp") == schema_of({"user": pl.String, "ts": "timestamp"})
    True
    """
    columns = as_columns(schema).items()
    found = {
        name: TYPES[given.lower()] if isinstance(given, str) and given.lower() in TYPES else type_of(given, f"column {name!r}")
        for name, given in columns
    }
    if not found:
        raise FlowError("schema: it has no columns; give at least one, as in {'user': 'string'}")
    return pl.Schema(found)


def _epoch(rows: Rows | Mapping[Any, Rows], schema: pl.Schema, where: str) -> tuple[Part, ...]:
    if not isinstance(rows, Mapping):
        return ((0, stored_rows(frame_of(rows, schema, where))),)
    for number in rows:
        if not isinstance(number, int) or isinstance(number, bool):
            raise FlowError(f"{where}: {number!r} is no number of a partition; a dict has their rows: {{0: [row, row], 1: [row]}}")
    return tuple((number, stored_rows(frame_of(part, schema, f"{where}, partition {number}"))) for number, part in rows.items())


def frame_of(rows: Rows, schema: pl.Schema, where: str) -> pl.DataFrame:
    """Rows with these columns and types, or FlowError.

    >>> frame_of([("ada", 3), {"user": "bob"}], pl.Schema({"user": pl.String, "n": pl.Int64}), "epoch 1").rows()
    [('ada', 3), ('bob', None)]
    """
    if isinstance(rows, pl.DataFrame):
        _check_columns(rows.columns, schema, where)
        given = {name: rows.get_column(name).to_list() if name in rows.columns else [None] * rows.height for name in schema}
    elif isinstance(rows, str | Mapping) or not isinstance(rows, Iterable):
        raise FlowError(f"{where}: {rows!r} is no list of rows; give a list of epochs, each a list of rows: [[row, row], [row]]")
    else:
        whole = [_values(row, schema, f"{where}, row {number}") for number, row in enumerate(rows, start=1)]
        given = {name: [row[place] for row in whole] for place, name in enumerate(schema)}
    return pl.DataFrame([_column(name, dtype, given[name], where) for name, dtype in schema.items()])


def _values(row: Any, schema: pl.Schema, where: str) -> tuple[Any, ...]:
    if isinstance(row, Mapping):
        _check_columns(row, schema, where)
        return tuple(row.get(name) for name in schema)
    if isinstance(row, str | bytes) or not isinstance(row, Sequence):
        raise FlowError(
            f"{where}: {row!r} is no row: write a tuple of values, ({', '.join(schema)}{',' if len(schema) == 1 else ''}), or a dict; "
            "every epoch is a list of rows"
        )
    if len(row) != len(schema):
        raise FlowError(
            f"{where}: {tuple(row)!r} has {len(row)} value{'' if len(row) == 1 else 's'}; columns are {show_schema(schema)}; "
            "in a dict, columns can be left out"
        )
    return tuple(row)


def _check_columns(names: Iterable[Any], schema: pl.Schema, where: str) -> None:
    for name in names:
        if name not in schema:
            raise FlowError(f"{where}: there is no column {name!r}; columns are {show_schema(schema)}{did_you_mean(str(name), schema)}")


def _column(name: str, dtype: pl.DataType, values: list[Any], where: str) -> pl.Series:
    try:
        return pl.Series(name, [_read(value, dtype) for value in values], dtype=dtype, strict=True)
    except Exception:  # Polars has many, and does not say which value it was
        for number, value in enumerate(values, start=1):
            try:
                pl.Series([_read(value, dtype)], dtype=dtype, strict=True)
            except Exception as error:
                raise FlowError(f"{where}, row {number}, column {name!r}: {value!r} is no {show_type(dtype)}{_instead(dtype)}") from error
        raise


def _read(value: Any, dtype: pl.DataType) -> Any:
    """A value as Polars takes it. Raises whatever where it is of another kind: Polars would take True for 1, and 5 for a moment of 1970."""
    if value is None:
        return None
    if isinstance(value, bool) and not isinstance(dtype, pl.Boolean):
        raise TypeError
    if isinstance(dtype, pl.Datetime):
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        if not isinstance(moment, datetime):
            raise TypeError
        return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo is not None and dtype.time_zone is None else moment
    if isinstance(dtype, pl.Date):
        day = date.fromisoformat(value) if isinstance(value, str) else value
        if not isinstance(day, date) or isinstance(day, datetime):
            raise TypeError
        return day
    return value


def _instead(dtype: pl.DataType) -> str:
    if isinstance(dtype, pl.Datetime):
        return "; write a datetime, or text such as '2026-03-01T10:00:00'"
    return "; write a date, or text such as '2026-03-01'" if isinstance(dtype, pl.Date) else ""

"""A source whose rows are written down, epoch by epoch. ``testing.source`` makes one.

The splits themselves hold the rows, as JSON, so that an epoch that is run again, after a restart or
by a replica, reads the rows that were decided. Types that JSON lacks (times, decimals, bytes) are
written as whole numbers and text: see ``stored_as``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from meander.connect.source import Batch, Choice, Split
from meander.stored import stored

Part = tuple[int, tuple[tuple[Any, ...], ...]]
"""The number of a partition, and its rows as they are stored."""


@stored("script")
@dataclass(frozen=True)
class Script:
    """A source with a written-down future: per epoch its splits, each (partition, rows)."""

    columns: Mapping[str, Any]
    epochs: tuple[tuple[Part, ...], ...]

    def schema(self) -> pl.Schema:
        return pl.Schema(self.columns)

    def cursor(self, offset: dict[str, Any], seen: set[str], throttle: float = 1.0) -> ScriptCursor:
        return ScriptCursor(self, offset.get("next", 0))

    def read(self, payload: dict[str, Any]) -> Batch:
        schema = self.schema()
        stored = pl.Schema({name: stored_as(dtype) for name, dtype in schema.items()})
        hexadecimal = [pl.col(name).str.decode("hex") for name, dtype in schema.items() if isinstance(dtype, pl.Binary)]
        return Batch(pl.DataFrame(payload["rows"], stored, orient="row").with_columns(hexadecimal).cast(schema))

    def describe(self) -> str:
        return "script"

    def canonical(self) -> str:
        return "script"


@dataclass
class ScriptCursor:
    """How many of the epochs are taken."""

    script: Script
    next: int

    def look(self) -> None: ...

    def choose(self, now: float, everything: bool) -> Choice | None:
        if self.next == len(self.script.epochs):
            return None
        splits = self.script.epochs[self.next]
        self.next += 1
        return Choice(tuple(Split({"partition": p, "rows": rows}, len(rows), 8 * len(rows)) for p, rows in splits), {"next": self.next})

    def follow(self, given: Choice | None, agreed: Choice | None) -> None:
        if agreed is not None:
            self.next = agreed.offset["next"]
        elif given is not None:
            self.next -= 1

    def backlog(self, now: float) -> bool:
        return self.next < len(self.script.epochs)

    def waiting(self, now: float) -> int:
        return 0

    def slow_down(self, share: float) -> None: ...

    def finished(self) -> bool:
        return self.next == len(self.script.epochs)

    def release(self, names: Sequence[str]) -> None: ...

    def close(self) -> None: ...


def stored_rows(frame: pl.DataFrame) -> tuple[tuple[Any, ...], ...]:
    """The rows of a frame as a script has them.

    >>> stored_rows(pl.DataFrame({"at": ["1970-01-01 00:00:01"], "b": [b"x"]}).with_columns(pl.col("at").str.to_datetime(time_unit="us")))
    ((1000000, '78'),)
    """
    hexadecimal = [pl.col(name).bin.encode("hex") for name, dtype in frame.schema.items() if isinstance(dtype, pl.Binary)]
    stored = {name: stored_as(dtype) for name, dtype in frame.schema.items()}
    return tuple(frame.with_columns(hexadecimal).cast(stored).rows())  # type: ignore[arg-type]


def stored_as(dtype: pl.DataType) -> pl.DataType:
    """The type that JSON can hold a value as.

    >>> stored_as(pl.List(pl.Datetime("us")))
    List(Int64)
    """
    if isinstance(dtype, pl.List):
        return pl.List(stored_as(_instance(dtype.inner)))
    if isinstance(dtype, pl.Struct):
        return pl.Struct({field.name: stored_as(_instance(field.dtype)) for field in dtype.fields})
    if isinstance(dtype, pl.Date):
        return pl.Int32()
    if isinstance(dtype, pl.Datetime | pl.Duration | pl.Time):
        return pl.Int64()
    return pl.String() if isinstance(dtype, pl.Decimal | pl.Binary) else dtype


def _instance(dtype: Any) -> pl.DataType:
    return pl.Schema({"x": dtype})["x"]

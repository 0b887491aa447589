"""The rows of one key, as ``on_events`` sees them: a stretch of columns that were decoded once, for all keys."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl


class Decoded:
    """A batch of rows, by key. Columns become Python objects on first use, each of them once."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self.frame = frame
        self._columns: dict[str, list[Any]] = {}
        self._rows: list[Any] | None = None

    def column(self, name: str) -> list[Any]:
        if name not in self._columns:
            self._columns[name] = self.frame.get_column(name).to_list()
        return self._columns[name]

    def rows(self) -> list[Any]:
        """All rows, with columns by name: ``row.amount``. A name that is no identifier is ``row[n]``."""
        if self._rows is None:
            kind = namedtuple("Row", self.frame.columns, rename=True)  # type: ignore[misc]
            self._rows = list(map(kind._make, zip(*(self.column(name) for name in self.frame.columns), strict=True)))
        return self._rows


class Rows:
    """The rows of one key, in order.

    ``for row in rows`` gives rows with columns by name, ``rows["amount"]`` a column as a list, ``len(rows)`` their number, ``rows[0]`` and
    ``rows[-1]`` single rows, ``rows.frame()`` a Polars frame.
    """

    __slots__ = ("_begin", "_decoded", "_end")

    def __init__(self, decoded: Decoded, begin: int, end: int) -> None:
        self._decoded, self._begin, self._end = decoded, begin, end

    def __len__(self) -> int:
        return self._end - self._begin

    def __iter__(self) -> Iterator[Any]:
        decoded = self._decoded
        return iter((decoded._rows or decoded.rows())[self._begin : self._end])

    def __getitem__(self, which: str | int | slice) -> Any:
        if isinstance(which, str):
            return self._decoded.column(which)[self._begin : self._end]
        if isinstance(which, slice):
            return self._decoded.rows()[self._begin : self._end][which]
        if not -len(self) <= which < len(self):
            raise IndexError(which)
        return self._decoded.rows()[which + (self._begin if which >= 0 else self._end)]

    def frame(self) -> pl.DataFrame:
        return self._decoded.frame[self._begin : self._end]

    @property
    def columns(self) -> Sequence[str]:
        return self._decoded.frame.columns

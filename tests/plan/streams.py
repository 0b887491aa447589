"""A source and a sink that do nothing, for tests that build plans and run none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from meander.connect.sink import Staged
from meander.connect.source import Batch, Cursor

ORDERS = {"customer": pl.String(), "amount": pl.Float64(), "ts": pl.Datetime("us")}


@dataclass(frozen=True)
class Rows:
    columns: tuple[tuple[str, pl.DataType], ...]

    def schema(self) -> pl.Schema:
        return pl.Schema(self.columns)

    def cursor(self, offset: dict[str, Any], seen: set[str], throttle: float = 1.0) -> Cursor:
        raise NotImplementedError

    def read(self, payload: dict[str, Any]) -> Batch:
        raise NotImplementedError

    def describe(self) -> str:
        return "rows"

    def canonical(self) -> str:
        return self.describe()


@dataclass(frozen=True)
class Nowhere:
    def encode(self, frame: pl.DataFrame) -> bytes:
        return b""

    def open(self) -> None:
        return None

    def publish(self, epoch: int, files: list[Staged]) -> None:
        return None

    def describe(self) -> str:
        return "nowhere"

    def canonical(self) -> str:
        return self.describe()


def rows(**columns: pl.DataType) -> Rows:
    return Rows(tuple((columns or ORDERS).items()))

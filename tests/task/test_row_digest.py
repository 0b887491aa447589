"""The number by which replicas compare rows: of values alone, whatever version of Polars has them."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import polars as pl
import pytest

from meander.task.row_digest import digest_of

COLUMNS: dict[str, tuple[list[Any], Any]] = {
    "int": ([1, None, -3], pl.Int64),
    "small": ([1, None, -3], pl.Int8),
    "big": ([1, None, 2**63], pl.UInt64),
    "huge": ([1, None, 2**100], pl.Int128),
    "float": ([1.5, None, float("nan")], pl.Float64),
    "bool": ([True, None, False], pl.Boolean),
    "text": (["a", None, "ü" * 40], pl.String),
    "bytes": ([b"a", None, b""], pl.Binary),
    "decimal": ([Decimal("1.10"), None, Decimal("-2.00")], pl.Decimal(10, 2)),
    "date": ([date(2024, 1, 31), None, date(1969, 1, 1)], pl.Date),
    "moment": ([datetime(2024, 1, 31, 12), None, datetime(1969, 1, 1)], pl.Datetime("us")),
    "zoned": ([datetime(2024, 1, 31, 12, tzinfo=UTC), None, datetime(1969, 1, 1, tzinfo=UTC)], pl.Datetime("ms", "UTC")),
    "clock": ([time(1, 2), None, time(23, 59, 59, 999999)], pl.Time),
    "length": ([timedelta(hours=1), None, timedelta(-1)], pl.Duration("us")),
    "kind": (["a", None, "b"], pl.Enum(["b", "a"])),
    "category": (["a", None, "b"], pl.Categorical),
    "list": ([[1, 2], None, []], pl.List(pl.Int64)),
    "nested": ([[["a"], []], None, [None]], pl.List(pl.List(pl.String))),
    "array": ([[1, 2], None, [2, 1]], pl.Array(pl.Int64, 2)),
    "struct": ([{"x": 1, "y": "a"}, None, {"x": None, "y": "b"}], pl.Struct({"x": pl.Int64, "y": pl.String})),
    "structs": ([[{"x": 1}], None, [{"x": 2}, {"x": 3}]], pl.List(pl.Struct({"x": pl.Int64}))),
    "nothing": ([None, None, None], pl.Null),
}
GOLDEN: dict[str, int] = {
    "int": 16680434678281742582,
    "small": 16680434678281742582,
    "big": 10439353769736355084,
    "huge": 11470780061506373329,
    "float": 7218449552107262356,
    "bool": 13626050641773624642,
    "text": 2978125636824273785,
    "bytes": 3419970210885276335,
    "decimal": 10677785283084262272,
    "date": 2983020774217033014,
    "moment": 2307712707182540738,
    "zoned": 2307712707182540738,
    "clock": 11084710045808064957,
    "length": 6870422743989276972,
    "kind": 16928354678228648863,
    "category": 16928354678228648863,
    "list": 18235730222276477062,
    "nested": 10235012391547874747,
    "array": 15494048375020228895,
    "struct": 17838155035313167384,
    "structs": 13923425855818956046,
    "nothing": 15411657488969338046,
}


def column(name: str) -> pl.DataFrame:
    values, dtype = COLUMNS[name]
    return pl.DataFrame({"c": pl.Series(values, dtype=dtype, strict=False)})


@pytest.mark.parametrize("name", COLUMNS)
def test_the_number_of_a_column_is_the_same_in_every_version(name: str) -> None:
    """Two replicas may run two versions of Polars, or of this package: a number that changes is taken for divergence."""
    assert digest_of(column(name)) == GOLDEN[name]


@pytest.mark.parametrize("name", COLUMNS)
def test_rows_count_in_any_order_and_however_they_are_divided(name: str) -> None:
    frame = column(name)
    whole = digest_of(frame)
    assert digest_of(frame[::-1]) == whole
    assert sum(digest_of(frame[n : n + 1]) for n in range(3)) % (1 << 64) == whole


@pytest.mark.parametrize("name", [name for name in COLUMNS if name != "nothing"])
def test_another_value_is_another_number(name: str) -> None:
    frame = column(name)
    assert len({digest_of(frame[n : n + 1]) for n in range(3)}) == 3


def test_the_place_of_a_value_counts() -> None:
    assert digest_of(pl.DataFrame({"l": [[1, 2], [3]]})) != digest_of(pl.DataFrame({"l": [[1], [2, 3]]}))
    assert digest_of(pl.DataFrame({"l": [[1, 2]]})) != digest_of(pl.DataFrame({"l": [[2, 1]]}))
    assert digest_of(pl.DataFrame({"a": [1], "b": [2]})) != digest_of(pl.DataFrame({"a": [2], "b": [1]}))


def test_texts_that_come_often_have_the_numbers_of_those_that_come_once() -> None:
    """Many equal texts are hashed by a dictionary."""
    texts = pl.DataFrame({"t": [None, "a", "b", "a" * 70] * 600})
    once = sum(digest_of(texts[n : n + 1]) for n in range(4)) * 600
    assert digest_of(texts) == once % (1 << 64)

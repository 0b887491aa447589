"""Comparing results: what counts as the same, and what is said where it is not."""

from __future__ import annotations

import math
from datetime import datetime
from decimal import Decimal
from typing import Any

import polars as pl
import pytest

from meander.nexmark import compare


def frame(**columns: Any) -> pl.DataFrame:
    return pl.DataFrame(columns)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (frame(a=[2, 1], b=["y", "x"]), frame(a=[1, 2], b=["x", "y"])),
        (frame(b=["x"], a=[1]), frame(a=[1], b=["x"])),
        (frame(a=[1, 1, 2]), frame(a=[1, 2, 1])),
        (frame(a=pl.Series([1], dtype=pl.Int32)), frame(a=pl.Series([1], dtype=pl.UInt64))),
        (frame(k=[1, 1], v=[2.0, 1.0 + 1e-12]), frame(k=[1, 1], v=[1.0, 2.0 - 1e-12])),
        (frame(v=[math.nan, math.inf, None, 0.0]), frame(v=[None, 0.0, math.nan, math.inf])),
        (frame(v=[Decimal("0.5")]), frame(v=[0.5])),
        (frame(a=[None, 1]), frame(a=[1, None])),
        (frame(t=pl.Series([datetime(2020, 1, 1)], dtype=pl.Datetime("ms"))), frame(t=[datetime(2020, 1, 1)])),
        (frame(a=pl.Series([], dtype=pl.Int64)), frame(a=pl.Series([], dtype=pl.Int64))),
    ],
)
def test_the_same_rows_are_the_same_in_any_order_and_width(found: pl.DataFrame, expected: pl.DataFrame) -> None:
    assert compare(found, expected) is None
    assert compare(found.to_arrow(), expected.to_arrow()) is None


def test_missing_rows_and_rows_too_many_are_counted_and_shown_beside_what_is_most_alike() -> None:
    expected = frame(auction=[1, 2, 3], price=[10, 20, 30], channel=["a", "b", "c"])
    found = frame(auction=[1, 2, 9, 2], price=[10, 21, 90, 50], channel=["a", "b", "z", "k"])
    difference = compare(found, expected)
    assert difference is not None
    assert (difference.missing, difference.surplus, difference.unequal) == (2, 3, 0)
    assert str(difference) == (
        "3 rows were expected and 4 found: 2 are missing, 3 too many.\n"
        "The first that is missing: auction=2, price=20, channel='b'. "
        "The most similar row too many differs from it in 1 of 3 columns: price is 21, not 20.\n"
        "The first too many: auction=2, price=21, channel='b'."
    )


def test_how_often_a_row_is_there_counts() -> None:
    difference = compare(frame(a=[1, 1, 2]), frame(a=[1, 2, 2]))
    assert difference is not None
    assert (difference.missing, difference.surplus) == (1, 1)
    surplus = compare(frame(a=[1, 1]), frame(a=[1]))
    assert surplus is not None
    assert str(surplus) == "1 rows were expected and 2 found: 1 too many.\nThe first too many: a=1."


def test_another_number_is_told_from_another_row() -> None:
    difference = compare(frame(id=[1, 2], avg=[1.5, 2.5000001]), frame(id=[1, 2], avg=[1.5, 2.5]))
    assert difference is not None
    assert (difference.missing, difference.surplus, difference.unequal) == (0, 0, 1)
    assert str(difference) == (
        "2 rows were expected and 2 found: 1 with another number.\nThe first with another number: id=2: avg is 2.5000001, not 2.5."
    )
    null = compare(frame(id=[1], avg=pl.Series([None], dtype=pl.Float64)), frame(id=[1], avg=[0.0]))
    assert null is not None
    assert null.unequal == 1


def test_other_columns_and_other_types_are_named() -> None:
    columns = compare(frame(a=[1], c=[1]), frame(a=[1], b=[1]))
    assert str(columns) == "The columns differ: the result is without b and with c; expected are a, b."
    types = compare(frame(a=["1"]), frame(a=[1]))
    assert str(types) == "column a is String and was expected to be Int64."

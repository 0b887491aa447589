"""Rows as authors write them: every type comes through the store as it was, and what does not fit is named."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import meander as md
from meander import testing

EVERYTHING: dict[str, tuple[Any, list[Any]]] = {
    "text": ("string", ["ä", "", None]),
    "whole": (pl.UInt64, [2**64 - 1, 0, None]),
    "real": ("double", [0.1, math.inf, None]),
    "yes": ("boolean", [True, False, None]),
    "raw": ("binary", [b"\x00\xff", b"", None]),
    "at": ("timestamp", [datetime(2026, 3, 1, 10, 0, 0, 123456), datetime(1960, 1, 1), None]),
    "milli": (pl.Datetime("ms", "UTC"), [datetime(2026, 3, 1, tzinfo=UTC), None, None]),
    "day": ("date", [date(2026, 3, 1), date(1960, 1, 1), None]),
    "clock": (pl.Time, [time(1, 2, 3, 4), None, None]),
    "long": (pl.Duration("us"), [timedelta(days=1, microseconds=1), -timedelta(1), None]),
    "price": (pl.Decimal(12, 2), [Decimal("1.50"), Decimal("-3.00"), None]),
    "tags": (pl.List(pl.String), [["a", None], [], None]),
    "times": (pl.List(pl.Datetime("us")), [[datetime(2026, 1, 1)], [], None]),
    "pair": (pl.Struct({"n": pl.Int8, "d": pl.Date}), [{"n": 1, "d": date(2026, 1, 1)}, {"n": None, "d": None}, None]),
}


def test_rows_of_every_type_come_through(tmp_path: Path) -> None:
    flow, out = md.Flow("types"), md.memory()
    schema = {name: dtype for name, (dtype, _) in EVERYTHING.items()}
    rows = list(zip(*(values for _, values in EVERYTHING.values()), strict=True))
    flow.source("rows", testing.source(schema, [rows, [dict(zip(schema, row, strict=True)) for row in rows]])).sink("out", out)
    with testing.run(flow, tmp_path) as run:
        run.run()
    assert out.frame().rows() == [*rows, *rows]


def test_a_frame_is_rows(tmp_path: Path) -> None:
    frame = pl.DataFrame({"n": [1, 2]}, {"n": pl.Int8})
    assert testing.source({"n": "long", "x": "string"}, [frame]).read({"rows": [(1, None)]}).frame.rows() == [(1, None)]
    assert testing.source({"n": "long", "x": "string"}, [frame]).epochs == (((0, ((1, None), (2, None))),),)


def test_times_may_be_text_and_are_utc() -> None:
    texts = [("2026-03-01",), ("2026-03-01T12:00:00+02:00",), ("2026-03-01 10:00:00.5",)]
    made = testing.source({"ts": "timestamp"}, [texts])
    moments = [datetime(2026, 3, 1), datetime(2026, 3, 1, 10), datetime(2026, 3, 1, 10, 0, 0, 500_000)]
    assert made.read({"rows": made.epochs[0][0][1]}).frame.get_column("ts").to_list() == moments


@pytest.mark.parametrize(
    ("epochs", "message"),
    [
        ([[("ada", "2026-13-01")]], r"epoch 1, row 1, column 'ts': '2026-13-01' is no Datetime\(us\); write a datetime, or text such as"),
        ([[], [("ada", None), (5, None)]], "epoch 2, row 2, column 'user': 5 is no String"),
        ([[("ada", 1_000_000)]], "epoch 1, row 1, column 'ts': 1000000 is no Datetime"),
        ([[("ada",)]], r"epoch 1, row 1: \('ada',\) has 1 value; columns are user \(String\), ts"),
        ([[{"usr": "ada"}]], "epoch 1, row 1: there is no column 'usr'; .*did you mean 'user'"),
        ([[("ada", None)], ("ada", None)], "epoch 2, row 1: 'ada' is no row: write a tuple of values"),
        ([("ada", None)], "epoch 1, row 1: 'ada' is no row"),
        (["ada"], "epoch 1: 'ada' is no list of rows"),
        ({"user": ["ada"]}, "epochs: a list with the rows of every epoch is needed"),
        ([{"user": ["ada"]}], "epoch 1: 'user' is no number of a partition"),
        ([{1: [("ada", "x")]}], "epoch 1, partition 1, row 1, column 'ts': 'x' is no Datetime"),
        ([pl.DataFrame({"who": ["ada"]})], "epoch 1: there is no column 'who'"),
    ],
)
def test_what_does_not_fit_is_named(epochs: Any, message: str) -> None:
    with pytest.raises(md.FlowError, match=message):
        testing.source({"user": "string", "ts": "timestamp"}, epochs)


@pytest.mark.parametrize("schema", [{}, {"n": "numbr"}, {"n": 5}, "n", 5])
def test_a_schema_that_is_none_is_refused(schema: Any) -> None:
    with pytest.raises(md.FlowError):
        testing.source(schema, [])


def test_true_is_no_number() -> None:
    with pytest.raises(md.FlowError, match="column 'n': True is no Int64"):
        testing.source({"n": "long"}, [[(True,)]])

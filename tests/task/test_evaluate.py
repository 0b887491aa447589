"""Whose fault it is when an operator fails: a row's, or the flow's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas
import polars as pl
import pytest

from meander.errors import FlowError
from meander.plan.graph import Node
from meander.plan.unplaced import map_batches
from meander.task.evaluate import DeadLetter, evaluate
from meander.task.rows import Rows

FRAME = pl.DataFrame({"customer": ["a", "b", "c"], "amount": [1.0, 2.0, 3.0]})


def run(function: Callable[[pl.DataFrame], Any], strict: bool = False, **options: Any) -> tuple[Rows, list[DeadLetter]]:
    dead: list[DeadLetter] = []
    node = Node("enrich", map_batches(function, schema={"amount": pl.Float64}, **options))
    return evaluate(node, Rows(FRAME, 0, place="a.json"), dead, 1, strict), dead


def text_amounts(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.col("amount").cast(pl.String))


def fails_on_b_and_returns_text(frame: pl.DataFrame) -> pl.DataFrame:
    if "b" in frame["customer"]:
        raise ValueError("no b")
    return text_amounts(frame)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("row_local", [False, True])
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda frame: None, "the function returned None; it must return a polars DataFrame"),
        (lambda frame: pandas.DataFrame({"amount": [1.0]}), "the function returned pandas.DataFrame"),
        (text_amounts, "the function returned 'amount' as String, and Float64 was declared .*: cast it or change schema="),
        (lambda frame: frame.select("customer"), "the function returned no column 'amount', .*; it returned customer"),
    ],
)
def test_a_function_that_returns_something_else_than_declared_is_the_flows_fault(
    function: Callable[[pl.DataFrame], Any], reason: str, strict: bool, row_local: bool
) -> None:
    with pytest.raises(FlowError, match=f"map_batches 'enrich': {reason}"):
        run(function, strict, row_local=row_local)


def test_bad_rows_do_not_hide_a_wrong_type() -> None:
    with pytest.raises(FlowError, match="map_batches 'enrich': the function returned 'amount' as String"):
        run(fails_on_b_and_returns_text)


def test_a_row_that_a_function_cannot_take_is_a_dead_letter_still() -> None:
    def picky(frame: pl.DataFrame) -> pl.DataFrame:
        if "b" in frame["customer"]:
            raise ValueError("no b")
        return frame

    rows, dead = run(picky)
    assert rows.frame["amount"].to_list() == [1.0, 3.0]
    assert [letter.reason for letter in dead] == ["ValueError: no b"]

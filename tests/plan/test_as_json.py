"""Changes that come as plain data: what they are taken for, and what is refused."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from tests.plan.streams import Nowhere, rows

import meander as md
from meander.errors import FlowError
from meander.plan.change.as_json import changes_from_json
from meander.plan.change.modify import modify
from meander.plan.graph import Plan


def plan() -> Plan:
    flow = md.Flow("orders")
    orders = flow.source("orders", rows(customer=pl.String(), amount=pl.Float64(), ts=pl.Datetime("us"))).watermark("ts", name="time")
    totals = orders.filter("amount > 0", name="positive").key_by("customer").aggregate(md.sum("amount").alias("total"), name="totals")
    totals.sink("out", Nowhere())
    return flow.plan()


TOLD: dict[str, tuple[dict[str, Any], str]] = {
    "filter": ({"change": "replace", "name": "positive", "operator": {"filter": "amount > 10"}}, "amount > 10"),
    "columns": (
        {"change": "insert", "name": "new", "operator": {"with_columns": {"cents": "amount * 100"}}, "after": "positive"},
        "with_columns 'new' is new",
    ),
    "list": (
        {"change": "insert", "name": "new", "operator": {"with_columns": ["amount * 100 AS cents"]}, "after": "positive"},
        "with_columns 'new' is new",
    ),
    "select": (
        {"change": "insert", "name": "new", "operator": {"select": ["customer", "amount"]}, "after": "positive"},
        "select 'new' is new",
    ),
    "watermark": ({"change": "replace", "name": "time", "operator": {"watermark": "ts", "grace": "9s"}}, "grace 9s"),
    "limit": ({"change": "replace", "name": "time", "operator": {"watermark": "ts", "max_ahead": "1h"}}, "at most 1h ahead"),
    "aggregate": (
        {
            "change": "replace",
            "name": "totals",
            "operator": {"aggregate": {"total": "sum(amount)", "n": "count()", "q": "quantile(amount, 0.5)"}},
        },
        "kept, with the new",
    ),
    "before": ({"change": "insert", "name": "new", "operator": {"filter": "amount > 1"}, "after": "positive", "before": ["totals"]}, "new"),
}


@pytest.mark.parametrize("case", TOLD)
def test_changes_can_be_told_in_plain_data(case: str) -> None:
    told, expected = TOLD[case]
    assert expected in str(modify(plan(), changes_from_json([told]))[1])


def test_a_removal_needs_a_name_alone() -> None:
    after, _ = modify(plan(), changes_from_json([{"change": "remove", "name": "positive", "operator": None, "after": None}]))
    assert "positive" not in after.schemas


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "kind of change": ({"change": "swap", "name": "x"}, "change 1: 'change' is 'swap'; there are replace, insert, remove"),
    "name": ({"change": "remove"}, "'name' is missing"),
    "too much": ({"change": "remove", "name": "x", "after": "y"}, "remove has no 'after'"),
    "no operator": ({"change": "replace", "name": "x"}, "needs an operator"),
    "no place": ({"change": "insert", "name": "x", "operator": {"filter": "a > 1"}}, "needs 'after'"),
    "two kinds": ({"change": "replace", "name": "x", "operator": {"filter": "a", "select": ["a"]}}, "it has filter and select"),
    "code": (
        {"change": "replace", "name": "x", "operator": {"map_batches": "lambda f: f"}},
        "it has 'map_batches'; other code travels as code",
    ),
    "clock": ({"change": "replace", "name": "x", "operator": {"filter": "ts < now()"}}, "the time at which the flow was written"),
    "no SQL": ({"change": "replace", "name": "x", "operator": {"filter": "amount >"}}, "is not an SQL expression"),
    "no text": ({"change": "replace", "name": "x", "operator": {"filter": 7}}, "7 is not SQL text"),
    "aggregate": ({"change": "replace", "name": "x", "operator": {"aggregate": {"n": "sun(amount)"}}}, "there are avg, collect, count"),
    "argument": ({"change": "replace", "name": "x", "operator": {"aggregate": {"n": "sum()"}}}, "sum takes 1 argument, and has 0"),
    "number": ({"change": "replace", "name": "x", "operator": {"aggregate": {"n": "top_k(a, many)"}}}, "'many' is not a number"),
    "unnamed": ({"change": "replace", "name": "x", "operator": {"aggregate": ["count()"]}}, "name every column"),
    "option": (
        {"change": "replace", "name": "x", "operator": {"watermark": "ts", "grce": "1s"}},
        "watermark has no 'grce'; did you mean 'grace'",
    ),
    "duration": ({"change": "replace", "name": "x", "operator": {"watermark": "ts", "grace": "soon"}}, "soon"),
    "nothing": ({"change": "replace", "name": "x", "operator": {"select": []}}, "give expressions"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_what_was_told_is_said(case: str) -> None:
    told, why = WRONG[case]
    with pytest.raises(FlowError, match=why):
        changes_from_json([told])

"""What a store says of a flow that is not the one it belongs to."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from tests.plan.streams import Nowhere, rows

from meander import aggregates as md
from meander.flow import Flow
from meander.plan.change.diff import differences, explain_difference

Function = Callable[[pl.DataFrame], pl.DataFrame]


class Largest(md.Aggregator):
    """A user's own aggregate."""

    def init(self) -> dict[str, pl.Expr]:
        return {"top": pl.col(self.inputs[0]).max()}

    def merge(self) -> dict[str, pl.Expr]:
        return {"top": self.state("top").max()}

    def finish(self) -> pl.Expr:
        return self.state("top")


def doubled(self: Largest) -> pl.Expr:
    return self.state("top") * 2


def record(
    filter: str = "amount > 0", fn: Function = lambda df: df.head(1), agg: Any = None, columns: dict[str, pl.DataType] | None = None
) -> dict[str, Any]:
    """A plan's record after its way through a store."""
    flow = Flow("f")
    stream = flow.source("in", rows(**columns or {})).filter(filter, name="positive").map_batches(fn, name="enrich")
    stream.key_by("customer").aggregate(agg or md.count(), name="totals").sink("out", Nowhere())
    found: dict[str, Any] = json.loads(json.dumps(flow.plan().record()))
    return found


def test_equal_plans_have_no_differences() -> None:
    assert differences(record(), record()) == []


def test_other_code_is_told_from_another_expression_and_the_operator_is_named() -> None:
    assert differences(record(), record(fn=lambda df: df.head(2))) == ["map_batches 'enrich' has other Python code"]
    assert differences(record(), record("amount > 1")) == ["filter 'positive' differs (was: amount > 0; is: amount > 1)"]
    assert differences(record(), record(agg=md.sum("amount"))) == [
        "aggregate 'totals' differs (was: by customer: count() as count; is: by customer: sum(amount) as sum_amount)"
    ]


def test_a_users_own_aggregate_is_code(monkeypatch: pytest.MonkeyPatch) -> None:
    before = record(agg=Largest("amount"))
    monkeypatch.setattr(Largest, "finish", doubled)
    assert differences(before, record(agg=Largest("amount"))) == ["aggregate 'totals' has other Python code: it uses doubled()"]


def test_other_columns_are_told_where_they_come_from_and_not_where_they_go() -> None:
    columns = {"customer": pl.String(), "amount": pl.Int64()}
    assert differences(record(columns=columns), record(columns={**columns, "amount": pl.Float64()})) == [
        "source 'in' has other columns (amount Int64 → amount Float64)"
    ]


def test_operators_that_came_went_or_were_connected_otherwise_are_told() -> None:
    before, after = record(), record()
    after["operators"]["late"] = before["operators"].pop("positive") | {"inputs": ["in"]}
    del after["operators"]["positive"]
    assert differences(before, after)[0] == "filter 'late' is new"
    assert differences(after, before)[-1] == "filter 'late' is not there any more"
    one, other = record(), record()
    other["operators"]["out"]["inputs"] = ["enrich"]
    other["flow"] = "g"
    assert differences(one, other) == ["the flow was 'f' and is 'g'", "sink 'out' read totals and reads enrich"]


@pytest.mark.parametrize("version", ["2.7", None])
def test_another_version_of_python_is_named_where_bytecode_is_compared(version: str | None) -> None:
    without_source = [eval(f"lambda df: df.head({n})") for n in (1, 2)]  # of others the source is compared, whatever the version
    before, after = (record(fn=fn) for fn in without_source)
    before["made_with"]["Python"] = version or after["made_with"]["Python"]
    text = explain_difference(before, after)
    assert text.startswith("map_batches 'enrich' has other Python code")
    assert ("made with Python 2.7 and this is Python 3." in text) == (version is not None)


def test_another_version_of_python_is_not_named_where_source_is_compared() -> None:
    before, after = record(), record(fn=lambda df: df.head(2))
    before["made_with"]["Python"] = "2.7"
    assert explain_difference(before, after) == "map_batches 'enrich' has other Python code"


def test_of_many_differences_the_first_are_told() -> None:
    before, after = record(), record("amount > 1", lambda df: df.head(2), md.sum("amount"))
    after["operators"]["out"]["inputs"] = ["enrich"]
    text = explain_difference(before, after)
    assert text.endswith("; and 1 more")
    assert "'out'" not in text

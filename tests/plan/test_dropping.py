"""Whose state goes with a change: what is named, or all that the change needs; and what is said of it before and after."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from tests.plan.streams import Nowhere, rows

import meander as md
from meander.errors import FlowError
from meander.plan.change.effects import Effects
from meander.plan.change.modify import Remove, Replace, StateRules, modify
from meander.plan.graph import Plan


def plan() -> Plan:
    flow = md.Flow("sales")
    read = flow.source("orders", rows(customer=pl.String, amount=pl.Int64, day=pl.Int64, at=pl.Datetime("us")))
    keyed = read.watermark("at", grace="1h", name="times").key_by("customer")
    totals = keyed.window(md.tumbling("1d")).aggregate(md.sum("amount").alias("total"), name="totals")
    totals.key_by("total").top(3, by="customer", name="best").sink("out", Nowhere())
    read.key_by("day").aggregate(md.count().alias("n"), name="days").sink("by_day", Nowhere())
    return flow.plan()


ADDED = Replace("totals", md.aggregate(md.sum("amount").alias("total"), md.count().alias("n")))
RETYPED = Replace("totals", md.aggregate(md.mean("amount").alias("total"), md.count().alias("n")))


def fates(*changes: Any, drop: Any = ()) -> Effects:
    return modify(plan(), changes, StateRules(drop))[1]


def test_an_aggregate_more_needs_the_state_of_what_keeps_its_rows_and_not_its_own() -> None:
    with pytest.raises(FlowError, match=r"top 'best' cannot go on with its state.*give drop_state=\['best'\]") as caught:
        fates(ADDED)
    assert "totals'" not in str(caught.value)
    named = fates(ADDED, drop=["best"])
    assert (named.drops, named.state["totals"].words()) == ({"best"}, "kept, with the new n.n")
    assert fates(ADDED, drop=True).state == named.state
    assert fates(ADDED, drop="best").state == named.state


def test_what_is_not_named_is_not_dropped_and_the_refusal_names_all_of_it() -> None:
    with pytest.raises(FlowError, match=r"'totals' cannot go on.*'best' cannot go on.*drop_state=\['best', 'totals'\]"):
        fates(RETYPED)
    with pytest.raises(FlowError, match=r"top 'best' cannot go on with its state") as caught:
        fates(RETYPED, drop=["totals"])
    assert "aggregate 'totals'" not in str(caught.value)
    assert fates(RETYPED, drop=["totals", "best"]).drops == fates(RETYPED, drop=True).drops == {"totals", "best"}


def test_what_is_named_is_dropped_also_where_it_could_go_on() -> None:
    assert fates(ADDED, drop=["best", "totals"]).drops == {"totals", "best"}
    assert fates(ADDED, drop=["best", "days"]).drops == {"best", "days"}


def test_what_goes_with_its_operator_is_named_too() -> None:
    removal = [Remove("by_day"), Remove("days")]
    with pytest.raises(FlowError, match=r"'days' keeps state, which goes with it; give drop_state=\['days'\]"):
        fates(*removal)
    effects = fates(*removal, drop=["days"])
    assert (effects.to_json()["drops"], effects.state["totals"].words()) == (["days"], "kept")


def test_a_name_that_nothing_has_is_refused() -> None:
    with pytest.raises(
        FlowError, match="drop_state: 'bets' has no state; operators with state are totals, best, days; did you mean 'best'"
    ):
        fates(ADDED, drop=["bets"])


@pytest.mark.parametrize(
    "rules",
    [
        {"drop": 3},
        {"drop": [3]},
        {"drop": None},
        {"upgrade": 3},
        {"upgrade": {"totals": 3}},
        {"backfill": [1]},
        {"backfill": {"totals": 3}},
    ],
    ids=repr,
)
def test_rules_for_state_that_make_no_sense_are_refused_with_what_would(rules: Any) -> None:
    with pytest.raises(FlowError, match=r"(it is the names of operators|it has a function for|it has the values of new aggregates)"):
        StateRules(**rules)

"""Stages follow from the plan alone: one exchange in front of every stateful operator."""

from __future__ import annotations

from tests.plan.streams import Nowhere, rows

from meander import aggregates as md
from meander.flow import Flow
from meander.plan.stages import Stage, derive_stages, levels


def test_a_stateless_flow_is_one_stage() -> None:
    flow = Flow("f")
    flow.source("in", rows()).filter("amount > 0", name="big").sink("out", Nowhere())
    assert derive_stages(flow.plan()) == (Stage(1, ("in", "big", "out"), ()),)


def test_every_stateful_operator_in_a_chain_begins_a_stage() -> None:
    flow = Flow("f")
    first = flow.source("in", rows()).deduplicate("customer", name="once")
    first.filter("amount > 1", name="rich").key_by("amount").aggregate(md.count(), name="ranks").sink("out", Nowhere())
    assert derive_stages(flow.plan()) == (
        Stage(1, ("in",), ()),
        Stage(2, ("once", "rich"), ("once",)),
        Stage(3, ("ranks", "out"), ("ranks",)),
    )


def test_aggregates_of_the_same_level_share_a_stage() -> None:
    flow = Flow("f")
    orders = flow.source("in", rows())
    orders.key_by("customer").aggregate(md.count(), name="a").sink("out_a", Nowhere())
    orders.key_by("amount").aggregate(md.count(), name="b").sink("out_b", Nowhere())
    assert derive_stages(flow.plan())[1] == Stage(2, ("a", "out_a", "b", "out_b"), ("a", "b"))


def test_a_union_waits_for_its_deepest_input() -> None:
    flow = Flow("f")
    orders = flow.source("in", rows())
    counts = orders.key_by("customer").aggregate(md.count().alias("n"), name="counts")
    ones = orders.select("customer", "cast(1 as bigint) as n", name="ones")
    ones.union(counts, name="both").sink("out", Nowhere())
    assert levels(flow.plan()) == {"in": 0, "counts": 1, "ones": 0, "both": 1, "out": 1}

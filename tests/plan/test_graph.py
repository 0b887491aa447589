"""A plan that exists can run: what cannot is refused when it is built, by name."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.plan.streams import Nowhere, rows

from meander import aggregates as md
from meander.connect.files import files
from meander.connect.partitioned import parquet
from meander.errors import FlowError
from meander.flow import Flow
from meander.plan.explain import explain
from meander.plan.graph import Node, Plan
from meander.plan.operators import MapBatches, SinkOp, SourceOp
from meander.plan.unplaced import filter

SOURCE = Node("in", SourceOp(rows()))
SINK = Node("out", SinkOp(Nowhere()), ("big",))
BIG = Node("big", filter("amount > 0"), ("in",))


def test_nodes_given_in_any_order_are_ordered_from_sources_to_sinks() -> None:
    assert [node.name for node in Plan(1, "f", (SINK, BIG, SOURCE)).nodes] == ["in", "big", "out"]


BAD_GRAPHS: list[tuple[tuple[Node, ...], str]] = [
    ((SOURCE, BIG, SINK, Node("big", filter("amount > 1"), ("in",))), "filter 'big': there is already a filter of that name"),
    ((SOURCE, BIG, SINK, Node("Big", filter("amount > 1"), ("in",))), "filter 'Big': it differs from filter 'big' only in case"),
    ((SOURCE, Node("big", filter("amount > 0"), ("inn",)), SINK),
     "filter 'big': its input 'inn' does not exist; operators are in, big, out; did you mean 'in'?"),
    ((SOURCE, BIG, SINK, Node("x", filter("amount > 0"), ("out",))), "filter 'x': its input 'out' is a sink"),
    ((SOURCE, Node("big", filter("amount > 0"), ("b",)), Node("b", filter("amount > 0"), ("big",)), SINK),
     "there is a cycle among big, b, out"),
    ((SOURCE, BIG, SINK, Node("lost", filter("amount > 0"), ("in",))), "filter 'lost': its rows reach no sink"),
    ((SOURCE, BIG), "flow 'f': it has no sink"),
    ((), "flow 'f': it has no source"),
    ((Node("../in", SourceOp(rows())),), "source '../in': not a valid name"),
    ((SOURCE, BIG, Node("out", SinkOp(Nowhere()), ("in", "big"))), "sink 'out': it has 2 inputs and takes 1"),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "message"), BAD_GRAPHS, ids=[message for _, message in BAD_GRAPHS])
def test_a_graph_that_cannot_run_is_refused(nodes: tuple[Node, ...], message: str) -> None:
    with pytest.raises(FlowError) as caught:
        Plan(1, "f", nodes)
    assert message in str(caught.value)


def test_a_plan_answers_for_its_nodes_schemas_and_consumers() -> None:
    plan = Plan(1, "f", (SOURCE, BIG, SINK))
    assert plan.node("big") is BIG
    assert plan.schema("out") == rows().schema()
    assert plan.consumers("in") == ("big",)
    assert plan.consumers("out") == ()
    with pytest.raises(FlowError, match="there is no operator 'bigg'; operators are in, big, out; did you mean 'big'"):
        plan.node("bigg")


def test_a_plan_survives_pickling() -> None:
    plan = Plan(3, "f", (SOURCE, BIG, SINK))
    again = pickle.loads(pickle.dumps(plan))
    assert again.digest() == plan.digest()
    assert again.version == 3


def with_function(fn: Callable[[pl.DataFrame], pl.DataFrame]) -> str:
    return Plan(1, "f", (SOURCE, Node("big", MapBatches(fn), ("in",)), SINK)).digest()


def test_the_digest_is_of_what_runs_and_not_of_version_or_order() -> None:
    digest = Plan(1, "f", (SOURCE, BIG, SINK)).digest()
    assert Plan(2, "f", (SINK, SOURCE, BIG)).digest() == digest
    assert Plan(1, "f", (SOURCE, Node("big", filter("amount > 1"), ("in",)), SINK)).digest() != digest
    assert with_function(lambda df: df.head(1)) != with_function(lambda df: df.head(2))
    assert with_function(lambda df: df.head(2)) == with_function(lambda df: df.head(2))


def test_the_digest_says_what_is_read_and_written_and_not_where(tmp_path: Path) -> None:
    def digest(folder: str, out: str = "out", **options: Any) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        flow = Flow("f")
        described = files(tmp_path / folder, **{"format": "json", "schema": {"k": "string", "a": "long"}, **options})
        flow.source("in", described).key_by("k").aggregate(md.sum("a"), name="sums").sink("out", parquet(tmp_path / out))
        assert str(tmp_path / folder) in explain(flow.plan())
        assert str(tmp_path / out) in explain(flow.plan())
        return flow.plan().digest()

    one = digest("here")
    assert digest("there", "elsewhere", max_files_per_epoch=3, settle=9, after="archive") == one
    assert digest("here", format="csv") != one
    assert digest("here", schema={"k": "string", "a": "double"}) != one
    assert digest("here", optional=["a"]) != one


@pytest.mark.many
def test_the_digest_is_the_same_in_another_process_with_another_hash_seed() -> None:
    script = "from tests.plan.test_graph import digest_of_a_flow_with_code; print(digest_of_a_flow_with_code())"
    found = {
        subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONPATH": "src:.", "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert found == {digest_of_a_flow_with_code() + "\n"}


def digest_of_a_flow_with_code() -> str:
    def keep(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.filter(frame["customer"].is_in(["a", "b"])) if "x" not in {"a", "b", "c", "d"} else frame

    flow = Flow("f")
    stream = flow.source("in", rows()).filter("customer in ('a', 'b')").map_batches(keep)
    stream.key_by("customer").aggregate(md.sum("amount"), md.top_k("amount", 3)).sink("out", Nowhere())
    return flow.plan().digest()

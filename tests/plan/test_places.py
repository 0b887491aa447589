"""Whether a source or a sink that came with a modification, or the one of the flow's file, is in force at a start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.local import Script

import meander as md
from meander.plan.change.modify import modify
from meander.plan.change.places import Brought, bring, place_of, settle
from meander.plan.graph import Plan
from meander.plan.operators import SinkOp


def plan_of(sink: Any) -> Plan:
    flow = md.Flow("f")
    flow.source("events", Script({"k": pl.Int64()}, ())).sink("out", sink)
    return flow.plan()


@pytest.fixture
def old(tmp_path: Path) -> Plan:
    return plan_of(md.parquet(tmp_path / "old"))


def changed(before: Plan, sink: Any, brought: dict[str, Brought], given: Plan) -> tuple[Plan, dict[str, Brought]]:
    after, _ = modify(before, [md.Replace("out", sink)])
    return after, bring(brought, before, after, given)


def folder(plan: Plan, name: str = "out") -> str:
    op = plan.node(name).op
    assert isinstance(op, SinkOp)
    return Path(op.describe().split()[-1]).name


def test_what_was_changed_goes_on_where_the_file_is_the_old_one_or_says_something_else(tmp_path: Path, old: Plan) -> None:
    new, brought = changed(old, md.parquet(tmp_path / "new"), {}, old)
    for given in (old, plan_of(md.parquet(tmp_path / "elsewhere" / "old"))):
        settled = settle(brought, new, given)
        assert (folder(given.with_ends(settled.ends)), settled.brought) == ("new", brought)
        assert "in force is parquet" in settled.notices[0]
        assert "`meander apply FLOW.py`" in settled.notices[0]


def test_a_file_that_says_what_is_in_force_counts_again_and_its_folder_may_move(tmp_path: Path, old: Plan) -> None:
    new, brought = changed(old, md.parquet(tmp_path / "new"), {}, old)
    edited = settle(brought, new, plan_of(md.parquet(tmp_path / "new")))
    assert (edited.ends, edited.notices) == ({}, ())
    moved = settle(edited.brought, new, plan_of(md.parquet(tmp_path / "moved")))
    assert (moved.ends, moved.notices) == ({}, ())
    outdated = settle(moved.brought, new, old)
    assert folder(old.with_ends(outdated.ends)) == "new"
    assert outdated.notices


def test_what_is_changed_back_is_what_the_file_says(tmp_path: Path, old: Plan) -> None:
    new, brought = changed(old, md.parquet(tmp_path / "new"), {}, old)
    back, brought = changed(new, md.parquet(tmp_path / "old"), brought, old)
    assert brought["out"]["agreed"]
    assert settle(brought, back, old).notices == ()
    assert settle(brought, back, plan_of(md.parquet(tmp_path / "new"))).notices


def test_functions_are_told_apart_by_their_code_and_not_by_what_they_have_collected() -> None:
    calls: list[int] = []

    def sink(table: str) -> Any:
        return md.foreach_batch(lambda frame, epoch: calls.append(len(table)))

    before = place_of(SinkOp(sink("a")))
    calls.append(1)
    assert place_of(SinkOp(sink("a"))) == before
    assert place_of(SinkOp(sink("b"))) != before
    assert place_of(SinkOp(md.foreach_batch(lambda frame, epoch: None))) != before


def test_limits_of_a_source_are_a_part_of_its_place(tmp_path: Path) -> None:
    places = [
        place_of(plan_with(md.files(tmp_path, schema={"k": "string"}, max_files_per_epoch=limit)).node("events").op)  # type: ignore[arg-type]
        for limit in (None, 5, 5)
    ]
    assert places[0] != places[1] == places[2]


def plan_with(source: Any) -> Plan:
    flow = md.Flow("f")
    flow.source("events", source).sink("out", md.memory())
    return flow.plan()

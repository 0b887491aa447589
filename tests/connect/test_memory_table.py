"""``md.memory(table=True)`` shows the rows that a stream of changes has now, whatever the epochs, the slots and the restarts."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.local import Local, Script
from tests.plan.streams import Nowhere, rows
from tests.task.changing import Drawn

import meander as md
from meander.connect import memory_table
from meander.connect.memory import memory
from meander.connect.net import SIGN
from meander.connect.sink import Staged, StagedFile
from meander.errors import ConfigError, FlowError
from meander.plan.change.modify import Insert, Remove, Replace, StateRules, modify
from meander.plan.changes import find_retracting
from meander.plan.graph import Plan

COLUMNS = {"k": pl.Int64(), "v": pl.Int64()}


def staged(sink: Any, frame: pl.DataFrame, slot: int = 0) -> Staged:
    data = sink.encode(frame)
    return Staged(StagedFile("staged", slot, frame.height), lambda: data, None)


def run(folder: Path, epochs: list[list[tuple[Any, ...]]], make: Any, out: Any) -> Local:
    flow = md.Flow("f")
    make(flow.source("in", Script(COLUMNS, tuple(((0, tuple(some)),) for some in epochs)))).sink("out", out)
    local = Local(flow, folder, 2)
    local.run()
    return local


def brackets(s: md.Stream) -> md.Stream:
    totals = s.key_by("k").aggregate(md.sum("v").alias("v"), name="totals")
    return totals.with_columns("v // 5 AS bracket").key_by("bracket").aggregate(md.count().alias("n"), name="brackets")


@pytest.mark.many
@pytest.mark.parametrize("seed", range(60))
def test_the_table_of_any_changes_is_the_query_over_all_input(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing else in the flow that needs to be told which rows are gone."""
    monkeypatch.setattr(memory_table, "_FEWEST", 5)
    drawn, out = Drawn(seed), memory(table=True)
    columns, expected = drawn.expected()
    drawn.drive(tmp_path, lambda stream: stream.sink("out", out))
    frame = out.frame()
    found = frame.select(columns).rows() if frame.width else []
    assert sorted(map(repr, found)) == sorted(map(repr, expected)), drawn.words


def test_rows_that_nobody_is_left_in_are_gone(tmp_path: Path) -> None:
    out = memory(table=True)
    run(tmp_path, [[(1, 1), (2, 7)], [(1, 4)], [(2, 3)]], brackets, out)
    assert out.rows() == [(1, 1), (2, 1)]
    assert out.table().num_rows == 2


def test_the_sink_alone_has_operators_say_which_rows_are_gone(tmp_path: Path) -> None:
    flow = md.Flow("f")
    few = flow.source("in", Script(COLUMNS, ())).key_by("k").aggregate(md.sum("v").alias("v"), name="totals").filter("v < 5", name="few")
    few.sink("out", md.memory(table=True))
    plan = flow.plan()
    assert find_retracting(plan.nodes, plan.changes) == {"few", "totals"}
    assert "rows: the table of changes by k" in flow.explain()


def test_what_comes_and_goes_within_an_epoch_is_not_staged(tmp_path: Path) -> None:
    """A union has both at once: a row that goes on one side, and an equal one that comes on the other."""
    out, log = memory(table=True), md.memory()

    def swap(s: md.Stream) -> md.Stream:
        first = s.key_by("k").aggregate(md.sum("v").alias("v"), name="first").filter("v < 5")
        second = s.key_by("k").aggregate(md.sum("v").alias("v"), name="second").filter("v >= 5").with_columns("v - v + 1 AS v")
        both = first.union(second)
        both.changes().sink("log", log)
        return both

    local = run(tmp_path, [[(1, 1)], [(1, 7)]], swap, out)
    assert sorted(log.frame().rows()) == [(1, 1, -1), (1, 1, 1), (1, 1, 1)]
    assert out.rows() == [(1, 1)]
    assert "out" not in local.manifest.staged


def test_equal_rows_are_there_as_often_as_they_came(tmp_path: Path) -> None:
    out = memory(table=True)
    run(tmp_path, [[(1, 5), (2, 5)], [(3, 5)], [(2, 1)]], lambda s: s.key_by("k").aggregate(md.sum("v").alias("v")).select("v"), out)
    assert out.rows() == [(5,), (5,), (6,)]


def test_windows_that_come_again_are_there_once(tmp_path: Path) -> None:
    out = memory(table=True)

    def windows(stream: md.Stream) -> md.Stream:
        timed = stream.with_columns(pl.from_epoch("v", time_unit="s").alias("ts")).watermark("ts", grace="1h")
        return timed.key_by("k").window(md.session("5s")).aggregate(md.count().alias("n"), emit="update").select("k", "n")

    run(tmp_path, [[(1, 10), (1, 18)], [(1, 14)], [(2, 14)]], windows, out)
    assert out.rows() == [(1, 3), (2, 1)]


def test_of_an_append_only_stream_it_is_all_rows(tmp_path: Path) -> None:
    out = memory(table=True)
    run(tmp_path, [[(1, 5), (1, 5)], [(None, 2)]], lambda s: s, out)
    assert out.rows() == [(None, 2), (1, 5), (1, 5)]


def test_the_same_epoch_counts_once() -> None:
    out = memory(table=True)
    bag = pl.DataFrame({"k": ["a", "b"], SIGN: pl.Series([1, 2], dtype=pl.Int64)})
    for _ in range(2):
        out.publish(1, [staged(out, bag)])
        assert out.rows() == [("a",), ("b",), ("b",)]


def test_a_table_that_began_in_mid_stream_says_so(tmp_path: Path) -> None:
    source = [[(1, 1)], [(1, 4)]]
    run(tmp_path, source[:1], brackets, memory(table=True))
    late = memory(table=True)
    flow = md.Flow("f")
    brackets(flow.source("in", Script(COLUMNS, tuple(((0, tuple(some)),) for some in [*source, [(1, 9)]])))).sink("out", late)
    local = Local(flow, tmp_path, 2)
    local.run()
    assert late.rows() == [(2, 1)], "the last epoch is published again, so that this one has all"
    other = memory(table=True)
    other.publish(9, [staged(other, pl.DataFrame({"k": ["a"], SIGN: pl.Series([-1], dtype=pl.Int64)}))])
    with pytest.raises(ConfigError, match="the flow has run before, with another object"):
        other.rows()
    for what in (other.epochs, other.clear):
        with pytest.raises(ConfigError, match=r"memory\(table=True\)"):
            what()


def test_it_travels_without_its_rows() -> None:
    out = memory(table=True)
    out.publish(1, [staged(out, pl.DataFrame({"k": [1]}))])
    copy = pickle.loads(pickle.dumps(out))
    assert type(copy) is type(out)
    assert copy.rows() == []


def test_rows_that_a_table_cannot_follow_are_refused() -> None:
    flow = md.Flow("f")
    stream = flow.source("in", rows()).watermark("ts", name="time").key_by("customer")
    totals = stream.aggregate(md.count().alias("n"), name="totals")
    with pytest.raises(FlowError, match="there is nothing else to read; put it in front of"):
        totals.changes().sink("log", memory(table=True))
    with pytest.raises(FlowError, match="deterministic=True if it does not"):
        totals.map_batches(lambda frame: frame).sink("mapped", memory(table=True))
    with pytest.raises(FlowError, match=f"a column is called '{SIGN}'"):
        totals.with_columns(f"1 AS {SIGN}").sink("sign", memory(table=True))


def chained(above: int) -> md.Flow:
    flow = md.Flow("f")
    totals = flow.source("in", rows()).key_by("customer").aggregate(md.count().alias("n"), name="totals")
    totals.filter(f"n > {above}", name="many").sink("out", md.memory(table=True))
    return flow


def test_a_table_is_another_one_where_what_it_is_told_begins_anew() -> None:
    plan: Plan = chained(1).plan()
    another = Replace("many", md.filter("n > 2"))
    for rules in (StateRules(), StateRules(drop=("totals",))):
        with pytest.raises(FlowError, match=r"'out' gets removals .*"):
            modify(plan, [another], rules)
    with pytest.raises(FlowError, match="give it another name, so that it is another table"):
        modify(plan, [another], StateRules(drop=("totals",)))
    with pytest.raises(FlowError, match="must have been given all removed rows"):
        modify(plan, [Insert("tap", md.memory(table=True), after="many")])
    modify(plan, [another, Remove("out"), Insert("out2", md.memory(table=True), after="many")], StateRules(drop=("totals",)))
    modify(plan, [Insert("plain", Nowhere(), after="many")])

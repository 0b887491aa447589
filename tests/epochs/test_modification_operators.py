"""Processors, joins and whole flows that are changed while they run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import polars as pl
import pytest
from tests.local import Local, Script, constants

import meander as md
from meander.clock import FakeClock
from meander.errors import FlowError, Rejected
from meander.plan.change.become import Become
from meander.plan.change.modify import Insert, Remove, Replace
from meander.state import compaction as compaction_module

COLUMNS: dict[str, Any] = {"k": pl.Int64(), "v": pl.Int32()}
TIMED: dict[str, Any] = {"k": pl.Int64(), "v": pl.Int32(), "ts": pl.Datetime("us")}
SECOND = 1_000_000


class Count(md.Processor):
    output: ClassVar[Any] = {"n": "int64"}
    n = md.value("int64", default=0)

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        state.n += len(rows)
        yield (state.n,)


class CountAndKeep(md.Processor):
    output: ClassVar[Any] = {"n": "int64", "vs": pl.List(pl.Int64), "names": "int64", "last": "int64"}
    n = md.value("int64", default=0)
    vs = md.list_of("int64")
    names = md.map_of("string", "int64")
    last = md.value("int64")

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        state.n += len(rows)
        for row in rows:
            state.vs.append(row.v)
            state.names[str(row.v)] = 1
        yield (state.n, list(state.vs), len(state.names), state.last)
        state.last = rows[-1].v


class CountFrom(md.Processor):
    output: ClassVar[Any] = {"n": "int64"}
    n = md.value("int64", default=0)
    base = md.value("int64", default=100)

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        state.n += len(rows)
        yield (state.n + state.base,)


class Fails(md.Processor):
    output: ClassVar[Any] = {"n": "int64"}
    n = md.value("int64", default=0)

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        raise ZeroDivisionError("a typo")


def epochs_of(*epochs: list[tuple[Any, ...]]) -> Any:
    return tuple(((0, tuple(rows)),) for rows in epochs)


def rows(out: Any, epoch: int) -> list[tuple[Any, ...]]:
    return sorted(out.epochs()[epoch].rows())


def accepted(local: Local, *changes: Any, **options: Any) -> Any:
    trial = local.propose(*changes, **options)
    while not trial.done.done():  # what was decided for other sources comes first
        assert local.step()
    return trial.done.result(0)


def counting(epochs: Any) -> tuple[md.Flow, Any]:
    flow, out = md.Flow("counting"), md.memory()
    flow.source("events", Script(COLUMNS, epochs)).key_by("k").process(Count, name="counted").sink("out", out)
    return flow, out


@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_variables_of_a_processor_come_and_go(tmp_path: Path, parallelism: int) -> None:
    flow, out = counting(epochs_of(*([(1, 1), (2, 2), (9, 9)], [(1, 5)], [(1, 6), (2, 7)], [(1, 8)], [(1, 3), (9, 1)], [(1, 4)])))
    with constants(FEWEST=(compaction_module, 2)):
        local = Local(flow, tmp_path, parallelism)
        local.step()
        local.step()
        accepted(local, Replace("counted", md.process(CountAndKeep)))
        assert rows(out, 3) == [(1, 3, [6], 1, None), (2, 2, [7], 1, None)]
        shown = pl.DataFrame(pl.from_arrow(md.read_state(tmp_path, "counted"))).sort("k")
        assert shown.select("k", "n", "vs").rows() == [(1, 3, [6]), (2, 2, [7]), (9, 1, [])]
        local.step()
        assert rows(out, 4) == [(1, 4, [6, 8], 2, 6)]
        local = Local(flow, tmp_path, parallelism)
        accepted(local, Replace("counted", md.process(Count)))
        assert rows(out, 5) == [(1, 5), (9, 2)]
        with pytest.raises(FlowError, match="'vs' was removed from it before"):
            local.propose(Replace("counted", md.process(CountAndKeep)))
        local.run()
    assert rows(out, 6) == [(1, 6)]


def test_a_new_variable_with_a_default_is_filled_for_keys_from_before(tmp_path: Path) -> None:
    flow, out = counting(epochs_of([(1, 1), (2, 2)], [(1, 5), (3, 3)], [(2, 1)]))
    local = Local(flow, tmp_path)
    local.step()
    with pytest.raises(FlowError, match="keys from before have no 'base'"):
        local.propose(Replace("counted", md.process(CountFrom)))
    accepted(local, Replace("counted", md.process(CountFrom)), backfill={"counted": {"base": 1000}})
    assert rows(out, 2) == [(1, 1002), (3, 101)]
    local.run()
    assert rows(out, 3) == [(2, 1002)]


def test_a_processor_that_fails_is_taken_back_without_dead_letters(tmp_path: Path) -> None:
    flow, out = counting(epochs_of([(1, 1)], [(1, 5), (3, 3)], [(2, 1)]))
    local = Local(flow, tmp_path)
    local.step()
    trial = local.propose(Replace("counted", md.process(Fails)))
    local.step()
    with pytest.raises(Rejected, match=r"(?s)ZeroDivisionError: a typo"):
        trial.done.result(0)
    assert rows(out, 2) == [(1, 2), (3, 1)]
    local.run()
    assert (rows(out, 3), local.manifest.totals.get("dead_letters", 0)) == ([(2, 1)], 0)


def test_a_watermark_on_times_that_are_null_is_taken_back_without_dead_letters(tmp_path: Path) -> None:
    flow, out = md.Flow("timed"), md.memory()
    flow.source("events", Script(TIMED, epochs_of([(1, 1, 1)], [(1, 1, None)], [(1, 1, None)]))).filter("v > 0", name="positive").sink(
        "out", out
    )
    local = Local(flow, tmp_path)
    local.step()
    trial = local.propose(Insert("time", md.watermark("ts"), after="positive"))
    local.step()
    with pytest.raises(Rejected, match="the event time ts is null"):
        trial.done.result(0)
    assert (len(rows(out, 2)), local.manifest.totals.get("dead_letters", 0)) == (1, 0)


def joined(left: Any, right: Any, where: str | None = None, within: str = "10s") -> tuple[md.Flow, Any]:
    flow, out = md.Flow("joined"), md.memory()
    first = flow.source("left", Script(TIMED, left)).watermark("ts", grace="5s", name="left_time")
    second = flow.source("right", Script(TIMED, right)).watermark("ts", grace="5s", name="right_time")
    first.join(second, on="k", within=within, where=where, name="pairs").select("k", "v", "v_right", name="narrow").sink("out", out)
    return flow, out


@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_a_join_goes_on_with_its_rows_under_another_condition(tmp_path: Path, parallelism: int) -> None:
    left = epochs_of([(1, 1, SECOND), (2, 2, SECOND)], [(1, 5, 2 * SECOND)], [(1, 6, 3 * SECOND)])
    right = epochs_of([(1, 3, SECOND)], [(1, 4, 2 * SECOND), (2, 9, SECOND)], [(1, 7, 3 * SECOND)])
    flow, out = joined(left, right)
    local = Local(flow, tmp_path, parallelism)
    local.step()
    assert rows(out, 1) == [(1, 1, 3)]
    narrower, _ = joined(left, right, where="v < v_right")
    accepted(local, Become(narrower.plan()))
    assert rows(out, 2) == [(1, 1, 4), (2, 2, 9)]
    wider, _ = joined(left, right, within="20s")
    with pytest.raises(FlowError, match="join 'pairs' cannot go on with its state: its bounds"):
        local.propose(Become(wider.plan()))
    local = Local(narrower, tmp_path, parallelism)  # a flow that was written as it was modified
    local.run()
    assert local.manifest.plan["version"] == 2


def written(threshold: int, more: bool = False, second: bool = False, source: str = "events") -> tuple[md.Flow, Any]:
    """Versions of one flow's file."""
    flow, out = md.Flow("written"), md.memory()
    ones = epochs_of(*([(1, 1), (2, 5), (3, 9)] for _ in range(8)))
    events = flow.source(source, Script(COLUMNS, ones)).filter(f"v > {threshold}", name="positive")
    if second:
        events = events.union(flow.source("others", Script(COLUMNS, ones)), name="both")
    aggs = [md.count().alias("n"), md.sum("v").alias("total"), *([md.max("v").alias("most")] if more else [])]
    events.key_by("k").aggregate(*aggs, name="totals").sink("out", out)
    return flow, out


def test_a_flow_becomes_what_its_file_says(tmp_path: Path) -> None:
    flow, out = written(0)
    local = Local(flow, tmp_path)
    local.step()
    with pytest.raises(FlowError, match="runs as it is written already"):
        local.propose(Become(written(0)[0].plan()))
    done = accepted(local, Become(written(4, more=True)[0].plan()))
    assert (done.version, done.effects["state"]) == (2, {"totals": "kept, with the new most.value"})
    assert rows(out, 2) == [(2, 2, 10, 5), (3, 2, 18, 9)]  # into the sink that runs, although the file has another object
    accepted(local, Become(written(4, more=True, second=True)[0].plan()))
    first = local.manifest.epoch
    assert rows(out, first)[0] == (1, 2, 2, 1)
    local.step()
    assert rows(out, first + 1)[0] == (1, 3, 3, 1)
    accepted(local, Become(written(0)[0].plan()))
    assert set(local.manifest.offsets) == {"events"}
    local.run()
    again = Local(written(0)[0], tmp_path)
    assert again.manifest.plan["version"] == 4
    assert again.manifest.totals.get("dead_letters", 0) == 0


def test_a_source_of_another_name_takes_over_and_the_old_one_does_not_hold_time_back(tmp_path: Path) -> None:
    def version(source: str) -> tuple[md.Flow, Any]:
        flow, out = md.Flow("sources"), md.memory()
        future = epochs_of(*([(1, 1, i * 10 * SECOND)] for i in range(1, 8)))
        events = flow.source(source, Script(TIMED, future)).watermark("ts", name="time")
        events.key_by("k").window(md.tumbling("10s")).aggregate(md.count().alias("n"), name="w").sink("out", out)
        return flow, out

    flow, out = version("first")
    local = Local(flow, tmp_path)
    local.step()
    accepted(local, Become(version("second")[0].plan()))
    assert list(local.manifest.offsets) == ["second"]
    local.run(flush=True)
    assert {part for value in local.manifest.times.values() for part in value["heard"]} == {"second/0"}
    assert out.frame().height == 7


def test_columns_that_were_removed_stay_so_where_the_flow_is_started_as_it_is_written_now(tmp_path: Path) -> None:
    flow, _ = written(0, more=True)
    local = Local(flow, tmp_path)
    local.step()
    accepted(local, Become(written(0)[0].plan()))
    for _ in range(2):
        local = Local(written(0)[0], tmp_path)
        with pytest.raises(FlowError, match=r"'most.value' was removed from it before"):
            local.propose(Become(written(0, more=True)[0].plan()))
        local.step()


def test_become_is_all_there_is_to_do(tmp_path: Path) -> None:
    local = Local(written(0)[0], tmp_path)
    with pytest.raises(FlowError, match="leave the other changes out"):
        local.propose(Become(written(1)[0].plan()), Remove("positive"))
    other = md.Flow("another")
    other.source("events", Script(COLUMNS, ())).sink("out", md.memory())
    with pytest.raises(FlowError, match="the flow that runs is 'written', and this one is 'another'"):
        local.propose(Become(other.plan()))


class Careful(md.Aggregator):
    """One that knows no nulls: a sum as long as the first state is one."""

    def init(self) -> dict[str, pl.Expr]:
        return {"n": pl.col(self.inputs[0]).count().cast(pl.Int64)}

    def merge(self) -> dict[str, pl.Expr]:
        return {"n": self.state("n").sum() + 0 * self.state("n").first()}

    def finish(self) -> pl.Expr:
        return self.state("n")


def test_an_aggregate_of_ones_own_that_is_new_begins_with_what_it_makes_of_no_rows(tmp_path: Path) -> None:
    flow, out = written(0)
    local = Local(flow, tmp_path)
    local.step()
    accepted(local, Replace("totals", md.aggregate(md.count().alias("n"), Careful("v").alias("mine"))))
    local.step()
    assert rows(out, 3) == [(1, 3, 2), (2, 3, 2), (3, 3, 2)]


def branches(epochs: Any) -> tuple[md.Flow, Any, Any]:
    """Rows above 0 are counted, those below are not."""
    flow, above, below = md.Flow("branches"), md.memory(), md.memory()
    events = flow.source("events", Script(COLUMNS, epochs))
    events.filter("v > 0", name="positive").key_by("k").aggregate(md.count().alias("n"), name="totals").sink("above", above)
    events.filter("v < 0", name="negative").map_batches(lambda frame: frame, name="clean").sink("below", below)
    return flow, above, below


def typo(frame: pl.DataFrame) -> pl.DataFrame:
    if frame.height:
        raise ZeroDivisionError("a typo")
    return frame


@pytest.mark.parametrize("restarts", [False, True])
def test_rows_that_come_elsewhere_prove_nothing(tmp_path: Path, restarts: bool) -> None:
    flow, above, below = branches(epochs_of([(1, 1)], [(1, 2)], [(1, 3)], [(1, -4), (1, 4)], [(1, -5)]))
    local = Local(flow, tmp_path)
    local.step()
    accepted(local, Replace("clean", md.map_batches(typo)))
    local.step()
    assert local.manifest.plan["version"] == 2
    if restarts:
        local = Local(flow, tmp_path)
    local.run()
    assert (local.manifest.plan["version"], local.manifest.totals.get("dead_letters", 0)) == (1, 0)
    assert (rows(above, 4), rows(below, 4), rows(below, 5)) == ([(1, 4)], [(1, -4)], [(1, -5)])
    assert [record["verdict"] for record in local.modifier.history()] == ["taken back"]


def test_what_is_stored_as_only_the_new_plan_stores_is_not_taken_back(tmp_path: Path) -> None:
    flow, above, below = branches(epochs_of([(1, 1)], [(1, 2)], [(1, -4), (1, 4)], [(1, 5)]))
    local = Local(flow, tmp_path)
    local.step()
    more = md.aggregate(md.count().alias("n"), md.max("v").alias("most"))
    accepted(local, Replace("totals", more), Replace("clean", md.map_batches(typo)))
    assert "unproven" not in local.manifest.plan
    local.run()
    assert (local.manifest.plan["version"], local.manifest.totals["dead_letters"]) == (2, 1)
    assert (rows(above, 4), below.epochs()) == ([(1, 4, 5)], {})


def test_after_many_epochs_a_change_that_nothing_comes_to_is_taken_for_proven(tmp_path: Path) -> None:
    flow, _, _ = branches(epochs_of(*([(1, 1)] for _ in range(18))))
    local = Local(flow, tmp_path)
    accepted(local, Replace("clean", md.map_batches(typo)))
    assert "unproven" in local.manifest.plan
    local.run()
    assert "unproven" not in local.manifest.plan
    assert local.loop.trials.quiet


class Reminds(md.Processor):
    """Emits a row when its timer fires: in an epoch without input."""

    output: ClassVar[Any] = {"n": "int64"}
    n = md.value("int64", default=0)

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        state.n += len(rows)
        ctx.set_timer(10.0, clock="processing")
        yield (state.n,)

    def on_timer(self, key: Any, time: Any, state: Any, ctx: Any) -> Any:
        yield (-1,)


def test_a_change_is_proven_also_where_another_one_waits_and_no_input_comes(tmp_path: Path) -> None:
    flow, out = md.Flow("reminding"), md.memory()
    flow.source("events", Script(COLUMNS, epochs_of([(1, 1)]))).key_by("k").process(Reminds, name="reminded").sink("out", out)
    clock = FakeClock(start=1000.0)
    local = Local(flow, tmp_path, clock=clock)
    local.run()
    accepted(local, Insert("bad", md.map_batches(typo), after="reminded"))
    local.propose(Insert("good", md.filter("n < 100"), after="reminded"), guard=lambda before, after: True)
    clock.sleep(20.0)
    while local.step():
        pass
    assert [rows(out, epoch) for epoch in out.epochs()] == [[(1, 1)], [(1, -1)]]
    assert (local.manifest.plan["version"], local.manifest.totals.get("dead_letters", 0)) == (1, 0)

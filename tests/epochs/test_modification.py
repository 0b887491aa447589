"""Flows that are changed while they run: what is in force when, what becomes of state, and what is taken back."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.local import Local, Script, constants

import meander as md
from meander.epochs.placement import Placement
from meander.errors import ConfigError, FlowError, Rejected
from meander.plan.change.modify import Insert, Remove, Replace
from meander.state import compaction as compaction_module

COLUMNS: dict[str, Any] = {"k": pl.Int64(), "v": pl.Int32()}
Epochs = tuple[tuple[tuple[int, tuple[tuple[Any, ...], ...]], ...], ...]


def epochs_of(*epochs: list[tuple[int, int]]) -> Epochs:
    return tuple(((0, tuple(rows[::2])), (1, tuple(rows[1::2]))) for rows in epochs)


ONES = epochs_of(*([(1, 1), (2, 5), (3, -1)] for _ in range(6)))


def flow_of(epochs: Epochs = ONES) -> tuple[md.Flow, Any]:
    flow, out = md.Flow("changing"), md.memory()
    events = flow.source("events", Script(COLUMNS, epochs))
    positive = events.filter("v > 0", name="positive").map_batches(same, name="clean")
    positive.key_by("k").aggregate(md.count().alias("n"), md.sum("v").alias("total"), name="totals").sink("out", out)
    return flow, out


def same(frame: pl.DataFrame) -> pl.DataFrame:
    return frame


def fails_on_rows(frame: pl.DataFrame) -> pl.DataFrame:
    if frame.height:
        raise ZeroDivisionError("a typo")
    return frame


def rows(out: Any, epoch: int) -> list[tuple[Any, ...]]:
    return sorted(out.epochs()[epoch].rows())


def state(folder: Path, operator: str = "totals") -> list[tuple[Any, ...]]:
    return sorted(pl.DataFrame(pl.from_arrow(md.read_state(folder, operator))).rows())


def accepted(local: Local, *changes: Any, **options: Any) -> Any:
    trial = local.propose(*changes, **options)
    assert local.step()
    return trial.done.result(0)


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("ahead", [True, False])
def test_a_change_is_in_force_from_the_next_epoch_on(tmp_path: Path, small: bool, ahead: bool) -> None:
    flow, out = flow_of()
    local = Local(flow, tmp_path, small=small, ahead=ahead)
    local.step()
    done = accepted(local, Replace("positive", md.filter("v > 1")))
    assert (done.epoch, done.version) == (2, 2)
    assert rows(out, 1) == [(1, 1, 1), (2, 1, 5)]
    assert rows(out, 2) == [(2, 2, 10)]
    accepted(local, Insert("no_twos", md.filter("k <> 2"), after="positive"))
    assert 3 not in out.epochs()
    accepted(local, Remove("no_twos"), Replace("positive", md.filter("v < 2")))
    assert rows(out, 4) == [(1, 2, 2), (3, 1, -1)]
    assert local.manifest.plan["version"] == 4
    local.run()
    assert rows(out, 6) == [(1, 4, 4), (3, 3, -3)]
    assert state(tmp_path) == [(1, 4, 4), (2, 2, 10), (3, 3, -3)]


def test_stateful_operators_and_sinks_come_and_go(tmp_path: Path) -> None:
    flow, out = flow_of()
    local, tap, grand = Local(flow, tmp_path), md.memory(), md.memory()
    local.step()
    accepted(local, Insert("tap", tap, after="positive"))
    assert rows(tap, 2) == [(1, 1), (2, 5)]
    accepted(
        local,
        Insert("beside", grand, after="clean"),
        Insert("one", md.with_columns(pl.lit(1).cast(pl.Int64).alias("one")), after="clean", before="beside"),
        Insert("grand", md.aggregate(md.max("v").alias("most"), md.count().alias("n"), by="one"), after="one", before="beside"),
    )
    assert rows(grand, 3) == [(1, 5, 2)]
    assert rows(out, 3) == [(1, 3, 3), (2, 3, 15)]
    local.step()
    assert rows(grand, 4) == [(1, 5, 4)]
    accepted(local, Remove("grand"), Remove("one"), Remove("tap"), drop=["grand"])
    assert rows(grand, 5) == [(1, 1), (2, 5)]
    assert rows(out, 5) == [(1, 5, 5), (2, 5, 25)]
    assert 5 not in tap.epochs()
    assert set(local.manifest.tables) == {"totals"}
    assert set(local.loop.routing) == {"totals"}


@pytest.mark.many
@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_columns_of_state_come_and_go_without_being_rewritten(tmp_path: Path, parallelism: int) -> None:
    epochs = epochs_of([(1, 1), (2, 5), (9, 9)], *([(1, 1), (2, 5), (1, 3)] for _ in range(9)))
    flow, out = flow_of(epochs)
    with constants(FEWEST=(compaction_module, 2)):
        local = Local(flow, tmp_path, parallelism)
        local.step()
        local.step()
        both = (md.count().alias("n"), md.sum("v").alias("total"))
        accepted(
            local, Replace("totals", md.aggregate(*both, md.std("v").alias("sd"), md.max("v").alias("most"), md.collect("v").alias("vs")))
        )
        assert rows(out, 3) == [(1, 5, 9, pytest.approx(2**0.5), 3, [1, 3]), (2, 3, 15, None, 5, [5])]
        assert (9, 1, 9, None, None, []) in state(tmp_path)
        local.step()
        accepted(local, Replace("totals", md.aggregate(md.sum("v").alias("total"), md.max("v").alias("most"), md.collect("v").alias("vs"))))
        assert rows(out, 5) == [(1, 17, 3, [1, 3] * 3), (2, 25, 5, [5, 5, 5])]
        wide = Insert("wide", md.with_columns("CAST(v AS BIGINT) + 4000000000 AS v"), after="positive")
        accepted(local, wide)
        big = 4_000_000_000
        assert rows(out, 6) == [(1, 17 + 4 + 2 * big, 3 + big, [1, 3] * 3 + [1 + big, 3 + big]), (2, 30 + big, 5 + big, [5, 5, 5, 5 + big])]
        local = Local(flow, tmp_path, parallelism)
        local.run()
    assert [row[:2] for row in state(tmp_path)] == [(1, 17 + 4 * 5 + 10 * big), (2, 25 + 5 * 5 + 5 * big), (9, 9)]
    assert len(local.manifest.tables["totals"].segments) <= 3 * parallelism


def test_state_is_dropped_where_that_is_said_and_merges_of_it_too(tmp_path: Path) -> None:
    flow, out = flow_of()
    with constants(FEWEST=(compaction_module, 2)):
        local = Local(flow, tmp_path)
        local.step()
        local.step()
        with pytest.raises(FlowError, match="keyed by"):
            local.propose(Replace("totals", md.aggregate(md.count().alias("n"), by="v")))
        accepted(local, Replace("totals", md.aggregate(md.count().alias("n"), by="v")), drop=["totals"])
        assert rows(out, 3) == [(1, 1), (5, 1)]
        local.run()
        assert state(tmp_path) == [(1, 4), (5, 4)]
        Local(flow, tmp_path).run()
    assert state(tmp_path) == [(1, 4), (5, 4)]


def test_state_is_upgraded_and_filled(tmp_path: Path) -> None:
    flow, out = flow_of()
    local = Local(flow, tmp_path)
    local.step()
    op = md.aggregate(md.count().alias("n"), md.sum("v").alias("total"), md.mean("v").alias("m"))
    accepted(local, Replace("totals", op), backfill={"totals": {"m": {"n": 1, "sum": 3.0}}})
    assert rows(out, 2) == [(1, 2, 2, 2.0), (2, 2, 10, 4.0)]
    less = md.aggregate(md.count().alias("n"), md.max("v").alias("total"))
    half = {"totals": lambda f: f.select("k", pl.col("n.n") * 10, pl.col("total.sum").cast(pl.Int32).alias("total.value"))}
    accepted(local, Replace("totals", less), upgrade=half)
    assert rows(out, 3) == [(1, 21, 2), (2, 21, 10)]
    assert state(tmp_path) == [(1, 21, 2), (2, 21, 10)]

    def loses(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.head(1)

    trial = local.propose(Replace("totals", md.aggregate(md.count().alias("n"))), upgrade={"totals": loses})
    local.step()
    with pytest.raises(Rejected, match="every row of the state"):
        trial.done.result(0)
    assert rows(out, 4) == [(1, 22, 2), (2, 22, 10)]


def test_code_that_fails_costs_an_error_message_and_never_a_dead_letter(tmp_path: Path) -> None:
    flow, out = flow_of()
    local = Local(flow, tmp_path)
    local.step()
    trial = local.propose(Replace("clean", md.map_batches(fails_on_rows)), request_id="typo")
    local.step()
    with pytest.raises(Rejected, match=r"(?s)the plan before it is back.*in fails_on_rows.*ZeroDivisionError: a typo"):
        trial.done.result(0)
    with pytest.raises(Rejected, match="was rejected before"):
        local.modifier.known("typo")
    local.run()
    assert rows(out, 2) == [(1, 2, 2), (2, 2, 10)]
    assert rows(out, 6) == [(1, 6, 6), (2, 6, 30)]
    assert local.manifest.totals.get("dead_letters", 0) == 0
    assert local.manifest.plan["version"] == 1


def test_an_aggregate_of_the_users_own_that_fails_is_taken_back(tmp_path: Path) -> None:
    class Broken(md.Aggregator):
        def init(self) -> dict[str, pl.Expr]:
            return {"x": pl.col("v").cast(pl.Int64).sum()}

        def merge(self) -> dict[str, pl.Expr]:
            return {"x": self.state("x").map_batches(lambda s: 1 // 0 if len(s) else s, return_dtype=pl.Int64, returns_scalar=True)}

        def finish(self) -> pl.Expr:
            return self.state("x")

    flow, out = flow_of()
    local = Local(flow, tmp_path)
    local.step()
    trial = local.propose(Replace("totals", md.aggregate(md.count().alias("n"), Broken("v").alias("b"))))
    local.step()
    with pytest.raises(Rejected, match="division"):
        trial.done.result(0)
    assert rows(out, 2) == [(1, 2, 2), (2, 2, 10)]


def test_a_change_that_no_row_has_tried_is_taken_back_when_rows_come(tmp_path: Path) -> None:
    flow, out = flow_of(epochs_of([(1, 1)]))
    local = Local(flow, tmp_path)
    local.run()
    done = accepted(local, Replace("clean", md.map_batches(fails_on_rows)), request_id="late")
    assert (done.epoch, local.manifest.plan["version"]) == (2, 2)
    cursor = local.loop.input.cursors["events"]
    cursor.script = Script(COLUMNS, epochs_of([(1, 1)], [(1, 4)], [(1, 7)]))  # type: ignore[attr-defined]
    local.run()
    assert (rows(out, 3), rows(out, 4)) == ([(1, 2, 5)], [(1, 3, 12)])
    assert local.manifest.plan["version"] == 1
    assert local.manifest.totals.get("dead_letters", 0) == 0
    (record,) = local.modifier.history()
    assert (record["verdict"], record["epoch"]) == ("taken back", 3)
    assert "ZeroDivisionError" in record["why"]


def test_a_spark_that_ends_says_nothing_about_a_change(tmp_path: Path) -> None:
    flow, out = flow_of(epochs_of([(1, 1)]))
    local = Local(flow, tmp_path)
    local.run()
    accepted(local, Replace("positive", md.filter("v > -9")), request_id="a")
    longer = Script(COLUMNS, epochs_of([(1, 1)], [(1, -4)]))

    def look() -> Any:
        raise md.SparkGone("Spark has ended")

    local.loop.input.cursors["events"].script = longer  # type: ignore[attr-defined]
    local.loop.attempts.runner.placement = Placement(look, local.clock)  # type: ignore[attr-defined]
    with pytest.raises(md.SparkGone, match="Spark has ended"):
        local.step()
    assert [record["verdict"] for record in local.modifier.history()] == ["in force"]
    local = Local(flow, tmp_path)
    local.loop.input.cursors["events"].script = longer  # type: ignore[attr-defined]
    local.run()
    assert [record["verdict"] for record in local.modifier.history()] == ["in force"]
    assert rows(out, local.manifest.epoch) == [(1, 2, -3)]
    assert (local.manifest.plan["version"], "unproven" in local.manifest.plan) == (2, False)


def test_a_spark_that_ends_while_a_change_is_tried_leaves_it_without_a_verdict(tmp_path: Path) -> None:
    flow, out = flow_of(epochs_of([(1, 1)], [(1, 4)]))
    local = Local(flow, tmp_path)
    local.step()

    def look() -> Any:
        raise md.SparkGone("Spark has ended")

    local.loop.attempts.runner.placement = Placement(look, local.clock)  # type: ignore[attr-defined]
    trial = local.propose(Replace("positive", md.filter("v > 2")), request_id="a")
    with pytest.raises(md.SparkGone, match="Spark has ended"):
        local.step()
    assert isinstance(trial.done.exception(), md.SparkGone), "not Rejected"
    local = Local(flow, tmp_path)
    assert local.modifier.known("a") is None, "it can be asked for again"
    assert accepted(local, Replace("positive", md.filter("v > 2")), request_id="a").epoch == 2
    assert rows(out, 2) == [(1, 2, 5)]


@pytest.mark.parametrize("restarts", [False, True])
def test_changes_that_no_row_has_tried_are_taken_back_one_by_one(tmp_path: Path, restarts: bool) -> None:
    flow, out = flow_of(epochs_of([(1, 1)]))
    local = Local(flow, tmp_path)
    local.run()
    accepted(local, Replace("positive", md.filter("v > -9")), request_id="a")
    accepted(local, Replace("clean", md.map_batches(fails_on_rows)), request_id="b")
    accepted(local, Replace("positive", md.filter("v > -5")), request_id="c")
    if restarts:
        local = Local(flow, tmp_path)
    local.loop.input.cursors["events"].script = Script(COLUMNS, epochs_of([(1, 1)], [(1, -4)], [(1, 7)]))  # type: ignore[attr-defined]
    trial = local.propose(Replace("clean", md.map_batches(fails_on_rows)), request_id="d")
    local.step()
    with pytest.raises(Rejected):
        trial.done.result(0)
    local.run()
    assert [record["verdict"] for record in local.modifier.history()] == ["in force", "taken back", "taken back", "rejected"]
    assert (rows(out, 5), rows(out, 6)) == ([(1, 2, -3)], [(1, 3, 4)])
    assert (local.manifest.plan["version"], "unproven" in local.manifest.plan) == (2, False)
    assert local.manifest.totals.get("dead_letters", 0) == 0


def test_one_that_hangs_is_taken_back_at_its_deadline(tmp_path: Path) -> None:
    flow, out = flow_of()
    local = Local(flow, tmp_path)
    local.step()

    def hangs(frame: pl.DataFrame) -> pl.DataFrame:
        if frame.height:
            time.sleep(1.5)
        return frame

    trial = local.propose(Replace("clean", md.map_batches(hangs)), patience=0.3)
    local.step()
    with pytest.raises(Rejected, match="has not ended in time"):
        trial.done.result(0)
    assert rows(out, 2) == [(1, 2, 2), (2, 2, 10)]
    time.sleep(2)
    local.run()
    assert rows(out, 6) == [(1, 6, 6), (2, 6, 30)]


def test_a_guard_sees_the_output_of_the_same_input_under_both_plans(tmp_path: Path) -> None:
    flow, out = flow_of()
    local, seen = Local(flow, tmp_path), []
    local.step()

    def never_fewer(before: dict[str, pl.DataFrame], after: dict[str, pl.DataFrame]) -> bool:
        seen.append((sorted(before["out"].rows()), sorted(after["out"].rows())))
        return after["out"].height >= before["out"].height

    trial = local.propose(Replace("positive", md.filter("v > 1")), guard=never_fewer)
    local.step()
    with pytest.raises(Rejected, match="the guard said no"):
        trial.done.result(0)
    assert seen == [([(1, 2, 2), (2, 2, 10)], [(2, 2, 10)])]
    assert rows(out, 2) == seen[0][0]
    accepted(local, Replace("positive", md.filter("v < 9")), guard=never_fewer)
    assert rows(out, 3) == [(1, 3, 3), (2, 3, 15), (3, 1, -1)]


def test_a_guard_sees_the_rows_of_a_partitioned_sink_with_the_columns_of_its_folders(tmp_path: Path) -> None:
    flow, seen = md.Flow("guarded"), []
    script = (((0, ((1, 5), (2, 6))),), ((0, ((1, 7), (None, 8), (2, 9))),))
    events = flow.source("events", Script({"k": pl.Int64(), "v": pl.Int64()}, script)).filter("v > 0", name="positive")
    events.sink("out", md.parquet(tmp_path / "out", partition_by="k"))
    local = Local(flow, tmp_path / "state")
    local.step()

    def look(before: dict[str, pl.DataFrame], after: dict[str, pl.DataFrame]) -> bool:
        seen.extend(sorted(frame["out"].select("k", "v").rows(), key=repr) for frame in (before, after))
        return True

    accepted(local, Replace("positive", md.filter("v > 7")), guard=look)
    assert seen == [[(1, 7), (2, 9), (None, 8)], [(2, 9), (None, 8)]]


def test_a_restart_goes_on_with_what_was_modified(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    flow, out = flow_of()
    local = Local(flow, tmp_path)
    local.step()
    accepted(local, Replace("positive", md.filter("v > 1")), request_id="more")
    again = Local(flow, tmp_path)
    assert "goes on so, with plan version 2 (modification 'more')" in caplog.text
    assert again.modifier.known("more").repeated
    again.run()
    assert rows(out, 6) == [(2, 6, 30)]
    (record,) = again.modifier.history()
    assert (record["verdict"], record["epoch"], record["author"]) == ("in force", 2, "somebody")
    assert record["code"]["positive"]["source"] == "v > 1"
    other = md.Flow("changing")
    other.source("events", Script(COLUMNS, ONES)).filter("v > 7", name="positive").sink("out", md.memory())
    with pytest.raises(ConfigError, match=r"this one differs.*meander apply FLOW.py"):
        Local(other, tmp_path)


def test_a_flow_that_was_written_as_it_was_modified_goes_on_as_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    flow, _ = flow_of()
    local = Local(flow, tmp_path)
    local.step()
    accepted(local, Replace("positive", md.filter("v > 1")))
    written, out = md.Flow("changing"), md.memory()
    positive = written.source("events", Script(COLUMNS, ONES)).filter("v > 1", name="positive").map_batches(same, name="clean")
    positive.key_by("k").aggregate(md.count().alias("n"), md.sum("v").alias("total"), name="totals").sink("out", out)
    again = Local(written, tmp_path)
    again.run()
    assert rows(out, 6) == [(2, 6, 30)]
    assert "was modified" not in caplog.text
    assert again.manifest.plan["version"] == 2


def test_a_source_is_swapped_where_the_old_one_has_given_all_that_it_was_asked_for(tmp_path: Path) -> None:
    flow, out = flow_of()
    local = Local(flow, tmp_path)
    local.step()
    trial = local.propose(Replace("events", Script(COLUMNS, epochs_of([(7, 7)], [(8, 8)])), resume=False))
    while not trial.done.done():
        assert local.step()
    epoch = trial.done.result().epoch
    assert rows(out, epoch) == [(7, 1, 7)]
    local.run()
    assert rows(out, epoch + 1) == [(8, 1, 8)]
    assert local.manifest.offsets == {"events": {"next": 2}}
    fails = local.propose(
        Replace("events", Script(COLUMNS, epochs_of([(1, 1)])), resume=False), Replace("clean", md.map_batches(fails_on_rows))
    )
    local.step()
    with pytest.raises(Rejected):
        fails.done.result(0)
    assert local.manifest.offsets == {"events": {"next": 2}}


def test_what_stays_gives_the_same_bits_whatever_is_put_beside_it(tmp_path: Path) -> None:
    """A union of two stateful streams is folded in the order of their operators, which an insertion shifts."""
    columns: dict[str, Any] = {"k": pl.Int64(), "x": pl.Float64()}
    epochs = tuple(((0, tuple((i % 5, (i + 1) ** 0.5 * 10.0 ** (i % 9 - 4)) for i in range(e, e + 40))),) for e in range(6))
    tables = []
    for change in (False, True):
        flow, out = md.Flow("bits"), md.memory()
        events = flow.source("events", Script(columns, epochs))
        left = events.deduplicate("k", "x", name="left")
        right = events.with_columns("x / 3 AS x", name="third").deduplicate("k", "x", name="right")
        both = left.union(right, name="both").with_columns("k % 2 AS k", name="two")
        both.key_by("k").aggregate(md.sum("x").alias("x"), name="grand").sink("out", out)
        local = Local(flow, tmp_path / str(change), 2)
        local.step()
        if change:
            first = md.aggregate(md.count().alias("n"), by="k")
            accepted(local, Insert("first", first, after="events", before=[]), Insert("tap", md.memory(), after="first"))
            accepted(local, Insert("nothing", md.filter("k >= 0"), after="events"))
        local.run()
        tables.append(out.table().sort_by("k"))
    assert tables[0].equals(tables[1])


def test_windows_go_on_with_other_aggregates_and_a_shorter_size(tmp_path: Path) -> None:
    second = 1_000_000
    columns: dict[str, Any] = {"k": pl.Int64(), "v": pl.Int64(), "ts": pl.Datetime("us")}
    epochs = tuple(((0, tuple((1, t, t * second) for t in range(start, start + 5))),) for start in range(0, 60, 5))
    flow, out = md.Flow("windows"), md.memory()
    events = flow.source("events", Script(columns, epochs)).watermark("ts", name="time")
    events.key_by("k").window(md.sliding("20s", "10s")).aggregate(md.count().alias("n"), name="w").sink("out", out)
    local = Local(flow, tmp_path)
    for _ in range(5):  # up to 25 s
        local.step()
    accepted(local, Replace("w", md.aggregate(md.count().alias("n"), md.sum("v").alias("v"), md.std("v").alias("sd"))))
    accepted(local, Replace("w", md.aggregate(md.count().alias("n"), md.sum("v").alias("v"), window=md.tumbling("10s"))))
    accepted(local, Replace("time", md.watermark("ts", grace="3s")))
    local.run(flush=True)
    found = [(row["window_start"].second, row["window_end"].second, row["n"], row.get("v")) for row in out.frame().iter_rows(named=True)]
    assert (0, 20, 20, None) in found
    assert (40, 50, 10, sum(range(40, 50))) in found
    assert (50, 0, 10, sum(range(50, 60))) in found
    assert md.read_dead_letters(tmp_path).num_rows == 0


def test_a_restart_does_not_end_a_probation_that_no_row_has_come_to(tmp_path: Path) -> None:
    flow, out = flow_of(epochs_of([(1, 1)]))
    local = Local(flow, tmp_path)
    local.run()
    accepted(local, Replace("positive", md.filter("v > -9")), request_id="first")
    accepted(local, Replace("clean", md.map_batches(fails_on_rows)), request_id="second")
    again = Local(flow, tmp_path)
    assert again.manifest.plan["version"] == 3
    again.loop.input.cursors["events"].script = Script(COLUMNS, epochs_of([(1, 1)], [(1, -4)], [(1, 7)]))  # type: ignore[attr-defined]
    again.run()
    assert (rows(out, 4), rows(out, 5)) == ([(1, 2, -3)], [(1, 3, 4)])
    assert (again.manifest.plan["version"], again.modifier.plan.version) == (2, 2)
    assert [record["verdict"] for record in again.modifier.history()] == ["in force", "taken back"]
    assert again.manifest.totals.get("dead_letters", 0) == 0


@dataclass(frozen=True)
class Partitioned(Script):
    partitions: int = 1


@pytest.mark.parametrize("resume", [False, True])
def test_a_source_with_fewer_partitions_does_not_stop_the_watermark(tmp_path: Path, resume: bool) -> None:
    columns: dict[str, Any] = {"k": pl.Int64(), "ts": pl.Datetime("us")}

    def at(*seconds: int) -> Any:
        return tuple((partition, ((1, second * 1_000_000),)) for partition, second in enumerate(seconds))

    flow, out = md.Flow("timed"), md.memory()
    events = flow.source("events", Partitioned(columns, (at(1, 2), at(3, 4)), 2)).watermark("ts", grace="0s")
    events.key_by("k").window(md.tumbling("10s")).aggregate(md.count().alias("n"), name="windows").sink("out", out)
    local = Local(flow, tmp_path)
    local.run()
    began = () if not resume else (at(1), at(3))
    trial = local.propose(Replace("events", Partitioned(columns, (*began, at(5), at(12), at(25)), 1), resume=resume))
    local.run()
    assert trial.done.done()
    trial.done.result(0)
    assert local.manifest.times[next(iter(local.manifest.times))]["mark"] == 25_000_000
    assert [row["n"] for row in out.frame().to_dicts()] == [5, 1]


def test_a_source_that_has_fewer_partitions_after_a_restart_does_not_stop_the_watermark(tmp_path: Path) -> None:
    columns: dict[str, Any] = {"ts": pl.Datetime("us")}

    def start(epochs: Any, partitions: int) -> Local:
        flow = md.Flow("timed")
        flow.source("events", Partitioned(columns, epochs, partitions)).watermark("ts", grace="0s").sink("out", md.memory())
        return Local(flow, tmp_path)

    first = (((0, ((1_000_000,),)), (1, ((2_000_000,),))),)
    start(first, 2).run()
    again = start((*first, ((0, ((9_000_000,),)),)), 1)
    again.run()
    assert next(iter(again.manifest.times.values()))["mark"] == 9_000_000


@pytest.mark.parametrize(
    "when", ["no change", "no input", "with a change", "with one that is rejected", "on probation", "as one is taken back"]
)
def test_partitions_that_are_gone_after_a_restart_hold_nothing_back_whatever_is_changed(tmp_path: Path, when: str) -> None:
    columns: dict[str, Any] = {"k": pl.Int64(), "ts": pl.Datetime("us")}
    fails_at = {"on probation": 4, "as one is taken back": 2}.get(when, 99)
    times = [1, 3, *range(10, 60, 10)] if when != "no input" else [1, 50]
    events = tuple(((0, ((1, at * 1_000_000),)), *([(1, ((1, 2_000_000),))] if n == 0 else [])) for n, at in enumerate(times))
    others = tuple(((0, ((1, 0),) if n == fails_at else ()),) for n in range(len(times)))
    out = md.memory()

    def start(partitions: int) -> Local:
        flow = md.Flow("timed")
        stream = flow.source("events", Partitioned(columns, events, partitions)).watermark("ts", grace="0s")
        stream.key_by("k").window(md.tumbling("10s")).aggregate(md.count().alias("n"), name="windows").sink("out", out)
        flow.source("others", Script(columns, others)).map_batches(same, name="clean").sink("other", md.memory())
        return Local(flow, tmp_path, ahead=False)

    local = start(2)
    local.step()
    if fails_at < 99:
        local.propose(Replace("clean", md.map_batches(fails_on_rows)))
    local.step()
    local = start(1)
    if when == "with a change":
        local.propose(Insert("seen", md.memory(), after="clean"))
    if when == "with one that is rejected":
        local.propose(Insert("seen", md.memory(), after="clean"), guard=lambda before, after: False)
    local.run()
    assert next(iter(local.manifest.times.values()))["mark"] == 50_000_000
    assert [row["n"] for row in out.frame().to_dicts()] == ([3, 1, 1, 1, 1] if when != "no input" else [2])


def edited(above: int, clean: Any = same, epochs: Epochs = ONES, out: Any = None) -> md.Flow:
    flow = md.Flow("changing")
    positive = flow.source("events", Script(COLUMNS, epochs)).filter(f"v > {above}", name="positive").map_batches(clean, name="clean")
    positive.key_by("k").aggregate(md.count().alias("n"), md.sum("v").alias("total"), name="totals").sink("out", out or md.memory())
    return flow


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("replica", [None, "a"])
def test_every_file_that_was_started_can_be_started_again(tmp_path: Path, steps: int, replica: str | None) -> None:
    local = Local(edited(0), tmp_path, replica=replica)
    local.step()
    accepted(local, md.Become(edited(1).plan()))
    local = Local(edited(1), tmp_path, replica=replica)
    for _ in range(steps):
        local.step()
    accepted(local, Replace("positive", md.filter("v > 2")))
    for above in (1, 0, 2, 1):
        assert Local(edited(above), tmp_path, replica=replica).modifier.plan.node("positive").op.describe() == "v > 2"
    with pytest.raises(ConfigError, match="this one differs"):
        Local(edited(3), tmp_path, replica=replica)


@pytest.mark.parametrize("started", ["as it was first", "as it is now"])
def test_a_start_with_the_edited_file_does_not_end_a_probation(tmp_path: Path, started: str, caplog: pytest.LogCaptureFixture) -> None:
    epochs, out = epochs_of([(1, 1)], [(1, 4)], [(1, 7)]), md.memory()
    files = {"as it was first": edited(0, same, epochs, out), "as it is now": edited(0, fails_on_rows, epochs, out)}
    local = Local(edited(0, same, epochs[:1], out), tmp_path)
    local.run()
    accepted(local, md.Become(edited(0, fails_on_rows, epochs[:1], out).plan()))
    again = Local(files[started], tmp_path)
    assert again.manifest.plan["version"] == 2
    again.step()
    assert (rows(out, 3), again.manifest.plan["version"]) == ([(1, 2, 5)], 1)
    for flow in files.values():
        caplog.clear()
        last = Local(flow, tmp_path)
        assert last.modifier.plan.version == 1
        assert ("what the file says was taken back" in caplog.text) == (flow is files["as it is now"])
    last.run()
    assert rows(out, 4) == [(1, 3, 12)]
    assert last.manifest.totals.get("dead_letters", 0) == 0
    assert [record["verdict"] for record in last.modifier.history()] == ["taken back"]

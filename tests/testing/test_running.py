"""What ``meander.testing`` promises to authors of flows."""

# ruff: noqa: RUF012

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import meander as md
from meander import testing

COLUMNS = {"user": "string", "ts": "timestamp"}


class Visits(md.Processor):
    """A visit ends when nothing came for five minutes, by event time; one that is left open for an hour of the clock rings."""

    output = {"clicks": "int64", "why": "string"}
    clicks = md.value("int64", default=0)
    until = md.value("timestamp")

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        if state.until is not None:
            ctx.delete_timer(state.until)
        state.clicks += len(rows)
        state.until = rows[-1].ts + timedelta(minutes=5)
        ctx.set_timer(state.until)
        ctx.set_timer(timedelta(hours=1), clock="processing")

    def on_timer(self, key: Any, time: datetime, state: Any, ctx: Any) -> Any:
        if state.clicks:
            yield (state.clicks, "pause" if time == state.until else "clock")
        state.clear()


def visits(clicks: Any, out: Any) -> md.Flow:
    flow = md.Flow("visits")
    flow.source("clicks", clicks).watermark("ts").key_by("user").process(Visits, name="visits").sink("out", out)
    return flow


def counts(rows: Any, out: Any) -> md.Flow:
    flow = md.Flow("counts")
    flow.source("rows", rows).key_by("k").aggregate(md.sum("v").alias("v"), name="totals").sink("out", out)
    return flow


NUMBERS = {"k": "string", "v": "long"}
FIRST = [("ada", "2026-03-01T10:00:00"), ("ada", "2026-03-01T10:00:05")]


def test_a_step_is_an_epoch_and_false_where_there_is_nothing_to_do(tmp_path: Path) -> None:
    out = md.memory()
    clicks = testing.source(COLUMNS, [FIRST, [("bob", "2026-03-01T10:10:00")]])
    with testing.run(visits(clicks, out), tmp_path) as run:
        assert run.epoch == 0
        assert run.state("visits").is_empty()
        assert run.step()
        assert (run.epoch, out.rows(), run.state("visits").height) == (1, [], 1)
        assert run.step()
        assert run.step(), "a timer is due, by what the second epoch has heard"
        assert out.rows() == [("ada", 2, "pause")]
        assert not run.step()
        assert run.run(flush=True) == 1
        assert out.rows() == [("ada", 2, "pause"), ("bob", 1, "pause")]
        assert run.counts == {"rows_in": 3, "rows_out": 2, "dead_letters": 0, "late_rows": 0}


def test_time_passes_when_the_test_says_so(tmp_path: Path) -> None:
    out = md.memory()
    with testing.run(visits(testing.source(COLUMNS, [FIRST]), out), tmp_path, clock="2026-03-01T10:00:00") as run:
        assert run.run() == 1
        run.clock.advance("59m")
        assert not run.step()
        run.clock.advance("1m")
        assert run.step()
        assert out.rows() == [("ada", 2, "clock")]
        assert run.clock.time == datetime(2026, 3, 1, 11)


def test_what_is_ahead_of_the_clock_is_a_dead_letter(tmp_path: Path) -> None:
    flow, out = md.Flow("ahead"), md.memory()
    events = flow.source("events", testing.source(COLUMNS, [FIRST])).watermark("ts", max_ahead="1h", name="time")
    events.window(md.tumbling("10s")).aggregate(md.count().alias("n"), name="w").sink("out", out)
    with testing.run(flow, tmp_path / "early", clock="2026-03-01T08:00:00") as run:
        run.run(flush=True)
        assert run.dead_letters().select("epoch", "operator").rows() == [(1, "time"), (1, "time")]
    assert out.rows() == []
    with testing.run(flow, tmp_path / "right", clock=testing.Clock(datetime(2026, 3, 1, 10)), sinks={"out": (now := md.memory())}) as run:
        run.run(flush=True)
        assert run.dead_letters().is_empty()
    assert [row[-1] for row in now.rows()] == [2]


def test_late_rows_are_counted_by_operator(tmp_path: Path) -> None:
    flow, out = md.Flow("late"), md.memory()
    events = flow.source("events", testing.source(COLUMNS, [[], FIRST, [("bob", "2026-03-01T11:00:00")], [], FIRST[:1]])).watermark("ts")
    events.window(md.tumbling("10s")).aggregate(md.count().alias("n"), name="w").sink("out", out)
    with testing.run(flow, tmp_path) as run:
        run.run()
        assert run.late("w") == 1
        assert run.dead_letters().get_column("operator").to_list() == ["w"]
        with pytest.raises(md.ConfigError, match="no stateful operator 'out'; there are: w"):
            run.late("out")


@pytest.mark.parametrize("slots", [1, 3])
def test_a_flow_survives_restarts_and_rescales(tmp_path: Path, slots: int) -> None:
    out = md.memory(table=True)
    rows = testing.source(NUMBERS, [[(str(k), k) for k in range(20)]] * 3)
    with testing.run(counts(rows, out), tmp_path, parallelism=2, key_groups=8) as run:
        run.step()
        run.rescale("totals", slots)
        run.step()
        run.restart()
        run.step()
        assert not run.step()
        assert run.epoch == 3
        assert out.rows() == run.state("totals").rows() == sorted((str(k), 3 * k) for k in range(20))
        with pytest.raises(md.ConfigError, match="no stateful operator 'total' to rescale; there are: totals"):
            run.rescale("total", 2)
        with pytest.raises(md.ConfigError, match="a number from 1 to 8"):
            run.rescale("totals", 9)


def test_a_folder_goes_on_in_another_run(tmp_path: Path) -> None:
    rows = testing.source(NUMBERS, [[("a", 1)], [("a", 2)]])
    with testing.run(counts(rows, md.memory()), tmp_path) as run:
        assert run.run(epochs=1) == 1
    with testing.run(counts(rows, out := md.memory()), tmp_path) as run:
        run.run()
    assert out.rows() == [("a", 1), ("a", 3)], "the last epoch is published again, which this sink has not seen"
    assert md.read_state(tmp_path, "totals").to_pylist() == [{"k": "a", "v": 3}]


@pytest.mark.many
def test_a_folder_keeps_the_key_groups_that_it_was_made_with(tmp_path: Path) -> None:
    """Also where merges are due, which must find all of a slot's key groups."""
    keys = [f"k{number}" for number in range(40)]
    epochs = [[(key,) for key in keys[half::2]] for half in (0, 1) for _ in range(40)]
    for some, groups in ((2, 8), (80, 128)):
        flow = md.Flow("counts")
        words = flow.source("words", testing.source("word string", epochs[:some]))
        words.key_by("word").aggregate(md.count().alias("n"), name="counts").sink("out", md.discard())
        with testing.run(flow, tmp_path, key_groups=groups) as run:
            run.run()
            assert run.state("counts").rows() == [(key, min(some, 40)) for key in sorted(keys if some > 40 else keys[::2])]


def test_a_run_that_is_closed_does_nothing_more(tmp_path: Path) -> None:
    with testing.run(counts(testing.source(NUMBERS, [[("a", 1)], [("a", 2)]]), md.memory()), tmp_path) as run:
        run.step()
    assert (run.epoch, run.state("totals").rows()) == (1, [("a", 1)])
    for again in (run.step, run.run, run.restart):
        with pytest.raises(md.ConfigError, match=r"flow 'counts': epoch 1, .* is closed; testing.run"):
            again()
    run.close()


def test_a_sink_in_memory_is_for_one_folder(tmp_path: Path) -> None:
    flow = counts(testing.source(NUMBERS, [[("a", 1)]]), md.memory())
    for _ in range(2):
        testing.run(flow, tmp_path / "one").run()
    with pytest.raises(md.ConfigError, match="sink 'out' has the rows of another run, and this folder is new"):
        testing.run(flow, tmp_path / "two")


def test_files_and_generators_are_sources_like_on_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    out = md.memory()
    flow = counts(md.files(tmp_path / "in", format="json", schema=NUMBERS), out)
    with testing.run(flow, tmp_path / "store") as run:
        assert not run.step()
        for number in (1, 2):
            (tmp_path / "in" / f"{number}.json").write_text(json.dumps({"k": "a", "v": number}) + "\nnonsense\n")
            assert run.run() == 1
        assert out.rows() == [("a", 1), ("a", 3)]
        assert run.dead_letters().get_column("content").to_list() == ["nonsense", "nonsense"]
    made = md.Flow("made")
    made.source("g", md.generator("key_value", events=1000)).select("key", name="keys").sink("out", keys := md.memory())
    with testing.run(made, tmp_path / "made") as run:
        run.run()
    assert len(keys.rows()) == 1000


def test_the_flow_of_a_flow_file_gets_other_ends(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    flow = counts(md.files(tmp_path / "in", format="json", schema=NUMBERS), md.parquet(tmp_path / "out"))
    out = md.memory()
    with testing.run(flow, tmp_path / "store", sources={"rows": [[("a", 1)], [("b", 5)]]}, sinks={"out": out}) as run:
        run.run()
    assert out.rows() == [("a", 1), ("b", 5)]
    assert not (tmp_path / "out").exists()


def test_a_strict_run_stops_at_a_bad_row(tmp_path: Path) -> None:
    flow = md.Flow("strict")
    numbers = flow.source("rows", testing.source({"v": "string"}, [[("1",), ("x",)]]))
    numbers.select("cast(v as bigint) as v", name="cast").sink("out", md.memory())
    with testing.run(flow, tmp_path, strict=True) as run, pytest.raises(md.BadInput, match="cast"):
        run.step()


def test_what_could_not_be_sent_to_executors_is_refused(tmp_path: Path) -> None:
    import threading

    lock = threading.Lock()
    flow = md.Flow("locked")
    rows = flow.source("rows", testing.source(NUMBERS, [[("a", 1)]]))

    def locked(frame: pl.DataFrame) -> pl.DataFrame:
        with lock:
            return frame

    rows.map_batches(locked, name="locked", schema={"k": pl.String, "v": pl.Int64}).sink("out", md.memory())
    with pytest.raises(md.FlowError, match=r"'locked'.*cannot be sent to executors"):
        testing.run(flow, tmp_path)


def test_ends_that_the_flow_does_not_have_are_named(tmp_path: Path) -> None:
    flow = counts(testing.source(NUMBERS, []), md.memory())
    with pytest.raises(md.FlowError, match="flow 'counts' has no source 'row'; there are: rows; did you mean 'rows'"):
        testing.run(flow, tmp_path, sources={"row": []})
    with pytest.raises(md.FlowError, match="flow 'counts' has no sink 'totals'; there are: out"):
        testing.run(flow, tmp_path, sinks={"totals": md.memory()})
    with pytest.raises(md.FlowError, match="source 'rows': epoch 1, row 2, column 'v': 'x' is no Int64"):
        testing.run(flow, tmp_path, sources={"rows": [[("a", 1), ("b", "x")]]})
    with pytest.raises(md.FlowError, match=r"the flow's has columns k \(String\), v \(Int64\), and this one user"):
        testing.run(flow, tmp_path, sources={"rows": testing.source(COLUMNS, [])})
    with pytest.raises(md.FlowError, match="sink 'out'"):
        testing.run(flow, tmp_path, sinks={"out": "out/"})  # type: ignore[dict-item]
    with pytest.raises(md.ConfigError, match="the flow comes first"):
        testing.run(tmp_path, flow)  # type: ignore[arg-type]


def test_partitions_are_told_apart(tmp_path: Path) -> None:
    flow, out = md.Flow("parts"), md.memory()
    epochs = [{0: FIRST, 1: [("bob", "2026-03-01T10:00:00")]}, {0: [("ada", "2026-03-01T11:00:00")]}, []]
    events = flow.source("events", testing.source(COLUMNS, epochs)).watermark("ts", idle="1m")
    events.window(md.tumbling("10s")).aggregate(md.count().alias("n"), name="w").sink("out", out)
    with testing.run(flow, tmp_path) as run:
        run.run()
        assert out.rows() == [], "partition 1 holds the others back"
        run.clock.advance("1m")
        run.run()
        assert [row[-1] for row in out.rows()] == [3]


def test_running_a_flow_imports_neither_spark_nor_what_only_tests_have(tmp_path: Path) -> None:
    code = f"""
import sys
import meander as md
from meander import testing
flow = md.Flow("f")
flow.source("rows", testing.source("k string", [[("a",)]])).key_by("k").aggregate(md.count().alias("n")).sink("out", md.memory())
with testing.run(flow, {str(tmp_path)!r}) as run:
    assert run.run() == 1
assert not {{"pyspark", "py4j", "pytest", "unittest.mock", "hypothesis"}} & sys.modules.keys(), sorted(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

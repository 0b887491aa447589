"""Windows of a number of rows, against lists in plain Python: random rows, epochs, parallelism, restarts, rescales and merges."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.local import Local, Script, constants

import meander as md
from meander.coordinate.routing import rebalance
from meander.errors import FlowError, Rejected
from meander.state import compaction as compaction_module
from meander.task.operators.windows import counts as counts_module
from meander.task.operators.workspace import Workspace

COLUMNS = {"k": pl.Int64(), "v": pl.Int64(), "f": pl.Float64(), "ts": pl.Datetime("us")}
AGGREGATES = [md.collect("v").alias("vs"), md.count().alias("n"), md.sum("v").alias("sum"), md.first("v").alias("first")]
AGGREGATES += [md.last("v").alias("last"), md.max("v * 2").alias("most"), md.count_distinct("v").alias("different")]
Out = list[tuple[Any, ...]]
LIMITS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


class Model:
    """All rows of each key, in the order in which they came."""

    def __init__(self, size: int, step: int, keyed: bool = True) -> None:
        self.size, self.step, self.keyed = size, step, keyed
        self.rows: dict[Any, list[Any]] = defaultdict(list)

    def epoch(self, splits: Any) -> Out:
        before = {key: len(rows) for key, rows in self.rows.items()}
        for _, rows in splits:
            for k, v, *_ in rows:
                self.rows[k if self.keyed else None].append(v)
        found = []
        for key, rows in self.rows.items():
            for number, start in enumerate(range(0, len(rows) - self.size + 1, self.step), 1):
                if start + self.size > before.get(key, 0):
                    found.append(self.shown(key, number, rows[start : start + self.size]))
        return found

    def open(self) -> Out:
        found = []
        for key, rows in self.rows.items():
            for number, start in enumerate(range(0, len(rows), self.step), 1):
                if start + self.size > len(rows):
                    found.append(self.shown(key, number, rows[start:]))
        return sorted(found, key=str)

    def shown(self, key: Any, number: int, rows: list[Any]) -> tuple[Any, ...]:
        vs = [v for v in rows if v is not None]
        if not vs:
            return (key, number, [], len(rows), None, None, None, None, 0)
        return (key, number, vs, len(rows), sum(vs), vs[0], vs[-1], 2 * max(vs), len(set(vs)))


def flow_of(script: Any, window: Any, keyed: bool = True, aggs: Any = AGGREGATES) -> tuple[md.Flow, Any]:
    flow, out = md.Flow("counts"), md.memory()
    events = flow.source("events", Script(COLUMNS, script))
    (events.key_by("k") if keyed else events).window(window).aggregate(*aggs, name="w").sink("out", out)
    return flow, out


def emitted(table: Any, keyed: bool = True) -> Out:
    frame = pl.DataFrame(pl.from_arrow(table))
    return sorted(((*(() if keyed else (None,)), *row) for row in frame.rows()), key=str)


keys = st.none() | st.integers(0, 2)
rows = st.lists(st.tuples(keys, st.none() | st.integers(-5, 5), st.just(0.5), st.just(0)), max_size=12).map(tuple)
splits = st.lists(st.tuples(st.integers(0, 1), rows), min_size=1, max_size=3).map(tuple)
windows = st.sampled_from([(1, 1), (3, 3), (5, 5), (4, 2), (6, 2), (5, 1), (20, 5)])


@pytest.mark.many
@LIMITS
@given(st.data())
def test_windows_equal_the_model_epoch_by_epoch(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    (size, step), keyed, small = data.draw(windows), data.draw(st.booleans()), data.draw(st.booleans())
    script = tuple(data.draw(st.lists(splits, min_size=1, max_size=6)))
    folder = tmp_path_factory.mktemp("counts")
    flow, out = flow_of(script, md.count_window(size, step), keyed)
    model, expected = Model(size, step, keyed), []
    with constants(FEWEST=(compaction_module, 2), _AT_ONCE=(counts_module, data.draw(st.sampled_from([1, 10, 1000])))):
        local = Local(flow, folder, data.draw(st.sampled_from([1, 2, 4])), small, ahead=data.draw(st.booleans()))
        for given_splits in script:
            assert local.step()
            expected += model.epoch(given_splits)
            assert emitted(out.table(), keyed) == sorted(expected, key=str)
            if model.rows:
                assert emitted(md.read_state(folder, "w"), keyed) == model.open()
            if data.draw(st.booleans()):
                local.loop.reroute("w", rebalance(local.loop.routing["w"], data.draw(st.integers(1, 4))))
            if data.draw(st.integers(0, 3)) == 0:
                local = Local(flow, folder, 2, small)
        local.run(flush=True)
    assert emitted(out.table(), keyed) == sorted(expected, key=str), "what is not full stays"
    if model.rows:
        assert emitted(md.read_state(folder, "w"), keyed) == model.open()
        most = len(model.rows) * (size // step)
        assert md.read_state(folder, "w").num_rows <= most


@pytest.mark.many
@settings(LIMITS, max_examples=30)
@given(st.lists(rows, min_size=1, max_size=6), windows, st.randoms())
def test_the_cut_into_epochs_does_not_matter(tmp_path_factory: pytest.TempPathFactory, some: list[Any], window: Any, rng: Any) -> None:
    """Rows of one partition, in pieces: which of them are of one epoch is nothing to the windows."""
    whole, cut = [(0, part) for part in some], [[]]
    for split in whole:
        cut[-1].append(split)
        if rng.random() < 0.5:
            cut.append([])
    found = []
    for script in ((tuple(whole),), tuple(tuple(part) for part in cut if part)):
        flow, out = flow_of(script, md.count_window(*window))
        Local(flow, tmp_path_factory.mktemp("cut"), rng.choice([1, 2, 4])).run(flush=True)
        found.append(emitted(out.table()))
    assert found[0] == found[1]


@pytest.mark.many
def test_a_pane_goes_through_many_epochs_and_is_stored_as_one_row(tmp_path: Path) -> None:
    script = tuple(((0, ((1, number, 0.5, 0),)),) for number in range(95))
    flow, out = flow_of(script, md.count_window(40, step=10))
    local = Local(flow, tmp_path)
    local.run(flush=True)
    assert [row[2] for row in emitted(out.table())] == [list(range(at, at + 40)) for at in range(0, 60, 10)]
    shown = pl.DataFrame(pl.from_arrow(md.read_state(tmp_path, "w"))).select("k", "window_number", "n", "first").rows()
    assert shown == [(1, 7, 35, 60), (1, 8, 25, 70), (1, 9, 15, 80), (1, 10, 5, 90)]
    assert local.manifest.tables["w"].keys == ("k", "__slot")


def test_floats_are_the_same_to_the_last_bit_at_any_parallelism_and_on_both_paths(tmp_path: Path) -> None:
    script = tuple(
        ((0, tuple((number % 3, number, 0.1 * number, 0) for number in range(at, at + 50))), (1, ((1, 1, 1e17, 0), (2, 1, 0.3, 0))))
        for at in range(0, 200, 50)
    )
    found = set()
    for parallelism, small in ((1, True), (2, False), (4, False), (4, True)):
        flow, out = flow_of(script, md.count_window(12, step=4), aggs=[md.sum("f").alias("f"), md.mean("f").alias("m")])
        Local(flow, tmp_path / f"{parallelism}{small}", parallelism, small).run()
        found.add(str(emitted(out.table())))
    assert len(found) == 1


def test_count_alone_without_a_key(tmp_path: Path) -> None:
    flow, out = md.Flow("bare"), md.memory()
    events = flow.source("events", Script(COLUMNS, tuple(((0, ((1, 1, 0.5, 0),) * 7),) for _ in range(2))))
    events.window(md.count_window(5)).aggregate(md.count().alias("n")).sink("out", out)
    Local(flow, tmp_path).run(flush=True)
    assert out.table().to_pylist() == [{"window_number": 1, "n": 5}, {"window_number": 2, "n": 5}]


def test_a_row_for_which_an_aggregate_cannot_be_computed_is_no_row_of_a_window(tmp_path: Path) -> None:
    script = (((0, tuple((1, v, 0.5, 0) for v in (1, 999, 2, 3))),),)
    flow, out = flow_of(script, md.count_window(2), aggs=[md.sum(pl.col("v").cast(pl.Int8)).alias("s")])
    Local(flow, tmp_path).run()
    assert [row[2] for row in emitted(out.table())] == [3]
    letters = pl.concat([pl.read_parquet(path) for path in (tmp_path / "dead_letters").glob("*.parquet")])
    assert letters.height == 1


# -- a flow that is changed ---------------------------------------------------------------------------------------


def changing(folder: Path, window: Any = None) -> Any:
    script = tuple(((0, ((1, v, 0.5, 0), (2, -v, 0.5, 0))),) for v in range(1, 8))
    flow, out = flow_of(script, window or md.count_window(4, step=2), aggs=[md.sum("v").alias("s")])
    local = Local(flow, folder, ahead=False)
    for _ in range(3):
        assert local.step()
    return local, out


def test_aggregates_come_and_go_with_the_state_as_it_is(tmp_path: Path) -> None:
    local, out = changing(tmp_path)
    aggs = (md.sum("v").alias("s"), md.count().alias("n"), md.collect("v").alias("vs"))
    local.propose(md.Replace("w", md.aggregate(*aggs)))
    local.run()
    table = out.table().to_pylist()
    assert [(row["s"], row["n"], row["vs"]) for row in table if row["k"] == 1 and row["window_number"] == 1] == [(10, 1, [4])]
    assert [(row["s"], row["n"], row["vs"]) for row in table if row["k"] == 1 and row["window_number"] == 2] == [(18, 3, [4, 5, 6])]
    local.propose(md.Replace("w", md.aggregate(md.count().alias("n"))))
    local.run()
    assert md.read_state(tmp_path, "w").schema.names == ["k", "window_number", "n"]


def test_rows_from_before_can_be_given_a_value_of_what_is_new(tmp_path: Path) -> None:
    local, out = changing(tmp_path)
    aggs = (md.sum("v").alias("s"), md.count().alias("n"))
    local.propose(md.Replace("w", md.aggregate(*aggs)), backfill={"w": {"n": 100}})
    local.run()
    table = out.table().to_pylist()
    assert [row["n"] for row in table if row["k"] == 1 and row["window_number"] in (1, 2)] == [201, 103]


@pytest.mark.parametrize("window", [md.count_window(4), md.count_window(6, step=2), md.count_window(2)])
def test_other_windows_begin_anew_or_are_refused(tmp_path: Path, window: Any) -> None:
    local, out = changing(tmp_path)
    change = md.Replace("w", md.aggregate(md.sum("v").alias("s"), window=window))
    with pytest.raises(FlowError, match=r"its size was 4 rows, step 2, and would be"):
        local.propose(change)
    local.propose(change, drop=("w",))
    local.run()
    numbers = [row["window_number"] for row in out.table().to_pylist() if row["k"] == 2]
    assert numbers == list(range(1, len(numbers) + 1)) == list(range(1, 1 + (4 - window.size) // window.step + 1))


def test_a_change_that_is_taken_back_leaves_the_rows_counted_once(tmp_path: Path) -> None:
    local, out = changing(tmp_path)
    trial = local.propose(md.Replace("w", md.aggregate(md.sum((pl.col("v") * 1000).cast(pl.Int8)).alias("z"), md.sum("v").alias("s"))))
    local.run()
    with pytest.raises(Rejected):
        trial.done.result(0)
    sums = [row["s"] for row in out.table().to_pylist() if row["k"] == 1]
    assert sums == [1 + 2 + 3 + 4, 3 + 4 + 5 + 6]


@pytest.mark.parametrize("rows", [3, 1500])
def test_what_small_steps_cost_follows_from_the_rows_that_have_come(tmp_path: Path, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key with three rows has three pieces, and not the ten thousand that it may have one day."""
    asked: list[int] = []
    find = Workspace.find
    monkeypatch.setattr(
        Workspace, "find", lambda workspace, table, keys, *more: (asked.append(keys.height), find(workspace, table, keys, *more))[1]
    )
    script = tuple(((0, tuple((k, v, 0.5, 0) for v in range(at, at + rows // 3) for k in (1, 2))),) for at in range(0, rows, rows // 3))
    flow, out = flow_of(script, md.count_window(10_000, 1))
    Local(flow, tmp_path).run()
    assert out.table().num_rows == 0
    shown = pl.DataFrame(pl.from_arrow(md.read_state(tmp_path, "w"))).filter(k=1).sort("window_number")
    assert shown["sum"].to_list() == [sum(range(first, rows)) for first in range(rows)]
    assert shown["first"].to_list() == list(range(rows))
    assert shown["vs"].to_list()[:: rows // 3] == [list(range(first, rows)) for first in range(0, rows, rows // 3)]
    assert sum(asked) <= 3 * 2 * (16 + 2 * rows)


# -- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "step", "says"),
    [(0, None, "size=0"), (10, 3, "multiple"), (4, 8, "multiple"), ("10s", None, "'10s'"), (1 << 63, 1, "from 1 to 2\\^53")],
)
def test_a_window_that_makes_no_sense_is_refused(size: Any, step: Any, says: str) -> None:
    with pytest.raises(FlowError, match=says):
        md.count_window(size, step)


def test_what_only_windows_of_time_have_is_refused() -> None:
    events = md.Flow("f").source("events", Script(COLUMNS, ()))
    windowed = events.key_by("k").window(md.count_window(3))
    with pytest.raises(FlowError, match="emit='update'; windows of a number of rows come once"):
        windowed.aggregate(md.count(), emit="update")
    with pytest.raises(FlowError, match="no row is late"):
        windowed.aggregate(md.count(), lateness="5s")
    with pytest.raises(FlowError, match="none per window of a number of rows"):
        windowed.top(1, by="v")
    with pytest.raises(FlowError, match=r"count_window\(3\) counts the rows of one stream"):
        windowed.join(events, on="k")
    with pytest.raises(FlowError, match="only what closes windows"):
        windowed.aggregate(md.count(), name="w").late()
    with pytest.raises(FlowError, match="'window_number', which is its own"):
        windowed.aggregate(md.count().alias("window_number"))
    with pytest.raises(FlowError, match="at least one aggregate"):
        windowed.aggregate()
    with pytest.raises(FlowError, match="is a stream of changes"):
        events.key_by("k").aggregate(md.count().alias("n")).window(md.count_window(3)).aggregate(md.sum("n"))
    with pytest.raises(FlowError, match="lateness"):
        md.aggregate(md.count(), window=md.count_window(3), lateness="1s").placed("w", ["events"], None, events.schema, None)


def test_its_rows_have_no_time_and_are_append_only() -> None:
    flow = md.Flow("f")
    events = flow.source("events", Script(COLUMNS, ())).watermark("ts")
    counted = events.key_by("k").window(md.count_window(3, step=1)).aggregate(md.count().alias("n"), name="w")
    with pytest.raises(FlowError, match="no event time"):
        counted.window(md.tumbling("10s")).aggregate(md.count())
    counted.key_by("n").aggregate(md.sum("window_number").alias("s")).sink("out", md.memory())
    assert "by k, count_window(3, step 1): count() as n" in flow.explain()

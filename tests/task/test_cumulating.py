"""Windows that cumulate, against models in plain Python: random rows, disorder, epochs, parallelism, restarts and rescales."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.local import Local, Script, constants

import meander as md
from meander.clock import SystemClock
from meander.coordinate.routing import rebalance
from meander.errors import FlowError
from meander.plan.windows import FOREVER, NEVER, Cumulating
from meander.state import compaction as compaction_module

COLUMNS = {"k": pl.Int64(), "v": pl.Int64(), "ts": pl.Datetime("us")}
SECOND = 1_000_000
EPOCH = datetime(1970, 1, 1)
Out = list[tuple[Any, ...]]
LIMITS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


def windows_of(window: Cumulating, ts: int) -> list[tuple[int, int]]:
    begin = (ts - window.offset) // window.size * window.size + window.offset
    return [(begin, end) for end in range(begin + window.step, begin + window.size + 1, window.step) if end > ts]


class Model:
    """Windows by the definition, epoch by epoch: each has its own rows."""

    def __init__(self, window: Cumulating, emit: str, lateness: int, grace: int, keyed: bool = True) -> None:
        self.window, self.emit, self.lateness, self.grace, self.keyed = window, emit, lateness, grace, keyed
        self.rows: dict[tuple[Any, int, int], list[int]] = defaultdict(list)
        self.heard: dict[int, int] = {}
        self.mark = self.late_mark = self.floor = NEVER
        self.late: Out = []

    def epoch(self, splits: Any, flush: bool = False) -> Out:
        late, evict = max(self.late_mark, self.floor), FOREVER if flush else max(self.mark, self.floor)
        touched = set()
        for partition, rows in splits:
            for k, v, ts in rows:
                self.heard[partition] = max(self.heard.get(partition, NEVER), ts)
                mine = windows_of(self.window, ts)
                if mine[-1][1] + self.lateness <= late:
                    self.late.append((k, v, ts))
                    continue
                for begin, end in mine:
                    self.rows[k if self.keyed else None, begin, end].append(v)
                    touched.add((k if self.keyed else None, begin, end))
        out = set()
        for key in self.rows:
            end = key[2]
            if self.emit == "update":
                if key in touched and end + self.lateness > late:
                    out.add(key)
            elif late < end <= evict or (key in touched and late - self.lateness < end <= late):
                out.add(key)
        closed = max((begin + self.window.size for _, begin, _ in self.rows), default=NEVER)
        self.late_mark = self.mark
        if self.heard:
            self.mark = max(self.mark, min(self.heard.values()) - self.grace)
        if flush:
            self.floor = max(self.floor, closed + self.lateness)
        return self.shown(out)

    def open(self) -> Out:
        closed = max(self.late_mark, self.floor)
        return self.shown({key for key in self.rows if key[2] + self.lateness > closed})

    def shown(self, keys: Any) -> Out:
        return sorted(((*key, len(vs := self.rows[key]), sum(vs), sorted(vs)) for key in keys), key=str)


def emitted(table: Any, keyed: bool = True) -> Out:
    found = []
    for row in pl.DataFrame(pl.from_arrow(table)).iter_rows(named=True):
        begin, end = ((row[column] - EPOCH) // timedelta(microseconds=1) for column in ("window_start", "window_end"))
        found.append((row["k"] if keyed else None, begin, end, row["n"], row["v"], sorted(row["vs"])))
    return sorted(found, key=str)


def flow_of(epochs: Any, window: Any, emit: str = "closed", lateness: str = "0s", grace: str = "0s", keyed: bool = True) -> Any:
    flow, out, late = md.Flow("cumulating"), md.memory(), md.memory()
    events = flow.source("events", Script(COLUMNS, epochs)).watermark("ts", grace=grace)
    windows = (events.key_by("k") if keyed else events).window(window)
    aggs = (md.count().alias("n"), md.sum("v").alias("v"), md.collect("v").alias("vs"))
    sums = windows.aggregate(*aggs, emit=emit, lateness=lateness, name="w")
    sums.sink("out", out)
    sums.late().sink("late", late)
    return flow, out, late


times = st.integers(-15 * SECOND, 40 * SECOND)
rows = st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 5), times), max_size=8).map(tuple)
splits = st.lists(st.tuples(st.integers(0, 1), rows), min_size=1, max_size=3).map(tuple)
specs = st.sampled_from(
    [
        md.cumulating("10s", step="5s"),
        md.cumulating("12s", step="3s", offset="1s"),
        md.cumulating("6s", step="6s"),
        md.cumulating("12s", step="2s", offset="-5s"),
        md.cumulating("40s", step="1s"),
    ]
)


@pytest.mark.many
@LIMITS
@given(st.data())
def test_windows_equal_the_model_epoch_by_epoch(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    spec = data.draw(specs)
    emit, keyed = data.draw(st.sampled_from(["closed", "update"])), data.draw(st.booleans())
    lateness, grace = data.draw(st.sampled_from([0, 5])), data.draw(st.sampled_from([0, 3]))
    epochs = tuple(data.draw(st.lists(splits, min_size=1, max_size=6)))
    folder = tmp_path_factory.mktemp("windows")
    flow, out, late = flow_of(epochs, spec, emit, f"{lateness}s", f"{grace}s", keyed)
    model = Model(spec, emit, lateness * SECOND, grace * SECOND, keyed)
    small = data.draw(st.booleans())
    with constants(FEWEST=(compaction_module, 2)):
        local = Local(flow, folder, data.draw(st.sampled_from([1, 2, 3])), small, ahead=data.draw(st.booleans()))
        expected: Out = []
        for given_splits in epochs:
            assert local.step()
            expected += model.epoch(given_splits)
            assert emitted(out.table(), keyed) == sorted(expected, key=str)
            if emit == "closed" and data.draw(st.booleans()) and "w" in local.manifest.tables:
                assert emitted(md.read_state(folder, "w"), keyed) == model.open()
            if data.draw(st.booleans()):
                local.loop.reroute("w", rebalance(local.loop.routing["w"], data.draw(st.integers(1, 4))))
            if data.draw(st.integers(0, 3)) == 0:  # the driver dies, and another one goes on
                local = Local(flow, folder, 2, small)
            if data.draw(st.integers(0, 3)) == 0 and local.loop.decisions.begun is None:
                for is_flush in local.flush():
                    expected += model.epoch((), is_flush)
        while local.step():  # what is due without input
            expected += model.epoch(())
        assert emitted(out.table(), keyed) == sorted(expected, key=str)
        for is_flush in local.flush():
            expected += model.epoch((), is_flush)
    assert emitted(out.table(), keyed) == sorted(expected, key=str)
    rest = pl.DataFrame(pl.from_arrow(late.table()))
    assert sorted(rest.with_columns(pl.col("ts").dt.epoch("us")).rows() if rest.height else []) == sorted(model.late)
    assert emit == "update" or not local.stored, "everything is closed, and nothing is stored any more"


@pytest.mark.many
@LIMITS
@given(st.lists(rows, min_size=1, max_size=4), st.randoms(), st.sampled_from(["first", "all"]))
def test_the_best_of_each_window_are_those_of_its_rows(
    tmp_path_factory: pytest.TempPathFactory, some: list[Any], rng: Any, ties: str
) -> None:
    flow, out = md.Flow("best"), md.memory()
    epochs: list[list[Any]] = [[]]
    for part in some:
        epochs[-1].append((0, part))
        if rng.random() < 0.5:
            epochs.append([])
    events = flow.source("events", Script(COLUMNS, tuple(map(tuple, epochs)))).watermark("ts", grace="100s")
    spec = md.cumulating("12s", step="3s")
    events.key_by("k").window(spec).top(2, by="v", ties=ties, name="w").sink("out", out)
    local = Local(flow, tmp_path_factory.mktemp("best"))
    local.run()
    model = Model(spec, "closed", 0, 0)
    model.epoch([(0, part) for part in some])
    wanted = []
    for key, vs in model.rows.items():
        ranked = [(sum(other > v for other in vs) + 1, v) for v in sorted(vs, reverse=True)]
        if ties == "first":
            ranked = [(rank, v) for rank, (_, v) in enumerate(ranked, 1)]
        wanted += [(*key, rank, v) for rank, v in ranked if rank <= 2]
    assert best_of(md.read_state(local.folder, "w") if wanted else out.table()) == sorted(wanted)
    local.run(flush=True)
    assert best_of(out.table()) == sorted(wanted)
    assert not local.stored


def best_of(table: Any) -> Out:
    frame = pl.DataFrame(pl.from_arrow(table))
    return sorted(frame.select("k", pl.col("window_start", "window_end").dt.epoch("us"), "rank", "v").rows()) if frame.height else []


def at(*moments: float) -> Any:
    return ((0, tuple((1, 1, int(moment * SECOND)) for moment in moments)),)


def test_a_window_comes_with_each_step_also_where_nothing_has_come_for_it(tmp_path: Path) -> None:
    flow, out, _ = flow_of((at(1), at(14), at(23)), md.cumulating("20s", step="5s"))
    local = Local(flow, tmp_path)
    local.run()
    ends = pl.DataFrame(pl.from_arrow(out.table())).select(pl.col("window_start", "window_end").dt.epoch("s"), "n").sort("window_end")
    assert ends.rows() == [(0, 5, 1), (0, 10, 1), (0, 15, 2), (0, 20, 2)]


@pytest.mark.many
def test_a_row_is_stored_once_and_all_goes_with_the_whole_window(tmp_path: Path) -> None:
    epochs = tuple(at(second) for second in range(400))
    flow, _, _ = flow_of(epochs, md.cumulating("40s", step="4s"))
    local = Local(flow, tmp_path)
    most = 0
    while local.step():
        most = max(most, md.read_state(tmp_path, "w").num_rows)
        table = local.manifest.tables["w"]
        assert table.floor >= ((local.manifest.times["watermark_1"]["late"]) // (40 * SECOND)) * 40 * SECOND - 1
    assert most <= 20, "windows of one stretch, and those of the next before the mark has passed the first"
    local.run(flush=True)
    assert not local.stored


@pytest.mark.many
def test_windows_behind_lose_nothing(tmp_path: Path) -> None:
    flow, out = md.Flow("twice"), md.memory()
    epochs = tuple(at(second, second + 1) for second in range(0, 200, 3))
    events = flow.source("events", Script(COLUMNS, epochs)).watermark("ts", grace="1s")
    first = events.key_by("k").window(md.cumulating("20s", step="5s")).aggregate(md.count().alias("n"), name="first")
    first.key_by("k").window(md.tumbling("5s")).aggregate(md.sum("n").alias("n"), md.count().alias("windows"), name="second").sink("o", out)
    local = Local(flow, tmp_path)
    local.run(flush=True)
    table = pl.DataFrame(pl.from_arrow(out.table()))
    model = Model(Cumulating(20 * SECOND, 5 * SECOND), "closed", 0, 0)
    model.epoch([split for epoch in epochs for split in epoch])
    assert table.get_column("n").sum() == sum(len(vs) for vs in model.rows.values())
    assert set(table.get_column("windows")) == {1}
    assert local.manifest.totals.get("late_rows", 0) == 0


class Hand(SystemClock):
    at = 1_000.0

    def now(self) -> float:
        return self.at


def test_by_the_clock_too(tmp_path: Path) -> None:
    flow, out = md.Flow("clocked"), md.memory()
    events = flow.source("events", Script(COLUMNS, (at(1), at(1)))).key_by("k")
    events.window(md.cumulating("10s", step="5s", time="processing")).aggregate(md.count().alias("n"), name="w").sink("out", out)
    clock = Hand()
    local = Local(flow, tmp_path, clock=clock, ahead=False)
    for moment in (1_001.0, 1_006.0, 1_010.0):
        clock.at = moment
        assert local.step()
    assert not local.step()
    ends = pl.DataFrame(pl.from_arrow(out.table())).select(pl.col("window_start", "window_end").dt.epoch("s"), "n")
    assert ends.rows() == [(1_000, 1_005, 1), (1_000, 1_010, 2)]


def changed(folder: Path, before: Any, after: Any) -> Any:
    flow, out, _ = flow_of((at(1), at(2), at(3)), before, grace="1h")
    local = Local(flow, folder, ahead=False)
    assert local.step()
    aggs = (md.count().alias("n"), md.sum("v").alias("v"), md.collect("v").alias("vs"))
    return local, out, lambda **more: local.propose(md.Replace("w", md.aggregate(*aggs, window=after, **more)))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (md.cumulating("20s", step="5s"), md.cumulating("10s", step="5s")),
        (md.cumulating("20s", step="5s"), md.cumulating("20s", step="5s", offset="5s")),
        (md.cumulating("20s", step="5s"), md.tumbling("5s")),
        (md.sliding("20s", step="5s"), md.cumulating("20s", step="5s")),
    ],
)
def test_other_windows_do_not_go_on_with_the_state_of_these(tmp_path: Path, before: Any, after: Any) -> None:
    _, _, propose = changed(tmp_path, before, after)
    with pytest.raises(FlowError, match="what these need may have been dropped"):
        propose()


def test_the_same_windows_go_on_when_they_are_given_out_otherwise(tmp_path: Path) -> None:
    spec = md.cumulating("20s", step="5s")
    local, out, propose = changed(tmp_path, spec, spec)
    propose(emit="update")
    local.run()
    assert {row[2:4] for row in emitted(out.table())} == {(end * SECOND, n) for end in (5, 10, 15, 20) for n in (2, 3)}

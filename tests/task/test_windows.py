"""Windows against a model in plain Python: random rows, disorder, epochs, parallelism, restarts and rescales."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.local import Local, Script, constants

import meander as md
from meander.coordinate.routing import rebalance
from meander.plan.windows import NEVER, Window
from meander.state import compaction as compaction_module
from meander.state.manifest import operator_of
from meander.status import show_operators

COLUMNS = {"k": pl.Int64(), "v": pl.Int64(), "ts": pl.Datetime("us")}
SECOND = 1_000_000
EPOCH = datetime(1970, 1, 1)
Row = tuple[int, int, int]
LIMITS = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


def flow_of(epochs: Any, window: Window, emit: str, lateness: str, grace: str, keyed: bool = True) -> tuple[md.Flow, Any, Any]:
    flow, out, late = md.Flow("windows"), md.memory(), md.memory()
    events = flow.source("events", Script(COLUMNS, epochs)).watermark("ts", grace=grace)
    windows = (events.key_by("k") if keyed else events).window(window)
    sums = windows.aggregate(
        md.count().alias("n"), md.sum("v").alias("v"), md.collect("v").alias("vs"), emit=emit, lateness=lateness, name="w"
    )
    sums.sink("out", out)
    sums.late().sink("late", late)
    return flow, out, late


class Model:
    """Windows by the definition, epoch by epoch."""

    def __init__(self, window: Window, emit: str, lateness: int, grace: int, keyed: bool = True) -> None:
        self.window, self.emit, self.lateness, self.grace, self.keyed = window, emit, lateness, grace, keyed
        self.rows: dict[tuple[Any, int], list[int]] = defaultdict(list)
        self.heard: dict[int, int] = {}
        self.mark = self.late_mark = self.floor = NEVER
        """What a flush has closed is over, whatever the marks say."""
        self.late: list[Row] = []

    def epoch(self, splits: Any, flush: bool = False) -> list[tuple[Any, ...]]:
        late, evict, w = max(self.late_mark, self.floor), max(self.mark, self.floor), self.window
        if flush:
            evict = 1 << 62
        touched = set()
        for partition, rows in splits:
            for k, v, ts in rows:
                self.heard[partition] = max(self.heard.get(partition, NEVER), ts)
                last = (ts - w.offset) // w.step * w.step + w.offset
                if last + w.size + self.lateness <= late:
                    self.late.append((k, v, ts))
                    continue
                for start in range(last, last - w.size, -w.step):
                    key = (k if self.keyed else None, start)
                    self.rows[key].append(v)
                    touched.add(key)
        out = set()
        for key in self.rows:
            end = key[1] + w.size
            if self.emit == "update":
                if key in touched and end + self.lateness > late:
                    out.add(key)
            elif late < end <= evict or (key in touched and late - self.lateness < end <= late):
                out.add(key)
        closed = max((start + w.size for _, start in self.rows), default=NEVER)
        self.late_mark = self.mark
        if self.heard:
            self.mark = max(self.mark, min(self.heard.values()) - self.grace)
        if flush:
            self.floor = max(self.floor, closed + self.lateness)
        return sorted((k, start, len(self.rows[k, start]), sum(self.rows[k, start]), sorted(self.rows[k, start])) for k, start in out)

    def open(self) -> list[tuple[Any, ...]]:
        """The windows that are open after the last epoch, or still take late rows, as far as they have come."""
        closed = max(self.late_mark, self.floor)
        found = [(k, start) for k, start in self.rows if start + self.window.size + self.lateness > closed]
        return sorted((k, start, len(vs := self.rows[k, start]), sum(vs), sorted(vs)) for k, start in found)


def emitted(table: Any, keyed: bool = True) -> list[tuple[Any, ...]]:
    rows = pl.DataFrame(pl.from_arrow(table))
    found = []
    for row in rows.iter_rows(named=True):
        assert row["window_end"] > row["window_start"]
        start = (row["window_start"] - EPOCH) // timedelta(microseconds=1)
        found.append((row["k"] if keyed else None, start, row["n"], row["v"], sorted(row["vs"])))
    return sorted(found)


times = st.integers(0, 40 * SECOND)
rows = st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 5), times), max_size=8).map(tuple)
splits = st.lists(st.tuples(st.integers(0, 1), rows), min_size=1, max_size=3).map(tuple)
window = st.sampled_from(
    [md.tumbling("10s"), md.sliding("10s", "5s"), md.sliding("9s", "3s", offset="1s"), md.tumbling("500ms"), md.sliding("40s", "500ms")]
)


@pytest.mark.many
@LIMITS
@given(st.data())
def test_windows_equal_the_model_epoch_by_epoch(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    spec = data.draw(window)
    emit, keyed = data.draw(st.sampled_from(["closed", "update"])), data.draw(st.booleans())
    lateness, grace = data.draw(st.sampled_from([0, 5])), data.draw(st.sampled_from([0, 3]))
    epochs = tuple(data.draw(st.lists(splits, min_size=1, max_size=6)))
    folder = tmp_path_factory.mktemp("windows")
    flow, out, late = flow_of(epochs, spec, emit, f"{lateness}s", f"{grace}s", keyed)
    model = Model(spec, emit, lateness * SECOND, grace * SECOND, keyed)
    small = data.draw(st.booleans())
    with constants(FEWEST=(compaction_module, 2)):
        local = Local(flow, folder, data.draw(st.sampled_from([1, 2, 3])), small, ahead=data.draw(st.booleans()))
        expected: list[tuple[Any, ...]] = []
        for given_splits in epochs:
            assert local.step()
            expected += model.epoch(given_splits)
            if emit == "closed" and data.draw(st.booleans()) and any(operator_of(name) == "w" for name in local.manifest.tables):
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
        assert emitted(out.table(), keyed) == sorted(expected)
        for is_flush in local.flush():
            expected += model.epoch((), is_flush)
    assert emitted(out.table(), keyed) == sorted(expected)
    rest = pl.DataFrame(pl.from_arrow(late.table()))
    assert sorted(rest.with_columns(pl.col("ts").dt.epoch("us")).rows() if rest.height else []) == sorted(model.late)
    assert local.manifest.totals.get("late_rows", 0) == len(model.late)
    assert emit == "update" or not local.stored, "everything is closed, and nothing is stored any more"


def at(*moments: float) -> tuple[tuple[int, tuple[Row, ...]], ...]:
    return ((0, tuple((1, 1, int(moment * SECOND)) for moment in moments)),)


def test_a_window_closes_in_the_epoch_after_the_mark_has_passed_its_end_also_without_input(tmp_path: Path) -> None:
    flow, out, _ = flow_of((at(1, 2), at(11)), md.tumbling("10s"), "closed", "0s", "0s")
    local = Local(flow, tmp_path)
    assert local.step()
    assert local.step()
    assert out.table().num_rows == 0
    assert local.step()  # nothing came, and something is due
    assert emitted(out.table()) == [(1, 0, 2, 2, [1, 1])]
    assert not local.step()


@pytest.mark.many
def test_state_goes_with_its_windows_and_an_epoch_costs_what_is_open(tmp_path: Path) -> None:
    """A hundred windows: never more state than of the first three, and nothing left in the store."""
    epochs = tuple(at(*(second + i / 7 for i in range(7))) for second in range(0, 1000, 5))
    flow, _, _ = flow_of(epochs, md.tumbling("10s"), "closed", "0s", "2s")
    local = Local(flow, tmp_path)
    sizes = []
    while local.step():
        sizes.append((len(local.manifest.tables), sum(t.rows for t in local.manifest.tables.values())))
    assert max(sizes) == max(sizes[:6])
    local.run(flush=True)
    assert not local.stored
    files = list((tmp_path / "segments").rglob("*.arrow"))
    assert len(files) < 12  # those of the retained epochs


def test_late_rows_are_dead_letters_where_nobody_takes_them(tmp_path: Path) -> None:
    flow = md.Flow("late")
    events = flow.source("events", Script(COLUMNS, (at(1), at(25), at(26), at(2)))).watermark("ts")
    events.key_by("k").window(md.tumbling("10s")).aggregate(md.count(), name="w").sink("out", md.memory())
    local = Local(flow, tmp_path)
    local.run(flush=True)
    letters = pl.concat([pl.read_parquet(path) for path in (tmp_path / "dead_letters").glob("*.parquet")])
    assert letters.get_column("reason").to_list() == ["late: its windows of ts had closed"]
    assert local.manifest.totals["late_rows"] == 1


def test_late_rows_are_counted_in_total_and_per_operator(tmp_path: Path) -> None:
    flow = md.Flow("late")
    events = flow.source("events", Script(COLUMNS, (at(1), at(25), at(26), at(2, 3, 18)))).watermark("ts")
    for size in ("5s", "20s"):
        events.key_by("k").window(md.tumbling(size)).aggregate(md.count(), name=f"w{size}").sink(f"out{size}", md.memory())
    events.key_by("k").aggregate(md.count(), name="never").sink("never_out", md.memory())
    local = Local(flow, tmp_path)
    local.run(flush=True)
    shown = show_operators(local.manifest, local.loop.routing)
    assert {name: operator["late_rows"] for name, operator in shown.items()} == {"w5s": 3, "w20s": 3, "never": 0}
    assert local.manifest.totals["late_rows"] == 6


def test_a_row_without_a_time_is_a_dead_letter(tmp_path: Path) -> None:
    flow, out, _ = flow_of((((0, ((1, 1, None), (1, 2, 5))),),), md.tumbling("10s"), "closed", "0s", "0s")
    local = Local(flow, tmp_path)
    local.run(flush=True)
    letters = pl.concat([pl.read_parquet(path) for path in (tmp_path / "dead_letters").glob("*.parquet")])
    assert letters.get_column("reason").to_list() == ["the event time ts is null"]
    assert emitted(out.table()) == [(1, 0, 1, 2, [2])]


@pytest.mark.many
def test_a_window_over_windows_loses_nothing(tmp_path: Path) -> None:
    flow, out = md.Flow("twice"), md.memory()
    epochs = tuple(at(second, second + 1) for second in range(0, 200, 3))
    events = flow.source("events", Script(COLUMNS, epochs)).watermark("ts", grace="1s")
    small = events.key_by("k").window(md.tumbling("10s")).aggregate(md.count().alias("n"), name="small")
    small.key_by("k").window(md.tumbling("60s")).aggregate(md.sum("n").alias("n"), md.count().alias("windows"), name="large").sink(
        "out", out
    )
    local = Local(flow, tmp_path)
    local.run(flush=True)
    table = pl.DataFrame(pl.from_arrow(out.table())).sort("window_start")
    assert table.get_column("n").sum() == 2 * len(epochs)
    assert table.get_column("windows").to_list()[:3] == [6, 6, 6]
    assert local.manifest.totals.get("late_rows", 0) == 0


def test_an_idle_partition_does_not_hold_windows_open(tmp_path: Path) -> None:
    class Hand(type(Local.__dataclass_fields__["clock"].default_factory())):  # type: ignore[misc]
        at = 1_000.0

        def now(self) -> float:
            return self.at

    clock = Hand()
    flow, out = md.Flow("idle"), md.memory()
    two = ((0, ((1, 1, 1 * SECOND),)), (1, ((1, 1, 2 * SECOND),)))
    events = flow.source("events", Script(COLUMNS, (two, at(30)))).watermark("ts", idle="60s")
    events.key_by("k").window(md.tumbling("10s")).aggregate(md.count().alias("n"), name="w").sink("out", out)
    local = Local(flow, tmp_path, clock=clock)
    local.run()
    assert out.table().num_rows == 0  # partition 1 is still at 2 s
    clock.at += 61
    local.run()  # partition 0 has been silent just as long, and nobody holds the others back
    assert out.table().to_pylist()[0]["n"] == 2
    assert local.manifest.times["watermark_1"]["mark"] == 30 * SECOND


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_windows_have_the_type_of_the_time(tmp_path: Path, unit: Any, zone: str | None) -> None:
    flow, out = md.Flow("types"), md.memory()
    factor = {"ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[unit]
    script = Script({"ts": pl.Datetime(unit, zone)}, (((0, ((12 * factor,), (25 * factor,))),),))
    flow.source("events", script).watermark("ts").window(md.tumbling("10s")).aggregate(md.count().alias("n")).sink("out", out)
    Local(flow, tmp_path).run(flush=True)
    table = pl.DataFrame(pl.from_arrow(out.table())).sort("window_start")
    assert table.schema["window_start"] == pl.Datetime(unit, zone) == table.schema["window_end"]
    assert table.get_column("window_start").dt.epoch("s").to_list() == [10, 20]


def test_open_windows_can_be_read(tmp_path: Path) -> None:
    flow, _, _ = flow_of((at(1, 2, 11),), md.tumbling("10s"), "closed", "0s", "30s")
    Local(flow, tmp_path).run()
    state = pl.DataFrame(pl.from_arrow(md.read_state(tmp_path, "w"))).sort("window_start")
    assert state.select("k", "n").rows() == [(1, 2), (1, 1)]
    assert state.get_column("window_end").to_list() == [
        datetime.fromtimestamp(10, UTC).replace(tzinfo=None),
        datetime.fromtimestamp(20, UTC).replace(tzinfo=None),
    ]


def test_open_sliding_windows_are_shown_as_windows_and_not_as_their_panes(tmp_path: Path) -> None:
    flow, _, _ = flow_of((at(1, 6, 7, 12), at(13)), md.sliding("10s", "5s"), "closed", "0s", "0s")
    local = Local(flow, tmp_path, ahead=False)
    local.step()
    local.step()
    state = pl.DataFrame(pl.from_arrow(md.read_state(tmp_path, "w"))).sort("window_start")
    shown = state.select(pl.col("window_start", "window_end").dt.epoch("s"), "n", "vs").rows()
    assert shown == [(5, 15, 4, [1, 1, 1, 1]), (10, 20, 2, [1, 1])], "the window from 0 to 10 has closed"
    before = pl.DataFrame(pl.from_arrow(md.read_state(tmp_path, "w", epoch=1))).sort("window_start")
    assert before.select(pl.col("window_start").dt.epoch("s"), "n").rows() == [(-5, 1), (0, 3), (5, 3), (10, 1)]

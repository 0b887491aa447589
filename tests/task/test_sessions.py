"""Sessions and windows by the clock, against models in plain Python."""

from __future__ import annotations

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
from meander.plan.windows import FOREVER, NEVER
from meander.state import compaction as compaction_module

COLUMNS = {"k": pl.Int64(), "v": pl.Int64(), "ts": pl.Datetime("us")}
AGGREGATES = [md.count().alias("n"), md.sum("v").alias("v"), md.collect("v").alias("vs")]
AGGREGATES += [md.first("v").alias("first"), md.last("v").alias("last")]
SECOND = 1_000_000
START = datetime(1970, 1, 1)
Row = tuple[int, int, int]
Emission = tuple[Any, ...]
"""Key, begin, end, rows, their values by time and arrival, the first and the last of these."""
LIMITS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


class Model:
    """Sessions by the definition, epoch by epoch: sets of rows that are joined wherever two are within the gap."""

    def __init__(self, gap: int, emit: str, lateness: int, grace: int, keyed: bool) -> None:
        self.gap, self.emit, self.lateness, self.grace, self.keyed = gap, emit, lateness, grace, keyed
        self.sessions: list[tuple[Any, list[tuple[int, int, Any]]]] = []
        """Key and rows (time, number by arrival, value)."""
        self.arrived = 0
        self.heard: dict[int, int] = {}
        self.mark = self.late_mark = self.floor = NEVER
        """What a flush has closed is over, whatever the marks say."""
        self.late: list[Row] = []

    def epoch(self, splits: Any, flush: bool = False) -> list[Emission]:
        late, evict = max(self.late_mark, self.floor), FOREVER if flush else max(self.mark, self.floor)
        self.sessions = [s for s in self.sessions if self._end(s) + self.lateness >= late]
        touched: list[int] = []
        arrived: list[tuple[Any, tuple[int, int, Any]]] = []
        for partition, rows in splits:
            for k, v, ts in rows:
                self.heard[partition] = max(self.heard.get(partition, NEVER), ts)
                if ts + self.gap + self.lateness < late:
                    self.late.append((k, v, ts))
                else:
                    self.arrived += 1
                    arrived.append((k if self.keyed else None, (ts, self.arrived, v)))
        for key, row in arrived:
            mine = [s for s in self.sessions if s[0] == key and any(abs(r[0] - row[0]) <= self.gap for r in s[1])]
            mine += [s for s in self.sessions if s[0] == key and s not in mine and s[1][0][0] <= row[0] <= max(s[1])[0]]
            joined = (key, sorted([row, *(r for s in mine for r in s[1])]))
            self.sessions = [s for s in self.sessions if not any(s is other for other in mine)] + [joined]
            touched = [t for t in touched if not any(t == id(other) for other in mine)] + [id(joined)]
        found = []
        for session in self.sessions:
            end, changed = self._end(session), id(session) in touched
            if changed if self.emit == "update" else late <= end < evict or (changed and end < late):
                vs = [v for _, _, v in session[1] if v is not None]
                found.append((session[0], session[1][0][0], end, len(session[1]), vs, *((vs[0], vs[-1]) if vs else (None, None))))
        self.late_mark = self.mark
        if self.heard:
            self.mark = max(self.mark, min(self.heard.values()) - self.grace)
        if flush:
            still = [s for s in self.sessions if self._end(s) + self.lateness >= late]
            self.floor = max([self.floor, *(self._end(s) + self.gap + self.lateness + 1 for s in still)])
            self.sessions = []
        return found

    def _end(self, session: tuple[Any, list[tuple[int, int]]]) -> int:
        return max(row[0] for row in session[1]) + self.gap


def emitted(table: Any, keyed: bool = True) -> list[Emission]:
    found = []
    for row in pl.DataFrame(pl.from_arrow(table)).iter_rows(named=True):
        begin, end = ((row[column] - START) // timedelta(microseconds=1) for column in ("window_start", "window_end"))
        assert row["v"] == (sum(row["vs"]) if row["vs"] else None)
        found.append((row["k"] if keyed else None, begin, end, row["n"], row["vs"], row["first"], row["last"]))
    return sorted(found, key=str)


def flow_of(script: Any, gap: float, emit: str, lateness: float, grace: float, keyed: bool = True) -> tuple[md.Flow, Any, Any]:
    flow, out, late = md.Flow("sessions"), md.memory(), md.memory()
    events = flow.source("events", Script(COLUMNS, script)).watermark("ts", grace=grace)
    windows = (events.key_by("k") if keyed else events).window(md.session(gap))
    sums = windows.aggregate(*AGGREGATES, emit=emit, lateness=lateness, name="w")
    sums.sink("out", out)
    sums.late().sink("late", late)
    return flow, out, late


times = st.one_of(st.integers(0, 40).map(lambda s: s * SECOND), st.integers(-5 * SECOND, 40 * SECOND))
rows = st.lists(st.tuples(st.integers(0, 2), st.none() | st.integers(-5, 5), times), max_size=6).map(tuple)
splits = st.lists(st.tuples(st.integers(0, 1), rows), min_size=1, max_size=3).map(tuple)


@pytest.mark.many
@LIMITS
@given(st.data())
def test_sessions_equal_the_model_epoch_by_epoch(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    gap, lateness, grace = data.draw(st.sampled_from([0.5, 3, 8])), data.draw(st.sampled_from([0, 5])), data.draw(st.sampled_from([0, 3]))
    emit, keyed, small = data.draw(st.sampled_from(["closed", "update"])), data.draw(st.booleans()), data.draw(st.booleans())
    script = tuple(data.draw(st.lists(splits, min_size=1, max_size=6)))
    folder = tmp_path_factory.mktemp("sessions")
    flow, out, late = flow_of(script, gap, emit, lateness, grace, keyed)
    model = Model(int(gap * SECOND), emit, lateness * SECOND, grace * SECOND, keyed)
    with constants(FEWEST=(compaction_module, 2)):
        local = Local(flow, folder, data.draw(st.sampled_from([1, 2, 4])), small, ahead=data.draw(st.booleans()))
        expected: list[Emission] = []
        for given_splits in script:
            assert local.step()
            expected += model.epoch(given_splits)
            assert emitted(out.table(), keyed) == sorted(expected, key=str)
            if data.draw(st.booleans()):
                local.loop.reroute("w", rebalance(local.loop.routing["w"], data.draw(st.integers(1, 4))))
            if data.draw(st.integers(0, 3)) == 0:
                local = Local(flow, folder, 2, small)
            if data.draw(st.integers(0, 3)) == 0 and local.loop.decisions.begun is None:
                for is_flush in local.flush():
                    expected += model.epoch((), is_flush)
        while local.step():
            expected += model.epoch(())
        assert emitted(out.table(), keyed) == sorted(expected, key=str)
        for is_flush in local.flush():
            expected += model.epoch((), is_flush)
    assert emitted(out.table(), keyed) == sorted(expected, key=str)
    rest = pl.DataFrame(pl.from_arrow(late.table()))
    late_rows = rest.with_columns(pl.col("ts").dt.epoch("us")).rows() if rest.height else []
    assert sorted(late_rows, key=str) == sorted(model.late, key=str)
    assert emit == "update" or not local.stored, "everything is closed, and nothing is stored any more"


def test_a_pause_of_exactly_the_gap_is_within_a_session_and_a_longer_one_ends_it(tmp_path: Path) -> None:
    script = (((0, ((1, 1, 0), (1, 2, 10 * SECOND), (1, 4, 20 * SECOND + 1))),),)
    flow, out, _ = flow_of(script, 10, "closed", 0, 0)
    Local(flow, tmp_path).run(flush=True)
    assert emitted(out.table()) == [(1, 0, 20 * SECOND, 2, [1, 2], 1, 2), (1, 20 * SECOND + 1, 30 * SECOND + 1, 1, [4], 4, 4)]


def test_a_late_row_makes_one_session_of_two(tmp_path: Path) -> None:
    script = (((0, ((1, 1, 0), (1, 2, 18 * SECOND))),), ((0, ((1, 4, 9 * SECOND),)),))
    flow, out, _ = flow_of(script, 10, "closed", 0, 30)
    local = Local(flow, tmp_path)
    local.run()
    state = pl.DataFrame(pl.from_arrow(md.read_state(tmp_path, "w")))
    assert state.select("k", "n", "v").rows() == [(1, 3, 7)]
    local.run(flush=True)
    assert emitted(out.table()) == [(1, 0, 28 * SECOND, 3, [1, 4, 2], 1, 2)]


@pytest.mark.parametrize("cut", [(3,), (1, 1, 1), (2, 1), (1, 2)])
def test_what_follows_the_order_of_rows_follows_their_times_however_input_is_cut(tmp_path: Path, cut: tuple[int, ...]) -> None:
    """Rows come from the end to the beginning, and one of equal time after the other."""
    rows = [((1, 7, 9 * SECOND), (1, None, 12 * SECOND)), ((1, 5, 4 * SECOND), (1, 8, 9 * SECOND)), ((1, None, 0), (1, 3, SECOND))]
    pieces, script = [(0, some) for some in rows], []
    for number in cut:
        script.append(tuple(pieces[:number]))
        pieces = pieces[number:]
    flow, out, _ = flow_of(tuple(script), 5, "closed", 0, 30)
    Local(flow, tmp_path).run(flush=True)
    assert emitted(out.table()) == [(1, 0, 17 * SECOND, 6, [3, 5, 7, 8], 3, 8)]


def test_a_key_cannot_have_the_name_of_what_a_session_keeps() -> None:
    events = md.Flow("f").source("events", Script({**COLUMNS, "x.time": pl.Int64()}, ())).watermark("ts")
    with pytest.raises(md.FlowError, match=r"its state column 'x.time' has the name of a key"):
        events.key_by("x.time").window(md.session("1s")).aggregate(md.last("v").alias("x"))


@pytest.mark.many
def test_a_window_over_sessions_loses_nothing(tmp_path: Path) -> None:
    flow, out = md.Flow("over"), md.memory()
    script = tuple(((0, ((second % 7, 1, second * SECOND),)),) for second in range(0, 300, 3))
    events = flow.source("events", Script(COLUMNS, script)).watermark("ts")
    sessions = events.key_by("k").window(md.session("10s")).aggregate(md.count().alias("n"), name="s")
    sessions.window(md.tumbling("30s")).aggregate(md.sum("n").alias("n"), name="w").sink("out", out)
    local = Local(flow, tmp_path)
    local.run(flush=True)
    assert pl.DataFrame(pl.from_arrow(out.table())).get_column("n").sum() == len(script)
    assert local.manifest.totals.get("late_rows", 0) == 0


# -- by the clock -------------------------------------------------------------------------------------------------


class Hand(SystemClock):
    """A clock that is moved by hand."""

    at = 1_000.0

    def now(self) -> float:
        return self.at


def clocked(window: Any, script: Any, emit: str = "closed") -> tuple[md.Flow, Any]:
    flow, out = md.Flow("clocked"), md.memory()
    keyed = flow.source("events", Script(COLUMNS, script)).key_by("k")
    keyed.window(window).aggregate(*AGGREGATES, emit=emit, name="w").sink("out", out)
    return flow, out


def of(begin: int, end: int, *values: int) -> Emission:
    """A window of key 1, in seconds."""
    return (1, begin * SECOND, end * SECOND, len(values), list(values), values[0], values[-1])


def one(value: int) -> Any:
    return ((0, ((1, value, 0),)),)


@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_windows_of_processing_time_go_by_the_decisions_clock(tmp_path: Path, parallelism: int) -> None:
    flow, out = clocked(md.tumbling("10s", time="processing"), (one(1), one(2), one(4), one(8)))
    clock = Hand()
    local = Local(flow, tmp_path, parallelism, clock=clock, ahead=False)
    for moment in (1_001.0, 1_009.5, 1_010.0):
        clock.at = moment
        assert local.step()
    assert emitted(out.table()) == [of(1_000, 1_010, 1, 2)]
    local = Local(flow, tmp_path, 2, clock=clock, ahead=False)  # another driver goes on, with the clock that the log knows
    clock.at = 900.0
    assert local.step()
    clock.at = 1_019.9
    assert not local.step()
    clock.at = 1_020.0
    assert local.step()  # nothing came, and a window is over
    assert not local.step()
    assert emitted(out.table())[1:] == [of(1_010, 1_020, 4, 8)]
    assert not local.stored


def test_sliding_windows_and_sessions_go_by_the_clock_too(tmp_path: Path) -> None:
    for number, (window, expected) in enumerate(
        [
            (md.sliding("10s", "5s", time="processing"), [(995, 1_005, [1]), (1_000, 1_010, [1, 2]), (1_005, 1_015, [2])]),
            (md.session("3s", time="processing"), [(1_001, 1_004, [1]), (1_007, 1_010, [2])]),
        ]
    ):
        flow, out = clocked(window, (one(1), one(2)))
        clock = Hand()
        local = Local(flow, tmp_path / str(number), clock=clock, ahead=False)
        for moment in (1_001.0, 1_007.0, 1_030.0):
            clock.at = moment
            assert local.step()
        assert not local.step()
        assert emitted(out.table()) == sorted([of(a, b, *values) for a, b, values in expected], key=str)


@pytest.mark.parametrize("window", [md.tumbling("10s", time="processing"), md.session("3s", time="processing")])
def test_input_whose_turn_comes_after_an_epoch_without_input_is_of_no_earlier_time(tmp_path: Path, window: Any) -> None:
    """As where Structured Streaming decides: between a batch and its turn, what is due by the clock closes."""
    flow, out = clocked(window, (one(1), one(2)))
    clock = Hand()
    local = Local(flow, tmp_path, clock=clock, ahead=False)
    assert local.step()
    clock.at = 1_009.9
    batch = local.loop.decisions.from_input(local.manifest.epoch + 1, everything=True)
    assert batch is not None
    clock.at = 1_020.1
    assert local.step(), "the first window closes"
    assert local.loop.run_epoch(batch)
    local.run(flush=True)
    assert pl.DataFrame(pl.from_arrow(out.table())).get_column("n").to_list() == [1, 1]


def test_a_backfill_of_windows_of_which_none_is_open_runs_no_epochs_by_the_clock(tmp_path: Path) -> None:
    window = md.tumbling("10s", time="processing")
    flow, _ = clocked(window, (one(1),))
    clock = Hand()
    local = Local(flow, tmp_path, clock=clock, ahead=False)
    local.run()
    clock.at = 1_011.0
    local.run()
    assert not local.stored
    more = md.aggregate(*AGGREGATES, md.mean("v").alias("mean"), window=window, emit="closed")
    trial = local.propose(md.Replace("w", more), backfill={"w": {"mean": {"n": 0, "sum": 0.0}}})
    assert local.step()
    epoch = trial.done.result(0).epoch
    for _ in range(10):
        clock.at += 11.0
        local.run(flush=True)
    assert local.manifest.epoch == epoch


def test_a_flush_closes_windows_of_processing_time(tmp_path: Path) -> None:
    flow, out = clocked(md.tumbling("10s", time="processing"), (one(1),))
    local = Local(flow, tmp_path, clock=Hand())
    local.run()
    assert out.table().num_rows == 0
    local.run(flush=True)
    assert emitted(out.table()) == [of(1_000, 1_010, 1)]

"""Sessions whose rows have a gap of their own, against a model in plain Python that knows intervals and nothing else."""

from __future__ import annotations

import json
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
from meander.errors import BadInput, FlowError
from meander.plan.windows import FOREVER, NEVER
from meander.state import compaction as compaction_module

COLUMNS = {"k": pl.Int64(), "v": pl.Int64(), "gap": pl.Int64(), "ts": pl.Datetime("us")}
AGGREGATES = [md.count().alias("n"), md.sum("v").alias("v"), md.collect("v").alias("vs")]
AGGREGATES += [md.first("v").alias("first"), md.last("v").alias("last")]
SECOND = 1_000_000
START = datetime(1970, 1, 1)
Emission = tuple[Any, ...]
LIMITS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
GAPS = {
    "gap": lambda gap: gap * SECOND,
    "gap * interval '1 second'": lambda gap: gap * SECOND,
    "CASE WHEN gap > 3 THEN 0.5 ELSE gap END": lambda gap: SECOND // 2 if gap > 3 else gap * SECOND,
}


class Model:
    """Sessions by the definition, epoch by epoch: rows are stretches of time, and those that meet belong together."""

    def __init__(self, gap: str, emit: str, lateness: int, grace: int, keyed: bool) -> None:
        self.gap, self.emit, self.lateness, self.grace, self.keyed = GAPS[gap], emit, lateness, grace, keyed
        self.sessions: list[tuple[Any, list[tuple[int, int, Any, int]]]] = []
        """Key and rows (time, number by arrival, value, end)."""
        self.arrived = 0
        self.heard: dict[int, int] = {}
        self.mark = self.late_mark = self.floor = NEVER
        self.late: list[Any] = []
        self.bad = 0

    def epoch(self, splits: Any, flush: bool = False) -> list[Emission]:
        late, evict = max(self.late_mark, self.floor), FOREVER if flush else max(self.mark, self.floor)
        self.sessions = [s for s in self.sessions if _end(s) + self.lateness >= late]
        touched: list[int] = []
        for partition, rows in splits:
            for k, v, gap, ts in rows:
                self.heard[partition] = max(self.heard.get(partition, NEVER), ts)
                if gap is None or gap <= 0:
                    self.bad += 1
                    continue
                end = ts + self.gap(gap)
                if end + self.lateness < late:
                    self.late.append((k, v, gap, ts))
                    continue
                self.arrived += 1
                key = k if self.keyed else None
                mine = [s for s in self.sessions if s[0] == key and min(s[1])[0] <= end and ts <= _end(s)]
                joined = (key, sorted([(ts, self.arrived, v, end), *(r for s in mine for r in s[1])]))
                self.sessions = [s for s in self.sessions if not any(s is other for other in mine)] + [joined]
                touched = [t for t in touched if not any(t == id(other) for other in mine)] + [id(joined)]
        found = []
        for session in self.sessions:
            end, changed = _end(session), id(session) in touched
            if changed if self.emit == "update" else late <= end < evict or (changed and end < late):
                vs = [v for _, _, v, _ in session[1] if v is not None]
                found.append((session[0], session[1][0][0], end, len(session[1]), vs, *((vs[0], vs[-1]) if vs else (None, None))))
        self.late_mark = self.mark
        if self.heard:
            self.mark = max(self.mark, min(self.heard.values()) - self.grace)
        if flush:
            self.floor = max([self.floor, *(_end(s) + self.lateness + 1 for s in self.sessions if _end(s) + self.lateness >= late)])
            self.sessions = []
        return found


def _end(session: tuple[Any, list[tuple[int, int, Any, int]]]) -> int:
    return max(row[3] for row in session[1])


def emitted(table: Any, keyed: bool = True) -> list[Emission]:
    found = []
    for row in pl.DataFrame(pl.from_arrow(table)).iter_rows(named=True):
        begin, end = ((row[column] - START) // timedelta(microseconds=1) for column in ("window_start", "window_end"))
        found.append((row["k"] if keyed else None, begin, end, row["n"], row["vs"], row["first"], row["last"]))
    return sorted(found, key=str)


def flow_of(script: Any, gap: Any, emit: str = "closed", lateness: float = 0, grace: float = 0, keyed: bool = True) -> Any:
    flow, out, late = md.Flow("sessions"), md.memory(), md.memory()
    events = flow.source("events", Script(COLUMNS, script)).watermark("ts", grace=grace)
    windows = (events.key_by("k") if keyed else events).window(md.session(gap))
    sums = windows.aggregate(*AGGREGATES, emit=emit, lateness=lateness, name="w")
    sums.sink("out", out)
    sums.late().sink("late", late)
    return flow, out, late


def letters(folder: Path) -> pl.DataFrame:
    return pl.concat([pl.read_parquet(path) for path in sorted((folder / "dead_letters").glob("*.parquet"))])


times = st.one_of(st.integers(0, 40).map(lambda s: s * SECOND), st.integers(-5 * SECOND, 40 * SECOND))
gaps = st.one_of(st.integers(1, 6), st.integers(1, 6), st.sampled_from([None, 0, -3, 20]))
rows = st.lists(st.tuples(st.integers(0, 2), st.none() | st.integers(-5, 5), gaps, times), max_size=6).map(tuple)
splits = st.lists(st.tuples(st.integers(0, 1), rows), min_size=1, max_size=3).map(tuple)


@pytest.mark.many
@LIMITS
@given(st.data())
def test_sessions_equal_the_model_epoch_by_epoch(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    gap, lateness, grace = data.draw(st.sampled_from(list(GAPS))), data.draw(st.sampled_from([0, 5])), data.draw(st.sampled_from([0, 3]))
    emit, keyed, small = data.draw(st.sampled_from(["closed", "update"])), data.draw(st.booleans()), data.draw(st.booleans())
    script = tuple(data.draw(st.lists(splits, min_size=1, max_size=6)))
    folder = tmp_path_factory.mktemp("sessions")
    flow, out, late = flow_of(script, gap, emit, lateness, grace, keyed)
    model = Model(gap, emit, lateness * SECOND, grace * SECOND, keyed)
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
    assert local.manifest.totals.get("dead_letters", 0) == model.bad
    assert emit == "update" or not local.stored, "everything is closed, and nothing is stored any more"


@pytest.mark.many
@settings(LIMITS, max_examples=30)
@given(st.lists(rows, min_size=1, max_size=5), st.randoms())
def test_the_cut_into_epochs_does_not_matter_where_no_row_is_late(
    tmp_path_factory: pytest.TempPathFactory, some: list[Any], rng: Any
) -> None:
    whole = tuple((0, part) for part in some)
    script: list[Any] = [[]]
    for split in whole:
        script[-1].append(split)
        if rng.random() < 0.5:
            script.append([])
    found = []
    for cut in ((whole,), tuple(tuple(part) for part in script if part)):
        flow, out, _ = flow_of(cut, "gap", grace=100)
        Local(flow, tmp_path_factory.mktemp("cut")).run(flush=True)
        found.append(emitted(out.table()))
    assert found[0] == found[1]


@pytest.mark.many
@settings(LIMITS, max_examples=20)
@given(st.lists(splits, min_size=1, max_size=4))
def test_a_gap_that_is_the_same_in_all_rows_is_that_gap(tmp_path_factory: pytest.TempPathFactory, script: list[Any]) -> None:
    found = []
    for gap in ("3s", pl.when(pl.col("k") >= 0).then(3)):
        flow, out, late = flow_of(tuple(script), gap, grace=2, lateness=1)
        local = Local(flow, tmp_path_factory.mktemp("same"))
        local.run()
        found.append((emitted(out.table()), sorted(late.table().to_pylist(), key=str)))
    assert found[0] == found[1]


def test_a_row_extends_its_session_by_its_own_gap_and_one_that_only_touches_it_is_part_of_it(tmp_path: Path) -> None:
    script = (((0, ((1, 1, 10, 0), (1, 2, 1, 2 * SECOND), (1, 4, 3, 10 * SECOND), (1, 8, 1, 13 * SECOND + 1))),),)
    flow, out, _ = flow_of(script, "gap")
    Local(flow, tmp_path).run(flush=True)
    assert emitted(out.table()) == [
        (1, 0, 13 * SECOND, 3, [1, 2, 4], 1, 4),
        (1, 13 * SECOND + 1, 14 * SECOND + 1, 1, [8], 8, 8),
    ]


def test_a_row_with_a_long_gap_makes_one_session_of_all_that_it_spans_and_open_ones_can_be_read(tmp_path: Path) -> None:
    apart = tuple((1, 1, 1, moment * SECOND) for moment in (10, 20, 30))
    flow, _, _ = flow_of((((0, apart),), ((0, ((1, 2, 20, 5 * SECOND),)),)), "gap", grace=60)
    local = Local(flow, tmp_path)
    assert local.step()
    assert local.step()
    state = md.read_state(tmp_path, "w")
    assert emitted(state)[::-1] == [(1, 5 * SECOND, 25 * SECOND, 3, [2, 1, 1], 2, 1), (1, 30 * SECOND, 31 * SECOND, 1, [1], 1, 1)]


def test_a_row_without_a_gap_is_a_dead_letter_that_says_why(tmp_path: Path) -> None:
    bad = ((1, 1, None, 0), (1, 2, 0, 0), (1, 3, -1, 0), (1, 4, 1 << 60, 0))
    flow, out, late = flow_of((((0, (*bad, (1, 8, 1, 0))),),), "gap", grace=1)
    local = Local(flow, tmp_path)
    local.run(flush=True)
    assert emitted(out.table()) == [(1, 0, SECOND, 1, [8], 8, 8)]
    found = letters(tmp_path)
    assert sorted(found.get_column("reason").to_list()) == sorted(
        f"the gap of its session, gap, {what}"
        for what in ("is null or no number", "is not above zero", "is not above zero", "is too long: it would end later than times can be")
    )
    assert {json.loads(content)["v"] for content in found.get_column("content")} == {1, 2, 3, 4}
    assert not any("__" in content for content in found.get_column("content")), "a dead letter has the columns of the input"
    assert late.table().num_rows == 0


def test_a_row_for_which_the_expression_fails_is_a_dead_letter_and_stops_a_strict_flow(tmp_path: Path) -> None:
    flow, out, _ = flow_of((((0, ((1, 1, 3, 0), (1, 2, 999, 0))),),), pl.col("gap").cast(pl.Int8))
    Local(flow, tmp_path / "lenient").run(flush=True)
    assert emitted(out.table()) == [(1, 0, 3 * SECOND, 1, [1], 1, 1)]
    (reason,) = letters(tmp_path / "lenient").get_column("reason")
    assert "conversion from `i64` to `i8` failed" in reason
    with pytest.raises(BadInput, match="999"):
        Local(flow, tmp_path / "strict", strict=True).run()


def test_a_null_gap_stops_a_strict_flow(tmp_path: Path) -> None:
    flow, _, _ = flow_of((((0, ((1, 1, None, 0),)),),), "gap")
    with pytest.raises(BadInput, match=r"operator 'w', .* the gap of its session, gap, is null or no number"):
        Local(flow, tmp_path, strict=True).run()


def test_late_rows_of_such_sessions_go_to_the_dead_letters_as_they_came(tmp_path: Path) -> None:
    flow = md.Flow("late")
    script = tuple(((0, ((1, number, gap, moment * SECOND),)),) for number, (gap, moment) in enumerate([(1, 0), (1, 30), (1, 31), (2, 5)]))
    events = flow.source("events", Script(COLUMNS, script)).watermark("ts")
    events.key_by("k").window(md.session("gap")).aggregate(md.count(), name="w").sink("out", md.memory())
    Local(flow, tmp_path).run()
    (row,) = letters(tmp_path).iter_rows(named=True)
    assert row["reason"] == "late: a session of ts that it could be in had closed"
    assert json.loads(row["content"]).keys() == COLUMNS.keys()


def test_a_session_that_is_over_in_the_epoch_that_brings_it_comes_out(tmp_path: Path) -> None:
    """Its row is behind the mark and not late, and everything that was there before ends much later."""
    moments = [[(1, 0, 100)], [(2, 20, 100)], [(3, 21, 100)], [(4, 30, 100)], [(5, 22, 2)], [(6, 40, 100)], []]
    flow, out, late = flow_of(tuple(((0, tuple((k, k, gap, at * SECOND) for k, at, gap in of)),) for of in moments), "gap")
    Local(flow, tmp_path, ahead=False).run(flush=True)
    found = [sorted(frame.get_column("k").to_list()) for _, frame in sorted(out.epochs().items()) if frame.height]
    assert found == [[5], [1, 2, 3, 4, 6]]
    assert late.frame().is_empty()


class Hand(SystemClock):
    at = 1_000.0

    def now(self) -> float:
        return self.at


def test_by_the_clock_a_row_counts_from_when_it_is_taken_in(tmp_path: Path) -> None:
    flow, out = md.Flow("clocked"), md.memory()
    script = tuple(((0, ((1, number, gap, 0),)),) for number, gap in enumerate([5, 1, 3]))
    events = flow.source("events", Script(COLUMNS, script)).key_by("k")
    events.window(md.session("gap", time="processing")).aggregate(*AGGREGATES, name="w").sink("out", out)
    clock = Hand()
    local = Local(flow, tmp_path, clock=clock, ahead=False)
    for moment in (1_000.0, 1_003.0, 1_007.0, 1_020.0):
        clock.at = moment
        assert local.step()
    assert not local.step()
    assert emitted(out.table()) == [(1, 1_000 * SECOND, 1_005 * SECOND, 2, [0, 1], 0, 1), (1, 1_007 * SECOND, 1_010 * SECOND, 1, [2], 2, 2)]


def keyed() -> Any:
    columns = {**COLUMNS, "word": pl.String(), "long": pl.Duration("ms")}
    return md.Flow("f").source("events", Script(columns, ())).watermark("ts").key_by("k")


@pytest.mark.parametrize(
    "gap", ["gap", "long", "long * 2", pl.col("gap") * 0.5, "CASE WHEN word = 'x' THEN interval '1 hour' ELSE long END"]
)
def test_a_gap_is_a_duration_or_a_number_of_seconds(gap: Any) -> None:
    stream = keyed().window(md.session(gap)).aggregate(md.count())
    assert f"session(gap {gap}) of ts" in stream.sink("out", md.memory()).explain()


@pytest.mark.parametrize(
    ("gap", "says"),
    [
        ("word", "its gap, word, is String; it must be a Duration or a number of seconds"),
        ("gap > 3", "is Boolean; it must be"),
        ("pause", "its gap: there is no column 'pause'"),
        (pl.col("gap").sum(), "not row-local"),
        (pl.col("gap").map_elements(lambda gap: gap, pl.Int64()), "a Python function"),
        ("word * word", r"its gap, word \* word: "),
    ],
)
def test_what_is_no_gap_of_a_row_is_refused_when_the_flow_is_written(gap: Any, says: str) -> None:
    with pytest.raises(FlowError, match=says):
        keyed().window(md.session(gap)).aggregate(md.count(), name="w")


@pytest.mark.parametrize(
    ("gap", "says"), [("30 parsecs", "not a duration, and no expression"), ("5", "not a duration"), ("a b c", "not a")]
)
def test_what_is_neither_a_duration_nor_an_expression_is_refused_at_once(gap: str, says: str) -> None:
    with pytest.raises(FlowError, match=says):
        md.session(gap)


def test_between_a_near_end_and_a_far_one_there_is_no_epoch(tmp_path: Path) -> None:
    """By the clock: an epoch when a session is over, and none at every second until the last one is."""
    clock = Hand()
    flow, out = md.Flow("s"), md.memory()
    events = flow.source("events", Script(COLUMNS, (((0, ((1, 0, 5, 0), (2, 0, 70, 0), (3, 0, 1000, 0))),), ((0, ((4, 0, 30, 0),)),))))
    events.key_by("k").window(md.session("gap", time="processing")).aggregate(md.count().alias("n"), name="w").sink("out", out)
    local = Local(flow, tmp_path, clock=clock, ahead=False)
    assert local.step()
    cursor, epochs = local.loop.input.cursors["events"], []
    whole, cursor.script = cursor.script, Script(COLUMNS, cursor.script.epochs[:1])
    for second in range(1, 120):
        clock.at = 1000.0 + second
        if second == 20:
            cursor.script = whole
            assert local.step()
        while local.step():
            epochs.append(second)
        if second in (30, 60):
            local = Local(flow, tmp_path, 3, clock=clock, ahead=False)
    assert out.table().num_rows == 3
    assert len(epochs) <= 6, epochs


@pytest.mark.many
def test_a_session_that_is_open_for_long_takes_no_epoch_behind_each_with_input(tmp_path: Path) -> None:
    epochs = [((0, ((1, 0, 3, 0), (2, 0, 1000, 0))),), *(((0, ((3, 0, 1000, second * SECOND),)),) for second in range(1, 30))]
    flow, out, _ = flow_of(tuple(epochs), "gap")
    local = Local(flow, tmp_path, ahead=False)
    cursor = local.loop.input.cursors["events"]
    whole, without = cursor.script, []
    for number in range(1, 31):
        cursor.script = Script(COLUMNS, whole.epochs[:number])
        assert local.step()
        while local.step():
            without.append(number)
    assert without == [5], "the mark has passed second 3"
    assert [row[0] for row in emitted(out.table())] == [1]


@pytest.mark.parametrize("gap", [(1 << 64) // 1000 + 1, (1 << 63) // 1000, 1 << 61, 1 << 62])
def test_a_gap_of_more_microseconds_than_there_are_is_a_dead_letter(tmp_path: Path, gap: int) -> None:
    flow, out, _ = flow_of((((0, ((1, 7, gap, 0), (1, 8, 2000, 0))),),), pl.col("gap").cast(pl.Duration("ms")))
    Local(flow, tmp_path).run(flush=True)
    assert [row[:4] for row in emitted(out.table())] == [(1, 0, 2 * SECOND, 1)]
    assert ["too long" in reason for reason in letters(tmp_path).get_column("reason")] == [True]

"""Joins in windows that overlap against a model in plain Python and DuckDB: random rows, disorder, epochs, parallelism, restarts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.local import Local, Script
from tests.task.test_joins import FOREVER, LEFT, RIGHT, SECOND, Clocks, Row, epochs, equal, micros, ordered, run_through, sources
from tests.task.test_semi_joins import letters, one

import meander as md
from meander.errors import FlowError
from meander.plan.eventtime import time_of
from meander.plan.windows import NEVER, Cumulating, Window
from meander.state.manifest import operator_of

LIMITS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
HOWS = ("inner", "left", "right", "full", "semi", "anti")
WINDOWS = (
    md.sliding("10s", "2s"),
    md.sliding("6s", "3s", offset="1s"),
    md.sliding("20s", "10s"),
    md.cumulating("10s", "2s"),
    md.cumulating("12s", "4s", offset="-1s"),
)
WHERE = "CAST(CASE WHEN (v + w) % 3 = 1 THEN 'none' ELSE '1' END AS BIGINT) = 1 AND (v + w) % 3 <> 0"
"""A condition that fails on some pairs, and does not hold for others."""
BOTH, ONE = ("k", "v", "ts", "w", "ts_right", "window_start", "window_end"), ("k", "v", "ts", "window_start", "window_end")
Span = tuple[int, int]


def windows_of(window: Window, ts: int) -> list[Span]:
    """By the definition."""
    if isinstance(window, Cumulating):
        begin = (ts - window.offset) // window.size * window.size + window.offset
        return [(begin, begin + length) for length in range(window.step, window.size + 1, window.step) if begin + length > ts]
    last = (ts - window.offset) // window.step * window.step + window.offset
    return [(begin, begin + window.size) for begin in range(last, last - window.size, -window.step)]


@dataclass(eq=False)
class Kept:
    row: Row
    spans: list[Span]
    """The windows that were open when it came."""
    met: set[Span] = field(default_factory=set)


@dataclass
class Model:
    """Every row meets all others of its key in each window that both are in, while it is open."""

    how: str
    window: Window
    clocks: Clocks
    nulls: bool = False
    where: bool = True
    rows: tuple[list[Kept], list[Kept]] = field(default_factory=lambda: ([], []))
    late: tuple[list[Row], list[Row]] = field(default_factory=lambda: ([], []))
    dead: list[tuple[int | None, int, int]] = field(default_factory=list)

    def epoch(self, splits: Sequence[Any], flush: bool = False) -> list[tuple[Any, ...]]:
        late, evict = self.clocks.late, FOREVER if flush and self.how not in ("inner", "semi") else self.clocks.evict
        new: tuple[list[Kept], list[Kept]] = ([], [])
        for side in (0, 1):
            for partition, rows in splits[side] if splits else ():
                for row in rows:
                    self.clocks.hear(side, partition, row[2])
                    spans = [span for span in windows_of(self.window, row[2]) if span[1] > late]
                    new[side].append(Kept(row, spans)) if spans else self.late[side].append(row)
        old = list(self.rows[0])
        for side in (0, 1):
            self.rows[side].extend(new[side])
        out: list[tuple[Any, ...]] = []
        for a in self.rows[0]:
            for span in a.spans:
                if span[1] > late:
                    out += self.meet(a, new[1] if a in old else self.rows[1], span)
        for side, outer in ((0, ("left", "full", "anti")), (1, ("right", "full"))):
            for kept in self.rows[side] if self.how in outer else ():
                k, v, ts = kept.row
                for span in kept.spans:
                    if late < span[1] <= evict and span not in kept.met:
                        alone = (k, v, ts) if self.how == "anti" else (k, v, ts, None, None) if side == 0 else (k, None, None, v, ts)
                        out.append((*alone, *span))
        closed = [max(span[1] for span in kept.spans) for rows in self.rows for kept in rows]
        for rows in self.rows:
            rows[:] = [kept for kept in rows if any(span[1] > evict for span in kept.spans)]
        self.clocks.advance(max(closed, default=NEVER) if flush and evict == FOREVER else None)
        return out

    def meet(self, a: Kept, others: list[Kept], span: Span) -> list[tuple[Any, ...]]:
        """What comes out of a row of the left and some of the right, in the order of arrival, in one window."""
        out: list[tuple[Any, ...]] = []
        for b in others:
            if not equal(a.row[0], b.row[0], self.nulls) or span not in b.spans or (self.how in ("semi", "anti") and span in a.met):
                continue
            total = a.row[1] + b.row[1]
            if self.where and total % 3 == 1:
                self.dead.append((a.row[0], a.row[1], b.row[1]))
            elif not self.where or total % 3:
                if self.how != "semi" or span not in a.met:
                    out.append((*a.row, *span) if self.how == "semi" else (*a.row, *b.row[1:], *span))
                a.met.add(span)
                b.met.add(span)
        return [] if self.how == "anti" else out


@pytest.mark.many
@LIMITS
@given(st.data())
def test_joins_in_windows_that_overlap_equal_the_model(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    how, grace, window = data.draw(st.sampled_from(HOWS)), data.draw(st.sampled_from([0, 3])), data.draw(st.sampled_from(WINDOWS))
    script = data.draw(epochs)
    nulls, where = data.draw(st.booleans()), data.draw(st.booleans())
    flow, out, lates = md.Flow("joins"), md.memory(), (md.memory(), md.memory())
    left, right = sources(flow, script, grace)
    joined = left.window(window).join(right, on="k", how=how, where=WHERE if where else None, nulls_equal=nulls, name="j")
    joined.sink("out", out)
    for side in (0, 1):
        joined.late(side=side).sink(f"too_late_{side}", lates[side])
    model = Model(how, window, Clocks(grace * SECOND), nulls, where)
    folder = tmp_path_factory.mktemp("joins")
    local, expected = run_through(flow, folder, data, script, model)
    assert ordered(micros(out.table(), *(ONE if how in ("semi", "anti") else BOTH))) == ordered(expected)
    assert ordered(micros(lates[0].table(), "k", "v", "ts")) == ordered(model.late[0])
    assert ordered(micros(lates[1].table(), "k", "w", "ts")) == ordered(model.late[1])
    assert ordered(letters(folder)) == ordered(model.dead)
    if how not in ("inner", "semi"):
        assert not local.stored, "everything is closed, and nothing is stored any more"


def in_sql(script: Sequence[Any], window: Window, how: str, where: str) -> list[tuple[Any, ...]]:
    """Over all rows at once, in the words of SQL: each side's rows in the windows that they are in, and these joined."""
    sides = [[row for epoch in script for _, rows in epoch[side] for row in rows] for side in (0, 1)]
    a, b = (pl.DataFrame(rows, {**schema, "ts": pl.Int64()}, orient="row") for rows, schema in zip(sides, (LEFT, RIGHT), strict=True))
    spans = sorted({span for rows in sides for row in rows for span in windows_of(window, row[2])})
    what = "l.*" if how in ("semi", "anti") else "coalesce(l.k, r.k), v, l.ts, w, r.ts, coalesce(l.s, r.s), coalesce(l.e, r.e)"
    with duckdb.connect() as db:
        for name, frame in (("a", a), ("b", b), ("spans", pl.DataFrame(spans, {"s": pl.Int64(), "e": pl.Int64()}, orient="row"))):
            db.register(name, frame.to_arrow())
        rows = {name: f"(SELECT {name}.*, s, e FROM {name} JOIN spans ON ts >= s AND ts < e)" for name in ("a", "b")}
        join = f"{rows['a']} l {how.upper()} JOIN {rows['b']} r ON l.k = r.k AND l.s = r.s AND l.e = r.e {where}"
        return db.sql(f"SELECT {what} FROM {join}").fetchall()


@pytest.mark.many
@settings(LIMITS, max_examples=40)
@given(st.data())
def test_what_comes_out_is_what_duckdb_says(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Over all rows at once: no row is late, whatever the epochs."""
    script, how, window = data.draw(epochs), data.draw(st.sampled_from(HOWS)), data.draw(st.sampled_from(WINDOWS))
    where = data.draw(st.booleans())
    flow, out = md.Flow("joins"), md.memory()
    left, right = sources(flow, script, 3600)
    condition = "v > w AND window_start < ts" if where else None
    left.window(window).join(right, on="k", how=how, where=condition, name="j").sink("out", out)
    local = Local(flow, tmp_path_factory.mktemp("joins"), data.draw(st.sampled_from([1, 2, 4])), data.draw(st.booleans()))
    while local.step():
        if data.draw(st.integers(0, 2)) == 0:
            local = Local(flow, local.folder, 3)
    local.run(flush=True)
    wanted = in_sql(script, window, how, "AND v > w AND l.s < l.ts" if where else "")
    assert ordered(micros(out.table(), *(ONE if how in ("semi", "anti") else BOTH))) == ordered(wanted)


def test_a_pair_comes_once_per_window_that_it_shares_in_the_epoch_of_its_second_row(tmp_path: Path) -> None:
    script = [one([(1, 10, 3)], []), one([], [(1, 5, 7)]), one([], [(1, 6, 11)])]
    flow, out = md.Flow("joins"), md.memory()
    left, right = sources(flow, script, 60)
    left.window(md.sliding("10s", "5s")).join(right, on="k", name="j").sink("out", out)
    local, seen = Local(flow, tmp_path), []
    while local.step():
        seen.append([(row[3], row[5] // SECOND, row[6] // SECOND) for row in micros(out.table(), *BOTH)])
    assert seen == [[], [(5, 0, 10)], [(5, 0, 10)]]


@pytest.mark.parametrize("window", [md.sliding("60s", "1s"), md.cumulating("60s", "1s")])
@pytest.mark.parametrize("how", HOWS)
def test_a_row_is_stored_once_and_not_once_per_window(how: str, window: Window, tmp_path: Path) -> None:
    script = [one([(n, n, n) for n in range(40)], [(100 + n, n, n) for n in range(40)])]
    flow = md.Flow("joins")
    left, right = sources(flow, script, 600)
    left.window(window).join(right, on="k", how=how, name="j").sink("out", md.memory())
    local = Local(flow, tmp_path)
    local.run()
    assert sum(table.rows for name, table in local.manifest.tables.items() if operator_of(name) == "j") == 80


@pytest.mark.many
@pytest.mark.parametrize("window", [md.sliding("6s", "2s"), md.cumulating("6s", "2s")])
@pytest.mark.parametrize("how", ["inner", "full", "semi", "anti"])
def test_the_state_stays_flat(how: str, window: Window, tmp_path: Path) -> None:
    script = [one([(k, n, n) for k in range(6)], [(k, n, n + 0.5) for k in range(0, 6, 2)]) for n in range(45)]
    flow, out = md.Flow("joins"), md.memory()
    left, right = sources(flow, script, 1)
    left.window(window).join(right, on="k", how=how, name="j").sink("out", out)
    local, rows = Local(flow, tmp_path), []
    while local.step():
        rows.append(sum(table.rows for table in local.manifest.tables.values()))
    assert out.table().num_rows > 45
    assert max(rows[30:]) <= 1.3 * max(rows[15:30])


@pytest.mark.many
@pytest.mark.parametrize("how", HOWS)
def test_windows_behind_a_join_lose_nothing(how: str, tmp_path: Path) -> None:
    script = [one(((n % 3, n, n),), ((n % 5, n, n + 4.5),)) for n in range(40)]
    flow, pairs, windows = md.Flow("joins"), md.memory(), md.memory()
    left, right = sources(flow, script, 1)
    joined = left.window(md.sliding("6s", "2s")).join(right, on="k", how=how, where="v % 2 = 0", name="j")
    joined.sink("pairs", pairs)
    joined.window(md.tumbling("2s")).aggregate(md.count().alias("n"), name="w").sink("windows", windows)
    time = time_of(tuple(flow._nodes.values()), flow._schemas, "j")
    assert time is not None
    assert (time.column, time.delay) == ("window_end", 0)
    local = Local(flow, tmp_path)
    local.run(flush=True)
    found = pl.DataFrame(pl.from_arrow(windows.table()))
    assert found.get_column("n").sum() == pairs.table().num_rows > 0
    assert found.get_column("window_start").is_unique().all()
    assert local.manifest.totals.get("late_rows", 0) == 0


def test_the_state_shows_the_rows_that_wait(tmp_path: Path) -> None:
    flow = md.Flow("joins")
    left, right = sources(flow, [one([(1, 10, 3)], [(2, 5, 7)])], 60)
    left.window(md.sliding("10s", "5s")).join(right, on="k", how="full", name="j").sink("out", md.memory())
    Local(flow, tmp_path).run()
    shown = pl.DataFrame(pl.from_arrow(md.read_state(tmp_path, "j")))
    assert shown.select("__side", "k", "v", "w").sort("k").rows() == [("left", 1, 10, None), ("right", 2, None, 5)]


def two() -> tuple[md.Stream, md.Stream]:
    flow = md.Flow("joins")
    left, right = (flow.source(n, Script(c, ())).watermark("ts", name=f"{n}_time") for n, c in (("left", LEFT), ("right", RIGHT)))
    return left, right


@pytest.mark.parametrize(
    ("window", "says"),
    [
        (md.count_window(10), r"count_window\(10\) counts the rows of one stream, so that two streams share no such windows"),
        (md.tumbling("10s", time="processing"), "says when rows were taken in, and a join needs windows of event time"),
        (md.session("10s", time="processing"), "says when rows were taken in, and a join needs windows of event time"),
        (md.session("v"), "has a gap per row, and a join needs one for all rows of both sides"),
    ],
)
def test_windows_that_have_no_join_are_refused_with_the_reason(window: Any, says: str) -> None:
    left, right = two()
    with pytest.raises(FlowError, match=says):
        left.window(window).join(right, on="k")


@pytest.mark.parametrize(
    ("window", "says"),
    [
        (md.sliding("10s", "2s"), "inner on k, in the same sliding(10s, 2s), where v > w"),
        (md.cumulating("10s", "2s"), "inner on k, in the same cumulating(10s, step 2s), where v > w"),
    ],
)
def test_a_flow_explains_its_windows(window: Any, says: str) -> None:
    left, right = two()
    assert says in left.window(window).join(right, on="k", where="v > w").sink("out", md.memory()).explain()

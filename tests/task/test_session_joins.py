"""Joins in sessions of both sides against a model in plain Python and DuckDB: random rows, disorder, epochs, parallelism, restarts."""

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
from tests.local import Local
from tests.task.test_joins import FOREVER, LEFT, RIGHT, SECOND, Clocks, Row, epochs, equal, micros, ordered, run_through, sources
from tests.task.test_semi_joins import letters, one
from tests.task.test_window_joins import BOTH, HOWS, ONE, WHERE

import meander as md
from meander.plan.eventtime import time_of
from meander.plan.windows import NEVER

LIMITS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
Span = tuple[int, int]


@dataclass(eq=False)
class Visit:
    """A session: its first and last time, and the rows of both sides, as they came."""

    key: int | None
    first: int
    last: int
    rows: tuple[list[Row], list[Row]]


@dataclass
class Model:
    """Sessions by the definition, epoch by epoch, and what SQL would make of the rows of one."""

    how: str
    gap: int
    clocks: Clocks
    nulls: bool = False
    where: bool = True
    open: list[Visit] = field(default_factory=list)
    late: tuple[list[Row], list[Row]] = field(default_factory=lambda: ([], []))
    dead: list[tuple[int | None, int, int]] = field(default_factory=list)

    def epoch(self, splits: Sequence[Any], flush: bool = False) -> list[tuple[Any, ...]]:
        late, evict = self.clocks.late, FOREVER if flush else self.clocks.evict
        for side in (0, 1):
            for partition, rows in splits[side] if splits else ():
                for row in rows:
                    self.clocks.hear(side, partition, row[2])
                    if row[2] + self.gap < late:
                        self.late[side].append(row)
                    else:
                        self.add(side, row)
        closing = [visit for visit in self.open if visit.last + self.gap < evict]
        self.open = [visit for visit in self.open if visit not in closing]
        out = [row for visit in closing for row in self.of(visit)]
        closed = max((visit.last + 2 * self.gap + 1 for visit in closing), default=NEVER)
        self.clocks.advance(closed if flush else None)
        return out

    def add(self, side: int, row: Row) -> None:
        key, ts = row[0], row[2]
        if key is None and not self.nulls and self.how in ("inner", "semi"):
            return
        mine = [v for v in self.open if v.key == key and v.first - self.gap <= ts <= v.last + self.gap]
        whole = Visit(key, min([ts, *(v.first for v in mine)]), max([ts, *(v.last for v in mine)]), ([], []))
        for visit in mine:
            self.open.remove(visit)
            for number in (0, 1):
                whole.rows[number].extend(visit.rows[number])
        whole.rows[side].append(row)
        self.open.append(whole)

    def of(self, visit: Visit) -> list[tuple[Any, ...]]:
        """What comes out of a session."""
        span, out = (visit.first, visit.last + self.gap), []
        met: set[int] = set()
        alone = self.how in ("left", "full")
        for a in visit.rows[0]:
            has = False
            for b in visit.rows[1]:
                if equal(a[0], b[0], self.nulls):
                    total = a[1] + b[1]
                    if not self.where or total % 3:
                        has = True
                        met.add(id(b))
                        out.append((*a, *b[1:], *span))
            if not has and alone:
                out.append((*a, None, None, *span))
            if self.how in ("semi", "anti"):
                out = [row for row in out if len(row) == len(a) + 2]
                if has == (self.how == "semi"):
                    out.append((*a, *span))
        if self.how in ("right", "full"):
            out += [(b[0], None, None, *b[1:], *span) for b in visit.rows[1] if id(b) not in met]
        return out


@pytest.mark.many
@LIMITS
@given(st.data())
def test_joins_in_sessions_equal_the_model(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    how, grace, gap = data.draw(st.sampled_from(HOWS)), data.draw(st.sampled_from([0, 3])), data.draw(st.sampled_from([1, 3, 8]))
    script = data.draw(epochs)
    nulls, where = data.draw(st.booleans()), data.draw(st.booleans())
    flow, out, lates = md.Flow("joins"), md.memory(), (md.memory(), md.memory())
    left, right = sources(flow, script, grace)
    condition = "(v + w) % 3 <> 0" if where else None
    joined = left.window(md.session(gap)).join(right, on="k", how=how, where=condition, nulls_equal=nulls, name="j")
    joined.sink("out", out)
    for side in (0, 1):
        joined.late(side=side).sink(f"too_late_{side}", lates[side])
    model = Model(how, gap * SECOND, Clocks(grace * SECOND), nulls, where)
    local, expected = run_through(flow, tmp_path_factory.mktemp("joins"), data, script, model)
    assert ordered(micros(out.table(), *(ONE if how in ("semi", "anti") else BOTH))) == ordered(expected)
    assert ordered(micros(lates[0].table(), "k", "v", "ts")) == ordered(model.late[0])
    assert ordered(micros(lates[1].table(), "k", "w", "ts")) == ordered(model.late[1])
    assert not local.stored, "everything is closed, and nothing is stored any more"


def in_sql(script: Sequence[Any], gap: int, how: str, where: str) -> list[tuple[Any, ...]]:
    """Over all rows at once: gaps and islands of both sides together, and the rows of each island joined."""
    sides = [[row for epoch in script for _, rows in epoch[side] for row in rows] for side in (0, 1)]
    a, b = (pl.DataFrame(rows, {**schema, "ts": pl.Int64()}, orient="row") for rows, schema in zip(sides, (LEFT, RIGHT), strict=True))
    what = (
        "l.k, l.v, l.ts, l.s, l.e"
        if how in ("semi", "anti")
        else ("coalesce(l.k, r.k), l.v, l.ts, r.w, r.ts, coalesce(l.s, r.s), coalesce(l.e, r.e)")
    )
    with duckdb.connect() as db:
        for name, frame in (("a", a), ("b", b)):
            db.register(name, frame.to_arrow())
        sql = f"""
            WITH rows AS (SELECT 0 AS side, k, v, NULL AS w, ts FROM a UNION ALL SELECT 1, k, NULL, w, ts FROM b),
            begun AS (SELECT *, coalesce(ts - lag(ts) OVER (PARTITION BY k ORDER BY ts) > {gap}, true) AS new FROM rows),
            islands AS (SELECT *, sum(new::INT) OVER (PARTITION BY k ORDER BY ts RANGE UNBOUNDED PRECEDING) AS n FROM begun),
            whole AS (SELECT *, min(ts) OVER (PARTITION BY k, n) AS s, max(ts) OVER (PARTITION BY k, n) + {gap} AS e FROM islands)
            SELECT {what} FROM (SELECT * FROM whole WHERE side = 0) l {how.upper()} JOIN (SELECT * FROM whole WHERE side = 1) r
            ON l.k = r.k AND l.n = r.n {where}
        """
        return db.sql(sql).fetchall()


@pytest.mark.many
@LIMITS
@given(st.data())
def test_what_comes_out_is_what_duckdb_says(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Over all rows at once: no row is late, whatever the epochs."""
    script, how, gap = data.draw(epochs), data.draw(st.sampled_from(HOWS)), data.draw(st.sampled_from([1, 3, 8]))
    where = data.draw(st.booleans())
    flow, out = md.Flow("joins"), md.memory()
    left, right = sources(flow, script, 3600)
    condition = "v > w AND window_start < ts" if where else None
    left.window(md.session(gap)).join(right, on="k", how=how, where=condition, name="j").sink("out", out)
    local = Local(flow, tmp_path_factory.mktemp("joins"), data.draw(st.sampled_from([1, 2, 4])), data.draw(st.booleans()))
    while local.step():
        if data.draw(st.integers(0, 2)) == 0:
            local = Local(flow, local.folder, 3)
    local.run(flush=True)
    wanted = in_sql(script, gap * SECOND, how, "AND l.v > r.w AND l.s < l.ts" if where else "")
    assert ordered(micros(out.table(), *(ONE if how in ("semi", "anti") else BOTH))) == ordered(wanted)


def test_a_row_of_either_side_makes_one_session_of_two_and_nothing_comes_out_before_it_closes(tmp_path: Path) -> None:
    script = [one([(1, 10, 3)], [(1, 5, 11)]), one([], [(1, 6, 7)]), one([(2, 0, 40)], [(2, 0, 40)])]
    flow, out = md.Flow("joins"), md.memory()
    left, right = sources(flow, script, 10)
    left.window(md.session("5s")).join(right, on="k", name="j").sink("out", out)
    local, seen = Local(flow, tmp_path), []
    while local.step():
        seen.append([(row[1], row[3], row[5] // SECOND, row[6] // SECOND) for row in micros(out.table(), *BOTH)])
    assert seen == [[], [], [], [(10, 5, 3, 16), (10, 6, 3, 16)]]


def test_pairs_on_which_the_condition_fails_are_dead_letters_up_to_the_first_partner_in_a_semi_join(tmp_path: Path) -> None:
    script = [one([(1, 1, 0)], []), one([], [(1, 0, 1), (1, 2, 1), (1, 4, 1), (1, 3, 1)]), one([], [(1, 9, 2)])]
    for how, dead in (("semi", [(1, 1, 0)]), ("anti", [(1, 1, 0)]), ("inner", [(1, 1, 0), (1, 1, 3), (1, 1, 9)])):
        flow, out = md.Flow("joins"), md.memory()
        left, right = sources(flow, script, 60)
        left.window(md.session("5s")).join(right, on="k", how=how, where=WHERE, name="j").sink("out", out)
        Local(flow, tmp_path / how).run(flush=True)
        assert (how, ordered(letters(tmp_path / how))) == (how, ordered(dead))


@pytest.mark.many
@pytest.mark.parametrize("how", ["inner", "full", "semi"])
def test_the_state_stays_flat(how: str, tmp_path: Path) -> None:
    script = [one([(n // 4, n, n)], [(n // 4, n, n + 0.5), (1000, n, n)]) for n in range(60)]
    flow, out = md.Flow("joins"), md.memory()
    left, right = sources(flow, script, 1)
    left.window(md.session("2s")).join(right.filter("k < 1000"), on="k", how=how, name="j").sink("out", out)
    local, rows = Local(flow, tmp_path), []
    while local.step():
        rows.append(sum(table.rows for table in local.manifest.tables.values()))
    assert out.table().num_rows > 45
    assert max(rows[40:]) <= 1.3 * max(rows[20:40])


@pytest.mark.many
def test_a_row_is_written_as_often_as_its_session_has_doubled(tmp_path: Path) -> None:
    """And not once per epoch of a session, however long that is."""
    script = [one([(1, n, n)], [(1, n, n + 0.5)]) for n in range(64)]
    flow, out = md.Flow("joins"), md.memory()
    left, right = sources(flow, script, 1)
    left.window(md.session("2s")).join(right, on="k", name="j").sink("out", out)
    local, written = Local(flow, tmp_path, 1), {}
    while local.step():
        for name, table in local.manifest.tables.items():
            written.update({ref.name: ref.rows for ref in table.segments if name == "j.left" and "merge" not in ref.name})
    assert 64 < sum(written.values()) <= 64 * 7
    local.run(flush=True)
    assert out.table().num_rows == 64 * 64


def test_the_state_shows_the_rows_that_wait_and_explain_says_what_it_is(tmp_path: Path) -> None:
    flow = md.Flow("joins")
    left, right = sources(flow, [one([(1, 10, 3)], [(2, 5, 7)])], 60)
    left.window(md.session("10s")).join(right, on="k", how="full", name="j").sink("out", md.memory())
    Local(flow, tmp_path).run()
    shown = pl.DataFrame(pl.from_arrow(md.read_state(tmp_path, "j")))
    assert shown.select("__side", "k", "v", "w").sort("k").rows() == [("left", 1, 10, None), ("right", 2, None, 5)]
    assert "full on k, in the same session(10s)" in flow.explain()


@pytest.mark.many
@pytest.mark.parametrize("how", HOWS)
def test_windows_behind_a_join_lose_nothing(how: str, tmp_path: Path) -> None:
    script = [one(((n % 3, n, 2 * n),), ((n % 5, n, 2 * n + 0.5),)) for n in range(40)]
    flow, pairs, windows = md.Flow("joins"), md.memory(), md.memory()
    left, right = sources(flow, script, 1)
    joined = left.window(md.session("3s")).join(right, on="k", how=how, where="v % 2 = 0", name="j")
    joined.sink("pairs", pairs)
    joined.window(md.tumbling("2s")).aggregate(md.count().alias("n"), name="w").sink("windows", windows)
    time = time_of(tuple(flow._nodes.values()), flow._schemas, "j")
    assert time is not None
    assert (time.column, time.shift, time.delay) == ("window_end", 0, 0)
    local = Local(flow, tmp_path)
    local.run(flush=True)
    found = pl.DataFrame(pl.from_arrow(windows.table()))
    assert found.get_column("n").sum() == pairs.table().num_rows > 0
    assert local.manifest.totals.get("late_rows", 0) == 0


@pytest.mark.many
@pytest.mark.parametrize("window", [md.sliding("6s", "2s"), md.cumulating("6s", "3s"), md.session("2s")])
@pytest.mark.parametrize("how", HOWS)
def test_names_of_keys_and_units_of_time_make_no_difference(window: Any, how: str, tmp_path: Path) -> None:
    script = [one([(n % 3, n % 2, 1.5 * n)], [(n % 3, n % 4, 1.5 * n + 1)]) for n in range(20)]
    columns = ONE if how in ("semi", "anti") else BOTH
    found = []
    for unit, names in (("us", ("k", "v")), ("ms", ("id", "number"))):
        flow, out = md.Flow("joins"), md.memory()
        left, right = sources(flow, script, 1)
        times = pl.col("ts").cast(pl.Datetime(unit))  # type: ignore[arg-type]
        left = left.with_columns(times, name="left_unit").watermark("ts", grace=1)
        right = right.select(f"k AS {names[0]}", f"w AS {names[1]}", "w", times).watermark("ts", grace=1)
        joined = left.window(window).join(right, left_on=["k", "v"], right_on=names, how=how, name="j")
        joined.sink("out", out)
        Local(flow, tmp_path / unit, 2).run(flush=True)
        found.append(ordered(micros(out.table(), *columns)))
    assert found[0] == found[1] != []

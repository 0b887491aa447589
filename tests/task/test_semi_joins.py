"""Semi and anti joins of streams against a model in plain Python and DuckDB: random rows, disorder, epochs, parallelism, restarts."""

from __future__ import annotations

import json
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
from tests.task.test_joins import BOUNDS, FOREVER, LEFT, RIGHT, SECOND, Clocks, Row, epochs, equal, micros, ordered, run_through, sources

import meander as md
from meander.errors import FlowError
from meander.plan.windows import NEVER
from meander.state.manifest import operator_of

LIMITS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


@dataclass
class Semi:
    """A row of the left is asked with every row of the right in the order of arrival, until it has met one."""

    how: str
    low: int
    high: int
    clocks: Clocks
    window: int | None = None
    nulls: bool = False
    where: bool = True
    rows: tuple[list[list[Any]], list[list[Any]]] = field(default_factory=lambda: ([], []))
    """Of each side: time, row, whether it has come out or met one."""
    late: tuple[list[Row], list[Row]] = field(default_factory=lambda: ([], []))
    dead: list[tuple[int | None, int, int]] = field(default_factory=list)
    """Pairs on which the condition failed."""

    def time(self, ts: int) -> int:
        return ts if self.window is None else ts // self.window * self.window + self.window - 1

    def epoch(self, splits: Sequence[Any], flush: bool = False) -> list[tuple[Any, ...]]:
        late, evict = self.clocks.late, FOREVER if flush else self.clocks.evict
        new: tuple[list[Any], list[Any]] = ([], [])
        for side in (0, 1):
            for partition, rows in splits[side] if splits else ():
                for row in rows:
                    self.clocks.hear(side, partition, row[2])
                    if self.time(row[2]) < late:
                        self.late[side].append(row)
                    else:
                        new[side].append([self.time(row[2]), row, False])
        old = list(self.rows[0])
        self.rows[1].extend(new[1])
        self.rows[0].extend(new[0])
        out = [a[1] for a in self.rows[0] if self.meets(a, new[1] if a in old else self.rows[1]) and self.how == "semi"]
        closed = NEVER
        for side, high in ((0, self.high), (1, -self.low)):
            for row in self.rows[side]:
                if row[0] + max(0, high) < evict:
                    if side == 0 and not row[2] and self.how == "anti":
                        out.append(row[1])
                    closed = max(closed, row[0] + max(0, high) + 1)
            self.rows[side][:] = [row for row in self.rows[side] if row[0] + max(0, high) >= evict]
        self.clocks.advance(closed if flush and self.how == "anti" else None)
        return out

    def meets(self, a: list[Any], others: list[list[Any]]) -> bool:
        """Whether it finds its first partner among these."""
        if a[2]:
            return False
        for b in others:
            if equal(a[1][0], b[1][0], self.nulls) and self.low <= b[0] - a[0] <= self.high:
                total = a[1][1] + b[1][1]
                if self.where and total % 3 == 1:
                    self.dead.append((a[1][0], a[1][1], b[1][1]))
                elif not self.where or total % 3:
                    a[2] = True
                    return True
        return False


WHERE = "CAST(CASE WHEN (v + w) % 3 = 1 THEN 'none' ELSE '1' END AS BIGINT) = 1 AND (v + w) % 3 <> 0"
"""A condition that fails on some pairs, and that one has to ask for."""


def letters(folder: Path) -> list[tuple[Any, ...]]:
    found = pl.concat(
        [pl.read_parquet(path) for path in sorted(folder.glob("dead_letters/**/*.parquet"))] or [pl.DataFrame({"content": []})]
    )
    rows = [json.loads(content) for content in found.get_column("content")]
    return [(row["k"], row["v"], row["w"]) for row in rows]


@pytest.mark.many
@LIMITS
@given(st.data())
def test_semi_and_anti_joins_equal_the_model(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    how, grace = data.draw(st.sampled_from(["semi", "anti"])), data.draw(st.sampled_from([0, 3]))
    low, high = data.draw(st.sampled_from(BOUNDS))
    window = data.draw(st.sampled_from([None, None, 10, 2]))
    script = data.draw(epochs)
    flow, out, lates = md.Flow("joins"), md.memory(), (md.memory(), md.memory())
    left, right = sources(flow, script, grace)
    nulls, where = data.draw(st.booleans()), data.draw(st.booleans())
    more: dict[str, Any] = {"how": how, "where": WHERE if where else None, "nulls_equal": nulls, "name": "j"}
    if window is None:
        joined = left.join(right, on="k", within=(low, high), **more)
    else:
        low = high = 0
        joined = left.window(md.tumbling(window)).join(right, on="k", **more)
    joined.sink("out", out)
    for side in (0, 1):
        joined.late(side=side).sink(f"too_late_{side}", lates[side])
    size = None if window is None else window * SECOND
    model = Semi(how, int(low * SECOND), int(high * SECOND), Clocks(grace * SECOND), size, nulls, where)
    folder = tmp_path_factory.mktemp("joins")
    local, expected = run_through(flow, folder, data, script, model)
    assert joined.schema.names() == ["k", "v", "ts", *(["window_start", "window_end"] if window else [])]
    assert ordered(micros(out.table(), "k", "v", "ts")) == ordered(expected)
    assert ordered(micros(lates[0].table(), "k", "v", "ts")) == ordered(model.late[0])
    assert ordered(micros(lates[1].table(), "k", "w", "ts")) == ordered(model.late[1])
    assert ordered(letters(folder)) == ordered(model.dead)
    if how == "anti":
        assert not local.stored, "everything is closed, and nothing is stored any more"
    if window is not None and out.table().num_rows:
        frame = pl.DataFrame(pl.from_arrow(out.table()))
        assert frame.select((pl.col("window_start") <= pl.col("ts")).all() & (pl.col("ts") < pl.col("window_end")).all()).item()


@pytest.mark.many
@settings(LIMITS, max_examples=25)
@given(st.data())
def test_what_comes_out_is_what_duckdb_says(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Over all rows at once: no row is late, whatever the epochs."""
    script, how = data.draw(epochs), data.draw(st.sampled_from(["semi", "anti", "unbounded", "unbounded where"]))
    flow, out = md.Flow("joins"), md.memory()
    left, right = sources(flow, script, 3600)
    more: dict[str, Any] = {} if "where" not in how else {"where": "v > w"}
    joined = left.join(
        right, on="k", within=None if "unbounded" in how else "4s", how="anti" if how == "anti" else "semi", name="j", **more
    )
    joined.sink("out", out)
    local = Local(flow, tmp_path_factory.mktemp("joins"), data.draw(st.sampled_from([1, 2, 4])), data.draw(st.booleans()))
    local.run(flush=True)
    sides = [[row for epoch in script for _, rows in epoch[side] for row in rows] for side in (0, 1)]
    a, b = (
        pl.DataFrame(rows, s, orient="row")
        for rows, s in zip(sides, ({**LEFT, "ts": pl.Int64()}, {**RIGHT, "ts": pl.Int64()}), strict=True)
    )
    bound = "" if "unbounded" in how else f"AND abs(a.ts - b.ts) <= {4 * SECOND}"
    where = "AND a.v > b.w" if more else ""
    kind = "ANTI" if how == "anti" else "SEMI"
    with duckdb.connect() as db:
        db.register("a", a.to_arrow())
        db.register("b", b.to_arrow())
        wanted = db.sql(f"SELECT * FROM a {kind} JOIN b ON a.k = b.k {bound} {where}").fetchall()
    assert ordered(micros(out.table(), "k", "v", "ts")) == ordered(wanted)


def one(left: Sequence[Any], right: Sequence[Any]) -> tuple[Any, Any]:
    """An epoch; times are in seconds."""
    return tuple(((0, tuple((*row[:-1], int(row[-1] * SECOND)) for row in rows)),) for rows in (left, right))  # type: ignore[return-value]


def test_a_row_that_was_given_out_is_not_kept(tmp_path: Path) -> None:
    script = [one([(1, 10, 1), (2, 20, 1)], []), one([], [(1, 0, 2)]), one([(1, 11, 3)], []), one([], [(1, 1, 3)])]
    flow, out = md.Flow("joins"), md.memory()
    left, right = sources(flow, script, 60)
    left.join(right, on="k", within="5s", how="semi", name="j").sink("out", out)
    local, waiting, given_out = Local(flow, tmp_path), [], []
    while local.step():
        shown = pl.DataFrame(pl.from_arrow(md.read_state(tmp_path, "j")))
        waiting.append(shown.filter(pl.col("__side") == "left").get_column("v").to_list())
        given_out.append([row[1] for row in micros(out.table(), "k", "v", "ts")])
    assert waiting == [[10, 20], [20], [20], [20]]
    assert given_out == [[], [10], [10, 11], [10, 11]]


def test_without_a_bound_a_key_of_the_right_is_kept_once(tmp_path: Path) -> None:
    script = [one([], [(k % 3, n, n) for k in range(20)]) for n in range(4)]
    flow = md.Flow("joins")
    left, right = sources(flow, script, 0)
    left.join(right, on="k", how="semi", name="j").sink("out", md.memory())
    local = Local(flow, tmp_path)
    local.run()
    assert {name: table.rows for name, table in local.manifest.tables.items() if operator_of(name) == "j" and table.rows} == {"j.right": 3}


@pytest.mark.many
def test_a_state_of_semi_joins_stays_flat(tmp_path: Path) -> None:
    script = [one([(k, n, n) for k in range(6)], [(k, n, n + 0.5) for k in range(0, 6, 2)]) for n in range(60)]
    for how in ("semi", "anti"):
        flow, out = md.Flow("joins"), md.memory()
        left, right = sources(flow, script, 1)
        left.join(right, on="k", within="2s", how=how, name="j").sink("out", out)
        local, most = Local(flow, tmp_path / how), 0
        while local.step():
            most = max(most, sum(table.rows for table in local.manifest.tables.values()))
        assert out.table().num_rows >= 60 * 3 - 12
        assert most < 200


def test_what_cannot_be_is_refused_with_the_reason() -> None:
    flow = md.Flow("joins")
    left, right = (flow.source(n, Script(c, ())).watermark("ts", name=f"{n}_time") for n, c in (("left", LEFT), ("right", RIGHT)))
    with pytest.raises(FlowError, match=r"how='anti' needs within=.*a partner can always come"):
        left.join(right, on="k", how="anti")
    with pytest.raises(FlowError, match=r"time='at' is the later.*a semi join emits no pairs"):
        left.join(right, on="k", within="1s", how="semi", time="at")
    with pytest.raises(FlowError, match="there are inner, left, right, full, semi, anti"):
        left.join(right, on="k", within="1s", how="outer")
    with pytest.raises(FlowError, match="where"):
        left.join(right, on="k", within="1s", how="semi", where="nothing > 1")

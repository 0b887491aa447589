"""Joins against a model in plain Python: random rows, disorder, epochs, parallelism, restarts and rescales."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.local import Local, Script, constants

import meander as md
from meander.coordinate.routing import rebalance
from meander.plan.windows import NEVER
from meander.state import compaction as compaction_module

LEFT = {"k": pl.Int64(), "v": pl.Int64(), "ts": pl.Datetime("us")}
RIGHT = {"k": pl.Int64(), "w": pl.Int64(), "ts": pl.Datetime("us")}
SECOND = 1_000_000
FOREVER = 1 << 62
LIMITS = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
Row = tuple[int | None, int, int]


@dataclass
class Clocks:
    """Two watermarks, as the decision on event time has them."""

    grace: int
    heard: tuple[dict[int, int], dict[int, int]] = field(default_factory=lambda: ({}, {}))
    marks: list[int] = field(default_factory=lambda: [NEVER, NEVER])
    lates: list[int] = field(default_factory=lambda: [NEVER, NEVER])
    floor: int = NEVER
    """What a flush has closed is over, whatever the marks say."""

    def hear(self, side: int, partition: int, time: int) -> None:
        self.heard[side][partition] = max(self.heard[side].get(partition, NEVER), time)

    def advance(self, closed: int | None = None) -> None:
        self.lates = list(self.marks)
        for side in (0, 1):
            if self.heard[side]:
                self.marks[side] = max(self.marks[side], min(self.heard[side].values()) - self.grace)
        if closed is not None:
            self.floor = max(self.floor, closed)

    @property
    def late(self) -> int:
        return max(min(self.lates), self.floor)

    @property
    def evict(self) -> int:
        return max(min(self.marks), self.floor)


@dataclass
class Model:
    """A join by the definition: every row meets all there were; one that is alone comes out when nothing can come that it could meet."""

    how: str
    low: int
    high: int
    clocks: Clocks
    window: int | None = None
    nulls: bool = False
    """Whether null equals null."""
    rows: tuple[list[list[Any]], list[list[Any]]] = field(default_factory=lambda: ([], []))
    """Of each side: time, row, whether it met one, whether it has come out alone."""
    late: tuple[list[Row], list[Row]] = field(default_factory=lambda: ([], []))

    def time(self, ts: int) -> int:
        return ts if self.window is None else ts // self.window * self.window + self.window - 1

    def epoch(self, splits: Sequence[Any], flush: bool = False) -> list[tuple[Any, ...]]:
        late, evict = self.clocks.late, FOREVER if flush else self.clocks.evict
        new: tuple[list[Any], list[Any]] = ([], [])
        for side in (0, 1):
            for partition, rows in splits[side] if splits else ():
                for row in rows:
                    self.clocks.hear(side, partition, row[2])
                    time = self.time(row[2])
                    if time < late:
                        self.late[side].append(row)
                    else:
                        new[side].append([time, row, False, False])
        old = [list(rows) for rows in self.rows]
        for side in (0, 1):
            self.rows[side].extend(new[side])
        pairs = [(a, b) for a in new[0] for b in self.rows[1]] + [(a, b) for a in old[0] for b in new[1]]
        out: list[tuple[Any, ...]] = []
        for a, b in pairs:
            if equal(a[1][0], b[1][0], self.nulls) and self.low <= b[0] - a[0] <= self.high and (a[1][1] + b[1][1]) % 3:
                assert not a[3], "a row that came out alone has met another"
                assert not b[3], "a row that came out alone has met another"
                a[2] = b[2] = True
                out.append((a[1][0], a[1][1], a[1][2], b[1][1], b[1][2]))
        closed = NEVER
        for side, high, outer in ((0, self.high, ("left", "full")), (1, -self.low, ("right", "full"))):
            for row in self.rows[side]:
                if row[3] or row[0] + max(0, high) >= evict:
                    continue
                row[3] = True
                closed = max(closed, row[0] + max(0, high) + 1)
                k, v, ts = row[1]
                if self.how in outer and not row[2]:
                    out.append((k, v, ts, None, None) if side == 0 else (k, None, None, v, ts))
        self.clocks.advance(closed if flush else None)
        return out


def equal(one: int | None, other: int | None, nulls: bool) -> bool:
    return one == other and (nulls or one is not None)


def micros(table: Any, *columns: str) -> list[tuple[Any, ...]]:
    frame = pl.DataFrame(pl.from_arrow(table))
    return frame.select(columns).with_columns(pl.selectors.temporal().dt.epoch("us")).rows() if frame.width else []


def ordered(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=lambda row: [(value is not None, value) for value in row])


times = st.integers(0, 30 * SECOND) | st.integers(0, 30).map(lambda s: s * SECOND)
rows = st.lists(st.tuples(st.none() | st.integers(0, 3), st.integers(0, 9), times), max_size=6).map(tuple)
splits = st.lists(st.tuples(st.integers(0, 1), rows), min_size=1, max_size=2).map(tuple)
epochs = st.lists(st.tuples(splits, splits), min_size=1, max_size=6)
BOUNDS = [(-10.0, 10.0), (0.0, 5.0), (-3.0, -1.0), (2.0, 20.0), (0.0, 0.0)]


def sources(flow: md.Flow, script: Sequence[Any], grace: int) -> tuple[md.Stream, md.Stream]:
    left = flow.source("left", Script(LEFT, tuple(e[0] for e in script))).watermark("ts", grace=grace, name="left_time")
    right = flow.source("right", Script(RIGHT, tuple(e[1] for e in script))).watermark("ts", grace=grace, name="right_time")
    return left, right


def run_through(flow: md.Flow, folder: Path, data: st.DataObject, script: Sequence[Any], model: Any) -> tuple[Local, list[tuple[Any, ...]]]:
    """The flow beside its model, with everything that must not show in the result."""
    expected: list[tuple[Any, ...]] = []
    small = data.draw(st.booleans())

    def flush() -> None:
        for is_flush in local.flush():
            expected.extend(model.epoch((), is_flush))
            if is_flush:  # rows that nobody can meet are not kept, and a flush does not close for what it does not have
                floor = local.manifest.flushed.get("j", NEVER)
                assert floor <= model.clocks.floor
                model.clocks.floor = floor

    with constants(FEWEST=(compaction_module, 2)):
        local = Local(flow, folder, data.draw(st.sampled_from([1, 2, 4])), small, ahead=data.draw(st.booleans()))
        for one in script:
            assert local.step()
            expected += model.epoch(one)
            if data.draw(st.booleans()):
                local.loop.reroute("j", rebalance(local.loop.routing["j"], data.draw(st.integers(1, 4))))
            if data.draw(st.integers(0, 3)) == 0:  # the driver dies, and another one goes on
                local = Local(flow, folder, 2, small)
            if data.draw(st.integers(0, 3)) == 0 and local.loop.decisions.begun is None:
                flush()
        while local.step():  # what is due without input
            expected += model.epoch(())
        flush()
    return local, expected


@pytest.mark.many
@LIMITS
@given(st.data())
def test_joins_equal_the_model(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    how, grace = data.draw(st.sampled_from(["inner", "left", "right", "full"])), data.draw(st.sampled_from([0, 3]))
    low, high = data.draw(st.sampled_from(BOUNDS))
    window = data.draw(st.sampled_from([None, None, 10, 2]))
    script = data.draw(epochs)
    flow, out, lates = md.Flow("joins"), md.memory(), (md.memory(), md.memory())
    left, right = sources(flow, script, grace)
    where, nulls = "(v + w) % 3 <> 0", data.draw(st.booleans())
    if window is None:
        joined = left.join(right, on="k", within=(low, high), how=how, where=where, nulls_equal=nulls, name="j")
    else:
        low = high = 0
        joined = left.window(md.tumbling(window)).join(right, on="k", how=how, where=where, nulls_equal=nulls, name="j")
    joined.sink("out", out)
    for side in (0, 1):
        joined.late(side=side).sink(f"too_late_{side}", lates[side])
    size = None if window is None else window * SECOND
    model = Model(how, int(low * SECOND), int(high * SECOND), Clocks(grace * SECOND), size, nulls)
    local, expected = run_through(flow, tmp_path_factory.mktemp("joins"), data, script, model)
    assert ordered(micros(out.table(), "k", "v", "ts", "w", "ts_right")) == ordered(expected)
    assert ordered(micros(lates[0].table(), "k", "v", "ts")) == ordered(model.late[0])
    assert ordered(micros(lates[1].table(), "k", "w", "ts")) == ordered(model.late[1])
    assert local.manifest.totals.get("late_rows", 0) == sum(map(len, model.late))
    if how != "inner":
        assert not local.stored, "everything is closed, and nothing is stored any more"
    if window is not None and out.table().num_rows:
        frame = pl.DataFrame(pl.from_arrow(out.table()))
        seen = pl.coalesce("ts", "ts_right")
        assert frame.select((pl.col("window_start") <= seen).all() & (seen < pl.col("window_end")).all()).item()


@pytest.mark.many
@settings(LIMITS, max_examples=25)
@given(st.data())
def test_a_join_without_a_bound_gives_every_pair_once(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    script = data.draw(epochs)
    flow, out = md.Flow("joins"), md.memory()
    left, right = sources(flow, script, 0)
    nulls = data.draw(st.booleans())
    left.join(right, on="k", time="later", nulls_equal=nulls, name="j").sink("out", out)
    local = Local(flow, tmp_path_factory.mktemp("joins"), data.draw(st.sampled_from([1, 2, 4])), data.draw(st.booleans()))
    with constants(FEWEST=(compaction_module, 2)):
        local.run(flush=True)
    sides = [[row for epoch in script for _, rows in epoch[side] for row in rows] for side in (0, 1)]
    pairs = [(*a, b[1], b[2], max(a[2], b[2])) for a in sides[0] for b in sides[1] if equal(a[0], b[0], nulls)]
    assert ordered(micros(out.table(), "k", "v", "ts", "w", "ts_right", "later")) == ordered(pairs)


@dataclass
class AsOf:
    """The right row with the largest time up to the left row's, known when the mark has passed the left row's second."""

    how: str
    clocks: Clocks
    nulls: bool
    tolerance: int | None
    waiting: list[Row] = field(default_factory=list)
    table: list[Row] = field(default_factory=list)
    late: tuple[list[Row], list[Row]] = field(default_factory=lambda: ([], []))

    def epoch(self, splits: Sequence[Any], flush: bool = False) -> list[tuple[Any, ...]]:
        late, evict = self.clocks.late, FOREVER if flush else self.clocks.evict
        for side in (0, 1):
            for partition, rows in splits[side] if splits else ():
                for row in rows:
                    self.clocks.hear(side, partition, row[2])
                    (self.late[side] if row[2] < late else (self.waiting, self.table)[side]).append(row)
        due = [row for row in self.waiting if (row[2] // SECOND + 1) * SECOND <= evict]
        self.waiting = [row for row in self.waiting if row not in due]
        out: list[tuple[Any, ...]] = []
        for k, v, ts in due:
            found = [row for row in self.table if equal(row[0], k, self.nulls) and row[2] <= ts]
            newest = max((row[2] for row in found), default=NEVER)
            if found and (self.tolerance is None or ts - newest <= self.tolerance):
                w = [row for row in found if row[2] == newest][-1][1]
                out.append((k, v, ts, w, newest))
            elif self.how == "left":
                out.append((k, v, ts, None, None))
        closed = max((row[2] + 1 for row in [*due, *self.table]), default=NEVER)
        self.clocks.advance(closed if flush else None)
        return out


@pytest.mark.many
@LIMITS
@given(st.data())
def test_as_of_joins_equal_the_model(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    how, grace = data.draw(st.sampled_from(["inner", "left"])), data.draw(st.sampled_from([0, 3]))
    script = data.draw(epochs)
    flow, out = md.Flow("joins"), md.memory()
    left, right = sources(flow, script, grace)
    nulls, tolerance = data.draw(st.booleans()), data.draw(st.sampled_from([None, None, 0, 4]))
    joined = left.join_latest(right, on="k", how=how, as_of=True, tolerance=tolerance, nulls_equal=nulls, name="j")
    joined.sink("out", out)
    joined.late(side=1).sink("late", md.memory())
    model = AsOf(how, Clocks(grace * SECOND), nulls, None if tolerance is None else tolerance * SECOND)
    local, expected = run_through(flow, tmp_path_factory.mktemp("joins"), data, script, model)
    assert ordered(micros(out.table(), "k", "v", "ts", "w", "ts_right")) == ordered(expected)
    assert local.manifest.totals.get("late_rows", 0) == sum(map(len, model.late))
    assert local.stored <= {"j.latest"}


@dataclass
class Latest:
    """The last right row to arrive; those of the same epoch count as earlier."""

    how: str
    nulls: bool
    table: dict[Any, Row] = field(default_factory=dict)

    def epoch(self, splits: Sequence[Any], flush: bool = False) -> list[tuple[Any, ...]]:
        if not splits:
            return []
        for _, rows in splits[1]:
            self.table.update((row[0], row) for row in rows if self.nulls or row[0] is not None)
        out: list[tuple[Any, ...]] = []
        for k, v, ts in (row for _, rows in splits[0] for row in rows):
            if k in self.table:
                out.append((k, v, ts, self.table[k][1], self.table[k][2]))
            elif self.how == "left":
                out.append((k, v, ts, None, None))
        return out


@pytest.mark.many
@LIMITS
@given(st.data())
def test_joins_with_the_latest_row_equal_the_model(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    how = data.draw(st.sampled_from(["inner", "left"]))
    script = data.draw(epochs)
    flow, out = md.Flow("joins"), md.memory()
    left, right = sources(flow, script, 0)
    nulls = data.draw(st.booleans())
    left.join_latest(right, on="k", how=how, nulls_equal=nulls, name="j").sink("out", out)
    _, expected = run_through(flow, tmp_path_factory.mktemp("joins"), data, script, Latest(how, nulls))
    assert ordered(micros(out.table(), "k", "v", "ts", "w", "ts_right")) == ordered(expected)

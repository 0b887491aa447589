"""Processors of two connected streams: one state for both, a fixed order within an epoch, and the same rows whatever happens."""

# ruff: noqa: RUF012

from __future__ import annotations

import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.local import Local, Script, constants

import meander as md
from meander.clock import FakeClock
from meander.coordinate.routing import rebalance
from meander.errors import BadInput, FlowError
from meander.plan.change.diff import differences
from meander.plan.change.modify import Become, modify
from meander.state import compaction as compaction_module

LEFT: dict[str, Any] = {"k": pl.Int64(), "v": pl.Int64(), "ts": pl.Datetime("us")}
RIGHT: dict[str, Any] = {"at": pl.Datetime("us"), "id": pl.Int64(), "w": pl.Int64()}
SECOND = 1_000_000
Rows = tuple[tuple[int, int, int], ...]
"""(key, value, time)"""


class Both(md.Processor):
    """What the left adds the right doubles: the order of the calls shows in the numbers."""

    output = {"by": "string", "n": "int64"}
    side_outputs = {"odd": {"n": "int64"}}
    n = md.value("int64", default=0)
    seen = md.list_of("int64")

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        for row in rows:
            state.n += row.v
            state.seen.append(row.v)
            if row.v == 97:
                raise ValueError("left")
            if row.v == 5:
                ctx.set_timer(row.ts + timedelta(seconds=3))
        yield "left", state.n

    def on_other_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        state.n = 2 * state.n + sum(rows["w"])
        state.seen.append(-len(rows))
        for row in rows:
            if row.w == 97:
                raise ValueError("right")
            if row.w == 5:
                ctx.set_timer(row.at + timedelta(seconds=2))
        if state.n % 2:
            ctx.emit((state.n,), "odd")
        return "right", state.n

    def on_timer(self, key: Any, time: Any, state: Any, ctx: Any) -> Any:
        state.n -= 1
        return "timer", state.n


class BothBatch(md.Processor):
    """The same on frames."""

    output = {"by": "string", "n": "int64"}
    side_outputs = {"odd": {"n": "int64"}}
    n = md.value("int64", default=0)
    seen = md.list_of("int64")

    def on_batch(self, rows: pl.DataFrame, state: pl.DataFrame, ctx: Any) -> Any:
        if (rows["v"] == 97).any():
            raise ValueError("left")
        sums = rows.group_by("k").agg(pl.col("v").sum().alias("more"), pl.col("v").alias("new"))
        new = state.join(sums, on="k", nulls_equal=True, maintain_order="left")
        new = new.with_columns(pl.col("n") + pl.col("more"), pl.col("seen").list.concat("new")).select("k", "n", "seen")
        timers = rows.filter(pl.col("v") == 5).select("k", (pl.col("ts") + pl.duration(seconds=3)).alias("time"))
        return new.select("k", pl.lit("left").alias("by"), "n"), new, timers

    def on_other_batch(self, rows: pl.DataFrame, state: pl.DataFrame, ctx: Any) -> Any:
        if (rows["w"] == 97).any():
            raise ValueError("right")
        sums = rows.group_by(pl.col("id").alias("k")).agg(pl.col("w").sum().alias("more"), (-pl.len().cast(pl.Int64)).alias("new"))
        new = state.join(sums, on="k", nulls_equal=True, maintain_order="left")
        new = new.with_columns(pl.col("n") * 2 + pl.col("more"), pl.col("seen").list.concat("new")).select("k", "n", "seen")
        ctx.emit(new.filter(pl.col("n") % 2 != 0).select("k", "n"), "odd")
        timers = rows.filter(pl.col("w") == 5).select(pl.col("id").alias("k"), (pl.col("at") + pl.duration(seconds=2)).alias("time"))
        return new.select("k", pl.lit("right").alias("by"), "n"), new, timers

    def on_timers(self, due: pl.DataFrame, state: pl.DataFrame, ctx: Any) -> Any:
        fired = due.join(state, on="k", nulls_equal=True, maintain_order="left")
        fired = fired.with_columns(pl.col("n") - 1 - pl.int_range(pl.len()).over("k"))
        new = fired.group_by("k").agg(pl.col("n").last(), pl.col("seen").last())
        return fired.select("k", pl.lit("timer").alias("by"), "n"), new


class Model:
    """The fold of the epochs, in plain Python."""

    def __init__(self) -> None:
        self.n: dict[int, int] = {}
        self.seen: dict[int, list[int]] = {}
        self.timers: set[tuple[int, int]] = set()
        self.out: list[Any] = []
        self.odd: list[Any] = []
        self.dead = 0
        self.heard: list[int | None] = [None, None]

    def epoch(self, left: Rows, right: Rows, flush: bool = False) -> None:
        known = [one for one in self.heard if one is not None]
        mark = min(known) if len(known) == 2 else -1
        for at, k in sorted((at, k) for k, at in self.timers if flush or at <= mark):
            self.timers.discard((k, at))
            self.n[k] = self.n.get(k, 0) - 1
            self.out.append((k, "timer", self.n[k]))
        for k in sorted({row[0] for row in (*left, *right)}):
            self._left(k, [row for row in left if row[0] == k])
            self._right(k, [row for row in right if row[0] == k])
        for side, rows in enumerate((left, right)):
            times = [at for _, _, at in rows] + [one for one in (self.heard[side],) if one is not None]
            self.heard[side] = max(times, default=None)

    def _left(self, k: int, rows: list[Any]) -> None:
        if any(v == 97 for _, v, _ in rows):
            self.dead += len(rows)
        elif rows:
            self.n[k] = self.n.get(k, 0) + sum(v for _, v, _ in rows)
            self.seen.setdefault(k, []).extend(v for _, v, _ in rows)
            self.timers |= {(k, at + 3 * SECOND) for _, v, at in rows if v == 5}
            self.out.append((k, "left", self.n[k]))

    def _right(self, k: int, rows: list[Any]) -> None:
        if any(w == 97 for _, w, _ in rows):
            self.dead += len(rows)
        elif rows:
            self.n[k] = 2 * self.n.get(k, 0) + sum(w for _, w, _ in rows)
            self.seen.setdefault(k, []).append(-len(rows))
            self.timers |= {(k, at + 2 * SECOND) for _, w, at in rows if w == 5}
            self.out.append((k, "right", self.n[k]))
            if self.n[k] % 2:
                self.odd.append((k, self.n[k]))


def read(out: Any, *columns: Any) -> list[Any]:
    rows = pl.DataFrame(pl.from_arrow(out.table()))
    return rows.select(*columns).rows() if rows.height else []


def scripts(epochs: Any) -> tuple[Script, Script]:
    """A source of each side, epoch by epoch, the rows in two splits."""

    def halves(rows: Any) -> Any:
        return ((0, rows[: len(rows) // 2]), (0, rows[len(rows) // 2 :]))

    left = tuple(halves(left) for left, _ in epochs)
    right = tuple(halves(tuple((at, k, w) for k, w, at in right)) for _, right in epochs)
    return Script(LEFT, left), Script(RIGHT, right)


def flow_of(epochs: Any, processor: Any = Both, timed: tuple[bool, bool] = (True, True), idle: str | None = None) -> Any:
    flow, main, odd = md.Flow("p"), md.memory(), md.memory()
    one, other = scripts(epochs)
    left, right = flow.source("left", one), flow.source("right", other)
    left = left.watermark("ts", idle=idle, name="left_time") if timed[0] else left
    right = right.watermark("at", idle=idle, name="right_time") if timed[1] else right
    both = left.key_by("k").connect(right.key_by("id")).process(processor, name="p")
    both.sink("main", main)
    if both.flow._nodes["p"].op.declared.sides:  # type: ignore[attr-defined]
        both.side("odd", name="odd").sink("odd_out", odd)
    return flow, main, odd


def drawn(rng: random.Random) -> list[tuple[Rows, Rows]]:
    now, epochs = 0, []
    for _ in range(rng.randrange(2, 9)):
        sides: list[Rows] = []
        for _ in range(2):
            rows = []
            for _ in range(rng.randrange(0, 8)):
                now += rng.choice((0, SECOND))
                value = 97 if rng.random() < 0.05 else rng.randrange(7)
                rows.append((rng.randrange(4), value, max(0, now - rng.choice((0, 0, 3 * SECOND)))))
            sides.append(tuple(rows))
        epochs.append((sides[0], sides[1]))
    return epochs


@pytest.mark.many
@pytest.mark.parametrize("seed", range(16))
def test_both_sides_equal_the_model(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    epochs = drawn(rng)
    flow, main, odd = flow_of(epochs, BothBatch if seed % 2 else Both)
    model = Model()
    with constants(FEWEST=(compaction_module, 2)):
        local = Local(flow, tmp_path, rng.choice((1, 2, 3)), rng.random() < 0.5, ahead=rng.random() < 0.5)
        for left, right in epochs:
            assert local.step()
            model.epoch(left, right)
            if rng.random() < 0.3:
                local.loop.reroute("p", rebalance(local.loop.routing["p"], rng.randrange(1, 5)))
            if rng.random() < 0.3:
                local = Local(flow, tmp_path, 2)
        local.run()
        model.epoch((), ())
        stored = md.read_state(tmp_path, "p")
        local.run(flush=True)
    assert {row["k"]: (row["n"], row["seen"]) for row in stored.to_pylist()} == {
        k: (n, model.seen.get(k, [])) for k, n in model.n.items() if n or model.seen.get(k) or k in {key for key, _ in model.timers}
    }
    model.epoch((), (), flush=True)
    assert sorted(read(main, "k", "by", "n")) == sorted(model.out)
    assert sorted(read(odd, "k", "n")) == sorted(model.odd)
    assert local.manifest.totals.get("dead_letters", 0) == model.dead


@pytest.mark.many
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("processor", [Both, BothBatch])
def test_timers_then_the_left_then_the_right(tmp_path: Path, processor: Any, small: bool, parallelism: int) -> None:
    epochs = [(((1, 5, 0), (2, 1, 0)), ((1, 1, 9 * SECOND),)), (((1, 2, 9 * SECOND),), ()), (((1, 3, 9 * SECOND),), ((1, 4, 9 * SECOND),))]
    flow, main, _ = flow_of(epochs, processor)
    local = Local(flow, tmp_path, parallelism, small)
    local.run()
    mine = [(by, n) for k, by, n in read(main, "k", "by", "n") if k == 1]
    assert mine == [("left", 5), ("right", 11), ("left", 13), ("timer", 12), ("left", 15), ("right", 34)]


class Meet(md.Processor):
    """Orders and what was paid for them: out when both are there, or when nobody pays."""

    output = {"v": "int64", "paid": "int64", "on": "timestamp"}
    v = md.value("int64")
    paid = md.value("int64")

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        state.v = rows[0].v
        ctx.set_timer(rows[0].ts + timedelta(seconds=5))
        return self.met(state, ctx)

    def on_other_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        state.paid = (state.paid or 0) + sum(rows["w"])
        return self.met(state, ctx)

    def met(self, state: Any, ctx: Any) -> Any:
        return (state.v, state.paid, None) if state.v is not None and state.paid is not None else ()

    def on_timer(self, key: Any, time: Any, state: Any, ctx: Any) -> Any:
        return (state.v, None, time) if state.paid is None else ()


@pytest.mark.many
@pytest.mark.parametrize("seed", range(6))
def test_cuts_and_parallelism_do_not_matter_to_what_does_not_ask_for_the_order(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    orders = [(k, k + 10, k * SECOND) for k in range(12)]
    paid = [(k, 1, k * SECOND + rng.choice((0, 2)) * SECOND) for k in range(0, 12, 2)]
    wanted = sorted([(k, k + 10, 1, None) for k in range(0, 12, 2)] + [(k, k + 10, None, k + 5) for k in range(1, 12, 2)], key=repr)
    for number in range(3):
        cut = sorted(rng.randrange(13) for _ in range(rng.randrange(4)))
        edges = list(zip([0, *cut], [*cut, 12], strict=True))
        epochs = [(tuple(orders[begin:end]), tuple(one for one in paid if begin <= one[0] < end)) for begin, end in edges]
        flow, main, _ = flow_of(epochs, Meet)
        Local(flow, tmp_path / str(number), rng.choice((1, 2, 4)), rng.random() < 0.5).run(flush=True)
        assert sorted(read(main, "k", "v", "paid", pl.col("on").dt.epoch("s")), key=repr) == wanted


class EpochListener(md.Processor):
    """What a call is told."""

    output = {"by": "string", "time": "timestamp", "mark": "timestamp", "id": "string", "names": "string"}

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        yield "left", ctx.time, ctx.watermark, str(ctx.uuid()), " ".join(rows.columns)
        ctx.set_timer("1h")

    def on_other_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        yield "right", ctx.time, ctx.watermark, str(ctx.uuid()), " ".join(rows.columns)

    def on_timer(self, key: Any, time: Any, state: Any, ctx: Any) -> Any: ...


def at(second: int) -> datetime:
    return datetime(1970, 1, 1) + timedelta(seconds=second)


def test_each_side_has_its_own_rows_and_time_and_ids_and_the_mark_is_the_smaller_one(tmp_path: Path) -> None:
    epochs = [(((1, 1, 20 * SECOND),), ((1, 1, 7 * SECOND),)), (((1, 1, 30 * SECOND),), ((1, 1, 8 * SECOND),))]
    flow, main, _ = flow_of(epochs, EpochListener)
    Local(flow, tmp_path).run()
    assert read(main, "by", "time", "mark", "names") == [
        ("left", at(20), None, "k v ts"),
        ("right", at(7), None, "at id w"),
        ("left", at(30), at(7), "k v ts"),
        ("right", at(8), at(7), "at id w"),
    ]
    assert len(set(read(main, "id"))) == 4, "no two calls get the same id"


def test_a_side_that_is_silent_holds_timers_back_for_its_idle_time(tmp_path: Path) -> None:
    epochs = [(((1, 5, 0),), ((1, 1, SECOND),)), (((1, 1, 60 * SECOND),), ())]
    flow, main, _ = flow_of(epochs, idle="60s")
    clock = FakeClock(1_000.0)
    local = Local(flow, tmp_path, clock=clock)
    local.run()
    assert "timer" not in [by for (by,) in read(main, "by")]
    clock.sleep(60.0)
    local.run()
    assert "timer" in [by for (by,) in read(main, "by")]


@pytest.mark.parametrize("timed", [(True, False), (False, True), (False, False)])
def test_there_is_an_event_time_only_where_both_sides_have_one(tmp_path: Path, timed: tuple[bool, bool]) -> None:
    flow, main, _ = flow_of([(((1, 1, 0),), ((1, 1, 0),))], EpochListener, timed)
    clock = FakeClock(1_000.0)
    local = Local(flow, tmp_path, clock=clock)
    local.run()
    assert [(by, mark) for by, mark in read(main, "by", "mark")] == [("left", None), ("right", None)]
    assert all(time.year == 1970 and time >= at(1_000) for (time,) in read(main, "time"))
    forgetful = type("Forgetful", (EpochListener,), {"ttl_clock": "event", "n": md.value("int64", ttl="1h")})
    without = "right" if timed[0] else "left"
    with pytest.raises(FlowError, match=f"ttl_clock='event' after '{without}': its rows have no event time"):
        Local(flow_of([], forgetful, timed)[0], tmp_path / "forgetful")


class Forgetting(md.Processor):
    output = {"by": "string", "n": "int64"}
    n = md.value("int64", default=0, ttl="10s")

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        state.n += len(rows)
        if rows[0].v == 97:
            raise ValueError("left")
        yield "left", state.n

    def on_other_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        state.n += len(rows)
        yield "right", state.n


def test_rows_of_either_side_keep_a_variable_and_dead_letters_of_one_do_not(tmp_path: Path) -> None:
    quiet = (2, 0, 0)
    epochs: list[Any] = [(((1, 0, 0),), ((1, 1, 0),))]
    epochs += [(((2, 0, second * SECOND),), ((1, 1, second * SECOND),)) for second in (8, 16, 24)]
    epochs.append((((2, 0, 40 * SECOND),), ((2, 1, 40 * SECOND),)))
    epochs.append((((1, 0, 41 * SECOND), quiet), ()))
    flow, main, _ = flow_of(epochs, Forgetting)
    Local(flow, tmp_path).run()
    assert [(by, n) for k, by, n in read(main, "k", "by", "n") if k == 1] == [
        ("left", 1), ("right", 2), ("right", 3), ("right", 4), ("right", 5), ("left", 1),
    ]  # fmt: skip
    refused: list[Any] = [(((1, 0, 0),), ((1, 1, 0),))]
    refused += [(((1, 97, second * SECOND),), ((2, 1, second * SECOND),)) for second in (8, 16)]
    refused.append(((), ((1, 1, 17 * SECOND),)))
    flow, main, _ = flow_of(refused, Forgetting)
    Local(flow, tmp_path / "refused").run()
    assert [(by, n) for k, by, n in read(main, "k", "by", "n") if k == 1] == [("left", 1), ("right", 2), ("right", 1)]


def letters(folder: Path) -> list[Any]:
    found = [pl.read_parquet(one) for one in (folder / "dead_letters").glob("*.parquet")]
    return sorted(pl.concat(found).select("position", "reason", "content").rows()) if found else []


@pytest.mark.parametrize("processor", [Both, BothBatch])
def test_a_side_whose_call_raises_has_not_happened_and_the_other_has(tmp_path: Path, processor: Any) -> None:
    flow, main, _ = flow_of([(((1, 97, 0), (2, 1, 0)), ((1, 3, 0), (2, 97, 0), (2, 1, 0)))], processor)
    Local(flow, tmp_path).run()
    assert sorted(read(main, "k", "by", "n")) == [(1, "right", 3), (2, "left", 1)]
    assert [(position, reason) for position, reason, _ in letters(tmp_path)] == [
        ("p key 1 row 1 of the left", "ValueError: left"),
        ("p key 2 row 1 of the right", "ValueError: right"),
        ("p key 2 row 2 of the right", "ValueError: right"),
    ]
    with pytest.raises(BadInput, match=r"operator 'p', epoch \d+, key 2, its rows of the right: ValueError: right"):
        Local(flow_of([((), ((2, 97, 0),))], processor)[0], tmp_path / "strict", strict=True).run()


class Unfit(Both):
    def on_other_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        state.n += 100
        ctx.set_timer("1s")
        return "right", "no number" if rows[0].w == 1 else state.n

    def on_timer(self, key: Any, time: Any, state: Any, ctx: Any) -> Any:
        return "timer", "no number"


def test_a_call_whose_row_does_not_fit_has_not_happened_and_that_for_the_other_side_has(tmp_path: Path) -> None:
    flow, main, _ = flow_of([(((1, 5, 0), (2, 5, 0)), ((1, 1, 0), (2, 2, 0)))], Unfit)
    local = Local(flow, tmp_path)
    local.run()
    assert sorted(read(main, "k", "by", "n")) == [(1, "left", 5), (2, "left", 5), (2, "right", 105)]
    reason = "TypeError: it gave n = 'no number', which is no Int64"
    assert [one[:2] for one in letters(tmp_path)] == [("p key 1 row 1 of the right", reason)]
    assert md.read_state(tmp_path, "p").to_pylist() == [{"k": 1, "n": 5, "seen": [5]}, {"k": 2, "n": 105, "seen": [5]}]
    local.run(flush=True)
    timers = [content for position, _, content in letters(tmp_path) if position == "p key 2 row 1"]
    assert len(timers) == 2, "a timer whose row does not fit is a dead letter, as one whose call raises"
    assert all('"clock": "event"' in content for content in timers)


@pytest.mark.parametrize("processor", [Both, BothBatch])
def test_null_is_a_key_of_both_sides(tmp_path: Path, processor: Any) -> None:
    flow, main, _ = flow_of([(((None, 1, 0), (1, 1, 0)), ((None, 3, 0),))], processor)
    Local(flow, tmp_path, 3).run()
    assert sorted(read(main, "k", "by", "n"), key=repr) == [(1, "left", 1), (None, "left", 1), (None, "right", 5)]


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("swapped", [True, False])
def test_the_streams_may_come_from_different_stages(tmp_path: Path, small: bool, swapped: bool) -> None:
    one, other = scripts([(((1, 1, 0), (2, 1, 0)), ((1, 1, 0), (1, 1, 0))), (((1, 1, 1),), ((1, 1, 1), (2, 1, 1)))])
    flow, out = md.Flow("p"), md.memory()
    left, right = flow.source("left", one), flow.source("right", other).deduplicate("id", name="once")
    sides = [left.key_by("k"), right.key_by("id")]
    first, second = reversed(sides) if swapped else sides
    first.connect(second).process(WithOther, name="p").sink("out", out)
    Local(flow, tmp_path, 3, small).run()
    found = sorted(pl.DataFrame(pl.from_arrow(out.table())).rows())
    assert found == ([(1, 1), (1, 11), (1, 21), (2, 10), (2, 11)] if swapped else [(1, 1), (1, 11), (1, 12), (2, 1), (2, 11)])


def test_a_row_of_a_year_that_python_lacks_is_a_dead_letter_of_its_side(tmp_path: Path) -> None:
    flow, main, _ = flow_of([(((1, 1, 0),), ((1, 2, 0), (1, 1, 1 << 60)))], timed=(False, False))
    Local(flow, tmp_path).run()
    assert [(by, n) for by, n in read(main, "by", "n")] == [("left", 1), ("right", 4)]
    assert [one[:2] for one in letters(tmp_path)] == [("p key 1 row 2 of the right", "at is of a year that Python's datetime lacks")]


class Pairs(md.Processor):
    output = {"n": "int64"}
    n = md.value("int64", default=0)

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        assert key == ("a", 1)
        state.n += len(rows)
        yield (state.n,)

    on_other_events = on_events


def test_a_key_of_several_columns_and_a_stream_with_itself(tmp_path: Path) -> None:
    flow, out = md.Flow("p"), md.memory()
    rows = flow.source(
        "rows", Script({"a": pl.String(), "b": pl.Int64(), "c": pl.String(), "d": pl.Int64()}, (((0, (("a", 1, "a", 1),)),),))
    )
    connected = rows.key_by("a", "b").connect(rows.key_by("c", "d"))
    assert isinstance(connected, md.ConnectedStreams)
    assert "ConnectedStreams of <KeyedStream by a, b" in repr(connected)
    connected.process(Pairs, name="p").sink("out", out)
    assert "process p <- rows, rows: by a = c, b = d: Pairs(n Int64)" in flow.explain()
    Local(flow, tmp_path).run()
    assert out.table().to_pylist() == [{"a": "a", "b": 1, "n": 1}, {"a": "a", "b": 1, "n": 2}]


class Alone(md.Processor):
    output = {"n": "int64"}
    n = md.value("int64", default=0)

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        state.n += len(rows)
        yield (state.n,)


class AloneBatch(md.Processor):
    output = {"n": "int64"}

    def on_batch(self, rows: Any, state: Any, ctx: Any) -> Any: ...


class Mixed(Alone):
    def on_other_batch(self, rows: Any, state: Any, ctx: Any) -> Any: ...


def test_mistakes_are_told_when_the_flow_is_built() -> None:
    flow = md.Flow("p")
    left, right = (flow.source(name, one) for name, one in zip(("left", "right"), scripts([]), strict=True))
    keyed = left.key_by("k")
    with pytest.raises(FlowError, match=r"connect after 'left': the stream has no key; write key_by"):
        left.connect(right.key_by("id"))
    with pytest.raises(FlowError, match=r"connect after 'left': the other stream, 'right', has no key; write right.key_by\(...\)"):
        keyed.connect(right)  # type: ignore[arg-type]
    with pytest.raises(FlowError, match=r"connect after 'left': .* is not a stream"):
        keyed.connect("right")  # type: ignore[arg-type]
    with pytest.raises(FlowError, match=r"connect after 'left': 'k' is Int64 on the left, 'at' is Datetime.* on the right: cast one"):
        keyed.connect(right.key_by("at"))
    with pytest.raises(FlowError, match=r"the left is keyed by k, the right by id, w: the key of both must have as many columns"):
        keyed.connect(right.key_by("id", "w"))
    both = keyed.connect(right.key_by("id"))
    with pytest.raises(FlowError, match=r"Alone has on_events alone, .*: write on_other_events\(self, key, rows, state, ctx\)"):
        both.process(Alone)
    with pytest.raises(FlowError, match=r"AloneBatch has on_batch alone, .*: write on_other_batch\(self, rows, state, ctx\)"):
        both.process(AloneBatch)
    with pytest.raises(FlowError, match=r"beside on_events the rows of a second stream come to on_other_events"):
        both.process(Mixed)
    with pytest.raises(FlowError, match=r"Both has on_other_events, for the rows of a second stream, and there is one stream"):
        keyed.process(Both)
    with pytest.raises(FlowError, match="belongs to another flow"):
        keyed.connect(md.Flow("q").source("right", scripts([])[1]).key_by("id")).process(Both)
    totals = right.key_by("id").aggregate(md.count(), name="totals")
    with pytest.raises(FlowError, match=r"process 'p': its input 'totals' is a stream of changes"):
        keyed.connect(totals.key_by("id")).process(Both, name="p")
    with pytest.raises(FlowError, match=r"process 'p': its input 'totals' is a stream of changes"):
        totals.key_by("id").connect(keyed).process(Both, name="p")
    with pytest.raises(AttributeError, match="connected streams are followed by process"):
        both.filter("v > 1")  # type: ignore[attr-defined]


class More(Both):
    more = md.value("string")


def plan_of(processor: Any = Both, **options: Any) -> Any:
    return flow_of([], processor, **options)[0].plan()


def test_a_processor_of_two_streams_is_replaced_and_shown_as_others_are() -> None:
    plan = plan_of()
    assert "process p <- left_time, right_time: by k = id: Both(n Int64, seen list of Int64); side outputs odd" in flow_of([])[0].explain()
    after, effects = modify(plan, [md.Replace("p", md.process(More))])
    assert after.node("p").inputs == ("left_time", "right_time")
    assert effects.state["p"].words() == "kept, with the new more"
    with pytest.raises(FlowError, match=r"process 'p': it has two streams, and Alone has on_events alone"):
        modify(plan, [md.Remove("odd_out"), md.Remove("odd"), md.Replace("p", md.process(Alone))])
    with pytest.raises(FlowError, match=r"it is keyed by|it was keyed by k and would be by v"):
        modify(plan, [md.Replace("p", md.process(Both, by="v"))])
    with pytest.raises(FlowError, match=r"Both has on_other_events, for the rows of a second stream"):
        modify(plan, [md.Insert("again", md.process(Both, by="k"), after="left_time")])
    with pytest.raises(FlowError, match=r"remove 'p': .*"):
        modify(plan, [md.Remove("odd_out"), md.Remove("odd"), md.Remove("p")])
    after, _ = modify(plan, [md.Insert("some", md.filter("w > 1"), after="right_time", before="p")])
    assert after.node("p").inputs == ("left_time", "some")
    assert plan_of(Both).digest() == plan_of(Both).digest() != plan_of(More).digest()
    assert differences(plan.record(), plan_of(Both).record()) == []


def test_a_second_stream_is_added_to_what_a_processor_knows() -> None:
    flow = md.Flow("p")
    flow.source("left", scripts([])[0]).key_by("k").process(Alone, name="p").sink("main", md.memory())
    after, effects = modify(flow.plan(), [Become(plan_of(WithOther, timed=(False, False)))])
    assert effects.state["p"].kind == "kept"
    assert after.node("p").inputs == ("left", "right")
    told = differences(flow.plan().record(), after.record())
    assert any("'p'" in line and "right" in line for line in told), told


def test_a_second_stream_comes_to_a_processor_that_has_run_and_its_state_goes_on(tmp_path: Path) -> None:
    main, (left, right) = md.memory(), scripts([(((1, 1, 0),), ((1, 1, 0), (2, 1, 0)))] * 2)
    alone, both = md.Flow("p"), md.Flow("p")
    alone.source("left", left).key_by("k").process(Alone, name="p").sink("main", main)
    first, second = both.source("left", left), both.source("right", right)
    first.key_by("k").connect(second.key_by("id")).process(WithOther, name="p").sink("main", main)
    assert Local(alone, tmp_path).step()
    Local(both, tmp_path, apply=True).run()
    assert sorted(read(main, "k", "n")) == [(1, 1), (1, 2), (1, 12), (1, 22), (2, 10), (2, 20)]


class WithOther(Alone):
    def on_other_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        state.n += 10 * len(rows)
        yield (state.n,)


def test_timers_do_not_change_their_clock_where_the_second_stream_has_no_time() -> None:
    flow = md.Flow("p")
    timed = type("Timed", (Alone,), {"on_timer": EpochListener.on_timer})
    flow.source("left", scripts([])[0]).watermark("ts", name="left_time").key_by("k").process(timed, name="p").sink("main", md.memory())
    both = type("Timed", (WithOther,), {"on_timer": EpochListener.on_timer})
    with pytest.raises(FlowError, match=r"process 'p' cannot go on with its state: its time was ts of left_time.* and would be none"):
        modify(flow.plan(), [Become(plan_of(both, timed=(True, False)))])


def test_it_is_replaced_while_the_flow_runs_and_its_state_goes_on_or_is_dropped(tmp_path: Path) -> None:
    flow, main, _ = flow_of([(((1, 1, n),), ((1, 0, n),)) for n in range(8)], WithOther)
    local = Local(flow, tmp_path, ahead=False)
    assert local.step()

    class Slower(Alone):
        def on_other_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any: ...

    local.propose(md.Replace("p", md.process(Slower)))
    assert local.step()
    assert local.step()
    local.propose(md.Replace("p", md.process(WithOther)), drop=["p"])
    assert local.step()
    assert [n for (n,) in read(main, "n")] == [1, 11, 12, 13, 1, 11]

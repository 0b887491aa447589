"""Changes of operators that follow event time, and what is kept across them, against runs that had the new operator from the beginning."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from tests.local import Local, Script, constants

import meander as md
from meander.coordinate.watermarks import low
from meander.errors import FlowError
from meander.plan.change.layout import Layout, compare, is_wider
from meander.plan.change.modify import Insert, Remove, Replace, StateRules, modify
from meander.plan.schemas import show_type
from meander.plan.windows import FOREVER
from meander.state import compaction as compaction_module
from meander.state.hashing import hash_series

SECOND = 1_000_000
COLUMNS: dict[str, Any] = {"k": pl.Int64(), "v": pl.Int64(), "ts": pl.Datetime("us")}
Operator = Callable[[Any], Any]


def epochs_of(*epochs: list[tuple[int, int, float]]) -> Any:
    return tuple(((0, tuple((k, v, int(at * SECOND)) for k, v, at in rows)),) for rows in epochs)


MANY = epochs_of(
    [(k, k, 1.0 + k / 10) for k in range(12)],
    [(k, 10, 2.0) for k in range(0, 12, 3)],
    [(k, 100, 12.0) for k in range(4)],
    [(k, 1000, 17.0) for k in range(2, 9)],
    [(3, 7, 40.0)],
    [(3, 7, 41.0)],
)


class Timers(md.Processor):
    """Everything that a processor can remember, and a timer far away and a near one."""

    output: ClassVar[Any] = {"n": "int64", "vs": pl.List(pl.Int64), "names": "int64", "what": "string"}
    n = md.value("int64", default=0, ttl="30s")
    vs = md.list_of("int64")
    names = md.map_of("int64", "int64")

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        state.n += len(rows)
        for row in rows:
            state.vs.append(row.v)
            state.names[row.v] = row.k
        ctx.set_timer("8s")
        ctx.set_timer("35s")
        yield (state.n, list(state.vs), len(state.names), "rows")

    def on_timer(self, key: Any, time: Any, state: Any, ctx: Any) -> Any:
        yield (state.n, list(state.vs), len(state.names), f"timer of {key}")


class Batches(md.Processor):
    output: ClassVar[Any] = {"n": "int64"}
    n = md.value("int64", default=0)

    def on_batch(self, rows: pl.DataFrame, state: pl.DataFrame, ctx: Any) -> Any:
        new = rows.group_by("k", maintain_order=True).agg(pl.len().cast(pl.Int64).alias("m"))
        added = state.join(new, on="k", maintain_order="left").select("k", (pl.col("n") + pl.col("m")).alias("n"))
        times = rows.group_by("k", maintain_order=True).agg(pl.col("ts").max().alias("time") + pl.duration(seconds=8))
        return added, added, times

    def on_timers(self, due: pl.DataFrame, state: pl.DataFrame, ctx: Any) -> Any:
        return state.select("k", -pl.col("n")), None


def totals(*more: Any) -> tuple[Any, ...]:
    return (md.count().alias("n"), md.sum("v").alias("s"), md.collect("v").alias("all"), md.count_distinct("v").alias("kinds"), *more)


WIDER: dict[str, Operator] = {
    "aggregate": lambda s: s.key_by("k").aggregate(*totals(), name="op"),
    "aggregate of the key": lambda s: s.key_by("v").aggregate(md.collect("k").alias("all"), md.max("k").alias("most"), name="op"),
    "window": lambda s: s.key_by("k").window(md.tumbling("10s")).aggregate(*totals(), name="op"),
    "window with updates": lambda s: s.key_by("k").window(md.tumbling("10s")).aggregate(*totals(), emit="update", name="op"),
    "window with lateness": lambda s: s.key_by("k").window(md.tumbling("10s")).aggregate(*totals(), lateness="10s", name="op"),
    "sliding": lambda s: s.key_by("k").window(md.sliding("15s", "5s")).aggregate(*totals(), name="op"),
    "sliding with updates": lambda s: s.key_by("k").window(md.sliding("15s", "5s")).aggregate(*totals(), emit="update", name="op"),
    "window of the key": lambda s: s.window(md.tumbling("10s")).aggregate(md.collect("k").alias("all"), md.min("k").alias("m"), name="op"),
    "two windows": lambda s: (
        s.key_by("k").window(md.tumbling("5s")).aggregate(md.sum("v").alias("v"), name="op")
        .key_by("k").window(md.tumbling("10s")).aggregate(md.sum("v").alias("s"), name="behind")
    ),
    "processor": lambda s: s.key_by("k").process(Timers, name="op"),
    "processor of batches": lambda s: s.key_by("k").process(Batches, name="op"),
}  # fmt: skip
SAME_INPUT: dict[str, Operator] = {
    "session": lambda s: s.key_by("k").window(md.session("5s")).aggregate(*totals(), name="op"),
    "deduplicate": lambda s: s.deduplicate("k", name="op"),
    "deduplicate for a time": lambda s: s.deduplicate("k", ttl="10s", name="op"),
    "latest": lambda s: s.key_by("k").latest(order="ts", name="op"),
    "top": lambda s: s.key_by("k").top(2, by="v", name="op"),
    "top of a window": lambda s: s.key_by("k").window(md.tumbling("10s")).top(2, by="v", name="op"),
    "join": lambda s: s.join(s.select("k", "ts", pl.col("v").alias("w")), on="k", within="10s", name="op"),
    "join with the latest": lambda s: s.join_latest(s.select("k", pl.col("v").alias("w")), on="k", name="op"),
}


def flow_of(operator: Operator, out: Any, dtype: Any = None, epochs: Any = MANY, grace: str = "5s") -> md.Flow:
    flow = md.Flow("f")
    source = flow.source("a", Script(COLUMNS, epochs))
    if dtype is not None:
        source = source.with_columns(pl.col("k").cast(dtype), name="cast")
    operator(source.watermark("ts", grace=grace, name="time")).sink("out", out)
    return flow


def cast_to(dtype: Any) -> Replace:
    return Replace("cast", md.with_columns(pl.col("k").cast(dtype)))


def shown(out: Any, types: pl.Schema | None = None) -> dict[int, list[tuple[Any, ...]]]:
    frames = {epoch: frame if types is None else frame.cast(dict(types)) for epoch, frame in out.epochs().items()}
    return {epoch: sorted(frame.rows(), key=repr) for epoch, frame in frames.items() if frame.height}


@pytest.mark.many
@pytest.mark.parametrize("after", [1, 3])
@pytest.mark.parametrize("name", WIDER)
def test_a_wider_key_goes_on_with_all_that_an_operator_has_stored(tmp_path: Path, name: str, after: int) -> None:
    out, wanted = md.memory(), md.memory()
    Local(flow_of(WIDER[name], wanted, pl.Int64), tmp_path / "wanted", 3).run(flush=True)
    local = Local(flow_of(WIDER[name], out, pl.Int32), tmp_path / "changed", 3, small=False)
    with constants(FEWEST=(compaction_module, 2)):  # segments of both plans are merged, too
        for _ in range(after):
            local.step()
        trial = local.propose(cast_to(pl.Int64))
        local.step()
        assert trial.done.result(0).effects["state"]["op"].startswith("kept")
        local = Local(flow_of(WIDER[name], out, pl.Int32), tmp_path / "changed", 3, small=False)
        local.run(flush=True)
    plan = local.modifier.plan
    assert shown(out, plan.schema("out")) == shown(wanted)
    changed = trial.done.result(0).epoch
    assert {frame.schema == plan.schema("out") for epoch, frame in out.epochs().items() if epoch >= changed} == {True}


def test_what_becomes_wider_is_said(tmp_path: Path) -> None:
    local = Local(flow_of(WIDER["window"], md.memory(), pl.Int32), tmp_path, 1)
    assert local.modifier.dry_run([cast_to(pl.Int64)], StateRules()).state["op"].words() == "kept, wider in k"


@pytest.mark.parametrize("name", SAME_INPUT)
def test_whoever_keeps_whole_rows_refuses_a_wider_key(tmp_path: Path, name: str) -> None:
    local = Local(flow_of(SAME_INPUT[name], md.memory(), pl.Int32), tmp_path, 1)
    with pytest.raises(FlowError, match="cannot go on with its state"):
        local.propose(cast_to(pl.Int64))


VALUES: dict[str, Callable[[], Any]] = {
    "sum": lambda: md.sum("x"), "min": lambda: md.min("x"), "max": lambda: md.max("x"), "mean": lambda: md.mean("x"),
    "std": lambda: md.std("x"), "var": lambda: md.var("x"), "first": lambda: md.first("x"), "last": lambda: md.last("x"),
    "collect": lambda: md.collect("x"), "count_distinct": lambda: md.count_distinct("x"), "top_k": lambda: md.top_k("x", 2),
    "quantile": lambda: md.quantile("x", 0.5), "count": lambda: md.count("x"),
}  # fmt: skip
WIDER_VALUES = [(pl.Int32, pl.Int64), (pl.UInt8, pl.Int16), (pl.Int32, pl.Float64), (pl.Float32, pl.Float64), (pl.Int64, pl.Float64)]


def valued(out: Any, dtype: Any, window: str, *aggs: str) -> md.Flow:
    kinds: dict[str, Any] = {"tumbling": md.tumbling("10s"), "sliding": md.sliding("10s", "5s")}
    flow, made = md.Flow("f"), [VALUES[agg]().alias(agg) for agg in aggs]
    rows = flow.source("a", Script(COLUMNS, MANY)).with_columns((pl.col("v") % 100).cast(dtype).alias("x"), name="cast")
    keyed = rows.watermark("ts", grace="5s", name="time").key_by("k")
    op = keyed.aggregate(*made, name="op") if window == "none" else keyed.window(kinds[window]).aggregate(*made, emit="update", name="op")
    op.sink("out", out)
    return flow


@pytest.mark.many
@pytest.mark.parametrize("window", ["none", "tumbling", "sliding"])
@pytest.mark.parametrize(("before", "after"), WIDER_VALUES)
def test_wider_values_that_are_kept_are_what_they_would_have_been_from_the_beginning(
    tmp_path: Path, before: Any, after: Any, window: str
) -> None:
    out, wanted, kept = md.memory(), md.memory(), []
    change = Replace("cast", md.with_columns((pl.col("v") % 100).cast(after).alias("x")))
    for agg in VALUES:
        with contextlib.suppress(FlowError):
            modify(valued(out, before, window, agg).plan(), [change])
            kept.append(agg)
    assert {"count", "quantile"} <= set(kept)
    local = Local(valued(out, before, window, *kept), tmp_path / "changed", 2)
    local.step()
    with constants(FEWEST=(compaction_module, 2)):
        local.propose(change)
        local.step()
        local = Local(valued(out, before, window, *kept), tmp_path / "changed", 2)
        local.run(flush=True)
    Local(valued(wanted, after, window, *kept), tmp_path / "wanted", 2).run(flush=True)
    assert shown(out, local.modifier.plan.schema("out")) == shown(wanted)


TYPES: dict[str, Any] = {
    "int8": pl.Int8(), "int16": pl.Int16(), "int32": pl.Int32(), "int64": pl.Int64(), "uint8": pl.UInt8(), "uint32": pl.UInt32(),
    "uint64": pl.UInt64(), "float32": pl.Float32(), "float64": pl.Float64(), "string": pl.String(), "boolean": pl.Boolean(),
    "date": pl.Date(), "ms": pl.Datetime("ms"), "us": pl.Datetime("us"), "zoned": pl.Datetime("us", "UTC"), "duration": pl.Duration("us"),
}  # fmt: skip


@pytest.mark.parametrize("before", TYPES)
def test_a_key_of_another_type_is_kept_only_where_every_key_has_the_hash_that_it_had(before: str) -> None:
    was = TYPES[before]
    for now in TYPES.values():
        problems = compare(Layout("window", {"k": was}), Layout("window", {"k": now})).problems
        if was == now:
            assert not problems
        elif was.is_integer() and now.is_integer() and is_wider(was, now):
            assert not problems
            edges = pl.Series([pl.select(was.min()).item(), pl.select(was.max()).item(), 0, None], dtype=was)
            assert (hash_series(edges) == hash_series(edges.cast(now))).all()
        else:  # a float that was cut off is another number now, and other types are other keys
            assert problems == (f"key column 'k' is {show_type(was)} and would be {show_type(now)}",)


def test_a_wider_key_and_a_new_aggregate_with_a_value_for_open_windows_come_together(tmp_path: Path) -> None:
    def windowed(*more: Any) -> Operator:
        return lambda s: s.key_by("k").window(md.tumbling("10s")).aggregate(md.count().alias("n"), *more, name="op")

    out = md.memory()
    local = Local(flow_of(windowed(), out, pl.Int32), tmp_path, 2)
    local.step()
    more = md.aggregate(md.count().alias("n"), md.sum("v").alias("s"))
    trial = local.propose(cast_to(pl.Int64), Replace("op", more), backfill={"op": {"s": 5000}})
    local.step()
    assert trial.done.result(0).effects["state"]["op"] == "upgraded, with the new s.sum, wider in k"
    local.run(flush=True)
    first = {k: (n, s) for frame in out.epochs().values() for k, start, _, n, s in frame.rows() if start.second == 0 and start.minute == 0}
    assert first == {k: (2, 5010) if k % 3 == 0 else (1, 5000) for k in range(12)}


# -- the time of what stands before an operator ---------------------------------------------------------------------


def two_windows(first: Any) -> Operator:
    return lambda s: (
        s.key_by("k").window(first).aggregate(md.sum("v").alias("n"), name="op")
        .key_by("k").window(md.tumbling("10s")).aggregate(md.sum("n").alias("n"), name="behind")
    )  # fmt: skip


STEPS = epochs_of([(1, 1, 1.0)], [(1, 1, 5.0)], [(1, 1, 16.0)], [(1, 1, 30.0)], [(1, 1, 60.0)], [(1, 1, 61.0)])


def test_a_window_behind_one_that_becomes_a_session_goes_by_the_time_of_sessions(tmp_path: Path) -> None:
    out, wanted = md.memory(), md.memory()
    sessions = Replace("op", md.aggregate(md.sum("v").alias("n"), window=md.session("5s")))
    Local(flow_of(two_windows(md.session("5s")), wanted, epochs=STEPS, grace="0s"), tmp_path / "wanted", 1).run(flush=True)
    local = Local(flow_of(two_windows(md.tumbling("5s")), out, epochs=STEPS, grace="0s"), tmp_path / "changed", 1, ahead=False)
    with pytest.raises(FlowError, match="'behind' cannot go on with its state: its time was window_end -1 of time and would be window_end"):
        local.propose(sessions, drop=["op"])
    local.propose(sessions, drop=["op", "behind"])
    local.run(flush=True)
    assert shown(out) == shown(wanted)
    Local(flow_of(two_windows(md.session("5s")), out, epochs=STEPS, grace="0s"), tmp_path / "changed", 1)  # the edited file goes on


TIMED: dict[str, Operator] = {
    "window": WIDER["window"],
    "two windows": WIDER["two windows"],
    "processor": WIDER["processor"],
    **{name: SAME_INPUT[name] for name in ("session", "deduplicate for a time", "latest", "top of a window")},
    "join": lambda s: s.join(s.select("k", "ts", "at"), on="k", within="10s", name="op"),
    "right join": lambda s: s.join(s.select("k", "ts", "at", pl.col("v").alias("w")), on="k", within="10s", how="right", name="op"),
    "join as of": lambda s: s.join_latest(s.select("k", "ts", "at", pl.col("v").alias("w")), on="k", as_of=True, name="op"),
    "window of a join": lambda s: (
        s.join(s.select("k", "ts", "at", pl.col("v").alias("w")), on="k", within="10s", how="right", name="op")
        .window(md.tumbling("10s")).aggregate(md.count().alias("n"), name="behind")
    ),
}  # fmt: skip


def by_column(operator: Operator, name: str, column: str) -> md.Flow:
    flow = md.Flow("f")
    rows = flow.source("a", Script(COLUMNS, MANY)).with_columns(pl.col("ts").alias("at"), name="more")
    operator(rows.watermark(column, name=name)).sink("out", md.memory())
    return flow


@pytest.mark.parametrize("name", TIMED)
def test_operators_go_by_the_watermark_that_stands_before_them_now(name: str) -> None:
    before, written = by_column(TIMED[name], "time", "ts").plan(), by_column(TIMED[name], "other", "at").plan()
    changes = [Remove("time"), Insert("other", md.watermark("at"), after="more")]
    after, _ = modify(before, changes, StateRules(drop=True))
    assert after.digest() == written.digest()
    with pytest.raises(FlowError, match="cannot go on with its state"):
        modify(before, changes)


@pytest.mark.parametrize("name", [name for name in TIMED if name not in ("processor", "latest")])
def test_a_watermark_that_an_operator_needs_is_not_removed(name: str) -> None:
    with pytest.raises(FlowError, match=r"'op'.* its rows have no event time; write \.watermark"):
        modify(by_column(TIMED[name], "time", "ts").plan(), [Remove("time")], StateRules(drop=True))


# -- windows --------------------------------------------------------------------------------------------------------

AGGREGATES = {"n": md.count().alias("n"), "s": md.sum("v").alias("s"), "all": md.collect("v").alias("all"), "m": md.max("k").alias("m")}


def windowed(keyed: bool, window: Any, aggs: str = "n s all", **options: Any) -> Operator:
    made = tuple(AGGREGATES[name] for name in aggs.split())
    return lambda s: (s.key_by("k") if keyed else s).window(window).aggregate(*made, **options, name="op")


def test_a_sliding_window_without_a_key_does_not_become_a_tumbling_one(tmp_path: Path) -> None:
    tumbling = Replace("op", md.aggregate(*(AGGREGATES[name] for name in ("n", "s", "all")), window=md.tumbling("5s")))
    local = Local(flow_of(windowed(False, md.sliding("10s", "5s")), md.memory()), tmp_path, 1)
    with pytest.raises(FlowError, match=r"sliding\(10s, 5s\) and would be tumbling\(5s\): without a key, .* give drop_state=\['op'\]"):
        local.propose(tumbling)
    keyed = flow_of(windowed(True, md.sliding("10s", "5s")), md.memory()).plan()
    assert modify(keyed, [tumbling])[1].state["op"].kind == "kept"


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("window", [md.tumbling("10s"), md.sliding("10s", "5s")], ids=["tumbling", "sliding"])
def test_open_windows_come_out_also_when_they_are_to_be_given_out_at_every_change(tmp_path: Path, window: Any, edited: bool) -> None:
    out = md.memory()
    few = epochs_of([(1, 1, 1.0), (2, 10, 2.0)], [(1, 100, 3.0)], [(1, 1000, 30.0)], [(1, 1, 31.0)])
    local = Local(flow_of(windowed(True, window, "n s"), out, epochs=few), tmp_path, 2)
    local.step()
    local.propose(Replace("op", md.aggregate(AGGREGATES["n"], AGGREGATES["s"], emit="update")))
    local.step()
    emit = {"emit": "update"} if edited else {}
    Local(flow_of(windowed(True, window, "n s", **emit), out, epochs=few), tmp_path, 2).run(flush=True)
    rows = [row for frame in out.epochs().values() for row in frame.rows()]
    assert [row[3:] for row in rows if row[0] == 2 and row[1] == datetime(1970, 1, 1)] == [(1, 10)]
    assert [row[3:] for row in rows if row[0] == 1 and row[1] == datetime(1970, 1, 1)][-1] == (2, 101)


def test_open_windows_come_out_as_shorter_ones_also_where_they_do_not_change_any_more(tmp_path: Path) -> None:
    out = md.memory()
    few = epochs_of([(1, 1, 1.0), (2, 10, 7.0)], [(1, 100, 8.0)], [(1, 1000, 30.0)], [(1, 1, 31.0)])
    local = Local(flow_of(windowed(True, md.sliding("10s", "5s"), "n s", emit="update"), out, epochs=few), tmp_path, 2)
    local.step()
    trial = local.propose(Replace("op", md.aggregate(AGGREGATES["n"], AGGREGATES["s"], window=md.tumbling("5s"), emit="update")))
    local.run()
    changed = trial.done.result(0).epoch
    rows = [row for epoch, frame in out.epochs().items() if epoch >= changed for row in frame.rows()]
    assert [row[1:] for row in rows if row[0] == 2] == [(datetime(1970, 1, 1, 0, 0, 5), datetime(1970, 1, 1, 0, 0, 10), 1, 10)]


@dataclass(frozen=True)
class Setting:
    """What a window is at some time."""

    panes: int
    """Its size, in steps of five seconds."""
    lateness: int
    emit: str
    more: bool = False
    """Whether it has one aggregate more than it began with."""

    def window(self) -> Any:
        return md.sliding(f"{5 * self.panes}s", "5s") if self.panes > 1 else md.tumbling("5s")

    def aggregates(self) -> list[Any]:
        return [md.count().alias("n"), md.sum("v").alias("s"), *([md.count().alias("since")] if self.more else [])]

    def change(self) -> Replace:
        made = md.aggregate(*self.aggregates(), window=self.window(), emit=self.emit, lateness=f"{self.lateness}s")
        return Replace("op", made)


@dataclass
class Windows:
    """What windows are, row by row and without a store: the oracle."""

    keyed: bool
    setting: Setting
    rows: list[tuple[int | None, int, int, int]] = field(default_factory=list)
    """Key, value, second and epoch of what was not late."""
    since: int = 0
    """The epoch in which there was an aggregate more."""
    untold: set[tuple[int | None, int]] = field(default_factory=set)

    def value(self, key: int | None, start: int) -> tuple[Any, ...]:
        mine = [(v, e) for k, v, at, e in self.rows if k == key and start <= at < start + 5 * self.setting.panes]
        more = (sum(e >= self.since for _, e in mine),) if self.setting.more else ()
        return (len(mine), sum(v for v, _ in mine), *more)

    def epoch(self, number: int, came: list[tuple[int, int, float]], late: float, evict: float) -> tuple[set[Any], set[Any]]:
        """The windows that must come out in an epoch, and those that may: each with its value, and not more."""
        size = 5 * self.setting.panes
        starts: dict[int, list[int]] = {at: [at // 5 * 5 - 5 * back for back in range(self.setting.panes)] for at in range(60)}
        touched = set()
        for k, v, at in came:
            moment, key = int(at), k if self.keyed else None
            if starts[moment][0] + size + self.setting.lateness > late:
                self.rows.append((key, v, moment, number))
                touched |= {(key, start) for start in starts[moment]}
                self.untold = self.untold - {(key, moment // 5)} | ({(key, moment // 5)} if self.setting.emit == "closed" else set())
        closing = {(k, start) for k, _, at, _ in self.rows for start in starts[at] if late < start + size <= evict}
        again = {(k, start) for k, start in touched if start + size > late - self.setting.lateness}
        if self.setting.emit == "closed":
            must = closing | {(k, start) for k, start in again if start + size <= late}
            return must, must
        owed = {(k, start) for k, start in closing if any((k, start // 5 + step) in self.untold for step in range(self.setting.panes))}
        return again | owed, again | closing


@st.composite
def settings_in_order(draw: Any) -> list[Setting]:
    """Windows that each can go on with the state of the one before."""
    drawn = draw(st.lists(st.tuples(st.integers(1, 4), st.sampled_from([0, 3, 20]), st.booleans()), min_size=2, max_size=4))
    sizes, lates, more = zip(*drawn, strict=True)
    falling = zip(sorted(sizes, reverse=True), sorted(lates, reverse=True), strict=True)
    emits = [draw(st.sampled_from(["closed", "update"])) for _ in drawn]
    return [Setting(size, late, emit, has) for (size, late), emit, has in zip(falling, emits, sorted(more), strict=True)]


@st.composite
def rows_in_epochs(draw: Any) -> list[list[tuple[int, int, int]]]:
    """Rows that come more or less in order."""
    drawn = draw(
        st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9), st.integers(-9, 8)), max_size=4), min_size=4, max_size=8)
    )
    return [[(k, v, max(0, 5 * epoch + at)) for k, v, at in rows] for epoch, rows in enumerate(drawn)]


@pytest.mark.many
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    plans=settings_in_order(),
    came=rows_in_epochs(),
    keyed=st.booleans(),
    steps=st.lists(st.integers(1, 2), min_size=3, max_size=3),
    restart=st.booleans(),
    parallelism=st.integers(1, 3),
)
def test_windows_that_are_changed_give_what_their_rows_say(
    plans: list[Setting], came: Any, keyed: bool, steps: list[int], restart: bool, parallelism: int
) -> None:
    if not keyed:  # without a key a sliding window stays one
        plans = [replace(plan, panes=max(2, plan.panes)) if plans[0].panes > 1 else plan for plan in plans]
    out = md.memory()
    began = plans[0]
    options = {"emit": began.emit, "lateness": f"{began.lateness}s"}

    def operator(s: Any) -> Any:
        return (s.key_by("k") if keyed else s).window(began.window()).aggregate(*began.aggregates(), **options, name="op")

    with tempfile.TemporaryDirectory() as folder, constants(FEWEST=(compaction_module, 2)):

        def start() -> Local:
            return Local(flow_of(operator, out, epochs=epochs_of(*came)), Path(folder), parallelism, ahead=False)

        local, oracle, waiting = start(), Windows(keyed, began, since=0 if began.more else 1 << 40), list(came)

        def step(flush: bool = False) -> bool:
            times = local.manifest.times
            late, evict = (low(times, ["time"], 0, which) / SECOND for which in ("late", "mark"))
            if not local.step(flush=flush):
                return False
            epoch = local.manifest.epoch
            must, may = oracle.epoch(epoch, waiting.pop(0) if waiting and not flush else [], late, FOREVER if flush else evict)
            frame = out.epochs().get(epoch, pl.DataFrame())
            given = {(row[0] if keyed else None, int(row[keyed].timestamp())): row[keyed + 2 :] for row in frame.rows()}
            assert len(given) == frame.height
            assert must <= given.keys() <= may
            assert given == {window: oracle.value(*window) for window in given}
            return True

        for plan, before in zip(plans[1:], steps, strict=False):
            for _ in range(before):
                step()
            if plan == oracle.setting or not waiting:
                continue
            event(f"from {oracle.setting.emit} to {plan.emit}")
            trial = local.propose(plan.change())
            oracle.setting, was = plan, oracle.setting
            oracle.since = oracle.since if plan.more == was.more else local.manifest.epoch + 1
            if plan.panes != was.panes:  # as windows of this size nothing was given out
                oracle.untold = {(k, at // 5) for k, _, at, _ in oracle.rows}
            step()
            assert trial.done.result(0).effects["state"]["op"].startswith("kept")
            local = start() if restart else local
        while step():
            pass
        while step(flush=True):
            pass

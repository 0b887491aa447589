"""Processors against a model in plain Python: random rows, timers, times to live, epochs, parallelism, restarts and rescales."""

# ruff: noqa: RUF012

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.local import Local, Script, constants

import meander as md
from meander.clock import SystemClock
from meander.coordinate.routing import rebalance
from meander.plan.windows import NEVER
from meander.state import compaction as compaction_module
from meander.task.physical import compile_plan

COLUMNS = {"k": pl.Int64(), "v": pl.Int64(), "ts": pl.Datetime("us")}
SECOND = 1_000_000
EPOCH = datetime(1970, 1, 1)
LIMITS = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


class Hand(SystemClock):
    """A clock that is set by hand."""

    at = 1_000.0

    def now(self) -> float:
        return self.at


def moment(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


class Machine(md.Processor):
    """Everything at once: v says what a row does."""

    output = {"what": "string", "n": "int64", "at": "timestamp"}
    count = md.value("int64", default=0)
    last = md.value("int64")
    items = md.list_of("int64")
    seen = md.map_of("string", "double")

    def on_events(self, key: int, rows: md.processor.Rows, state: Any, ctx: Any) -> Iterator[Any]:
        for row in rows:
            state.count += 1
            state.last = row.v
            if row.v == 0:
                state.clear()
            elif row.v < 3:
                state.items.append(row.v)
            elif row.v < 5:
                state.seen[f"x{row.v}"] = state.seen.get(f"x{row.v}", 0.0) + 0.5
            elif row.v < 8:
                ctx.set_timer(row.ts + timedelta(seconds=row.v - 6))
            elif row.v == 8:
                ctx.delete_timer(row.ts + timedelta(seconds=1))
            elif row.v == 9:
                ctx.emit(("emitted", state.count, row.ts))
            else:
                raise ValueError("thirteen")
        yield {"what": "rows", "n": state.count + 100 * len(state.items) + 1000 * len(state.seen)}

    def on_timer(self, key: int, time: datetime, state: Any, ctx: Any) -> Any:
        state.count += 10
        if state.count % 2:
            ctx.set_timer("2s")
        return ("timer", state.count, time)


class Model:
    """The same by the definition, epoch by epoch."""

    def __init__(self) -> None:
        self.heard: dict[int, int] = {}
        self.mark = self.late = NEVER
        self.state: dict[int, Any] = {}
        self.timers: dict[int, set[int]] = {}
        self.dead: list[int] = []

    def epoch(self, splits: Any, flush: bool = False) -> list[tuple[Any, ...]]:
        evict = 1 << 62 if flush else self.mark
        out: list[tuple[Any, ...]] = []
        by_key: dict[int, list[Any]] = {}
        for partition, rows in splits:
            for k, v, ts in rows:
                self.heard[partition] = max(self.heard.get(partition, NEVER), ts)
                by_key.setdefault(k, []).append((v, ts))
        for k in sorted({*by_key, *self.timers}):
            count, last, items, seen = self.state.get(k, (0, None, [], {}))
            timers = set(self.timers.get(k, ()))
            for at in sorted(at for at in timers if at <= evict):
                timers.remove(at)
                count += 10
                if count % 2:
                    timers.add(at + 2 * SECOND)
                out.append((k, "timer", count, at))
            self._keep(k, (count, last, items, seen), timers)
            if k not in by_key:
                continue
            items, seen, timers, mine = list(items), dict(seen), set(timers), []
            for v, ts in by_key[k]:
                count, last = count + 1, v
                if v == 0:
                    count, last, items, seen = 0, None, [], {}
                elif v < 3:
                    items.append(v)
                elif v < 5:
                    seen[f"x{v}"] = seen.get(f"x{v}", 0.0) + 0.5
                elif v < 8:
                    timers.add(ts + (v - 6) * SECOND)
                elif v == 8:
                    timers.discard(ts + SECOND)
                elif v == 9:
                    mine.append((k, "emitted", count, ts))
                else:
                    self.dead += [v for v, _ in by_key[k]]
                    break
            else:
                out += [*mine, (k, "rows", count + 100 * len(items) + 1000 * len(seen), None)]
                self._keep(k, (count, last, items, seen), timers)
        self.late = self.mark
        if self.heard:
            self.mark = max(self.mark, min(self.heard.values()))
        return sorted(out, key=str)

    def _keep(self, k: int, state: Any, timers: set[int]) -> None:
        self.state[k], self.timers[k] = state, timers
        if not timers:
            del self.timers[k]


def emitted(table: Any) -> list[tuple[Any, ...]]:
    rows = pl.DataFrame(pl.from_arrow(table))
    found = rows.select("k", "what", "n", pl.col("at").dt.epoch("us")).rows() if rows.height else []
    return sorted(found, key=str)


times = st.integers(0, 40).map(lambda second: second * SECOND)
rows = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9) | st.sampled_from([5, 6, 7, 13]), times), max_size=8).map(tuple)
splits = st.lists(st.tuples(st.integers(0, 1), rows), min_size=1, max_size=3).map(tuple)


@pytest.mark.many
@LIMITS
@given(st.data())
def test_a_processor_equals_the_model_epoch_by_epoch(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    epochs = tuple(data.draw(st.lists(splits, min_size=1, max_size=6)))
    folder = tmp_path_factory.mktemp("processor")
    flow, out = md.Flow("processor"), md.memory()
    flow.source("events", Script(COLUMNS, epochs)).watermark("ts").key_by("k").process(Machine, name="p").sink("out", out)
    model, small = Model(), data.draw(st.booleans())
    expected: list[tuple[Any, ...]] = []
    with constants(FEWEST=(compaction_module, 2)):
        local = Local(flow, folder, data.draw(st.sampled_from([1, 2, 3])), small, ahead=data.draw(st.booleans()))
        for given_splits in epochs:
            assert local.step()
            expected += model.epoch(given_splits)
            if data.draw(st.booleans()):
                local.loop.reroute("p", rebalance(local.loop.routing["p"], data.draw(st.integers(1, 4))))
            if data.draw(st.integers(0, 3)) == 0:  # the driver dies, and another one goes on
                local = Local(flow, folder, 2, small)
        for _ in range(100):  # what is due without input
            if not local.step():
                break
            expected += model.epoch(())
        assert emitted(out.table()) == sorted(expected, key=str)
        assert not any(at <= model.mark for timers in model.timers.values() for at in timers)
        if local.step(flush=True):
            expected += model.epoch((), flush=True)
        assert not local.step(flush=True), "what was set while everything was flushed waits"
    assert emitted(out.table()) == sorted(expected, key=str)
    assert local.manifest.totals.get("dead_letters", 0) == len(model.dead)
    kept = {k: state for k, state in model.state.items() if state != (0, None, [], {})}
    if kept:
        state = pl.DataFrame(pl.from_arrow(md.read_state(folder, "p")))
        shown = {
            row["k"]: (row["count"], row["last"], row["items"], {e["key"]: e["value"] for e in row["seen"]}) for row in state.to_dicts()
        }
        assert {k: v for k, v in shown.items() if v != (0, None, [], {})} == kept


def split(*rows: tuple[int, int, float]) -> Any:
    return ((0, tuple((k, v, int(second * SECOND)) for k, v, second in rows)),)


def run_of(epochs: Any, processor: Any, folder: Path, timed: bool = True, **options: Any) -> tuple[Local, Any]:
    flow, out = md.Flow("p"), md.memory()
    events = flow.source("events", Script(COLUMNS, tuple(epochs)))
    (events.watermark("ts") if timed else events).key_by("k").process(processor, name="p").sink("out", out)
    return Local(flow, folder, **options), out


def frame(out: Any) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(out.table()))


class Counter(md.Processor):
    output = {"n": "int64"}
    n = md.value("int64", default=0)

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        state.n += sum(rows["v"])
        return (state.n,)


class Silent(md.Processor):
    """Gives nothing out in each of the ways there are."""

    output = {"n": "int64"}
    n = md.value("int64", default=0)

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        state.n += len(rows)
        ctx.set_timer("1s")
        return {1: None, 2: (), 3: [], 4: iter(()), 5: [()][:0], 6: {}}[key]

    def on_timer(self, key: Any, time: Any, state: Any, ctx: Any) -> Any:
        return ()


class Touched(md.Processor):
    """Gives out the key alone."""

    output: ClassVar[Any] = {}
    n = md.value("int64", default=0)

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        return () if key == 1 else None


def test_an_empty_tuple_is_no_row(tmp_path: Path) -> None:
    local, out = run_of([split(*((k, 0, 1) for k in range(1, 7))), split((7 - 6, 0, 9))], Silent, tmp_path)
    local.run(flush=True)
    assert frame(out).rows() == [(6, None)], "an empty dict is a row of nulls"
    assert not list((tmp_path / "dead_letters").glob("*")), "and no mistake"


def test_where_a_row_has_nothing_but_the_key_an_empty_tuple_is_one(tmp_path: Path) -> None:
    local, out = run_of([split((1, 0, 1), (2, 0, 1))], Touched, tmp_path)
    local.run()
    assert frame(out).rows() == [(1,)]


class BatchCounter(md.Processor):
    output = {"n": "int64"}
    n = md.value("int64", default=0)

    def on_batch(self, rows: pl.DataFrame, state: pl.DataFrame, ctx: Any) -> Any:
        added = rows.group_by("k", maintain_order=True).agg(pl.col("v").sum())
        new = state.join(added, on="k", how="left", nulls_equal=True, maintain_order="left").select("k", pl.col("n") + pl.col("v"))
        return new, new


@pytest.mark.parametrize("processor", [Counter, BatchCounter])
def test_both_forms_count_alike_and_write_only_what_has_changed(tmp_path: Path, processor: Any) -> None:
    local, out = run_of([split((1, 2, 1), (2, 3, 1)), split((1, 5, 2), (2, 0, 2)), split((1, -7, 3))], processor, tmp_path)
    local.step()
    local.step()
    assert local.manifest.tables["p"].segments[-1].rows == 1, "key 2 has not changed"
    local.run()
    assert sorted(frame(out).rows()) == [(1, 0), (1, 2), (1, 7), (2, 3), (2, 3)]
    assert pl.DataFrame(pl.from_arrow(md.read_state(tmp_path, "p"))).rows() == [(2, 3)], "what has its default takes no place"


class Alarm(md.Processor):
    """Processing time."""

    output = {"what": "string", "now": "timestamp"}
    n = md.value("int64", default=0)

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> None:
        ctx.set_timer("10s", clock="processing")

    def on_timer(self, key: Any, time: datetime, state: Any, ctx: Any) -> Any:
        state.n += 1
        if state.n < 3:
            ctx.set_timer("1h")
        return ("alarm", ctx.now)


def test_timers_by_the_clock_fire_without_input_in_time_and_once(tmp_path: Path) -> None:
    clock = Hand()
    local, out = run_of([split((1, 1, 1), (2, 1, 1))], Alarm, tmp_path, timed=False, clock=clock)
    local.run()
    clock.at += 9
    local.run()
    assert frame(out).height == 0
    clock.at += 2
    local = Local(local.flow, tmp_path, 3, clock=clock)
    local.run()
    assert frame(out).get_column("now").to_list() == [moment(1_011)] * 2
    local.run()
    for hours in range(1, 4):
        clock.at += 3_601
        local.run(flush=True)
        assert frame(out).height == 2 + 2 * min(2, hours)
    assert not [name for name in local.stored if "." in name], "no wake-up is left"


def test_an_idle_flow_with_timers_runs_no_epochs(tmp_path: Path) -> None:
    clock = Hand()
    local, _ = run_of([split((1, 1, 1))], Alarm, tmp_path, timed=False, clock=clock)
    local.run()
    assert local.manifest.epoch == 1
    for _ in range(5):
        clock.at += 1
        local.run()
    assert local.manifest.epoch <= 2


class Forgetful(md.Processor):
    output = {"a": "int64", "b": "int64"}
    a = md.value("int64", default=0, ttl="10s")
    b = md.value("int64", default=0, ttl="1m")

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        state.a += 1
        state.b += 1
        return (state.a, state.b)


def test_a_variable_is_forgotten_after_its_time_and_its_row_goes(tmp_path: Path) -> None:
    seconds = [0, 5, 16, 30, 31, 89, 90, 200, 201, 202]
    epochs = [split((2, 1, second), *([(1, 1, second)] if second in (0, 5, 30, 201) else [])) for second in seconds]
    local, out = run_of(epochs, Forgetful, tmp_path)
    for _ in epochs:
        local.step()
    mine = frame(out).filter(pl.col("k") == 1).rows()
    assert mine == [(1, 1, 1), (1, 2, 2), (1, 1, 3), (1, 1, 1)]
    local.run(flush=True)
    assert 1 in pl.DataFrame(pl.from_arrow(md.read_state(tmp_path, "p"))).get_column("k").to_list(), "a flush makes nobody forget"


def test_a_key_without_rows_is_forgotten_without_being_asked_for(tmp_path: Path) -> None:
    epochs = [split((1, 1, 0)), *(split((2, 1, second)) for second in range(5, 400, 20))]
    local, _ = run_of(epochs, Forgetful, tmp_path)
    local.run()
    assert pl.DataFrame(pl.from_arrow(md.read_state(tmp_path, "p"))).get_column("k").to_list() == [2]


class Picky(md.Processor):
    output = {"n": "int64"}
    n = md.value("int64", default=0)

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        for row in rows:
            state.n += 1
            yield (state.n,)
            if row.v == 13:
                raise ValueError("thirteen")
            if row.v == 14:
                state.n = "text"
            if row.v == 15:
                yield ("text",)
            if row.v == 16:
                yield {"m": 1}


class PickyBatch(BatchCounter):
    def on_batch(self, rows: pl.DataFrame, state: pl.DataFrame, ctx: Any) -> Any:
        if (rows.get_column("v") > 12).any():
            raise ValueError("thirteen")
        return super().on_batch(rows, state, ctx)


@pytest.mark.many
@pytest.mark.parametrize("bad", [13, 14, 15, 16])
@pytest.mark.parametrize("processor", [Picky, PickyBatch])
def test_a_key_that_fails_becomes_dead_letters_and_keeps_its_state(tmp_path: Path, processor: Any, bad: int) -> None:
    epochs = [split((1, 1, 1), (2, 1, 1), (3, 1, 1)), split((1, 1, 2), (2, 1, 2), (2, bad, 2), (3, 1, 2)), split((2, 1, 3))]
    local, out = run_of(epochs, processor, tmp_path / "lenient")
    local.run()
    assert sorted(frame(out).rows()) == [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)]
    letters = pl.concat([pl.read_parquet(path) for path in (tmp_path / "lenient/dead_letters").glob("*.parquet")])
    assert letters.get_column("operator").to_list() == ["p", "p"]
    assert letters.get_column("position").to_list() == ["p key 2 row 1", "p key 2 row 2"]
    local, _ = run_of(epochs, processor, tmp_path / "strict", strict=True)
    with pytest.raises(md.BadInput, match="operator 'p', epoch 2, key 2"):
        local.run()


class Unfit(md.Processor):
    """Its timers give what is no row, and 9 is a row that fails."""

    output = {"n": "int64"}
    n = md.value("int64", default=0)

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> None:
        if rows[0].v == 9:
            raise ValueError("9")
        state.n += 1
        ctx.set_timer("3s")

    def on_timer(self, key: Any, time: Any, state: Any, ctx: Any) -> Any:
        state.n += 100
        return ("no number",)


def test_what_timers_give_that_does_not_fit_is_told_once_and_so_are_rows(tmp_path: Path) -> None:
    local, out = run_of([split((1, 1, 0.0), (2, 1, 0.0)), split((3, 1, 5.0)), split((1, 9, 5.0))], Unfit, tmp_path)
    local.run()
    assert out.table().num_rows == 0
    assert local.manifest.totals["dead_letters"] == 3
    letters = pl.concat([pl.read_parquet(one) for one in (tmp_path / "dead_letters").glob("*.parquet")])
    assert sorted(letters.select("position", "reason").rows()) == [
        ("p key 1 row 1", "TypeError: it gave n = 'no number', which is no Int64"),
        ("p key 1 row 1", "ValueError: 9"),
        ("p key 2 row 1", "TypeError: it gave n = 'no number', which is no Int64"),
    ]
    assert letters.get_column("content").str.contains("timer").sum() == 2
    assert md.read_state(tmp_path, "p").sort_by("k").to_pylist() == [{"k": k, "n": 1} for k in (1, 2, 3)]


class Ending(md.Processor):
    """Gives out when something ended, or nothing."""

    output = {"until": "timestamp"}

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        return (rows[0].ts + timedelta(seconds=1),) if rows[0].v else ()


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_window_follows_a_processor_whose_rows_have_a_time(tmp_path: Path, parallelism: int) -> None:
    flow, out = md.Flow("p"), md.memory()
    events = flow.source(
        "events", Script(COLUMNS, (split((1, 1, 0.0), (2, 1, 3.0), (3, 0, 4.0)), split((1, 1, 12.0)), split((2, 1, 25.0))))
    )
    ended = events.key_by("k").process(Ending, name="ended").watermark("until", name="time")
    ended.window(md.tumbling("10s")).aggregate(md.count().alias("n"), name="counts").sink("out", out)
    local = Local(flow, tmp_path, parallelism)
    local.run()
    assert frame(out).select(pl.col("window_start").dt.epoch("s"), "n").rows() == [(0, 2), (10, 1)]
    local.run(flush=True)
    assert frame(out).get_column("n").to_list() == [2, 1, 1]


class BatchAlarm(md.Processor):
    output = {"at": "timestamp", "n": "int64"}
    n = md.value("int64", default=0)

    def on_batch(self, rows: pl.DataFrame, state: pl.DataFrame, ctx: Any) -> Any:
        last = rows.group_by("k", maintain_order=True).agg(pl.col("ts").max() + pl.duration(seconds=5))
        return None, state.with_columns(pl.col("n") + 1), last.rename({"ts": "time"})

    def on_timers(self, due: pl.DataFrame, state: pl.DataFrame, ctx: Any) -> Any:
        out = due.join(state, on="k", how="left", maintain_order="left").select("k", pl.col("time").alias("at"), "n")
        return out, state.with_columns(pl.lit(0, pl.Int64).alias("n"))


@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_timers_of_whole_batches(tmp_path: Path, parallelism: int) -> None:
    epochs = [split((1, 1, 1), (2, 1, 2)), split((1, 1, 3)), split((3, 1, 20)), split((3, 1, 21))]
    local, out = run_of(epochs, BatchAlarm, tmp_path, parallelism=parallelism)
    local.run()
    assert sorted(frame(out).rows()) == [(1, moment(6), 2), (1, moment(8), 0), (2, moment(7), 1)] or sorted(frame(out).rows()) == [
        (1, moment(6), 2),
        (1, moment(8), 2),
        (2, moment(7), 1),
    ]
    local.run(flush=True)
    assert frame(out).height == 5
    assert not [name for name in local.stored if "." in name]


@pytest.mark.parametrize("second", [0, 1])
def test_timers_far_and_near_fire_in_order_and_leave_nothing(tmp_path: Path, second: int) -> None:
    class Far(md.Processor):
        output = {"at": "timestamp"}

        def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> None:
            for row in rows:
                if row.v:
                    ctx.set_timer(row.ts + timedelta(seconds=row.v))

        def on_timer(self, key: Any, time: datetime, state: Any, ctx: Any) -> Any:
            return (time,)

    delays = [1, 31, 32, 33, 1_023, 1_024, 1_500, 40_000, 2_000_000, 100_000_000]
    marks = [0.5, 31, 31.5, 32, 500, 1_024, 1_100, 3_000, 39_999, 40_001, 1_999_999.5, 2_000_001, 100_000_001, 100_000_002]
    first = split(*((k, delay, second) for k in range(3) for delay in delays))
    local, out = run_of([first, *(split((9, 0, mark + second)) for mark in marks)], Far, tmp_path, parallelism=2)
    while local.step():
        pass
    got = frame(out)
    for k in range(3):
        assert got.filter(pl.col("k") == k).get_column("at").to_list() == [moment(second + delay) for delay in delays]
    assert not [name for name in local.stored if "." in name], "no wake-up is left"
    assert md.read_state(tmp_path, "p").num_rows == 0


def test_code_counts_in_the_plan(tmp_path: Path) -> None:
    def digest(processor: Any) -> str:
        flow = md.Flow("p")
        flow.source("e", Script(COLUMNS, ())).key_by("k").process(processor, name="p").sink("out", md.memory())
        return compile_plan(flow.plan()).digest

    class Other(Counter):
        pass

    class Parameter(Counter):
        def __init__(self, by: int) -> None:
            self.by = by

    assert digest(Counter) == digest(Counter())
    assert len({digest(Counter), digest(Other), digest(BatchCounter), digest(Parameter(1)), digest(Parameter(2))}) == 5


def test_what_cannot_be_is_refused_where_it_is_written() -> None:
    def made(**members: Any) -> Any:
        return type("P", (md.Processor,), {"output": {"n": "int64"}, **members})

    stream = md.Flow("p").source("e", Script(COLUMNS, ()))
    call: Any = lambda self, *_: None  # noqa: E731
    for processor, message in [
        (made(), "has neither"),
        (made(on_events=call, on_batch=call), "on_events and on_batch"),
        (made(on_events=call, on_timers=call), "not to on_timers"),
        (made(on_events=call, output=None), "say what leaves it"),
        (made(on_events=call, output={"n": "number"}), "unknown type 'number'"),
        (made(on_events=call, output={"k": "int64"}), "which is a key"),
        (made(on_events=call, k=md.value("int64")), "has the name of a key"),
        (42, "no processor"),
    ]:
        with pytest.raises(md.FlowError, match=message):
            stream.key_by("k").process(processor)
    with pytest.raises(md.FlowError, match="no key"):
        stream.process(Counter)
    with pytest.raises(md.FlowError, match="default 'x' is no Int64"):
        md.value("int64", default="x")
    with pytest.raises(md.FlowError, match="simple type"):
        md.list_of(pl.List(pl.Int64))
    with pytest.raises(md.FlowError, match="ttl"):
        md.value("int64", ttl="soon")


class Lottery(md.Processor):
    """Chance and ids, by events and by timers."""

    output = {"what": "string", "number": "double", "id": "string"}

    def on_events(self, key: int, rows: md.processor.Rows, state: Any, ctx: Any) -> Iterator[Any]:
        ctx.set_timer("1s")
        for _ in rows:
            yield "row", ctx.random.random(), str(ctx.uuid())

    def on_timer(self, key: int, time: datetime, state: Any, ctx: Any) -> Any:
        return "timer", ctx.random.random(), str(ctx.uuid())


def test_chance_is_the_same_at_any_parallelism_and_another_for_every_key_and_epoch(tmp_path: Path) -> None:
    script = tuple(((0, tuple((key, 0, (epoch * 3) * SECOND) for key in (1, 2, 2, 3))),) for epoch in range(3))
    drawn = []
    for slots in (1, 2, 4):
        out, flow = md.memory(), md.Flow("lottery")
        flow.source("events", Script(COLUMNS, script)).watermark("ts").key_by("k").process(Lottery, name="lottery").sink("out", out)
        Local(flow, tmp_path / str(slots), slots).run(flush=True)
        drawn.append(sorted(out.frame().rows()))
    assert drawn[0] == drawn[1] == drawn[2]
    assert len(drawn[0]) > 12
    assert len({row[2] for row in drawn[0]}) == len({row[3] for row in drawn[0]}) == len(drawn[0]), "none is drawn twice"

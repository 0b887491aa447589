"""Timers by the clock: an epoch without input comes when one is due, and not before the next one is."""

# ruff: noqa: RUF012

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.local import Local, Script, constants
from tests.task.test_processor import COLUMNS, Hand

import meander as md
from meander.coordinate.routing import rebalance
from meander.state import compaction as compaction_module
from meander.state.segment import LATEST, SOONEST, Segment, encode_segment


class Alarm(md.Processor):
    """v says in how many seconds to ring."""

    output = {"at": "timestamp"}
    n = md.value("int64", default=0)

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        for v in rows["v"]:
            ctx.set_timer(timedelta(seconds=v), clock="processing")

    def on_timer(self, key: Any, time: Any, state: Any, ctx: Any) -> Any:
        yield (time,)


class AlarmBatch(md.Processor):
    output = {"at": "timestamp"}
    n = md.value("int64", default=0)

    def on_batch(self, rows: pl.DataFrame, state: pl.DataFrame, ctx: Any) -> Any:
        at = pl.lit(ctx.now).cast(pl.Datetime("us")) + pl.duration(seconds="v")
        return None, None, rows.select("k", at.alias("time"), pl.lit("processing").alias("clock"))

    def on_timers(self, due: pl.DataFrame, state: pl.DataFrame, ctx: Any) -> Any:
        return due.select("k", pl.col("time").alias("at")), None


def a_flow(epochs: Any, processor: Any, timed: bool) -> tuple[md.Flow, Any]:
    flow, out = md.Flow("p"), md.memory()
    events = flow.source("events", Script(COLUMNS, tuple(epochs)))
    (events.watermark("ts") if timed else events).key_by("k").process(processor, name="p").sink("out", out)
    return flow, out


def rung(out: Any) -> list[tuple[int, int]]:
    rows = pl.DataFrame(pl.from_arrow(out.table()))
    return sorted(rows.select("k", pl.col("at").dt.epoch("us") // 1_000_000).rows()) if rows.height else []


@pytest.mark.parametrize("processor", [Alarm, AlarmBatch])
@pytest.mark.parametrize("timed", [False, True])
def test_a_near_and_a_far_timer_take_an_epoch_each(tmp_path: Path, processor: Any, timed: bool) -> None:
    clock = Hand()
    rows = ((0, tuple((k, v, 0) for k in range(1, 9) for v in (5, 100))),)
    flow, out = a_flow([rows], processor, timed)
    local = Local(flow, tmp_path, clock=clock)
    assert local.step()
    epochs = []
    for second in range(1, 200):
        clock.at = 1000.0 + second
        while local.step():
            epochs.append(second)
    assert epochs == [5, 100]
    assert rung(out) == sorted((k, 1000 + v) for k in range(1, 9) for v in (5, 100))


def test_a_timer_by_event_time_that_is_not_due_takes_no_epoch_behind_each_with_input(tmp_path: Path) -> None:
    class Later(md.Processor):
        output = {"at": "timestamp"}
        n = md.value("int64", default=0)

        def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
            for v in rows["v"]:
                if v:
                    ctx.set_timer(timedelta(seconds=v))

        def on_timer(self, key: Any, time: Any, state: Any, ctx: Any) -> Any:
            yield (time,)

    first = ((0, ((1, 5, 0), (1, 1000, 0))),)
    rest = [((0, ((2, 0, second * 1_000_000),)),) for second in range(1, 30)]
    flow, out = a_flow([first, *rest], Later, True)
    local = Local(flow, tmp_path, ahead=False)
    cursor = local.loop.input.cursors["events"]
    whole, without = cursor.script, []
    for number in range(1, 31):
        cursor.script = Script(COLUMNS, whole.epochs[:number])
        assert local.step()
        while local.step():
            without.append(number)
    assert without == [6], "second 5 has come with the sixth epoch"
    assert rung(out) == [(1, 5)]


@pytest.mark.many
@pytest.mark.parametrize("seed", range(12))
def test_epochs_come_when_timers_are_due_and_only_then(tmp_path: Path, seed: int) -> None:
    """Random delays and cuts, merges, restarts and rescales."""
    rng, clock = random.Random(seed), Hand()
    epochs = [
        ((0, tuple((rng.randrange(6), rng.choice((1, 2, 3, 7, 20, 60, 150)), 0) for _ in range(rng.randrange(1, 8)))),) for _ in range(25)
    ]
    flow, out = a_flow(epochs, rng.choice((Alarm, AlarmBatch)), rng.random() < 0.5)
    expected: set[tuple[int, int]] = set()
    pending = list(epochs)
    with constants(FEWEST=(compaction_module, 2)):
        local = Local(flow, tmp_path, rng.choice((1, 2, 3)), rng.random() < 0.5, clock=clock, ahead=False)
        while pending or any(at > clock.at for _, at in expected):
            clock.at += 1
            due = any(clock.at - 1 < at <= clock.at for _, at in expected)
            if pending and rng.random() < 0.3:
                ((_, rows),) = pending.pop(0)
                assert local.step()
                expected |= {(k, int(clock.at) + v) for k, v, _ in rows}
            else:
                cursor = local.loop.input.cursors["events"]
                whole, cursor.script = cursor.script, Script(COLUMNS, cursor.script.epochs[: cursor.next])
                assert local.step() == due, clock.at
                assert not local.step()
                cursor.script = whole
            assert rung(out) == sorted(one for one in expected if one[1] <= clock.at)
            if rng.random() < 0.1:
                local.loop.reroute("p", rebalance(local.loop.routing["p"], rng.randrange(1, 5)))
            if rng.random() < 0.1:
                local = Local(flow, tmp_path, rng.choice((1, 2)), clock=clock, ahead=False)


def test_the_next_end_in_a_segment_with_chapters() -> None:
    times = random.Random(1).choices(range(100_000), k=30_000)
    frame = pl.DataFrame({"__hash": pl.Series(sorted(range(30_000)), dtype=pl.UInt64), "at": times})
    segment = Segment("s", encode_segment(frame, time="at"))
    assert len(segment.chapters) > 3
    ordered = sorted(times)
    for after in (SOONEST, -1, 0, ordered[100], 5_000, 33_333, 99_000, ordered[-2], ordered[-1], 200_000):
        assert segment.next_end("at", after) == next((at for at in ordered if at > after), LATEST)

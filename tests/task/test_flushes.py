"""What a flush closes is closed for good: rows for it are late and counted, and nothing else changes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.local import Local, Script, ScriptCursor, constants

import meander as md
from meander.coordinate.routing import rebalance
from meander.state import compaction as compaction_module

COLUMNS = {"k": pl.Int64(), "v": pl.Int64(), "ts": pl.Datetime("us")}
SECOND = 1_000_000
LIMITS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


def epoch(*rows: tuple[int, int, float]) -> Any:
    """One split: key, value and time in seconds."""
    return ((0, tuple((k, v, int(ts * SECOND)) for k, v, ts in rows)),)


def flow_of(script: Any, window: Any, **how: Any) -> tuple[md.Flow, Any, Any]:
    flow, out, late = md.Flow("f"), md.memory(), md.memory()
    stream = flow.source("a", Script(COLUMNS, script)).watermark("ts", grace="5s")
    sums = stream.key_by("k").window(window).aggregate(md.count().alias("n"), md.sum("v").alias("v"), name="w", **how)
    sums.sink("out", out)
    sums.late().sink("late", late)
    return flow, out, late


def values(out: Any) -> list[tuple[int, int]]:
    """Counts and sums, in the order in which they came out."""
    return [row for frame in out.epochs().values() for row in frame.select("n", "v").rows()]


def flush(local: Local) -> int:
    return sum(local.flush())


WINDOWS = {"tumbling": md.tumbling("10s"), "sliding": md.sliding("10s", "5s"), "session": md.session("10s")}


@pytest.mark.parametrize("window", WINDOWS)
def test_windows_that_give_updates_go_on_after_a_flush(tmp_path: Path, window: str) -> None:
    flow, out, _ = flow_of((epoch((1, 1, 1), (1, 10, 2)), epoch((1, 100, 3))), WINDOWS[window], emit="update")
    local = Local(flow, tmp_path, 1, ahead=False)
    local.step()
    assert flush(local) == 0, "there is nothing that has not come out"
    local.run(flush=True)
    assert set(values(out)) == {(2, 11), (3, 111)}
    assert "late_rows" not in local.manifest.totals


@pytest.mark.parametrize("lateness", ["0s", "20s"])
@pytest.mark.parametrize("window", WINDOWS)
def test_a_row_for_what_a_flush_has_closed_is_late_and_the_result_stays(tmp_path: Path, window: str, lateness: str) -> None:
    script = (epoch((1, 1, 1), (1, 10, 2)), epoch((1, 100, 3)), epoch((1, 1000, 31)))
    flow, out, late = flow_of(script, WINDOWS[window], lateness=lateness)
    local = Local(flow, tmp_path, 1, ahead=False)
    local.step()
    assert flush(local) == 1
    published = values(out)
    assert set(published) == {(2, 11)}
    local = Local(flow, tmp_path, 2)  # and after a restart, too
    local.run(flush=True)
    assert [v for frame in late.epochs().values() for v in frame.get_column("v")] == [100]
    assert local.manifest.totals["late_rows"] == 1
    assert set(values(out)[len(published) :]) == {(1, 1000)}, "later windows open and close as ever"


def test_a_late_row_within_the_lateness_of_a_window_that_had_closed_before_the_flush_is_late_after_it(tmp_path: Path) -> None:
    script = (epoch((1, 1, 1)), epoch((1, 2, 16)), epoch((1, 100, 3)))
    flow, out, _ = flow_of(script, md.tumbling("10s"), lateness="20s")
    local = Local(flow, tmp_path, 1, ahead=False)
    local.step()
    local.step()
    assert flush(local) == 1
    local.run(flush=True)
    assert values(out) == [(1, 1), (1, 2)]
    assert local.manifest.totals["late_rows"] == 1


def test_a_flush_leaves_the_time_of_other_streams_alone(tmp_path: Path) -> None:
    flow, far, near = md.Flow("f"), md.memory(), md.memory()
    scripts = {"a": (epoch((1, 1, 1000)), ((0, ()),)), "b": (epoch((1, 1, 11)), epoch((1, 1, 50), (1, 1, 60)))}
    for (name, script), out in zip(scripts.items(), (far, near), strict=True):
        stream = flow.source(name, Script(COLUMNS, script)).watermark("ts", grace="5s", name=f"{name}_time")
        stream.key_by("k").window(md.tumbling("10s")).aggregate(md.count().alias("n"), name=f"{name}_sums").sink(f"{name}_out", out)
    local = Local(flow, tmp_path, 1, ahead=False)
    local.step()
    assert flush(local) == 1
    local.run(flush=True)
    assert [frame.get_column("window_start").dt.epoch("s").to_list() for frame in near.epochs().values()] == [[10], [50, 60]]
    assert "late_rows" not in local.manifest.totals


def test_a_flush_without_anything_open_is_no_epoch(tmp_path: Path) -> None:
    flow, _, _ = flow_of((epoch((1, 1, 1)),), md.tumbling("10s"))
    local = Local(flow, tmp_path, 1, ahead=False)
    assert flush(local) == 0
    local.step()
    assert flush(local) == 1
    assert flush(local) == 0
    assert flush(Local(flow, tmp_path, 2)) == 0


class Doorstep(ScriptCursor):
    """The second epoch's input comes while somebody asks whether there is a backlog: beside an epoch that runs."""

    came = False

    def choose(self, now: float, everything: bool) -> Any:
        return super().choose(now, everything) if self.next == 0 or self.came else None

    def backlog(self, now: float) -> bool:
        self.came = self.came or self.next == 1
        return self.next == 1


@dataclass(frozen=True)
class Arriving(Script):
    def cursor(self, offset: dict[str, Any], seen: set[str], throttle: float = 1.0) -> Doorstep:
        return Doorstep(self, offset.get("next", 0))


@pytest.mark.parametrize("ahead", [False, True])
def test_input_that_comes_while_a_flush_runs_is_late_like_any_that_comes_after_it(tmp_path: Path, ahead: bool) -> None:
    flow, out = md.Flow("f"), md.memory()
    script = Arriving(COLUMNS, (epoch((1, 1, 1), (1, 10, 2)), epoch((1, 100, 3), (1, 1000, 11))))
    stream = flow.source("a", script).watermark("ts", grace="5s")
    sums = stream.key_by("k").window(md.tumbling("10s")).aggregate(md.count().alias("n"), md.sum("v").alias("v"), name="w")
    sums.sink("out", out)
    local = Local(flow, tmp_path, 1, small=False, ahead=False)
    local.step()
    local.loop.decisions.work_ahead = ahead
    assert local.step(flush=True)
    (cursor,) = local.loop.input.cursors.values()
    cursor.came = True
    local.run(flush=True)
    assert values(out) == [(2, 11), (1, 1000)]
    assert local.manifest.totals["late_rows"] == 1


times = st.integers(0, 60).map(float)
rows = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9), times), max_size=5)


@pytest.mark.many
@LIMITS
@given(st.data())
def test_every_row_is_counted_once_or_late_through_windows_over_windows_and_flushes(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """First windows, then windows over them, where these are final; a second branch follows the same watermark, with windows of its own."""
    script = tuple(epoch(*found) for found in data.draw(st.lists(rows, min_size=1, max_size=6)))
    lateness = data.draw(st.sampled_from(["0s", "7s"]))
    flow, outs = md.Flow("f"), {name: md.memory() for name in ("first", "second", "other", "late", "later", "latest")}
    stream = flow.source("a", Script(COLUMNS, script)).watermark("ts", grace="3s")
    first = stream.key_by("k").window(md.tumbling("5s")).aggregate(md.sum("v").alias("v"), name="w", lateness=lateness)
    final = first if lateness == "0s" else stream
    second = final.window(md.tumbling("20s")).aggregate(md.sum("v").alias("v"), md.count().alias("n"), name="x")
    other = stream.key_by("k").window(md.session("4s")).aggregate(md.sum("v").alias("v"), name="y")
    for name, at in zip(outs, (first, second, other, first.late(), second.late(), other.late()), strict=True):
        at.sink(name, outs[name])
    folder = tmp_path_factory.mktemp("flushes")
    with constants(FEWEST=(compaction_module, 2)):
        local = Local(flow, folder, data.draw(st.sampled_from([1, 2])), data.draw(st.booleans()), ahead=data.draw(st.booleans()))
        while local.step():
            if data.draw(st.booleans()):
                for _ in local.flush():
                    pass
            if data.draw(st.integers(0, 3)) == 0:
                local = Local(flow, folder, 2)
            if data.draw(st.integers(0, 3)) == 0:
                local.loop.reroute("w", rebalance(local.loop.routing["w"], data.draw(st.integers(1, 3))))
        local.run(flush=True)
    everything = {
        name: pl.concat([pl.DataFrame({"v": []}, {"v": pl.Int64()}), *(f.select("v") for f in out.epochs().values())])
        for name, out in outs.items()
    }
    total = {name: frame.get_column("v").sum() for name, frame in everything.items()}
    given_values = sum(v for splits in script for _, found in splits for _, v, _ in found)
    assert total["other"] + total["latest"] == given_values
    if lateness == "0s":
        assert total["first"] + total["late"] == given_values
        assert total["second"] + total["later"] == total["first"]
        seen = Counter(row for frame in outs["first"].epochs().values() for row in frame.select("k", "window_start").rows())
        assert set(seen.values()) <= {1}, "a window that has closed comes out once"
    else:
        newest: dict[Any, int] = {}
        for frame in outs["first"].epochs().values():
            newest.update(((k, start), v) for k, start, v in frame.select("k", "window_start", "v").rows())
        assert sum(newest.values()) + total["late"] == given_values
    assert not local.stored

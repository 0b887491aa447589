"""Sources that are silent as a whole: after their idle time they hold unions, joins and rows without a partner back no longer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
from tests.local import Local, Script

import meander as md
from meander.clock import FakeClock

COLUMNS: dict[str, Any] = {"k": pl.Int64(), "v": pl.Int64(), "ts": pl.Datetime("us")}
SECOND = 1_000_000


def script(*epochs: list[float]) -> Script:
    """Rows at these seconds, epoch by epoch, with their second as ``v``."""
    return Script(COLUMNS, tuple(((0, tuple((1, int(at), int(at * SECOND)) for at in rows)),) for rows in epochs))


def streams(flow: md.Flow, one: Script, other: Script, idle: str | None = "60s") -> tuple[Any, Any]:
    return tuple(flow.source(name, of).watermark("ts", idle=idle, name=f"time_{name}") for name, of in (("one", one), ("other", other)))  # type: ignore[return-value]


def windows(one: Script, other: Script, idle: str | None = "60s") -> tuple[md.Flow, Any, Any]:
    """Windows over a union of two sources."""
    flow, out, late = md.Flow("f"), md.memory(), md.memory()
    left, right = streams(flow, one, other, idle)
    counted = left.union(right).window(md.tumbling("10s")).aggregate(md.count().alias("n"), name="w")
    counted.sink("out", out)
    counted.late().sink("late", late)
    return flow, out, late


def counts(out: Any) -> list[int]:
    return list(pl.DataFrame(pl.from_arrow(out.table())).get_column("n")) if out.table().num_rows else []


def test_a_source_that_goes_silent_holds_a_union_back_for_its_idle_time(tmp_path: Path) -> None:
    flow, out, _ = windows(script([1, 2], [30]), script([3]))
    clock = FakeClock(1_000.0)
    local = Local(flow, tmp_path, clock=clock)
    local.run()
    clock.sleep(59.0)
    local.run()
    assert counts(out) == []
    clock.sleep(1.0)
    local.run()
    assert counts(out) == [3], "without input: who looks finds that something is due"
    assert not local.step(), "and nothing else is due because of it"


def test_without_an_idle_time_a_silent_source_holds_a_union_back(tmp_path: Path) -> None:
    flow, out, _ = windows(script([1, 2], [30]), script([3]), idle=None)
    clock = FakeClock(1_000.0)
    local = Local(flow, tmp_path, clock=clock)
    local.run()
    clock.sleep(10_000.0)
    local.run()
    assert counts(out) == []


def test_a_source_that_has_never_said_anything_is_silent_since_the_first_epoch(tmp_path: Path) -> None:
    flow, out, _ = windows(script([1, 2], [30]), script())
    clock = FakeClock(1_000.0)
    local = Local(flow, tmp_path, clock=clock)
    local.run()
    assert counts(out) == []
    clock.sleep(60.0)
    local.run()
    assert counts(out) == [2]


def test_a_source_that_wakes_up_is_late_where_the_others_were_not_held_back_and_takes_nothing_back(tmp_path: Path) -> None:
    flow, out, late = windows(script([1], [30], [31]), script([3], [4, 35], [36]))
    clock = FakeClock(1_000.0)
    local = Local(flow, tmp_path, clock=clock)
    sources = local.loop.input.cursors
    other, sources["other"].script = sources["other"].script, script([3])
    local.run()
    clock.sleep(60.0)
    local.run()
    assert counts(out) == [2]
    sources["other"].script = other
    local.run()
    assert counts(out) == [2], "the mark stays where it was"
    assert local.manifest.totals["late_rows"] == 1
    assert late.table().to_pylist()[0]["v"] == 4
    local.run(flush=True)
    assert sorted(counts(out)) == [2, 4]


def test_rows_that_find_no_partner_come_out_when_the_other_side_is_silent(tmp_path: Path) -> None:
    flow, out = md.Flow("f"), md.memory()
    left, right = streams(flow, script([1], [30], [50]), script([2]))
    left.join(right.select("k", "ts", pl.col("v").alias("w")), on="k", within="5s", how="left", name="j").sink("out", out)
    clock = FakeClock(1_000.0)
    local = Local(flow, tmp_path, clock=clock)
    local.run()
    assert [(row["v"], row["w"]) for row in out.table().to_pylist()] == [(1, 2)]
    clock.sleep(60.0)
    local.run()
    assert [(row["v"], row["w"]) for row in out.table().to_pylist()] == [(1, 2), (30, None)], "up to where the left has come"


def test_a_silent_side_holds_an_as_of_join_back_no_longer(tmp_path: Path) -> None:
    flow, out = md.Flow("f"), md.memory()
    left, right = streams(flow, script([5], [30]), script([2]))
    left.join_latest(right.select("k", "ts", pl.col("v").alias("w")), on="k", as_of=True, name="j").sink("out", out)
    clock = FakeClock(1_000.0)
    local = Local(flow, tmp_path, clock=clock)
    local.run()
    assert out.table().num_rows == 0
    clock.sleep(60.0)
    local.run()
    assert [(row["v"], row["w"]) for row in out.table().to_pylist()] == [(5, 2)]


def test_the_time_in_which_no_driver_ran_is_no_silence(tmp_path: Path) -> None:
    flow, out, late = windows(script([1], [30]), script([3], [4]))
    clock = FakeClock(1_000.0)
    local = Local(flow, tmp_path, clock=clock, ahead=False)
    sources = local.loop.input.cursors
    sources["other"].script = script([3])
    local.run()
    clock.sleep(3_600.0)
    local = Local(flow, tmp_path, clock=clock, ahead=False)
    sources = local.loop.input.cursors
    other, sources["other"].script = sources["other"].script, script([3])
    local.run()
    assert counts(out) == [], "its rows may have come meanwhile, and it is asked for them only now"
    sources["other"].script = other
    local.run()
    assert late.table().num_rows == 0
    clock.sleep(60.0)
    local.run()
    assert counts(out) == [3]


def test_replicas_find_a_source_silent_by_the_clock_of_who_decides(tmp_path: Path) -> None:
    """One that adopts the decision has another idea of the hour, and comes to the same."""
    clocks = FakeClock(1_000.0, seed=1), FakeClock(996.0, seed=2)
    flow, out = md.Flow("f"), tmp_path / "out"
    left, right = streams(flow, script([1, 2], [30]), script([3]))
    left.union(right).window(md.tumbling("10s")).aggregate(md.count().alias("n"), name="w").sink("out", md.parquet(out))
    locals_ = [Local(flow, tmp_path / "state", clock=clock, ahead=False, replica=name) for name, clock in zip("ab", clocks, strict=True)]
    for _ in range(3):
        for local in locals_:
            local.step()
    assert not list(out.glob("*.parquet"))
    for clock in clocks:
        clock.sleep(60.0)
    for _ in range(3):
        for local in locals_:
            local.step()
    assert pl.read_parquet(out).get_column("n").to_list() == [3]
    assert locals_[0].manifest.times == locals_[1].manifest.times

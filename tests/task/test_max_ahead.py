"""Rows whose time is too far ahead of the clock: dead letters, which do not move the watermark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.local import Local, Script

import meander as md
from meander.clock import FakeClock
from meander.errors import BadInput
from meander.plan.change.modify import Replace

COLUMNS: dict[str, Any] = {"k": pl.Int64(), "v": pl.Int64(), "ts": pl.Datetime("us")}
SECOND = 1_000_000
NOON = 43_200.0
FAR = 4_000_000_000


def at(*moments: float) -> Any:
    """An epoch with one row at each of these seconds."""
    return ((0, tuple((int(moment) % 5, 1, int(moment * SECOND)) for moment in moments)),)


def flow_of(epochs: Any, max_ahead: str | None, unit: str = "us") -> tuple[md.Flow, Any]:
    flow, out = md.Flow("ahead"), md.memory()
    rows = flow.source("events", Script(COLUMNS, epochs)).with_columns(pl.col("ts").cast(pl.Datetime(unit)), name="cast")  # type: ignore[arg-type]
    events = rows.watermark("ts", max_ahead=max_ahead, name="time")
    events.window(md.tumbling("10s")).aggregate(md.count().alias("n"), name="w").sink("out", out)
    return flow, out


def letters(folder: Path) -> list[tuple[str, str]]:
    found = [pl.read_parquet(path) for path in sorted((folder / "dead_letters").glob("*.parquet"))]
    return pl.concat(found).select("operator", "reason").rows() if found else []


EPOCHS = (at(NOON - 30, NOON - 29), at(FAR, NOON - 28), at(NOON - 27), at(NOON - 1))


@pytest.mark.many
@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_a_row_that_is_far_ahead_is_a_dead_letter_and_makes_no_other_late(tmp_path: Path, small: bool, parallelism: int, unit: str) -> None:
    flow, out = flow_of(EPOCHS, "1h", unit)
    local = Local(flow, tmp_path, parallelism, small, clock=FakeClock(NOON))
    local.run(flush=True)
    assert sorted(row["n"] for row in out.table().to_pylist()) == [1, 4]
    assert letters(tmp_path) == [("time", "the event time ts is more than 1h ahead of the clock")]
    assert "late_rows" not in local.manifest.totals
    assert local.manifest.times["time"]["mark"] == int((NOON - 1) * SECOND)


def test_without_a_limit_the_row_is_believed(tmp_path: Path) -> None:
    flow, _ = flow_of(EPOCHS, None)
    local = Local(flow, tmp_path, clock=FakeClock(NOON), ahead=False)
    local.run(flush=True)
    assert local.manifest.totals["late_rows"] == 1
    assert local.manifest.times["time"]["mark"] == FAR * SECOND


@pytest.mark.parametrize(("ahead", "refused"), [(3_600.0, 0), (3_601.0, 1)])
def test_up_to_the_limit_a_row_may_be_ahead(tmp_path: Path, ahead: float, refused: int) -> None:
    flow, _ = flow_of((at(NOON + ahead),), "1h")
    Local(flow, tmp_path, clock=FakeClock(NOON)).run()
    assert len(letters(tmp_path)) == refused


def test_input_of_long_ago_is_never_ahead(tmp_path: Path) -> None:
    flow, _ = flow_of((at(1, 2), at(50_000, 3)), "1h")
    Local(flow, tmp_path, clock=FakeClock(FAR)).run(flush=True)
    assert letters(tmp_path) == []


def test_an_epoch_that_runs_again_after_a_restart_refuses_the_same_rows(tmp_path: Path) -> None:
    """It goes by the decision's time: a replica that computes the epoch much later finds the same."""
    first, second = FakeClock(NOON, seed=1), FakeClock(NOON, seed=2)
    flow, _ = flow_of(EPOCHS, "1h")
    local = Local(flow, tmp_path, clock=first, ahead=False, replica="a")
    late = Local(flow, tmp_path, clock=second, ahead=False, replica="b")
    decision = local.loop.decisions._agreed(local.loop.decisions.from_input(1, everything=True))
    assert decision is not None
    for clock in (first, second):
        clock.sleep(FAR)
    late.step()
    assert late.manifest.now == NOON
    assert late.manifest.times["time"]["mark"] == int((NOON - 29) * SECOND)


def test_a_strict_flow_stops_at_a_row_that_is_far_ahead(tmp_path: Path) -> None:
    flow, _ = flow_of(EPOCHS, "1h")
    with pytest.raises(BadInput, match=r"operator 'time', epoch 2, .* is more than 1h ahead of the clock"):
        Local(flow, tmp_path, clock=FakeClock(NOON), strict=True).run()


def test_a_limit_can_come_while_the_flow_runs_also_with_an_epoch_that_has_such_rows(tmp_path: Path) -> None:
    flow, _ = flow_of(EPOCHS, None)
    local = Local(flow, tmp_path, clock=FakeClock(NOON), ahead=False)
    assert local.step()
    trial = local.propose(Replace("time", md.watermark("ts", max_ahead="1h")))
    local.run(flush=True)
    assert trial.done.exception() is None
    assert len(letters(tmp_path)) == 1
    assert "late_rows" not in local.manifest.totals


def test_a_limit_is_part_of_the_plan_and_its_absence_changes_no_digest() -> None:
    plain, limited = (flow_of((), limit)[0].plan() for limit in (None, "1h"))
    assert plain.node("time").op.canonical() == "ts 0 None"
    assert plain.digest() != limited.digest()
    assert limited.node("time").op.describe() == "ts, grace 0ms, at most 1h ahead"


@pytest.mark.parametrize("moment", [1_800_000_000_000, 9_000_000_000_000])
def test_a_row_of_a_year_that_python_does_not_have_is_a_dead_letter_like_any_other(tmp_path: Path, moment: int) -> None:
    """Such as where a number of milliseconds was taken for one of seconds."""
    flow, out = flow_of((at(NOON - 30), at(moment), at(NOON - 1)), "1h")
    Local(flow, tmp_path, clock=FakeClock(NOON)).run(flush=True)
    assert sorted(row["n"] for row in out.table().to_pylist()) == [1, 1]
    assert letters(tmp_path) == [("time", "the event time ts is more than 1h ahead of the clock")]

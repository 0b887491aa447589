"""Rescaling on real Spark, while events flow: nothing is lost, doubled or computed otherwise, and it holds after a restart."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.drivers import write_input
from tests.oracle import check_totals, decisions

import meander as md

Start = Callable[..., Any]


def totals_flow(tmp_path: Path) -> md.Flow:
    flow = md.Flow("totals")
    events = flow.source("events", md.files(tmp_path / "in", max_files_per_epoch=1))
    totals = events.key_by("key").aggregate(
        md.count().alias("n"),
        md.sum("value").alias("total"),
        md.count_distinct("value").alias("different"),
        md.collect("value").alias("values"),
        name="totals",
    )
    totals.sink("out", md.parquet(tmp_path / "out"))
    return flow


def slots_by_epoch(store: Path) -> list[int]:
    return [max(entry["routing"]["totals"]) + 1 for entry in decisions(store)]


def state(tmp_path: Path) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(md.read_state(tmp_path / "state", "totals")))


@pytest.mark.parametrize("small", [pytest.param(True, marks=pytest.mark.slow), False], ids=["small epochs", "with the exchange"])
def test_a_flow_rescaled_while_it_runs_publishes_what_it_would_have_anyway(tmp_path: Path, spark: Any, small: bool) -> None:
    folder = write_input(tmp_path / "in", files=40, rows=500, keys=100)
    with totals_flow(tmp_path).start(tmp_path / "state", spark=spark, parallelism=2, small_epochs=small, retain_epochs=1000) as run:
        changes = []
        for slots in (4, 1, 3, 8, 2):
            changes.append(run.rescale("totals", slots))
            assert run.status()["operators"]["totals"]["parallelism"] == slots
            time.sleep(0.2)
        deadline = time.monotonic() + 60
        while run.status()["rows_in"] < 40 * 500 and time.monotonic() < deadline:
            time.sleep(0.05)
    check_totals(tmp_path / "state", folder, tmp_path / "out", state(tmp_path))
    seen = slots_by_epoch(tmp_path / "state")
    for before, change in zip([2, 4, 1, 3, 8], changes, strict=True):
        assert (change.before, change.moved > 0) == (before, True)
        if change.epoch <= len(seen):
            assert seen[change.epoch - 1] == change.after, "in force from the epoch that was promised"
    assert len({change.after for change in changes} & set(seen)) >= 3, "it was changed while events flowed, not after them"


def test_what_was_rescaled_stays_so_when_the_flow_is_started_as_before(tmp_path: Path, spark: Any) -> None:
    write_input(tmp_path / "in", files=3, rows=200, keys=50)
    with totals_flow(tmp_path).start(tmp_path / "state", spark=spark, trigger=None, parallelism=2) as run:
        run.rescale("totals", 3)
        run.process_available()
    with totals_flow(tmp_path).start(tmp_path / "state", spark=spark, trigger=None, parallelism=2) as run:
        assert run.status()["operators"]["totals"]["parallelism"] == 3
    with totals_flow(tmp_path).start(tmp_path / "state", spark=spark, trigger=None, parallelism=4) as run:
        assert run.status()["operators"]["totals"]["parallelism"] == 4


def test_a_change_that_cannot_be_is_refused_with_what_can(tmp_path: Path, spark: Any) -> None:
    write_input(tmp_path / "in", files=1, rows=10, keys=5)
    with totals_flow(tmp_path).start(tmp_path / "state", spark=spark, trigger=None) as run:
        with pytest.raises(md.ConfigError, match="no stateful operator 'total' to rescale; there are: totals"):
            run.rescale("total", 2)
        with pytest.raises(md.ConfigError, match="from 1 to 128"):
            run.rescale("totals", 0)
        with pytest.raises(md.ConfigError, match="strategy 'fast': there are eager, lazy, prefetch, hybrid"):
            run.rescale("totals", 2, strategy="fast")
        with pytest.raises(md.ConfigError, match="there is no executor '9'"):
            run.evacuate("9")
        run.process_available()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("changes", [20, pytest.param(50, marks=pytest.mark.long)])
def test_many_rescalings_evacuations_and_killed_executors_in_one_run_change_nothing(changes: int, tmp_path: Path, child: Start) -> None:
    folder = write_input(tmp_path / "in", files=500, rows=300, keys=100)
    request = {"store": str(tmp_path / "state"), "in": str(folder), "out": str(tmp_path / "out"), "lists": False, "changes": changes}
    code, answer = child(**request, master="local-cluster[3,1,1024]", parallelism=2).finish(600)
    assert code == 0, answer
    check_totals(tmp_path / "state", folder, tmp_path / "out", state(tmp_path))
    assert len(answer["changes"]) == changes, answer
    assert answer["trouble"] == "None"

"""Drivers killed with SIGKILL at every step of an epoch, one after the other on one store; then one that runs to the end.

Each chain of crashes must end with output and state equal to the fold of the decisions in the log, every file taken once.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.crashing import EPOCH_STEPS, crash_chain
from tests.drivers import write_input
from tests.oracle import check_totals

import meander as md

Start = Callable[..., Any]


@pytest.mark.slow
def test_a_driver_killed_around_commit_and_publication_leaves_nothing_lost_or_doubled(tmp_path: Path, child: Start) -> None:
    crash_chain(tmp_path, child, EPOCH_STEPS)


@pytest.mark.slow
def test_a_driver_killed_around_a_small_epoch_leaves_nothing_lost_or_doubled(tmp_path: Path, child: Start) -> None:
    """Before and after its commit alone: every step is in ``tests/epochs/test_killed_drivers.py``, without Spark."""
    crash_chain(tmp_path, child, EPOCH_STEPS[1:3], small=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, 3))])
def test_drivers_killed_at_random_moments(tmp_path: Path, child: Start, seed: int) -> None:
    """Six kills per seed, on one store, whatever the driver is doing; then the rest of the input."""
    moments = random.Random(seed)
    folder = write_input(tmp_path / "in", files=60, rows=20_000, keys=5000, seed=seed)
    paths = {"store": str(tmp_path / "state"), "in": str(folder), "out": str(tmp_path / "out")}
    request = {**paths, "parallelism": 2 + seed % 3, "lists": False}
    for _ in range(6):
        victim = child(**request)
        victim.wait_started()
        time.sleep(moments.uniform(0.0, 4.0))
        victim.kill()
    code, answer = child(**request).finish()
    assert code == 0, answer
    state = pl.DataFrame(pl.from_arrow(md.read_state(tmp_path / "state", "totals")))
    check_totals(tmp_path / "state", folder, tmp_path / "out", state)


@pytest.mark.slow
def test_a_second_start_on_a_live_store_is_refused_and_touches_nothing(tmp_path: Path, child: Start) -> None:
    folder = write_input(tmp_path / "in", files=2, rows=100, keys=10)
    request = {"store": str(tmp_path / "state"), "in": str(folder), "out": str(tmp_path / "out"), "trigger": 0.2}
    first = child(**request)
    first.wait_started()
    time.sleep(5)
    first.process.send_signal(signal.SIGSTOP)
    before = _listing(tmp_path)
    code, answer = child(**request).finish()
    assert (code, answer["error"]) == (3, "Busy")
    assert f"process {first.process.pid}" in answer["message"]
    assert _listing(tmp_path) == before
    first.kill()
    request["trigger"] = None
    code, answer = child(**request).finish()  # a restart after kill -9 is not delayed
    assert code == 0, answer


@pytest.mark.slow
def test_a_stopped_driver_that_was_replaced_changes_nothing_when_it_goes_on(tmp_path: Path, child: Start) -> None:
    folder = write_input(tmp_path / "in", files=40, rows=2000, keys=300)
    request = {"store": str(tmp_path / "state"), "in": str(folder), "out": str(tmp_path / "out")}
    zombie = child(**request, trigger=0.1)
    zombie.wait_started()
    time.sleep(4)
    zombie.process.send_signal(signal.SIGSTOP)
    code, answer = child(**request, takeover=True).finish()
    assert code == 0, answer
    before = _listing(tmp_path / "out")
    write_input(tmp_path / "in", files=42, rows=2000, keys=300)  # something for the zombie to work on
    zombie.process.send_signal(signal.SIGCONT)
    code, answer = zombie.finish()
    assert (code, answer["error"]) == (3, "Fenced")
    assert _listing(tmp_path / "out") == before
    code, answer = child(**request).finish()
    assert code == 0, answer
    state = pl.DataFrame(pl.from_arrow(md.read_state(tmp_path / "state", "totals")))
    check_totals(tmp_path / "state", folder, tmp_path / "out", state)


def _listing(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(p.relative_to(folder)), p.stat().st_size) for p in folder.rglob("*") if p.is_file() and "/.compact" not in str(p))

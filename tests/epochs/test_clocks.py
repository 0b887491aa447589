"""Replicas whose clocks differ: one that is ahead does not take everybody's time with it."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from tests.local import Local, Script

import meander as md
from meander.clock import FakeClock
from meander.replicate.membership import AHEAD

COLUMNS = {"k": pl.Int64()}
NOON = 43_200.0


def replicas(folder: Path, **clocks: float) -> dict[str, Local]:
    """Replicas by name, each with a clock that is so far ahead; all have seen each other."""
    script = Script(COLUMNS, tuple(((0, ((1,),)),) for _ in range(6)))
    found = {}
    for name, ahead in clocks.items():
        flow = md.Flow("f")
        flow.source("a", script).key_by("k").aggregate(md.count(), name="n").sink("out", md.parquet(folder / "out"))
        found[name] = Local(flow, folder / "state", 1, ahead=False, replica=name, clock=FakeClock(NOON + ahead, seed=len(found)))
    meet(found)
    return found


def meet(found: dict[str, Local]) -> None:
    for local in found.values():
        local.cohort.beat()
    for local in found.values():
        local.cohort.look()


@pytest.mark.parametrize("others", [{"b": 0.0}, {"b": 0.0, "c": 1.0}, {"b": 0.0, "c": 7200.0}])
def test_a_clock_that_is_ahead_of_the_others_does_not_move_their_time(
    tmp_path: Path, others: dict[str, float], caplog: pytest.LogCaptureFixture
) -> None:
    found = replicas(tmp_path, a=3600.0, **others)
    assert found["a"].step()
    if others.get("c", 0.0) > 3600.0:
        assert found["a"].manifest.now == NOON + 3600.0, "it is in the middle"
        return
    assert NOON <= found["a"].manifest.now <= NOON + AHEAD
    assert "ahead of the others'" in caplog.text
    assert found["b"].step()
    assert found["b"].manifest.now <= NOON + AHEAD


def test_clocks_that_differ_by_little_are_taken_as_they_are_and_time_never_goes_back(tmp_path: Path) -> None:
    found = replicas(tmp_path, a=2.0, b=0.0)
    assert found["a"].step()
    assert found["a"].manifest.now == NOON + 2.0
    assert found["b"].step()
    assert found["b"].manifest.now == NOON + 2.0


def test_a_replica_says_that_an_epoch_was_decided_far_ahead_of_its_clock(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = replicas(tmp_path, a=0.0, b=0.0)
    found["b"].cohort.mind_clock(NOON + AHEAD)
    assert not caplog.text
    found["b"].cohort.mind_clock(NOON + 3600.0)
    found["b"].cohort.mind_clock(NOON + 3600.0)
    assert caplog.text.count("3600 s ahead of the clock of replica 'b'") == 1

"""Executors asked for and let go, against a cluster manager that does what the test says."""

from __future__ import annotations

import logging
import time

import pytest

from meander.clock import FakeClock
from meander.epochs.crew import Crew
from meander.epochs.placement import Executor, Placement


class Cluster:
    """Gives executors when the test says so; lets one go unless it is busy."""

    def __init__(self, *executors: str) -> None:
        self.there = list(executors)
        self.busy: set[str] = set()
        self.away = False
        self.calls: list[str] = []

    def request(self, total: int) -> bool:
        self.calls.append(f"total {total}")
        return not self.away

    def release(self, executor: str) -> bool:
        self.calls.append(f"release {executor}")
        if executor in self.busy:
            return False
        self.there.remove(executor)
        return True


class Flow:
    def __init__(self, *executors: str, slots: int = 1) -> None:
        self.cluster, self.clock, self.number, self.slots = Cluster(*executors), FakeClock(), 0, slots
        self.placement = Placement(lambda: {name: Executor(name) for name in self.cluster.there}, self.clock)
        self.placement.introduced(executors)
        self.crew = Crew(self.cluster, self.placement, 1, self.clock)
        self.epoch()

    def epoch(self) -> None:
        self.clock.sleep(1.0)
        self.number += 1
        self.placement.pin({1: self.slots})
        self.crew.tend(self.number)
        self.settle()

    def settle(self) -> None:
        """Calls are made in another thread."""
        deadline = time.monotonic() + 5
        while self.crew._calls._work_queue.qsize() and time.monotonic() < deadline:
            time.sleep(0.001)
        self.crew._calls.submit(lambda: None).result(5)


def test_who_is_not_needed_is_drained_for_two_epochs_and_released_after_the_total_was_lowered() -> None:
    flow = Flow("0", "1", slots=2)
    flow.slots = 1
    flow.epoch()
    assert flow.crew.surplus(1)
    flow.crew.thin_out(1, flow.number)
    assert flow.placement.leaving == {"1"}
    flow.epoch()
    assert flow.cluster.calls == [], "what was begun there before may still be read"
    flow.epoch()
    assert flow.cluster.calls == ["total 1", "release 1"], "the other way round Spark would start another in its place"
    flow.epoch()
    assert flow.cluster.there == ["0"]
    assert flow.crew.events[-1] == "released executor 1"


def test_a_busy_executor_is_not_killed_but_asked_again() -> None:
    flow = Flow("0", "1")
    flow.cluster.busy = {"1"}
    flow.crew.thin_out(1, flow.number)
    for _ in range(4):
        flow.epoch()
    assert flow.cluster.calls.count("release 1") >= 2
    assert flow.cluster.there == ["0", "1"]
    flow.cluster.busy = set()
    for _ in range(3):
        flow.epoch()
    assert flow.cluster.there == ["0"]


def test_more_slots_wait_until_their_executor_is_introduced() -> None:
    flow = Flow("0")
    assert flow.crew.room(2, waited=0.0) is None
    flow.epoch()
    assert flow.cluster.calls == ["total 2"]
    flow.cluster.there.append("1")
    flow.epoch()
    assert flow.crew.room(2, waited=2.0) is None, "it is there, and nobody has met it"
    flow.placement.introduced(["0", "1"])
    assert flow.crew.room(2, waited=3.0) == 2
    assert flow.cluster.calls == ["total 2"], "it is asked once"


def test_a_total_that_the_cluster_manager_did_not_answer_is_asked_for_again() -> None:
    flow = Flow("0")
    flow.cluster.away = True
    for waited in (0.0, 1.0):
        assert flow.crew.room(2, waited) is None
        flow.settle()
    flow.cluster.away = False
    for waited in (2.0, 3.0):
        assert flow.crew.room(2, waited) is None
        flow.settle()
    assert flow.cluster.calls == ["total 2"] * 3
    assert flow.crew.events == ["asking for 2 executors"]


def test_a_cluster_that_gives_no_more_is_waited_for_once_and_then_not_asked_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    flow = Flow("0")
    assert flow.crew.reach(4) == 4
    with caplog.at_level(logging.WARNING, "meander"):
        assert flow.crew.room(4, waited=0.0) is None
        assert flow.crew.room(4, waited=200.0) == 1
        assert flow.crew.room(4, waited=201.0) == 1
    (told,) = [record.getMessage() for record in caplog.records]
    assert "4 executors were requested, 1 are there after 120 s; slots use these" in told
    assert flow.crew.reach(4) == 1
    flow.clock.sleep(601)
    assert flow.crew.reach(4) == 4


def test_who_is_being_drained_is_kept_when_it_is_needed_again() -> None:
    flow = Flow("0", "1")
    flow.crew.thin_out(1, flow.number)
    assert flow.crew.room(2, waited=0.0) == 2
    assert flow.placement.leaving == set()
    for _ in range(3):
        flow.epoch()
    assert flow.cluster.calls == []

"""Who is introduced when, with executors that answer as the test says."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.memory_store import MemoryStore

from meander.clock import FakeClock
from meander.epochs.placement import Executor, Placement
from meander.errors import Retryable
from meander.on_spark.introduction import Answer, Hello, Introducer
from meander.task.messages import Common


class Cluster:
    """Takes the place of Spark: runs each task where it should, unless told otherwise."""

    def __init__(self, **executors: int) -> None:
        self.there = {name.strip("_"): Executor(name.strip("_"), cores) for name, cores in executors.items()}
        self.clock, self.store = FakeClock(), MemoryStore()
        self.placement = Placement(lambda: dict(self.there), self.clock)
        self.met: dict[str, str] = {}
        self.asked: list[list[str]] = []
        self.rehearsed: list[tuple[list[str], list[str]]] = []
        self.astray: set[str] = set()
        self.blind: set[str] = set()
        self.dead = False
        common = Common(0, 1, "memory://", b"", 128, {}, ())
        self.introducer = Introducer(None, self.placement, self.store, common, self.clock, self.met.__setitem__)  # type: ignore[arg-type]

    def run_pinned(self, function: Callable[..., Any], messages: Sequence[Hello], places: Sequence[str], patience: float) -> list[Answer]:
        self.asked.append(list(places))
        if self.dead:
            raise Retryable("it died")
        return [
            Answer("0" if place in self.astray else place, b"" if place in self.blind else self.store.get(hello.probe) or b"", f"{place}:1")
            for place, hello in zip(places, messages, strict=True)
        ]

    def run_rehearsal(self, send: Any, receive: Any, senders: Sequence[str], receivers: Sequence[str], patience: float) -> None:
        self.rehearsed.append((list(senders), list(receivers)))

    def pass_seconds(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.sleep(1.0)
            self.introducer._round(self)  # type: ignore[arg-type]

    def introduced(self) -> set[str]:
        return {name for name in self.there if self.placement.is_introduced(name)}


def test_every_core_of_a_newcomer_is_asked_once_and_its_steward_is_known() -> None:
    cluster = Cluster(_0=1, _1=2)
    cluster.pass_seconds(3)
    assert cluster.asked == [["0", "1", "1"]]
    assert cluster.introduced() == {"0", "1"}
    assert cluster.met == {"0": "0:1", "1": "1:1"}
    assert cluster.store.objects == {}, "the probe is gone"


def test_an_introduction_that_went_elsewhere_or_failed_does_not_count_and_is_tried_again() -> None:
    cluster = Cluster(_0=1, _1=1)
    cluster.astray = {"1"}
    cluster.pass_seconds(3)
    assert cluster.introduced() == {"0"}
    cluster.astray, cluster.dead = set(), True
    cluster.pass_seconds(5)
    assert cluster.introduced() == {"0"}
    cluster.dead = False
    cluster.pass_seconds(5)
    assert cluster.introduced() == {"0", "1"}
    assert cluster.asked == [["0", "1"], ["1"], ["1"]]


def test_an_executor_that_does_not_see_the_store_gets_nothing_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(_0=1, _1=1)
    cluster.blind = {"1"}
    with caplog.at_level(logging.WARNING, "meander"):
        cluster.pass_seconds(20)
    assert cluster.introduced() == {"0"}
    assert cluster.placement.pin({1: 3})[1] == ["0"] * 3
    (told,) = [record.getMessage() for record in caplog.records]
    assert "executor 1 does not see what the driver writes to store" in told


def test_an_executor_that_fails_again_and_again_is_named_with_the_reason_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(_0=1)
    cluster.dead = True
    with caplog.at_level(logging.WARNING, "meander"):
        cluster.pass_seconds(40)
    assert cluster.introduced() == set()
    (told,) = [record.getMessage() for record in caplog.records]
    assert told == "executor 0 cannot be introduced, and gets no work while there are others: it died"


def test_who_has_no_slots_is_introduced_again_before_its_workers_end() -> None:
    cluster = Cluster(_0=1)
    cluster.pass_seconds(1)
    cluster.placement.pin({1: 1})
    cluster.there["1"] = Executor("1", 1)
    cluster.pass_seconds(100)
    assert cluster.asked == [["0"], ["1"], ["1"], ["1"]]
    assert cluster.rehearsed[:2] == [(["0"], ["0"]), (["1", "0"], ["1"])], "an exchange with those who are known"
    assert cluster.introduced() == {"0", "1"}
    del cluster.there["1"]
    cluster.pass_seconds(1)
    assert not cluster.placement.is_introduced("1")

"""Which executor has which slot when executors join and leave, as people see it in the status."""

from __future__ import annotations

import pytest

from meander.clock import FakeClock
from meander.epochs.placement import Executor, Placement
from meander.errors import ConfigError


class Cluster:
    def __init__(self, *executors: str) -> None:
        self.there = list(executors)
        self.clock = FakeClock()
        self.placement = Placement(lambda: {name: Executor(f"executor_host_{name}") for name in self.there}, self.clock)

    def epoch(self, slots: int) -> list[str]:
        """The hints of stage 2 in the next epoch; a second passes."""
        self.clock.sleep(1.0)
        return self.placement.pin({1: slots})[1]

    def slots(self) -> list[str]:
        return self.placement.where().get(1, [])


def test_slots_of_a_lone_executor_are_known_and_need_no_hint() -> None:
    cluster = Cluster("0")
    assert cluster.epoch(2) == []
    assert cluster.slots() == ["0", "0"]


def test_an_executor_that_joined_gets_slots_with_the_next_rescaling_only() -> None:
    cluster = Cluster("0")
    cluster.epoch(2)
    cluster.there.append("1")
    assert cluster.epoch(2) == ["executor_host_0"] * 2
    cluster.epoch(3)
    assert cluster.slots() == ["0", "0", "1"]


def test_a_rescaling_counts_on_who_has_joined_this_moment() -> None:
    cluster = Cluster("0")
    cluster.epoch(2)
    cluster.there.append("1")
    cluster.placement.pin({1: 4})
    assert cluster.slots() == ["0", "0", "1", "1"], "looked for less than a second ago, and looked for again"


def test_an_evacuated_executor_is_left_at_once_also_where_no_epoch_comes() -> None:
    cluster = Cluster("0", "1")
    cluster.epoch(4)
    cluster.placement.evacuate("0")
    assert cluster.slots() == ["1"] * 4
    assert cluster.placement.leaving == {"0"}
    with pytest.raises(ConfigError, match="is the last one"):
        cluster.placement.evacuate("1")


def test_who_is_there_is_told_also_when_spark_does_not_answer_any_more() -> None:
    cluster = Cluster("0", "1")
    cluster.epoch(2)
    assert cluster.placement.there() == ["0", "1"]

    def gone() -> dict[str, Executor]:
        raise RuntimeError("Spark is stopped")

    cluster.placement._look = gone
    assert cluster.placement.there() == ["0", "1"]


def test_a_newcomers_slots_run_elsewhere_until_it_is_introduced() -> None:
    cluster = Cluster("0")
    cluster.placement.introduced(["0"])
    cluster.epoch(2)
    cluster.there.append("1")
    assert cluster.epoch(4) == ["executor_host_0"] * 4
    assert cluster.placement.anywhere() == ["executor_host_0"], "nor does it read input"
    assert cluster.placement.cores() == 1
    cluster.placement.introduced(["0", "1"])
    cluster.epoch(4)
    assert cluster.slots() == ["0", "0", "1", "1"], "and without another rescaling it has them"
    assert cluster.placement.anywhere() == []


def test_who_was_never_introduced_works_where_there_is_no_other() -> None:
    cluster = Cluster("0", "1")
    cluster.placement.introduced([])
    cluster.epoch(2)
    assert cluster.slots() == ["0", "1"]
    cluster.placement.introduced(["1"])
    cluster.epoch(2)
    assert cluster.slots() == ["0", "1"], "who works already is not sent away"
    cluster.there.remove("0")
    cluster.there.append("2")
    cluster.epoch(2)
    assert cluster.slots() == ["1", "1"]
    cluster.placement.evacuate("1")
    assert cluster.slots() == ["2", "2"], "an evacuation does not wait for an introduction"


def test_nothing_is_pinned_to_an_executor_that_leaves_nor_read_there() -> None:
    cluster = Cluster("0", "1", "2")
    cluster.epoch(3)
    cluster.placement.evacuate("1")
    assert "executor_host_1" not in cluster.epoch(6)
    assert cluster.placement.anywhere() == ["executor_host_0", "executor_host_2"]

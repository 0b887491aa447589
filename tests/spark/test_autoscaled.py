"""Executors that come and go with the load, on a cluster manager that really starts and ends them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from tests.drivers import write_input
from tests.spark.test_introduction import tell

import meander as md


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_executors_are_added_for_more_input_and_drained_and_released_for_less(tmp_path: Path) -> None:
    told = tell("autoscaled.py", tmp_path, timeout=240)
    for line in told["timeline"]:
        print(line)
    print({name: value for name, value in told.items() if name != "timeline"})
    assert told["state"], "state equals a recount of the input"
    assert told["output"], "every row was published once"
    assert told["slots"] >= 2
    names = [name for line in told["timeline"] for name in line["executors"]]
    assert len(set(names)) > 2, "executors were added that were not there at the start"
    for before, after in zip(told["timeline"], told["timeline"][1:], strict=False):
        for gone in set(before["executors"]) - set(after["executors"]):
            assert before["executors"][gone] == 0, f"executor {gone} was drained before it went"


@pytest.mark.slow
def test_a_master_without_executors_to_give_says_so_once_and_slots_follow_all_the_same(
    tmp_path: Path, spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    write_input(tmp_path / "in", files=3, rows=100, keys=10)
    flow = md.Flow("local")
    events = flow.source("events", md.files(tmp_path / "in", max_files_per_epoch=1))
    events.key_by("key").aggregate(md.count().alias("n"), name="counts").sink("out", md.discard())
    with (
        caplog.at_level(logging.WARNING, "meander"),
        flow.start(tmp_path / "state", spark=spark, trigger=None, autoscale=md.autoscale(slots_per_executor=1)) as run,
    ):
        assert run.process_available().epochs == 3
        assert run.status()["autoscaler"]["executors"] == []
    told = [record.getMessage() for record in caplog.records]
    assert len([line for line in told if "can neither add nor remove executors: slots follow the load" in line]) == 1

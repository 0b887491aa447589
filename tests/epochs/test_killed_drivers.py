"""Drivers killed with SIGKILL at every step, one after the other on one store, without Spark; then one that runs to the end.

``tests/spark/test_crash.py`` kills drivers that have a Spark, around commit and publication and at random moments.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.crashing import EPOCH_STEPS, crash_chain

pytestmark = pytest.mark.slow

DRIVER = Path(__file__).with_name("driver.py")
START_STEPS = [["put_if_absent", 1, "before"], ["put_if_absent", 1, "after"], ["put_if_absent", 2, "after"], ["link", 1, "before"]]
SNAPSHOT_STEPS = [["put", 1, "before"], ["put", 1, "after"], ["snapshot", 1, "before"], ["snapshot", 1, "after"], ["delete", 40, "after"]]


def test_a_driver_killed_while_starting_leaves_nothing_lost_or_doubled(tmp_path: Path, child: Any) -> None:
    crash_chain(tmp_path, child, START_STEPS, script=DRIVER)


def test_a_driver_killed_around_every_step_of_a_small_epoch(tmp_path: Path, child: Any) -> None:
    crash_chain(tmp_path, child, EPOCH_STEPS, script=DRIVER)


def test_a_driver_killed_around_a_snapshot_forgets_no_file_and_reads_none_twice(tmp_path: Path, child: Any) -> None:
    """Past the 32nd entry: the names of taken files move into a file of their own, and the manifest is written down."""
    crash_chain(tmp_path, child, SNAPSHOT_STEPS, files=150, rows=200, script=DRIVER)

"""The epoch protocol under thousands of seeded schedules: real loop, log, tidying and state; a world that fails in every way it can."""

from __future__ import annotations

import os

import pytest
from tests.simulation.schedule import run_schedule

SCHEDULES, BLOCK = 2_100, 100


@pytest.mark.parametrize("block", [b if b < 10 else pytest.param(b, marks=pytest.mark.slow) for b in range(SCHEDULES // BLOCK)])
def test_output_and_state_are_exactly_once_whatever_dies(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        run_schedule(seed)


if "MEANDER_SEED" in os.environ:

    def test_replay_of_one_seed() -> None:
        """``MEANDER_SEED=123 pytest tests/simulation -k replay`` runs one schedule again and says what happened in it."""
        print("\n".join(run_schedule(int(os.environ["MEANDER_SEED"])).lives))

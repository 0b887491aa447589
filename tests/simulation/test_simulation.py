"""Thousands of seeded schedules: the epoch protocol in a world that fails in every way it can, and whole flows in it.

``protocol`` has the real loop, log, tidying and state, and a toy flow. ``whole`` has real operators, sinks, changes and replicas.
Replay one with ``python -m tests.simulation.hunt --seeds 123:124``; give a night to more of them with ``make simulate SEEDS=0:30000``.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from tests.simulation.hunt import describe, spread

JOBS = min(4, os.cpu_count() or 1)
LONG = [pytest.mark.long, pytest.mark.timeout(7_200)]


def parts(few: int, many: int, slow: int, long: int) -> list[Any]:
    """Ranges of seeds up to these: for `make test-fast`, `make test`, `make test-slow` and `make test-all`. Each seed is in one of them."""
    return [
        range(few),
        pytest.param(range(few, many), marks=pytest.mark.many),
        pytest.param(range(many, slow), marks=pytest.mark.slow),
        pytest.param(range(slow, long), marks=LONG),
    ]


PROTOCOL = parts(100, 1_200, 2_200, 12_200)
WHOLE = parts(30, 400, 800, 18_800)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seeds", PROTOCOL, ids=str)
def test_output_and_state_are_exactly_once_whatever_dies(seeds: range) -> None:
    told = spread("protocol", seeds, JOBS)
    assert not told["found"], describe(told)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seeds", WHOLE, ids=str)
def test_whole_flows_are_exactly_once_whatever_fails_and_changes(seeds: range) -> None:
    told = spread("whole", seeds, JOBS)
    assert not told["found"], describe(told)
    assert told["schedules"] == len(seeds)

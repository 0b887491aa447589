"""Whenever the power is cut, a flow goes on with nothing lost or doubled; and each sync of the store and the sinks is needed for that."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.simulation.powerloss import LUCK, Life, check, cut, recorded, small

from meander.clock import FakeClock

FEW, MANY = range(5), range(5, 60)
CUTS = 5


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    life = Life(tmp_path_factory.mktemp("whole"))
    with small():
        life.start(FakeClock(start=1.0e9)).run()
    return life.result()


@pytest.mark.many
@pytest.mark.parametrize("seed", [*FEW, *(pytest.param(seed, marks=pytest.mark.slow) for seed in MANY)])
def test_nothing_is_lost_or_doubled_wherever_the_power_is_cut(tmp_path: Path, expected: dict[str, Any], seed: int) -> None:
    events, called = recorded(tmp_path / "disk", seed)
    rng = random.Random(seed)
    for number in range(CUTS):
        at, luck = rng.randrange(len(events) + 1), LUCK[number % len(LUCK)]
        cut(events[:at], luck, rng, tmp_path / f"cut{number}")
        try:
            check(events[:at], called, tmp_path / f"cut{number}", expected, seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}, cut {number} after event {at} of {len(events)}, {luck} arrives: {error}") from error


@pytest.mark.slow
def test_it_would_show_if_any_sync_of_the_store_or_the_sinks_were_left_out(tmp_path: Path, expected: dict[str, Any]) -> None:
    lives = {number: recorded(tmp_path / f"disk{number}", number, after_folder=number) for number in range(1, 13)}
    sites = {event.site for events, _ in lives.values() for event in events if event.kind == "sync"}
    assert len(sites) == 12, "one for each place in the code that asks for it"

    def shows(site: str) -> bool:
        for number, (events, called) in lives.items():
            for luck in LUCK if any(event.site == site for event in events) else ():
                place = tmp_path / f"without{len(list(tmp_path.iterdir()))}"
                cut(events, luck, random.Random(number), place, site)
                try:
                    check(events, called, place, expected, number)
                except Exception:  # whatever it is, it shows
                    return True
        return False

    assert [site for site in sorted(sites) if not shows(site)] == []

"""A year of real data through a flow with every kind of state by time, killed and rescaled on the way: equal to DuckDB."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import flights

Start = Callable[..., Any]

pytestmark = pytest.mark.skipif(not flights.DATA.exists(), reason="the flights are not here: `make test-servers` gets them")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_year_of_flights_in_epochs_of_half_a_month_is_as_duckdb_has_it(tmp_path: Path, child: Start) -> None:
    """Three drivers are killed with SIGKILL; each start has another number of slots, and while the last runs two operators are rescaled."""
    flights.write(tmp_path / "in", seed=0)
    moments = random.Random(0)
    request = {"script": flights.__file__, "store": str(tmp_path / "state"), "in": str(tmp_path / "in"), "out": str(tmp_path / "out")}
    for slots, epoch in ((2, 4), (3, 9), (1, 14)):
        victim = child(**request, parallelism=slots)
        victim.wait_for(f"epoch {epoch}\n", timeout=300)
        time.sleep(moments.uniform(0.0, 0.5))
        victim.kill()
        assert victim.process.returncode == -signal.SIGKILL, "it was to die at work"
    rescales = {"16": ["duties", 4], "18": ["in_weather", 3]}
    code, answer = child(**request, parallelism=2, rescale=rescales).finish(timeout=600)
    assert code == 0, answer
    assert answer["dead_letters"] == 0
    assert [change[0] for change in answer["rescaled"]] == ["duties", "in_weather"]
    counts = flights.check(tmp_path / "in", tmp_path / "out")
    assert counts["in_weather"] == 336_776

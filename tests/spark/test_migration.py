"""State that moves between two executors, its store behind a slow line: by every strategy, and with the old owner killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_state_moves_by_every_strategy_and_from_the_store_when_its_owner_is_killed(tmp_path: Path) -> None:
    script = Path(__file__).with_name("migration.py")
    environment = {**os.environ, "PYTHONPATH": str(script.parents[2])}
    command = [sys.executable, str(script), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False, env=environment, start_new_session=True)
    assert result.returncode == 0, result.stderr[-3000:]
    told = json.loads([line for line in result.stdout.splitlines() if line.startswith("{")][-1])
    assert told["equal"], "state equals a recount of the input, whatever moved"
    for peers, store, _ in told["0 lazy"]["epochs"]:
        assert 0 < peers < 0.05 * told["bytes"], "one key in a hundred moves about that share of the bytes"
        assert store == 0, "the old owner has them"
    assert told["0 lazy"]["fetched"] == 0
    for name in ("1 prefetch", "2 hybrid", "3 eager"):
        assert told[name]["fetched"] > 0, "caches were filled ahead of their use"
        assert told[name]["failures"] == []
    assert all(peers == 0 for peers, _, _ in told["3 eager"]["epochs"]), "everything was there before the first epoch"
    for executor in ("1", "0"):
        slots = set(told["migrated"][executor]["slots"])
        assert len(slots) == 1, "one executor has them all"
    assert told["migrated"]["0"]["moved"] == 128
    assert told["migrated"]["1"]["slots"] != told["migrated"]["0"]["slots"]
    assert any(store > 0 for _, store, _ in told["killed"]), "who is dead cannot be asked"
    assert told["killed"][-1][1] == 0, "and what was read from afar once is at hand afterwards"

"""An executor that joins a running flow: introduced beside the epochs, given slots then, and as fast as others from its first epoch on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.spark.newcomer import SLOW


def tell(script: str, folder: Path, timeout: float = 200) -> dict[str, Any]:
    """What a script beside this file prints as JSON on its last line."""
    path = Path(__file__).with_name(script)
    environment = {**os.environ, "PYTHONPATH": str(path.parents[2])}
    result = subprocess.run(
        [sys.executable, str(path), str(folder)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env=environment,
        start_new_session=True,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    told: dict[str, Any] = json.loads([line for line in result.stdout.splitlines() if line.startswith("{")][-1])
    return told


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_newcomer_is_introduced_before_it_gets_a_slot_and_no_epoch_waits_for_it(tmp_path: Path) -> None:
    told = tell("newcomer.py", tmp_path)
    print(told)
    assert told["equal"], "state equals a recount of the input"
    assert told["introduced"] > 3, "its Python took seconds to start"
    assert told["slots"] is not None, "the slots that the rescaling meant for it came to it, once it was introduced"
    assert told["slots"] >= told["introduced"] - 0.2
    assert len(told["before"]) >= 5, "epochs went on meanwhile"
    assert max(told["before"]) < SLOW, "and none of them waited for it"
    assert told["first there"] < SLOW, "nor is its first epoch much slower than the others: on a Python that was not started it would be"
    assert told["steward"], "others can be sent its state, and it can be sent theirs"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_evacuated_executor_reads_no_input_either(tmp_path: Path) -> None:
    told = tell("leaving.py", tmp_path)
    for name, one in told.items():
        assert one["leaving"] in one["before"], f"{name}: it worked before"
        assert one["after"] == ["1"], f"{name}: {one}"

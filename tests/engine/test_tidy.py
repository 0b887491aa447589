"""Tidying: what a dead process left goes, what a live one needs stays, and a deletion that fails is not forgotten."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.simulation.parts import OPERATOR
from tests.simulation.steady import as_state, expected, go_on, take_over

from meander.state.reading import read_operator
from meander.state.store import DirStore

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


def start_driver(folder: Path, nth: int, what: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.engine.halting", str(folder), str(nth), what]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)


def hidden(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob(".*"))


@pytest.mark.parametrize(
    ("nth", "place", "epoch"), [(1, "log/00000000/.", 0), (2, "plan/.", 0), (4, "log/00000001/.", 1), (6, "manifest/.", 3)]
)
def test_the_next_start_removes_what_a_process_killed_inside_a_put_left_behind(tmp_path: Path, nth: int, place: str, epoch: int) -> None:
    driver = start_driver(tmp_path, nth, "kill")
    driver.communicate(timeout=60)
    assert driver.returncode == -signal.SIGKILL
    (left,) = hidden(tmp_path)
    assert left.startswith(place)
    store = DirStore(tmp_path)
    loop = take_over(store)
    assert hidden(tmp_path) == []
    assert loop.log.manifest.epoch == epoch
    go_on(loop, 2)
    assert as_state(read_operator(store, OPERATOR)) == expected(epoch + 2)


def test_the_temporary_file_of_a_replaced_run_that_still_lives_is_left_to_it(tmp_path: Path) -> None:
    """It stands still inside a put while its successor sweeps. When it wakes up it meets the seal, and removes its file itself."""
    old = start_driver(tmp_path, 4, "wait")
    try:
        assert old.stdout is not None
        assert old.stdout.readline() == "halted\n"
        (staged,) = hidden(tmp_path)
        store = DirStore(tmp_path)
        loop = take_over(store)
        assert hidden(tmp_path) == [staged]
        go_on(loop, 2)
        assert old.communicate("go on\n", timeout=60)[0] == "Fenced\n"
        assert hidden(tmp_path) == []
        assert as_state(read_operator(store, OPERATOR)) == expected(loop.log.manifest.epoch)
    finally:
        old.kill()
        old.communicate()

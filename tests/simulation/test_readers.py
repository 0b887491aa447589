"""Readers in processes of their own beside a driver that commits, merges and collects as fast as it can, and changes hands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.simulation.steady import go_on, hurry, take_over

from meander.clock import SystemClock
from meander.state.stores.contract import DirStore, open_store

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path), "POLARS_MAX_THREADS": "1"}
SECONDS = 3.0


def start_reader(folder: Path, seed: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.simulation.reader", str(folder), str(seed)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)


@pytest.mark.many
def test_every_read_beside_a_running_flow_is_of_one_epoch_and_never_of_an_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    store = open_store("memory://readers")  # a folder in memory: fast, so that readers are overtaken often
    assert isinstance(store, DirStore)
    loop = take_over(store, clock=SystemClock())
    go_on(loop, 5)
    readers = [start_reader(store.root, seed) for seed in (1, 2)]
    try:
        for reader in readers:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "ready\n"
        began, epochs = time.monotonic(), 0
        while (spent := time.monotonic() - began) < SECONDS:
            if spent > SECONDS / 2 and loop.log.manifest.generation == 1:
                loop = take_over(store, clock=SystemClock())
            go_on(loop, 1)
            epochs += 1
        answers = [json.loads(reader.communicate("stop\n", timeout=60)[0]) for reader in readers]
    finally:
        for reader in readers:
            reader.kill()
            reader.communicate()
    assert [answer["wrong"] for answer in answers] == [[], []]
    assert epochs > 20
    for answer in answers:
        assert answer["newest"] > 10
        assert answer.get("overtaken", 0) * 10 <= answer["newest"], f"to be told to try again is the exception: {answer}"

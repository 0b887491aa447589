"""The supervisor's own ZooKeeper: it is there, comes back where it was if it dies, is taken up by the next supervisor, and ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from meander.processes import ProcessId, is_running
from meander.replicate import ballot
from meander.replicate.ballot import OwnServer, find_zookeeper
from meander.replicate.election import Election

pytest.importorskip("kazoo")
pytestmark = pytest.mark.spark  # a ZooKeeper is a Java


def until(holds: Callable[[], bool], seconds: float = 40.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds()


def process(logs: Path) -> int:
    return int(json.loads((logs / "zookeeper.json").read_text())["process"])


@pytest.mark.slow
@pytest.mark.spark  # of Spark it needs the jars alone, and a Java
def test_one_that_dies_is_started_again_where_it_was_and_the_same_replicas_elect_anew(tmp_path: Path) -> None:
    address, close = find_zookeeper("leader", None, tmp_path)
    assert address is not None
    try:
        a, b = (Election(address, "flow", name, 2.0) for name in "ab")
        assert until(lambda: a.leads() != b.leads())
        for _ in range(2):
            first = process(tmp_path)
            os.kill(first, signal.SIGKILL)
            assert until(lambda: not a.leads() and not b.leads()), "nobody leads who cannot reach it"
            assert until(lambda first=first: process(tmp_path) != first)  # type: ignore[misc]
            assert until(lambda: a.leads() != b.leads())
        for one in (a, b):
            one.close()
    finally:
        last = process(tmp_path)
        close()
    assert not is_running(last)
    assert not (tmp_path / "zookeeper.json").exists()


@pytest.mark.spark
def test_the_next_supervisor_takes_it_up_and_brings_it_back_as_well(tmp_path: Path) -> None:
    words = "import os, sys; from pathlib import Path; from meander.replicate.ballot import find_zookeeper as find; "
    words += "print(find('leader', None, Path(sys.argv[1]))[0], flush=True); os._exit(0)"  # killed, as far as anybody can see
    done = subprocess.run([sys.executable, "-c", words, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True)
    first = process(tmp_path)
    assert is_running(first)
    address, close = find_zookeeper("leader", None, tmp_path)
    try:
        assert (address, process(tmp_path)) == (done.stdout.strip(), first)
        os.kill(first, signal.SIGKILL)
        assert until(lambda: process(tmp_path) != first)
        a = Election(str(address), "flow", "a", 2.0)
        assert until(a.leads)
        a.close()
    finally:
        last = process(tmp_path)
        close()
    assert not is_running(last)


def test_another_process_that_has_its_number_now_is_not_taken_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"]) as bystander:
        mine = ProcessId.of(bystander.pid)
        (tmp_path / "zookeeper.json").write_text(json.dumps({**replace(mine, born="1").to_json(), "address": "127.0.0.1:1"}))
        monkeypatch.setattr(ballot, "_answers", lambda address: True)
        monkeypatch.setattr(OwnServer, "_start", lambda self, port=None: ("127.0.0.1:2", replace(mine, system="of long ago")))
        monkeypatch.setattr(ballot, "_LOOK_EVERY", 10.0)
        server = OwnServer(tmp_path)
        assert server.address == "127.0.0.1:2"
        server.close()
        assert mine.is_running
        bystander.kill()

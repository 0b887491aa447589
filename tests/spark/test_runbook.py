"""The runbook with real processes: a control plane, two task managers, one of which joins later, is scaled onto, and takes all over."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.cli.test_control_commands import free_port
from tests.oracle import published
from tests.spark.test_http import answers, wait_for

import meander as md
from meander.control.client import Client

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "wikipedia.py"


class Shell:
    """Commands in one folder, each in a session of its own as in a terminal of its own. All their descendants carry a mark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = f"MEANDER_TEST_MARK={folder}"
        self.started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        environment = dict(os.environ)
        key, _, value = self.mark.partition("=")
        environment[key] = value
        with (self.folder / f"{name}.txt").open("wb") as out:
            command = [sys.executable, "-m", "meander.cli.main", *words]
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.started[name] = process
        return process

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.txt").read_text()

    def interrupt(self, name: str, timeout: float = 90) -> int:
        """Ctrl-C: to the whole foreground group, as a terminal sends it."""
        process = self.started[name]
        os.killpg(process.pid, signal.SIGINT)
        return process.wait(timeout)

    def alive(self) -> list[tuple[int, str]]:
        """Every process that descends from one of these commands, also if its parent is gone."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.mark.encode() in (path / "environ").read_bytes().split(b"\0"):
                    found.append((int(path.name), (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120]))
        return found


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    running = Shell(tmp_path)
    yield running
    for pid, _ in running.alive():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def recount(events: int) -> Counter[str]:
    """The example's flow in plain Python over the same lines."""
    lines = md.generator("wikipedia", rate=1000, seed=1, raw=True).read({"partition": 0, "start": 0, "count": events}).frame["line"]
    edits = [json.loads(line) for line in lines]
    return Counter(edit["server_name"] for edit in edits if not edit["bot"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_runbook(shell: Shell, tmp_path: Path) -> None:
    http, spark, first, second = (free_port() for _ in range(4))
    client = Client(f"http://127.0.0.1:{http}")
    master = ["--master", f"spark://127.0.0.1:{spark}", "--url", client.url]

    # A control plane waits for its first task manager, and the flow runs there.
    plane = shell.start("plane", "control-plane", str(EXAMPLE), "--store", "state", "--port", str(http), "--spark-port", str(spark))
    wait_for(lambda: plane.poll() is not None or "waiting for a task manager" in shell.said("plane"), 90)
    shell.start("first", "task-manager", "--port", str(first), *master)
    wait_for(lambda: plane.poll() is not None or answers(client), 120)
    assert plane.poll() is None, shell.said("plane")
    (one,) = client.status()["executors"]
    assert [stage["slots"] for stage in client.status()["stages"] if stage["stateful"]] == [2]

    # A second task manager joins; with the next rescaling it has slots.
    shell.start("second", "task-manager", "--port", str(second), "--patience", "5s", *master)
    status: dict[str, Any] = wait_for(lambda: len((s := client.status())["executors"]) == 2 and s, 90)
    (two,) = set(status["executors"]) - {one}
    time.sleep(2)
    assert client.status()["executors"][two]["slots"] == 0, "it gets slots with the next rescaling, not by surprise"
    scaled = subprocess.run(
        ["curl", "-s", f"http://localhost:{http}/scale?stage=2"], capture_output=True, text=True, timeout=90, check=True
    )
    assert json.loads(scaled.stdout)["slots"] == 3, scaled.stdout
    status = wait_for(lambda: (s := client.status())["executors"][two]["slots"] and s, 30)
    assert (status["executors"][one]["slots"], status["executors"][two]["slots"]) == (2, 1)
    epoch = status["epoch"]
    wait_for(lambda: client.status()["epoch"] > epoch + 2, 60)

    # Ctrl-C on the first: it is drained, and goes; the flow goes on.
    assert shell.interrupt("first") == 0, shell.said("first")
    assert "drained: no slot is here" in shell.said("first")
    status = wait_for(lambda: one not in (s := client.status())["executors"] and s, 60)
    assert status["executors"][two]["slots"] == 3
    epoch, rows = status["epoch"], status["rows_in"]
    status = wait_for(lambda: (s := client.status())["epoch"] > epoch + 3 and s, 60)
    assert status["rows_in"] > rows
    assert status["state"] == "running"

    # Ctrl-C on the control plane ends all of it.
    assert shell.interrupt("plane") == 0, shell.said("plane")
    assert shell.started["second"].wait(60) == 0, shell.said("second")
    wait_for(lambda: not shell.alive(), 30)
    assert all("Traceback" not in shell.said(name) and "WARN" not in shell.said(name) for name in shell.started)
    assert "ERROR" not in shell.said("plane")

    # Nothing was lost or counted twice.
    state = dict(pl.DataFrame(pl.from_arrow(md.read_state(tmp_path / "state", "counts"))).iter_rows())
    newest: dict[str, int] = {}
    for _, frame in sorted(published(tmp_path / "wikipedia" / "out").items()):
        newest.update(frame.select("server_name", "edits").iter_rows())
    from meander.cli.status import read_status

    expected = recount(read_status(str(tmp_path / "state"))["rows_in"])
    assert state == newest == dict(expected)

"""Every example runs as its docstring says, and shows what it promises."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = {
    "orders.py": ["cleo     ┆ 2   ┆ 312.0", "epoch 1 can still be read"],
    "crash_and_resume.py": ["kill -9", "300,000 events in the state, 300,000 in the input", "yes  every epoch is published once, in order"],
    "dead_letters.py": ["dead_letters=3", "not JSON", "conversion from `str` to `f64` failed", "strict=True stops"],
    "processor.py": ["visits of ann: 3 pages", "visits of bob: 2 pages", "visits of ann: 1 pages", "nothing is remembered"],
    "custom_aggregate.py": ["200,000 rows in 2 epochs", "equal to the geometric mean computed at once"],
}
FLOW_FILES = {"server_counts.py", "wikipedia.py", "workload.py"}
TESTS = {"test_orders.py"}


def test_every_example_is_run_by_a_test() -> None:
    assert {file.name for file in EXAMPLES.glob("*.py")} == SCRIPTS.keys() | FLOW_FILES | TESTS


@pytest.mark.parametrize("name", sorted(SCRIPTS.keys() | FLOW_FILES | TESTS))
def test_every_example_says_how_to_run_it_and_what_to_expect(name: str) -> None:
    text = (EXAMPLES / name).read_text().split('"""')[1]
    assert f"examples/{name}" in text
    assert "Expect" in text


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_shows_what_it_promises(name: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, EXAMPLES / name], capture_output=True, text=True, cwd=tmp_path, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for promise in SCRIPTS[name]:
        assert promise in done.stdout


@pytest.mark.many
@pytest.mark.parametrize("name", sorted(TESTS))
def test_an_example_of_tests_passes(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'pytest'}", f"examples/{name}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=EXAMPLES.parent, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.spark
@pytest.mark.slow
def test_a_flow_file_runs_until_it_is_asked_to_stop(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "meander.cli.main", "run", str(EXAMPLES / "server_counts.py"), "--store", "state", "--json"]
    output = tmp_path / "server-counts" / "out"
    for number, ask in enumerate((signal.SIGTERM, signal.SIGINT)):
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
        before = len(list(output.glob("*.parquet")))
        deadline = time.monotonic() + 100
        while len(list(output.glob("*.parquet"))) < before + 2 and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.1)
        process.send_signal(ask)
        stdout, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
        summary = json.loads(stdout.splitlines()[-1])
        assert (summary["flow"], summary["outcome"]) == ("server_counts", "stopped")
        assert summary["epoch"] > summary["epochs"] * number  # the second run went on after the first one's epochs
        assert "Traceback" not in stderr

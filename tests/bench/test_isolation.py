"""Measuring processes: what they answer, and that nothing of them is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import meander as md
from meander.bench.harness.isolation import Request, run_isolated
from meander.bench.harness.processes import anonymous_bytes, end_session
from meander.bench.load.input import Input
from meander.processes import session_members

linux_only = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at /proc")

# A leader whose child makes itself a process group of its own, as Spark's Python daemon does.
LEADER = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import os, time; os.setpgid(0, 0); print('up', flush=True); time.sleep(600)"])
time.sleep(600)
"""


def request(folder: Path) -> Request:
    nowhere = Input(str(folder / "nowhere"), 1, 1, 1, 1, 1.0)
    return Request("meander", nowhere, str(folder / "work"), "local[1]", 1, "1g")


@linux_only
def test_ending_a_session_also_ends_who_left_the_process_group() -> None:
    leader = subprocess.Popen([sys.executable, "-c", LEADER], stdout=subprocess.PIPE, start_new_session=True)
    assert leader.stdout is not None
    with leader.stdout as output:
        assert output.readline() == b"up\n"
        assert len(session_members(leader.pid)) == 2
        end_session(leader.pid)
        leader.wait()
    deadline = time.monotonic() + 10
    while session_members(leader.pid) and time.monotonic() < deadline:  # a process that was killed takes a moment to be gone
        time.sleep(0.01)
    assert session_members(leader.pid) == []


@linux_only
def test_anonymous_memory_of_a_process_is_known_and_of_none_is_not() -> None:
    assert (anonymous_bytes(os.getpid()) or 0) > 1_000_000
    assert anonymous_bytes(2**22 + 1) is None


def test_a_request_survives_its_way_through_json(tmp_path: Path) -> None:
    import json
    from dataclasses import asdict

    sent = request(tmp_path)
    assert Request.from_json(json.loads(json.dumps(asdict(sent)))) == sent


def test_a_child_that_takes_too_long_is_ended_with_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(md.MeanderError, match=r"meander did not finish within 0\.01 s; allow more with --timeout"):
        run_isolated(request(tmp_path), timeout=0.01)


@pytest.mark.spark
@pytest.mark.slow
def test_a_failure_in_the_child_is_told_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(md.MeanderError, match="nowhere is not a folder"):
        run_isolated(request(tmp_path), timeout=120)

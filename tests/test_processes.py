"""What is known of processes: none is taken for another one, for dead while it runs, or for alive when it has ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from meander import processes
from meander.processes import ProcessId, born, environment_of, is_running, parent_of, session_members, words_below, words_of

SLEEPER = [sys.executable, "-S", "-c", "import time; time.sleep(60)", "a word", ""]
linux_only = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at /proc")


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(SLEEPER, start_new_session=True, env={**os.environ, "OF_A_TEST": "yes = no"}) as process:
        yield process
        process.kill()


def test_a_process_is_known_until_it_has_ended(sleeper: subprocess.Popen[bytes]) -> None:
    it = ProcessId.of(sleeper.pid)
    assert it.is_running
    assert it.has_number
    assert ProcessId.from_json(it.to_json()) == it
    sleeper.kill()
    deadline = time.monotonic() + 10
    while it.is_running and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not it.is_running, "a zombie, whose exit code nobody has taken, does not run"
    assert it.has_number, "its number is not given out again until then"
    sleeper.wait()
    assert not is_running(sleeper.pid)
    assert not it.is_running
    assert it.has_number
    assert born(sleeper.pid) == ""


def test_another_process_of_the_same_number_is_not_it(sleeper: subprocess.Popen[bytes]) -> None:
    it = ProcessId.of(sleeper.pid)
    for other in (replace(it, born="1"), replace(it, system="before the last boot")):
        assert not other.is_running
        assert not other.has_number


@pytest.mark.parametrize("pid", [2**22 + 1, 2**40])
def test_a_number_that_nobody_has_is_nobodys(pid: int) -> None:
    assert not is_running(pid)
    assert (born(pid), words_of(pid), environment_of(pid), parent_of(pid), words_below(pid)) == ("", [], {}, None, {})


def test_a_process_of_another_user_that_must_not_be_signalled_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the system does not show it, as with hidepid: what is not seen is not taken for dead."""

    def not_permitted(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", not_permitted)
    assert is_running(2**22 + 1)


@linux_only
def test_when_a_process_began_does_not_depend_on_the_clock(sleeper: subprocess.Popen[bytes]) -> None:
    """Ticks since the boot, as signs in stores have them."""
    began = born(sleeper.pid)
    assert began.isdecimal()
    assert began == Path(f"/proc/{sleeper.pid}/stat").read_text().rpartition(")")[2].split()[19]


def test_what_a_process_was_given_is_read(sleeper: subprocess.Popen[bytes]) -> None:
    assert environment_of(sleeper.pid)["OF_A_TEST"] == "yes = no"
    assert words_of(sleeper.pid)[1:] == SLEEPER[1:]
    assert parent_of(sleeper.pid) == os.getpid()
    assert words_below(os.getpid())[sleeper.pid][1:] == SLEEPER[1:]
    assert session_members(sleeper.pid) == [sleeper.pid]


def test_an_environment_that_is_not_there_for_a_moment_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As while a process becomes another program."""

    class Becoming(processes.psutil.Process):  # type: ignore[misc]
        looks = 0

        def environ(self) -> dict[str, str]:
            Becoming.looks += 1
            return {} if Becoming.looks < 3 else super().environ()

    monkeypatch.setattr(processes.psutil, "Process", Becoming)
    assert environment_of(os.getpid())
    assert Becoming.looks == 3

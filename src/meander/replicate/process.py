"""A replica's process: started apart from ours, watched, ended.

It has a session of its own, so that Ctrl-C in the supervisor's terminal does not reach it, and no
pipe to the supervisor, so that it outlives a killed supervisor. Its output goes to a file. It
writes the reason of its end into another file, named by ``MEANDER_REPLICA_ENDED``, so that a
supervisor that has not started it can read the reason, too. Its environment has its name, its
process number, and digests of its store and command: so the system itself records from the first
moment which replica a process is, even if the supervisor was killed before it could write anything.
A command line alone would not do: it may change when a wrapper becomes the replica.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from meander.processes import ProcessId, environment_of, is_member, words_of
from meander.state.signs import parse

ENDED = "MEANDER_REPLICA_ENDED"
_MARK, _NUMBER = "MEANDER_REPLICA_OF", "MEANDER_REPLICA_PROCESS"
_NUMBERED = ("/bin/sh", "-c", f'export {_NUMBER}=$$; exec "$@"', "replica")
"""Becomes the command behind it, which then has its own process number in its environment."""
_TAIL_BYTES = 8192
_SHOWN_LINES = 12


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    outcome: str
    """finished (its input has ended), stopped (it was asked to), failed or killed."""
    text: str = ""
    kind: str | None = None
    """The class of its error."""


class Process(Protocol):
    """A replica's process, started by this supervisor or by an earlier one."""

    id: ProcessId

    def ended(self) -> Ended | None:
        """How it ended; None while it runs."""

    def terminate(self) -> None:
        """Ask it to finish its epoch and end."""

    def kill(self) -> None:
        """End it and all that it has started, now."""


class Child:
    """A process of ours."""

    def __init__(self, command: Sequence[str], log: Path, record: Path, store: str = "", name: str = "") -> None:
        self._log, self._record = log, record
        command = [*_NUMBERED, *command]
        log.parent.mkdir(parents=True, exist_ok=True)
        record.unlink(missing_ok=True)
        if log.exists():
            os.replace(log, log.with_suffix(".before.log"))
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, ENDED: str(record), _MARK: f"{_digest(store)} {_digest(*command)} {name}", "PYTHONUNBUFFERED": "1"},
            )
        self.id = ProcessId.of(self._process.pid)

    def ended(self) -> Ended | None:
        code = self._process.poll()
        return None if code is None else how_it_ended(self.id.pid, code, self._record, self._log)

    def terminate(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        _kill_group(self.id)


class Adopted:
    """A process that a supervisor before us has started."""

    def __init__(self, process: ProcessId, log: Path, record: Path) -> None:
        self.id = process
        self._log, self._record = log, record

    def ended(self) -> Ended | None:
        return None if self.id.is_running else how_it_ended(self.id.pid, None, self._record, self._log)

    def terminate(self) -> None:
        if self.id.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.id.pid, signal.SIGTERM)

    def kill(self) -> None:
        _kill_group(self.id)


def how_it_ended(pid: int, code: int | None, record: Path, log: Path) -> Ended:
    """The reason that a process has written for its end, or else a guess from its exit code.
    ``code`` is None if it is not known."""
    said = parse(_read(record))
    if said is not None and said.get("process") == pid and "outcome" in said:
        return Ended(str(said["outcome"]), str(said.get("error") or ""), said.get("kind"))
    if code == 0:
        return Ended("finished")
    if code is None or code < 0:
        return Ended("killed", "it was killed" if code is None else f"it was killed by {_signal_name(-code)}")
    lines = last_lines(log, 1)
    return Ended("failed", f"exit code {code}" + (f": {lines[0].removeprefix('error: ')}" if lines else ""))


@contextlib.contextmanager
def recorded() -> Iterator[dict[str, str]]:
    """For a replica's process: write down how it ends. The body sets ``outcome``."""
    path = os.environ.get(ENDED)
    said: dict[str, str] = {"outcome": "finished"}
    try:
        yield said
    except BaseException as error:
        said.update(outcome="failed", kind=type(error).__name__, error=str(error) or type(error).__name__)
        raise
    finally:
        if path is not None:
            staged = Path(f"{path}.{os.getpid()}")
            staged.write_text(json.dumps({"process": os.getpid(), **said}))
            os.replace(staged, path)


def last_lines(log: Path, count: int = _SHOWN_LINES) -> list[str]:
    """The last lines of a process's output, without empty lines."""
    data = _read(log, last=_TAIL_BYTES)
    return [line.rstrip() for line in data.decode(errors="replace").splitlines() if line.strip()][-count:]


def replicas_here(store: str) -> list[tuple[str, ProcessId]]:
    """The replicas of a store that run on this system, by name, in any state.

    Every process that a replica starts inherits its environment. The replica itself leads a session,
    and the process number in its environment is its own. In its first moment it has no number there
    yet, and the command line that it was given. The command line is read first: the number is there
    as soon as the command line is another.
    """
    found = []
    for pid in psutil.pids():
        words, environment = words_of(pid), environment_of(pid)
        of, command, name = (*environment.get(_MARK, "").split(" ", 2), "", "", "")[:3]
        is_it = environment.get(_NUMBER) == str(pid) or command == _digest(*words)
        if name and of == _digest(store) and is_it and is_member(pid, pid):
            found.append((name, ProcessId.of(pid)))
    return sorted(found, key=lambda one: (one[0], one[1].pid))


def _digest(*words: str) -> str:
    return hashlib.sha256(os.fsencode("\0".join(words))).hexdigest()[:16]


def _kill_group(process: ProcessId) -> None:
    """The process, its JVM and its helpers: they are of one group. Also after its death: a JVM notices that only after a while."""
    if process.has_number:  # else the group is empty, or was never here
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _read(path: Path, last: int = 0) -> bytes:
    try:
        with path.open("rb") as file:
            if last:
                file.seek(max(0, os.fstat(file.fileno()).st_size - last))
            return file.read()
    except OSError:
        return b""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

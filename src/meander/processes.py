"""The identity of a process. Its number alone is not enough: the system reuses numbers, and
machines and containers share them.

Code that signals a process whose number it has read from a file checks the identity here first. All
that is asked of the system about processes is asked here, of psutil, and of ``/proc`` where psutil
does not tell.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from meander.clock import SystemClock

_PROC = Path("/proc")
_LOOKS, _PAUSE = 20, 0.005
_CLOCK = SystemClock()


@dataclass(frozen=True)
class ProcessId:
    """A process, told from all others."""

    pid: int
    system: str
    """The machine since its last boot, and the container: where the number is valid."""
    born: str
    """When it began, in the system's own terms; empty where it does not tell."""
    host: str = field(default="", compare=False)
    """The machine's name: for people to read."""

    @staticmethod
    def of(pid: int) -> ProcessId:
        """The process that has a number here, now."""
        return ProcessId(pid, this_system(), born(pid), socket.gethostname())

    @staticmethod
    def mine() -> ProcessId:
        return ProcessId.of(os.getpid())

    @property
    def is_here(self) -> bool:
        """Whether its number means anything to us."""
        return self.system == this_system()

    @property
    def is_running(self) -> bool:
        """Whether it runs here, and is no other one that was given its number."""
        return self.is_here and is_running(self.pid) and born(self.pid) == self.born

    @property
    def has_number(self) -> bool:
        """Whether its number still belongs to it, or to no process. A number is not reused as long
        as a process group has it."""
        return self.is_here and born(self.pid) in ("", self.born)

    def to_json(self) -> dict[str, Any]:
        return {"process": self.pid, "host": self.host, "system": self.system, "born": self.born}

    @staticmethod
    def from_json(said: Mapping[str, Any]) -> ProcessId | None:
        """None where something else was written.

        >>> ProcessId.from_json(ProcessId.mine().to_json()) == ProcessId.mine()
        True
        >>> ProcessId.from_json({"process": "7"})
        """
        match said:
            case {"process": int(pid), "host": str(host), "system": str(system), "born": str(began)} if pid > 0:
                return ProcessId(pid, system, began, host)
        return None


def is_running(pid: int) -> bool:
    """Whether a process of this machine runs. A process that has ended but whose exit code was not
    collected (a zombie) does not run."""
    try:
        os.kill(pid, 0)  # also answers where the processes of other users cannot be seen
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except (ProcessLookupError, OverflowError, psutil.NoSuchProcess):
        return False
    except (PermissionError, psutil.AccessDenied):
        return True


def born(pid: int) -> str:
    """When a process began, in the system's own terms; empty where there is none.

    On Linux these are ticks since the boot, read here: psutil adds the time of the boot, which moves
    with the machine's clock, so that two readers would not agree about one process.
    """
    if _PROC.is_dir():
        with contextlib.suppress(OSError, IndexError):
            return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[19]
        return ""
    with contextlib.suppress(psutil.Error):
        return repr(psutil.Process(pid).create_time())
    return ""


def session_members(session: int) -> list[int]:
    """The live processes of a session."""
    return [pid for pid in psutil.pids() if is_member(pid, session)]


def is_member(pid: int, session: int) -> bool:
    """Whether a live process belongs to the session that a process leads."""
    with contextlib.suppress(OSError):
        return os.getsid(pid) == session and is_running(pid)
    return False


def words_of(pid: int) -> list[str]:
    """The command line of a process; nothing where it has ended or is not ours to see."""
    with contextlib.suppress(psutil.Error):
        found: list[str] = psutil.Process(pid).cmdline()
        return found
    return []


def environment_of(pid: int) -> dict[str, str]:
    """The environment of a process; nothing where it has ended or is not ours to see.

    A process that becomes another program has none for a moment: then it is asked again.
    """
    with contextlib.suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        for _ in range(_LOOKS):
            found: dict[str, str] = process.environ()
            if found or not process.exe():
                return found
            _CLOCK.sleep(_PAUSE)
    return {}


def words_below(pid: int) -> dict[int, list[str]]:
    """The command lines of all processes that descend from one."""
    with contextlib.suppress(psutil.Error):
        return {one.pid: words_of(one.pid) for one in psutil.Process(pid).children(recursive=True)}
    return {}


def parent_of(pid: int) -> int | None:
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(pid).ppid())
    return None


def threads_of(pid: int) -> list[int]:
    with contextlib.suppress(psutil.Error):
        return [thread.id for thread in psutil.Process(pid).threads()]
    return []


def nice_session(leader: int, by: int) -> None:
    """Linux's priority of a whole session among sessions (its autogroup). OSError where there is no such thing, and BlockingIOError
    where it was changed too often just now."""
    (_PROC / str(leader) / "autogroup").write_text(str(by))


@functools.cache
def this_system() -> str:
    """This machine since its last boot, and this container; its name where the system does not tell more."""
    with contextlib.suppress(OSError):
        boot = (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
        return f"{boot} {os.readlink(_PROC / 'self' / 'ns' / 'pid')}"
    return socket.gethostname()

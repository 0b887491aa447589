"""The identity of a process. Its number alone is not enough: the system reuses numbers, and
machines and containers share them.

Code that signals a process whose number it has read from a file checks the identity here first. If
the system does not tell when a process began (there is no ``/proc``), number and machine name are
all that is compared.
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

_PROC = Path("/proc")


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
        """Whether its number is its own, or nobody's. A number is not given out again as long as a process group has it."""
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
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    facts = stat(pid)
    return not facts or facts[0] != "Z"


def born(pid: int) -> str:
    """When a process began; empty where there is none, or the system does not tell."""
    facts = stat(pid)
    return facts[19] if len(facts) > 19 else ""


def stat(pid: int) -> list[str]:
    """Linux's facts about a process, from its state on; none on other systems."""
    with contextlib.suppress(OSError):
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


@functools.cache
def this_system() -> str:
    """This machine since its last boot, and this container; its name where the system does not tell more."""
    with contextlib.suppress(OSError):
        boot = (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
        return f"{boot} {os.readlink(_PROC / 'self' / 'ns' / 'pid')}"
    return socket.gethostname()

"""A list on disk of all that a run of the nemesis has made outside its folder: processes, network namespaces, mounts.

Whoever makes something writes it down first. ``clean`` undoes a list; a later start cleans the lists of runs that were killed. A process is
known by its number and its start time, so that another one of the same number is left alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

LEDGERS = Path("/run/meander-nemesis") if os.access("/run", os.W_OK) else Path.home() / ".cache" / "meander-nemesis"
MARK = "MEANDER_NEMESIS"
"""In the environment of every process of a run: also of those whose parents have died."""


class Ledger:
    """One run's list."""

    def __init__(self, identity: str) -> None:
        LEDGERS.mkdir(parents=True, exist_ok=True)
        self.identity, self._path, self._lock = identity, LEDGERS / identity, threading.Lock()
        self.note("owner", str(os.getpid()), start_time(os.getpid()) or "")

    def note(self, kind: str, *words: str) -> None:
        with self._lock, self._path.open("a") as out:
            out.write("\t".join((kind, *words)) + "\n")
            out.flush()
            os.fsync(out.fileno())

    def clean(self) -> None:
        """Undo everything, also what is not there any more."""
        clean(self._path)


def clean_leftovers() -> list[str]:
    """Undo the lists of runs whose process has gone: their identities."""
    cleaned = []
    for path in sorted(LEDGERS.glob("*")) if LEDGERS.is_dir() else ():
        owners = [words[1:] for words in _read(path) if words[0] == "owner"]
        if not any(start_time(int(pid)) == began for pid, began in owners):
            clean(path)
            cleaned.append(path.name)
    return cleaned


def clean(path: Path) -> None:
    for _ in range(20):  # again, for those that are being born meanwhile
        members = marked(path.name)
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not members:
            break
        time.sleep(0.2)
    for kind, *words in reversed(_read(path)):
        if kind == "mount":
            subprocess.run(["umount", "--lazy", words[0]], capture_output=True, check=False)
        elif kind == "namespace":
            subprocess.run(["ip", "netns", "delete", words[0]], capture_output=True, check=False)
    path.unlink(missing_ok=True)


def marked(identity: str) -> list[int]:
    """The live processes of a run, by the mark in their environment; never this process."""
    wanted = f"{MARK}={identity}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(entry.name) != os.getpid() and wanted in (entry / "environ").read_bytes().split(b"\0") and start_time(int(entry.name)):
                found.append(int(entry.name))
    return sorted(found)


def start_time(pid: int) -> str | None:
    """When a process began, by the system's own count; None where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def _read(path: Path) -> list[list[str]]:
    try:
        return [line.split("\t") for line in path.read_text().splitlines() if line]
    except OSError:
        return []

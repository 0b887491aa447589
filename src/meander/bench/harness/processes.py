"""Processes of one session: to end what a benchmark started, and to see how much memory its workers hold.

A benchmark's child leads a session of its own. Its JVM, Python workers and helpers stay in it, also those that make themselves a
process group or lose their parent: so a session is what can be ended without touching anything else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading

import psutil

from meander.processes import session_members, words_of


def end_session(session: int) -> None:
    """Kill every process of a session, by its id; again, for those that were being born."""
    for _ in range(3):
        members = session_members(session)
        for pid in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not members:
            break
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signal.SIGKILL)  # and those that may not be looked at


def anonymous_bytes(pid: int) -> int | None:
    """The bytes of memory of a process that are not a mapped file; None if they cannot be known."""
    try:
        memory = psutil.Process(pid).memory_info()
    except psutil.Error:
        return None
    return int(memory.rss - memory.shared) if hasattr(memory, "shared") else None


class WorkerMemory:
    """Watches the Python workers of this process's Spark: the most anonymous memory that any one of them held."""

    def __init__(self, every: float = 0.2) -> None:
        self.peak: int | None = None
        self.workers: set[int] = set()
        self._every = every
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="worker-memory", daemon=True)
            self._thread.start()

    def stop(self) -> int | None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        return self.peak

    def _watch(self) -> None:
        session = os.getsid(0)
        while not self._over.wait(self._every):
            for pid in session_members(session):
                held = anonymous_bytes(pid) if "pyspark.daemon" in words_of(pid) else None
                if held is not None:
                    self.workers.add(pid)
                    self.peak = max(self.peak or 0, held)

"""A replica that comes up beside others on the same machine gives way to them until it has settled in.

A Spark that starts, imports and compiles takes all cores that it gets for some twenty seconds: the replicas at work, which hide that one
of them is missing, would be the ones to suffer. So everything that a new one starts runs at a lower priority first. It hardly comes up
later for it, as long as there is anything left to take, and is not made to wait for long where there is not.

Linux has two priorities: a session's among sessions (its autogroup), which anybody may lower and raise again, and a thread's among those of
its session or control group, which only the privileged may raise: so that one is lowered only where it can be. Elsewhere nothing is done.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from meander.replicate.process import session_members

LOWER, LOWEST = 10, 19
SETTLED_AFTER = 5.0
"""Seconds at work."""
LONGEST = 40.0
"""Seconds since the start, whatever was reached by then."""
_MAY_RAISE = 1 << 23
_PROC = Path("/proc")


class Courtesy:
    """That of one process, which leads a session, and all that it starts."""

    def __init__(self, leader: int, now: float) -> None:
        self._leader, self._began = leader, now
        self._before = _set(leader, LOWER)

    def is_over(self, now: float, at_work_since: float | None, beside_others: bool) -> bool:
        """Whether it is as the others from now on: it has settled in, has waited enough, or there is nobody to give way to."""
        settled = at_work_since is not None and now - at_work_since >= SETTLED_AFTER
        if not settled and beside_others and now - self._began < LONGEST:
            return False
        return raise_again(self._leader, self._before)


def raise_again(leader: int, to: int | None = None) -> bool:
    """A session and its processes as they were before, or as ours are.

    False where it is to be tried again: Linux allows ten changes per second.
    """
    try:
        (_PROC / str(leader) / "autogroup").write_text("0")
    except BlockingIOError:
        return False
    except OSError:
        pass  # it has ended, or there is no such thing
    if may_raise():
        to = os.getpriority(os.PRIO_PROCESS, 0) if to is None else to
        for _ in range(2):  # also those that were being born
            for pid in session_members(leader):
                for thread in _threads(pid):
                    with contextlib.suppress(OSError):
                        _raise(thread, to)
    return True


def may_raise() -> bool:
    """Whether this process may raise priorities."""
    try:
        capable = next(line for line in (_PROC / "self" / "status").read_text().splitlines() if line.startswith("CapEff:"))
    except (OSError, StopIteration):
        return False
    return bool(int(capable.split()[1], 16) & _MAY_RAISE)


def _set(leader: int, lower: int) -> int:
    """Lower the priority of a session that has just begun; what its processes had before."""
    before = 0
    with contextlib.suppress(OSError):
        (_PROC / str(leader) / "autogroup").write_text(str(lower))
    with contextlib.suppress(OSError):
        before = os.getpriority(os.PRIO_PROCESS, leader)
        if may_raise():
            os.setpriority(os.PRIO_PROCESS, leader, min(LOWEST, before + lower))
    return before


def _raise(thread: int, to: int) -> None:
    """By what it was lowered: one that is to be lower than the others stays so."""
    now, lowered = os.getpriority(os.PRIO_PROCESS, thread), min(LOWEST, to + LOWER)
    if now >= lowered:
        os.setpriority(os.PRIO_PROCESS, thread, now - (lowered - to))


def _threads(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        yield from (int(entry.name) for entry in (_PROC / str(pid) / "task").iterdir())

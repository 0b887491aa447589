"""A replica that comes up beside others on the same machine gives way to them until it has settled in.

A Spark that starts, imports and compiles takes all cores that it gets for some twenty seconds: the replicas at work, which hide that one
of them is missing, would be the ones to suffer. So everything that a new one starts runs at a lower priority first. It hardly comes up
later for it, as long as there is anything left to take, and is not made to wait for long where there is not.

Linux has two priorities: a session's among sessions (its autogroup), which any user may lower and
raise again, and a thread's among those of its session or control group, which only the privileged
may raise: so a thread's is lowered only if it can be raised again. Elsewhere nothing is done.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from meander.processes import nice_session, session_members, threads_of

LOWER, LOWEST = 10, 19
SETTLED_AFTER = 5.0
"""Seconds at work."""
LONGEST = 40.0
"""Seconds since the start."""


@dataclass(frozen=True)
class LowPriority:
    """That of one process, which leads a session, and all that it starts."""

    leader: int
    until: float
    """Whatever is reached by then."""
    usual: int
    """The priority that its processes will have."""

    @classmethod
    def begin(cls, leader: int, now: float) -> LowPriority:
        """Have a process give way that was started just now."""
        return cls(leader, now + LONGEST, _lower(leader))

    @classmethod
    def overdue(cls, leader: int) -> LowPriority:
        """The lowered priority of a replica whose supervisor was killed: it ends with the first
        look."""
        return cls(leader, float("-inf"), os.getpriority(os.PRIO_PROCESS, 0))

    def is_over(self, now: float, at_work_since: float | None, beside_others: bool) -> bool:
        """Whether the lower priority ends: the replica has settled in, has waited long enough, or
        no other replica is at work."""
        settled = at_work_since is not None and now - at_work_since >= SETTLED_AFTER
        if not settled and beside_others and now < self.until:
            return False
        return _raise_again(self.leader, self.usual)


def _lower(leader: int) -> int:
    """Lower the priority of a session that has just begun; the former priorities of its
    processes."""
    usual = 0
    with contextlib.suppress(OSError):
        nice_session(leader, LOWER)
    with contextlib.suppress(OSError):
        usual = os.getpriority(os.PRIO_PROCESS, leader)
        if may_raise():
            os.setpriority(os.PRIO_PROCESS, leader, min(LOWEST, usual + LOWER))
    return usual


def _raise_again(leader: int, usual: int) -> bool:
    """A session and its processes as they were before. False where it is to be tried again: Linux allows ten changes per second."""
    try:
        nice_session(leader, 0)
    except BlockingIOError:
        return False
    except OSError:
        pass  # it has ended, or there is no such thing
    with contextlib.suppress(OSError):
        if may_raise() and os.getpriority(os.PRIO_PROCESS, leader) >= min(LOWEST, usual + LOWER):
            for _ in range(2):  # also those that were being born
                for pid in session_members(leader):
                    for thread in threads_of(pid):
                        _raise(thread, usual)
    return True


def _raise(thread: int, usual: int) -> None:
    """Undo the lowering by the same amount: a process that had a lower priority than the others
    keeps it."""
    with contextlib.suppress(OSError):
        now, lowered = os.getpriority(os.PRIO_PROCESS, thread), min(LOWEST, usual + LOWER)
        if now >= lowered:
            os.setpriority(os.PRIO_PROCESS, thread, now - (lowered - usual))


@functools.cache
def may_raise() -> bool:
    """Whether this process may raise a priority that it has lowered. Tried, with a thread that ends: in some containers rights are not."""
    if not sys.platform.startswith("linux"):  # elsewhere threads have no priorities of their own
        return False
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_lower_and_raise).result()


def _lower_and_raise() -> bool:
    thread = threading.get_native_id()
    now = os.getpriority(os.PRIO_PROCESS, thread)
    try:
        os.setpriority(os.PRIO_PROCESS, thread, now + 1)
        os.setpriority(os.PRIO_PROCESS, thread, now)
    except OSError:
        return False
    return True

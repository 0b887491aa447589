"""The only reader of time, randomness and ids.

All other code gets them from a ``Clock`` that is passed to it; lint forbids other ways. So a
simulation with a ``FakeClock`` replays exactly from its seed, and no result depends on the machine
that computed it.
"""

from __future__ import annotations

import random
import secrets
import time
from typing import Protocol


class Clock(Protocol):
    """Time, waiting and fresh names, as one object that a test can replace."""

    def now(self) -> float:
        """Wall time in seconds since 1970. May jump: never subtract two of them to get a duration."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back. For durations and deadlines within one process."""

    def sleep(self, seconds: float) -> None:
        """Wait. Zero or less returns at once."""

    def new_id(self) -> str:
        """16 hexadecimal digits that are used only once."""


class SystemClock:
    """The machine's own time and randomness. Stateless, so it is picklable and safe to share between threads."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)

    def new_id(self) -> str:
        # The system's randomness, not the seeded generator: forked workers share that one's state, and would
        # give two attempts the same name.
        return secrets.token_hex(8)


class FakeClock:
    """Time that passes only when someone sleeps, and ids that follow from the seed.

    >>> clock = FakeClock(start=1000.0, seed=7)
    >>> clock.sleep(2.5)
    >>> clock.now(), clock.monotonic()
    (1002.5, 2.5)
    >>> clock.new_id() == FakeClock(seed=7).new_id()
    True
    """

    def __init__(self, start: float = 0.0, seed: int = 0) -> None:
        self._start = start
        self._elapsed = 0.0
        self._random = random.Random(seed)

    def now(self) -> float:
        return self._start + self._elapsed

    def monotonic(self) -> float:
        return self._elapsed

    def sleep(self, seconds: float) -> None:
        self._elapsed += max(0.0, seconds)

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an operator or NTP does; monotonic time does not notice."""
        self._start += seconds

    def new_id(self) -> str:
        return f"{self._random.getrandbits(64):016x}"

"""Holding: what a run does while its store, or a sink, does not answer.

What is away comes back: a server restarts, a network heals, credentials are renewed, a disk has room again. Ending would only
leave the start to somebody else, so a run holds:

1. the step that failed is given up; what it had decided and not committed is decided again
2. it waits, longer from try to try, and not as long as others that began to wait in the same moment
3. it takes up what the log says, since an entry that was not answered may be in it, and does the step again

It says so once when it begins to hold and once when it goes on; meanwhile ``held`` says since when, and why.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from meander.clock import Clock
from meander.errors import Retryable, Unavailable

FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0
_SLICE = 0.1
_OTHERS = 600.0
"""Seconds for which anything but the store is waited for, by who waits for more than the store."""
_LOG = logging.getLogger("meander")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Held:
    """That a run holds."""

    since: float
    """Wall time."""
    why: str
    """The last call that was not answered, and how."""
    tries: int


class Patience:
    """One run's."""

    def __init__(self, clock: Clock, who: str, limit: float | None = None, kinds: type[Retryable] = Unavailable) -> None:
        """``limit``: seconds after which holding is given up, and what was not answered is raised; None: never. ``kinds``: what is waited
        out."""
        self._clock, self._who, self._limit, self._kinds = clock, who, limit, kinds
        self._leaving = threading.Event()
        self._lock = threading.Lock()
        self._held: dict[int, Held] = {}
        """By thread: with Structured Streaming batches have one of their own."""

    @property
    def held(self) -> Held | None:
        """What is waited for; None while nothing is."""
        with self._lock:
            return min(self._held.values(), key=lambda held: held.since, default=None)

    def leave(self) -> None:
        """Hold no longer: who waits is told what was not answered last."""
        self._leaving.set()

    @property
    def is_leaving(self) -> bool:
        return self._leaving.is_set()

    def persevere(
        self,
        work: Callable[[], Result],
        mend: Callable[[], object],
        waits: Callable[[], object] = lambda: None,
        leaves: Callable[[], bool] = lambda: False,
    ) -> Result:
        """Do some work; where the store does not answer, wait and do it again, after ``mend``. ``waits`` is told before every wait."""
        began: float | None = None
        wait = FIRST_WAIT
        try:
            while True:
                try:
                    if began is not None:
                        mend()
                    result = work()
                    break
                except self._kinds as error:
                    now = self._clock.monotonic()
                    began = now if began is None else began
                    self._hold(error)
                    limit = self._limit if isinstance(error, Unavailable) else _OTHERS
                    if self.is_leaving or leaves() or (limit is not None and now - began > limit):
                        raise
                    waits()
                    self._wait(wait, leaves)
                    wait = min(2 * wait, LONGEST_WAIT)
            if began is not None:
                _LOG.warning(f"{self._who} goes on, after {self._clock.monotonic() - began:.1f} s")
            return result
        finally:
            with self._lock:
                self._held.pop(threading.get_ident(), None)

    def _hold(self, error: Retryable) -> None:
        with self._lock:
            me, is_first = threading.get_ident(), not self._held
            known = self._held.get(me)
            self._held[me] = Held(self._clock.now() if known is None else known.since, str(error), 1 if known is None else known.tries + 1)
        if is_first:
            _LOG.warning(f"{self._who} holds, and tries again: {error}")

    def _wait(self, seconds: float, leaves: Callable[[], bool]) -> None:
        """Between half and one and a half times as long. In slices: the end of a run must not wait for the end of a pause."""
        seconds *= 0.5 + int(self._clock.new_id(), 16) / (1 << 64)
        while seconds > 0 and not (self.is_leaving or leaves()):
            self._clock.sleep(min(seconds, _SLICE))
            seconds -= _SLICE

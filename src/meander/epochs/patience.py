"""Holding: a run waits while its store, or a sink, does not answer.

Such failures end: a server restarts, a network recovers, credentials are renewed, a disk has room
again. If the run ended, somebody would have to start it again. So a run holds:

1. the failed step is given up; a decision that was not committed is made again
2. the run waits, longer from try to try, with a random part, so that runs that fail together do not
   try again together
3. it reads the log again, since an append without an answer may have succeeded, and repeats the
   step

The run logs one line when it begins to hold and one when it continues; meanwhile ``held`` has the
time and the reason.
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
"""Seconds to wait for anything but the store."""
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
        """``limit``: seconds after which holding ends and the error is raised; None: never.
        ``kinds``: the errors that are waited out."""
        self._clock, self._who, self._limit, self._kinds = clock, who, limit, kinds
        self._leaving = threading.Event()
        self._lock = threading.Lock()
        self._held: dict[int, Held] = {}
        """By thread: with Structured Streaming batches have one of their own."""

    @property
    def held(self) -> Held | None:
        """The reason for holding; None while the run does not hold."""
        with self._lock:
            return min(self._held.values(), key=lambda held: held.since, default=None)

    def leave(self) -> None:
        """Stop holding: the waiting call raises its last error."""
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

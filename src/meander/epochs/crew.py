"""Executors that come and go with the load: requested from, and released to, a cluster manager (``on_spark.allocation``).

Executors are drained before release. An executor is evacuated first; two epochs later, when none of its output is needed any more, the
manager is asked for one executor less, and then to release this one *unless it is busy*: then it is asked again. The manager is called
in a thread of its own.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from meander.clock import Clock
from meander.coordinate.executors import executors_for, staff
from meander.epochs.placement import Placement
from meander.errors import ConfigError

_LOG = logging.getLogger("meander")
_PATIENCE = 120.0
"""Seconds within which an executor that was asked for is expected."""
_DOUBT = 600.0
"""Seconds in which a cluster that could not give more is not asked for more."""
_EPOCHS, _SETTLE = 2, 3.0
"""An executor is released so many epochs after it was evacuated, or so many seconds if there are no
epochs: work begun there has ended by then."""


class Crew:
    """The executors of one autoscaled flow. Called in the loop's thread, between two epochs."""

    def __init__(self, manager: Any, placement: Placement, slots_per_executor: int, clock: Clock) -> None:
        self._manager, self._placement, self._per_executor, self._clock = manager, placement, slots_per_executor, clock
        self._calls = ThreadPoolExecutor(1, thread_name_prefix="meander-executors")
        self._asked: int | None = None
        self._draining: dict[str, tuple[int, float]] = {}
        """Evacuated executors that are to be released: the epoch, and the time."""
        self._releasing: dict[str, Future[bool]] = {}
        self._failed: tuple[int, float] | None = None
        """How many there were when the cluster could not give more, and when that was."""
        self.events: list[str] = []
        """The latest actions, for the status."""

    def reach(self, slots: int) -> int:
        """How many slots there could be room for, up to so many, with executors that are asked for."""
        if self._failed is not None and self._clock.monotonic() - self._failed[1] < _DOUBT:
            return max(self._failed[0], len(self._placement.executors())) * self._per_executor
        return executors_for(slots, self._per_executor) * self._per_executor

    def room(self, slots: int, waited: float) -> int | None:
        """For how many of these slots executors are ready; asks for those that are missing, and answers None while they may still come."""
        plan = self._plan(slots)
        self._keep(plan.keep)
        ready = len(self._placement.ready())
        if ready >= plan.wanted:
            return slots
        self._ask(plan.wanted)
        if waited < _PATIENCE:
            return None
        if self._failed is None or self._failed[0] != ready:
            _LOG.warning(f"autoscale: {plan.wanted} executors were requested, {ready} are there after {_PATIENCE:.0f} s; slots use these")
        self._failed = (ready, self._clock.monotonic())
        return min(slots, ready * self._per_executor)

    def thin_out(self, slots: int, epoch: int) -> None:
        """Have those leave that these slots do not need."""
        for executor in self._plan(slots).leave:
            try:
                self._placement.evacuate(executor)
            except ConfigError:  # it has gone by itself
                continue
            self._draining[executor] = (epoch, self._clock.monotonic())
            self._say(f"draining executor {executor}")

    def surplus(self, slots: int) -> bool:
        return bool(self._plan(slots).leave)

    def tend(self, epoch: int) -> None:
        """Release who is drained. Asked again while Spark says that it is busy."""
        known = self._placement.executors().keys() | self._placement.leaving
        for executor, (since, at) in list(self._draining.items()):
            call = self._releasing.get(executor)
            if call is not None and call.done():
                del self._releasing[executor]
                if call.result():
                    self._draining.pop(executor)
                    self._say(f"released executor {executor}")
                    continue
            if executor not in known:
                self._draining.pop(executor)
            elif call is None and self._is_drained(executor, epoch - since, self._clock.monotonic() - at):
                self._releasing[executor] = self._calls.submit(self._release, executor, len(self._placement.executors()))

    def close(self) -> None:
        self._calls.shutdown(wait=False, cancel_futures=True)

    # -- pieces ---------------------------------------------------------------------------------------------------

    def _plan(self, slots: int) -> Any:
        where = [name for names in self._placement.where().values() for name in names]
        staying = {name: where.count(name) for name in self._placement.executors()}
        return staff(slots, self._per_executor, staying, [name for name in self._draining if name not in self._releasing])

    def _is_drained(self, executor: str, epochs: int, seconds: float) -> bool:
        here = any(executor in slots for slots in self._placement.where().values())
        return not here and (epochs >= _EPOCHS or seconds >= _SETTLE)

    def _keep(self, executors: tuple[str, ...]) -> None:
        for executor in executors:
            self._draining.pop(executor, None)
            self._placement.keep(executor)
            self._say(f"keeping executor {executor} after all")

    def _ask(self, total: int) -> None:
        if total == self._asked:
            return
        self._asked = total
        asking = f"asking for {total} executors"
        if self.events[-1:] != [asking]:
            self._say(asking)
        self._calls.submit(self._request, total)

    def _request(self, total: int) -> bool:
        """In the calls' thread. A total that the manager has not heard of is asked for again."""
        if self._manager.request(total):
            return True
        self._asked = None
        return False

    def _release(self, executor: str, remaining: int) -> bool:
        self._asked = remaining
        return self._request(remaining) and bool(self._manager.release(executor))

    def _say(self, what: str) -> None:
        self.events = [*self.events[-19:], what]
        _LOG.info(f"autoscale: {what}")

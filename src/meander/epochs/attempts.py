"""Running an epoch, again where that may help, and without committing it: step 2 of an epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl

from meander.clock import Clock
from meander.epochs.decision import Decision, Outcome
from meander.epochs.in_force import InForce
from meander.epochs.publish import read_output
from meander.epochs.runner import Runner
from meander.epochs.tidy import Tidy
from meander.errors import Retryable, Unavailable
from meander.state.stores.contract import Store

MOST = 5


class Attempts:
    """One loop's. A trial runs its epoch in a thread of its own, and the loop's waits for it."""

    def __init__(self, store: Store, clock: Clock, in_force: InForce, *, runner: Runner, tidy: Tidy) -> None:
        self._store, self._clock, self._in_force, self.runner, self._tidy = store, clock, in_force, runner, tidy

    def run(self, decision: Decision, prepared: Any = None, meanwhile: Callable[[], None] = lambda: None, most: int = MOST) -> Outcome:
        """Run an epoch on what is in force. ``prepared`` was begun of it ahead; ``meanwhile`` is done beside the first attempt."""
        for attempt in range(most):
            last = attempt == most - 1
            pending = self._begin(decision, prepared if attempt == 0 else None, last)
            if attempt == 0:
                meanwhile()
            if pending is not None:
                try:
                    return pending()
                except Unavailable:  # the run holds: it says so, hears a stop, and does not waste jobs on a store that is away
                    raise
                except Retryable:
                    if last:
                        raise
            self.runner.recover()
            self._clock.sleep(0.1 * 2**attempt)
        raise AssertionError("unreachable")

    def output(self, outcome: Outcome) -> dict[str, pl.DataFrame]:
        """The output of an epoch that is not committed, per sink."""
        return read_output(self._store, outcome)

    def throw_away(self, outcome: Outcome) -> None:
        """The objects of an epoch that is not committed are garbage."""
        self._tidy.unwanted(*outcome.names())

    def _begin(self, decision: Decision, prepared: Any, last: bool) -> Callable[[], Outcome] | None:
        basis = self._in_force.basis()
        try:
            return self.runner.begin(decision, basis.before, basis.routing, prepared)
        except Unavailable:
            raise
        except Retryable:
            if last:
                raise
            return None

"""All that a loop works with, put together: each part knows the others that it needs, and none knows the loop's steps.

The work before the first epoch and after the last one is here, too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Executor

from meander.epochs.ahead import Ahead
from meander.epochs.alone import Alone
from meander.epochs.attempts import Attempts
from meander.epochs.catching_up import CatchingUp
from meander.epochs.compaction import Compactor
from meander.epochs.decision import Decision, Outcome
from meander.epochs.decisions import Decisions
from meander.epochs.events import Listeners
from meander.epochs.fencing import fenced_first
from meander.epochs.in_force import InForce
from meander.epochs.input import Input
from meander.epochs.maintenance import Housekeeping
from meander.epochs.options import LoopOptions, Tenure
from meander.epochs.parts import Parts, check_continuity
from meander.epochs.patience import Patience
from meander.epochs.probation import Trials
from meander.epochs.publish import Publisher
from meander.epochs.requests import Requests
from meander.epochs.runner import Runner
from meander.epochs.siblings import Siblings
from meander.epochs.tidy import Tidy


class Wired(ABC):
    """The parts of a loop."""

    def __init__(
        self,
        tenure: Tenure,
        parts: Parts,
        runner: Runner,
        *,
        compactor: Compactor,
        options: LoopOptions,
        events: Listeners | None = None,
        siblings: Callable[[Wired], Siblings] | None = None,
        deletions: Executor | None = None,
    ) -> None:
        """``siblings`` makes the other replicas known to this loop. ``deletions`` removes objects beside the epochs."""
        store, clock, self.log = tenure.store, tenure.clock, tenure.log
        self._clock = clock
        self.events = events or Listeners()
        self.requests = Requests()
        self.tidy = Tidy(store, self.log.manifest, options.retain, self.events.segments_collected, deletions)
        check_continuity(store, self.log.manifest, parts)
        self.siblings: Siblings = Alone(self, clock) if siblings is None else siblings(self)
        self.input = Input(store, self.siblings.now, self.log, parts.sources)
        ahead = Ahead(runner)
        self.in_force = InForce(self.log, parts, options.parallelism, input=self.input, ahead=ahead, runner=runner)
        self.patience = Patience(clock, self.siblings.who, options.patience, self.siblings.waits_for)
        self.decisions = Decisions(self.log, self.in_force, self.input, ahead=ahead, siblings=self.siblings, work_ahead=options.work_ahead)
        self.attempts = Attempts(store, clock, self.in_force, runner=runner, tidy=self.tidy)
        self.publisher = Publisher(store, self.in_force, self.patience, self.siblings)
        self.catching_up = CatchingUp(self.in_force, self.input, self.decisions, attempts=self.attempts, tidy=self.tidy)
        self.trials = Trials(self, clock)
        self.housekeeping = Housekeeping(tenure, self.in_force, self.input, siblings=self.siblings, compactor=compactor, tidy=self.tidy)

    @abstractmethod
    def finish(self, decision: Decision, outcome: Outcome, began: float) -> bool:
        """Commit an epoch that has run since ``began``, publish it, and tidy up. False where a sibling has committed it."""

    def recover(self) -> None:
        """Finish what the last generation committed and may not have published."""
        with fenced_first(self.log):
            self.in_force.parts.open_sinks()
            self.siblings.recover()
            self.input.release(self.log.manifest.recent)
            self.tidy.sweep()

    def reroute(self, operator: str, table: list[int]) -> None:
        """Another routing table for an operator, in force from the next epoch. Between two epochs only."""
        if table != self.routing[operator]:
            self.siblings.rerouted(operator, table)
            self.in_force.route(operator, table)

    @property
    def routing(self) -> dict[str, list[int]]:
        """Per stateful operator, the slot of each key group."""
        return self.in_force.routing

    def finished(self) -> bool:
        """Whether no source can ever have more."""
        return self.decisions.begun is None and self.input.finished()

    def close(self) -> None:
        self.input.close()
        self.housekeeping.close()
        self.tidy.close()

"""Starting a flow on a store, in process: what ``on_spark.opening`` does, without Spark, locks and helpers.

The loop, the tasks, the store and the log are the real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from meander.clock import Clock
from meander.epochs.compaction import Compactor
from meander.epochs.decision import EpochDone
from meander.epochs.events import EpochListener, Listeners
from meander.epochs.loop import Loop
from meander.epochs.modification import Modifier, at_start
from meander.epochs.opening import choose, open_loop
from meander.epochs.options import Tenure
from meander.epochs.parts import Parts
from meander.epochs.probation import Trial
from meander.epochs.tasks import TaskRunner, Terms
from meander.plan.change.become import HasPlan
from meander.replicate.follow import Follower
from meander.replicate.membership import Cohort
from meander.settings import Settings
from meander.state.log import Log
from meander.state.stores.contract import Store
from meander.task.physical import Compiled
from meander.testing.jobs import LocalJobs
from meander.testing.merges import MergeAtOnce
from meander.worker import Worker


@dataclass
class Opened:
    """A flow that owns its store and has recovered."""

    loop: Loop
    modifier: Modifier
    runner: TaskRunner
    close: Callable[[], None]
    worker: Worker
    """Where its tasks run."""
    cohort: Cohort | None = None
    trial: Trial | None = None
    """An edited flow, to be tried with the first epoch."""


def open_flow(
    flow: HasPlan,
    store: Store,
    clock: Clock,
    settings: Settings,
    *,
    dead_letters: str,
    check: Callable[[Compiled], None] = lambda compiled: None,
    merges: Callable[[Store, int], Compactor] = MergeAtOnce,
    listener: Callable[[EpochDone], None] = lambda done: None,
    join: Callable[[Log], Cohort] | None = None,
    apply: bool | Mapping[str, Any] = False,
    request_id: str = "",
    worker: Worker | None = None,
) -> Opened:
    """Take the store over, recover, and be ready for the first epoch.

    ``check`` is called with every plan that is to come into force. ``join`` makes this run one of several replicas. ``apply`` is as of
    ``flow.start``; what it asks for has the id ``request_id``.
    """

    worker = worker or Worker()

    def parts_of(made: Compiled) -> Parts:
        check(made)
        return Parts.of(made, dead_letters)

    tenure = Tenure(store, clock, Log.take_over(store, clock, settings.key_groups, join is not None))
    log, given = tenure.log, flow.plan()
    chosen = choose(tenure, given, at_start(apply, given, request_id or clock.new_id()), settings.same_code)
    terms = Terms(store.url, log.manifest.generation, settings.strict, digests=join is not None, small_epochs=settings.small_epochs)
    runner = TaskRunner(LocalJobs(worker), dict, chosen.program, terms=terms, clock=clock)
    cohort = None if join is None else join(log)
    opened = open_loop(
        tenure,
        chosen,
        runner,
        settings=settings,
        compactor=merges(store, log.manifest.key_groups),  # what the store was made with counts, not what is asked for now
        make_parts=parts_of,
        events=Listeners([EpochListener(listener)]),
        siblings=None if cohort is None else partial(Follower, cohort=cohort, clock=clock),
    )
    loop = opened.loop

    def close() -> None:
        loop.close()
        runner.close()

    return Opened(loop, opened.modifier, runner, close, worker, cohort, opened.trial)

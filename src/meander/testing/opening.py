"""Starting a flow on a store, in process: what ``on_spark.opening`` does, without Spark, locks and helpers.

The loop, the tasks, the store and the log are the real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from meander.clock import Clock
from meander.epochs import tables
from meander.epochs.compaction import Compactor
from meander.epochs.decision import EpochDone
from meander.epochs.loop import Loop
from meander.epochs.modification import Modifier, at_start
from meander.epochs.parts import Parts
from meander.epochs.probation import Trial
from meander.epochs.recognition import recognise
from meander.epochs.resumption import plan_before, put_plan, put_started, resume_plan
from meander.epochs.tasks import TaskRunner
from meander.plan.change.become import HasPlan
from meander.replicate.follow import Follower
from meander.replicate.membership import Cohort
from meander.settings import Settings
from meander.state.log import Log
from meander.state.stores.contract import Store
from meander.task.physical import Compiled, compile_plan
from meander.testing.jobs import LocalJobs
from meander.testing.merges import MergeAtOnce


@dataclass
class Opened:
    """A flow that owns its store and has recovered."""

    loop: Loop
    modifier: Modifier
    close: Callable[[], None]
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
) -> Opened:
    """Take the store over, recover, and be ready for the first epoch.

    ``check`` is called with every plan that is to come into force. ``join`` makes this run one of several replicas. ``apply`` is as of
    ``flow.start``; what it asks for has the id ``request_id``.
    """

    def parts_of(made: Compiled) -> Parts:
        check(made)
        return Parts.of(made, dead_letters)

    log = Log.take_over(store, clock, settings.key_groups, join is not None)
    given = flow.plan()
    given = recognise(store, log.manifest, given, settings.same_code, bool(apply))
    edited = at_start(apply, given, request_id or clock.new_id())
    before = None if edited is None else plan_before(store, log.manifest, given)
    plan, marks = before or resume_plan(store, log.manifest, given)
    written: set[str] = set()
    stored = tables.at_start(store, clock, log.manifest, plan, marks, written)
    compiled = compile_plan(plan)
    put_plan(store, compiled)
    runner = TaskRunner(LocalJobs(), dict, compiled, store.url, clock, settings.strict, settings.small_epochs)
    runner.generation(log.manifest.generation)
    runner.tables = stored
    runner.digests = join is not None
    parts = parts_of(compiled)
    compactor = merges(store, log.manifest.key_groups)  # what the store was made with counts, not what is asked for now
    cohort = None if join is None else join(log)
    loop = Loop(
        store,
        clock,
        log,
        replace(parts, plan={**parts.plan, **marks}),
        runner,
        settings.parallelism,
        compactor,
        settings.retain_epochs,
        listener,
        settings.work_ahead,
        siblings=None if cohort is None else partial(Follower, cohort=cohort, clock=clock),
    )
    loop.housekeeping.written |= written
    put_started(store, plan, loop.plan)
    modifier = Modifier(loop, store, clock, plan, given, parts_of, before is not None)
    loop.recover()
    modifier.recover()
    trial = modifier.begin(edited) if edited is not None and before is not None else None

    def close() -> None:
        loop.close()
        runner.close()

    return Opened(loop, modifier, close, cohort, trial)

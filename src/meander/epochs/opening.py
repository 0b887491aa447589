"""The middle of a start, the same on Spark and in process: from a store that was taken over to a loop that has recovered.

1. ``choose``: the plan to go on with, and what is stored of it before an epoch names it
2. the caller makes what runs its tasks
3. ``open_loop``: the loop is put together and finishes what the last generation has begun
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from meander.epochs.compaction import Compactor
from meander.epochs.events import Listeners
from meander.epochs.loop import Loop
from meander.epochs.modification import Modifier, Request
from meander.epochs.options import LoopOptions, Tenure
from meander.epochs.parts import Parts
from meander.epochs.probation import Trial
from meander.epochs.recognition import recognise
from meander.epochs.resumption import plan_before, put_plan, put_started, resume_plan
from meander.epochs.runner import Program
from meander.epochs.siblings import Siblings
from meander.epochs.tables import at_start
from meander.epochs.tasks import TaskRunner
from meander.epochs.wiring import Wired
from meander.plan.graph import Plan
from meander.settings import Settings
from meander.state.manifest import Json
from meander.task.physical import Compiled, compile_plan


@dataclass(frozen=True)
class Chosen:
    """The plan that a run goes on with."""

    given: Plan
    """The flow as it was started."""
    plan: Plan
    marks: Json
    """What log entries say of the plan beside flow, version and digest."""
    program: Program
    written: frozenset[str]
    """Pieces of tables that were written for it, and that the log does not name yet."""
    edited: Request | None = None
    """Asks that the plan becomes the flow that was given, which was never in force here."""

    @property
    def compiled(self) -> Compiled:
        return self.program.compiled


@dataclass(frozen=True)
class OpenLoop:
    """A loop that has recovered."""

    loop: Loop
    modifier: Modifier
    trial: Trial | None = None
    """The edited file that was started, to be tried with the first epoch."""


def choose(tenure: Tenure, given: Plan, edited: Request | None, same_code: bool | Sequence[str] = False) -> Chosen:
    """The plan to go on with: the flow that was given, or what modifications have made of it.

    ``edited`` where it may be another one; ``same_code`` names operators whose changed code does what it did.
    """
    store, manifest = tenure.store, tenure.log.manifest
    given = recognise(store, manifest, given, same_code, edited is not None)
    edited = None if edited is None else edited.of(given)
    before = None if edited is None else plan_before(store, manifest, given)
    plan, marks = before or resume_plan(store, manifest, given)
    written: set[str] = set()
    tables = at_start(store, tenure.clock, manifest, plan, marks, written)
    compiled = compile_plan(plan)
    put_plan(store, compiled)
    program = Program.of(compiled, {"tables": tables})
    return Chosen(given, plan, marks, program, frozenset(written), edited if before is not None else None)


def open_loop(
    tenure: Tenure,
    chosen: Chosen,
    runner: TaskRunner,
    *,
    settings: Settings,
    compactor: Compactor,
    make_parts: Callable[[Compiled], Parts],
    events: Listeners,
    siblings: Callable[[Wired], Siblings] | None = None,
    deletions: Executor | None = None,
) -> OpenLoop:
    """A loop that has finished the epoch that the last generation committed. If that fails, the loop is closed again."""
    parts = make_parts(chosen.compiled)  # a plan that was modified has other folders than the flow that was given
    loop = Loop(
        tenure,
        replace(parts, plan={**parts.plan, **chosen.marks}),
        runner,
        compactor=compactor,
        options=LoopOptions(settings.parallelism, settings.retain_epochs, settings.work_ahead, settings.patience),
        events=events,
        siblings=siblings,
        deletions=deletions,
    )
    try:
        loop.housekeeping.written |= chosen.written
        put_started(tenure.store, chosen.plan, loop.in_force.plan)
        modifier = Modifier(loop, tenure, chosen.plan, given=chosen.given, make_parts=make_parts, edited=chosen.edited is not None)
        loop.recover()
        modifier.recover()
        return OpenLoop(loop, modifier, None if chosen.edited is None else modifier.begin(chosen.edited))
    except BaseException:
        loop.close()
        runner.close()
        raise

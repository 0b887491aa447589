"""Starting a flow on a store: check, lock, take over, recover, run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from meander.clock import Clock
from meander.connect.latency import LatencyFile
from meander.connect.source import Split
from meander.connect.spark_stream import SparkStreamSource
from meander.epochs.compaction import Compactor, ProcessCompactor
from meander.epochs.decision import EpochDone
from meander.epochs.events import EpochListener, Listeners
from meander.epochs.folders import check_folders
from meander.epochs.migration import Migration
from meander.epochs.modification import Modifier, Request
from meander.epochs.opening import choose, open_loop
from meander.epochs.options import Tenure
from meander.epochs.parts import Parts
from meander.epochs.placement import Placement
from meander.epochs.probation import Trial
from meander.epochs.scaling import Autoscaler, LoadMeter
from meander.epochs.steward_compaction import StewardCompactor
from meander.epochs.tasks import TaskRunner, Terms
from meander.errors import ConfigError
from meander.on_spark.allocation import hire
from meander.on_spark.introduction import Introducer
from meander.on_spark.jobs import SparkJobs
from meander.on_spark.probe import probe_store
from meander.on_spark.session import executors, is_local, prepare_context, session_options
from meander.on_spark.session import spark as make_session
from meander.on_spark.structured import Driver, drive
from meander.plan.graph import Plan
from meander.plan.pickling import pack_plan, ship_user_modules
from meander.replicate.election import Election
from meander.replicate.follow import Follower
from meander.replicate.membership import Cohort
from meander.settings import Settings
from meander.state.log import Log, newest_generation, read_manifest
from meander.state.stores.contract import Lock, Store
from meander.state.stores.lease import Lease, refuse_beside_live
from meander.state.stores.opening import checked_store, put_format
from meander.task.physical import Compiled, compile_plan


@dataclass
class Opened:
    """A flow that owns its store and has recovered."""

    driver: Driver
    close: list[Callable[[], None]]
    listeners: list[Callable[[EpochDone], None]]
    placement: Placement
    migration: Migration
    modifier: Modifier | None
    autoscaler: Autoscaler | None
    session: Any
    """The embedded Spark session, where one was made for this run."""
    application: str = ""
    """What Spark calls this driver."""
    cohort: Cohort | None = None
    """Its siblings, where this is one of several replicas."""
    trial: Trial | None = None
    """The edited file that was started, to be tried with the first epoch."""


def open_flow(plan: Plan, store_url: str, session: Any, clock: Clock, settings: Settings, edited: Request | None = None) -> Opened:
    """Everything between ``flow.start(...)`` and the first epoch. Nothing in the store is touched before the lock is held.

    Refusals come before a Spark is started, since the start takes seconds. ``edited`` asks that the flow that the store holds
    becomes this one, where it is one that was never in force there.
    """
    own = None if hasattr(session, "sparkContext") else session_options(session)
    compiled = compile_plan(plan)
    if settings.replica is not None:
        _check_can_be_replicated(compiled, settings)
    ship_user_modules([node.op for node in compiled.plan.nodes])
    pack_plan(plan)  # a function that cannot travel is named here
    store = checked_store(store_url)
    letters = _dead_letters(store, settings)
    check_folders(compiled, letters)
    seen = newest_generation(store)
    shared = settings.replica is not None
    previous = _lock(store, clock, settings.takeover, shared)
    close: list[Callable[[], None]] = []
    try:
        put_format(store, clock)
        made: Any = None if own is None else make_session(**own)
        context: SparkContext = (session if own is None else made).sparkContext
        prepare_context(context)
        probe_store(store, context, clock)
        if previous is None and newest_generation(store) != seen:  # somebody else started while Spark did, and nothing kept them off
            _lock(store, clock, settings.takeover, shared)
        log = Log.take_over(store, clock, settings.key_groups, shared)
        generation = log.manifest.generation
        close.append(_hold(store, generation, clock, shared))
        cohort = None
        if settings.replica is not None:
            cohort = Cohort(store, clock, settings.replica, generation, _election(store, plan, settings))
            cohort.reached(log.manifest.epoch)
            cohort.start()
            close.append(cohort.close)
        tenure = Tenure(store, clock, log)
        chosen = choose(tenure, plan, edited, settings.same_code)
        terms = Terms(store.url, generation, settings.strict, settings.state_mode, cohort is not None, settings.small_epochs)
        runner = TaskRunner(SparkJobs(context), lambda: executors(context), chosen.program, terms=terms, clock=clock)
        helper = ProcessCompactor(store.url, clock, generation, log.manifest.key_groups)
        compactor: Compactor = helper if store.local("") is not None else StewardCompactor(runner, helper, clock, generation)
        listeners: list[Callable[[EpochDone], None]] = []
        deletions = None if store.local("") is not None else ThreadPoolExecutor(1, thread_name_prefix="meander-deletions")
        if deletions is not None:  # what is not removed by then, the next start sweeps
            close.insert(0, lambda: deletions.shutdown(wait=True, cancel_futures=True))
        events = Listeners([runner, EpochListener(lambda done: _tell(listeners, done))])
        opened = open_loop(
            tenure,
            chosen,
            runner,
            settings=settings,
            compactor=compactor,
            make_parts=lambda made: _checked_parts(made, letters),
            events=events,
            siblings=None if cohort is None else partial(Follower, cohort=cohort, clock=clock),
            deletions=deletions,
        )
        loop, compiled = opened.loop, chosen.compiled
        close[:0] = [loop.close, runner.close]
        if not is_local(context):  # a local Spark is one executor, which the probe has met
            common = runner.introduction(log.manifest.key_groups)
            close.insert(0, Introducer(context, runner.placement, store, common, clock, runner.met).start().close)
        if settings.latency_file is not None:
            latency = LatencyFile(settings.latency_file)
            listeners.append(lambda done: latency.append(_read_splits(done), clock.now()))
            close.append(latency.close)
        meter, autoscaler = LoadMeter(), None
        listeners.append(lambda done: meter.add(done.outcome.load))
        if settings.autoscale is not None:
            crew = hire(context, runner.placement, settings.autoscale.slots_per_executor, clock)
            autoscaler = Autoscaler(settings.autoscale, loop, meter, _stages(compiled), runner.placement.cores, clock, crew)
            opened.modifier.listeners.append(lambda made: autoscaler.restage(_stages(made)))
            events.add(autoscaler)
            if crew is not None:
                close.insert(0, crew.close)
        driver = drive(loop, compiled, store, settings)
        needs_fetching = settings.state_mode != "hybrid" or store.local("") is None
        return Opened(
            driver,
            close,
            listeners,
            placement=runner.placement,
            migration=Migration(loop, runner, meter, clock, needs_fetching=needs_fetching),
            modifier=opened.modifier,
            autoscaler=autoscaler,
            session=made,
            application=context.applicationId,
            cohort=cohort,
            trial=opened.trial,
        )
    except BaseException:
        for undo in close:
            undo()
        raise
    finally:
        if previous is not None:
            previous.release()


def _tell(listeners: list[Callable[[EpochDone], None]], done: EpochDone) -> None:
    for listener in listeners:
        listener(done)


def _read_splits(done: EpochDone) -> list[Split]:
    """The epoch's splits with the rows that were really in them."""
    return [replace(split, rows=done.outcome.units.get(unit, split.rows)) for unit, (_, split) in enumerate(done.decision.splits)]


def _hold(store: Store, generation: int, clock: Clock, shared: bool) -> Callable[[], None]:
    """Show that this generation is alive; the answer is how to let go."""
    if store.local("") is None:
        return Lease(store, generation, clock, shared).start().release
    return Lock(store, f"{generation:08d}", shared).release


def _lock(store: Store, clock: Clock, takeover: bool, shared: bool) -> Lock | None:
    """The newest generation's lock: refused while its process lives, unless the caller knows better.

    None where there is nothing to hold: a lease can only be watched, and a replica joins its siblings.
    """
    while not takeover and (generation := newest_generation(store)):
        if shared and read_manifest(store).shared:
            return None
        if store.local("") is None:
            refuse_beside_live(store, generation, clock)
            if newest_generation(store) == generation:
                return None
            continue
        lock = Lock(store, f"{generation:08d}")
        if newest_generation(store) == generation:
            return lock
        lock.release()  # its owner was replaced between the look and the lock: what counts is the new one's
    return None


def _dead_letters(store: Store, settings: Settings) -> str:
    folder = settings.dead_letters or store.local("dead_letters")
    if folder is None:
        raise ConfigError(f"store {store.url} is no folder: say where dead letters go with dead_letters='folder/'")
    return str(Path(folder).absolute())


def _checked_parts(compiled: Compiled, dead_letters: str) -> Parts:
    """Those of any plan that comes into force: what is refused of a flow that is started is refused here, too."""
    check_folders(compiled, dead_letters)
    ship_user_modules([node.op for node in compiled.plan.nodes])
    return Parts.of(compiled, dead_letters)


def _stages(compiled: Compiled) -> dict[str, tuple[str, ...]]:
    return {str(level.number + 1): level.keyed for level in compiled.levels if level.keyed}


def _election(store: Store, plan: Plan, settings: Settings) -> Election | None:
    """What is led is a flow on a store."""
    if settings.replication == "leaderless":
        return None
    group = f"{plan.flow}-{hashlib.sha256(store.url.encode()).hexdigest()[:16]}"
    return Election(settings.zookeeper or "", group, settings.replica or "", settings.leader_timeout)


def _check_can_be_replicated(compiled: Compiled, settings: Settings) -> None:
    """What replicas cannot do together is refused."""
    for name, op in compiled.sources.items():
        if isinstance(op.source, SparkStreamSource):
            raise ConfigError(
                f"source '{name}' cannot be replicated: Structured Streaming reads a range of it for one query only, and replicas "
                "must read the same range each; use md.files or another source of Meander's own"
            )
    if settings.autoscale is not None:
        raise ConfigError("a replicated flow cannot have an autoscaler: its replicas would each have an opinion; rescale it by hand")

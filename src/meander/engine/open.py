"""Starting a flow on a store: check, lock, take over, recover, run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import SparkContext, cloudpickle

from meander.clock import Clock
from meander.connect.latency import LatencyFile
from meander.connect.parquet import ParquetSink
from meander.engine.compaction import ProcessCompactor
from meander.engine.compiled import Compiled, compile_plan
from meander.engine.epoch import SparkRunner
from meander.engine.loop import EpochDone, Loop, Parts
from meander.engine.session import prepare_context, spark as make_session
from meander.engine.stage import DEAD_LETTERS
from meander.errors import ConfigError
from meander.flow import Flow
from meander.plan.operators import Aggregate, MapBatches
from meander.run import Run
from meander.settings import Settings
from meander.state.log import Log, newest_generation
from meander.state.reading import plan_name
from meander.state.store import Lock, Store, open_store


def open_run(flow: Flow, store_url: str, session: Any, clock: Clock, settings: Settings) -> Run:
    """Everything between ``flow.start(...)`` and the first epoch. Nothing in the store is touched before the lock is held."""
    plan = flow.plan()
    compiled = compile_plan(plan)
    _ship_user_modules(compiled)
    store = open_store(store_url)
    lock = _lock(store, settings.takeover)
    try:
        own_session = session is None
        session = session or make_session()
        context: SparkContext = session.sparkContext
        prepare_context(context)
        log = Log.take_over(store, clock, settings.key_groups)
        store.put_if_absent(plan_name(compiled.digest), cloudpickle.dumps(_for_readers(compiled)))
        next_lock = Lock(store, f"{log.manifest.generation:08d}")
        parts = _parts(compiled, store, settings)
        runner = SparkRunner(context, compiled, store.url, settings.strict, settings.small_epochs)
        runner.generation(log.manifest.generation)
        compactor = ProcessCompactor(store.url, clock, log.manifest.generation, log.manifest.key_groups)
        hook = _Hook()
        loop = Loop(
            store, clock, log, parts, runner, settings.parallelism, compactor, settings.retain_epochs, hook, ahead=settings.work_ahead
        )
        loop.recover()
    except BaseException:
        if lock is not None:
            lock.release()
        raise
    if lock is not None:
        lock.release()
    closing: list[Callable[[], None]] = [next_lock.release]
    if settings.latency_file is not None:
        latency = LatencyFile(settings.latency_file)
        hook.also.append(lambda done: latency.append([split for _, split in done.decision.splits], clock.now()))
    run = Run(flow.name, loop, settings, clock, closing)
    hook.run = run
    if own_session:
        run.spark = session
    return run


@dataclass
class _Hook:
    """Passes finished epochs on to a run that does not exist yet when the loop is made."""

    run: Run | None = None

    def __post_init__(self) -> None:
        self.also: list[Callable[[EpochDone], None]] = []

    def __call__(self, done: EpochDone) -> None:
        for listener in self.also:
            listener(done)
        if self.run is not None:
            self.run._epoch_done(done)


def _lock(store: Store, takeover: bool) -> Lock | None:
    """The newest generation's lock: refused while its process lives, unless the caller knows better."""
    generation = newest_generation(store)
    if generation == 0 or takeover:
        return None
    return Lock(store, f"{generation:08d}")


def _parts(compiled: Compiled, store: Store, settings: Settings) -> Parts:
    folder = settings.dead_letters or store.local("dead_letters")
    if folder is None:
        raise ConfigError("this store is no folder: say where dead letters go with dead_letters='folder/'")
    sinks = {name: op.sink for name, op in compiled.sinks.items()}
    sinks[DEAD_LETTERS] = ParquetSink(str(Path(folder).absolute()))
    return Parts(
        {"flow": compiled.plan.flow, "version": compiled.plan.version, "digest": compiled.digest},
        {name: op.source for name, op in compiled.sources.items()},
        sinks,
        {name: keyed.keys for name, keyed in compiled.keyed.items()},
    )


def _for_readers(compiled: Compiled) -> dict[str, Any]:
    operators = {node.name: node.op for node in compiled.plan.nodes if isinstance(node.op, Aggregate)}
    return {name: (op.keys, op.aggs) for name, op in operators.items()}


def _ship_user_modules(compiled: Compiled) -> None:
    """Functions of a user's own files travel by value: executors cannot import a script or a notebook's neighbour."""
    for node in compiled.plan.nodes:
        if not isinstance(node.op, MapBatches):
            continue
        module = sys.modules.get(getattr(node.op.fn, "__module__", None) or "")
        path = getattr(module, "__file__", None) if module else None
        if module is None or path is None or module.__name__ == "__main__" or module.__name__.split(".")[0] == "meander":
            continue
        if "site-packages" not in path and not path.startswith(sys.base_prefix):
            cloudpickle.register_pickle_by_value(module)

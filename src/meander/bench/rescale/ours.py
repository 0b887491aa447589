"""A Meander flow that is rescaled under load, and back: the moment of each epoch's publication, and
the moved key groups."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pyarrow.compute as pc

import meander as md
from meander.bench.harness.isolation import Progress
from meander.bench.harness.statistics import Json
from meander.bench.load.source import WorkloadSource
from meander.bench.load.workload import OPERATOR, build_flow
from meander.bench.rescale.request import RescaleRequest
from meander.coordinate.routing import groups_of, slots_of

if TYPE_CHECKING:
    from meander.epochs.decision import EpochDone
    from meander.run import Run


def run(request: RescaleRequest, progress: Progress) -> Json:
    """Load, run steady, rescale, run on, rescale back, run on."""
    assert request.strategy is not None
    session = md.spark(master=request.master, app_name="meander-bench", spark_driver_memory=request.memory)
    source = WorkloadSource(request.workload, load_rows=request.load_rows)
    before, after = request.slots
    with build_flow(source, md.discard()).start(
        request.store_url, spark=session, parallelism=before, dead_letters=str(request.store / "dead"), idle_poll=0.02
    ) as flow:
        watch = Watch(flow, request.workload.keys)
        progress("loading")
        watch.wait_for_loading(request.patience, progress)
        progress("warming up")
        watch.rest(request.warmup)
        measured_from = time.time()
        progress("steady")
        watch.rest(request.seconds)
        changes = []
        for slots in (after, before):
            progress(f"rescaling to {slots}")
            changes.append(_rescale(flow, slots, request))
            progress(f"steady at {slots}")
            watch.rest(request.seconds)
        state_bytes = flow.status()["operators"][OPERATOR]["bytes"]
    progress("verifying")
    _verify(request, flow.status()["rows_in"])
    session.stop()
    return {"epochs": watch.epochs, "changes": changes, "measured_from": measured_from, "state_bytes": state_bytes}


def _rescale(flow: Run, slots: int, request: RescaleRequest) -> Json:
    asked = time.time()
    done = flow.rescale(OPERATOR, slots, strategy=request.strategy or "hybrid", timeout=request.patience)
    return {
        "asked": asked,
        "in_force": time.time(),
        "slots": slots,
        "epoch": done.epoch,
        "key_groups": done.moved,
        "fetched_from_peers": done.fetched - done.fetched_from_store,
        "fetched_from_store": done.fetched_from_store,
        "failures": list(done.failures),
    }


class Watch:
    """Notes every epoch after the loading."""

    def __init__(self, flow: Run, keys: int) -> None:
        self._flow, self._keys = flow, keys
        self._loaded = threading.Event()
        self._rows = 0
        self.epochs: list[Json] = []
        flow.on_epoch(self._note)

    def _note(self, done: EpochDone) -> None:
        end = time.time() - done.seconds["tidy"]  # it was published before the tidying
        self._rows += done.decision.rows
        if self._rows <= self._keys:
            return
        self._loaded.set()
        born = [split.born for _, split in done.decision.splits]
        routing, counts = done.manifest.routing[OPERATOR], done.outcome.counts
        load = done.outcome.load.get(OPERATOR)
        slots = slots_of(routing)
        at_work = [load is not None and any(load[g] for g in range(len(routing)) if groups_of(routing, s) >> g & 1) for s in range(slots)]
        self.epochs.append(
            {
                "end": end,
                "rows": done.decision.rows,
                "first": min(first for first, _ in born),
                "last": max(last for _, last in born),
                "slots": sum(at_work),
                "fetched_from_peers": counts.get("fetched_from_peers", 0),
                "fetched_from_store": counts.get("fetched_from_store", 0),
                "wall_ms": {name: round(value * 1000, 1) for name, value in done.seconds.items()},
                "task_ms": {name: round(value * 1000, 1) for name, value in done.outcome.seconds.items()},
                "segments": sum(len(table.segments) for table in done.manifest.tables_of(OPERATOR)),
            }
        )

    def wait_for_loading(self, timeout: float, progress: Progress) -> None:
        deadline = time.monotonic() + timeout
        while not self._loaded.wait(5.0):
            self._flow.await_termination(0.0)  # raises what it failed with
            progress(f"loading, {self._rows:,} of {self._keys:,} keys")
            if time.monotonic() > deadline:
                raise md.Retryable(f"{self._rows} of {self._keys} keys are loaded after {timeout:g} s; allow more with --patience")

    def rest(self, seconds: float) -> None:
        self._flow.await_termination(seconds)


def _verify(request: RescaleRequest, rows: int) -> None:
    """Every event is in the state once, or the measurement does not count."""
    state = md.read_state(request.store, OPERATOR)
    found = pc.sum(state.column("n")).as_py(), state.num_rows
    if found != (rows, request.workload.keys):
        raise md.Corrupted(f"the state counts {found[0]} events of {found[1]} keys; {rows} of {request.workload.keys} went in")

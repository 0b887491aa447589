"""A flow that goes on steadily on any store: each epoch takes the same number of rows, so that a state says which epoch it is of."""

from __future__ import annotations

import random

import polars as pl
import pytest
from tests.simulation.parts import OPERATOR, SINK, Counted, SimulatedCompactor, SimulatedRunner, rows_of

from meander import aggregates
from meander.clock import Clock, FakeClock
from meander.connect.sink import Staged
from meander.connect.source import Choice, Split
from meander.epochs.loop import Loop
from meander.epochs.options import LoopOptions, Tenure
from meander.epochs.parts import Parts
from meander.state import compaction as compaction_module
from meander.state import log as log_module
from meander.state.log import Log
from meander.state.manifest import Json
from meander.state.reading import AggregateReader, plan_name
from meander.state.stores.contract import Store
from meander.state.table import Kept
from meander.task.reading import write_readers

ROWS = 5
SOURCE = "steady"
PLAN = {"flow": "steady", "version": 1, "digest": "steady"}

State = dict[int, tuple[int, int]]


class Steady(Counted):
    """A source that never ends; an epoch takes the next few rows of it, always as many."""

    def __init__(self) -> None:
        super().__init__(SOURCE, 1 << 40, random.Random(0), 0.0)
        self.paused = False

    def cursor(self, offset: Json, seen: set[str], throttle: float = 1.0) -> SteadyCursor:  # type: ignore[override]
        return SteadyCursor(self, offset.get("next", 0))


class SteadyCursor:
    def __init__(self, source: Steady, place: int) -> None:
        self.source, self.place = source, place

    def choose(self, now: float, everything: bool) -> Choice | None:
        if self.source.paused:
            return None
        begin, self.place = self.place, self.place + ROWS
        return Choice((Split({"start": begin, "end": self.place}, ROWS, 0),), {"next": self.place})

    def finished(self) -> bool:
        return False

    def waiting(self, now: float) -> int:
        return 0

    def slow_down(self, share: float) -> None:
        pass

    def backlog(self, now: float) -> bool:
        return False


class Nowhere:
    """A sink that nobody looks at."""

    def encode(self, frame: pl.DataFrame) -> bytes:
        return b""

    def open(self) -> None:
        pass

    def publish(self, epoch: int, files: list[Staged]) -> None:
        pass

    def describe(self) -> str:
        return "nowhere"


def take_over(store: Store, retain: int = 1, clock: Clock | None = None, source: Steady | None = None) -> Loop:
    """A driver that has taken the store over and recovered."""
    clock = clock or FakeClock(1_000.0)
    log = Log.take_over(store, clock, key_groups=4)
    aggs = (aggregates.count(), aggregates.sum("value"))
    store.put_if_absent(
        plan_name(PLAN["digest"]), write_readers("steady", {OPERATOR: AggregateReader(OPERATOR, ("key",), aggs, pl.Schema())})
    )
    rng = random.Random(log.manifest.generation)
    runner = SimulatedRunner(store, clock, log.manifest.generation, rng, 0.0)  # type: ignore[arg-type]
    compactor = SimulatedCompactor(store, clock, log.manifest, rng)  # type: ignore[arg-type]
    parts = Parts(PLAN, {}, {SOURCE: source or Steady()}, {SINK: Nowhere()}, {OPERATOR: {OPERATOR: Kept(("key",))}})
    loop = Loop(Tenure(store, clock, log), parts, runner, compactor=compactor, options=LoopOptions(2, retain, work_ahead=False))
    loop.recover()
    return loop


def go_on(loop: Loop, epochs: int) -> None:
    for _ in range(epochs):
        assert loop.step()


def expected(epoch: int) -> State:
    """The state after an epoch: a plain fold over its input."""
    state: State = {}
    for key, value in rows_of(SOURCE, {"start": 0, "end": epoch * ROWS}):
        n, total = state.get(key, (0, 0))
        state[key] = (n + 1, total + value)
    return state


def as_state(table: object) -> State:
    return {key: (n, total) for key, n, total in pl.DataFrame(table).rows()}


def epoch_of(state: State) -> int:
    """Which epoch a state is of, if it is of one at all: then it equals ``expected`` of it."""
    return sum(n for n, _ in state.values()) // ROWS


def hurry(monkeypatch: pytest.MonkeyPatch, snapshot_every: int = 3, fewest: int = 2) -> None:
    """Snapshots, merges and collection within a few epochs."""
    monkeypatch.setattr(log_module, "SNAPSHOT_EVERY", snapshot_every)
    monkeypatch.setattr(compaction_module, "FEWEST", fewest)

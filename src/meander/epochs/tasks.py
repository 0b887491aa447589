"""One epoch as tasks: from a decision and a manifest to what its tasks wrote, or an error. ``Jobs`` runs the tasks.

The attempts whose work an epoch commits must be one consistent set. After a lost shuffle file Spark runs only the missing tasks
again, so that two consumers can have read two attempts of one producer; the tokens that came with the data show it, and the
epoch is run again.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from meander import errors
from meander.cache.client import Peer
from meander.cache.notices import Notices
from meander.clock import Clock
from meander.coordinate.capacity import StageFacts
from meander.coordinate.marks import Marks
from meander.coordinate.routing import groups_of, slots_of
from meander.epochs.decision import Decision, Outcome
from meander.epochs.events import LoopEvents
from meander.epochs.jobs import Jobs, Started
from meander.epochs.placement import Executor, Placement
from meander.epochs.runner import Program
from meander.errors import Retryable
from meander.plan.windows import NEVER
from meander.settings import StateMode
from meander.state.manifest import Json, Manifest, operator_of
from meander.task.messages import Common, Control, Report, Seen, SplitTask, Task

SMALL_ROWS = 20_000
SMALL_BYTES = 4_000_000
_GONE_KEPT = 10_000
_HOLDERS_KEPT = 1000
_LAST_TASKS = 5.0


@dataclass(frozen=True)
class Terms:
    """The facts that all tasks of a run are told."""

    store: str
    """Its URL."""
    generation: int
    """It is in the name of everything that tasks write."""
    strict: bool = False
    mode: StateMode = "hybrid"
    """Where reads of state go: see ``cache.reader``."""
    digests: bool = False
    """Whether tasks say what they have computed in a number, for replicas to compare."""
    small_epochs: bool = True
    """Whether epochs with little input skip the exchange."""


class TaskRunner(LoopEvents):
    """Epochs of a compiled plan, as jobs of tasks."""

    def __init__(self, jobs: Jobs, look: Callable[[], dict[str, Executor]], program: Program, *, terms: Terms, clock: Clock) -> None:
        """``look`` says which executors there are at this moment; Retryable where that cannot be known."""
        self._jobs, self._program, self._terms, self._clock = jobs, program, terms, clock
        self._watched: frozenset[str] = frozenset()
        self.placement = Placement(look, clock)
        self.secret = clock.new_id() + clock.new_id()
        self._holders: dict[str, str] = {}
        """Segments that are in an executor's cache: its id."""
        self.stewards: dict[str, str] = {}
        """By executor, as tasks have reported them."""
        self._gone: deque[str] = deque(maxlen=_GONE_KEPT)
        """Segments that were collected, for stewards that come later: their executors' tasks may have cached them before."""
        self._notices = Notices(lambda address, segments: Peer.at(address, self.secret).drop(segments), _GONE_KEPT)
        self._ahead: Started | None = None
        self._running: Started | None = None
        self._unwanted: list[Started] = []

    # -- the Runner's verbs ---------------------------------------------------------------------------------------

    def prepare(self, decision: Decision, routing: dict[str, list[int]]) -> Started | None:
        if len(self._program.compiled.levels) == 1 or self._is_small(decision):
            return None
        # Not before the running epoch's own first stage is over: its tasks would take the cores that the second stage is about to need.
        while self._running is not None and not self._running.is_over():
            self._clock.sleep(0.005)
        slots = self._slots(routing, self._source_tasks(decision))
        # The first stage does not look at the manifest; generation and epoch name what it stages.
        self._ahead = self._start_first_stage(decision, routing, slots)
        return self._ahead

    def begin(
        self, decision: Decision, manifest: Manifest, routing: dict[str, list[int]], prepared: Started | None
    ) -> Callable[[], Outcome]:
        depth = len(self._program.compiled.levels)
        if depth == 1:
            slots = self._slots(routing, self._source_tasks(decision))
            result = self._jobs.run_single(self._source_controls(decision, routing, slots), self.placement.anywhere())
            return lambda: self._check(result(), {(0, i) for i in range(slots[0])})
        if len(self._holders) > _HOLDERS_KEPT + 2 * sum(len(table.segments) for table in manifest.tables.values()):
            alive = manifest.segment_names()
            self._holders = {name: executor for name, executor in self._holders.items() if name in alive}
        places = self.placement.pin(dict(enumerate(self._slots(routing, 0)[1:], start=1)))
        if prepared is None and self._is_small(decision):
            slots = self._slots(routing, 0)
            controls = self._state_controls(decision, manifest, routing, slots, all_splits=True)
            result = self._jobs.run_small(controls, places)
            return lambda: self._check(result(), _tasks(slots))
        slots = self._slots(routing, self._source_tasks(decision))
        if prepared is None:
            prepared = self._start_first_stage(decision, routing, slots)
        if self._ahead is prepared:
            self._ahead = None
        self._running = prepared
        result = self._jobs.run_rest(prepared, self._state_controls(decision, manifest, routing, slots), places)
        return lambda: self._check(result(), _tasks(slots))

    def settle(self) -> None:
        self._running = None
        # A shuffle must not be forgotten while its stage runs: Spark's scheduler would stumble over the output of its tasks.
        self._unwanted = [started for started in self._unwanted if not started.is_over()]
        wanted = [*self._unwanted, *([] if self._ahead is None else [self._ahead])]
        self._jobs.forget_shuffles(keep=[started.shuffle_id for started in wanted])

    def recover(self) -> None:
        self.placement.forget()
        with contextlib.suppress(Retryable):  # what is wrong with the cluster shows when the epoch runs again
            there = self.placement.executors()
            self.stewards = {executor: address for executor, address in self.stewards.items() if not there or executor in there}
            self._notices.only({*self.stewards.values()})

    def discard(self, prepared: Started | None) -> None:
        if self._ahead is prepared:
            self._ahead = None
        if prepared is not None:
            self._unwanted.append(prepared)

    def adopt(self, program: Program, watched: frozenset[str]) -> Program:
        before, self._program, self._watched = self._program, program, watched
        self.placement.only(range(1, len(program.compiled.levels)))
        return before

    def abandon(self) -> None:
        self._jobs.cancel()
        if self._running is not None:
            self._running.cancel()

    def watch(self, operators: frozenset[str]) -> None:
        self._watched = operators

    def holders(self, names: Iterable[str]) -> dict[str, str]:
        """The address to ask for each segment: of the steward beside the executor that has it in its cache, where there is one."""
        found = {name: self.stewards.get(self._holders.get(name, "")) for name in names}
        return {name: address for name, address in found.items() if address is not None}

    def holds(self, name: str, address: str) -> None:
        """A segment is in the cache beside this steward."""
        self._holders.update((name, executor) for executor, known in self.stewards.items() if known == address)

    def segments_collected(self, segments: list[str]) -> None:
        """Segments are gone from the store: no cache need keep them. Told beside the epochs, to everyone: anyone may have fetched them."""
        for name in segments:
            self._holders.pop(name, None)
        self._gone.extend(segments)
        for address in {*self.stewards.values()}:
            self._notices.send(address, segments)

    def close(self) -> None:
        """Work that was begun ahead ends first: its workers would complain of a broken pipe when Spark stops under them."""
        self._notices.close()
        begun = [started for started in (self._ahead, *self._unwanted) if started is not None]
        deadline = self._clock.monotonic() + _LAST_TASKS
        while not all(started.is_over() for started in begun) and self._clock.monotonic() < deadline:
            self._clock.sleep(0.05)

    def steward_of(self, operator: str, slot: int) -> str | None:
        """The address of the steward beside a slot, where there is one."""
        slots = self.placement.where().get(self.level_of(operator), [])
        executor = slots[slot] if slot < len(slots) else next(iter(self.stewards), "")
        return self.stewards.get(executor)

    def level_of(self, operator: str) -> int:
        return self._program.compiled.keyed[operator].level

    # -- pieces ---------------------------------------------------------------------------------------------------

    def _is_small(self, decision: Decision) -> bool:
        fits = decision.rows <= SMALL_ROWS and decision.bytes <= SMALL_BYTES
        return self._terms.small_epochs and fits and self._program.compiled.repeatable_first_stage

    def _source_tasks(self, decision: Decision) -> int:
        return max(1, min(len(decision.splits), self.placement.cores()))

    def _slots(self, routing: dict[str, list[int]], source_tasks: int) -> tuple[int, ...]:
        """Tasks per level; 0 for the first where it is part of the second."""
        return (source_tasks, *(max(slots_of(routing[name]) for name in level.keyed) for level in self._program.compiled.levels[1:]))

    def introduction(self, key_groups: int) -> Common:
        """The message to an executor that is introduced to this run: all that does not change from epoch to epoch."""
        terms, program = self._terms, self._program
        common = Common(0, terms.generation, terms.store, program.packed, key_groups, {}, (), tables=program.tables)
        return replace(common, strict=terms.strict, mode=terms.mode, secret=self.secret)

    def met(self, executor: str, steward: str) -> None:
        """An executor has a steward: it can be sent state before it runs its first task. It is told what went before it was known."""
        if self.stewards.get(executor) != steward:
            self.stewards[executor] = steward
            self._notices.only({*self.stewards.values()})
            self._notices.send(steward, self._gone.copy())

    def _common(self, decision: Decision, routing: dict[str, list[int]], slots: tuple[int, ...], marks: Marks) -> Common:
        key_groups = len(next(iter(routing.values()))) if routing else 1
        terms, program = self._terms, self._program
        return Common(
            decision.epoch,
            terms.generation,
            terms.store,
            program.packed,
            key_groups,
            routing,
            slots,
            strict=terms.strict,
            mode=terms.mode,
            secret=self.secret,
            marks=marks,
            now=decision.now,
            watched=self._watched,
            digests=terms.digests,
            tables=program.tables,
        )

    def _split_tasks(self, decision: Decision) -> list[SplitTask]:
        return [SplitTask(unit, source, split.payload) for unit, (source, split) in enumerate(decision.splits)]

    def _source_controls(self, decision: Decision, routing: dict[str, list[int]], slots: tuple[int, ...]) -> list[Control]:
        common = self._common(decision, routing, slots, decision.marks.known_ahead())
        dealt: list[list[SplitTask]] = [[] for _ in range(slots[0])]
        loads = [0] * slots[0]
        for task, (_, split) in zip(self._split_tasks(decision), decision.splits, strict=True):
            lightest = loads.index(min(loads))
            dealt[lightest].append(task)
            loads[lightest] += max(split.rows, 1)
        return [Control(common, 0, index, tuple(splits)) for index, splits in enumerate(dealt)]

    def _state_controls(
        self, decision: Decision, manifest: Manifest, routing: dict[str, list[int]], slots: tuple[int, ...], all_splits: bool = False
    ) -> list[list[Control]]:
        common = self._common(decision, routing, slots, decision.marks)
        tables: dict[str, list[str]] = {}
        for name in manifest.tables:
            tables.setdefault(operator_of(name), []).append(name)
        levels = []
        for level in self._program.compiled.levels[1:]:
            controls = []
            for slot in range(slots[level.number]):
                segments = {
                    name: manifest.tables[name].alive_for(groups_of(routing[operator], slot))
                    for operator in level.keyed
                    for name in tables.get(operator, ())
                }
                splits = tuple(self._split_tasks(decision)) if all_splits and level.number == 1 else ()
                held = self.holders(ref.name for refs in segments.values() for ref in refs)
                controls.append(Control(common, level.number, slot, splits, segments, held))
            levels.append(controls)
        return levels

    def _start_first_stage(self, decision: Decision, routing: dict[str, list[int]], slots: tuple[int, ...]) -> Started:
        # Source tasks run where Spark likes, unless an executor is to be left alone: it leaves, or was not introduced yet.
        return self._jobs.start_first_stage(self._source_controls(decision, routing, slots), slots[1], self.placement.anywhere())

    def _check(self, seen: Sequence[Seen], expected: set[Task]) -> Outcome:
        """One attempt per task, seen by everyone, or the epoch runs again."""
        self_made = next((s.error for s in seen if s.error is not None), None)
        if self_made is not None:
            kind, message = self_made
            raise getattr(errors, kind)(message)
        tokens = {token for s in seen for token in s.tokens}
        attempts: dict[Task, set[str]] = {}
        for task, nonce in tokens:
            attempts.setdefault(task, set()).add(nonce)
        if set(attempts) != expected or any(len(nonces) > 1 for nonces in attempts.values()):
            raise Retryable("tasks of one epoch saw different attempts of the same task; the epoch runs again")
        segments: dict[str, list[Any]] = {}
        staged: dict[str, list[Json]] = {}
        counts: dict[str, int] = {}
        seconds: dict[str, float] = {}
        units: dict[int, int] = {}
        heard: dict[str, dict[str, int]] = {}
        reports = sorted((r for s in seen for r in s.reports), key=lambda r: r.task)
        for report in reports:
            if report.executor:
                self._holders.update((ref.name, report.executor) for ref in report.segments.values())
                if report.steward is not None:
                    self.met(report.executor, report.steward)
            for name, ref in report.segments.items():
                segments.setdefault(name, []).append(ref.to_json())
            for sink, file in report.staged.items():
                staged.setdefault(sink, []).append(file)
            for name, value in report.counts.items():
                counts[name] = counts.get(name, 0) + value
            units.update(report.units)
            for mark, partitions in report.heard.items():
                known = heard.setdefault(mark, {})
                known.update((partition, max(largest, known.get(partition, NEVER))) for partition, largest in partitions.items())
            for part, spent in report.seconds.items():
                seconds[part] = seconds.get(part, 0.0) + spent
        facts, records = self._stage_facts(reports), self._records(reports)
        closed: dict[str, int] = {}
        for report in reports:
            closed.update((name, max(last, closed.get(name, NEVER))) for name, last in report.closed.items())
        tried = frozenset(name for report in reports for name in report.tried)
        late = frozenset(name for report in reports for name in report.late)
        load, digests = _load_by_group(reports), _digests(reports)
        ends: dict[str, int] = {}
        for report in reports:
            ends.update((table, min(at, ends.get(table, at))) for table, at in report.next_ends.items())
        return Outcome(segments, staged, counts, seconds, units, facts, records, heard, closed, load, tried, digests, late, ends)

    def _stage_facts(self, reports: Sequence[Report]) -> tuple[StageFacts, ...]:
        """Stage 1 is level 0, whose tasks follow from the splits there are."""
        facts = []
        for level in range(len(self._program.compiled.levels)):
            mine = [r for r in reports if r.task[0] == level]
            records = sum(sum(int(rows.sum()) for rows in r.groups.values()) if level else r.counts.get("rows_in", 0) for r in mine)
            busy = [_busy(r) for r in mine]
            if mine:
                facts.append(StageFacts(f"{level + 1}", records, sum(busy), len(mine), max(busy), fixed=level == 0))
        return tuple(facts)

    def _records(self, reports: Sequence[Report]) -> dict[str, tuple[int, int]]:
        """A small epoch's tasks do the work of stages 1 and 2: what they handed on is told by level."""
        found = {}
        for level in range(len(self._program.compiled.levels)):
            grouped = (int(rows.sum()) for r in reports if r.task[0] == level for rows in r.groups.values())
            came = sum(grouped) if level else sum(r.counts.get("rows_in", 0) for r in reports)
            found[f"{level + 1}"] = (came, sum(r.out.get(level, 0) for r in reports))
        return found


def _digests(reports: Sequence[Report]) -> dict[str, str]:
    found: dict[str, int] = {}
    for report in reports:
        for name, number in report.digests.items():
            found[name] = (found.get(name, 0) + number) % (1 << 64)
    return {name: f"{number:016x}" for name, number in found.items()}


def _busy(report: Report) -> float:
    """Seconds that a task worked: not those in which it waited to be given something."""
    return sum(report.seconds.values())


def _load_by_group(reports: Sequence[Report]) -> dict[str, npt.NDArray[np.float64]]:
    """A task's time, divided among the key groups of its operators by the rows that came in for each."""
    load: dict[str, npt.NDArray[np.float64]] = {}
    for report in reports:
        total = sum(int(rows.sum()) for rows in report.groups.values())
        for operator, rows in report.groups.items():
            share: npt.NDArray[np.float64] = rows.astype(np.float64) * (_busy(report) / max(1, total))
            load[operator] = load[operator] + share if operator in load else share
    return load


def _tasks(slots: tuple[int, ...]) -> set[Task]:
    return {(level, index) for level, count in enumerate(slots) for index in range(count)}

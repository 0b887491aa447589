"""Modifications of a running flow on the driver: from changes to a trial, and their history in the store.

Two records per modification, each put once: ``modifications/<id>.request`` before the epoch that tries it, ``modifications/<id>.verdict``
after. Neither decides anything, the epoch's log entry does: it names the modification in its plan. A modification whose verdict a
crash has swallowed gets it at the next start; a modification that was never committed has a
request alone, and can be asked for again.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from meander.connect.spark_stream import SparkStreamSource
from meander.coordinate.marks import evictions
from meander.epochs.events import Listeners, LoopEvents
from meander.epochs.in_force import InForce
from meander.epochs.maintenance import Housekeeping
from meander.epochs.options import Tenure
from meander.epochs.parts import Parts, in_force
from meander.epochs.probation import Trial, Trials
from meander.epochs.resumption import adopt_plan, put_known, put_plan
from meander.epochs.runner import Program
from meander.epochs.setup import Rewritten, Setup
from meander.epochs.siblings import Siblings
from meander.epochs.stored_plans import packed_name
from meander.epochs.tables import Wanted
from meander.epochs.upgrade import rewrite_tables
from meander.errors import ConfigError, FlowError, Rejected, Retryable
from meander.plan.change.become import Become
from meander.plan.change.effects import Effects
from meander.plan.change.layout import owing, untold
from meander.plan.change.modify import Change, StateRules, modify
from meander.plan.change.options import Guard
from meander.plan.change.places import bring, elsewhere
from meander.plan.documents import write_plan
from meander.plan.eventtime import time_of
from meander.plan.graph import Plan
from meander.plan.joins import JoinLatest
from meander.plan.operators import MapBatches, SourceOp
from meander.settings import seconds
from meander.state.formats import REQUEST, REVERSAL, VERDICT, Format
from meander.state.history import read_history, read_record, record_name
from meander.state.log import Log
from meander.state.manifest import Json, Manifest, operator_of
from meander.task.physical import Compiled, compile_plan

_LOG = logging.getLogger("meander")
_AT_START = ("author", "backfill", "drop_state", "guard", "resume", "timeout", "upgrade")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
MakeParts = Callable[[Compiled], Parts]


@dataclass(frozen=True)
class Request:
    """A requested modification."""

    id: str
    changes: tuple[Change, ...]
    rules: StateRules = field(default_factory=StateRules)
    author: str = ""
    guard: Guard | None = None
    patience: float = 60.0

    def of(self, plan: Plan) -> Request:
        """The same, with the flow as the store knows it."""
        return replace(self, changes=tuple(replace(c, plan=plan) if isinstance(c, Become) else c for c in self.changes))


def at_start(apply: bool | Mapping[str, Any], plan: Plan, identity: str) -> Request | None:
    """The request of ``flow.start(..., apply=...)``: the flow in the store becomes this one. None
    where it asks for nothing."""
    if isinstance(apply, bool):
        return at_start({}, plan, identity) if apply else None
    if not isinstance(apply, Mapping):
        raise ConfigError(f"apply={apply!r}: it is True, or a dict of the options of run.apply, such as {{'drop_state': ['totals']}}")
    if unknown := sorted(set(apply) - {*_AT_START}):
        raise ConfigError(f"apply: there is no option {unknown[0]!r}; there are {', '.join(_AT_START)}")
    rules = StateRules(apply.get("drop_state") or (), apply.get("upgrade") or {}, apply.get("backfill") or {})
    patience = seconds(apply.get("timeout", "60s")) or 3600.0
    if (guard := apply.get("guard")) is not None and not callable(guard):
        raise ConfigError(f"apply: guard={guard!r} is no function of the output before and after")
    return Request(identity, (Become(plan, apply.get("resume")),), rules, apply.get("author") or "", apply.get("guard"), patience)


class Modified(NamedTuple):
    """A modification that is in force: ``run.replace("positive", md.filter("amount > 10")).epoch`` is of a ``md.Modified``."""

    id: str
    version: int
    """Of the plan."""
    epoch: int
    """The first under it."""
    seconds: float
    """From the request to its commit."""
    effects: Json
    repeated: bool = False
    """Whether it was in force already: the same request was made before."""


@dataclass(frozen=True)
class _Planned:
    """What changes make of a plan."""

    base: Plan
    changes: tuple[Change, ...]
    rules: StateRules
    plan: Plan
    effects: Effects
    program: Program
    packed: bytes
    """The plan for the store."""


class Modifiable(Protocol):
    """A loop, as far as modifications need it."""

    log: Log
    in_force: InForce
    events: Listeners
    siblings: Siblings
    trials: Trials
    housekeeping: Housekeeping


class Modifier(LoopEvents):
    """Modifications of one run."""

    def __init__(self, loop: Modifiable, tenure: Tenure, plan: Plan, *, given: Plan, make_parts: MakeParts, edited: bool = False) -> None:
        """To be made before the loop recovers: siblings may change the plan meanwhile. ``given`` is the flow as it was started;
        ``edited``: it was never in force here, and ``plan`` goes on until it is applied.
        """
        self._loop, self._store, self._clock, self._make_parts = loop, tenure.store, tenure.clock, make_parts
        self.plan = plan
        """The one in force."""
        self._given, self._edited = given, edited
        self._live = {in_force(loop.in_force.plan): plan}
        """The plan in force, those that it may go back to, and the one that is tried: with their sinks and functions as they were given."""
        self._planned: _Planned | None = None
        self.listeners: list[Callable[[Compiled], None]] = []
        """Told of every plan that comes into force."""
        loop.events.add(self)

    def dry_run(self, changes: Iterable[Change], rules: StateRules) -> Effects:
        """The effects that a modification would have. FlowError where it cannot be."""
        return self._plan(tuple(changes), rules).effects

    def known(self, request_id: str) -> Modified | None:
        """The result of the request with this id, if it is known. Rejected where it was
        rejected."""
        if not _ID.fullmatch(request_id):
            raise ConfigError(f"request_id={request_id!r}: use letters, digits, '_', '-' and '.', up to 100 of them")
        verdict = read_record(self._store, VERDICT, request_id)
        if verdict is None:
            return None
        if verdict["verdict"] != "in force":
            raise Rejected(f"modification '{request_id}' was rejected before: {verdict['why']}")
        request = read_record(self._store, REQUEST, request_id) or {}
        effects = request.get("effects", {})
        return Modified(request_id, verdict["version"], verdict["epoch"], verdict["seconds"], effects, repeated=True)

    def request(
        self, identity: str, changes: Iterable[Change], rules: StateRules, author: str, guard: Guard | None, patience: float
    ) -> Request:
        """The request as data."""
        return Request(identity, tuple(changes), rules, author, guard, patience)

    def propose(self, request: Request) -> Trial:
        """Have it tried with the next epoch. From the loop's thread, between two epochs."""
        if self._loop.siblings.replicated:
            self._loop.siblings.keep_up()  # the plan that is asked about may be a sibling's
        trial = self._trial(request)
        self._loop.trials.propose(trial)
        return trial

    def begin(self, request: Request) -> Trial | None:
        """At the start with an edited file: have it tried with the first epoch. None where a sibling has put it in force already.

        Where nobody waits for it, how it ends is said in the log: the plan before it goes on.
        """
        try:
            trial = self.propose(request)
        except FlowError:
            if self.plan.digest() == self._given.digest():
                return None
            raise
        if self._loop.siblings.replicated:
            trial.done.add_done_callback(self._say_how_it_ended)
        return trial

    def _say_how_it_ended(self, done: Future[Modified]) -> None:
        if done.exception() is not None and self.plan.digest() != self._given.digest():
            _LOG.error(
                f"flow '{self._given.flow}': the edited file is not in force, and the plan before it goes on: {done.exception()} "
                "Start it again to try again"
            )

    def _trial(self, request: Request) -> Trial:
        """A request on the plan that is in force now."""
        planned = self._plan(request.changes, request.rules)
        plan, effects, compiled, program = planned.plan, planned.effects, planned.program.compiled, planned.program
        now = self._loop.log.manifest
        packed = packed_name(planned.packed)
        parts = self._make_parts(compiled)
        marks = {"packed": packed, "modification": request.id, "since": now.epoch + 1}
        brought = bring(self._loop.in_force.plan.get("brought", {}), self.plan, plan, self._given)
        parts = replace(parts, plan={**parts.plan, **marks, **({"brought": brought} if brought else {})})
        self._live = {which: live for which, live in self._live.items() if which in set(_back_from(self._loop.in_force.plan))}
        self._live[in_force(parts.plan)] = plan
        gone = self._gone(effects, parts)
        sources = {node.name: node.op for node in self.plan.nodes if isinstance(node.op, SourceOp)}
        others = {n for n in {*sources, *compiled.sources} if sources.get(n) is not compiled.sources.get(n)}
        swaps = tuple(sorted(others - effects.go_on))
        if swaps and self._loop.siblings.replicated:
            raise FlowError(
                f"source '{swaps[0]}' cannot be changed while several replicas run: what they have decided is of it. Its columns alone can"
            )

        return Trial(
            parts,
            program,
            effects.touched | effects.reached,
            way_back=_WayBack(self, request.id),
            proposal=_Requested(self, request, planned, parts, gone),
            restarts=tuple(sorted(effects.restarts)),
            swaps=swaps,
            guard=request.guard,
            patience=request.patience,
            reversible=not (effects.upgrades or any(now.tables[name].rows for name in gone(now)) or swaps),
            lasting=effects.drops
            | _moved_on(plan, effects)
            | {n for n, fate in effects.state.items() if fate.added or fate.removed or fate.widened},
            sooner=_behind(plan, effects.touched),
        )

    def _persist(self, asked: _Requested, epoch: int) -> tuple[Parts, Program]:
        request, planned, in_force_now = asked.request, asked.planned, self._loop.in_force
        self._persist_former()
        wanted = Wanted(planned.plan, in_force_now.plan.get("tables", {}), planned.base)
        generation = self._loop.log.manifest.generation
        tables = wanted.write(self._store, self._clock, generation, epoch, self._loop.housekeeping.written)
        packed = packed_name(planned.packed)
        self._store.put_if_absent(packed, planned.packed)
        put_plan(self._store, planned.program.compiled)
        record = {
            "id": request.id, "author": str(request.author), "at": self._clock.now(), "epoch": epoch, "effects": planned.effects.to_json(),
            "from": self.plan.digest(), "to": planned.program.compiled.digest, "packed": packed,
            "code": _code(planned.plan, planned.effects),
        }  # fmt: skip
        self._store.put_if_absent(record_name(REQUEST, request.id), REQUEST.write(record))
        parts = replace(asked.parts, plan={**asked.parts.plan, **({"tables": tables} if tables else {})})
        return parts, replace(planned.program, tables=tables)

    def _rewrite(self, asked: _Requested, manifest: Manifest) -> Rewritten:
        plan, effects, timed = asked.planned.plan, asked.planned.effects, asked.planned.program.compiled.timed
        made = rewrite_tables(self._store, self._clock, manifest, self.plan, plan, effects.upgrades, asked.gone(manifest))
        # Flushes have closed nothing of an operator that begins anew, which may go by another time.
        known = {name: floor for name, floor in manifest.flushed.items() if name not in effects.drops}
        # What an operator has closed stays closed, also where it follows another watermark from now on, which is behind.
        then = evictions(timed, replace(manifest, flushed=known), self._clock.now())
        reached = self._loop.in_force.reached(manifest, self._clock.now())
        was = {name: mark for name, mark in reached.items() if name not in effects.drops}
        return replace(made, flushed=known | {name: mark for name, mark in was.items() if name in then and then[name] < mark})

    def _accept(self, asked: _Requested, epoch: int, seconds: float) -> Modified:
        identity, plan = asked.request.id, asked.planned.plan
        self._note(VERDICT, identity, verdict="in force", version=plan.version, epoch=epoch, seconds=round(seconds, 3))
        if in_force(self._loop.in_force.plan) == in_force(asked.parts.plan):  # otherwise a sibling's change has come on top of it by now
            self._in_force(plan, asked.planned.program.compiled)
        return Modified(identity, plan.version, epoch, round(seconds, 3), asked.planned.effects.to_json())

    def plan_changed(self, manifest: Manifest) -> None:
        """A sibling has put another plan in force, or has proven this one: have the same. Sources are where they were: of them
        replicas can change only the columns."""
        self._loop.trials.forget()
        plan, marks = self._adopt(manifest.plan)
        compiled = compile_plan(plan)
        parts = self._make_parts(compiled)
        setup = self._loop.in_force.setup_of(replace(parts, plan={**parts.plan, **marks}), Program.of(compiled, marks))
        before = self._loop.in_force.install(setup, frozenset())
        self._loop.in_force.settle()
        parts.open_sinks(before.parts)
        self._in_force(plan, compiled)
        self._put_on_probation(manifest.plan)

    def recover(self) -> None:
        """At the start, once the loop has recovered: a verdict that a crash has swallowed is what the manifest says."""
        if not self._edited:
            put_known(self._store, self._given)
        put_known(self._store, self.plan)  # a crash may have kept that from being done
        self._put_on_probation(self._loop.log.manifest.plan)
        self._give_verdict(self._loop.log.manifest.plan)

    def plan_unsettled(self, manifest: Manifest) -> None:
        """A trial was broken off: have what the log says, as after a restart."""
        self.plan_changed(manifest)
        self._give_verdict(manifest.plan)

    def _put_on_probation(self, plan: Json) -> None:
        """What is on probation by the log is so here."""
        if plan.get("unproven"):
            self._loop.trials.resume(self._unproven(plan))

    def _give_verdict(self, plan: Json) -> None:
        """What is in force by the log has its verdict."""
        if "modification" in plan and read_record(self._store, VERDICT, plan["modification"]) is None:
            self._note(VERDICT, plan["modification"], verdict="in force", version=plan["version"], epoch=plan["since"], seconds=None)

    def history(self) -> list[Json]:
        """All modifications, the oldest first: author, changes and result."""
        return read_history(self._store)

    # -- pieces ---------------------------------------------------------------------------------------------------

    def _plan(self, changes: tuple[Change, ...], rules: StateRules) -> _Planned:
        """Once for whoever asks, and not again between two epochs, unless the plan has changed meanwhile."""
        before = self._planned
        if (
            before is not None
            and before.base is self.plan
            and before.rules is rules
            and list(map(id, before.changes)) == list(map(id, changes))
        ):
            return before
        plan, effects = modify(self.plan, changes, rules)
        if effects.chance and self._loop.siblings.replicated:
            name, calls = next(iter(effects.chance.items()))
            raise FlowError(
                f"{plan.node(name).op.kind} {name!r} calls {', '.join(calls)}: replicas would not get the same result; "
                "a processor has ctx.now, ctx.random and ctx.uuid(), which are the same on all of them"
            )
        Wanted(plan, self._loop.in_force.plan.get("tables", {}), self.plan)
        program = Program.of(compile_plan(plan), {})  # a function that cannot travel is named here
        self._make_parts(program.compiled)
        for node in (*self.plan.nodes, *plan.nodes):
            if isinstance(node.op, SourceOp) and isinstance(node.op.source, SparkStreamSource) and node.name in effects.touched:
                raise FlowError(f"replace {node.name!r}: a streaming DataFrame has a query and a checkpoint of its own, and stays")
        for node in self.plan.nodes:
            if isinstance(node.op, SourceOp) and isinstance(node.op.source, SparkStreamSource) and node.name not in plan.schemas:
                raise FlowError(f"remove {node.name!r}: a streaming DataFrame has a query and a checkpoint of its own, and stays")
        # A function that only the driver calls is the flow's own, and there at every start, unless it comes with a modification.
        packed = write_plan(plan, "stored, and a restart could not go on with it", self.plan.schemas.keys() - effects.touched)
        self._planned = _Planned(self.plan, changes, rules, plan, effects, program, packed)
        return self._planned

    def _adopt(self, stored: Json, apart: frozenset[str] = frozenset()) -> tuple[Plan, Json]:
        """The plan of a log entry, and what entries say of it: the live one where this run has had it, or else what the store has.

        A sink or a function that came with a modification is only a copy in the store: whoever gave it would see nothing more of it.
        """
        if not stored:  # no epoch is committed yet
            return self._given, {}
        live = self._live.get(in_force(stored))
        if live is not None:
            marks = {name: value for name, value in stored.items() if name not in ("flow", "version", "digest")}
            return owing(live, stored.get("owes", ())), marks
        plan, marks, _ = adopt_plan(self._store, stored, self._given, apart)
        self._live[in_force(stored)] = plan
        return plan, marks

    def _unproven(self, marks: Json, apart: frozenset[str] = frozenset()) -> Trial:
        """No row has come to a plan that is in force: it is still on probation, and what was before it is at hand.

        ``apart`` are sources and sinks of which the flow that was given says what later changes have brought, or would bring.
        """
        was, watched = marks["unproven"]["plan"], frozenset(marks["unproven"]["watched"])
        before = was.get("brought", {})
        apart |= {n for n, one in marks.get("brought", {}).items() if one["place"] != before.get(n, {}).get("place")}
        if self._edited:
            apart |= elsewhere(self.plan, self._given).keys()
        former, kept = self._adopt(was, apart)
        compiled = compile_plan(former)
        parts = replace(self._make_parts(compiled), plan={**was, **kept})
        lasting, sooner = frozenset(marks["unproven"]["lasting"]), frozenset(marks["unproven"]["sooner"])
        trial = Trial(parts, None, watched, way_back=_WayBack(self, marks["modification"]), lasting=lasting, sooner=sooner)
        trial.former = self._loop.in_force.setup_of(parts, Program.of(compiled, was))
        trial.earlier = self._unproven(was, apart) if was.get("unproven") else None
        return trial

    def _persist_former(self) -> None:
        """The plan as it is, to go back to: the next start may be that of the edited file. The flow's own was not stored before."""
        if "packed" in self._loop.in_force.plan:
            return
        former = write_plan(self.plan, "stored", self.plan.schemas)
        self._store.put_if_absent(packed_name(former), former)
        self._loop.in_force.mark_packed(packed_name(former))

    def _note_debts(self, change: Plan, former: Json) -> Json:
        """The plan before a change, and those before it on probation: each with the operators that owe what the change does not tell."""
        plan, _ = self._adopt(former)
        owes = sorted({*former.get("owes", ()), *untold(change, plan)})
        found = {**former, "owes": owes} if owes else former
        if "unproven" not in former:
            return found
        earlier = former["unproven"]
        return {**found, "unproven": {**earlier, "plan": self._note_debts(change, earlier["plan"])}}

    def _restore(self, stored: Json, former: Setup) -> Setup:
        """The setup before a change that is taken back. Operators that owe windows are others than before."""
        if not stored.get("owes"):
            return former
        compiled = compile_plan(self._adopt(stored)[0])
        return replace(former, parts=self._make_parts(compiled), program=Program.of(compiled, stored))

    def _take_back(self, request_id: str, epoch: int, why: str) -> None:
        former, _ = self._adopt(self._loop.in_force.plan)
        self._note(REVERSAL, request_id, verdict="taken back", epoch=epoch, why=why)
        self._in_force(former, compile_plan(former))
        _LOG.error(f"modification '{request_id}' failed on the first rows that came, in epoch {epoch}, and was taken back: {why}")

    def _refuse(self, request_id: str, epoch: int, why: str) -> None:
        if self._edited and self.plan.digest() == self._given.digest():  # a sibling that was started with the same file was faster
            self._note(VERDICT, request_id, verdict="in force", version=self.plan.version, epoch=epoch, seconds=None)
        else:
            self._note(VERDICT, request_id, verdict="rejected", epoch=epoch, why=why)

    def _gone(self, effects: Effects, parts: Parts) -> Callable[[Manifest], tuple[str, ...]]:
        known = parts.tables()
        return lambda manifest: tuple(n for n in manifest.tables if operator_of(n) in effects.drops or n not in known)

    def _in_force(self, plan: Plan, compiled: Compiled) -> None:
        self.plan = plan
        with contextlib.suppress(Retryable):  # it is the next start's, then
            put_known(self._store, plan)
        for listener in self.listeners:
            listener(compiled)

    def _note(self, format: Format, identity: str, **facts: Any) -> None:
        """A record of what has happened anyway: that it cannot be written now must not undo it."""
        with contextlib.suppress(Retryable):
            self._store.put_if_absent(record_name(format, identity), format.write({**facts, "decided": self._clock.now()}))


@dataclass(frozen=True)
class _Requested:
    """A request on the plan that was in force when it was made. Implements ``probation.Proposal``."""

    modifier: Modifier
    request: Request
    planned: _Planned
    parts: Parts
    gone: Callable[[Manifest], tuple[str, ...]]
    """The tables that the new plan has not."""

    def renew(self) -> Trial | None:
        return None if self.modifier.plan is self.planned.base else self.modifier._trial(self.request)

    def persist(self, epoch: int) -> tuple[Parts, Program]:
        return self.modifier._persist(self, epoch)

    def rewrite(self, manifest: Manifest) -> Rewritten:
        return self.modifier._rewrite(self, manifest)

    def note_debts(self, former: Json) -> Json:
        return self.modifier._note_debts(self.planned.plan, former)

    def accepted(self, epoch: int, seconds: float) -> Modified:
        return self.modifier._accept(self, epoch, seconds)

    def rejected(self, epoch: int, why: str) -> None:
        self.modifier._refuse(self.request.id, epoch, why)


@dataclass(frozen=True)
class _WayBack:
    """Implements ``probation.WayBack``."""

    modifier: Modifier
    request_id: str

    def restore(self, former: Json, setup: Setup) -> Setup:
        return self.modifier._restore(former, setup)

    def reverted(self, epoch: int, why: str) -> None:
        self.modifier._take_back(self.request_id, epoch, why)


def _back_from(plan: Json) -> Iterator[tuple[str, str | None]]:
    """A plan as the log has it, and those that it may go back to."""
    yield in_force(plan)
    if "unproven" in plan:
        yield from _back_from(plan["unproven"]["plan"])


def _moved_on(plan: Plan, effects: Effects) -> set[str]:
    """Joins as of a time whose marks change: a row that a mark has passed takes the place of an older one, which is not there any more."""
    found = set()
    for node in plan.nodes:
        if isinstance(node.op, JoinLatest) and node.op.by_event_time:
            times = [time_of(plan.nodes, plan.schemas, name) for name in node.inputs]
            if any(time is not None and not time.marks.isdisjoint(effects.touched) for time in times):
                found.add(node.name)
    return found


def _behind(plan: Plan, touched: frozenset[str]) -> frozenset[str]:
    """These operators and all that stand behind them: other rows come to them, or at other marks."""
    found = set(touched)
    for node in plan.nodes:
        if not found.isdisjoint(node.inputs):
            found.add(node.name)
    return frozenset(found)


def _code(plan: Plan, effects: Effects) -> dict[str, Json]:
    """The changed operators' texts: a function's source where it can be had, and the hash of what runs in any case."""
    found: dict[str, Json] = {}
    for name in sorted(effects.touched):
        node = plan.node(name)
        op, source = node.op, node.op.describe()
        if isinstance(op, MapBatches):
            with contextlib.suppress(OSError, TypeError):
                source = inspect.getsource(op.fn)
        digest = node.code.digest or hashlib.sha256(op.canonical().encode()).hexdigest()[:32]
        found[name] = {"kind": op.kind, "source": source, "hash": digest}
    return found

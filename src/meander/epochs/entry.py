"""The log entry of an epoch, from its decision and its outcome. Pure: facts in, data out.

The entry makes input, state and output of the epoch true together. All that a later run must know of the epoch is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from meander.coordinate.marks import emptied, floors, flushed
from meander.coordinate.watermarks import heard_from
from meander.epochs.decision import Decision, Outcome
from meander.epochs.former import set_aside
from meander.epochs.parts import Parts
from meander.epochs.setup import Rewritten
from meander.state.manifest import Json, Manifest, Table
from meander.state.segment import SegmentRef
from meander.state.table import Kept


@dataclass(frozen=True)
class Basis:
    """The ground of an epoch: the plan in force, its routing, and the state before the epoch."""

    parts: Parts
    routing: dict[str, list[int]]
    parallelism: int
    """As it was asked for at the start."""
    manifest: Manifest
    """The last one in the log."""
    rewritten: Rewritten
    """What the epoch does to that state before its tasks see it."""
    restarts: tuple[str, ...] = ()
    """Sources that begin at their beginning with the epoch."""
    formers: tuple[Parts, ...] = ()
    """Plans that may be gone back to, the last first: what they still need is set aside, and not dropped."""

    @cached_property
    def before(self) -> Manifest:
        """The state as the epoch's tasks see it."""
        return self.rewritten.view(self.manifest)

    @cached_property
    def kept(self) -> Mapping[str, Kept]:
        return self.parts.tables()

    @property
    def going_on(self) -> dict[str, int | None]:
        """The sources that do not begin anew with this epoch, with the numbers of their partitions where they say so.

        Asked in every epoch: a run may be the first one with fewer partitions, and whether one of its epochs was committed since, and under
        which plan, is nothing that has to be remembered.
        """
        sources = {name: source for name, source in self.parts.sources.items() if name not in self.restarts}
        return {name: getattr(source, "partitions", None) for name, source in sources.items()}


def epoch_entry(decision: Decision, outcome: Outcome, basis: Basis, signed: Json) -> Json:
    """The log's record of an epoch. ``signed`` has the fields that replicas add."""
    timed, before, evict = basis.parts.timed, basis.before, decision.marks.evict
    segments = {name: [ref.to_json() for ref in table.segments] for name, table in basis.rewritten.tables.items()}
    for name, added in outcome.segments.items():
        segments.setdefault(name, []).extend(added)
    after = {name: _table_after(name, basis, outcome) for name in {*before.tables, *segments}}
    drops = emptied(timed, sorted(after), evict)
    going_on = basis.going_on
    times = basis.parts.times_after(before, heard_from(before.times, going_on), outcome.heard, decision.now)
    plan = basis.parts.plan
    if basis.formers:
        gone = {name: after[name] for name in drops}
        plan = {**plan, "unproven": set_aside(plan["unproven"], basis.formers, before, after, gone, decision, outcome, going_on)}
    return {
        "kind": "epoch",
        "epoch": decision.epoch,
        "now": decision.now,
        "plan": plan,
        "splits": [[source, split.payload] for source, split in decision.splits],
        "offsets": decision.offsets,
        "seen": decision.seen,
        "batch": decision.batch,
        "routing": basis.routing,
        "asked": basis.parallelism,
        "tables": {name: _added(name, added, basis) for name, added in segments.items()},
        "forgets": list(basis.rewritten.forgets),
        "restarts": list(basis.restarts),
        "drops": drops,
        "floors": floors(timed, after, evict, decision.now, decision.epoch),
        "quiet": {name: at for name, at in outcome.next_ends.items() if name in before.tables and before.tables[name].quiet != at},
        "times": times,
        "flushed": flushed(timed, before, times, outcome.closed),
        "staged": outcome.staged,
        **signed,
        "counts": {"epochs": 1, **outcome.counts},
    }


def frees_objects(entry: Json, before: Manifest, after: Manifest) -> bool:
    """Whether the state after an epoch does not name objects that the state before it named."""
    went = entry["drops"] or entry["floors"] or entry["forgets"] or entry["restarts"] or "unproven" in before.plan
    return bool(went or before.stored_tables() != after.stored_tables() or before.was_empty(entry["tables"]))


def _table_after(name: str, basis: Basis, outcome: Outcome) -> Table:
    """A table with what an epoch has added to it."""
    kept = basis.kept[name]
    table = basis.before.tables.get(name, Table(kept.keys, (), kept.time))
    return replace(table, segments=(*table.segments, *(SegmentRef.from_json(s) for s in outcome.segments.get(name, ()))))


def _added(name: str, segments: list[Any], basis: Basis) -> Json:
    """What an entry says of a table that has new segments. One that is rewritten begins where it is over already."""
    kept, rewritten = basis.kept[name], basis.rewritten.tables.get(name)
    ends = {} if kept.time is None else {"time": kept.time, **({} if rewritten is None else {"floor": rewritten.floor})}
    return {"keys": kept.keys, "segments": segments, **ends}

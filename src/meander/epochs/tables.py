"""Tables too large to travel with the plan: stored by a driver before an epoch names them. Workers read them: ``cache.tables``.

A log entry's plan has them under ``tables``: per operator a *mark*, which names the pieces. Tasks
get the marks, never the tables. These rules keep every named table in the store, and no other:

- pieces are written before the entry that names them, under new names. A table equal to one in
  force is not written again: its mark is kept.
- a name leaves the log once, and does not come back: then its pieces are removed like a segment,
  when no retained epoch has them.
- pieces that are not in the log belong to an epoch that failed, and are removed after the next
  epoch, or to a process that died, and are removed by the next start.
"""

from __future__ import annotations

from collections.abc import Mapping

from meander.cache.tables import Marks, lookups_of
from meander.clock import Clock
from meander.errors import FlowError
from meander.plan.graph import Plan
from meander.plan.tables import StoredLookup
from meander.state.lookups import check_of, encode_pieces, identity_of, object_prefix
from meander.state.manifest import Json, Manifest, pieces_of
from meander.state.stores.contract import Store


class Wanted:
    """The stored tables of a plan that is to come into force: which are there, and which must be written."""

    def __init__(self, plan: Plan, named: Mapping[str, Json], before: Plan | None = None) -> None:
        """``named`` are the marks in force, ``before`` is the plan that they are of. FlowError where a table is nowhere."""
        old = {} if before is None else lookups_of(before)
        there = {identity_of(mark): mark for mark in named.values()}
        self.marks: Marks = {}
        self._new: dict[str, StoredLookup] = {}
        for name, lookup in lookups_of(plan).items():
            mark = named.get(name) if old.get(name) is lookup else there.get(lookup.identity())
            if mark is not None:
                self.marks[name] = mark
            elif lookup.frame is not None:
                self._new[name] = lookup
            else:
                raise FlowError(
                    f"join_static {name!r}: its table ({lookup.rows:,} rows, {lookup.digest[:12]}) is too large to be sent with a change: "
                    "use run.apply or run.replace in the flow's process, or start the edited file with apply=True"
                )

    def write(self, store: Store, clock: Clock, generation: int, epoch: int, written: set[str]) -> Marks:
        """Write what is not there, for the entry of this epoch to name it. ``written`` gets all names, before they are there."""
        made: Marks = {}
        for name, lookup in self._new.items():
            identity = lookup.identity()
            if identity not in made:
                made[identity] = _write(store, lookup, object_prefix(generation, epoch, clock.new_id(), identity), written)
            self.marks[name] = made[identity]
        self._new.clear()
        return self.marks


def _write(store: Store, lookup: StoredLookup, prefix: str, written: set[str]) -> Json:
    mark: Json = {"object": prefix, "digest": lookup.digest, "pieces": [], "rows": lookup.rows, "bytes": 0}
    for piece in encode_pieces(lookup.table().select(lookup.kept), lookup.matching.right_on, lookup.matching.nulls_equal):
        mark["pieces"].append(check_of(piece))
        name = pieces_of(mark)[-1]
        written.add(name)
        store.put(name, piece)
        mark["bytes"] += piece.size
    return mark


def at_start(store: Store, clock: Clock, manifest: Manifest, plan: Plan, said: Json, written: set[str]) -> Marks:
    """The tables of the plan that continues; tables that are not in the store are written. Adds
    their marks to ``said``, the plan's record for log entries, and returns them.

    A table that came with a modification, and that no file has, is the one that the log names.
    Pieces that were removed by hand are written again.
    """
    named = {}
    for name, mark in manifest.plan.get("tables", {}).items():
        lookup = lookups_of(plan).get(name)
        if lookup is None:
            continue
        if lookup.frame is None:
            lookup.digest = mark["digest"]
        elif any(store.get_range(piece, 0, 1) is None for piece in pieces_of(mark)):
            continue
        named[name] = mark
    marks = Wanted(plan, named).write(store, clock, manifest.generation, manifest.epoch + 1, written)
    said.pop("tables", None)
    if marks:
        said["tables"] = marks
    return marks


def leftovers(written: set[str], manifest: Manifest, plan: Json) -> set[str]:
    """The pieces written by this process that neither the log nor the next entry names. From now on
    the log owns the others."""
    waiting = Manifest(plan=plan).stored_tables()
    left = written - manifest.stored_tables() - waiting
    written &= waiting - manifest.stored_tables()
    return left

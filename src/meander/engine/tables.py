"""Tables too large to travel with the plan: stored by a driver before an epoch names them, read by workers where they are. Spark-free.

What a log entry's plan says of them is under ``tables``: per operator a *mark*, which names the pieces. Tasks are told the marks, and
never the tables. The rules that keep a named table in the store, and no other:

- pieces are written before the entry that names them, under names that nobody has used before. A table that is the same as one in
  force is not written: its mark goes on.
- a name leaves the log once, and does not come back: then it goes like a segment, when no retained epoch has it.
- what was written and is not in the log was written for an epoch that failed, or by the dead: the first is removed after the next
  epoch, the second by the next start.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import polars as pl
import pyarrow as pa

from meander.clock import Clock
from meander.engine.compiled import Compiled
from meander.engine.segments import Household
from meander.errors import Corrupted, FlowError, MeanderError
from meander.plan.graph import Plan
from meander.plan.tables import JoinStatic, StoredLookup
from meander.state.lookups import LookupTable, check_of, encode_pieces, identity_of, object_prefix
from meander.state.manifest import Json, Manifest, pieces_of
from meander.state.store import Store

Marks = dict[str, Json]
_UNUSED = 64
"""Tasks after which a worker lets go of a table that none of them has used: another flow's, in a session that runs several."""


def lookups_of(plan: Plan) -> dict[str, StoredLookup]:
    """The operators of a plan that look rows up in stored tables."""
    return {n.name: n.op.lookup for n in plan.nodes if isinstance(n.op, JoinStatic) and isinstance(n.op.lookup, StoredLookup)}


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
    """The tables of the plan that goes on, written where they are not in the store. What log entries are to say of the plan says so.

    A table that came with a modification, and that no file has, is the one that the log names. What somebody has removed is written again.
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
    """Of what this process has written, what neither the log nor the next entry names. The others are the log's from now on."""
    waiting = Manifest(plan=plan).stored_tables()
    left = written - manifest.stored_tables() - waiting
    written &= waiting - manifest.stored_tables()
    return left


class Shelf:
    """The stored tables that a worker has open: mapped, each checked once, and let go when no operator uses it."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], tuple[LookupTable, int]] = {}
        self._tasks = 0
        self._openers: dict[str, Callable[[], LookupTable]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def lend(self, compiled: Compiled, marks: Mapping[str, Json], store: Store, household: Household | None) -> None:
        """Have a plan's lookups find their rows where a task's marks say."""
        self._tasks += 1
        mine = {(store.url, mark["object"]) for mark in marks.values()}
        for key, (_, last) in list(self._open.items()):
            if key not in mine and (key[0] == store.url or last < self._tasks - _UNUSED):
                del self._open[key]
        self._openers = {}
        for name, lookup in lookups_of(compiled.plan).items() if marks else ():
            self._openers[name] = opener = partial(self._opened, name, marks[name], lookup, store, household)
            lookup.find = partial(_find, opener)

    def open(self, operators: Iterable[str]) -> None:
        """Open what these operators need. Before they see a row: that a table cannot be read is no fault of one."""
        for name in operators:
            if name in self._openers:
                self._openers[name]()

    def _opened(self, name: str, mark: Json, lookup: StoredLookup, store: Store, household: Household | None) -> LookupTable:
        key = (store.url, mark["object"])
        found = self._open.get(key)
        table = LookupTable(_pieces(name, mark, store, household), _schema(lookup)) if found is None else found[0]
        self._open[key] = (table, self._tasks)
        return table


def _find(opener: Callable[[], LookupTable], keys: pl.DataFrame) -> pl.DataFrame:
    return opener().find(keys)


def bring(marks: Mapping[str, Json], store: Store, household: Household | None) -> None:
    """Have tables in an executor's cache before an epoch needs them; what is in the way shows when one does."""
    if household is not None:
        with contextlib.suppress(MeanderError, OSError):
            for name, mark in marks.items():
                _pieces(name, mark, store, household)


def _schema(lookup: StoredLookup) -> dict[str, pl.DataType]:
    return {column: lookup.schema[column] for column in lookup.kept}


def _pieces(operator: str, mark: Json, store: Store, household: Household | None) -> list[pa.Buffer]:
    """A table's bytes, mapped where they can be: from the store where that is a folder, or else from this executor's cache."""
    find = partial(_mapped, operator, store) if household is None else partial(_cached, operator, household, store)
    return [find(name, check) for name, check in zip(pieces_of(mark), mark["pieces"], strict=True)]


def _mapped(operator: str, store: Store, name: str, check: str) -> pa.Buffer:
    data = store.map(name)
    if data is None:
        raise Corrupted(
            f"join_static '{operator}': its table is missing: '{name}' is named by the log but is not in store {store.url}; was the store "
            "changed from outside? Start the flow again from the file that has the table: it is stored anew"
        )
    if check_of(data) != check:
        raise Corrupted(
            f"join_static '{operator}': its table is damaged: '{name}' in store {store.url} is not what was written there; remove it, and "
            "start the flow again from the file that has the table: it is stored anew"
        )
    return data


def _cached(operator: str, household: Household, store: Store, name: str, check: str) -> pa.Buffer:
    """A piece by way of the cache. One worker of the executor fetches it; what is damaged is not kept."""
    with _alone(household):
        data = household.cache.whole(name)
        if data is None or check_of(data) != check:
            household.cache.add(name, _mapped(operator, store, name, check))
            data = household.cache.whole(name)
    return _mapped(operator, store, name, check) if data is None else data  # it had to make room already


@contextlib.contextmanager
def _alone(household: Household) -> Iterator[None]:
    lock = os.open(household.folder / "tables.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)

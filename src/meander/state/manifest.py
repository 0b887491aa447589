"""The manifest: everything a flow is at one position of its log, and how each log entry changes it.

Pure. A manifest is the fold of the log's entries; a snapshot is that fold written down, so that nobody has to
read the log from its beginning. Log entries are JSON objects with ``kind``:

- ``takeover``: a new generation owns the store from here on
- ``epoch``: one epoch's decision, its new segments and its staged output: the commit point
- ``compaction``, ``compactions``: segments replaced by one that holds the same rows, once or several times
- ``names``: the names that sources have taken are in these files from here on
- ``trial``: a replica tries a change of the plan with the next epoch; the others let it
- ``pass``: nothing; it takes its position, so that an entry that was not answered cannot arrive there any more
- ``routing``: an operator's key groups have other slots from the next epoch on (where several replicas work on a store)

Invariants, and what breaks otherwise:

- an epoch entry's number is the manifest's plus one: a gap would lose input, a repeat would double it
- a segment's key groups are disjoint from those of every other segment with the same sequence: otherwise two rows
  of one key would be the newest
- compaction may only take key groups from segments it has read, and no segment that it has not read may stand between or
  beside them: otherwise an older row would hide an update
- a floor never goes back but with a change that is taken back, and nothing is dropped or merged away that the plan before such a change
  still needs: otherwise taking it back would leave a trace

The second and third are checked where a merge is applied, so before its entry is appended. A merge that breaks one is Corrupted.

**Floors.** Rows of some tables end. An epoch's entry says up to which time they are over, its *floors*: readers skip what ends there or
before, a segment goes when all of it does, and a merge leaves it out. While a change is on probation, the plans before it have floors of
their own, in ``unproven``, and what is above one of them stays in the store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from meander.errors import Corrupted
from meander.state.segment import SOONEST, SegmentRef

Json = dict[str, Any]
NONCES = 96
"""How many a shared generation's manifest has: more than there are entries between two snapshots."""


def operator_of(table: str) -> str:
    """The operator a table belongs to, whose routing is the table's. Operators' names have no dot.

    >>> operator_of("visits"), operator_of("visits.pages")
    ('visits', 'visits')
    """
    return table.split(".", 1)[0]


def pieces_of(mark: Json) -> list[str]:
    """The objects that a stored table is in, by what a plan says of it: see ``state.lookups``."""
    return [f"{mark['object']}.{number:04d}" for number in range(len(mark["pieces"]))]


@dataclass(frozen=True)
class Table:
    """One stateful operator's state: its key columns and its segments, oldest first.

    A table in which nothing is left keeps one segment without key groups: nobody looks anything up in it, and it says which columns
    the table has.
    """

    keys: tuple[str, ...]
    segments: tuple[SegmentRef, ...] = ()
    time: str | None = None
    """The column that says when rows end, where they do."""
    floor: int = SOONEST
    """Rows that end here or before are over."""
    quiet: int = SOONEST
    """No row ends between the floor and this time, as tasks have found that looked; ``SOONEST`` where nobody has."""

    def alive_for(self, groups: int) -> tuple[SegmentRef, ...]:
        return tuple(s for s in self.segments if s.groups & groups)

    def without(self, names: Collection[str]) -> Table:
        """Without some segments. Where none is left, the smallest stays, for its columns."""
        kept = tuple(s for s in self.segments if s.name not in names and s.groups)
        if not kept and self.segments:
            smallest = min(self.segments, key=lambda s: (s.rows, s.name))
            kept = (smallest.without(smallest.groups),)
        return replace(self, segments=kept)

    def may_end(self, above: int, upto: int) -> bool:
        """Whether rows that are not over may end above one time and not above another."""
        above = max(above, self.floor)
        return above < upto and self.quiet <= upto and any(s.groups and s.last_end > above and s.first_end <= upto for s in self.segments)

    @property
    def rows(self) -> int:
        """Stored rows; a key that was updated since its last compaction counts more than once. About those that are not over."""
        return sum(s.alive_rows(self.floor) for s in self.segments if s.groups)

    @property
    def bytes(self) -> int:
        return sum(s.bytes for s in self.segments if s.groups)


def tables_to_json(tables: Mapping[str, Table]) -> Json:
    return {name: table_to_json(table) for name, table in tables.items()}


def table_to_json(table: Table) -> Json:
    ends = {} if table.time is None else {"time": table.time, "floor": table.floor}
    quiet = {} if table.quiet == SOONEST else {"quiet": table.quiet}
    return {"keys": table.keys, "segments": [s.to_json() for s in table.segments], **ends, **quiet}


def tables_in(fields: Json) -> dict[str, Table]:
    return {name: _table_in(table) for name, table in fields.items()}


def _table_in(fields: Json) -> Table:
    segments = tuple(SegmentRef.from_json(s) for s in fields["segments"])
    return Table(tuple(fields["keys"]), segments, fields.get("time"), fields.get("floor", SOONEST), fields.get("quiet", SOONEST))


def kept_floor(table: str, floor: int, plan: Json) -> int:
    """Up to where nobody needs rows of a table: neither the plan in force, nor one that may be gone back to."""
    while (unproven := plan.get("unproven")) is not None:
        floor = min(floor, unproven["floors"].get(table, floor))
        plan = unproven["plan"]
    return floor


def _over(table: Table, floor: int) -> set[str]:
    """The segments of which no row ends above the floor."""
    return {s.name for s in table.segments if s.groups and s.last_end <= floor}


@dataclass(frozen=True)
class Manifest:
    """The state of a flow after one log entry."""

    generation: int = 0
    position: int = -1
    epoch: int = 0
    key_groups: int = 128
    plan: Json = field(default_factory=dict)
    offsets: dict[str, Json] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    routing: dict[str, list[int]] = field(default_factory=dict)
    seen: dict[str, list[str]] = field(default_factory=dict)
    """Per source, the files in the store that hold the names it has taken up to the last snapshot."""
    recent: dict[str, list[str]] = field(default_factory=dict)
    """Per source, the names taken since."""
    staged: dict[str, list[Json]] = field(default_factory=dict)
    """The last epoch's output files, per sink: published again on recovery."""
    batch: Json | None = None
    """The last batch of Structured Streaming that is an epoch here: query, batch id, and a digest of the range of input that it is."""
    totals: dict[str, int] = field(default_factory=dict)
    now: float = 0.0
    started: float = 0.0
    """When the generation took over. Before that nobody may have run: it is no silence of a source."""
    times: dict[str, Json] = field(default_factory=dict)
    """Per watermark, what is known of event time: see ``coordinate.watermarks``."""
    flushed: dict[str, int] = field(default_factory=dict)
    """Per operator, up to where flushes have closed everything: see ``coordinate.marks``."""
    asked: int | None = None
    """The parallelism that the last start asked for; what the routing has may have been changed since."""
    shared: bool = False
    """Whether several replicas append to this generation's log."""
    by: str | None = None
    """The replica that has committed the last epoch."""
    trial: Json | None = None
    """The replica that tries a change of the plan with the next epoch, and for how long the others let it."""
    nonces: tuple[str, ...] = ()
    """Of a shared generation's last entries, up to this position: whether an entry was read by anybody is known by its nonce."""

    def apply(self, entry: Json) -> Manifest:
        """The manifest after one more entry."""
        kind = entry["kind"]
        moved = replace(self, position=entry["position"], generation=entry["generation"])
        if self.shared:
            moved = replace(moved, nonces=(*self.nonces[1 - NONCES :], entry["nonce"]))
        if kind == "takeover":
            moved = replace(moved, shared="shared" in entry, nonces=(), started=entry["now"])
            return replace(moved, key_groups=entry.get("key_groups", self.key_groups))
        if kind == "epoch":
            return moved._after_epoch(entry)
        if kind == "compaction":
            return moved._after_merge(entry)
        if kind == "compactions":
            for merge in entry["merges"]:
                moved = moved._after_merge(merge)
            return moved
        if kind == "names":
            return replace(moved, seen=entry["seen"], recent={})
        if kind == "pass":
            return moved
        if kind == "trial":
            return replace(moved, trial={"by": entry["by"], "seconds": entry["seconds"]})
        if kind == "routing":
            return replace(moved, routing={**self.routing, **entry["routing"]})
        raise Corrupted(f"log entry {entry['position']} has the unknown kind '{kind}': use a newer Meander")

    def _after_epoch(self, entry: Json) -> Manifest:
        if entry["epoch"] != self.epoch + 1:
            raise Corrupted(f"log entry {entry['position']} is epoch {entry['epoch']}, expected {self.epoch + 1}")
        # Forgotten before its own are added: an operator may begin anew under its old name.
        forgets, restarts = set(entry["forgets"]), set(entry["restarts"])
        tables = {name: table for name, table in self.tables.items() if name not in forgets}
        for name, quiet in entry["quiet"].items():
            if name in tables:
                tables[name] = replace(tables[name], quiet=quiet)
        for name, added in entry["tables"].items():
            before = tables.get(name, Table(tuple(added["keys"]), (), added.get("time")))
            alive = tuple(s for s in before.segments if s.groups)
            floor = added.get("floor", before.floor)
            new = tuple(SegmentRef.from_json(s) for s in added["segments"])
            quiet = min(before.quiet, *(s.first_end for s in new)) if new else before.quiet
            tables[name] = replace(before, segments=alive + new, floor=floor, quiet=quiet)
        for name in entry["drops"]:
            if name in tables:
                tables[name] = replace(tables[name].without({s.name for s in tables[name].segments}), floor=SOONEST, quiet=SOONEST)
        for name, floor in entry["floors"].items():
            if name in tables:
                tables[name] = replace(tables[name], floor=floor)
        for name, table in tables.items():
            if table.time is not None and (over := _over(table, kept_floor(name, table.floor, entry["plan"]))):
                tables[name] = table.without(over)
        recent = {name: list(names) for name, names in self.recent.items() if name not in restarts}
        for name, names in entry["seen"].items():
            recent.setdefault(name, []).extend(names)
        totals = {k: self.totals.get(k, 0) + entry["counts"].get(k, 0) for k in {**self.totals, **entry["counts"]}}
        return replace(
            self,
            epoch=entry["epoch"],
            plan=entry["plan"],
            offsets={**{name: at for name, at in self.offsets.items() if name not in restarts}, **entry["offsets"]},
            seen={name: files for name, files in self.seen.items() if name not in restarts},
            tables=tables,
            routing=entry["routing"],
            recent=recent,
            staged=entry["staged"],
            batch=entry["batch"] or self.batch,
            totals=totals,
            now=entry["now"],
            times=entry["times"],
            flushed=entry["flushed"],
            asked=entry["asked"],
            by=entry.get("by"),
            trial=None,
        )

    def _after_merge(self, merge: Json) -> Manifest:
        table = self.tables[merge["table"]]
        output = SegmentRef.from_json(merge["output"])
        there = {segment.name for segment in table.segments}
        over = {name for name, end in merge.get("ends", {}).items() if name not in there and end <= table.floor}
        inputs = set(merge["inputs"]) - over
        segments = []
        read = 0  # the key groups that it takes from the segments up to here, which are in the order of their sequences
        for segment in table.segments:
            kept = segment
            if segment.name in inputs:
                inputs.remove(segment.name)
                read |= segment.groups & output.groups
                kept = segment.without(output.groups)
            elif segment.sequence <= output.sequence and segment.groups & (output.groups if segment.sequence == output.sequence else read):
                raise Corrupted(
                    f"the merge into '{output.name}' (sequence {output.sequence}) would put older rows of table '{merge['table']}' "
                    f"beside or above those of '{segment.name}' (sequence {segment.sequence}), which it has not read"
                )
            if kept.groups:
                segments.append(kept)
        if inputs or (output.groups & ~read and not over):
            missing = ", ".join(sorted(inputs)) or f"no segment for some of its key groups ({output.groups & ~read:x})"
            raise Corrupted(f"the merge into '{output.name}' has read what table '{merge['table']}' does not have: {missing}")
        if output.rows and output.groups:
            segments.append(output)
        if not segments:  # nothing is left: readers still need the columns
            newest = max(table.segments, key=lambda s: s.sequence)
            segments = [newest.without(newest.groups)]
        segments.sort(key=lambda s: s.sequence)
        return replace(self, tables={**self.tables, merge["table"]: replace(table, segments=tuple(segments))})

    def tables_of(self, operator: str) -> list[Table]:
        """The operator's own table and those of its aggregates' values."""
        return [table for name, table in self.tables.items() if operator_of(name) == operator]

    def was_empty(self, tables: Iterable[str]) -> bool:
        """Whether nothing is left of one of these tables: what it has kept for its columns goes with the next segment."""
        return any(not s.groups for name in tables if name in self.tables for s in self.tables[name].segments)

    def segment_names(self) -> set[str]:
        names = {s.name for table in self.tables.values() for s in table.segments}
        plan = self.plan
        while (unproven := plan.get("unproven")) is not None:  # what was set aside may be taken back
            names.update(s.name for table in tables_in(unproven.get("aside", {})).values() for s in table.segments)
            plan = unproven["plan"]
        return names

    def stored_tables(self) -> set[str]:
        """The pieces of tables that the plan looks rows up in, or one that may be gone back to."""
        names, plan = set[str](), self.plan
        while plan:
            for mark in plan.get("tables", {}).values():
                names.update(pieces_of(mark))
            plan = plan.get("unproven", {}).get("plan", {})
        return names

    def object_names(self) -> set[str]:
        """Everything in the store that this manifest needs."""
        names = self.segment_names() | self.stored_tables()
        names.update(name for files in self.seen.values() for name in files)
        names.update(file["name"] for files in self.staged.values() for file in files)
        return names

    def to_json(self) -> Json:
        return {
            "generation": self.generation,
            "position": self.position,
            "epoch": self.epoch,
            "key_groups": self.key_groups,
            "plan": self.plan,
            "offsets": self.offsets,
            "tables": tables_to_json(self.tables),
            "routing": self.routing,
            "seen": self.seen,
            "recent": self.recent,
            "staged": self.staged,
            "batch": self.batch,
            "totals": self.totals,
            "now": self.now,
            "started": self.started,
            "times": self.times,
            "flushed": self.flushed,
            "asked": self.asked,
            "shared": self.shared,
            "by": self.by,
            "trial": self.trial,
            "nonces": self.nonces,
        }

    @staticmethod
    def from_json(data: Json) -> Manifest:
        known = {one.name: data[one.name] for one in fields(Manifest)}
        return Manifest(**{**known, "tables": tables_in(data["tables"]), "nonces": tuple(data["nonces"])})

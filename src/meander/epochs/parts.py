"""The parts of a plan that a loop works on, and the check that a store can continue with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from meander.connect.parquet import ParquetSink
from meander.connect.sink import Sink
from meander.connect.source import Source
from meander.coordinate.marks import Timed, followed
from meander.coordinate.routing import rebalance, slots_of, spread
from meander.coordinate.watermarks import Rule, advance
from meander.errors import ConfigError
from meander.plan.change.diff import explain_difference
from meander.state.formats import RECORD
from meander.state.manifest import Json, Manifest
from meander.state.reading import plan_record_name
from meander.state.stores.contract import Store
from meander.state.table import Kept
from meander.task.physical import Compiled
from meander.task.stage import DEAD_LETTERS

COMFORTABLE_RUNS = 40


@dataclass(frozen=True)
class Parts:
    """A flow's sources and sinks and its stateful operators, by name."""

    plan: Json
    """Version and digest, as the log records them."""
    record: Json
    """The plan as plain data, to say what is different where the store belongs to another one."""
    sources: Mapping[str, Source]
    sinks: Mapping[str, Sink]
    keyed: Mapping[str, Mapping[str, Kept]]
    """Stateful operators and their tables."""
    rules: Mapping[str, Rule] = field(default_factory=dict)
    """The watermarks."""
    timed: Mapping[str, Timed] = field(default_factory=dict)
    """The stateful operators that follow time."""

    @staticmethod
    def of(compiled: Compiled, dead_letters: str) -> Parts:
        """Those of a plan, with a folder for its dead letters."""
        sinks = {name: op.sink for name, op in compiled.sinks.items()}
        sinks[DEAD_LETTERS] = ParquetSink(dead_letters)
        return Parts(
            {"flow": compiled.plan.flow, "version": compiled.plan.version, "digest": compiled.digest},
            compiled.plan.record(),
            {name: op.source for name, op in compiled.sources.items()},
            sinks,
            {name: keyed.tables() for name, keyed in compiled.keyed.items()},
            compiled.rules,
            compiled.timed,
        )

    def open_sinks(self, before: Parts | None = None) -> None:
        """Open the sinks; with ``before``, those alone that it does not have: new ones, and others under an old name."""
        for name, sink in self.sinks.items():
            if before is None or before.sinks.get(name) != sink:
                sink.open()

    def times_after(
        self, before: Manifest, times: Mapping[str, Json], heard: Mapping[str, Mapping[str, int]], now: float
    ) -> dict[str, Json]:
        """Event time by these watermarks, after an epoch that was decided at ``now`` and heard this. It was ``times`` before."""
        return advance(times, self.rules, heard, now, followed(self.timed), before.started)

    def tables(self) -> dict[str, Kept]:
        return {name: kept for tables in self.keyed.values() for name, kept in tables.items()}


def in_force(plan: Json) -> tuple[str, str | None]:
    """The identity of a plan in the log. A digest alone is not enough: it has no places, so a
    modification may leave it unchanged."""
    return plan["digest"], plan.get("modification")


def route(manifest: Manifest, name: str, parallelism: int) -> list[int]:
    """The table to begin with. A flow that was rescaled while it ran stays so when it is started again as it was started before."""
    before = manifest.routing.get(name)
    if before is None:
        return spread(manifest.key_groups, parallelism)
    return before if parallelism in (manifest.asked, slots_of(before)) else rebalance(before, parallelism)


def check_continuity(store: Store, manifest: Manifest, parts: Parts) -> None:
    """A store goes on only with the flow it holds the state of."""
    tables = parts.tables()
    for name, table in manifest.tables.items():
        if name in tables and tables[name].keys != table.keys:
            raise ConfigError(
                f"operator '{name}' is keyed by {', '.join(tables[name].keys)}, but its stored state by {', '.join(table.keys)}; "
                "give the operator another name, or use another store"
            )
    if manifest.plan and manifest.plan["digest"] != parts.plan["digest"]:
        name = plan_record_name(manifest.plan["digest"])
        found = store.get(name)
        stored = None if found is None else RECORD.read(found, name)
        difference = "in what, the store does not say" if stored is None else explain_difference(stored, parts.record)
        offer = "" if stored is None else _offer_same_code(stored, parts.record)
        raise ConfigError(
            f"the store holds flow '{manifest.plan['flow']}' as it was (plan {manifest.plan['digest'][:12]}), this one differs "
            f"(plan {parts.plan['digest'][:12]}): {difference}. Start the flow that made the store, or use another store. "
            "To change it into this one, start this one with apply=True, or, while it runs as it was: `meander apply FLOW.py`, or "
            f"run.apply(flow).{offer}"
        )


def _offer_same_code(before: Json, after: Json) -> str:
    """What to say where changed code does what it did: for the operators whose code is another one."""
    old, new = before["operators"], after["operators"]
    names = [name for name, op in new.items() if name in old and op["code"] and old[name]["code"] and op["code"] != old[name]["code"]]
    if not names:
        return ""
    return (
        f" Where the changed code does what it did, start this one with same_code=[{', '.join(map(repr, names))}]; "
        "'What counts as code' in docs/modifications.md says which changes are seen."
    )


def share_of_input(runs: int) -> float:
    """How much of its limits a source should use, given the longest list of runs that a lookup meets.

    Compaction that falls behind makes every lookup slower: less input per epoch leaves it time to catch up.

    >>> [round(share_of_input(runs), 2) for runs in (1, 40, 60, 120)]
    [1.0, 1.0, 0.44, 0.11]
    """
    return min(1.0, max(0.05, (COMFORTABLE_RUNS / max(runs, 1)) ** 2))

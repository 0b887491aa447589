"""The effects of a modification, in words and as plain data: for dry runs, for answers, and for the
history. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from meander.errors import FlowError
from meander.plan.change.diff import differences
from meander.plan.determinism import chance_in
from meander.plan.graph import Plan
from meander.plan.operators import MapBatches
from meander.plan.processing import Process
from meander.plan.schemas import show_type


@dataclass(frozen=True)
class Fate:
    """The effect on one operator's state."""

    kind: str
    """kept, upgraded, created, dropped, or dropped and begun anew"""
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()

    def words(self) -> str:
        named = (("without", self.removed), ("with the new", self.added), ("wider in", self.widened))
        parts = [f"{word} {', '.join(columns)}" for word, columns in named if columns]
        return f"{self.kind}{', ' + ', '.join(parts) if parts else ''}"


@dataclass(frozen=True)
class Effects:
    """The effects of a modification on plan and state: ``run.remove("large", dry_run=True)``
    returns ``md.Effects``."""

    version: int
    """Of the plan that it makes."""
    changes: tuple[str, ...]
    """The requested changes."""
    operators: tuple[str, ...]
    """The differences in the plan."""
    schemas: Mapping[str, tuple[str, ...]]
    """Per operator that stays, the columns that differ."""
    state: Mapping[str, Fate]
    touched: frozenset[str] = frozenset()
    """The operators whose code is new."""
    restarts: frozenset[str] = frozenset()
    """The sources that begin at their beginning, or are gone: where they were is forgotten."""
    go_on: frozenset[str] = frozenset()
    """The sources that have other columns and go on where they are."""
    reached: frozenset[str] = frozenset()
    """The operators to which other columns come for that reason."""
    upgrades: Mapping[str, Callable[[pl.DataFrame], pl.DataFrame]] = field(default_factory=dict, repr=False)
    chance: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Per operator whose code is new, the calls in it that give something else each time."""

    @property
    def drops(self) -> frozenset[str]:
        """The operators whose state goes."""
        return frozenset(name for name, fate in self.state.items() if fate.kind.startswith("dropped"))

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "changes": list(self.changes),
            "plan": list(self.operators),
            "schemas": {name: list(columns) for name, columns in self.schemas.items()},
            "state": {name: fate.words() for name, fate in self.state.items()},
            "drops": sorted(self.drops),
            "restarts": sorted(self.restarts),
            "go_on": sorted(self.go_on),
            "chance": {name: list(calls) for name, calls in self.chance.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Effects:
        """The effects that ``to_json`` wrote in another process, without the parts that only the
        flow's own process needs."""
        columns = {name: tuple(found) for name, found in data["schemas"].items()}
        state = {name: Fate(words) for name, words in data["state"].items()}
        chance = {name: tuple(calls) for name, calls in data["chance"].items()}
        named = (frozenset(data["restarts"]), frozenset(data["go_on"]))
        said = (tuple(data["changes"]), tuple(data["plan"]), columns, state)
        return cls(data["version"], *said, restarts=named[0], go_on=named[1], chance=chance)

    def __str__(self) -> str:
        lines = [f"plan version {self.version}"]
        lines += [f"  plan: {phrase}" for phrase in self.operators]
        lines += [f"  columns of '{name}': {', '.join(columns)}" for name, columns in self.schemas.items()]
        lines += [f"  state of '{name}': {fate.words()}" for name, fate in self.state.items()]
        lines += [f"  source '{name}': where it was is forgotten" for name in sorted(self.restarts)]
        lines += [f"  source '{name}': it goes on where it is" for name in sorted(self.go_on)]
        lines += [
            f"  beware: '{name}' calls {', '.join(calls)}, which gives something else each time" for name, calls in self.chance.items()
        ]
        return "\n".join(lines)


def tell_effects(
    before: Plan,
    after: Plan,
    changes: tuple[str, ...],
    state: Mapping[str, Fate],
    touched: frozenset[str],
    restarts: frozenset[str],
    upgrades: Mapping[str, Callable[[pl.DataFrame], pl.DataFrame]],
) -> Effects:
    """The difference between two versions of a plan."""
    schemas = {}
    for node in after.nodes:
        if node.name in before.schemas:
            columns = _columns(before.schema(node.name), after.schema(node.name))
            if columns:
                schemas[node.name] = columns
    found = differences(before.record(), after.record())
    chance = {name: calls for name in sorted(touched) if (calls := _chance(after, name))}
    return Effects(after.version, changes, tuple(found), schemas, state, touched, restarts, upgrades=upgrades, chance=chance)


def _chance(plan: Plan, name: str) -> tuple[str, ...]:
    op = plan.node(name).op
    calls = chance_in(op.fn) if isinstance(op, MapBatches) else chance_in(op.processor) if isinstance(op, Process) else ()
    if calls and isinstance(op, MapBatches) and op.deterministic:
        raise FlowError(f"{op.kind} {name!r}: deterministic=True, and it calls {', '.join(calls)}, which gives something else each time")
    return calls


def _columns(before: pl.Schema, after: pl.Schema) -> tuple[str, ...]:
    gone = [f"-{name}" for name in before if name not in after]
    new = [f"+{name} {show_type(dtype)}" for name, dtype in after.items() if name not in before]
    other = [f"{n} {show_type(before[n])} → {show_type(t)}" for n, t in after.items() if n in before and before[n] != t]
    return (*gone, *new, *other)

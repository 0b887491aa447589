"""A plan made ready to run: its stages, the exchanges between them, and its stateful operators.

Compiled once per process and plan, from the plan's pickled bytes; tasks find it by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from meander.connect.sink import shows_table
from meander.coordinate.watermarks import Rule
from meander.plan.computed import computed
from meander.plan.eventtime import Watermark
from meander.plan.graph import Node, Plan
from meander.plan.operators import MapBatches, SinkOp, SourceOp, WithColumns
from meander.plan.pickling import unpickle
from meander.plan.sessions import RowSession
from meander.plan.stages import levels
from meander.task.operators import make_ready
from meander.task.operators.contract import Stateful


@dataclass(frozen=True)
class Level:
    """The work of one stage's task, in order."""

    number: int
    sources: tuple[str, ...]
    keyed: tuple[str, ...]
    stateless: tuple[Node, ...]
    sinks: tuple[Node, ...]
    feeds: tuple[tuple[str, str, int], ...]
    """(operator of this level, stateful operator of a later one, which of its inputs)."""
    carries: tuple[tuple[str, int], ...]
    """(operator of this level, later level whose stateless operators need its rows)."""


@dataclass(frozen=True)
class Compiled:
    """A plan with everything a driver or a task asks of it."""

    plan: Plan
    digest: str
    keyed: Mapping[str, Stateful]
    levels: tuple[Level, ...]
    sources: Mapping[str, SourceOp] = field(default_factory=dict)
    sinks: Mapping[str, SinkOp] = field(default_factory=dict)

    @cached_property
    def rules(self) -> dict[str, Rule]:
        """The watermarks there are."""
        return {n.name: Rule(n.op.grace, n.op.idle) for n in self.plan.nodes if isinstance(n.op, Watermark)}

    @cached_property
    def computes(self) -> dict[str, Node]:
        """Of aggregates over expressions, the columns that are computed before their rows are folded, as an operator of their name."""
        found = {node.name: computed(getattr(node.op, "aggs", ())) for node in self.plan.nodes}
        return {name: Node(name, WithColumns(exprs)) for name, exprs in found.items() if exprs}

    @cached_property
    def gauges(self) -> dict[str, Node]:
        """Of sessions whose rows have a gap of their own, the column of these gaps, as an operator of their name."""
        found = {node: getattr(node.op, "window", None) for node in self.plan.nodes}
        return {
            node.name: Node(node.name, WithColumns((window.gaps(self.plan.schema(node.inputs[0]), node.name),)))
            for node, window in found.items()
            if isinstance(window, RowSession)
        }

    @cached_property
    def timed(self) -> dict[str, Stateful]:
        """The stateful operators that follow time."""
        return {name: keyed for name, keyed in self.keyed.items() if keyed.timing is not None}

    @cached_property
    def tables(self) -> frozenset[str]:
        """The sinks that show the table of a stream of changes, and get added and removed rows."""
        return frozenset(name for name, op in self.sinks.items() if shows_table(op.sink) and name in self.plan.changes)

    @cached_property
    def repeatable_first_stage(self) -> bool:
        """Whether several slots may each compute the first stage and get the same rows."""
        first = {node.name for node in self.levels[0].stateless}
        return all(n.op.deterministic for n in self.plan.nodes if n.name in first and isinstance(n.op, MapBatches))


def compile_plan(plan: Plan) -> Compiled:
    """Derive what tasks need from a validated plan."""
    level_of = levels(plan)
    stateful = [(number, node) for number, node in enumerate(plan.nodes) if node.op.stateful]
    keyed = {node.name: make_ready(plan, node, number, level_of[node.name]) for number, node in stateful}
    depth = max(level_of.values()) + 1
    return Compiled(
        plan,
        plan.digest(),
        keyed,
        tuple(_compile_level(plan, level_of, number) for number in range(depth)),
        {n.name: n.op for n in plan.nodes if isinstance(n.op, SourceOp)},
        {n.name: n.op for n in plan.nodes if isinstance(n.op, SinkOp)},
    )


def _compile_level(plan: Plan, level_of: dict[str, int], number: int) -> Level:
    here = [node for node in plan.nodes if level_of[node.name] == number]
    feeds: list[tuple[str, str, int]] = []
    carries: list[tuple[str, int]] = []
    for node in here:
        later: set[int] = set()
        for name in plan.consumers(node.name):
            consumer = plan.node(name)
            if consumer.op.stateful:
                feeds.extend((node.name, name, side) for side, of in enumerate(consumer.inputs) if of == node.name)
            elif level_of[consumer.name] > number:
                later.add(level_of[consumer.name])
        carries.extend((node.name, level) for level in sorted(later))
    return Level(
        number,
        tuple(n.name for n in here if isinstance(n.op, SourceOp)),
        tuple(n.name for n in here if n.op.stateful),
        tuple(n for n in here if not n.op.stateful and not isinstance(n.op, SourceOp | SinkOp)),
        tuple(n for n in here if isinstance(n.op, SinkOp)),
        tuple(feeds),
        tuple(carries),
    )


class CompiledPlans:
    """The plans that a process runs tasks of, found by their pickled bytes. Not by digest, in which folders and limits do not count."""

    def __init__(self) -> None:
        self._compiled: dict[bytes, Compiled] = {}

    def unpack(self, packed: bytes) -> Compiled:
        """The compiled plan of these bytes: unpickled once."""
        if packed not in self._compiled:
            self._compiled.clear()  # one plan at a time: a modified flow must not pile its past up in every worker
            self._compiled[packed] = compile_plan(unpickle(packed))
        return self._compiled[packed]

"""A plan made ready to run: levels, who feeds whom, and every aggregate's state columns. Spark-free.

Compiled once per process and plan, from the plan's pickled bytes; tasks find it by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import polars as pl
from pyspark import cloudpickle

from meander.aggregates import Agg, Part
from meander.coordinate.watermarks import Rule
from meander.engine.windows import PANE, Windowing, hash_panes
from meander.errors import FlowError
from meander.plan.eventtime import Late, Watermark, WindowAggregate, time_of
from meander.plan.graph import Node, Plan
from meander.plan.operators import Aggregate, MapBatches, SinkOp, SourceOp
from meander.plan.stages import levels
from meander.state.hashing import Hashes, hash_keys
from meander.state.values import ValueTable


@dataclass(frozen=True)
class Keyed:
    """A stateful operator, ready: its keys, its state columns, and how its output is made of them."""

    name: str
    number: int
    level: int
    source: str
    keys: tuple[str, ...]
    parts: Mapping[str, Part]
    """What partial states consist of."""
    stored: Mapping[str, Part]
    """What a key's row consists of: the same, but for values that have a table of their own and are only counted here."""
    values: tuple[ValueTable, ...]
    aggs: tuple[Agg, ...]
    windowing: Windowing | None = None

    @property
    def output(self) -> tuple[pl.Expr, ...]:
        return (*(pl.col(key) for key in self.keys), *(agg.finish() for agg in self.aggs))

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that tell the rows of its table apart."""
        return self.keys if self.windowing is None else (*self.keys, PANE)

    def hash(self, frame: pl.DataFrame) -> Hashes:
        return hash_keys(frame.select(self.keys)) if self.windowing is None else hash_panes(frame, self.keys, self.windowing.window)

    def tables(self) -> dict[str, tuple[str, ...]]:
        """All its tables, and the columns that tell their rows apart. A table that is cut into buckets of time is named for all of them."""
        return {self.name: self.identity, **{table.name: table.identity for table in self.values}}


@dataclass(frozen=True)
class Level:
    """What one stage's task does, in order."""

    number: int
    sources: tuple[str, ...]
    keyed: tuple[str, ...]
    stateless: tuple[Node, ...]
    sinks: tuple[Node, ...]
    feeds: tuple[tuple[str, str], ...]
    """(operator of this level, stateful operator of a later one)."""
    carries: tuple[tuple[str, int], ...]
    """(operator of this level, later level whose stateless operators need its rows)."""


@dataclass(frozen=True)
class Compiled:
    """A plan with everything a driver or a task asks of it."""

    plan: Plan
    digest: str
    keyed: Mapping[str, Keyed]
    levels: tuple[Level, ...]
    sources: Mapping[str, SourceOp] = field(default_factory=dict)
    sinks: Mapping[str, SinkOp] = field(default_factory=dict)

    @cached_property
    def rules(self) -> dict[str, Rule]:
        """The watermarks there are."""
        return {n.name: Rule(n.op.grace, n.op.idle) for n in self.plan.nodes if isinstance(n.op, Watermark)}

    @cached_property
    def windowed(self) -> dict[str, Windowing]:
        return {name: keyed.windowing for name, keyed in self.keyed.items() if keyed.windowing is not None}

    @cached_property
    def repeatable_first_stage(self) -> bool:
        """Whether several slots may each compute the first stage and get the same rows."""
        first = {node.name for node in self.levels[0].stateless}
        return all(n.op.deterministic for n in self.plan.nodes if n.name in first and isinstance(n.op, MapBatches))


def compile_plan(plan: Plan) -> Compiled:
    """Derive what tasks need from a validated plan."""
    level_of = levels(plan)
    keyed: dict[str, Keyed] = {}
    for number, node in enumerate(plan.nodes):
        if isinstance(node.op, Aggregate):
            schema = plan.schema(node.inputs[0])
            parts = {f"{agg.name}.{part}": spec for agg in node.op.aggs for part, spec in agg.parts(schema).items()}
            values = tuple(ValueTable.of(node.name, node.op.keys, agg) for agg in node.op.aggs if agg.keeps)
            counted = {table.values: (table.count, table.count_part()) for table in values}
            stored = dict(counted.get(name, (name, part)) for name, part in parts.items())
            level, (source,) = level_of[node.name], node.inputs
            keyed[node.name] = Keyed(node.name, number, level, source, node.op.keys, parts, stored, values, node.op.aggs)
        elif isinstance(node.op, WindowAggregate):
            keyed[node.name] = _compile_windows(plan, node, node.op, number, level_of[node.name])
    depth = max(level_of.values()) + 1
    return Compiled(
        plan,
        plan.digest(),
        keyed,
        tuple(_compile_level(plan, level_of, number) for number in range(depth)),
        {n.name: n.op for n in plan.nodes if isinstance(n.op, SourceOp)},
        {n.name: n.op for n in plan.nodes if isinstance(n.op, SinkOp)},
    )


def _compile_windows(plan: Plan, node: Node, op: WindowAggregate, number: int, level: int) -> Keyed:
    (source,) = node.inputs
    schema = plan.schema(source)
    time = time_of(plan.nodes, plan.schemas, source)
    dtype = schema[op.time]
    assert time is not None
    assert isinstance(dtype, pl.Datetime)
    kept = any(isinstance(n.op, Late) and n.op.operator == node.name for n in plan.nodes)
    windowing = Windowing(op.window, op.time, op.shift, dtype, op.emit, op.lateness, time.marks, time.delay, kept)
    # A window's content is bounded: what aggregates keep of it stays in its row.
    parts = {f"{agg.name}.{part}": spec for agg in op.aggs for part, spec in agg.parts(schema).items()}
    return Keyed(node.name, number, level, source, op.keys, parts, parts, (), op.aggs, windowing)


def _compile_level(plan: Plan, level_of: dict[str, int], number: int) -> Level:
    here = [node for node in plan.nodes if level_of[node.name] == number]
    feeds: list[tuple[str, str]] = []
    carries: list[tuple[str, int]] = []
    for node in here:
        later: set[int] = set()
        for name in plan.consumers(node.name):
            consumer = plan.node(name)
            if consumer.op.stateful:
                feeds.append((node.name, consumer.name))
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


def pack_plan(plan: Plan) -> bytes:
    """The plan's bytes, with the code of functions that executors cannot import."""
    try:
        return _pickle(plan)
    except Exception as error:
        for node in plan.nodes:
            try:
                _pickle(node.op)
            except Exception as cause:
                raise FlowError(
                    f"{node.op.kind} {node.name!r}: it cannot be sent to executors ({type(cause).__name__}: {cause}); a lock, a connection "
                    "or an open file that a function refers to stays where it is: make it inside the function, on first use"
                ) from cause
        raise FlowError(f"flow {plan.flow!r}: it cannot be sent to executors ({type(error).__name__}: {error})") from error


def _pickle(thing: object) -> bytes:
    packed: bytes = cloudpickle.dumps(thing)  # type: ignore[no-untyped-call]
    return packed


_compiled: dict[bytes, Compiled] = {}


def unpack_plan(packed: bytes) -> Compiled:
    """The compiled plan of these bytes: unpickled once per process. Not by digest, in which folders and limits do not count."""
    if packed not in _compiled:
        _compiled.clear()  # one plan at a time: a modified flow must not pile its past up in every worker
        _compiled[packed] = compile_plan(cloudpickle.loads(packed))
    return _compiled[packed]

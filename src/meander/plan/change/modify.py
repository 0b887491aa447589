"""Changing a plan: from changes as data to the next version of the plan and its effects, or a
FlowError with the reason. Pure.

Changes name operators. Several changes make one modification: they are applied in order, and the
result is checked as a whole: names, graph, the columns of all operators downstream, and whether
stateful operators can continue their state (see ``layout``). Operators that stay keep their order,
since the order of rows depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from meander.connect.sink import Sink
from meander.connect.source import Source
from meander.errors import FlowError
from meander.plan.change.become import Become, become, check_ends
from meander.plan.change.chains import check_chains
from meander.plan.change.effects import Effects, Fate, tell_effects
from meander.plan.change.layout import UNTOLD, Comparison, Layout, compare, layout_of
from meander.plan.change.sources import Sources
from meander.plan.change_joins import ChangeJoin
from meander.plan.eventtime import GoesByTime, HasLate, Late, Time, Watermark, no_time, time_of
from meander.plan.graph import Node, Plan, check_name, sort_nodes
from meander.plan.joins import Join, JoinLatest
from meander.plan.operators import Operator, SinkOp, SourceOp, Union
from meander.plan.processing import Side, columns_of
from meander.plan.schemas import did_you_mean, show_schema
from meander.plan.unplaced import Unplaced

Given = Operator | Unplaced | Source | Sink
StateFunction = Callable[[pl.DataFrame], pl.DataFrame]


@dataclass(frozen=True, eq=False)
class Replace:
    """Another operator, source or sink under the same name: ``md.Replace("positive", md.filter("amount > 10"))``."""

    name: str
    op: Given
    resume: bool | None = None
    """For a source: whether it continues at the position of the old one (the same input, with other
    limits) or begins at its beginning.

    By default a source continues if only its columns differ."""

    def words(self) -> str:
        return f"replace '{self.name}' by {_kind(self.op)}"


@dataclass(frozen=True, eq=False)
class Insert:
    """A new operator behind ``after``: in front of all that read it, or only of ``before``. A sink takes a copy of the rows there.

    Example: ``md.Insert("large", md.filter("amount > 100"), after="orders")``.
    """

    name: str
    op: Given
    after: str
    before: str | Sequence[str] | None = None

    def words(self) -> str:
        return f"insert {_kind(self.op)} '{self.name}' after '{self.after}'" + (f" before {self.before!r}" if self.before else "")


@dataclass(frozen=True, eq=False)
class Remove:
    """The operator is taken out: operators that read it read its input instead.

    Example: ``md.Remove("large")``.
    """

    name: str

    def words(self) -> str:
        return f"remove '{self.name}'"


Change = Replace | Insert | Remove | Become


@dataclass(frozen=True)
class StateRules:
    """Instructions for state that cannot simply be continued."""

    drop: Collection[str] | bool = ()
    """Operators whose state is dropped, or the name of one; True for all that cannot continue their
    state."""
    upgrade: Mapping[str, StateFunction] = field(default_factory=dict)
    """Per operator, a function from its state rows to those of the new one: key columns and state columns."""
    backfill: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Per operator and new aggregate, the state of keys from before: a value, or one per part of the state."""

    def __post_init__(self) -> None:
        drop, upgrade, backfill = (_anything(given) for given in (self.drop, self.upgrade, self.backfill))
        names = [] if isinstance(drop, bool | str) else drop
        if not isinstance(names, Collection) or not all(isinstance(name, str) for name in names):
            raise FlowError(f"drop_state={drop!r}: it is the names of operators, or True")
        if not isinstance(upgrade, Mapping) or not all(map(callable, upgrade.values())):
            raise FlowError(f"upgrade={upgrade!r}: it has a function for an operator, as in {{'totals': fn}}")
        if not isinstance(backfill, Mapping) or not all(isinstance(values, Mapping) for values in backfill.values()):
            raise FlowError(f"backfill={backfill!r}: it has the values of new aggregates for an operator, as in {{'totals': {{'n': 0}}}}")

    @property
    def dropped(self) -> frozenset[str]:
        """The operators that are named."""
        return frozenset() if isinstance(self.drop, bool) else frozenset([self.drop] if isinstance(self.drop, str) else self.drop)


def _anything(given: Any) -> Any:
    """The same value without its type: callers may have passed anything."""
    return given


def modify(plan: Plan, changes: Iterable[Change], rules: StateRules | None = None) -> tuple[Plan, Effects]:
    """The next version of a plan, and the effects of the change."""
    changes, rules = tuple(changes), rules or StateRules()
    if not changes:
        raise FlowError("a modification without changes: give at least one Replace, Insert or Remove")
    nodes = {node.name: node for node in plan.nodes}
    sources = Sources()
    for change in changes:
        if isinstance(change, Become):
            if len(changes) > 1:
                raise FlowError("become another flow: that is all there is to do; leave the other changes out")
            nodes, sources = become(plan, change)
        elif isinstance(change, Replace | Insert | Remove):
            nodes = _apply(plan.flow, nodes, change, sources)
        else:
            raise FlowError(f"{change!r} is no change; there are md.Replace, md.Insert, md.Remove and md.Become")
    after = Plan(plan.version + 1, plan.flow, _place(plan, nodes))
    _check_late(after)
    _check_time(plan, after)
    there = {node.name for node in after.nodes}
    named = there if isinstance(changes[0], Become) else there & {change.name for change in changes if not isinstance(change, Become)}
    touched = frozenset(name for name in named if _differs(plan, after, name))
    fates, upgrades, retired = _states(plan, after, rules)
    check_chains(plan, after, fates)
    after = replace(after, retired=retired)
    effects = tell_effects(plan, after, tuple(change.words() for change in changes), fates, touched, frozenset(sources.restarts), upgrades)
    return after, replace(effects, go_on=frozenset(sources.go_on), reached=_reached(plan, after, sources.go_on))


# -- the graph ------------------------------------------------------------------------------------------------------


def _apply(flow: str, nodes: dict[str, Node], change: Replace | Insert | Remove, sources: Sources) -> dict[str, Node]:
    if isinstance(change, Insert):
        return _insert(flow, nodes, change)
    node = _known(flow, nodes, change.name)
    if isinstance(change, Remove):
        return _remove(nodes, node)
    op = _operator(change.op, change.name)
    check_ends(change.name, node.op, op)
    if isinstance(node.op, SourceOp) and isinstance(op, SourceOp):
        op = sources.change(change.name, node.op, op, change.resume)
    elif change.resume is not None:
        raise FlowError(f"replace {change.name!r}: resume= is for sources, and it is {_a(node.op.kind)}")
    return {**nodes, change.name: Node(change.name, op, node.inputs)}  # type: ignore[arg-type]


def _insert(flow: str, nodes: dict[str, Node], change: Insert) -> dict[str, Node]:
    check_name(_kind(change.op), change.name)
    if change.name in nodes:
        raise FlowError(
            f"insert {change.name!r}: there is already a {nodes[change.name].op.kind} of that name; replace it, or choose another name"
        )
    op = _operator(change.op, change.name)
    behind = _known(flow, nodes, change.after)
    if isinstance(op, SourceOp):
        raise FlowError(f"insert {change.name!r}: a source has no input to stand behind; a new source needs a new flow")
    if isinstance(op, Union | Join | ChangeJoin | JoinLatest):
        raise FlowError(f"insert {change.name!r}: {_a(op.kind)} has several inputs, and an insertion one; 'meander apply' can add one")
    if isinstance(behind.op, SinkOp):
        raise FlowError(f"insert {change.name!r}: {change.after!r} is a sink; nothing comes after it: give the operator before it")
    readers = [node.name for node in nodes.values() if change.after in node.inputs and not isinstance(node.op, Side)]
    wanted = readers
    if change.before is not None:
        wanted = [change.before] if isinstance(change.before, str) else list(change.before)
        for name in wanted:
            if name not in readers:
                _known(flow, nodes, name)
                raise FlowError(f"insert {change.name!r}: {name!r} does not read {change.after!r}; its readers are {', '.join(readers)}")
    found: dict[str, Node] = {}
    for name, node in nodes.items():
        if name in wanted and not isinstance(op, SinkOp | Side):
            node = replace(node, inputs=tuple(change.name if one == change.after else one for one in node.inputs))
        found[name] = node
        if name == change.after:
            found[change.name] = Node(change.name, op, (change.after,))  # type: ignore[arg-type]
    if isinstance(op, SinkOp) and change.before is not None:
        raise FlowError(
            f"insert sink {change.name!r}: it takes a copy of the rows behind {change.after!r}, and has no reader: leave out before="
        )
    if isinstance(op, Side) and change.before is not None:
        raise FlowError(f"insert side {change.name!r}: it reads rows of {change.after!r} that no operator reads yet: leave out before=")
    return found


def _remove(nodes: dict[str, Node], node: Node) -> dict[str, Node]:
    if isinstance(node.op, SourceOp):
        raise FlowError(f"remove {node.name!r}: it is a source, and its readers would have no input; replace it")
    readers = [other.name for other in nodes.values() if node.name in other.inputs]
    if len(node.inputs) != 1 and readers:
        raise FlowError(f"remove {node.name!r}: it has {len(node.inputs)} inputs, so that {readers[0]!r} would not know which to read")
    side = next((n.name for n in nodes.values() if isinstance(n.op, Side) and node.name in n.inputs), None)
    if side is not None:
        raise FlowError(f"remove {node.name!r}: {side!r} is a side output of it; remove that first")
    if isinstance(node.op, Side) and readers:
        raise FlowError(f"remove {node.name!r}: {readers[0]!r} reads this side output, and would have no input; remove that first")
    late = next((n.name for n in nodes.values() if isinstance(n.op, Late) and n.op.operator == node.name), None)
    if late is not None:
        raise FlowError(f"remove {node.name!r}: {late!r} is the stream of its late rows; remove that first")
    rest = {name: other for name, other in nodes.items() if name != node.name}
    for name in readers:
        rest[name] = replace(nodes[name], inputs=tuple(node.inputs[0] if one == node.name else one for one in nodes[name].inputs))
    return rest


def _known(flow: str, nodes: Mapping[str, Node], name: str) -> Node:
    if name not in nodes:
        raise FlowError(f"flow {flow!r}: there is no operator {name!r}; operators are {', '.join(nodes)}{did_you_mean(name, nodes)}")
    return nodes[name]


def _operator(given: Any, name: str) -> Operator | Unplaced:
    if isinstance(given, Unplaced) or (hasattr(given, "output_schema") and hasattr(given, "stateful")):
        placed: Operator | Unplaced = given
        return placed
    if hasattr(given, "cursor") and hasattr(given, "read"):
        return SourceOp(given)
    if hasattr(given, "publish") and hasattr(given, "encode"):
        return SinkOp(given)
    raise FlowError(f"{name!r}: {given!r} is no operator; use md.filter(...), md.map_batches(...), md.aggregate(...), a source or a sink")


def _place(plan: Plan, nodes: Mapping[str, Node]) -> tuple[Node, ...]:
    """Every operator in its place: those that are only described learn what is around them, and those that go by time which it is now."""
    for node in nodes.values():
        for name in node.inputs:
            _known(plan.flow, nodes, name)
    former = {node.name: node.op for node in plan.nodes}
    schemas: dict[str, pl.Schema] = {}
    placed: list[Node] = []
    for node in sort_nodes(tuple(nodes.values())):
        if isinstance(node.op, Unplaced):
            time = time_of(placed, schemas, node.inputs[0])
            node = Node(
                node.name, node.op.placed(node.name, node.inputs, former.get(node.name), schemas[node.inputs[0]], time), node.inputs
            )
        elif isinstance(node.op, GoesByTime) and node.op.by_event_time:
            node = _retimed(node, placed, schemas)
        schemas[node.name] = columns_of(node, {one.name: one for one in placed}, schemas)
        placed.append(node)
    return _late_follow({node.name: node for node in placed})


def _retimed(node: Node, before: Sequence[Node], schemas: Mapping[str, pl.Schema]) -> Node:
    """The operator with the time of its present input, which may differ from the time it was made
    with."""
    assert isinstance(node.op, GoesByTime)
    times: list[Time] = []
    for name in node.inputs:
        time = time_of(before, schemas, name)
        if time is None:
            raise no_time(f"{node.op.kind} {node.name!r}", name, schemas[name])
        times.append(time)
    op: Any = node.op.retimed(times, [schemas[name] for name in node.inputs])
    return node if vars(op) == vars(node.op) else replace(node, op=op)


def _late_follow(nodes: Mapping[str, Node]) -> tuple[Node, ...]:
    """A stream of late rows reads what its operator reads, also where something was put in front of that."""
    found = []
    for node in nodes.values():
        if isinstance(node.op, Late) and node.op.operator in nodes:
            inputs = nodes[node.op.operator].inputs
            node = replace(node, inputs=(inputs[node.op.side],)) if node.op.side < len(inputs) else node
        found.append(node)
    return tuple(found)


def _check_late(plan: Plan) -> None:
    for node in plan.nodes:
        if isinstance(node.op, Late):
            of = plan.node(node.op.operator)
            if not isinstance(of.op, HasLate) or not of.op.has_late:
                raise FlowError(f"replace {of.name!r}: {node.name!r} takes its late rows, and {_a(of.op.kind)} has none; remove that first")


def _check_time(before: Plan, after: Plan) -> None:
    for node in after.nodes:
        was = next((old.op for old in before.nodes if old.name == node.name), None)
        if isinstance(was, Watermark) and isinstance(node.op, Watermark) and was.column != node.op.column:
            raise FlowError(
                f"replace watermark {node.name!r}: it follows {was.column!r} and would follow {node.op.column!r}: the times of one column "
                "say nothing about the other; remove it and insert one of another name"
            )


def _differs(before: Plan, after: Plan, name: str) -> bool:
    old = next((node for node in before.nodes if node.name == name), None)
    return old is None or old.op is not after.node(name).op


def _reached(before: Plan, after: Plan, sources: Collection[str]) -> frozenset[str]:
    """The operators to which other columns come, because these sources have others: their code is as it was, and may not do with them."""
    behind, found = set(sources), set()
    for node in after.nodes:
        if not behind.isdisjoint(node.inputs):
            behind.add(node.name)
            if any(name not in before.schemas or before.schema(name) != after.schema(name) for name in node.inputs):
                found.add(node.name)
    return frozenset(found)


# -- state ----------------------------------------------------------------------------------------------------------


def _states(before: Plan, after: Plan, rules: StateRules) -> tuple[dict[str, Fate], dict[str, StateFunction], dict[str, tuple[str, ...]]]:
    old = {node.name: layout_of(before, node.name) for node in before.nodes if node.op.stateful}
    new = {node.name: layout_of(after, node.name) for node in after.nodes if node.op.stateful}
    _check_rules(rules, old, new)
    drop = set(old) if rules.drop is True else rules.dropped
    refusals: dict[str, str] = {}
    fates: dict[str, Fate] = {}
    upgrades: dict[str, StateFunction] = {}
    retired = {name: columns for name, columns in before.retired.items() if name in new}
    for name, layout in new.items():
        if name not in old:
            fates[name] = Fate("created")
            continue
        found = compare(old[name], layout, before.retired.get(name, ()))
        function = _upgrade(name, rules, old[name], layout, found)
        if name in drop and (rules.drop is not True or ((found.problems or found.wants) and function is None)):
            fates[name] = Fate("dropped and begun anew")
            retired.pop(name, None)
        elif function is not None:
            upgrades[name], fates[name] = function, Fate("upgraded", found.added, found.removed, found.widened)
            retired[name] = (UNTOLD,) if found.untold or UNTOLD in retired.get(name, ()) else ()
        elif found.problems or found.wants:
            refusals[name] = _refusal(name, layout, found)
        else:
            fates[name] = Fate("kept", found.added, found.removed, found.widened)
            retired[name] = tuple(sorted({*retired.get(name, ()), *found.removed, *([UNTOLD] if found.untold else [])}))
    for name in old:
        if name not in new:
            if name not in drop:
                refusals[name] = f"{name!r} keeps state, which goes with it; give drop_state=[{name!r}] if it may"
            fates[name] = Fate("dropped")
    if refusals:
        together = f". All of them together: drop_state={sorted(refusals)}" if len(refusals) > 1 else ""
        raise FlowError(f"{'. '.join(refusals.values())}{together}")
    return fates, upgrades, {name: columns for name, columns in retired.items() if columns}


def _check_rules(rules: StateRules, old: Mapping[str, Layout], new: Mapping[str, Layout]) -> None:
    given = [("drop_state", name) for name in sorted(rules.dropped)]
    given += [(what, name) for what, named in (("upgrade", rules.upgrade), ("backfill", rules.backfill)) for name in named]
    for what, name in given:
        if name not in old or (what != "drop_state" and name not in new):
            raise FlowError(f"{what}: {name!r} has no state; operators with state are {', '.join(old) or 'none'}{did_you_mean(name, old)}")
    both = sorted(set(rules.upgrade) & {*rules.dropped, *rules.backfill})
    if both:
        raise FlowError(f"upgrade: {both[0]!r} has drop_state or backfill, too; its state is upgraded, or dropped, or filled")


def _upgrade(name: str, rules: StateRules, old: Layout, new: Layout, found: Comparison) -> StateFunction | None:
    function = rules.upgrade.get(name)
    if name in rules.backfill:
        function = _filling(name, rules.backfill[name], new, found)
    if function is None:
        return None
    if not new.columns:
        raise FlowError(
            f"upgrade of {name!r}: {_a(new.kind)} keeps rows of its input, and these are not rewritten; give drop_state=[{name!r}]"
        )
    if not found.only_columns:
        raise FlowError(f"upgrade of {name!r}: rows can be rewritten, but {'; '.join(found.problems)}")
    result: Any
    try:
        result = function(old.schema().to_frame())
    except Exception as error:
        raise FlowError(f"upgrade of {name!r}: on a frame without rows it failed with {type(error).__name__}: {error}") from error
    wanted, got = dict(new.schema()), dict(result.schema) if isinstance(result, pl.DataFrame) else None
    if got is None or any(column not in got or got[column] != dtype for column, dtype in wanted.items()):
        there = show_schema(result.schema) if isinstance(result, pl.DataFrame) else repr(result)
        raise FlowError(f"upgrade of {name!r}: it must return {show_schema(new.schema())}; it returned {there}")
    return function


def _filling(name: str, values: Mapping[str, Any], new: Layout, found: Comparison) -> StateFunction:
    if found.problems:
        raise FlowError(_refusal(name, new, found))
    fills: dict[str, Any] = {}
    for alias, value in values.items():
        if alias in found.added:  # a processor's variable
            fills[alias] = value
            continue
        columns = [column for column in found.added if column.rpartition(".")[0] == alias]
        if not columns:
            raise FlowError(f"backfill of {name!r}: {alias!r} is not new; new are {', '.join(found.added) or 'none'}")
        parts = value if isinstance(value, Mapping) else {columns[0].rpartition(".")[2]: value}
        if {f"{alias}.{part}" for part in parts} != set(columns):
            wanted = ", ".join(column.rpartition(".")[2] for column in columns)
            raise FlowError(f"backfill of {name!r}: the state of {alias!r} has the parts {wanted}; give each a value, as {{part: value}}")
        fills.update((f"{alias}.{part}", one) for part, one in parts.items())
    if without := [column for column in found.wants if column not in fills]:
        raise FlowError(_refusal(name, new, replace(found, wants=tuple(without))))
    schema = new.schema()

    def fill(rows: pl.DataFrame) -> pl.DataFrame:
        """The state of every key from before, with these values."""
        there = [pl.col(column).cast(dtype) if column in rows.columns else pl.lit(fills.get(column), dtype).alias(column)
                 for column, dtype in schema.items()]  # fmt: skip
        return rows.select(there) if rows.height else schema.to_frame()

    return fill


def _refusal(name: str, layout: Layout, found: Comparison) -> str:
    problems = [*found.problems, *(f"keys from before have no {n!r}, which is {layout.columns[n][1]}" for n in found.wants)]
    ways = f"give drop_state=[{name!r}]"
    if found.only_columns and layout.columns:
        ways = f"give an upgrade=function from state rows to state rows, or drop_state=[{name!r}]{_backfill(found)}"
    return f"{layout.kind} {name!r} cannot go on with its state: {'; '.join(problems)}. To begin anew, {ways}, or use another name"


def _backfill(found: Comparison) -> str:
    filled = ", ".join(f"{name!r}: ..." for name in found.wants)
    return f", or what they get as backfill={{{filled}}}" if found.wants and not found.problems else ""


def _kind(given: Any) -> str:
    kind = getattr(given, "kind", None)
    return str(kind) if kind else "source" if hasattr(given, "cursor") else "sink" if hasattr(given, "publish") else type(given).__name__


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"

"""A plan that becomes another flow's: the difference of two flow files as one change. Pure.

Operators that are the same in both stay the objects that run; others are those of the new flow. Sources and sinks are the same where they
also read and write the same place, which a plan's digest leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

from meander.errors import FlowError
from meander.plan.change.sources import Sources, is_same
from meander.plan.graph import Node, Plan
from meander.plan.operators import Operator, SinkOp, SourceOp
from meander.plan.tables import JoinStatic


class HasPlan(Protocol):
    """A flow, as it is written now."""

    def plan(self) -> Plan: ...


@dataclass(frozen=True, eq=False, init=False)
class Become:
    """Make the plan equal to that of another flow: ``md.Become(flow)``. ``meander apply`` sends
    this change."""

    plan: Plan
    resume: bool | None = None
    """For sources that differ: whether they go on where the ones before are, or begin at their beginning.

    Those that differ in their columns alone go on, if nothing is said."""

    def __init__(self, plan: HasPlan | Plan, resume: bool | None = None) -> None:
        if not isinstance(plan, Plan) and not callable(getattr(plan, "plan", None)):
            raise FlowError(f"md.Become({plan!r}): give the flow as it is to be, as in md.Become(flow)")
        object.__setattr__(self, "plan", plan if isinstance(plan, Plan) else plan.plan())
        object.__setattr__(self, "resume", resume)

    def words(self) -> str:
        return "become the flow as it is written now"


def become(before: Plan, change: Become) -> tuple[dict[str, Node], Sources]:
    """The operators of the next version, and for each source whether it is continued."""
    after = change.plan
    if after.flow != before.flow:
        raise FlowError(
            f"apply: the flow that runs is {before.flow!r}, and this one is {after.flow!r}; a flow becomes another version of itself"
        )
    old, new = before.record()["operators"], after.record()["operators"]
    nodes: dict[str, Node] = {}
    sources = Sources({node.name for node in before.nodes if isinstance(node.op, SourceOp) and node.name not in new})
    for node in after.nodes:
        name = node.name
        if name in old:
            was = before.node(name).op
            check_ends(name, was, node.op)
            if _is_same(old[name], new[name], was, node.op):
                node = replace(before.node(name), inputs=node.inputs)
            elif isinstance(was, SourceOp) and isinstance(node.op, SourceOp):
                node = Node(name, sources.change(name, was, node.op, change.resume), node.inputs)
        nodes[name] = node
    if list(nodes) == list(old) and all(node.op is before.node(n).op and node.inputs == before.node(n).inputs for n, node in nodes.items()):
        raise FlowError(f"apply: flow {before.flow!r} runs as it is written already; there is nothing to apply")
    return nodes, sources


def _is_same(was: dict[str, Any], now: dict[str, Any], old: Operator, new: Operator) -> bool:
    parts = ("kind", "does", "code", "text") if isinstance(new, SourceOp | SinkOp) else ("kind", "does", "code")
    if any(was[part] != now[part] for part in parts):
        return False
    if isinstance(old, SourceOp) and isinstance(new, SourceOp):
        return is_same(old.source, new.source)
    return not (isinstance(old, JoinStatic) and isinstance(new, JoinStatic)) or old.lookup.digest == new.lookup.digest


def check_ends(name: str, old: object, new: object) -> None:
    """Sources stay sources, and sinks sinks."""
    for ends, what in ((SourceOp, "source"), (SinkOp, "sink")):
        if isinstance(old, ends) != isinstance(new, ends):
            kinds = [getattr(op, "kind", type(op).__name__) for op in (old, new)]
            raise FlowError(f"replace {name!r}: it is {_a(kinds[0])}, and {kinds[1]} cannot take its place; {what}s stay {what}s")


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"

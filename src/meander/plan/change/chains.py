"""Chains of changes under a modification: an operator may only be told to remove rows that it has
been given. Pure.

A reader of changes (an aggregate, a log) gets rows, and later gets their removals. If the reader
alone began anew, or if the operator in front of it began to make other rows, it would get removals
of rows that it never had. In these cases both begin anew together.
"""

from __future__ import annotations

from collections.abc import Mapping

from meander.errors import FlowError
from meander.plan.change.effects import Fate
from meander.plan.changes import needs_signs
from meander.plan.graph import Node, Plan
from meander.plan.operators import MapBatches, Operator, SinkOp


def check_chains(before: Plan, after: Plan, fates: Mapping[str, Fate]) -> None:
    """FlowError where a modification keeps the state of a part of a chain, and not that of all of it."""
    for reader in after.nodes:
        former = next((n for n in before.nodes if n.name == reader.name), None)
        if not (_gets_removals(after, reader) or (needs_signs(reader.op) and former is not None and _gets_removals(before, former))):
            continue
        chain, was = _chain(after, reader), _chain(before, former)
        same = chain.keys() == was.keys() and all(
            _is_same(node.op, was[name].op) and (node.inputs == was[name].inputs or (node.op.stateful and node is not reader))
            for name, node in chain.items()
        )
        known = [name for name, node in chain.items() if node.op.stateful]
        anew = [name for name in known if fates[name].kind in ("created", "dropped and begun anew")]
        if same and all(fates[name].kind == "kept" for name in known):
            continue
        stays = bool(was) and not reader.op.stateful
        if len(anew) == len(known) and not stays:
            continue
        opening = f"{reader.op.kind} {reader.name!r} gets removals from a stream of changes: it must have been given all removed rows, as "
        if len(anew) == len(known):
            kind = "table" if isinstance(reader.op, SinkOp) else "log"
            raise FlowError(
                f"{opening}they are now. It is a {kind}, and has earlier rows that would never be removed; "
                f"give it another name, so that it is another {kind}"
            )
        stored = sorted(name for name in known if fates[name].kind != "created")
        kept = ", ".join(repr(name) for name in known if name not in anew)
        raise FlowError(
            f"{opening}they are now. With this change {kept} would continue stored state, and send removals of other rows; "
            f"give drop_state={stored!r}, so that they begin anew together"
        )


def _gets_removals(plan: Plan, node: Node) -> bool:
    """Whether an operator gets removals from its input."""
    return needs_signs(node.op) and any(name in plan.changes for name in node.inputs)


def _chain(plan: Plan, reader: Node | None) -> dict[str, Node]:
    """A reader of changes and all before it, up to the operators that make the changes."""
    found: dict[str, Node] = {}
    pending = [] if reader is None else [reader]
    while pending:
        node = pending.pop()
        found[node.name] = node
        if node is reader or not node.op.stateful:
            pending += [plan.node(name) for name in node.inputs if name in plan.changes and name not in found]
    return found


def _is_same(op: Operator, old: Operator) -> bool:
    if isinstance(op, MapBatches) and isinstance(old, MapBatches):  # a plan makes its own of them, with the columns that it has learned
        return op.fn is old.fn and (op.row_local, op.deterministic) == (old.row_local, old.deterministic)
    return op is old

"""Which streams only grow, and which are streams of changes: rows of them replace rows that came before. Pure.

A stream is *append-only* or a *stream of changes*. That follows from the nodes of a plan alone: an operator that gives out a key's new
values whenever they have changed makes a stream of changes, operators without state pass it on, and what comes once and for good is
append-only. How often a row is replaced depends on how input is cut into epochs; an operator that took changes for rows of their own would
make a result of that. So an operator that cannot take changes refuses them, when the flow is written and when it is modified.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from meander.errors import FlowError
from meander.plan.eventtime import END, START, SessionAggregate, WindowAggregate
from meander.plan.joins import JoinLatest
from meander.plan.operators import Aggregate, Filter, MapBatches, Operator, Select, Union, WithColumns
from meander.plan.rowwise import RANK, Latest, Top

if TYPE_CHECKING:
    from meander.plan.graph import Node


@dataclass(frozen=True)
class Changes:
    """What is known of a stream of changes."""

    origin: str
    """The operator that makes it one."""
    why: str
    """What that operator does, in words."""
    key: tuple[str, ...] | None
    """The columns by which a new row replaces an old one; None where they are not in the stream any more."""
    instead: str
    """What makes an append-only stream of it, in words."""
    vanishes: bool = False
    """Whether a row can go without another in its place."""

    def describe(self) -> str:
        return "changes" if self.key is None else f"changes by {', '.join(self.key)}"


def find_changes(nodes: Iterable[Node], schemas: Mapping[str, pl.Schema]) -> dict[str, Changes]:
    """The streams of changes among the outputs of nodes (in topological order). All others are append-only."""
    found: dict[str, Changes] = {}
    for node in nodes:
        if node.op.stateful:
            changes = _made(node)
        else:
            changes = _passed_on(node.op, [found.get(name) for name in node.inputs], [schemas[name] for name in node.inputs])
        if changes is not None:
            found[node.name] = changes
    return found


def check_changes(node: Node, found: Mapping[str, Changes]) -> None:
    """FlowError where an operator is given changes that it cannot take."""
    for side, name in enumerate(node.inputs):
        changes = found.get(name)
        if changes is not None and node.op.stateful and not _takes(node.op, side, changes):
            raise FlowError(
                f"{node.op.kind} {node.name!r}: its input {name!r} is a stream of changes: {changes.origin!r} {changes.why}, and a new row "
                f"replaces the old one{_by(changes)}. {node.op.kind} would take them all for rows of their own, and its result would "
                f"depend on how the input is cut into epochs; {changes.instead}, or end the stream in a sink, which gets the log of changes"
            )


def _by(changes: Changes) -> str:
    return "" if changes.key is None else f" of its {', '.join(changes.key)}"


def _takes(op: Operator, side: int, changes: Changes) -> bool:
    """Whether an operator with state can take these changes as one of its inputs."""
    # The right side of a join by arrival is looked up by its key, where a new row takes the place of the old: that is what a change says.
    if isinstance(op, JoinLatest) and op.times is None and side == 1:
        return not changes.vanishes and changes.key is not None and set(changes.key) == set(op.matching.right_on)
    return False


def _made(node: Node) -> Changes | None:
    """The changes that an operator with state gives out; None where its rows are final."""
    op, name = node.op, node.name
    final = "aggregate windows, whose rows are final: key_by(...).window(...).aggregate(...)"
    if isinstance(op, Aggregate):
        return Changes(name, "gives out the new values of every key that rows came for", op.keys, final)
    if isinstance(op, WindowAggregate) and (op.emit == "update" or op.lateness):
        session = isinstance(op, SessionAggregate)
        why = "gives out a window whenever it has changed" if op.emit == "update" else "gives out a window again for rows that come late"
        instead = "give it emit='closed' and no lateness: then every window comes once"
        # A session can begin earlier than it did, and two can become one.
        return Changes(name, why, op.keys if session else (*op.keys, START, END), instead, vanishes=session)
    if isinstance(op, Latest):
        return Changes(name, "gives out a key's row when another has taken its place", op.keys, "leave it out, or take deduplicate")
    if isinstance(op, Top):
        return Changes(name, "gives out a key's whole list when it has changed", (*op.keys, RANK), "take the best rows of windows")
    return None


def _passed_on(op: Operator, inputs: Sequence[Changes | None], schemas: Sequence[pl.Schema]) -> Changes | None:
    """What an operator without state makes of its inputs."""
    found = [changes for changes in inputs if changes is not None]
    if not found:
        return None
    changes = found[0]
    if isinstance(op, Union):  # the keys of one input can meet those of another
        return replace(changes, key=None)
    if isinstance(op, MapBatches):
        return replace(changes, key=None, vanishes=True)
    if isinstance(op, Filter):
        return replace(changes, vanishes=True)
    if isinstance(op, Select | WithColumns) and changes.key is not None and not _keeps(op, changes.key, schemas[0]):
        return replace(changes, key=None)
    return changes


def _keeps(op: Select | WithColumns, key: Collection[str], before: pl.Schema) -> bool:
    """Whether these columns leave it as they came."""
    frame = before.to_frame()
    same = {name for expr in op.exprs if expr.meta.is_column_selection() for name in frame.select(expr).columns}
    made = {name for expr in op.exprs if not expr.meta.is_column_selection() for name in frame.select(expr).columns}
    return made.isdisjoint(key) and (isinstance(op, WithColumns) or same.issuperset(key))

"""Stateful operators, one file each, behind one contract. This file has the table from plan
operators to their implementations.

May import: what ``task`` may.
Begin with ``contract.py``, then ``aggregate.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meander.plan.change_joins import ChangeJoin
from meander.plan.counts import CountAggregate
from meander.plan.eventtime import Late, SessionAggregate, WindowAggregate
from meander.plan.graph import Node, Plan
from meander.plan.joins import Join, JoinLatest
from meander.plan.operators import Aggregate
from meander.plan.processing import Process
from meander.plan.rowwise import Deduplicate, Latest, Top, WindowTop
from meander.plan.windows import Session, Window
from meander.task.operators.aggregate import make_aggregation
from meander.task.operators.contract import Stateful
from meander.task.operators.deduplicate import make_deduplicate
from meander.task.operators.joins.changes import make_change_join
from meander.task.operators.joins.latest import make_join_latest
from meander.task.operators.joins.pairs import make_join
from meander.task.operators.joins.semi import make_filtering
from meander.task.operators.joins.sessions import make_session_join
from meander.task.operators.joins.windows import make_overlapping
from meander.task.operators.latest import make_latest
from meander.task.operators.place import Place
from meander.task.operators.processors.operator import make_processing
from meander.task.operators.top import make_top
from meander.task.operators.windows.counts import make_counts
from meander.task.operators.windows.sessions import make_sessions
from meander.task.operators.windows.time import make_windows
from meander.task.operators.windows.top import make_window_top


def _make_any_join(place: Place, op: Join) -> Stateful:
    if isinstance(op.window, Window) and op.window.shares_panes:
        return make_overlapping(place, op)
    if isinstance(op.window, Session):
        return make_session_join(place, op)
    return make_filtering(place, op) if op.filters else make_join(place, op)


_MAKERS: dict[type[Any], Callable[[Place, Any], Stateful]] = {
    Aggregate: make_aggregation,
    WindowAggregate: make_windows,
    SessionAggregate: make_sessions,
    CountAggregate: make_counts,
    Deduplicate: make_deduplicate,
    Latest: make_latest,
    Top: make_top,
    WindowTop: make_window_top,
    Join: _make_any_join,
    ChangeJoin: make_change_join,
    JoinLatest: make_join_latest,
    Process: make_processing,
}


def make_ready(plan: Plan, node: Node, number: int, level: int) -> Stateful:
    """A plan's stateful operator, ready to run."""
    kept = frozenset(n.op.side for n in plan.nodes if isinstance(n.op, Late) and n.op.operator == node.name)
    return _MAKERS[type(node.op)](Place(plan, node, number, level, kept), node.op)

"""Pickles of plans: messages from one process to another of the same version. Stores hold documents: see ``documents.py``.

Unpickling runs code. Call ``unpickle`` only with bytes of the driver, or of a caller who may run code.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Collection, Sequence
from typing import Any

from meander.connect.sink import for_tasks
from meander.errors import FlowError
from meander.plan.graph import Plan
from meander.plan.operators import MapBatches, Operator, SinkOp
from meander.stored.code import ByValue, ship


def pack_plan(plan: Plan) -> bytes:
    """The plan's bytes for executors, with the code of functions that they cannot import, and without what only the driver calls."""
    return _pack(_for_tasks(plan, {node.name for node in plan.nodes}), "sent to executors")


def pack_whole(plan: Plan, purpose: str, spare: Collection[str] = ()) -> bytes:
    """The plan's bytes for another driver. Of sinks in ``spare`` the function may stay behind, where it cannot be pickled."""
    return _pack(leave_behind(plan, spare), purpose)


def leave_behind(plan: Plan, spare: Collection[str]) -> Plan:
    """The plan without the functions of these sinks that cannot be pickled."""
    return _for_tasks(plan, {node.name for node in plan.nodes if node.name in spare and not _can_travel(node.op)})


def _for_tasks(plan: Plan, names: Collection[str]) -> Plan:
    sinks = {node.name: node.op.sink for node in plan.nodes if isinstance(node.op, SinkOp) and node.name in names}
    return plan.with_ends({name: SinkOp(for_tasks(sink)) for name, sink in sinks.items()})


def _can_travel(op: Operator) -> bool:
    try:
        return bool(pickled(op))
    except Exception:
        return False


def _pack(plan: Plan, purpose: str) -> bytes:
    try:
        return pickled(plan)
    except Exception as error:
        for node in plan.nodes:
            try:
                pickled(node.op)
            except Exception as cause:
                raise FlowError(
                    f"{node.op.kind} {node.name!r}: it cannot be {purpose} ({type(cause).__name__}: {cause}); a lock, a connection "
                    "or an open file that a function refers to stays where it is: make it inside the function, on first use"
                ) from cause
        raise FlowError(f"flow {plan.flow!r}: it cannot be {purpose} ({type(error).__name__}: {error})") from error


def pickled(thing: object) -> bytes:
    """With the code of what cannot be imported elsewhere."""
    out = io.BytesIO()
    ByValue(out).dump(thing)
    return out.getvalue()


def ship_user_modules(operators: Sequence[Any]) -> None:
    """Functions of a user's own files travel by value: executors cannot import a script or a notebook's neighbour."""
    functions: list[Any] = []
    for op in operators:
        if isinstance(op, MapBatches):
            functions.append(op.fn)
        functions.append(getattr(getattr(op, "sink", op), "function", None))  # a sink may come without its operator
        functions.extend(type(getattr(agg, "user", agg)) for agg in getattr(op, "aggs", ()))
        processor = getattr(op, "processor", None)
        if processor is not None:
            functions.extend(kind for kind in type(processor).__mro__ if kind is not object)
    for function in functions:
        ship(function)


def unpickle(packed: bytes) -> Any:
    """The pickled object. Runs code that is in the bytes."""
    return pickle.loads(packed)

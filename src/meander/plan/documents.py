"""Plans as stored documents: operators by kind and parameters, and the code of users' functions as blobs.

Reading a plan unpacks the code in it: a driver trusts its store like a checkpoint. Reading gives
the plan that was written, with the columns that its operators had then; nothing is checked or
computed again. The form is described in ``docs/decisions/0028``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import polars as pl

from meander.connect.sink import for_tasks
from meander.errors import FlowError, MeanderError
from meander.plan.changes import find_changes
from meander.plan.graph import Node, Plan
from meander.plan.operators import Operator, SinkOp
from meander.stored.documents import read_document, write_document
from meander.stored.types import read_schema, write_schema
from meander.stored.values import Reader, Writer


def write_plan(plan: Plan, purpose: str, spare: Collection[str] = ()) -> bytes:
    """The document of a plan. Of sinks in ``spare`` the function may stay behind, where it cannot be stored.

    FlowError names the operator that cannot be stored.
    """
    operators = []
    for node in plan.nodes:
        try:
            described = Writer().write(node.op)
        except Exception as error:
            if node.name not in spare or not isinstance(node.op, SinkOp):
                raise _cannot_be(purpose, node, error) from error
            described = Writer().write(SinkOp(for_tasks(node.op.sink)))
        columns = write_schema(plan.schema(node.name))
        operators.append(
            {"name": node.name, "inputs": list(node.inputs), "columns": columns, "operator": described, "code": Writer().write(node.code)}
        )
    retired = {name: list(columns) for name, columns in plan.retired.items()}
    return write_document({"flow": plan.flow, "version": plan.version, "operators": operators, "retired": retired})


def read_plan(data: bytes, what: str) -> Plan:
    """The plan of a document. ``what`` names the document. Runs code that is in it."""
    document = read_document(data, what)
    nodes, schemas = [], {}
    for described in document["operators"]:
        name = described["name"]
        reader = Reader(f"{what}: operator '{name}'", run_code=True)
        op: Operator = reader.read(described["operator"])
        nodes.append(Node(name, op, tuple(described["inputs"]), reader.read(described["code"])))
        schemas[name] = read_schema(described["columns"])
    return _as_it_was(document, tuple(nodes), schemas)


def _as_it_was(document: dict[str, Any], nodes: tuple[Node, ...], schemas: dict[str, pl.Schema]) -> Plan:
    """A plan of these nodes without the checks of a new one, in which functions are called to learn their columns."""
    plan = object.__new__(Plan)
    parts = {
        "version": document["version"],
        "flow": document["flow"],
        "nodes": nodes,
        "retired": {name: tuple(columns) for name, columns in document["retired"].items()},
        "_schemas": schemas,
        "changes": find_changes(nodes, schemas),
    }
    for name, part in parts.items():
        object.__setattr__(plan, name, part)
    return plan


def _cannot_be(purpose: str, node: Node, error: Exception) -> FlowError:
    said = str(error) if isinstance(error, MeanderError) else f"{type(error).__name__}: {error}"
    return FlowError(
        f"{node.op.kind} {node.name!r}: it cannot be {purpose} ({said}); a lock, a connection or an open file that a function refers to "
        "stays where it is: make it inside the function, on first use"
    )

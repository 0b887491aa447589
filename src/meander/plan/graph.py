"""Plan: a flow at one version, immutable, ordered from sources to sinks, and checked when it is built.

A Plan that exists is one that can run: names are unique and fit for folders, every input exists, there is
no cycle, every stream reaches a sink, and every operator accepts the columns it gets. A modification
makes a new Plan with the next version; it never changes one.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from meander.errors import FlowError
from meander.familiar.values import named
from meander.plan.changes import Changes, check_changes, find_changes
from meander.plan.code import NO_CODE, Code
from meander.plan.operators import MapBatches, Operator, SinkOp, SourceOp, sql_text
from meander.plan.processing import columns_of
from meander.plan.schemas import did_you_mean

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")


@dataclass(frozen=True, eq=False)
class Node:
    """An operator under the name that runtime changes refer to, and the names of its inputs in order."""

    name: str
    op: Operator
    inputs: tuple[str, ...] = ()
    code: Code = NO_CODE
    """The operator's code as it was when a plan was first made of it: read there, where its source is."""


@dataclass(frozen=True, eq=False)
class Plan:
    version: int
    flow: str
    nodes: tuple[Node, ...]
    """In topological order, whatever the order given; ties keep the order given."""
    retired: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Per stateful operator, what old segments still have: state columns that it had once, whose names are not used again; ``UNTOLD``."""
    digest_in_store: str | None = None
    """The digest by which a store knows this plan, where another version of Polars would write it otherwise."""
    _schemas: dict[str, pl.Schema] = field(init=False, repr=False)
    changes: Mapping[str, Changes] = field(init=False, repr=False)
    """The operators whose rows replace rows that came before. All other streams only grow."""

    def __post_init__(self) -> None:
        check_name("flow", self.flow)
        _check_names(self.nodes)
        ordered = sort_nodes(self.nodes)
        _check_ends(self.flow, ordered)
        schemas: dict[str, pl.Schema] = {}
        nodes = []
        by_name = {node.name: node for node in ordered}
        for node in ordered:
            schemas[node.name] = columns_of(node, by_name, schemas)
            if isinstance(node.op, MapBatches):  # what was learned of a function here is held against it when it runs
                node = replace(node, op=node.op.with_schema(schemas[node.name]))
            if not node.code.digest and (code := node.op.code()).digest:
                node = replace(node, code=code)
            nodes.append(node)
        object.__setattr__(self, "nodes", tuple(nodes))
        changes = find_changes(nodes, schemas)
        for node in nodes:
            check_changes(node, changes, schemas)
        object.__setattr__(self, "_schemas", schemas)
        object.__setattr__(self, "changes", changes)

    def node(self, name: str) -> Node:
        for node in self.nodes:
            if node.name == name:
                return node
        known = [node.name for node in self.nodes]
        raise FlowError(f"flow {self.flow!r}: there is no operator {name!r}; operators are {', '.join(known)}{did_you_mean(name, known)}")

    def schema(self, name: str) -> pl.Schema:
        """The columns that leave the operator (for a sink: that it is given)."""
        return self._schemas[self.node(name).name]

    @property
    def schemas(self) -> dict[str, pl.Schema]:
        return self._schemas

    def consumers(self, name: str) -> tuple[str, ...]:
        """The names of the operators that read this one, in topological order."""
        self.node(name)
        return tuple(node.name for node in self.nodes if name in node.inputs)

    def with_ends(self, ends: Mapping[str, Operator]) -> Plan:
        """The same plan with other sources and sinks of the same columns under some names."""
        made = copy.copy(self)
        object.__setattr__(made, "nodes", tuple(replace(n, op=ends.get(n.name, n.op)) for n in self.nodes))
        return made

    def with_retired(self, retired: Mapping[str, tuple[str, ...]]) -> Plan:
        """The same plan, with other things that old segments still have."""
        made = copy.copy(self)
        object.__setattr__(made, "retired", retired)
        return made

    def with_code(self, codes: Mapping[str, Code]) -> Plan:
        """The same plan, with code under some names that a person says does the same."""
        made = copy.copy(self)
        object.__setattr__(made, "nodes", tuple(replace(n, code=codes.get(n.name, n.code)) for n in self.nodes))
        return made

    def known_as(self, digest: str) -> Plan:
        """The same plan, under the digest by which a store and its other replicas know it."""
        if digest == self.digest():
            return self
        made = copy.copy(self)
        object.__setattr__(made, "digest_in_store", digest)
        return made

    def record(self) -> dict[str, Any]:
        """The plan as plain data (JSON), from sources to sinks: what its digest is made of, and what ``diff`` needs to say what changed."""
        return {
            "flow": self.flow,
            "made_with": {"Python": f"{sys.version_info.major}.{sys.version_info.minor}", "Polars": pl.__version__},
            "operators": {
                node.name: {
                    "kind": node.op.kind,
                    "text": node.op.describe(),
                    "sql": sql_text(node.op),
                    "does": hashlib.sha256(node.op.canonical().encode()).hexdigest(),
                    **node.code.record(),
                    "inputs": list(node.inputs),
                    "columns": [[column, str(dtype)] for column, dtype in self._schemas[node.name].items()],
                }
                for node in self.nodes
            },
        }

    def digest(self) -> str:
        """Hex over everything that decides the output: names, inputs, operators, schemas, code; not the version, and no places."""
        if self.digest_in_store is not None:
            return self.digest_in_store
        operators = sorted(self.record()["operators"].items())
        content = [[name, *(op[part] for part in ("kind", "does", "code", "inputs", "columns"))] for name, op in operators]
        return hashlib.sha256(json.dumps([self.flow, content]).encode()).hexdigest()


def check_name(kind: str, name: str) -> None:
    if not isinstance(name, str):
        raise FlowError(f"{kind}: its name comes first, as text, such as 'orders'; {named(name)} is none")
    if not _NAME.fullmatch(name):
        raise FlowError(
            f"{kind} {name!r}: not a valid name; a name becomes a folder name: a letter, then up to 62 letters, digits, '_' or '-'"
        )


def _check_names(nodes: tuple[Node, ...]) -> None:
    kinds: dict[str, str] = {}
    for node in nodes:
        check_name(node.op.kind, node.name)
        if node.name in kinds:
            raise FlowError(f"{node.op.kind} {node.name!r}: there is already a {kinds[node.name]} of that name; give one of them another")
        kinds[node.name] = node.op.kind
    # Folders of stores that ignore case (S3 does not, some disks do) would run into each other.
    folded: dict[str, str] = {}
    for name in kinds:
        if (other := folded.setdefault(name.casefold(), name)) != name:
            raise FlowError(f"{kinds[name]} {name!r}: it differs from {kinds[other]} {other!r} only in case; give one of them another name")
    for node in nodes:
        for name in node.inputs:
            if name not in kinds:
                raise FlowError(
                    f"{node.op.kind} {node.name!r}: its input {name!r} does not exist; "
                    f"operators are {', '.join(kinds)}{did_you_mean(name, kinds)}"
                )
            if kinds[name] == "sink":
                raise FlowError(f"{node.op.kind} {node.name!r}: its input {name!r} is a sink; a sink has no output")


def sort_nodes(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """In topological order. Nodes that are in one stay as they are."""
    ordered: list[Node] = []
    done: set[str] = set()
    waiting = list(nodes)
    while waiting:
        ready = next((node for node in waiting if done.issuperset(node.inputs)), None)
        if ready is None:
            raise FlowError(f"there is a cycle among {', '.join(node.name for node in waiting)}; a flow runs from sources to sinks")
        waiting.remove(ready)
        ordered.append(ready)
        done.add(ready.name)
    return tuple(ordered)


def _check_ends(flow: str, ordered: tuple[Node, ...]) -> None:
    if not any(isinstance(node.op, SourceOp) for node in ordered):
        raise FlowError(f"flow {flow!r}: it has no source; begin with flow.source(name, ...)")
    if not any(isinstance(node.op, SinkOp) for node in ordered):
        raise FlowError(f"flow {flow!r}: it has no sink; end every stream with .sink(name, ...)")
    reaching: set[str] = set()
    for node in reversed(ordered):
        if isinstance(node.op, SinkOp) or node.name in reaching:
            reaching.update(node.inputs)
        else:
            raise FlowError(f"{node.op.kind} {node.name!r}: its rows reach no sink; end the stream with .sink(name, ...) or remove it")

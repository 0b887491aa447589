"""A flow with other sources and sinks in the place of some of its own: the flow that is tested is the one that will run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from meander.connect.sink import Sink
from meander.connect.source import Source
from meander.connect.spark_stream import SparkStreamSource
from meander.errors import FlowError
from meander.familiar.values import no_sink
from meander.plan.graph import Plan
from meander.plan.operators import Operator, SinkOp, SourceOp
from meander.plan.schemas import did_you_mean, show_schema
from meander.testing.rows import Epochs, source


def with_ends(plan: Plan, sources: Mapping[str, Source | Epochs], sinks: Mapping[str, Sink]) -> Plan:
    """The same plan with these sources and sinks under the names of its own. FlowError where one does not fit."""
    own = {node.name: node.op for node in plan.nodes if isinstance(node.op, SourceOp)}
    _check_names("source", plan.flow, sources, own)
    _check_names("sink", plan.flow, sinks, [node.name for node in plan.nodes if isinstance(node.op, SinkOp)])
    for name, op in own.items():
        if isinstance(op.source, SparkStreamSource) and name not in sources:
            raise FlowError(f"source {name!r}: a streaming DataFrame needs Spark; give its rows, as in sources={{{name!r}: [[row, row]]}}")
    ends: dict[str, Operator] = {}
    for name, given in sources.items():
        ends[name] = replace(own[name], source=_source(name, own[name].source, given))
    for name, sink in sinks.items():
        if not hasattr(sink, "publish"):
            raise FlowError(f"sink {name!r}: {no_sink(sink)}")
        ends[name] = SinkOp(sink)
    nodes = tuple(replace(node, op=ends.get(node.name, node.op)) for node in plan.nodes)
    return Plan(plan.version, plan.flow, nodes, plan.retired)


def _source(name: str, own: Source, given: Any) -> Source:
    if not hasattr(given, "cursor"):
        try:
            return source(dict(own.schema()), given)
        except FlowError as error:
            raise FlowError(f"source {name!r}: {error}") from error
    found: Source = given
    if _columns(found) != _columns(own):
        raise FlowError(
            f"source {name!r}: the flow's has columns {show_schema(own.schema())}, and this one {show_schema(found.schema())}; "
            "give the rows alone, and they get the flow's"
        )
    return found


def _columns(found: Source) -> list[tuple[str, Any]]:
    return list(found.schema().items())


def _check_names(kind: str, flow: str, given: Iterable[str], known: Iterable[str]) -> None:
    known = list(known)
    for name in given:
        if name not in known:
            raise FlowError(f"flow {flow!r} has no {kind} {name!r}; there are: {', '.join(known)}{did_you_mean(name, known)}")

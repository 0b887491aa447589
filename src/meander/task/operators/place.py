"""The place of an operator in its plan, looked up once, when the operator is made ready."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from meander.aggregates import Agg, Part
from meander.aggregates.by_time import parts_by_time
from meander.plan.changes import find_retracting
from meander.plan.computed import with_computed
from meander.plan.eventtime import Time, time_of
from meander.plan.graph import Node, Plan


@dataclass(frozen=True)
class Place:
    """Where an operator stands in its plan."""

    plan: Plan
    node: Node
    number: int
    level: int
    keeps_late: frozenset[int]

    def common(self, keys: tuple[str, ...]) -> dict[str, Any]:
        """The arguments of every stateful operator."""
        node = self.node
        return {
            "name": node.name,
            "number": self.number,
            "level": self.level,
            "inputs": node.inputs,
            "keys": keys,
            "schema": self.plan.schema(node.name),
            "keeps_late": self.keeps_late,
        }

    @property
    def over_changes(self) -> bool:
        """Whether its input is a stream of changes."""
        return self.node.inputs[0] in self.plan.changes

    @property
    def retracts(self) -> bool:
        """Whether a reader behind it needs removals."""
        return self.node.name in find_retracting(self.plan.nodes, self.plan.changes)

    def schema(self, side: int = 0) -> pl.Schema:
        """The columns of an input."""
        return self.plan.schema(self.node.inputs[side])

    def time(self, side: int = 0) -> Time | None:
        """The time of an input's rows."""
        return time_of(self.plan.nodes, self.plan.schemas, self.node.inputs[side])


def parts_of(aggs: Sequence[Agg], schema: pl.Schema, by_time: bool = False) -> dict[str, Part]:
    """The state columns of aggregates of an input with these columns. ``by_time``: pieces are folded in no order of time."""
    schema = with_computed(schema, aggs)
    parts = {agg.name: parts_by_time(agg, schema) if by_time else agg.parts(schema) for agg in aggs}
    return {f"{name}.{part}": _with_empty(spec, schema) for name, of in parts.items() for part, spec in of.items()}


def _with_empty(part: Part, schema: pl.Schema) -> Part:
    try:
        empty = schema.to_frame().select(part.init.cast(part.dtype)).to_series()
    except Exception:  # a user's own expression that cannot do without rows: null is its state then
        return part
    return replace(part, empty=empty) if len(empty) == 1 and empty.null_count() == 0 else part

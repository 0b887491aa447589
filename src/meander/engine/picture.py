"""What a status says of stages and executors. Spark-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from meander.coordinate.routing import slots_of
from meander.plan.graph import Plan
from meander.plan.stages import derive_stages

if TYPE_CHECKING:
    from meander.engine.loop import EpochDone
    from meander.engine.placement import Placement


def show_stages(plan: Plan, placement: Placement, routing: Mapping[str, list[int]], recent: Sequence[EpochDone]) -> list[dict[str, Any]]:
    """Every stage with its operators, slots and recent rates."""
    where = placement.where()
    seconds = sum(sum(done.seconds.values()) for done in recent)
    stages = []
    for stage in derive_stages(plan):
        facts = [f for done in recent for f in done.outcome.stages if f.name == str(stage.number)]
        records = [done.outcome.records.get(str(stage.number), (0, 0)) for done in recent]
        busy = sum(f.busy for f in facts)
        slots = max((slots_of(routing[name]) for name in stage.stateful if name in routing), default=facts[-1].slots if facts else 0)
        stages.append(
            {
                "number": stage.number,
                "operators": [_operator(plan, name) for name in stage.operators],
                "stateful": list(stage.stateful),
                "slots": slots,
                "executors": where.get(stage.number - 1, []),
                "records_per_second": sum(came for came, _ in records) / seconds if seconds else 0.0,
                "true_rate": sum(f.records for f in facts) / busy if busy else None,
                "busy_seconds": round(busy, 3),
            }
        )
    return stages


def show_executors(placement: Placement, closed: bool) -> dict[str, dict[str, Any]]:
    """Slots are counted over all stages that keep state: where they will run, as far as Spark takes hints."""
    pinned = [(level, executor) for level, places in placement.where().items() for executor in places]
    leaving = placement.leaving
    return {
        name: {
            "slots": sum(executor == name for _, executor in pinned),
            "stages": sorted({level + 1 for level, executor in pinned if executor == name}),
            "leaving": name in leaving,
            "introduced": placement.is_introduced(name),
        }
        for name in ([] if closed else placement.there())
    }


def _operator(plan: Plan, name: str) -> dict[str, Any]:
    node = plan.node(name)
    return {"name": name, "kind": node.op.kind, "does": node.op.describe(), "inputs": list(node.inputs)}

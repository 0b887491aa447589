"""The parts of a status: stages, operators, executors and epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from meander.coordinate.routing import slots_of
from meander.metrics import late_by_operator
from meander.plan.graph import Plan
from meander.plan.stages import derive_stages

if TYPE_CHECKING:
    from meander.coordinate.autoscaling import Scaling
    from meander.epochs.decision import EpochDone
    from meander.epochs.patience import Held
    from meander.epochs.placement import Placement
    from meander.state.manifest import Manifest


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


def show_operators(manifest: Manifest, routing: Mapping[str, list[int]]) -> dict[str, dict[str, Any]]:
    """The stateful ones, with their state, their key-group map and how many rows came too late for them."""
    late = late_by_operator(manifest.totals)
    return {
        name: {
            "parallelism": slots_of(table),
            "key_groups": len(table),
            "routing": list(table),
            "segments": sum(len(state.segments) for state in manifest.tables_of(name)),
            "rows": sum(state.rows for state in manifest.tables_of(name)),
            "bytes": sum(state.bytes for state in manifest.tables_of(name)),
            "late_rows": late.get(name, 0),
        }
        for name, table in routing.items()
    }


def show_epoch(done: EpochDone) -> dict[str, Any]:
    """Where the time of an epoch went."""
    wall = {name: round(value * 1000, 2) for name, value in done.seconds.items()}
    work = {name: round(value * 1000, 2) for name, value in done.outcome.seconds.items()}
    return {"epoch": done.epoch, "rows_in": done.outcome.counts.get("rows_in", 0), "wall_ms": wall, "task_ms": work}


def show_scaling(scaling: Scaling, executors: Any) -> dict[str, Any]:
    """The autoscaler's newest decision, and why."""
    return {
        "slots": dict(scaling.slots),
        "reasons": list(scaling.reasons),
        "notes": list(scaling.notes),
        "cores": scaling.cores,
        "skewed": list(scaling.skewed),
        "executors": executors,
    }


def _operator(plan: Plan, name: str) -> dict[str, Any]:
    node = plan.node(name)
    return {"name": name, "kind": node.op.kind, "does": node.op.describe(), "inputs": list(node.inputs)}


def show_holding(held: Held | None, now: float) -> dict[str, Any] | None:
    """The store or sink that a flow waits for."""
    return None if held is None else {"since": held.since, "seconds": max(0.0, now - held.since), "why": held.why, "tries": held.tries}

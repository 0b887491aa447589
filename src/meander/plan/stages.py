"""Stages: which operators run in one Spark task, derived from the plan alone.

A stage ends where rows must be exchanged by key, which is in front of every stateful operator. The level
of an operator is the number of exchanges on the longest way to it; all operators of a level are one
stage, numbered from 1. Pure: the same plan has the same stages everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from meander.plan.graph import Plan


@dataclass(frozen=True)
class Stage:
    number: int
    operators: tuple[str, ...]
    """In topological order."""
    stateful: tuple[str, ...]


def levels(plan: Plan) -> dict[str, int]:
    found: dict[str, int] = {}
    for node in plan.nodes:
        reached = max((found[name] for name in node.inputs), default=0)
        found[node.name] = reached + 1 if node.op.stateful else reached
    return found


def derive_stages(plan: Plan) -> tuple[Stage, ...]:
    level = levels(plan)
    stages = []
    for number in range(max(level.values()) + 1):
        members = [node for node in plan.nodes if level[node.name] == number]
        stages.append(Stage(number + 1, tuple(n.name for n in members), tuple(n.name for n in members if n.op.stateful)))
    return tuple(stages)

"""The request to a measuring process in the benchmark of changes of a running flow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meander.bench.harness.statistics import Json


@dataclass(frozen=True)
class ModifyRequest:
    """One system under a steady load, changed again and again."""

    work: ClassVar[str] = "modify"
    system: str
    scenario: str
    folder: str
    master: str
    parallelism: int
    memory: str
    rate: float
    keys: int
    trigger: float
    warmup: float
    seconds: float
    operators: int = 0
    """How many stateful operators there are to migrate."""
    state_bytes: int = 0
    """About how much state they have together."""

    @staticmethod
    def from_json(fields: Json) -> ModifyRequest:
        return ModifyRequest(**fields)

"""The request to a measuring process of ``bench scaling``: one shape of flow with one number of
slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meander.bench.harness.statistics import Json
from meander.bench.load.workload import Workload


@dataclass(frozen=True)
class ScalingRequest:
    work: ClassVar[str] = "scaling"
    shape: str
    """``map`` or ``count``."""
    workload: Workload
    folder: str
    master: str
    memory: str
    slots: int
    epoch_events: int
    epochs: int
    """Epochs that are measured at full speed."""
    warmup: int
    """Epochs before them."""
    seconds: float
    """How long latency is measured."""
    share: float
    rate: float | None
    """Events per second while latency is measured; None for ``share`` of the full speed."""

    @property
    def system(self) -> str:
        return f"{self.shape} with {self.slots} slots"

    @staticmethod
    def from_json(fields: Json) -> ScalingRequest:
        return ScalingRequest(**{**fields, "workload": Workload(**fields["workload"])})

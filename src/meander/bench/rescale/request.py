"""The request to a measuring process of ``bench rescale``: one strategy, or the peer, at one size
of the state."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from meander.bench.harness.statistics import Json
from meander.bench.load.workload import Workload
from meander.settings import Strategy

LOAD_BYTES = 50_000_000
"""About how much state an epoch of the loading writes."""
OURS, PEER = "meander", "spark-repartition"


@dataclass(frozen=True)
class RescaleRequest:
    work: ClassVar[str] = "rescale"
    strategy: Strategy | None
    """None is the peer, which has no choice."""
    workload: Workload
    folder: str
    master: str
    memory: str
    slots: tuple[int, int]
    """Before the first rescale and after it; the second one goes back."""
    warmup: float
    """Seconds of the steady load before anything is measured."""
    seconds: float
    """Seconds before the first rescale, between the two, and after the second."""
    latency_ms: float
    mb_per_s: float
    """The line to the store."""
    patience: float
    """Seconds that one rescale may take, catching up included."""

    @property
    def system(self) -> str:
        return f"{OURS} {self.strategy}" if self.strategy is not None else PEER

    @property
    def store(self) -> Path:
        return Path(self.folder) / "store"

    @property
    def store_url(self) -> str:
        return f"throttled://{self.store}?latency_ms={self.latency_ms:g}&mb_per_s={self.mb_per_s:g}"

    @property
    def load_rows(self) -> int:
        """Keys per epoch, or file, of the loading."""
        return max(1_000, LOAD_BYTES // (self.workload.junk + 50))

    @staticmethod
    def from_json(fields: Json) -> RescaleRequest:
        return RescaleRequest(**{**fields, "workload": Workload(**fields["workload"]), "slots": tuple(fields["slots"])})

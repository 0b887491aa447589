"""The request to a child when Nexmark is measured: one query on one system, over existing files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from meander.bench.harness.statistics import Json


@dataclass(frozen=True)
class NexmarkRequest:
    """One query, one system, one run over all of the files."""

    work: ClassVar[str] = "nexmark"
    system: str
    query: str
    tables: dict[str, str]
    """The folder of each table."""
    rows: dict[str, int]
    """How many rows each has, for the verification."""
    epochs: int
    files_per_epoch: int
    folder: str
    master: str
    parallelism: int
    memory: str
    settings: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def from_json(fields: Json) -> NexmarkRequest:
        return NexmarkRequest(**fields)

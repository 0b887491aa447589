"""The parts of an epoch: its decision, and the outcome that its tasks report. Plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from meander.clock import Clock
from meander.connect.source import Split
from meander.coordinate.capacity import StageFacts
from meander.coordinate.marks import Marks
from meander.state.manifest import Json, Manifest


@dataclass(frozen=True)
class Decision:
    """The input of one epoch, and everything else that its output depends on."""

    epoch: int
    now: float
    splits: tuple[tuple[str, Split], ...]
    offsets: dict[str, Json]
    seen: dict[str, list[str]] = field(default_factory=dict)
    batch: Json | None = None
    flush: bool = False
    """Close everything."""
    marks: Marks = field(default_factory=Marks)
    """Where the epoch is in time. Of an epoch that is decided ahead, ``late`` alone is known before its turn."""

    @property
    def rows(self) -> int:
        return sum(split.rows for _, split in self.splits)

    @property
    def bytes(self) -> int:
        return sum(split.bytes for _, split in self.splits)


@dataclass(frozen=True)
class Outcome:
    """The output of an epoch's tasks: the new segments per table, the staged files per sink, and
    the counters."""

    segments: dict[str, list[Any]]
    staged: dict[str, list[Json]]
    counts: dict[str, int]
    seconds: dict[str, float]
    units: dict[int, int] = field(default_factory=dict)
    """Rows that were in each split."""
    stages: tuple[StageFacts, ...] = ()
    """The work of each stage."""
    records: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Per stage, the rows that came into it and those that it handed on."""
    heard: dict[str, dict[str, int]] = field(default_factory=dict)
    """Per watermark and partition, the largest event time."""
    closed: dict[str, int] = field(default_factory=dict)
    """After a flush: per operator, the last time that it has closed; see ``Stateful.floor``."""
    load: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    """Per stateful operator, the seconds of work that each key group was."""
    tried: frozenset[str] = frozenset()
    """The operators on probation that rows came to."""
    digests: dict[str, str] = field(default_factory=dict)
    """Per operator and sink, a digest of its output; only where replicas compare that."""
    late: frozenset[str] = frozenset()
    """Operators that have refused rows as late, or have taken rows that would be elsewhere by an earlier mark."""
    next_ends: dict[str, int] = field(default_factory=dict)
    """Of tables whose rows end, when the next one does of those that were there before the epoch, where operators have looked."""

    def names(self) -> Iterator[str]:
        """All objects that were written."""
        for segments in self.segments.values():
            yield from (segment[0] for segment in segments)
        for files in self.staged.values():
            yield from (file["name"] for file in files)


class Laps:
    """The seconds that each step of an epoch takes."""

    def __init__(self, clock: Clock, began: float) -> None:
        self._clock, self._began = clock, began
        self.seconds: dict[str, float] = {}

    def end(self, step: str) -> None:
        """A step is over, and the next one begins."""
        now = self._clock.monotonic()
        self.seconds[step] = now - self._began
        self._began = now


@dataclass(frozen=True)
class EpochDone:
    """The report of an epoch, for listeners: ``run.on_epoch(lambda done: print(done.epoch))``
    prints the number from each ``md.EpochDone``."""

    epoch: int
    decision: Decision
    outcome: Outcome
    seconds: dict[str, float]
    manifest: Manifest

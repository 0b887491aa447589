"""The messages from the driver to a task, and the task's report. Pickled.

A report belongs to one *attempt*: one execution of one task, with a nonce of its own. Everything an attempt writes has the
nonce in its name, and everything it sends carries its token, so that the driver commits only what one set of attempts
wrote and saw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from meander.coordinate.marks import Marks
from meander.settings import StateMode
from meander.state.hashing import Hashes
from meander.state.segment import SegmentRef

Task = tuple[int, int]
"""(level, index within the level)."""
Lookup = tuple[Sequence[SegmentRef], Callable[[], Hashes]]
"""Segments, and the hashes that will be looked up in them, ascending."""


@dataclass(frozen=True)
class SplitTask:
    """One split to read: its unit (its place in the decision), its source, and the source's
    description of it."""

    unit: int
    source: str
    payload: dict[str, Any]


@dataclass(frozen=True)
class Common:
    """The part of the message that is equal for every task of an epoch."""

    epoch: int
    generation: int
    store: str
    plan: bytes
    key_groups: int
    routing: Mapping[str, list[int]]
    slots: tuple[int, ...]
    """Tasks per level."""
    strict: bool = False
    mode: StateMode = "hybrid"
    """Where reads of state go: see ``cache.reader``."""
    secret: str = ""
    """The secret that stewards of this run share."""
    marks: Marks = field(default_factory=Marks)
    """Where the epoch is in time. First stages, which may be begun ahead, are told ``late`` alone."""
    now: float = 0.0
    """The decision's time."""
    watched: frozenset[str] = frozenset()
    """Operators on probation: a row on which one of them fails is no dead letter, and neither is any other exception tried again."""
    digests: bool = False
    """Whether replicas compare what they have computed."""
    tables: Mapping[str, Any] = field(default_factory=dict)
    """Per operator that looks rows up in a stored table, where that is: its mark."""


@dataclass(frozen=True)
class Control:
    """One task's orders."""

    common: Common
    level: int
    index: int
    splits: tuple[SplitTask, ...] = ()
    segments: Mapping[str, tuple[SegmentRef, ...]] = field(default_factory=dict)
    """Per table of this level's stateful operators, the segments that are alive for this slot's key groups."""
    holders: Mapping[str, str] = field(default_factory=dict)
    """Segments that are in some executor's cache: the address of its steward."""


@dataclass
class Report:
    """The report of one attempt."""

    task: Task
    nonce: str
    segments: dict[str, SegmentRef] = field(default_factory=dict)
    staged: dict[str, dict[str, Any]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    units: dict[int, int] = field(default_factory=dict)
    """The exact number of rows in each of its splits, where the driver had an estimate."""
    seconds: dict[str, float] = field(default_factory=dict)
    groups: dict[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    """Per stateful operator, the rows that came in for each key group."""
    out: dict[int, int] = field(default_factory=dict)
    """Per level it did the work of, the rows that it handed on, to later levels and to sinks."""
    heard: dict[str, dict[str, int]] = field(default_factory=dict)
    """Per watermark and partition, the largest event time."""
    closed: dict[str, int] = field(default_factory=dict)
    """In a flush: per operator, the mark at which all that it closed would be over."""
    next_ends: dict[str, int] = field(default_factory=dict)
    """Of tables whose rows end, when the next one does, where an operator has looked."""
    digests: dict[str, int] = field(default_factory=dict)
    """Per operator and sink, a number that depends on the rows that it gave out, and not on their order."""
    tried: set[str] = field(default_factory=set)
    """The operators on probation that rows came to."""
    late: set[str] = field(default_factory=set)
    """Operators that have refused rows as late, or have taken rows that would be elsewhere by an earlier mark."""
    executor: str = ""
    steward: str | None = None
    """The address of the steward beside the executor it ran in."""

    def count(self, name: str, by: int) -> None:
        if by:
            self.counts[name] = self.counts.get(name, 0) + by

    def handed_on(self, level: int, rows: int) -> None:
        self.out[level] = self.out.get(level, 0) + rows


@dataclass(frozen=True)
class Seen:
    """The tokens and reports that have come together so far, on their way to the driver."""

    tokens: frozenset[tuple[Task, str]]
    reports: tuple[Report, ...]
    error: tuple[str, str] | None = None
    """The kind and the message of an error that trying again would not mend."""

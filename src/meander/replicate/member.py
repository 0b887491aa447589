"""A supervisor's record of one replica, the names of replicas, and changes under way."""

from __future__ import annotations

import itertools
import string
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

from meander.processes import ProcessId
from meander.replicate.priority import LowPriority
from meander.replicate.process import Process
from meander.replicate.restarts import Restarts

_OVER = ("finished", "stopped", "left", "given up")


@dataclass
class Member:
    """One replica, as its supervisor knows it."""

    name: str
    record: Restarts
    state: str = "waiting"
    """waiting, starting, running, silent, stopping; finished, stopped, left or given up."""
    process: Process | None = None
    launched: float = 0.0
    next_start: float = 0.0
    came_up: float | None = None
    asked_to_end: float | None = None
    launches: int = 0
    adopted: bool = False
    epoch: int | None = None
    epoch_since: float = 0.0
    url: str | None = None
    error: str | None = None
    kind: str | None = None
    trouble: str | None = None
    """Why we have killed it."""
    last_lines: list[str] = field(default_factory=list)
    priority: LowPriority | None = None
    """While it gives way to those that are at work."""

    @property
    def process_id(self) -> ProcessId | None:
        return None if self.process is None else self.process.id

    @property
    def is_over(self) -> bool:
        return self.state in _OVER

    def is_beside(self, members: Iterable[Member]) -> bool:
        """Whether another one is at work."""
        return any(one is not self and one.state == "running" for one in members)

    def mind_others(self, members: Iterable[Member], now: float) -> None:
        """Give way to them no longer than is good."""
        if self.priority is not None and self.priority.is_over(now, self.came_up, self.is_beside(members)):
            self.priority = None

    @property
    def restarts(self) -> int:
        return max(0, self.launches - (0 if self.adopted else 1))


Steps = Generator[None]
"""A change that takes more than one step: resumed by every step until it ends."""


@dataclass(frozen=True)
class Change:
    """Something that was asked for and is not done yet."""

    steps: Steps
    names: list[str]
    """The replicas that it is about."""
    done: Future[list[str]]


def names() -> Iterator[str]:
    """The names of replicas: a, b, c and so on.

    >>> list(itertools.islice(names(), 25, 28))
    ['z', 'aa', 'ab']
    """
    for length in itertools.count(1):
        yield from ("".join(letters) for letters in itertools.product(string.ascii_lowercase, repeat=length))

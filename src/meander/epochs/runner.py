"""The contract of what runs epochs, and the plan as a runner wants it.

``epochs.tasks`` makes them tasks, which ``epochs.jobs`` has run on Spark or, in tests and simulations, in process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from meander.epochs.decision import Decision, Outcome
from meander.epochs.placement import Placement
from meander.plan.pickling import pack_plan
from meander.state.manifest import Json, Manifest
from meander.task.physical import Compiled


class Runner(Protocol):
    """Runs epochs. See ``epochs.tasks``."""

    def prepare(self, decision: Decision, routing: dict[str, list[int]]) -> Any:
        """Begin what does not depend on state, ahead of time."""

    def begin(self, decision: Decision, manifest: Manifest, routing: dict[str, list[int]], prepared: Any) -> Callable[[], Outcome]:
        """Submit the epoch; the result waits for it. Raises Retryable where running it again may help."""

    def settle(self) -> None:
        """After the commit: let go of what the epoch needed."""

    def recover(self) -> None:
        """After a failure: whatever was known of the cluster may be wrong."""

    def discard(self, prepared: Any) -> None:
        """Forget work that was begun ahead of time: the routing or the plan has changed."""

    def adopt(self, program: Any, watched: frozenset[str]) -> Any:
        """Run epochs of another plan from now on, with some operators watched. Returns the plan before. Between two epochs."""

    def watch(self, operators: frozenset[str]) -> None:
        """Which operators are watched from now on."""

    def abandon(self) -> None:
        """Nobody waits any more for the epoch that was begun last."""


class Cluster(Protocol):
    """Where a runner's slots and segments are, for whoever moves state between executors."""

    placement: Placement
    secret: str
    """Stewards of a run answer only to requests that carry it."""
    stewards: dict[str, str]
    """By executor, the address of its steward."""

    def holders(self, names: Iterable[str]) -> dict[str, str]:
        """By segment, the address of the steward whose cache has it, where there is one."""

    def holds(self, name: str, address: str) -> None:
        """A segment is in the cache of this steward from now on."""

    def level_of(self, operator: str) -> int:
        """The level of a stateful operator."""

    def steward_of(self, operator: str, slot: int) -> str | None:
        """The address of the steward beside a slot, where there is one."""


@dataclass(frozen=True)
class Program:
    """A plan as a runner wants it: made ready for the driver, and packed for executors."""

    compiled: Compiled
    packed: bytes
    tables: Mapping[str, Json] = field(default_factory=dict)
    """Where the tables are that it looks rows up in: see ``epochs.tables``."""

    @staticmethod
    def of(compiled: Compiled, plan: Json) -> Program:
        """``plan`` as the log has it."""
        return Program(compiled, pack_plan(compiled.plan), plan.get("tables", {}))

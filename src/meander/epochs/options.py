"""The arguments of a loop."""

from __future__ import annotations

from dataclasses import dataclass

from meander.clock import Clock
from meander.state.log import Log
from meander.state.stores.contract import Store


@dataclass(frozen=True)
class Tenure:
    """One generation's hold of a store."""

    store: Store
    clock: Clock
    log: Log
    """Taken over."""


@dataclass(frozen=True)
class LoopOptions:
    """How a loop works. None of it has an effect on results."""

    parallelism: int
    """Slots of an operator that has none yet."""
    retain: int = 64
    """Epochs whose state can still be read."""
    work_ahead: bool = True
    patience: float | None = None
    """Seconds for which a store that does not answer is waited for; None: as long as it takes."""

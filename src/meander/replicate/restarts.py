"""Decides when a dead replica is started again, and when it is given up. Pure: facts in, decision
out.

The first restart is at once: the flow runs on without the replica, but with nothing in reserve.
From then on the pauses double. After a while without trouble the count begins anew. A replica that
cannot start, or that ends by an error of its own again and again, is given up: it would do so for
ever. A replica that is killed from outside is never given up. A replica whose store is away, or
whose port is taken, is given up only if the flow has never run: its options may be wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

FIX_IT_FIRST = frozenset({"FlowError", "ConfigError"})
"""Errors that a start alone does not cure."""
WAITING_HELPS = frozenset({"Busy", "Unavailable"})
"""Errors that are not the replica's own: a store that does not answer, a port that its predecessor still has."""


@dataclass(frozen=True)
class Patience:
    """The durations of restarts, in seconds."""

    pause: float = 0.5
    """After the second death in a row; doubled after each that follows."""
    longest_pause: float = 30.0
    well_after: float = 30.0
    """After so long without trouble earlier failures do not count any more."""
    tries: int = 4
    """Failures by itself, in a row, after which a replica is given up."""
    start: float = 600.0
    """Until the first sign of life: a cluster may let a Spark wait for its executors."""
    hang: float = 30.0
    """Silence of a process that is there, until it is replaced."""
    stuck: float = 120.0
    """Without an epoch while the others go on."""
    stuck_lag: int = 10
    grace: float = 30.0
    """From the wish that it should end until it is killed."""


@dataclass(frozen=True)
class Death:
    """How a replica ended that should not have."""

    lived: float | None
    """Seconds from its first sign of life; None where there was none."""
    by_itself: bool
    """It ended with an error, and was not killed."""
    error: str | None = None
    """The error's class, where it is known."""
    known: bool = False
    """Whether replicas of the flow have given signs of life: then its store, its ports and its Spark have been right once."""


class Restarts:
    """One replica's record.

    >>> record = Restarts(Patience(pause=1.0))
    >>> [record.after(Death(lived=5.0, by_itself=False)) for _ in range(4)]
    [0.0, 1.0, 2.0, 4.0]
    >>> record.after(Death(lived=60.0, by_itself=False))
    0.0
    """

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._deaths = 0
        self._failures = 0
        self._ever_lived = False

    def after(self, death: Death) -> float | None:
        """In how many seconds to start it again; None for not at all."""
        patience = self._patience
        self._ever_lived = self._ever_lived or death.lived is not None
        if death.lived is not None and death.lived >= patience.well_after:
            self._deaths = self._failures = 0
        self._deaths += 1
        if death.error not in WAITING_HELPS or not (death.known or self._ever_lived):
            self._failures = self._failures + 1 if death.by_itself or death.lived is None else 0
        if death.error == "Fenced" or (death.error in FIX_IT_FIRST and not self._ever_lived):
            return None
        if self._failures >= patience.tries:
            return None
        return 0.0 if self._deaths == 1 else min(patience.longest_pause, patience.pause * 2.0 ** (self._deaths - 2))

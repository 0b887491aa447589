"""The effect of a disturbance on output and latency, from the moments at which epochs were
published. Pure.

Moments are seconds since 1970, latencies and gaps are seconds. The events of an epoch are created evenly between the first and the last of
them, and are all published when it ends. *Steady* is what came before the first disturbance.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meander.bench.harness.statistics import Json

AFTERMATH = 5.0
"""A rescale lasts from the request until this long after it is in force: damage shows in the epochs
that follow."""
_CALM_EPOCHS = 3

Latencies = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Published:
    """One epoch's output."""

    end: float
    rows: int
    first: float
    """When its first event was created."""
    last: float

    def latencies(self) -> Latencies:
        return self.end - np.linspace(self.first, self.last, self.rows)

    @property
    def worst(self) -> float:
        return self.end - self.first


@dataclass(frozen=True)
class Change:
    """A rescale: when it was asked for, and when it was in force."""

    asked: float
    in_force: float

    @property
    def over(self) -> float:
        return self.in_force + AFTERMATH


def within(epochs: Sequence[Published], begin: float, end: float) -> list[Published]:
    """
    >>> [epoch.end for epoch in within([Published(t, 1, t, t) for t in (1.0, 2.0, 3.0)], 1.5, 3.0)]
    [2.0]
    """
    return [epoch for epoch in epochs if begin <= epoch.end < end]


def longest_gap(epochs: Sequence[Published], begin: float, end: float) -> float:
    """The longest time without output that ends in [begin, end): also one that began before.

    >>> epochs = [Published(t, 1, t, t) for t in (1.0, 2.0, 5.0, 6.0)]
    >>> longest_gap(epochs, 0.0, 4.0), longest_gap(epochs, 4.0, 9.0), longest_gap(epochs, 5.5, 9.0)
    (1.0, 3.0, 1.0)
    """
    pairs = itertools.pairwise(epoch.end for epoch in epochs)
    return max((after - before for before, after in pairs if begin <= after < end), default=0.0)


def latency_numbers(epochs: Sequence[Published]) -> Json:
    """p50, p99 and the worst over all events of these epochs, in seconds."""
    if not epochs:
        return {"p50": 0.0, "p99": 0.0, "max": 0.0}
    values = np.concatenate([epoch.latencies() for epoch in epochs])
    p50, p99 = np.percentile(values, [50, 99], method="inverted_cdf")
    return {"p50": round(float(p50), 4), "p99": round(float(p99), 4), "max": round(float(values.max()), 4)}


def disturbed_for(epochs: Sequence[Published], begin: float, end: float, steady_p99: float) -> float:
    """How long latency was above steady: the longest stretch of late epochs of [begin, end), from the output before it to its last one.

    A stretch that began earlier counts from ``begin``.

    An epoch is late when its 99th percentile is above that of the steady time. By the nature of a percentile single epochs are now
    and then; a stretch ends where three in a row are not.

    >>> on_time = [Published(t, 2, t - 0.5, t) for t in (1.0, 2.0, 3.0)]
    >>> late = [Published(t, 2, t - 2.5, t) for t in (6.0, 7.0)]
    >>> again = [Published(t, 2, t - 0.5, t) for t in (8.0, 9.0, 10.0, 11.0)]
    >>> disturbed_for([*on_time, *late, *again], 2.5, 8.0, 0.6), disturbed_for(on_time, 0.0, 9.0, 0.6)
    (4.0, 0.0)
    """
    stretches = [s for s in _stretches(epochs, steady_p99) if s[1] >= begin and s[0] < end]
    return max((last - (before if first >= begin else begin) for before, last, first in stretches), default=0.0)


def is_calm(epochs: Sequence[Published], steady_p99: float) -> bool:
    """Whether the newest epochs are as they were in the steady time."""
    newest = epochs[-_CALM_EPOCHS:]
    return len(newest) == _CALM_EPOCHS and not any(_is_late(epoch, steady_p99) for epoch in newest)


def _is_late(epoch: Published, steady_p99: float) -> bool:
    return epoch.rows > 0 and epoch.end - (epoch.first + 0.01 * (epoch.last - epoch.first)) > steady_p99


def _stretches(epochs: Sequence[Published], steady_p99: float) -> list[tuple[float, float, float]]:
    """Stretches of late epochs: the output before each, the end of its last late epoch, and the end of its first."""
    found: list[tuple[float, float, float]] = []
    open_since: tuple[float, float] | None = None
    calm, last = 0, 0.0
    for before, epoch in itertools.pairwise(epochs):
        if _is_late(epoch, steady_p99):
            open_since, calm, last = open_since or (before.end, epoch.end), 0, epoch.end
        elif open_since is not None:
            calm += 1
            if calm == _CALM_EPOCHS:
                found.append((open_since[0], last, open_since[1]))
                open_since, calm = None, 0
    if open_since is not None:
        found.append((open_since[0], last, open_since[1]))
    return found


def describe_change(epochs: Sequence[Published], change: Change, steady: tuple[float, float], until: float) -> Json:
    """The numbers of one rescale. ``steady`` is the time that it is compared with; what comes after it lasts ``until``."""
    before = within(epochs, *steady)
    p99 = latency_numbers(before)["p99"]
    # With the output that ends a silence, however long it lasts.
    over = min((epoch.end for epoch in epochs if epoch.end >= change.over), default=change.over) + 1e-6
    parts = {"before": steady, "during": (change.asked, over), "after": (over, until)}
    gaps = {name: round(longest_gap(epochs, *part), 4) for name, part in parts.items()}
    latency = {name: latency_numbers(within(epochs, *part)) for name, part in parts.items()}
    return {
        "gap_seconds": gaps,
        "gap_added_epochs": round((gaps["during"] - gaps["before"]) / _usual_gap(before), 2),
        "latency_seconds": latency,
        "p99_ratio": round(latency["during"]["p99"] / max(p99, 1e-9), 2),
        "back_at_steady_seconds": round(disturbed_for(epochs, change.asked, change.over, p99), 4),
        "in_force_seconds": round(change.in_force - change.asked, 4),
    }


def _usual_gap(epochs: Sequence[Published]) -> float:
    gaps = sorted(after.end - before.end for before, after in itertools.pairwise(epochs))
    return gaps[len(gaps) // 2] if gaps else 1.0

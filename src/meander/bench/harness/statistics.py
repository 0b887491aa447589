"""From the moments at which epochs ended to the numbers that are reported. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]


def median(values: Sequence[float]) -> float:
    """
    >>> median([3, 1, 2]), median([4, 1, 2, 3])
    (2, 2.5)
    """
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least ``percent`` of all do not exceed.

    >>> percentile(range(1, 101), 95), percentile([7.0], 95)
    (95, 7.0)
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def intervals(ends: Sequence[float], warmup: int, measured: int) -> list[float]:
    """The durations of the measured epochs: from the end of one to the end of the next.

    A window in the middle of a run is measured. The epochs before it are warm-up; the one after it
    keeps the system busy to the window's end: work done ahead for the first measured epoch is then
    balanced by work done ahead for the one after the last.

    >>> intervals([5.0, 7.0, 8.0, 9.0, 9.1], warmup=2, measured=2)
    [1.0, 1.0]
    """
    if warmup < 1 or len(ends) < warmup + measured:
        raise ValueError(f"{len(ends)} epochs are not enough for {warmup} of warm-up and {measured} measured ones")
    return [ends[i] - ends[i - 1] for i in range(warmup, warmup + measured)]


def epoch_times(seconds: Sequence[float]) -> Json:
    """How long epochs took: the usual and the unusual one."""
    middle, longest = median(seconds), max(seconds)
    return {
        "epoch_seconds": round(middle, 4),
        "epoch_seconds_p95": round(percentile(seconds, 95), 4),
        "epoch_seconds_max": round(longest, 4),
        "max_over_median": round(longest / middle, 2),
    }


def median_parts(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Name by name, the median over epochs; an epoch that lacks a part spent nothing on it.

    >>> median_parts([{"run": 1.0}, {"run": 3.0}, {"run": 2.0, "commit": 9.0}])
    {'run': 2.0, 'commit': 0.0}
    """
    names = list(dict.fromkeys(name for part in parts for name in part))
    return {name: round(median([part.get(name, 0.0) for part in parts]), 2) for name in names}


def over_rounds(rounds: Sequence[Json]) -> Json:
    """The median over rounds of every number, and of every number in a group of numbers; other things are the first round's."""
    merged: Json = {}
    for name, first in rounds[0].items():
        values = [r[name] for r in rounds]
        if isinstance(first, bool) or any(v is None for v in values):
            merged[name] = first
        elif isinstance(first, int | float):
            merged[name] = median(values)
        elif isinstance(first, dict):
            merged[name] = over_rounds([{k: v.get(k, 0.0) for k in first} for v in values]) if first else {}
        else:
            merged[name] = first
    return merged

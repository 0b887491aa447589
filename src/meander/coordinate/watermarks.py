"""Watermarks: what the log knows of event time, and how an epoch moves it on. Pure.

Per watermark operator, ``heard`` has for each partition the largest event time and when (by the decisions' clock) it was last heard
of; ``mark`` is the time below which nothing more is expected; ``late`` is the mark before the last epoch. Epoch e+1 closes what ends
at or below the mark after e, and takes as late what had closed before. The mark never goes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from meander.plan.windows import FOREVER, NEVER

Json = dict[str, Any]


@dataclass(frozen=True)
class Rule:
    """A watermark operator's settings, in microseconds."""

    grace: int
    idle: int | None


def advance(times: Mapping[str, Json], rules: Mapping[str, Rule], heard: Mapping[str, Mapping[str, int]], now: float) -> dict[str, Json]:
    """The times after an epoch that was decided at ``now`` and in which tasks heard these largest times, per watermark and partition.

    >>> rules = {"w": Rule(grace=5, idle=None)}
    >>> one = advance({}, rules, {"w": {"a": 100, "b": 40}}, 0.0)
    >>> one["w"]["mark"], advance(one, rules, {"w": {"b": 120}}, 1.0)["w"]["mark"]
    (35, 95)
    """
    return {name: _advance(times.get(name, {}), rule, heard.get(name, {}), now) for name, rule in rules.items()}


def _advance(before: Json, rule: Rule, heard: Mapping[str, int], now: float) -> Json:
    known: dict[str, list[Any]] = {partition: list(value) for partition, value in before.get("heard", {}).items()}
    for partition, largest in heard.items():
        known[partition] = [max(largest, known.get(partition, [NEVER])[0]), now]
    active = [largest for largest, at in known.values() if rule.idle is None or (now - at) * 1e6 < rule.idle]
    mark = before.get("mark", NEVER)
    return {"heard": known, "late": mark, "mark": max(mark, min(active) - rule.grace) if active else mark}


def heard_from(times: Mapping[str, Json], sources: Mapping[str, int | None]) -> dict[str, Json]:
    """The times without partitions that are gone: nothing more comes from these, and they must not hold the others back.

    ``sources`` are those that go on where they are, each with the number of its partitions where that is known. One that begins anew
    is not among them: what it had said before is of rows that do not come again, and its new partitions have not spoken yet.

    >>> times = {"w": {"mark": 3, "heard": {"old/0": [3, 0.0], "new/0": [9, 0.0], "new/1": [7, 0.0]}}}
    >>> heard_from(times, {"new": None})
    {'w': {'mark': 3, 'heard': {'new/0': [9, 0.0], 'new/1': [7, 0.0]}}}
    >>> heard_from(times, {"new": 1})
    {'w': {'mark': 3, 'heard': {'new/0': [9, 0.0]}}}
    """
    return {
        name: {**value, "heard": {partition: at for partition, at in value.get("heard", {}).items() if _goes_on(partition, sources)}}
        for name, value in times.items()
    }


def _goes_on(partition: str, sources: Mapping[str, int | None]) -> bool:
    source, _, number = partition.rpartition("/")
    if source not in sources:
        return not source  # rows that have crossed an exchange are of no source's partition
    count = sources[source]
    return count is None or not number.isdigit() or int(number) < count


def low(times: Mapping[str, Json], marks: Iterable[str], delay: int, which: str) -> int:
    """What an operator goes by that follows these watermarks: ``which`` is ``mark`` or ``late``."""
    return max(NEVER, min((times.get(name, {}).get(which, NEVER) for name in marks), default=FOREVER) - delay)

"""Watermarks: the log's record of event time, and how an epoch advances it. Pure.

Per watermark operator:

- ``heard``: for each partition its largest event time, and the time (by the decisions' clock) of
  its last rows
- ``since``: the time of the last rows of any partition; before there are any, the time of the first
  epoch under this watermark
- ``mark``: the time below which nothing more is expected
- ``late``: the mark before the last epoch

Epoch e+1 closes windows that end at or below the mark after e; a row of a window that had closed
before is late. A mark never goes back.

A partition, or a whole watermark, without rows for its idle time does not hold the mark back. If
all of them are idle, the largest time counts: it must not matter which of them was found idle
first. Operators that follow several watermarks have a mark of their own (``together``), which must
not go back when one of the watermarks has rows again.
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

    def is_idle(self, since: float, now: float) -> bool:
        """Whether a partition without rows since then no longer holds the mark back."""
        return self.idle is not None and (now - since) * 1e6 >= self.idle


def advance(
    times: Mapping[str, Json],
    rules: Mapping[str, Rule],
    heard: Mapping[str, Mapping[str, int]],
    now: float,
    followed: Iterable[frozenset[str]] = (),
    started: float = 0.0,
) -> dict[str, Json]:
    """The times after an epoch: it was decided at ``now``, and its tasks found these largest event
    times per watermark and partition.

    ``followed`` are the sets of watermarks that operators follow together. Time before ``started``
    does not count as idle: the flow may not have been running.

    >>> rules = {"w": Rule(grace=5, idle=None)}
    >>> one = advance({}, rules, {"w": {"a": 100, "b": 40}}, 0.0)
    >>> one["w"]["mark"], advance(one, rules, {"w": {"b": 120}}, 1.0)["w"]["mark"]
    (35, 95)
    """
    after, idle = {}, set()
    for name, rule in rules.items():
        after[name] = _advance(times.get(name, {}), rule, heard.get(name, {}), now, started)
        if rule.is_idle(max(after[name]["since"], started), now):
            idle.add(name)
    for marks in followed:
        if len(marks) > 1:
            before = low(times, marks, 0, "mark")
            slowest = _slowest((after[name]["mark"], name in idle) for name in marks)
            after[together(marks)] = {"late": before, "mark": before if slowest is None else max(before, slowest)}
    return after


def _advance(before: Json, rule: Rule, heard: Mapping[str, int], now: float, started: float) -> Json:
    known: dict[str, list[Any]] = {partition: list(value) for partition, value in before.get("heard", {}).items()}
    since = now if heard else before.get("since", now)
    for partition, largest in heard.items():
        known[partition] = [max(largest, known.get(partition, [NEVER])[0]), now]
    mark = before.get("mark", NEVER)
    slowest = _slowest((largest, rule.is_idle(max(at, started), now)) for largest, at in known.values())
    return {"heard": known, "since": since, "late": mark, "mark": mark if slowest is None else max(mark, slowest - rule.grace)}


def _slowest(found: Iterable[tuple[int, bool]]) -> int | None:
    """The smallest of those that are not idle; the largest of all where all are."""
    marks = list(found)
    active = [mark for mark, idle in marks if not idle]
    return min(active) if active else max((mark for mark, _ in marks), default=None)


def together(marks: Iterable[str]) -> str:
    """Under which name the mark of operators is known that follow several watermarks. An operator's name has no plus.

    >>> together({"orders_time", "clicks_time"})
    'clicks_time+orders_time'
    """
    return "+".join(sorted(marks))


def heard_from(times: Mapping[str, Json], sources: Mapping[str, int | None]) -> dict[str, Json]:
    """The times without removed partitions: these get no more rows, and must not hold the others
    back.

    ``sources`` are the sources that continue at their position, each with the number of its
    partitions where that is known. A source that begins anew is not among them: its recorded times
    belong to rows that do not come again, and its new partitions have no rows yet.

    >>> times = {"w": {"mark": 3, "heard": {"old/0": [3, 0.0], "new/0": [9, 0.0], "new/1": [7, 0.0]}}}
    >>> heard_from(times, {"new": None})
    {'w': {'mark': 3, 'heard': {'new/0': [9, 0.0], 'new/1': [7, 0.0]}}}
    >>> heard_from(times, {"new": 1})
    {'w': {'mark': 3, 'heard': {'new/0': [9, 0.0]}}}
    """
    found = dict(times)
    for name, value in times.items():
        if "heard" in value:
            going_on = {partition: at for partition, at in value["heard"].items() if _goes_on(partition, sources)}
            found[name] = {**value, "heard": going_on}
    return found


def _goes_on(partition: str, sources: Mapping[str, int | None]) -> bool:
    source, _, number = partition.rpartition("/")
    if source not in sources:
        return not source  # rows that have crossed an exchange are of no source's partition
    count = sources[source]
    return count is None or not number.isdigit() or int(number) < count


def low(times: Mapping[str, Json], marks: Iterable[str], delay: int, which: str) -> int:
    """The time for an operator that follows these watermarks: ``which`` is ``mark`` or ``late``."""
    marks = tuple(marks)
    several = times.get(together(marks)) if len(marks) > 1 else None  # absent before the first epoch of an operator that follows them
    found = [several] if several is not None else [times.get(name, {}) for name in marks]
    return max(NEVER, min((one.get(which, NEVER) for one in found), default=FOREVER) - delay)

"""What the driver asks of operators that follow time: the marks of an epoch, what it drops, and whether something is due. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from meander.coordinate.watermarks import low
from meander.engine.operators.contract import Timing
from meander.plan.windows import FOREVER, NEVER
from meander.state.manifest import Json, Manifest, operator_of


class Follows(Protocol):
    """Whatever goes by some time."""

    @property
    def timing(self) -> Timing | None: ...


class Timed(Follows, Protocol):
    """A stateful operator as far as time concerns it."""

    def goes_by_clock(self, table: str) -> bool: ...

    def is_over(self, table: str, evict: int) -> bool: ...

    def is_due(self, table: str, late: int, evict: int) -> bool: ...

    def floor(self, closed: int) -> int: ...


Operators = Mapping[str, Timed]


def followed(operators: Operators) -> list[frozenset[str]]:
    """The sets of watermarks that operators follow."""
    found = {timing.marks for operator in operators.values() if (timing := operator.timing) is not None and timing.marks}
    return sorted(found, key=sorted)


def micros_of(now: float) -> int:
    """A decision's time as operators are told it."""
    return int(now * 1e6)


def evictions(operators: Operators, manifest: Manifest, now: float, flush: bool = False) -> dict[str, int]:
    """Per operator, the mark up to which things close in the epoch after this manifest's, which is decided at ``now``."""
    found = {}
    for name, operator in operators.items():
        if (timing := operator.timing) is None:
            continue
        if flush and timing.flushes:
            found[name] = FOREVER
        else:
            found[name] = micros_of(now) if timing.by_clock else _reached(manifest, name, timing, "mark")
    return found


def lates(operators: Mapping[str, Follows], manifest: Manifest, epoch: int) -> dict[str, int]:
    """Per operator, the mark up to which everything had closed before an epoch: the next one, or the one after it.

    For what goes by the clock it is the last decision's time; what is begun ahead does not need it, since there no row is late.
    """
    which = "late" if epoch == manifest.epoch + 1 else "mark"
    found = {}
    for name, operator in operators.items():
        if (timing := operator.timing) is not None:
            found[name] = micros_of(manifest.now) if timing.by_clock else _reached(manifest, name, timing, which)
    return found


def flushed(operators: Operators, manifest: Manifest, times: Mapping[str, Json], closed: Mapping[str, int]) -> dict[str, int]:
    """Per operator, up to where flushes have closed everything, as long as its marks have not come there after an epoch.

    ``closed`` is what the epoch has closed, where it was a flush.
    """
    found = {}
    for name, operator in operators.items():
        if (timing := operator.timing) is not None:
            floor = manifest.flushed.get(name, NEVER)
            if timing.flushes and name in closed:
                floor = max(floor, operator.floor(closed[name]))
            if floor > low(times, timing.marks, timing.delay, "late"):
                found[name] = floor
    return found


def _reached(manifest: Manifest, name: str, timing: Timing, which: str) -> int:
    """A mark, as it is to one operator: a flush has closed what it had open, as if a mark of its own had come."""
    return max(low(manifest.times, timing.marks, timing.delay, which), manifest.flushed.get(name, NEVER))


def over(operators: Operators, tables: Iterable[str], evict: Mapping[str, int], now: float) -> list[str]:
    """The tables that nobody needs after an epoch that closes what these marks say, and was decided at ``now``."""
    found = []
    for table in tables:
        if (name := operator_of(table)) in evict:
            operator = operators[name]
            if operator.is_over(table, micros_of(now) if operator.goes_by_clock(table) else evict[name]):
                found.append(table)
    return found


def over_at_once(operators: Operators, written: Iterable[str], evict: Mapping[str, int], now: float) -> list[str]:
    """Of the tables that an epoch has written, those that are over with it, and not for the next one."""
    found = []
    for table in over(operators, written, evict, now):
        operator = operators[operator_of(table)]
        mark = micros_of(now) if operator.goes_by_clock(table) else evict[operator_of(table)]
        if not operator.is_due(table, mark, mark):
            found.append(table)
    return found


def anything_due(operators: Operators, manifest: Manifest, late: Mapping[str, int], evict: Mapping[str, int], now: float) -> bool:
    """Whether an epoch without input would have something to do if it were decided at ``now``."""
    for table in manifest.tables:
        name = operator_of(table)
        if name in evict:
            operator = operators[name]
            since, until = late[name], evict[name]
            if operator.goes_by_clock(table):
                since, until = micros_of(manifest.now), micros_of(now)
            if operator.is_due(table, since, until) or operator.is_over(table, until):
                return True
    return False


def anything_open(operators: Operators, manifest: Manifest) -> bool:
    """Whether closing everything would close something."""
    for table in manifest.tables:
        operator = operators.get(operator_of(table))
        if operator is None or (timing := operator.timing) is None or not timing.flushes or operator.goes_by_clock(table):
            continue
        if operator.is_over(table, FOREVER):
            return True
    return False

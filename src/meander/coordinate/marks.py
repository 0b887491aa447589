"""The driver's questions to operators that follow time: the marks of an epoch, the state it drops,
and whether something is due. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from meander.coordinate.timing import Clock, Timing
from meander.coordinate.watermarks import low
from meander.plan.windows import FOREVER, NEVER
from meander.state.manifest import Json, Manifest, Table, operator_of
from meander.state.segment import SOONEST


class Follows(Protocol):
    """An operator that follows a time."""

    @property
    def timing(self) -> Timing | None: ...


class Timed(Follows, Protocol):
    """A stateful operator as far as time concerns it."""

    def clock_of(self, table: str) -> Clock: ...

    def over(self, table: str, evict: int) -> int | None: ...

    def due(self, table: str, late: int, evict: int) -> tuple[int, int] | None: ...

    def floor(self, closed: int) -> int: ...


Operators = Mapping[str, Timed]


@dataclass(frozen=True)
class Marks:
    """Where an epoch is in time: part of its decision. Tasks are told it, and the epoch's log entry follows from it."""

    late: Mapping[str, int] = field(default_factory=dict)
    """Per operator that follows time, the mark (in microseconds) up to which everything had closed before the epoch."""
    evict: Mapping[str, int] = field(default_factory=dict)
    """The mark up to which things close with it."""
    floors: Mapping[str, int] = field(default_factory=dict)
    """Of the tables whose rows end, the time up to which they were over before the epoch."""
    quiet: Mapping[str, int] = field(default_factory=dict)
    """Of these tables, the time up to which no row ends, where that is known."""

    @staticmethod
    def of(operators: Operators, manifest: Manifest, epoch: int, now: float, flush: bool = False) -> Marks:
        """The marks of the epoch after this manifest's, which is decided at ``now``."""
        floors = {name: table.floor for name, table in manifest.tables.items() if table.time is not None}
        quiet = {name: table.quiet for name, table in manifest.tables.items() if table.quiet != SOONEST}
        return Marks(lates(operators, manifest, epoch), evictions(operators, manifest, now, flush), floors, quiet)

    def known_ahead(self) -> Marks:
        """The part that is known before the epoch's turn: what stages without state need."""
        return Marks(self.late)


def followed(operators: Operators) -> list[frozenset[str]]:
    """The sets of watermarks that operators follow."""
    found = {timing.marks for operator in operators.values() if (timing := operator.timing) is not None and timing.marks}
    return sorted(found, key=sorted)


def micros_of(now: float) -> int:
    """A decision's time in the unit of operators."""
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

    For operators that follow the clock it is the time of the last decision. An epoch begun ahead
    does not need it: no row is late by the clock.
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
    """A mark for one operator: after a flush, which closes its open windows, the mark counts as
    further ahead."""
    return max(low(manifest.times, timing.marks, timing.delay, which), manifest.flushed.get(name, NEVER))


def reached(operator: Timed, table: str, evict: int, now: float, epoch: int) -> int:
    """An epoch's position in the time that a table follows."""
    clock = operator.clock_of(table)
    return micros_of(now) if clock == "clock" else epoch if clock == "epoch" else evict


def floors(operators: Operators, tables: Mapping[str, Table], evict: Mapping[str, int], now: float, epoch: int) -> dict[str, int]:
    """Up to where rows of these tables are over after an epoch, where that is further than before it."""
    found = {}
    for name, table in tables.items():
        operator = operators.get(operator_of(name))
        if operator is None or table.time is None or operator_of(name) not in evict:
            continue
        mark = reached(operator, name, evict[operator_of(name)], now, epoch)
        over = operator.over(name, mark)
        if mark != FOREVER and over is not None and over > table.floor:
            found[name] = over
    return found


def emptied(operators: Operators, tables: Iterable[str], evict: Mapping[str, int]) -> list[str]:
    """The tables of which nothing is left after an epoch that closes everything."""
    closing = [name for name in tables if evict.get(operator_of(name)) == FOREVER]
    return [name for name in closing if _closes(operators[operator_of(name)], name)]


def anything_due(operators: Operators, manifest: Manifest, late: Mapping[str, int], evict: Mapping[str, int], now: float) -> bool:
    """Whether an epoch without input would have something to do if it were decided at ``now``."""
    for name, table in manifest.tables.items():
        operator = operators.get(operator_of(name))
        if operator is None or table.time is None:
            continue
        since, until = late[operator_of(name)], evict[operator_of(name)]
        if operator.clock_of(name) != "mark":
            since = reached(operator, name, since, manifest.now, manifest.epoch)
            until = reached(operator, name, until, now, manifest.epoch + 1)
        stretch = operator.due(name, since, until)
        if stretch is not None and table.may_end(*stretch):
            return True
    return False


def anything_open(operators: Operators, manifest: Manifest) -> bool:
    """Whether closing everything would close something."""
    for name, table in manifest.tables.items():
        operator = operators.get(operator_of(name))
        if operator is not None and (timing := operator.timing) is not None and timing.flushes and table.rows and _closes(operator, name):
            return True
    return False


def _closes(operator: Timed, table: str) -> bool:
    """Whether rows of a table go where everything is closed."""
    return operator.clock_of(table) == "mark" and operator.over(table, FOREVER) is not None

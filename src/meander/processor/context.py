"""The context of a processor's call: times, random numbers, and its timers.

Times come from the epoch's decision and from the log, and random numbers are seeded by the epoch's
content. An epoch that is run again, or by another replica, gets the same ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random  # noqa: TID251 - with a seed that follows from the epoch
from typing import Protocol
from uuid import UUID  # noqa: TID251 - of numbers that do
from zoneinfo import ZoneInfo

from meander.errors import FlowError
from meander.settings import seconds

EVENT, PROCESSING = "event", "processing"
_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
MOST = 1 << 62
"""Microseconds from 1970 to the ends of time: no timer is there or beyond."""


class Timers(Protocol):
    """The timers of the key whose turn it is, in microseconds."""

    def set(self, clock: str, at: int) -> None: ...

    def delete(self, clock: str, at: int) -> None: ...


@dataclass(frozen=True)
class EpochTimes:
    """The times of an epoch, in microseconds."""

    watermark: int | None
    """Reached before the epoch."""
    now: int
    has_event_time: bool
    zone: str | None
    """Of moments that processors are given."""


class Context:
    """One epoch, as a processor sees it."""

    def __init__(
        self,
        times: EpochTimes,
        time: Callable[[], int],
        timers: Timers | None,
        *,
        emit: Callable[..., None],
        seed: Callable[[], str] | None = None,
    ) -> None:
        self._seed = seed
        self._randoms: dict[str, Random] = {}
        self._now, self._has_event_time, self._zone, self._time, self._timers = times.now, times.has_event_time, times.zone, time, timers
        self.watermark = None if times.watermark is None else self.moment(times.watermark)
        """The event time that had been reached before this epoch; None where there is none yet."""
        self.now = self.moment(times.now)
        """The time of the epoch's decision (UTC). There is no other clock."""
        self.emit = emit
        """Give out a row; ``ctx.emit(row, "late")`` to a side output. In ``on_batch`` a frame, to a side output only."""

    @property
    def time(self) -> datetime:
        """The largest event time of the rows at hand; in a timer, the timer's; ``now`` where rows have no event time."""
        return self.moment(self._time())

    @property
    def random(self) -> Random:
        """Chance that is the same whenever and wherever the epoch is run: numbers that follow from the epoch, the operator and the key.

        ``ctx.random.random()``, ``ctx.random.choice(...)`` and so on. Only in calls for one key,
        not in ``on_batch``.
        """
        if self._seed is None:
            raise FlowError("ctx.random is a key's: in on_batch, draw by the keys, with numpy.random.default_rng([hash of the key, ...])")
        seed = self._seed()
        if seed not in self._randoms:
            self._randoms[seed] = Random(seed)
        return self._randoms[seed]

    def uuid(self) -> UUID:
        """A unique id, the same whenever and wherever the epoch is run."""
        return UUID(int=self.random.getrandbits(128), version=4)

    def set_timer(self, at: datetime | timedelta | float | str, clock: str | None = None) -> None:
        """Have ``on_timer`` called for this key when a clock reaches ``at``: a moment, or a delay such as ``"30s"`` after ``ctx.time``
        (``clock="event"``, the default where rows have an event time) or after ``ctx.now`` (``clock="processing"``).

        Setting a timer twice changes nothing. A timer set for the past fires in the next epoch.
        """
        timers, clock = self._clock(clock)
        timers.set(clock, self._micros(at, clock))

    def delete_timer(self, at: datetime | timedelta | float | str, clock: str | None = None) -> None:
        """Delete a timer of this key. Deleting a timer that is not set does nothing."""
        timers, clock = self._clock(clock)
        timers.delete(clock, self._micros(at, clock))

    def _clock(self, clock: str | None) -> tuple[Timers, str]:
        if self._timers is None:
            raise FlowError("timers need a method: write on_timer(self, key, time, state, ctx)")
        if clock is None:
            return self._timers, EVENT if self._has_event_time else PROCESSING
        if clock not in (EVENT, PROCESSING):
            raise FlowError(f"clock={clock!r}; there are 'event' and 'processing'")
        if clock == EVENT and not self._has_event_time:
            raise FlowError("clock='event': the rows have no event time; write .watermark('column') before .key_by(...)")
        return self._timers, clock

    def _micros(self, at: datetime | timedelta | float | str, clock: str) -> int:
        if isinstance(at, datetime):
            return micros_of(at)
        delay = at // _MICROSECOND if isinstance(at, timedelta) else round((seconds(at) or 0.0) * 1e6)
        micros = (self._time() if clock == EVENT else self._now) + delay
        if abs(micros) >= MOST:
            raise OverflowError(f"a timer {at!r} after {self._time() if clock == EVENT else self._now} microseconds is beyond all times")
        return micros

    def moment(self, micros: int) -> datetime:
        return moment_of(micros, self._zone)


def moment_of(micros: int, zone: str | None) -> datetime:
    """A time as rows have it: without a zone where the column has none.

    >>> moment_of(1_500_000, None)
    datetime.datetime(1970, 1, 1, 0, 0, 1, 500000)
    """
    try:
        found = _EPOCH + timedelta(microseconds=micros)
        return found if zone is None else found.replace(tzinfo=UTC).astimezone(ZoneInfo(zone))
    except OverflowError:
        found = datetime.min if micros < 0 else datetime.max
        return found if zone is None else found.replace(tzinfo=UTC)


def micros_of(at: datetime) -> int:
    """Microseconds since 1970; a moment without a zone is UTC."""
    plain = at if at.tzinfo is None else at.astimezone(UTC).replace(tzinfo=None)
    return (plain - _EPOCH) // _MICROSECOND

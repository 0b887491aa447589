"""The clock that a test moves."""

from __future__ import annotations

from datetime import UTC, datetime

from meander.clock import FakeClock, SystemClock
from meander.errors import ConfigError
from meander.settings import seconds

START = "2026-01-01T00:00:00"


class Clock(FakeClock):
    """A clock that only the test moves. Decisions take their time from it: timers fire by it, and
    idle inputs and rows from the future are recognised by it.

    >>> from meander import testing
    >>> clock = testing.Clock("2026-03-01T10:00:00")
    >>> clock.advance("10m")
    >>> clock.time
    datetime.datetime(2026, 3, 1, 10, 10)
    """

    def __init__(self, start: str | datetime = START) -> None:
        """``start`` is UTC unless it says otherwise."""
        try:
            moment = datetime.fromisoformat(start) if isinstance(start, str) else start
            moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        except (ValueError, AttributeError) as error:
            raise ConfigError(f"clock: {start!r} is no moment; write text such as '2026-03-01T10:00:00', or a datetime") from error
        super().__init__(moment.timestamp())

    @property
    def time(self) -> datetime:
        """The current time: in UTC and without a time zone, like timestamps in rows."""
        return datetime.fromtimestamp(self.now(), UTC).replace(tzinfo=None)

    def advance(self, duration: float | str) -> None:
        """Let time pass, as in ``clock.advance("10m")``; a number is of seconds."""
        passing = seconds(duration)
        if passing is None:
            raise ConfigError("clock.advance(None): a duration is needed, such as '10m'")
        self.sleep(passing)

    def new_id(self) -> str:
        # Two runs on one folder must not give two things the same name.
        return SystemClock().new_id()

    def __repr__(self) -> str:
        return f"<Clock at {self.time.isoformat(sep=' ')}>"

"""The clock that a test moves, and the public names."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import meander as md
from meander import testing


@pytest.mark.parametrize(
    "start",
    [
        "2026-03-01T10:00:00",
        "2026-03-01T12:00:00+02:00",
        datetime(2026, 3, 1, 10),
        datetime(2026, 3, 1, 12, tzinfo=timezone(timedelta(hours=2))),
    ],
)
def test_a_clock_begins_where_it_is_told(start: Any) -> None:
    clock = testing.Clock(start)
    assert clock.now() == datetime(2026, 3, 1, 10, tzinfo=UTC).timestamp()
    clock.advance(1.5)
    clock.advance("1 min")
    assert clock.time == datetime(2026, 3, 1, 10, 1, 1, 500_000)
    assert repr(clock) == "<Clock at 2026-03-01 10:01:01.500000>"


def test_what_is_no_time_is_refused() -> None:
    for start in ("noon", 5, None):
        with pytest.raises(md.ConfigError, match="is no moment"):
            testing.Clock(start)  # type: ignore[arg-type]
    for duration in ("soon", -1, None):
        with pytest.raises(md.ConfigError, match="duration"):
            testing.Clock().advance(duration)  # type: ignore[arg-type]


def test_two_clocks_give_no_name_twice() -> None:
    assert len({testing.Clock().new_id() for _ in range(100)}) == 100


def test_every_public_name_is_there_and_says_what_it_is() -> None:
    assert testing.__all__ == ["Clock", "LocalRun", "check", "run", "source"]
    assert all(getattr(testing, name).__doc__ for name in testing.__all__)
    methods = {name for name in vars(testing.LocalRun) if not name.startswith("_")}
    assert all(getattr(testing.LocalRun, name).__doc__ for name in methods)

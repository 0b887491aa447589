"""Gaps, percentiles, phases and recovery, from epochs whose numbers can be worked out by hand."""

from __future__ import annotations

import pytest

from meander.bench.harness.latency import (
    AFTERMATH,
    Change,
    Published,
    describe_change,
    disturbed_for,
    is_calm,
    latency_numbers,
    longest_gap,
)


def steady(begin: int, end: int, late: float = 0.0) -> list[Published]:
    """An epoch per second, of the ten events created in the second before it."""
    return [Published(float(t), 10, t - 1 - late, t - 0.1 - late) for t in range(begin, end)]


def test_latency_is_that_of_events_and_not_of_epochs() -> None:
    many, few = Published(10.0, 99, 9.9, 9.9), Published(20.0, 1, 15.0, 15.0)
    assert latency_numbers([many, few]) == {"p50": 0.1, "p99": 0.1, "max": 5.0}
    assert latency_numbers([]) == {"p50": 0.0, "p99": 0.0, "max": 0.0}


def test_events_of_an_epoch_are_spread_between_its_first_and_its_last() -> None:
    assert latency_numbers([Published(11.0, 11, 0.0, 10.0)]) == {"p50": 6.0, "p99": 11.0, "max": 11.0}


def test_a_gap_counts_where_it_ends() -> None:
    epochs = [*steady(1, 5), *steady(9, 12)]
    assert longest_gap(epochs, 1.0, 6.0) == 1.0
    assert longest_gap(epochs, 6.0, 10.0) == 5.0
    assert longest_gap(epochs, 9.5, 12.0) == 1.0
    assert longest_gap(epochs[:1], 0.0, 99.0) == 0.0


def test_a_single_late_epoch_is_a_short_disturbance_and_a_stretch_is_one_however_it_flickers() -> None:
    one = [*steady(1, 10), *steady(10, 11, late=3.0), *steady(11, 20)]
    assert disturbed_for(one, 5.0, 15.0, 1.0) == 1.0
    flickering = [*steady(1, 10), *steady(10, 12, late=3.0), *steady(12, 14), *steady(14, 15, late=3.0), *steady(15, 20)]
    assert disturbed_for(flickering, 5.0, 15.0, 1.0) == 5.0
    assert disturbed_for(flickering, 15.5, 20.0, 1.0) == 0.0
    assert disturbed_for(flickering, 12.0, 20.0, 1.0) == 2.0, "of one that was there before, what is left of it"
    assert disturbed_for([*steady(1, 10), *steady(10, 20, late=3.0)], 5.0, 15.0, 1.0) == 10.0, "one that does not end in sight"


def test_a_stream_is_calm_when_its_newest_epochs_are() -> None:
    assert is_calm(steady(1, 9), 1.0)
    assert not is_calm(steady(1, 3), 1.0), "too few to tell"
    assert not is_calm([*steady(1, 9), *steady(9, 10, late=1.0)], 1.0)


def test_a_rescale_is_described_by_what_came_before_during_and_after() -> None:
    # Asked for at 10, no output until 14, caught up from 15 on.
    epochs = [*steady(1, 11), Published(14.0, 30, 10.0, 13.9), *steady(15, 30)]
    numbers = describe_change(epochs, Change(10.5, 12.0), (1.0, 10.5), 30.0)
    assert numbers["gap_seconds"] == {"before": 1.0, "during": 4.0, "after": 1.0}
    assert numbers["latency_seconds"]["before"] == {"p50": 0.5, "p99": 1.0, "max": 1.0}
    assert numbers["latency_seconds"]["during"]["max"] == 4.0
    assert numbers["latency_seconds"]["after"]["max"] == pytest.approx(1.0)
    assert numbers["back_at_steady_seconds"] == 4.0
    assert numbers["in_force_seconds"] == 1.5
    assert Change(10.5, 12.0).over == 12.0 + AFTERMATH

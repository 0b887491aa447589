"""From the ends of epochs to the reported numbers."""

from __future__ import annotations

import pytest

from meander.bench.harness.statistics import epoch_times, intervals, median_parts, over_rounds


def test_what_is_measured_is_a_window_between_the_warm_up_and_the_last_epoch() -> None:
    ends = [100.0, 110.0, 111.0, 113.0, 114.0, 114.1]
    assert intervals(ends, warmup=2, measured=3) == [1.0, 2.0, 1.0]


def test_too_few_epochs_are_an_error_and_not_a_shorter_measurement() -> None:
    with pytest.raises(ValueError, match="3 epochs are not enough for 2 of warm-up and 2 measured"):
        intervals([1.0, 2.0, 3.0], warmup=2, measured=2)


def test_epoch_times_show_the_unusual_epoch() -> None:
    found = epoch_times([0.1] * 38 + [0.2, 0.5])
    assert found == {"epoch_seconds": 0.1, "epoch_seconds_p95": 0.1, "epoch_seconds_max": 0.5, "max_over_median": 5.0}


def test_a_part_that_most_epochs_do_not_have_has_a_median_of_nothing() -> None:
    assert median_parts([{"run": 10.0}, {"run": 12.0}, {"run": 11.0, "snapshot": 30.0}]) == {"run": 11.0, "snapshot": 0.0}


def test_numbers_are_medians_over_rounds_also_within_groups() -> None:
    rounds = [
        {"events_per_second": speed, "wall_ms": {"run": run}, "memory": None, "epochs_ms": [speed]}
        for speed, run in ((10, 1.0), (30, 3.0), (20, 2.0))
    ]
    assert over_rounds(rounds) == {"events_per_second": 20, "wall_ms": {"run": 2.0}, "memory": None, "epochs_ms": [10]}

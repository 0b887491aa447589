"""How time is cut into windows and panes, against the definitions."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meander as md
from meander.errors import FlowError
from meander.plan.windows import Cumulating, Session, Window, micros, show_duration

SECOND = 1_000_000


@st.composite
def windows(draw: st.DrawFn) -> Window:
    step = draw(st.sampled_from([250_000, SECOND, 3 * SECOND, 60 * SECOND]))
    size = step * draw(st.integers(1, 12))
    return Window(size, step, draw(st.integers(0, step - 1)))


moments = st.integers(-200 * SECOND, 200 * SECOND)


def all_windows(window: Window, moment: int) -> list[int]:
    """Where the windows that hold a moment begin: those of the grid, tried one by one."""
    last = (moment - window.offset) // window.step * window.step + window.offset
    return [start for start in range(last, last - 2 * window.size, -window.step) if start <= moment < start + window.size]


@given(windows(), moments)
def test_a_moment_is_in_size_by_step_windows_and_the_last_begins_last(window: Window, moment: int) -> None:
    starts = all_windows(window, moment)
    assert len(starts) == window.per_pane
    assert int(window.last_start(np.array([moment]))[0]) == max(starts)


@given(windows(), moments)
def test_every_moment_of_a_pane_is_in_the_same_windows(window: Window, moment: int) -> None:
    pane = int(window.pane_of(np.array([moment]))[0])
    assert pane <= moment < pane + window.pane
    assert all_windows(window, pane) == all_windows(window, moment) == all_windows(window, pane + window.pane - 1)


@given(windows(), moments, moments)
def test_a_pane_is_over_when_its_last_window_has_ended(window: Window, moment: int, mark: int) -> None:
    pane = int(window.pane_of(np.array([moment]))[0])
    ends = [start + window.size for start in all_windows(window, pane)]
    assert (pane <= window.over(mark)) == (max(ends) <= mark)


@given(windows(), moments, moments, st.integers(0, 60 * SECOND))
def test_the_panes_of_all_windows_that_end_in_a_stretch_of_time_are_due_in_it(window: Window, moment: int, late: int, more: int) -> None:
    pane = int(window.pane_of(np.array([moment]))[0])
    due = window.due(late, late + more)
    ends = [start + window.size for start in all_windows(window, pane)]
    if any(late < end <= late + more for end in ends):
        assert due is not None
        assert due[0] < pane <= due[1]
    if due is not None:
        last = window.last_end(late + more)
        assert late < last <= late + more, "a window ends there"
        assert due[1] == last - window.pane


@st.composite
def cumulating(draw: st.DrawFn) -> Cumulating:
    step = draw(st.sampled_from([250_000, SECOND, 3 * SECOND, 60 * SECOND]))
    size = step * draw(st.integers(1, 12))
    return Cumulating(size, step, draw(st.integers(0, size - 1)))


def ends_of(window: Cumulating, moment: int) -> list[int]:
    """Where the windows end that have a moment: those of all steps of its day, tried one by one."""
    begin = next(b for b in range(window.offset - 5000 * window.size, 1 << 62, window.size) if b <= moment < b + window.size)
    return [end for end in range(begin + window.step, begin + window.size + 1, window.step) if end > moment]


@given(cumulating(), moments)
def test_a_moment_is_in_all_windows_of_its_day_that_end_after_it(window: Cumulating, moment: int) -> None:
    pane, last = int(window.pane_of(np.array([moment]))[0]), int(window.last_start(np.array([moment]))[0])
    named = [last - back * window.step for back in range(window.per_pane)]
    assert sorted(name + window.size for name in named if name + window.size > pane) == ends_of(window, moment)
    assert ends_of(window, pane) == ends_of(window, moment) == ends_of(window, pane + window.pane - 1)
    begins = pl.DataFrame({"named": [end - window.size for end in ends_of(window, moment)]}).select(window.begins(pl.col("named")))
    assert set(begins.to_series()) == {ends_of(window, moment)[-1] - window.size}


@given(cumulating(), moments, moments, st.integers(0, 60 * SECOND))
def test_panes_of_a_day_are_over_with_it_and_due_with_each_of_its_windows(window: Cumulating, moment: int, late: int, more: int) -> None:
    pane, ends = int(window.pane_of(np.array([moment]))[0]), ends_of(window, moment)
    assert (pane <= window.over(late)) == (max(ends) <= late)
    due = window.due(late, late + more)
    assert (due is not None and due[0] < pane <= due[1]) == any(late < end <= late + more for end in ends)


def test_an_offset_can_be_negative_and_is_what_it_is_the_other_way_round() -> None:
    assert md.tumbling("1d", offset="-8h") == md.tumbling("1d", offset="16h") == md.tumbling("1d", offset=-8 * 3_600)
    assert md.sliding("10s", "5s", offset=" -1.5s") == md.sliding("10s", "5s", offset="3.5s")
    assert md.tumbling("10s", offset="-0s") == md.tumbling("10s")
    noon = 12 * 3_600 * SECOND
    assert md.tumbling("1d", offset="-8h").pane_of(np.array([noon]))[0] == -8 * 3_600 * SECOND, "eight in the evening there"


def test_durations_are_read_and_shown() -> None:
    assert [micros(text, "x") for text in ("10s", "500ms", "1h", 0.25)] == [10 * SECOND, 500_000, 3_600 * SECOND, 250_000]
    assert [show_duration(length) for length in (90 * SECOND, 86_400 * SECOND, 250)] == ["90s", "1d", "0.25ms"]


def test_windows_say_what_they_are() -> None:
    assert md.tumbling("10s").describe() == "tumbling(10s)"
    assert md.sliding("1m", "10s").describe() == "sliding(1m, 10s)"
    assert md.session("30s").describe() == "session(30s)"
    assert md.session("30s", time="processing") == Session(30 * SECOND, "processing")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: md.tumbling("ten"), "not a duration"),
        (lambda: md.tumbling(0), "too short"),
        (lambda: md.session(-1), "not a duration"),
        (lambda: md.session("-1s"), "not a duration"),
        (lambda: md.tumbling("-10s"), "not a duration"),
        (lambda: md.tumbling("10s", offset="--1s"), "not a duration"),
        (lambda: md.tumbling("10s", offset="-soon"), "not a duration"),
        (lambda: md.sliding("10s", "3s"), "multiple of the step"),
        (lambda: md.sliding("10s", "5s", time="now"), "'event'"),
        (lambda: md.cumulating("1h", step="25m"), "multiple of the step"),
        (lambda: md.cumulating("1h", step="2h"), "multiple of the step"),
        (lambda: md.cumulating("1h", step="0s"), "too short"),
    ],
)
def test_a_window_that_makes_no_sense_is_refused(make: object, says: str) -> None:
    with pytest.raises(FlowError, match=says):
        make()  # type: ignore[operator]

"""Pairs of rows against two loops: also where key and time do not fit into one number."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meander.task.operators.joins.pairing import have_partner, last_before, pair_up

FAR = 1 << 61
times = st.integers(-20, 20) | st.sampled_from([-FAR, FAR, FAR - 3])
side = st.lists(st.tuples(st.integers(-1, 4), times), max_size=12)
bounds = st.tuples(st.integers(-9, 9), st.integers(-9, 9)).map(lambda pair: (min(pair), max(pair)))


def columns(rows: list[tuple[int, int]], shift: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Keys below zero are null: they are different on both sides."""
    return np.array([k if k >= 0 else k - shift for k, _ in rows], np.int64), np.array([t for _, t in rows], np.int64)


@given(side, side, bounds)
def test_pairs_are_those_of_two_loops(left: list[tuple[int, int]], right: list[tuple[int, int]], bound: tuple[int, int]) -> None:
    low, high = bound
    mine, other = pair_up(*columns(left), *columns(right, 1), low, high)
    expected = [(i, j) for i, (k, t) in enumerate(left) for j, (q, u) in enumerate(right) if k == q and k >= 0 and t + low <= u <= t + high]
    assert sorted(zip(mine.tolist(), other.tolist(), strict=True)) == expected


@given(side, side)
def test_the_last_before_is_that_of_two_loops(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    found = last_before(*columns(left), *columns(right, 1))
    for (k, t), at in zip(left, found.tolist(), strict=True):
        candidates = [(u, j) for j, (q, u) in enumerate(right) if k == q and k >= 0 and u <= t]
        assert at == (max(candidates)[1] if candidates else -1)


def test_keys_that_the_other_side_lacks_meet_nothing_however_many_they_are() -> None:
    """One row of 1970 beside one of today, and 50,000 keys: the last of them times that span do not fit into 64 bits."""
    today = 1_790_000_000_000_000
    keys, others, moments = np.arange(50_000), np.array([0, 0]), np.array([0, today])
    times = np.zeros(len(keys), np.int64)
    assert [found.tolist() for found in pair_up(keys, times, others, moments, 0, today)] == [[0, 0], [0, 1]]
    assert np.flatnonzero(have_partner(keys, times, others, moments, 0, today)).tolist() == [0]
    assert np.flatnonzero(last_before(keys, times, others, moments) >= 0).tolist() == [0]

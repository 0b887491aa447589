"""Finds the pairs of two sides' rows: equal keys, times within bounds. Works on columns; the cost
follows the rows and their pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from meander.plan.windows import Times
from meander.state.grouping import Index, group_rows
from meander.state.hashing import Hashes

Numbers = npt.NDArray[np.int64]
Bound = int | Times
_FAR = 1 << 61


@dataclass(frozen=True)
class Keys:
    """The different keys of rows of two sides, ascending by hash."""

    frame: pl.DataFrame
    """Under the names of the left side."""
    hashes: Hashes
    of: tuple[Numbers, Numbers]
    """For every row of each side, the number of its key; negative, and different on both sides, where a part of the key is null."""


def number_keys(left: pl.DataFrame, left_hashes: Hashes, right: pl.DataFrame, right_hashes: Hashes, nulls_equal: bool = False) -> Keys:
    """Number the keys of both sides. A key that is null, or has a part that is, equals no other, unless ``nulls_equal``."""
    both = pl.concat([left, right.rename(dict(zip(right.columns, left.columns, strict=True)))])
    groups = group_rows(both, np.concatenate([left_hashes, right_hashes]))
    numbers = np.empty(both.height, np.int64)
    numbers[groups.order] = groups.ids().to_numpy()
    nulls = np.zeros(both.height, np.bool_)
    for column in both.get_columns():
        if column.null_count() and not nulls_equal:
            nulls |= column.is_null().to_numpy()
    first, second = numbers[: left.height], numbers[left.height :]
    if nulls.any():
        first[nulls[: left.height]] = -1
        second[nulls[left.height :]] = -2
    return Keys(both[groups.heads], groups.hashes, (first, second))


class Line:
    """Rows in the order of key and time, as one ascending number each, so that a stretch of a key's time is found by two searches."""

    def __init__(self, keys: Numbers, times: Times) -> None:
        self._first = int(times.min()) if len(times) else 0
        self._size = (int(times.max()) if len(times) else 0) - self._first + 2
        self._moments: Times | None = None
        self._beyond = int(keys.max(initial=0)) + 1
        """In the place of every larger key: none of its rows are here, and its own number may be more than 64 bits hold."""
        if self._size * (self._beyond + 1) >= _FAR:  # key and time do not fit into one number: take ranks in place of times
            self._moments = np.unique(times)
            self._size = len(self._moments) + 1
        numbers = keys * self._size + self._rank(times, "left")
        self.order = np.argsort(numbers, kind="stable")
        self._numbers = numbers[self.order]

    def find(self, keys: Numbers, times: Times, side: Literal["left", "right"]) -> Index:
        """Where in the order the first row stands that has this key and at least this time, or (on the right) a larger one."""
        return np.searchsorted(self._numbers, np.minimum(keys, self._beyond) * self._size + self._rank(times, side))

    def _rank(self, times: Times, side: Literal["left", "right"]) -> Times:
        if self._moments is not None:
            return np.searchsorted(self._moments, times, side)
        return np.clip(times - (self._first if side == "left" else self._first - 1), 0, self._size - 1)


def pair_up(keys: Numbers, times: Times, other_keys: Numbers, other_times: Times, low: Bound, high: Bound) -> tuple[Index, Index]:
    """All pairs of rows with equal keys where the other's time is in [time + low, time + high]: where each is. Rows can have bounds each.

    >>> pair_up(np.array([0, 1]), np.array([10, 10]), np.array([1, 0, 0]), np.array([10, 12, 13]), 0, 2)
    (array([0, 1]), array([1, 0]))
    """
    line = Line(other_keys, other_times)
    first = line.find(keys, times + low, "left")
    counts = line.find(keys, times + high, "right") - first
    mine = np.repeat(np.arange(len(keys)), counts)
    return mine, line.order[np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(len(mine))]


def have_partner(keys: Numbers, times: Times, other_keys: Numbers, other_times: Times, low: Bound, high: Bound) -> npt.NDArray[np.bool_]:
    """A mask of the rows for which ``pair_up`` would find a partner.

    >>> have_partner(np.array([0, 1, 0]), np.array([10, 10, 14]), np.array([1, 0, 0]), np.array([13, 12, 13]), 0, 2)
    array([ True, False, False])
    """
    line = Line(other_keys, other_times)
    return line.find(keys, times + high, "right") > line.find(keys, times + low, "left")


def stretches(keys: Numbers, times: Times, low: int, high: int) -> tuple[Numbers, Times, Times]:
    """The stretches of time in which partners of rows can be, [time + low, time + high]: keys, and
    first and last times.

    A key appears once for each of its stretches that do not meet; keys ascend.

    >>> [list(map(int, column)) for column in stretches(np.array([0, 1, 0, 0]), np.array([5, 7, 90, 8]), -1, 2)]
    [[0, 0, 1], [4, 89, 6], [10, 92, 9]]
    """
    order = np.lexsort((times, keys))
    keys, times = keys[order], times[order]
    begins = np.append(True, (keys[1:] != keys[:-1]) | (times[1:] - times[:-1] > high - low))[: len(keys)]
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(keys)) - 1
    return keys[starts], times[starts] + low, times[ends[: len(starts)]] + high


def last_before(keys: Numbers, times: Times, other_keys: Numbers, other_times: Times) -> Index:
    """For every row, the last row of the other side (of equals, the last as given) with an equal key and no larger time; -1 for none.

    >>> last_before(np.array([0, 0, 1]), np.array([9, 12, 99]), np.array([0, 0]), np.array([10, 11]))
    array([-1,  1, -1])
    """
    line = Line(other_keys, other_times)
    at = line.find(keys, times, "right") - 1
    found = np.full(len(keys), -1, np.intp)
    if len(line.order):
        there = (at >= 0) & (other_keys[line.order[at]] == keys) & (keys >= 0)
        found[there] = line.order[at[there]]
    return found


def distinct(numbers: Numbers | Index, below: int) -> Index:
    """The different ones of some numbers from 0 on, ascending."""
    seen = np.zeros(below, np.bool_)
    seen[numbers] = True
    return np.flatnonzero(seen)


def times_of(frame: pl.DataFrame, column: str, shift: int) -> Times:
    """Times in microseconds, kept where sums with them are safe. A time that is null is before all others, and so late."""
    values = frame.get_column(column)
    if values.dtype == pl.Datetime("ms"):  # in microseconds some of them have no number
        values = values.to_physical().clip(-_FAR // 1000, _FAR // 1000) * 1000
    else:
        values = values.dt.epoch("us")
    found: Times = values.fill_null(-_FAR).to_numpy()
    return np.clip(found, -_FAR, _FAR) + shift


def row_of(frame: pl.DataFrame, rows: Index) -> pl.DataFrame:
    """Some rows; one of nulls for -1."""
    return (
        frame[rows]
        if len(rows) == 0 or int(rows.min()) >= 0
        else pl.concat([frame, frame.clear(1)])[np.where(rows < 0, frame.height, rows)]
    )


def numbered(hashes: Hashes, epoch: int) -> Numbers:
    """When each row came, as one number: its epoch, and its place among the rows of its hash in it. Hashes ascend; rows are in their order.

    >>> [divmod(int(n), 1 << 32) for n in numbered(np.array([5, 5, 8], np.uint64), 7)]
    [(7, 0), (7, 1), (7, 0)]
    """
    rows = np.arange(len(hashes), dtype=np.int64)
    starts = np.concatenate([[True], hashes[1:] != hashes[:-1]]) if len(hashes) else np.zeros(0, np.bool_)
    return (epoch << 32) + rows - np.maximum.accumulate(np.where(starts, rows, 0))

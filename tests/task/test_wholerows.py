"""Rows that go through an exchange whole have one order on the other side, in whatever order they were sent."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from meander.state.segment import HASH
from meander.task.operators.contract import Partial
from meander.task.operators.wholerows import POSITION, in_order


def a_partial(unit: int, rows: list[tuple[int, int]]) -> Partial:
    hashes, positions = [
        pl.Series(name, [row[at] for row in rows], dtype) for at, name, dtype in ((0, HASH, pl.UInt64), (1, POSITION, pl.Int64))
    ]
    return Partial("op", unit, pl.DataFrame([hashes, pl.Series("unit", [unit] * len(rows)), positions]))


@pytest.mark.parametrize("sent", [[(5, 0), (5, 1), (7, 2)], [(5, 1), (5, 0), (7, 2)]], ids=["by position", "best first"])
def test_rows_of_a_key_come_by_unit_and_position(sent: list[tuple[int, int]]) -> None:
    found = in_order([a_partial(2, sent), a_partial(1, [(5, 0), (6, 1)])])
    assert found is not None
    frame, hashes = found
    assert hashes.tolist() == [5, 5, 5, 6, 7]
    assert list(zip(frame["unit"], frame[POSITION], strict=True)) == [(1, 0), (2, 0), (2, 1), (1, 1), (2, 2)]
    assert hashes.dtype == np.uint64

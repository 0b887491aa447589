"""Which segments an executor keeps open."""

from __future__ import annotations

import numpy as np
import polars as pl

from meander.engine.segments import Opened
from meander.state.segment import HASH, Segment, encode_segment

SEGMENT = Segment("", encode_segment(pl.DataFrame({HASH: np.zeros(0, np.uint64)})))


def test_as_many_as_are_looked_at_in_turn_stay_open_and_what_is_not_looked_at_goes() -> None:
    opened, missed = Opened(unused=1000), []
    for epoch in range(10):
        for number in range(500):  # one that keeps the latest 256 would miss each of them every time
            if opened.get(f"{number}") is None:
                missed.append(epoch)
                opened.put(f"{number}", SEGMENT)
    assert missed == [0] * 500
    for _ in range(4):
        for number in range(400):
            opened.get(f"{number}")
    assert len(opened) == 400, "a segment that was merged takes room on the disk as long as it is open"

"""Looking keys up in the segments of a table."""

from __future__ import annotations

import numpy as np
import polars as pl

from meander.state.segment import HASH, Segment, SegmentRef, encode_segment
from meander.state.table import find_all

ALL = (1 << 128) - 1


def segment(name: str, frame: pl.DataFrame) -> Segment:
    return Segment(name, encode_segment(frame))


def test_a_segment_without_rows_of_the_keys_need_not_have_their_columns() -> None:
    """What a peer says of a segment in which it has found none of the hashes is a segment with no other column than that."""
    segments = {
        "some": segment("some", pl.DataFrame({HASH: np.array([5], np.uint64), "seq": [1], "at": [7]})),
        "none": segment("none", pl.DataFrame({HASH: np.zeros(0, np.uint64)})),
    }
    keys, hashes = pl.DataFrame({"seq": [1, 2]}), np.array([5, 9], np.uint64)
    for names, expected in ((["none"], []), (["some", "none"], [7]), (["none", "some"], [7])):
        refs = [SegmentRef(name, 1, 1, number, ALL) for number, name in enumerate(names)]
        which, stored = find_all(refs, lambda ref, _: segments[ref.name], keys, hashes, 128, ["at"])
        assert which.tolist() == [0] * len(expected)
        assert [at for series in stored.values() for at in series] == expected

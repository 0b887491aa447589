"""Parts of segments: exactly the rows of their key groups, in blocks of no more than a block's size, joined in any order."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from meander.state.hashing import in_groups
from meander.state.parts import Joined, encode_part, pieces_of, runs_of
from meander.state.segment import BLOCK_BYTES, HASH, Segment, encode_segment, rows_of_hashes

_KEY_GROUPS = 16


def a_frame(rows: int, seed: int = 1) -> pl.DataFrame:
    hashes = np.sort(np.random.default_rng(seed).integers(0, 1 << 64, rows, np.uint64))
    text = [None if h % 5 == 0 else f"k{h}" for h in hashes.tolist()]
    return pl.DataFrame({HASH: hashes, "k": pl.Series(text, dtype=pl.String), "gone": (hashes % 3 == 0), "n": range(rows)})


def of_groups(frame: pl.DataFrame, groups: int) -> pl.DataFrame:
    return frame.filter(pl.Series(in_groups(frame[HASH].to_numpy(), groups, _KEY_GROUPS)))


@given(st.integers(0, (1 << _KEY_GROUPS) - 1), st.integers(0, 300), st.sampled_from([7, 64, 1000]))
def test_a_part_has_the_rows_of_its_key_groups(groups: int, rows: int, block_rows: int) -> None:
    frame = a_frame(rows)
    part = Segment("part", encode_part(Segment("whole", encode_segment(frame, block_rows)), groups, _KEY_GROUPS))
    assert part.frame().equals(of_groups(frame, groups))
    assert part.rows == part.frame().height


@given(st.lists(st.integers(0, (1 << _KEY_GROUPS) - 1), min_size=1, max_size=4), st.integers(0, 300))
def test_parts_are_read_as_one_whatever_their_order(lots: list[int], rows: int) -> None:
    frame = a_frame(rows)
    whole = Segment("whole", encode_segment(frame, 50))
    parts, taken = [], 0
    for lot in lots:
        parts.append((lot & ~taken, Segment("part", encode_part(whole, lot, _KEY_GROUPS))))
        taken |= lot
    joined = Joined("joined", parts, _KEY_GROUPS)
    assert joined.frame().equals(of_groups(frame, taken))
    firsts = joined.firsts.tolist()
    assert firsts == sorted(set(firsts))
    wanted = frame[HASH].to_numpy()[::3]
    found = rows_of_hashes(joined, wanted)
    rows = [] if found is None else found.column("n").to_pylist()
    assert rows == of_groups(frame, taken).filter(pl.col(HASH).is_in(wanted.tolist()))["n"].to_list()


def test_wide_rows_come_in_smaller_blocks() -> None:
    frame = a_frame(20_000).with_columns(pl.Series("junk", [f"{at:02000d}" for at in range(20_000)]))
    whole = Segment("whole", encode_segment(frame))
    part = Segment("part", encode_part(whole, 0b1111_0000_1111_0000, _KEY_GROUPS))
    for segment in (whole, part):
        assert max(segment.block(at).batch.nbytes for at in range(len(segment.firsts))) < 1.5 * BLOCK_BYTES


@given(st.integers(0, (1 << 40) - 1), st.integers(1, 9))
def test_pieces_are_lots_of_neighbours_that_add_up(groups: int, count: int) -> None:
    pieces = pieces_of(groups, count)
    assert sum(pieces) == groups
    assert all(a & b == 0 for a in pieces for b in pieces if a is not b)
    assert len(pieces) <= count
    assert sum(((1 << end) - 1) & ~((1 << begin) - 1) for begin, end in runs_of(groups)) == groups

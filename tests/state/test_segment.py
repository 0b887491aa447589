"""Segments: any Arrow reader opens them, blocks are cut between hashes, and what is broken says so."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meander.errors import Corrupted
from meander.state.segment import HASH, Segment, SegmentRef, encode_segment


def frame(hashes: list[int]) -> pl.DataFrame:
    return pl.DataFrame(
        {HASH: pl.Series(sorted(hashes), dtype=pl.UInt64), "key": [f"k{i}" for i in range(len(hashes))], "n": range(len(hashes))}
    )


def test_a_segment_is_readable_with_plain_pyarrow() -> None:
    rows = frame([5, 1, 2**64 - 1])
    table = pa.ipc.open_file(encode_segment(rows, block_rows=2)).read_all()
    assert table.column_names == [HASH, "key", "n"]
    assert table.schema.types == [pa.uint64(), pa.large_string(), pa.int64()]
    assert table.to_pylist() == rows.to_dicts()
    index = json.loads(table.schema.metadata[b"meander"])
    assert index == {"format": 1, "rows": 3, "firsts": ["1", "ffffffffffffffff"]}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 6), max_size=30), st.integers(1, 5))
def test_rows_of_one_hash_never_straddle_two_blocks(hashes: list[int], block_rows: int) -> None:
    rows = frame(hashes)
    segment = Segment("s", encode_segment(rows, block_rows))
    assert segment.frame().equals(rows)
    assert segment.rows == len(hashes)
    blocks = [segment.block(number).hashes.tolist() for number in range(len(segment.firsts))]
    assert sum(len(set(block)) for block in blocks) == len(set(hashes))
    assert [block[0] for block in blocks if block] == (segment.firsts.tolist() if hashes else [])


def test_a_reference_survives_json() -> None:
    ref = SegmentRef("segments/t/x", 3, 100, 7, (1 << 128) - 2)
    assert SegmentRef.from_json(json.loads(json.dumps(ref.to_json()))) == ref
    assert ref.without(0b110).groups == (1 << 128) - 8


@pytest.mark.parametrize("data", [b"", b"not arrow", bytes(encode_segment(frame([1, 2])))[:-20]])
def test_a_broken_segment_is_corruption_and_named(data: bytes) -> None:
    with pytest.raises(Corrupted, match="segment 'segments/t/x' cannot be read"):
        Segment("segments/t/x", pa.py_buffer(data))


def test_a_segment_of_a_newer_format_is_refused() -> None:
    table = frame([1]).to_arrow()
    schema = table.schema.with_metadata({"meander": json.dumps({"format": 2, "rows": 1, "firsts": ["1"]})})
    out = pa.BufferOutputStream()
    with pa.ipc.new_file(out, schema) as writer:
        writer.write_table(table.cast(schema))
    with pytest.raises(Corrupted, match="segment 's' has format 2, and this Meander reads format 1: use a newer Meander"):
        Segment("s", out.getvalue())


def test_hashes_above_the_middle_keep_their_order() -> None:
    rows = frame([2**63, 2**63 - 1, 0])
    assert np.all(np.diff(Segment("s", encode_segment(rows)).block(0).hashes.astype(object)) > 0)


def test_a_filter_never_denies_a_hash_that_is_there_and_denies_most_that_are_not() -> None:
    rng = np.random.default_rng(7)
    top = np.iinfo(np.uint64).max
    hashes = np.sort(np.concatenate([[np.uint64(0), top], rng.integers(0, top, 20_000, np.uint64)]).astype(np.uint64))
    segment = Segment("s", encode_segment(pl.DataFrame({HASH: hashes, "k": np.arange(len(hashes))}), block_rows=3000))
    there = segment.may_have(hashes)
    assert there is not None
    assert there.all()
    others = segment.may_have(np.sort(rng.integers(0, top, 20_000, np.uint64)))
    assert others is not None
    assert others.mean() < 0.05
    few = Segment("s", encode_segment(pl.DataFrame({HASH: hashes[:10], "k": np.arange(10)})))
    assert few.may_have(hashes) is None


def test_a_filter_is_made_when_enough_was_looked_up_to_be_worth_it() -> None:
    hashes = np.arange(10_000, dtype=np.uint64) << np.uint64(50)
    segment = Segment("s", encode_segment(pl.DataFrame({HASH: hashes, "k": np.arange(len(hashes))}), block_rows=3000))
    assert segment.may_have(hashes[:1000]) is None
    there = segment.may_have(hashes[:1000] + np.uint64(1 << 49))
    assert there is not None
    assert not there.any()


def test_a_filter_knows_both_ends_of_every_block() -> None:
    rng = np.random.default_rng(3)
    for rows in (1_000, 1_001, 4_097, 30_000):
        hashes = np.unique(rng.integers(0, np.iinfo(np.uint64).max, rows, np.uint64))
        segment = Segment("s", encode_segment(pl.DataFrame({HASH: hashes, "k": np.arange(len(hashes))}), block_rows=17))
        there = segment.may_have(hashes)
        assert there is None or there.all()


@pytest.mark.parametrize("dtype", [pl.List(pl.Int64), pl.List(pl.String), pl.List(pl.Struct({"a": pl.Int64}))])
def test_lists_that_are_all_empty_can_be_read_again_wherever_they_were_gathered_from(dtype: pl.DataType) -> None:
    full = {"List(Int64)": [1, 2], "List(String)": ["a"]}.get(str(dtype), [{"a": 1}])
    lists = pl.concat([pl.Series("m", [full, [], None], dtype=dtype), pl.Series("m", [full, []], dtype=dtype)])
    for rows in ([1], [1, 4], [4], [2, 4], [0, 4]):
        frame = pl.DataFrame([pl.Series(HASH, range(len(rows)), dtype=pl.UInt64), lists.gather(rows)])
        assert Segment("x", encode_segment(frame)).frame().equals(frame)

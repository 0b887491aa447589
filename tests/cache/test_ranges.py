"""Segments read from a store by byte ranges: a lookup reads the blocks of its keys, and nothing else but the index."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from tests.memory_store import MemoryStore

from meander.cache.ranges import open_by_ranges
from meander.errors import Corrupted
from meander.state.hashing import Hashes, hash_keys
from meander.state.segment import HASH, Segment, SegmentRef, encode_segment
from meander.state.table import find

KEY_GROUPS = 8


class Counted(MemoryStore):
    read = 0

    def get_range(self, name: str, start: int, length: int) -> bytes | None:
        data = super().get_range(name, start, length)
        self.read += len(data or b"")
        return data


def stored(rows: int) -> tuple[Counted, SegmentRef, pl.DataFrame]:
    frame = pl.DataFrame({"k": np.arange(rows), "v": np.arange(rows) * 0.5, "text": ["x" * 40] * rows})
    hashes = hash_keys(frame.select("k"))
    frame = frame.with_columns(pl.Series(HASH, hashes)).select(HASH, "k", "v", "text").sort(HASH)
    data = encode_segment(frame, block_rows=1000)
    store = Counted()
    store.put("s", data)
    return store, SegmentRef("s", rows, data.size, 1, (1 << KEY_GROUPS) - 1), frame


def test_a_lookup_of_few_keys_reads_few_blocks() -> None:
    store, ref, frame = stored(50_000)
    wanted = frame[100:103]
    hashes = wanted.get_column(HASH).to_numpy()

    def open_segment(ref: SegmentRef, _: Hashes) -> Segment:
        return open_by_ranges(store, ref.name, ref.bytes)

    which, columns = find([ref], open_segment, wanted.select("k"), hashes, KEY_GROUPS, ["v"])
    assert which.tolist() == [0, 1, 2]
    assert columns["v"].to_list() == wanted.get_column("v").to_list()
    assert store.read < 0.1 * ref.bytes


def test_all_rows_come_back_by_ranges_as_they_were_written() -> None:
    store, ref, frame = stored(5_000)
    assert open_by_ranges(store, ref.name, ref.bytes).frame().equals(frame)


def test_a_segment_that_is_gone_or_short_is_said_to_be_so() -> None:
    store, ref, _ = stored(5_000)
    store.objects["s"] = store.objects["s"][:1000]
    with pytest.raises(Corrupted, match="is not whole in store"):
        open_by_ranges(store, ref.name, ref.bytes)

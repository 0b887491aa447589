"""Compaction: which runs are merged, and that a merge loses no row at the seams of its pieces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
import pytest
from tests.memory_store import MemoryStore

from meander.clock import FakeClock
from meander.epochs.compaction import finished_merge, merge_entry
from meander.errors import Corrupted
from meander.state import compaction as compaction_module
from meander.state.compaction import FEWEST, MOST, Merge, choose_merge, run_merge
from meander.state.log import Log
from meander.state.manifest import Manifest, Table
from meander.state.segment import DELETED, HASH, Segment, SegmentRef, encode_segment

EVERYTHING = 0b1111


def runs(*sizes: int) -> list[SegmentRef]:
    return [SegmentRef(f"s{i}", rows, rows * 10, i, EVERYTHING) for i, rows in enumerate(sizes)]


def chosen(*sizes: int) -> tuple[list[int], bool] | None:
    merge = choose_merge("t", ("k",), runs(*sizes)[::-1], EVERYTHING)
    return None if merge is None else ([ref.sequence for ref in merge.inputs], merge.bottom)


def test_few_runs_are_left_alone() -> None:
    assert chosen(*[10] * (FEWEST - 1)) is None


def test_runs_of_one_size_are_merged_down_to_the_bottom() -> None:
    assert chosen(*[10] * FEWEST) == ([*range(FEWEST)], True)


def test_small_runs_are_merged_above_a_large_one_which_may_hold_what_they_delete() -> None:
    assert chosen(100_000, *[10] * FEWEST) == ([*range(1, FEWEST + 1)], False)


def test_a_fresh_small_run_does_not_stop_older_ones_from_being_merged() -> None:
    assert chosen(*[1000] * FEWEST, 1) == ([*range(FEWEST)], True)


def test_a_merge_takes_a_bounded_number_of_runs_without_a_gap() -> None:
    merge = choose_merge("t", ("k",), runs(*[10] * (MOST + 5)), EVERYTHING)
    assert merge is not None
    sequences = [ref.sequence for ref in merge.inputs]
    assert sequences == list(range(sequences[0], sequences[0] + MOST))
    assert not merge.bottom


def test_a_row_is_rewritten_a_number_of_times_that_grows_with_the_logarithm_of_the_state() -> None:
    alive: list[SegmentRef] = []
    rewritten = longest = 0
    for epoch in range(2_000):
        alive.append(SegmentRef(f"e{epoch}", 10, 100, epoch, EVERYTHING))
        while (merge := choose_merge("t", ("k",), alive, EVERYTHING)) is not None:
            rows = sum(ref.rows for ref in merge.inputs)
            rewritten += rows
            newest = max(ref.sequence for ref in merge.inputs)
            alive = [ref for ref in alive if ref not in merge.inputs] + [SegmentRef(f"m{newest}", rows, rows, newest, EVERYTHING)]
        longest = max(longest, len(alive))
    assert rewritten <= 5 * 20_000
    assert longest <= 25


HOT, COLD = 0b01, 0b10


def after_a_rescale_with_skew(epochs: int) -> Manifest:
    """Two slots, of which one has many rows in every epoch and one has few, became one."""
    segments = []
    for epoch in range(1, epochs + 1):
        segments.append(SegmentRef(f"hot{epoch}", 30, 0, epoch, HOT))
        segments.append(SegmentRef(f"cold{epoch}", 1, 0, epoch, COLD))
    return Manifest(generation=1, position=epochs, epoch=epochs, key_groups=2, tables={"t": Table(("k",), tuple(segments))})


def applied(manifest: Manifest, inputs: Sequence[SegmentRef], groups: int = HOT | COLD) -> Manifest:
    entry = merge_entry([finished_merge(Merge("t", ("k",), tuple(inputs), groups, True), "merged", 1, 0)])
    return manifest.apply({**entry, "generation": 1, "position": manifest.position + 1})


@pytest.mark.parametrize("epochs", range(4, 24))
def test_a_merge_never_ends_between_segments_of_one_sequence(epochs: int) -> None:
    alive = after_a_rescale_with_skew(epochs).tables["t"].segments
    merge = choose_merge("t", ("k",), alive, HOT | COLD)
    assert merge is not None
    taken = {ref.sequence for ref in merge.inputs}
    assert [ref for ref in alive if ref.sequence in taken] == list(merge.inputs)


def test_more_segments_of_one_sequence_than_a_merge_takes_are_merged_at_once() -> None:
    many = 4 * MOST
    alive = [SegmentRef(f"s{epoch}-{slot}", 10, 0, epoch, 1 << slot) for epoch in range(3) for slot in range(many)]
    merge = choose_merge("t", ("k",), alive, (1 << many) - 1)
    assert merge is not None
    assert [ref.sequence for ref in merge.inputs] == [2] * many


def test_a_merge_that_would_stand_beside_a_segment_it_has_not_read_is_corrupted() -> None:
    manifest = after_a_rescale_with_skew(8)
    segments = manifest.tables["t"].segments
    with pytest.raises(Corrupted, match="'cold8'"):
        applied(manifest, segments[:-1])
    assert [ref.name for ref in applied(manifest, segments).tables["t"].segments] == ["merged"]


def test_a_merge_that_would_lift_rows_above_a_newer_segment_is_corrupted() -> None:
    manifest = Manifest(key_groups=2, tables={"t": Table(("k",), tuple(runs(5, 5, 5)))})
    first, between, last = manifest.tables["t"].segments
    with pytest.raises(Corrupted, match=f"'{between.name}'"):
        applied(manifest, [first, last])


def test_a_merge_of_a_segment_that_is_gone_is_corrupted() -> None:
    manifest = after_a_rescale_with_skew(2)
    with pytest.raises(Corrupted, match="'t' does not have: gone"):
        applied(manifest, [SegmentRef("gone", 1, 0, 1, HOT), manifest.tables["t"].segments[0]])


def test_a_merge_that_breaks_the_manifest_is_not_appended() -> None:
    store, clock = MemoryStore(), FakeClock()
    log = Log(store, clock, after_a_rescale_with_skew(8))
    broken = Merge("t", ("k",), log.manifest.tables["t"].segments[:-1], HOT | COLD, True)
    with pytest.raises(Corrupted):
        log.append(merge_entry([finished_merge(broken, "merged", 1, 0)]))
    assert not store.objects


def test_merges_of_slots_as_they_were_and_as_they_are_do_not_claim_each_others_key_groups() -> None:
    """Ordered before a rescale and after it: a merge takes the key groups that it has read, and not all of its slot."""
    table = Table(("k",), (SegmentRef("a", 1, 0, 1, 0b010), SegmentRef("b", 1, 0, 5, 0b001), SegmentRef("c", 1, 0, 5, 0b100)))
    manifest = Manifest(key_groups=4, tables={"t": table})
    a, b, c = table.segments
    merged = applied(applied(manifest, [a, b], 0b011), [c], 0b110)
    assert [(ref.sequence, ref.groups) for ref in merged.tables["t"].segments] == [(5, 0b011), (5, 0b100)]


@pytest.mark.parametrize("pieces", [1, 2, 3, 7])
def test_rows_on_both_sides_of_every_seam_survive(pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seams = [(1 << 64) * i // pieces for i in range(pieces + 1)]
    hashes = sorted({max(0, min(2**64 - 1, seam + d)) for seam in seams for d in (-1, 0, 1)})
    frame = pl.DataFrame({HASH: pl.Series(hashes, dtype=pl.UInt64), "k": range(len(hashes)), "v": [1] * len(hashes)})
    newer = frame[::2].with_columns(pl.lit(2).cast(pl.Int64).alias("v"))
    monkeypatch.setattr(compaction_module, "BLOCK_ROWS", (frame.height + newer.height) // pieces)
    segments = {"s0": encode_segment(frame, 2), "s1": encode_segment(newer, 3)}
    refs = tuple(SegmentRef(name, f.height, 0, i, EVERYTHING) for i, (name, f) in enumerate([("s0", frame), ("s1", newer)]))
    data, rows = run_merge(Merge("t", ("k",), refs, EVERYTHING, True), lambda ref: Segment(ref.name, segments[ref.name]), 4)
    merged = Segment("m", data)
    assert rows == merged.rows == frame.height
    assert merged.frame().rows() == [(h, k, 2 if k % 2 == 0 else 1) for h, k, _ in frame.rows()]
    assert all(np.all(merged.block(i).hashes >= merged.firsts[i]) for i in range(len(merged.firsts)))


def test_a_merge_of_nothing_but_deletions_at_the_bottom_is_no_segment() -> None:
    frame = pl.DataFrame({HASH: pl.Series([1, 2], dtype=pl.UInt64), "k": [1, 2], "v": [None, None], DELETED: [True, True]})
    data = encode_segment(frame)
    merge = Merge("t", ("k",), (SegmentRef("s0", 2, 0, 0, EVERYTHING),), EVERYTHING, True)
    assert run_merge(merge, lambda name: Segment(name, data), 4)[1] == 0

"""Compaction: when to merge segments, and merging them. Pure.

Segments of a slot are runs of an LSM tree. Runs of about the same size are merged once there are a few of them, so that a row is
rewritten a number of times that grows with the logarithm of the state, and a lookup meets few runs. The merged segment takes
over the slot's key groups from its inputs; what it does not take stays with them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from meander.state.hashing import in_groups
from meander.state.segment import BLOCK_BYTES, BLOCK_ROWS, DELETED, HASH, Segment, SegmentRef, encode_blocks
from meander.state.table import merge_segments

FEWEST = 8
"""With filters a run more costs a lookup little, and a row that is rewritten less often costs the machine less."""
MOST = 16
_RATIO = 3.0


@dataclass(frozen=True)
class Merge:
    """A decided compaction: these inputs, for these key groups. ``bottom``: nothing older is alive for them, so deletions can go."""

    table: str
    keys: tuple[str, ...]
    inputs: tuple[SegmentRef, ...]
    groups: int
    bottom: bool


def choose_merge(table: str, keys: tuple[str, ...], alive: Sequence[SegmentRef], groups: int) -> Merge | None:
    """The next merge for one slot's key groups, or None where its runs are few enough.

    Looks for the newest stretch of neighbours of about one size: the cheapest that shortens the list. Segments of one sequence
    are one run, each with key groups of its own: slots that a rescale made one have left several. A stretch never ends between
    them. The merged segment has the sequence of its newest input and all key groups of its inputs, so it would stand beside a
    segment of the same sequence that it did not read, and nothing would say which of their rows is the newer one.
    """
    ordered = sorted(alive, key=lambda s: s.sequence)
    runs = [tuple(run) for _, run in itertools.groupby(ordered, key=lambda s: s.sequence)]
    rows = [sum(segment.rows for segment in run) for run in runs]
    for end in range(len(runs), 0, -1):
        begin, count, total, largest = end - 1, len(runs[end - 1]), rows[end - 1], rows[end - 1]
        while begin > 0 and count < MOST and rows[begin - 1] <= _RATIO * max(largest, total / (end - begin)):
            begin -= 1
            count += len(runs[begin])
            total += rows[begin]
            largest = max(largest, rows[begin])
        if count >= FEWEST:
            return Merge(table, keys, tuple(itertools.chain.from_iterable(runs[begin:end])), groups, begin == 0)
    return None


def run_merge(merge: Merge, open_segment: Callable[[SegmentRef], Segment], key_groups: int) -> tuple[pa.Buffer, int]:
    """The merged segment's bytes and its rows. Works through the hash range piece by piece: memory follows a block, not the state."""
    newest_first = sorted(merge.inputs, key=lambda s: s.sequence, reverse=True)
    opened = [(ref, open_segment(ref)) for ref in newest_first]
    pieces = max(1, sum(ref.rows for ref in merge.inputs) // BLOCK_ROWS, sum(ref.bytes for ref in merge.inputs) // BLOCK_BYTES)
    bounds = [0, *((1 << 64) * i // pieces for i in range(1, pieces)), 1 << 64]
    like = opened[0][1].columns()
    blocks: list[pl.DataFrame] = []
    firsts: list[int] = []
    for begin, end in itertools.pairwise(bounds):
        frames = [f for ref, segment in opened if (f := _range(segment, ref.groups & merge.groups, begin, end, key_groups)) is not None]
        if not frames:
            continue
        merged = merge_segments(frames, merge.keys, drop_deleted=merge.bottom, like=like)
        if merged.height:
            blocks.append(merged)
            firsts.append(begin)
    if not blocks:
        return pa.py_buffer(b""), 0
    if any(DELETED in block.columns for block in blocks):
        blocks = [b if DELETED in b.columns else b.with_columns(pl.lit(False).alias(DELETED)) for b in blocks]
    return encode_blocks(blocks, firsts), sum(b.height for b in blocks)


def _range(segment: Segment, groups: int, begin: int, end: int, key_groups: int) -> pl.DataFrame | None:
    """A segment's rows with a hash in [begin, end) and a key group among ``groups``."""
    frames = []
    for number in range(len(segment.firsts)):
        after = int(segment.firsts[number + 1]) if number + 1 < len(segment.firsts) else 1 << 64
        if after <= begin or int(segment.firsts[number]) >= end:
            continue
        block = segment.block(number)
        a = int(np.searchsorted(block.hashes, np.uint64(begin), "left"))
        b = len(block.hashes) if end == 1 << 64 else int(np.searchsorted(block.hashes, np.uint64(end), "left"))
        if a < b:
            frames.append(block.frame[a:b])
    if not frames:
        return None
    frame = pl.concat(frames)
    if groups != (1 << key_groups) - 1:
        mask = in_groups(frame.get_column(HASH).to_numpy(), groups, key_groups)
        if not mask.all():
            frame = frame.filter(pl.Series(mask))
    return frame if frame.height else None

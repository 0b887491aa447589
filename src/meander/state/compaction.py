"""Compaction: when to merge segments, and merging them. Pure.

Segments of a slot are runs of an LSM tree. Runs of about the same size are merged once there are a
few of them, so that a row is rewritten a number of times that grows with the logarithm of the
state, and a lookup meets few runs. The merged segment takes over the slot's key groups from its
inputs; the inputs keep their other key groups.

If rows end, the size of a run is that of its rows that are alive, and a merge leaves out rows that
are over. A single run is rewritten without them when most of its rows are over and the rest lasts.
So the stored bytes stay within a few times of the living ones, also if one row ends long after all
others. Merged segments have chapters by the time at which rows end, like all segments: most
segments end as a whole, and are removed without being rewritten.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from meander.state.hashing import in_groups
from meander.state.segment import (
    BLOCK_BYTES,
    BLOCK_ROWS,
    CHAPTER_ROWS,
    DELETED,
    HASH,
    LATEST,
    MOST_CHAPTERS,
    SOONEST,
    Segment,
    SegmentRef,
    Times,
    chapter_of,
    encode_blocks,
)
from meander.state.table import merge_segments

FEWEST = 8
"""With filters a run more costs a lookup little, and a row that is rewritten less often costs the machine less."""
MOST = 16
_RATIO = 3.0
_WORTH_REWRITING = 4 * CHAPTER_ROWS
"""Runs with fewer rows are not rewritten when their rows are over."""
_SAMPLE = 65_536


@dataclass(frozen=True)
class Merge:
    """A decided compaction: these inputs, for these key groups. ``bottom``: nothing older is alive for them, so deletions can go."""

    table: str
    keys: tuple[str, ...]
    inputs: tuple[SegmentRef, ...]
    groups: int
    bottom: bool
    time: str | None = None
    """The column that says when rows end, where they do."""
    floor: int = SOONEST
    """Rows that end here or before are left out: no reader can see them any more."""


def choose_merge(
    table: str, keys: tuple[str, ...], alive: Sequence[SegmentRef], groups: int, time: str | None = None, floor: int = SOONEST
) -> Merge | None:
    """The next merge for one slot's key groups, or None where its runs are few enough.

    Looks for the newest stretch of neighbours of about one size: the cheapest that shortens the list. Segments of one sequence
    are one run, each with key groups of its own: slots that a rescale made one have left several. A stretch never ends between
    them. The merged segment has the sequence of its newest input and all key groups of its inputs, so it would stand beside a
    segment of the same sequence that it did not read, and nothing would say which of their rows is the newer one.
    """
    ordered = sorted(alive, key=lambda s: s.sequence)
    runs = [tuple(run) for _, run in itertools.groupby(ordered, key=lambda s: s.sequence)]
    rows = [sum(segment.alive_rows(floor) for segment in run) for run in runs]
    for end in range(len(runs), 0, -1):
        begin, count, total, largest = end - 1, len(runs[end - 1]), rows[end - 1], rows[end - 1]
        while begin > 0 and count < MOST and rows[begin - 1] <= _RATIO * max(largest, total / (end - begin)):
            begin -= 1
            count += len(runs[begin])
            total += rows[begin]
            largest = max(largest, rows[begin])
        if count >= FEWEST:
            return Merge(table, keys, tuple(itertools.chain.from_iterable(runs[begin:end])), groups, begin == 0, time, floor)
    for number, (run, left) in enumerate(zip(runs, rows, strict=True)):
        whole = sum(segment.rows for segment in run)
        rest, since = max(segment.last_end for segment in run) - floor, floor - min(segment.first_end for segment in run)
        if whole >= _WORTH_REWRITING and 2 * left <= whole and rest >= 2 * since:  # otherwise the rest is over soon as well
            return Merge(table, keys, run, groups, number == 0, time, floor)
    return None


@dataclass(frozen=True)
class _Stretch:
    """Rows that end in (above, upto], with a hash in [begin, end)."""

    begin: int = 0
    end: int = 1 << 64
    above: int = SOONEST
    upto: int = LATEST


def run_merge(merge: Merge, open_segment: Callable[[SegmentRef], Segment], key_groups: int) -> tuple[pa.Buffer, int]:
    """The merged segment's bytes and its rows.

    Works through the hash range piece by piece, chapter by chapter where rows end: memory follows a block, not the state.
    """
    newest_first = sorted(merge.inputs, key=lambda s: s.sequence, reverse=True)
    opened = [(ref, open_segment(ref)) for ref in newest_first]
    like = opened[0][1].columns()
    blocks: list[pl.DataFrame] = []
    firsts: list[int] = []
    chapters: list[list[int]] = []
    edges = _edges([segment for _, segment in opened], merge.time, merge.floor) if merge.time is not None else [SOONEST, LATEST]
    parts = len(edges) - 1
    pieces = max(
        1, sum(ref.rows for ref in merge.inputs) // (parts * BLOCK_ROWS), sum(ref.bytes for ref in merge.inputs) // (parts * BLOCK_BYTES)
    )
    bounds = [0, *((1 << 64) * i // pieces for i in range(1, pieces)), 1 << 64]
    for above, upto in itertools.pairwise(edges):
        mine: list[pl.DataFrame] = []
        for begin, end in itertools.pairwise(bounds):
            stretch = _Stretch(begin, end, above, upto)
            taken = [_range(segment, ref.groups & merge.groups, stretch, merge.time, key_groups) for ref, segment in opened]
            frames = [frame for frame in taken if frame is not None]
            merged = merge_segments(frames, merge.keys, drop_deleted=merge.bottom, like=like) if frames else None
            if merged is not None and merged.height:
                mine.append(merged)
                firsts.append(begin)
        if mine and merge.time is not None:
            times = pl.concat([block.select(merge.time) for block in mine])
            chapters.append(chapter_of(times, merge.time, len(mine)))
        blocks += mine
    if not blocks:
        return pa.py_buffer(b""), 0
    if any(DELETED in block.columns for block in blocks):
        blocks = [b if DELETED in b.columns else b.with_columns(pl.lit(False).alias(DELETED)) for b in blocks]
    return encode_blocks(blocks, firsts, chapters), sum(b.height for b in blocks)


def _edges(segments: Sequence[Segment], time: str, floor: int) -> list[int]:
    """Times that cut the rows of some segments above ``floor`` into chapters of about equal size, by a sample of them."""
    every = max(1, sum(segment.rows for segment in segments) // _SAMPLE)
    found = [_times(segment, number, time)[::every] for segment in segments for number in range(len(segment.firsts))]
    times = np.concatenate([some[some > floor] for some in found]) if found else np.zeros(0, np.int64)
    count = min(MOST_CHAPTERS, len(times) * every // CHAPTER_ROWS)
    if count < 2:
        return [floor, LATEST]
    at = np.arange(1, count) * len(times) // count
    return [floor, *np.unique(np.partition(times, at)[at]).tolist(), LATEST]


def _times(segment: Segment, number: int, time: str) -> Times:
    times = segment.block(number).array(time)
    assert times is not None, f"column '{time}' says when rows end, and has nulls"
    return times


def _range(segment: Segment, groups: int, stretch: _Stretch, time: str | None, key_groups: int) -> pl.DataFrame | None:
    """A segment's rows of a stretch, with a key group among ``groups``. Later chapters first: of several rows of a key the newest."""
    frames = []
    for chapter in reversed(segment.chapters):
        if chapter.last <= stretch.above or chapter.first > stretch.upto:
            continue
        for number, (first, beyond) in zip(chapter.numbers, chapter.spans(), strict=True):
            if beyond <= stretch.begin or first >= stretch.end:
                continue
            block = segment.block(number)
            a = int(np.searchsorted(block.hashes, np.uint64(stretch.begin), "left"))
            b = len(block.hashes) if stretch.end == 1 << 64 else int(np.searchsorted(block.hashes, np.uint64(stretch.end), "left"))
            if a < b:
                frames.append(block.frame[a:b])
    if not frames:
        return None
    frame = pl.concat(frames)
    if time is not None:
        frame = frame.filter(pl.col(time).is_between(stretch.above, stretch.upto, closed="right"))
    if groups != (1 << key_groups) - 1:
        mask = in_groups(frame.get_column(HASH).to_numpy(), groups, key_groups)
        if not mask.all():
            frame = frame.filter(pl.Series(mask))
    return frame if frame.height else None

"""Reading and merging one slot's part of an upsert table: the work of a stateful operator in one epoch.

The state of a key is its newest row in the segments that are alive for its key group. A task looks the
touched keys up, newest segment first, merges, and writes one new segment: what it costs follows the keys it
touches, not the keys there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from meander.aggregates import Part
from meander.state.grouping import Index, keys_equal, merge_pairs
from meander.state.hashing import Hashes, key_groups_of
from meander.state.segment import DELETED, HASH, Segment, SegmentRef

Open = Callable[[str], Segment]


def find(
    refs: Sequence[SegmentRef], open_segment: Open, keys: pl.DataFrame, hashes: Hashes, key_groups: int, columns: Sequence[str]
) -> tuple[Index, pl.DataFrame | None]:
    """The stored rows of the given keys (ascending by hash): which keys have one, and ``columns`` of it."""
    pending = np.arange(len(hashes))
    found: list[Index] = []
    frames: list[pl.DataFrame] = []
    groups: npt.NDArray[np.int64] | None = None
    everything = (1 << key_groups) - 1
    for ref in sorted(refs, key=lambda r: r.sequence, reverse=True):
        if len(pending) == 0:
            break
        wanted = pending
        if ref.groups != everything:
            if groups is None:
                groups = key_groups_of(hashes, key_groups)
            alive = np.array([bool(ref.groups >> g & 1) for g in range(key_groups)])
            wanted = pending[alive[groups[pending]]]
        taken: list[Index] = []
        segment = open_segment(ref.name)
        bounds = np.append(np.searchsorted(hashes[wanted], segment.firsts[1:], "left"), len(wanted))
        begin = 0
        for number in range(len(segment.firsts)):
            part, begin = wanted[begin : bounds[number]], int(bounds[number])
            if len(part) == 0:
                continue
            block = segment.block(number)
            hits, rows = _probe(block.hashes, block.frame, keys, hashes, part)
            if len(hits) == 0:
                continue
            taken.append(hits)
            if DELETED in block.frame.columns:
                kept = ~block.frame.get_column(DELETED).to_numpy()[rows]
                hits, rows = hits[kept], rows[kept]
            found.append(hits)
            frames.append(block.frame.select(columns)[rows])
        if taken:
            gone = np.zeros(len(hashes), np.bool_)
            gone[np.concatenate(taken)] = True
            pending = pending[~gone[pending]]
    if not frames:
        return np.zeros(0, np.intp), None
    return np.concatenate(found), pl.concat(frames)


def _probe(stored: Hashes, block: pl.DataFrame, keys: pl.DataFrame, hashes: Hashes, wanted: Index) -> tuple[Index, Index]:
    """Which of the wanted keys are in a block, and in which row."""
    at = np.searchsorted(stored, hashes[wanted])
    inside = at < len(stored)
    candidates, rows = wanted[inside], at[inside]
    same = stored[rows] == hashes[candidates]
    candidates, rows = candidates[same], rows[same]
    hits, places = [], []
    names = keys.columns
    stored_keys = block.select(names)
    while len(candidates):
        equal = keys_equal(keys, candidates, stored_keys, rows)
        hits.append(candidates[equal])
        places.append(rows[equal])
        candidates, rows = candidates[~equal], rows[~equal] + 1  # another key of the same hash: look at the next row
        going_on = rows < len(stored)
        candidates, rows = candidates[going_on], rows[going_on]
        same = stored[rows] == hashes[candidates]
        candidates, rows = candidates[same], rows[same]
    if not hits:
        return np.zeros(0, np.intp), np.zeros(0, np.intp)
    return np.concatenate(hits), np.concatenate(places)


def upsert(
    refs: Sequence[SegmentRef],
    open_segment: Open,
    keys: pl.DataFrame,
    hashes: Hashes,
    states: Mapping[str, pl.Series],
    parts: Mapping[str, Part],
    key_groups: int,
) -> pl.DataFrame:
    """Merge one new state per key (ascending by hash) with what is stored: the rows of the new segment, hash first."""
    new = pl.DataFrame(list(states.values()))
    which, old = find(refs, open_segment, keys, hashes, key_groups, list(parts))
    if old is not None and len(which):
        merged = merge_pairs(old, new[which], parts)
        new = _replace_rows(new, which, merged)
    return pl.DataFrame([pl.Series(HASH, hashes), *keys.get_columns(), *new.get_columns()])


def _replace_rows(frame: pl.DataFrame, rows: Index, by: pl.DataFrame) -> pl.DataFrame:
    if len(rows) == len(frame):
        back = np.empty(len(rows), np.intp)
        back[rows] = np.arange(len(rows))
        return by[back]
    source = np.arange(len(frame))
    source[rows] = len(frame) + np.arange(len(rows))
    return pl.concat([frame, by])[source]


def merge_segments(frames: Sequence[pl.DataFrame], keys: Sequence[str], drop_deleted: bool) -> pl.DataFrame:
    """Several segments' rows, newest first, to one: the newest row of every key. Compaction's work, and a reader's."""
    from meander.state.grouping import group_rows

    columns = list(dict.fromkeys(name for frame in frames for name in frame.columns))
    if DELETED in columns:
        frames = [f if DELETED in f.columns else f.with_columns(pl.lit(False).alias(DELETED)) for f in frames]
    stacked = pl.concat([f.select(columns) for f in frames])
    groups = group_rows(stacked.select(keys), stacked.get_column(HASH).to_numpy())
    merged = stacked[groups.heads]
    if DELETED in columns and drop_deleted:
        merged = merged.filter(~pl.col(DELETED)).drop(DELETED)
    return merged

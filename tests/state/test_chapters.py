"""State by time against plain Python: chapters hold all rows, lookups see what is in reach, merges lose nothing that is not over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.entries import epoch_entry
from tests.memory_store import MemoryStore

from meander.epochs.compaction import finished_merge, merge_entry, still_holds
from meander.errors import Corrupted
from meander.state import compaction as compaction_module
from meander.state import segment as segment_module
from meander.state.compaction import Merge, choose_merge, run_merge
from meander.state.hashing import Hashes, in_groups
from meander.state.manifest import Json, Manifest, Table, kept_floor
from meander.state.parts import Joined, encode_part
from meander.state.reading import merge_rows
from meander.state.segment import (
    DELETED,
    HASH,
    MOST_CHAPTERS,
    SOONEST,
    Segment,
    SegmentRef,
    cut_by_time,
    encode_batch,
    encode_segment,
    ends_of,
    rows_of_hashes,
    without_rows,
)
from meander.state.table import Reach, find, find_all, find_rows

KEY_GROUPS = 4
EVERYTHING = (1 << KEY_GROUPS) - 1
LIMITS = settings(max_examples=60, deadline=None)
Stored = dict[tuple[int, int], int | None]
"""What an epoch writes of (key, end): a value, or None where it is deleted."""


@contextmanager
def small(rows: int = 3) -> Iterator[None]:
    """Chapters of a few rows, and merges of two runs."""
    with (
        mock.patch.object(segment_module, "CHAPTER_ROWS", rows),
        mock.patch.object(compaction_module, "CHAPTER_ROWS", rows),
        mock.patch.object(compaction_module, "FEWEST", 2),
        mock.patch.object(compaction_module, "_WORTH_REWRITING", 4),
    ):
        yield


def hash_of(key: int) -> int:
    """Keys 0 and 5, 1 and 6, … share a hash."""
    return (key % 5) * ((1 << 64) // 5) + 11


def frame_of(rows: Mapping[tuple[int, int], int | None]) -> pl.DataFrame:
    found = [(hash_of(k), k, at, 0 if v is None else v, v is None) for (k, at), v in rows.items()]
    schema = {HASH: pl.UInt64(), "k": pl.Int64(), "at": pl.Int64(), "v": pl.Int64(), DELETED: pl.Boolean()}
    frame = pl.DataFrame(found, schema, orient="row").sort(HASH, "k", "at")
    return frame if frame.get_column(DELETED).any() else frame.drop(DELETED)


def stored(name: str, rows: Mapping[tuple[int, int], int | None], sequence: int, block_rows: int = 2) -> tuple[SegmentRef, pa.Buffer]:
    data = encode_segment(frame_of(rows), block_rows, "at")
    return SegmentRef(name, len(rows), data.size, sequence, EVERYTHING, ends_of(data)), data


def as_joined(segment: Segment, hashes: Hashes) -> Segment:
    """As it is read after a rescale: pieces from several owners."""
    pieces = [(groups, Segment("piece", encode_part(segment, groups, KEY_GROUPS))) for groups in (0b1010, 0b0101)]
    return Joined(segment.name, pieces, KEY_GROUPS)


def as_answer(segment: Segment, hashes: Hashes) -> Segment:
    """As a peer answers for it: the rows that were asked for, and no chapters."""
    rows = rows_of_hashes(segment, hashes)
    return Segment(segment.name, encode_batch(without_rows(segment.schema) if rows is None else rows))


WAYS: list[Callable[[Segment, Hashes], Segment]] = [lambda segment, hashes: segment, as_joined, as_answer]
keys = st.integers(0, 9)
ends = st.integers(1, 30)
added = st.dictionaries(st.tuples(keys, ends), st.integers(0, 99), min_size=1, max_size=25)
changed = st.dictionaries(st.tuples(keys, ends), st.none() | st.integers(0, 99), min_size=1, max_size=25)


# -- segments ---------------------------------------------------------------------------------------------------------


@LIMITS
@given(added, st.integers(1, 4), st.integers(1, 6))
def test_a_segment_in_chapters_has_all_rows_each_among_those_that_end_with_it(rows: Stored, block_rows: int, chapter_rows: int) -> None:
    with small(chapter_rows):
        frame = frame_of(rows)
        segment = Segment("s", encode_segment(frame, block_rows, "at"))
        parts = cut_by_time(frame, "at")
    assert sorted(segment.frame().rows()) == sorted(frame.rows())
    assert segment.rows == sum(chapter.rows for chapter in segment.chapters) == frame.height
    assert len(parts) == len(segment.chapters) <= min(MOST_CHAPTERS, max(1, frame.height // chapter_rows))
    before = SOONEST
    for part, chapter in zip(parts, segment.chapters, strict=True):
        found = pl.concat([segment.block(number).frame for number in chapter.numbers])
        assert found.equals(part)
        assert found.get_column(HASH).is_sorted()
        assert (found.get_column("at").min(), found.get_column("at").max()) == (chapter.first, chapter.last)
        assert chapter.first > before
        before = chapter.last


@LIMITS
@given(added, st.integers(0, 31), st.integers(0, 31), st.sampled_from(WAYS[:2]))
def test_the_rows_that_end_in_a_stretch_are_found_wherever_it_begins(rows: Stored, above: int, upto: int, way: Any) -> None:
    with small():
        segment = way(Segment("s", encode_segment(frame_of(rows), 2, "at")), np.zeros(0, np.uint64))
    found = segment.ending("at", above, upto)
    assert sorted(found.select("k", "at").rows()) == sorted(key for key in rows if above < key[1] <= upto)


@LIMITS
@given(added, st.integers(0, 31))
def test_a_reference_never_counts_fewer_rows_than_are_left(rows: Stored, floor: int) -> None:
    with small():
        ref, _ = stored("s", rows, 1)
    times = [at for _, at in rows]
    assert (ref.first_end, ref.last_end) == (min(times), max(times))
    assert list(ref.ends) == sorted(ref.ends)
    left = sum(at > floor for at in times)
    assert left <= ref.alive_rows(floor) <= len(rows)
    assert (ref.alive_rows(floor) == 0) == (left == 0)
    assert SegmentRef.from_json(ref.to_json()) == ref


def test_a_reference_knows_about_how_many_rows_are_left() -> None:
    rows: Stored = {(key, end): 0 for key in range(10) for end in range(100)}
    with small(10):
        ref, _ = stored("s", rows, 1)
    assert all(0 <= ref.alive_rows(floor) - 10 * (99 - floor) <= 260 for floor in range(100))


@LIMITS
@given(added, st.sets(st.integers(0, 4)))
def test_the_rows_of_some_hashes_ascend_and_are_complete(rows: Stored, wanted: set[int]) -> None:
    with small():
        segment = Segment("s", encode_segment(frame_of(rows), 2, "at"))
    hashes = np.array(sorted(hash_of(key) for key in wanted), np.uint64)
    found = rows_of_hashes(segment, hashes)
    got = [] if found is None else list(zip(*(found.column(name).to_pylist() for name in (HASH, "k", "at")), strict=True))
    assert [row[0] for row in got] == sorted(row[0] for row in got)
    assert sorted(row[1:] for row in got) == sorted(key for key in rows if key[0] % 5 in wanted)


@LIMITS
@given(added, st.lists(st.integers(0, EVERYTHING), min_size=1, max_size=3))
def test_parts_of_a_segment_in_chapters_are_in_its_chapters(rows: Stored, lots: list[int]) -> None:
    with small():
        segment = Segment("s", encode_segment(frame_of(rows), 2, "at"))
    bounds = [(chapter.first, chapter.last) for chapter in segment.chapters]
    parts, taken = [], 0
    for lot in lots:
        part = Segment("part", encode_part(segment, lot & ~taken, KEY_GROUPS))
        if part.rows:
            assert [(chapter.first, chapter.last) for chapter in part.chapters] == [
                bound for bound in bounds if bound in {(chapter.first, chapter.last) for chapter in part.chapters}
            ]
        parts.append((lot & ~taken, part))
        taken |= lot
    joined = Joined("joined", parts, KEY_GROUPS)
    hashes = segment.frame().get_column(HASH).to_numpy()
    expected = segment.frame().filter(pl.Series(in_groups(hashes, taken, KEY_GROUPS)))
    assert joined.frame().rows() == expected.rows()
    for chapter in joined.chapters:
        for number in chapter.numbers:
            assert all(chapter.first <= at <= chapter.last for at in joined.block(number).frame.get_column("at"))


# -- lookups ----------------------------------------------------------------------------------------------------------


class Several:
    """A table of several segments, and the same in plain Python."""

    def __init__(self, epochs: Sequence[Stored], floors: Sequence[int], way: Callable[[Segment, Hashes], Segment]) -> None:
        self.rows: dict[tuple[int, int], int] = {}
        self.refs: list[SegmentRef] = []
        data: dict[str, pa.Buffer] = {}
        self.floor = SOONEST
        for number, (epoch, floor) in enumerate(zip(epochs, floors, strict=True)):
            rows = {key: value for key, value in epoch.items() if key[1] > self.floor}
            if rows:
                ref, data[f"s{number}"] = stored(f"s{number}", rows, number)
                self.refs.append(ref)
            for key, value in rows.items():
                self.rows.pop(key, None) if value is None else self.rows.update({key: value})
            self.floor = max(self.floor, floor)
        self.rows = {key: value for key, value in self.rows.items() if key[1] > self.floor}
        self.open = lambda ref, hashes: way(Segment(ref.name, data[ref.name]), hashes)


def asked(pairs: Sequence[tuple[int, ...]], *names: str) -> tuple[list[tuple[int, ...]], pl.DataFrame, Hashes]:
    """Keys in the order in which they are looked up."""
    ordered = sorted(pairs, key=lambda pair: (hash_of(pair[0]), pair))
    frame = pl.DataFrame([pair[: len(names)] for pair in ordered], {name: pl.Int64() for name in names}, orient="row")
    return ordered, frame, np.array([hash_of(pair[0]) for pair in ordered], np.uint64)


floors = st.lists(st.integers(0, 20), min_size=4, max_size=4)


@LIMITS
@given(st.lists(changed, min_size=4, max_size=4), floors, st.sets(st.tuples(keys, ends), min_size=1, max_size=12), st.sampled_from(WAYS))
def test_the_newest_row_of_a_key_is_found_unless_it_is_deleted_or_over(epochs: Any, floors: Any, wanted: Any, way: Any) -> None:
    with small():
        table = Several(epochs, floors, way)
        pairs, frame, hashes = asked(sorted(wanted), "k", "at")
        times = frame.get_column("at").to_numpy()
        for first, last in ((times, times), (None, None), (times, None)):
            reach = Reach("at", table.floor, first, last)
            which, found = find(table.refs, table.open, frame, hashes, KEY_GROUPS, ("v",), reach)
            got = {pairs[at]: value for at, value in zip(which.tolist(), found["v"].to_list() if found else [], strict=True)}
            assert len(which) == len(got)
            assert got == {key: table.rows[key] for key in pairs if key in table.rows}


stretches = st.lists(st.tuples(keys, st.integers(0, 30), st.integers(0, 8)), min_size=1, max_size=8)


@LIMITS
@given(st.lists(changed, min_size=4, max_size=4), floors, stretches, st.sampled_from(WAYS))
def test_the_rows_of_a_key_are_found_within_its_stretch(epochs: Any, floors: Any, wanted: Any, way: Any) -> None:
    with small():
        table = Several(epochs, floors, way)
        pairs, frame, hashes = asked([*{key: (key, first, first + length) for key, first, length in wanted}.values()], "k")
        reach = Reach("at", table.floor, *(np.array([pair[n] for pair in pairs]) for n in (1, 2)))
        which, rows = find_rows(table.refs, table.open, frame, hashes, KEY_GROUPS, ("at",), ("v",), reach)
    got = [(pairs[owner][0], *row) for owner, row in zip(which.tolist(), rows.rows(), strict=True)]
    assert got == [(k, at, table.rows[k, at]) for k, first, last in pairs for at in range(first, last + 1) if (k, at) in table.rows]


@LIMITS
@given(st.lists(added, min_size=4, max_size=4), floors, stretches, st.sampled_from(WAYS))
def test_a_key_with_several_stretches_gets_every_row_once(epochs: Any, floors: Any, wanted: Any, way: Any) -> None:
    apart = [{(k, at): 100 * number + v for (k, at), v in epoch.items()} for number, epoch in enumerate(epochs)]
    with small():
        table = Several(apart, floors, way)
        taken: dict[int, int] = {}
        disjoint = []
        for key, first, length in sorted(wanted):
            if first > taken.get(key, -1):
                disjoint.append((key, first, first + length))
                taken[key] = first + length
        pairs, frame, hashes = asked(disjoint, "k")
        reach = Reach("at", table.floor, *(np.array([pair[n] for pair in pairs]) for n in (1, 2)))
        which, found = find_all(table.refs, table.open, frame, hashes, KEY_GROUPS, ("at", "v"), reach)
    got = sorted(
        (pairs[owner], at, v)
        for owner, at, v in zip(which.tolist(), *(found[n].to_list() if found else [] for n in ("at", "v")), strict=True)
    )
    expected = []
    floor = SOONEST
    for epoch, after in zip(apart, floors, strict=True):
        expected += [
            (pair, at, v) for (k, at), v in epoch.items() if at > floor for pair in pairs if pair[0] == k and pair[1] <= at <= pair[2]
        ]
        floor = max(floor, after)
    assert got == sorted(row for row in expected if row[1] > floor)


@pytest.mark.many
@LIMITS
@given(st.lists(st.dictionaries(keys, st.integers(1, 9), min_size=1), min_size=2, max_size=6), st.integers(0, 12), st.sampled_from(WAYS))
def test_where_rows_of_a_key_only_move_on_the_last_of_them_counts(epochs: list[dict[int, int]], floor: int, way: Any) -> None:
    """Also behind merges: in one segment the rows of a key can lie in two chapters, as those of guards do."""
    until: dict[int, int] = {}
    data: dict[str, pa.Buffer] = {}
    refs: list[SegmentRef] = []
    with small():
        for number, epoch in enumerate(epochs):
            until.update({key: until.get(key, 0) + step for key, step in epoch.items()})
            ref, data[f"s{number}"] = stored(f"s{number}", {(key, until[key]): number for key in epoch}, number)
            refs.append(ref)
            if number % 2:
                merge = Merge("t", ("k",), tuple(refs), EVERYTHING, True, "at")
                data[f"m{number}"], rows = run_merge(merge, lambda ref: Segment(ref.name, data[ref.name]), KEY_GROUPS)
                merged = data[f"m{number}"]
                refs = [SegmentRef(f"m{number}", rows, merged.size, number, EVERYTHING, ends_of(merged))]
        pairs, frame, hashes = asked([(key,) for key in range(10)], "k")
        open_segment = lambda ref, hashes: way(Segment(ref.name, data[ref.name]), hashes)  # noqa: E731
        which, found = find(refs, open_segment, frame, hashes, KEY_GROUPS, ("at",), Reach("at", floor))
        shown = merge_rows(MemoryStore(), Table(("k",), tuple(refs), "at", floor), data, KEY_GROUPS)
    got: dict[int, int] = {}
    for at, end in zip(which.tolist(), found["at"].to_list() if found else [], strict=True):
        got[pairs[at][0]] = max(end, got.get(pairs[at][0], 0))
    left = {key: end for key, end in until.items() if end > floor}
    assert got == left
    assert dict(shown.select("k", "at").rows() if shown.width else []) == left


# -- merges and floors ------------------------------------------------------------------------------------------------


class Kept:
    """A manifest with one table, and the segments that it names."""

    def __init__(self) -> None:
        self.manifest = Manifest(generation=1, position=0, key_groups=KEY_GROUPS)
        self.data: dict[str, pa.Buffer] = {}
        self.number = 0

    @property
    def table(self) -> Table:
        return self.manifest.tables["t"]

    def epoch(self, rows: Stored, floor: int | None, plan: Json | None = None, drop: bool = False) -> None:
        number = self.manifest.epoch + 1
        segments = []
        if rows:
            ref, self.data[f"e{number}"] = stored(f"e{number}", rows, number)
            segments = [ref.to_json()]
        tables = {"t": {"keys": ["k", "at"], "time": "at", "segments": segments}} if segments else {}
        floors = {} if floor is None else {"t": floor}
        self._append(epoch_entry(number, plan=plan or {}, tables=tables, floors=floors, drops=["t"] if drop else []))

    def merged(self, merge: Merge) -> Json:
        self.number += 1
        name = f"segments/t/0-{self.manifest.epoch}-merge{self.number}"
        self.data[name], rows = run_merge(merge, lambda ref: Segment(ref.name, self.data[ref.name]), KEY_GROUPS)
        if rows:
            assert min(Segment(name, self.data[name]).frame().get_column("at")) > merge.floor
        return finished_merge(merge, name, rows, self.data[name].size, ends_of(self.data[name]))

    def due(self, groups: int = EVERYTHING) -> Merge | None:
        table = self.table
        floor = kept_floor("t", table.floor, self.manifest.plan)
        return choose_merge("t", table.keys, table.alive_for(groups), groups, table.time, floor)

    def apply(self, merge: Json) -> None:
        self._append(merge_entry([merge]))

    def _append(self, entry: Json) -> None:
        self.manifest = self.manifest.apply({**entry, "generation": 1, "position": self.manifest.position + 1})

    def rows(self) -> dict[tuple[int, int], int]:
        found = merge_rows(MemoryStore(), self.table, self.data, KEY_GROUPS)
        return {(k, at): v for k, at, v in found.select("k", "at", "v").rows()} if found.width else {}


@pytest.mark.many
@LIMITS
@given(st.data())
def test_merges_beside_epochs_lose_nothing_and_keep_nothing_that_is_over(data: st.DataObject) -> None:
    """A merge may be chosen before an epoch and be done after it, when some of what it has read is over."""
    kept, model, floor = Kept(), dict[tuple[int, int], int](), 0
    waiting: Json | None = None
    with small():
        for _ in range(data.draw(st.integers(1, 8))):
            rows = {key: value for key, value in data.draw(changed).items() if key[1] > floor}
            for key, value in rows.items():
                model.pop(key, None) if value is None else model.update({key: value})
            floor = max(floor, data.draw(st.integers(0, 31)))
            kept.epoch(rows, floor)
            if "t" not in kept.manifest.tables:
                continue
            assert all(ref.last_end > floor for ref in kept.table.segments if ref.groups), "also what a late merge had brought"
            model = {key: value for key, value in model.items() if key[1] > floor}
            if waiting is not None and still_holds(waiting, kept.manifest):
                kept.apply(waiting)
            waiting = None
            assert kept.rows() == model
            groups = data.draw(st.sampled_from([EVERYTHING, 0b0011, 0b1100]))
            if (merge := kept.due(groups)) is not None:
                done = kept.merged(merge)
                if data.draw(st.booleans()):
                    waiting = done
                else:
                    kept.apply(done)
                    assert kept.rows() == model


def test_one_row_that_lasts_does_not_keep_the_others() -> None:
    with small(10):
        kept = Kept()
        kept.epoch({(key, 10 * end + 1): 0 for key in range(10) for end in range(20)} | {(3, 1_000_000): 7}, 0)
        kept.epoch({}, 160)
        assert kept.table.segments[0].alive_rows(160) >= 41
        merge = kept.due()
        assert merge is not None
        kept.apply(kept.merged(merge))
        assert [ref.rows for ref in kept.table.segments] == [41]
        assert kept.due() is None
        kept.epoch({}, 200)
        merge = kept.due()
        assert merge is not None
        kept.apply(kept.merged(merge))
        assert [(ref.rows, ref.ends) for ref in kept.table.segments] == [(1, (1_000_000,) * 5)]
        assert kept.due() is None


@pytest.mark.parametrize(("span", "share"), [(4, 0.0), (100, 0.6), (1000, 0.0)])
def test_a_stream_in_order_is_not_rewritten_to_save_what_is_over_soon(span: int, share: float) -> None:
    """Rows of an epoch end at a steady pace within ``span`` epochs. Runs of such rows are merged as others are, and go by themselves.

    Most rows of a run that was merged of old and new ones end soon, and the others much later: it is rewritten, for less than was written.
    """
    times: dict[str, Any] = {}
    alive: list[SegmentRef] = []
    written = rewritten = saved = 0

    def segment(name: str, sequence: int, ends: Any) -> SegmentRef:
        times[name] = np.sort(ends)
        quarters = [int(times[name][len(ends) * part // 4 - 1]) for part in (1, 2, 3, 4)]
        return SegmentRef(name, 100 * len(ends), 0, sequence, EVERYTHING, (int(times[name][0]), *quarters))

    for epoch in range(600):
        floor = 100 * epoch + 37
        alive = [ref for ref in alive if ref.last_end > floor]
        alive.append(segment(f"e{epoch}", epoch, floor + 1 + np.arange(200) * span // 2))
        written += 200
        while (merge := choose_merge("t", ("k",), alive, EVERYTHING, "at", floor)) is not None:
            ends = np.concatenate([times[ref.name] for ref in merge.inputs])
            ends = ends[ends > floor]
            rewritten += len(ends)
            saved += len(ends) if len(merge.inputs) == 1 else 0
            newest = merge.inputs[-1].sequence
            alive = [*(ref for ref in alive if ref not in merge.inputs), segment(f"m{newest}-{epoch}", newest, ends)]
        assert len(alive) <= 40
        assert sum(ref.rows for ref in alive) <= 3 * sum(ref.alive_rows(floor) for ref in alive)
    assert saved <= share * written
    assert rewritten <= 3 * written


def test_a_segment_goes_when_all_of_it_is_over_and_the_smallest_stays_for_its_columns() -> None:
    kept = Kept()
    kept.epoch({(1, 10): 1, (2, 20): 2}, 5)
    kept.epoch({(3, 30): 3}, 15)
    assert [ref.name for ref in kept.table.segments] == ["e1", "e2"]
    assert kept.rows() == {(2, 20): 2, (3, 30): 3}
    kept.epoch({}, 20)
    assert [ref.name for ref in kept.table.segments] == ["e2"]
    kept.epoch({}, 30)
    assert [(ref.name, ref.groups) for ref in kept.table.segments] == [("e2", 0)]
    assert kept.table.rows == 0
    assert kept.rows() == {}
    kept.epoch({(4, 40): 4}, None)
    assert [ref.name for ref in kept.table.segments] == ["e5"]
    assert kept.table.floor == 30


def test_a_flush_empties_a_table_and_sets_its_floor_back() -> None:
    kept = Kept()
    kept.epoch({(1, 10): 1}, 5)
    kept.epoch({(2, 20): 2}, None, drop=True)
    assert (kept.table.floor, [ref.groups for ref in kept.table.segments]) == (SOONEST, [0])
    kept.epoch({(3, 3): 3}, None)
    assert kept.rows() == {(3, 3): 3}


def test_what_a_plan_before_one_on_probation_needs_stays() -> None:
    oldest: Json = {"unproven": None}
    older: Json = {"unproven": {"floors": {"t": 12}, "plan": {}}}
    plan: Json = {"unproven": {"floors": {"t": 25, "other": 1}, "plan": older}}
    assert kept_floor("t", 40, oldest) == 40
    assert kept_floor("t", 40, older) == 12
    assert kept_floor("t", 40, plan) == 12
    assert kept_floor("other", 40, plan) == 1
    assert kept_floor("t", 7, plan) == 7
    kept = Kept()
    for at in (10, 20, 30):
        kept.epoch({(1, at): at}, None)
    kept.epoch({}, 40, plan)
    assert [ref.last_end for ref in kept.table.segments if ref.groups] == [20, 30]
    assert kept.rows() == {}
    with small():
        merge = kept.due()
    assert merge is not None
    assert merge.floor == 12
    kept.apply(kept.merged(merge))
    assert [ref.ends[0] for ref in kept.table.segments] == [20]
    kept.epoch({}, None, {"unproven": {"floors": {"t": 25}, "plan": {}}})
    assert [ref.last_end for ref in kept.table.segments if ref.groups] == [30]
    kept.epoch({}, None)
    assert kept.table.rows == 0


def test_a_merge_still_counts_when_some_of_what_it_has_read_is_over() -> None:
    kept = Kept()
    kept.epoch({(1, 10): 1}, 5)
    kept.epoch({(2, 20): 2}, None)
    kept.epoch({(3, 30): 3}, None)
    done = kept.merged(Merge("t", ("k", "at"), kept.table.segments, EVERYTHING, True, "at", kept.table.floor))
    kept.epoch({(4, 40): 4}, 10)
    assert still_holds(done, kept.manifest)
    kept.apply(done)
    assert [ref.sequence for ref in kept.table.segments] == [3, 4]
    assert kept.rows() == {(2, 20): 2, (3, 30): 3, (4, 40): 4}


def test_a_merge_of_which_nothing_is_left_does_not_count() -> None:
    kept = Kept()
    kept.epoch({(1, 10): 1}, 5)
    kept.epoch({(2, 11): 2}, None)
    done = kept.merged(Merge("t", ("k", "at"), kept.table.segments, EVERYTHING, True, "at", kept.table.floor))
    kept.epoch({}, 11)
    assert not still_holds(done, kept.manifest)
    kept.epoch({(4, 40): 4}, None)
    assert not still_holds(done, kept.manifest)


def test_a_merge_whose_input_went_otherwise_than_by_its_end_is_corrupted() -> None:
    kept = Kept()
    kept.epoch({(1, 10): 1}, 5)
    kept.epoch({(2, 20): 2}, None)
    first, second = kept.table.segments
    done = kept.merged(Merge("t", ("k", "at"), (first, second), EVERYTHING, True, "at", 5))
    alone = kept.merged(Merge("t", ("k", "at"), (first,), EVERYTHING, True, "at", 5))
    kept.apply(alone)
    assert not still_holds(done, kept.manifest)
    with pytest.raises(Corrupted, match="'t' does not have: e1"):
        kept.apply(done)

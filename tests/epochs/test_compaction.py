"""The driver's own helper process: merges of many operators at once, and a helper that dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl
import pytest
from tests.local import Local

import meander as md
from meander.clock import FakeClock, SystemClock
from meander.coordinate.routing import spread
from meander.epochs.compaction import AT_ONCE, ProcessCompactor, due_merges, finished_merge, merge_entry
from meander.state.compaction import run_merge
from meander.state.log import Taken
from meander.state.manifest import Json, Manifest, Table
from meander.state.segment import HASH, Segment, SegmentRef, encode_segment, ends_of
from meander.state.stores.contract import DirStore

KEY_GROUPS = 8
NAMES = [f"t{number:02d}" for number in range(12)]
ROUTING = {name: spread(KEY_GROUPS, 1) for name in NAMES}


def written(store: DirStore) -> Manifest:
    """Eight segments of every operator, each with another key."""
    tables = {}
    for name in NAMES:
        refs = []
        for number in range(8):
            frame = pl.DataFrame({HASH: pl.Series([number << 40], dtype=pl.UInt64), "k": [number], "n": [1]})
            data = encode_segment(frame)
            store.put(f"segments/{name}/{number}.arrow", data)
            refs.append(SegmentRef(f"segments/{name}/{number}.arrow", 1, data.size, number, (1 << KEY_GROUPS) - 1))
        tables[name] = Table(("k",), tuple(refs))
    return Manifest(key_groups=KEY_GROUPS, position=0, generation=1, tables=tables, routing=ROUTING)


def collected(compactor: ProcessCompactor, wanted: int) -> list[Json]:
    found: list[Json] = []
    clock = SystemClock()
    deadline = clock.monotonic() + 30
    while len(found) < wanted and compactor.busy and clock.monotonic() < deadline:
        entry = compactor.collect()
        if entry is None:
            clock.sleep(0.01)
        else:
            found.append(entry)
    return found


def test_the_helper_merges_for_all_operators_between_two_epochs(tmp_path: Path) -> None:
    store = DirStore(tmp_path / "store")
    manifest = written(store)
    compactor = ProcessCompactor(store.url, FakeClock(), 1, KEY_GROUPS)
    try:
        for _ in range(2):
            compactor.consider(manifest, ROUTING, dict.fromkeys(NAMES, 1))
        entries = collected(compactor, len(NAMES))
        assert not compactor.busy, "no merge was begun twice"
    finally:
        compactor.close()
    assert len(NAMES) <= AT_ONCE
    assert sorted(entry["table"] for entry in entries) == NAMES
    one_by_one = manifest
    for position, entry in enumerate(entries, 1):  # as stores have it that were made before merges shared an entry
        one_by_one = one_by_one.apply({**entry, "kind": "compaction", "position": position, "generation": 1})
    manifest = manifest.apply({**merge_entry(entries), "position": len(entries), "generation": 1})
    assert manifest == one_by_one
    for name in NAMES:
        (merged,) = manifest.tables[name].segments
        data = store.map(merged.name)
        assert data is not None
        assert Segment(merged.name, data).rows == 8


def test_the_helper_gives_way_to_the_epochs_and_does_not_hear_the_terminal(tmp_path: Path) -> None:
    store = DirStore(tmp_path / "store")
    compactor = ProcessCompactor(store.url, FakeClock(), 1, KEY_GROUPS)
    try:
        compactor.consider(written(store), ROUTING, dict.fromkeys(NAMES, 1))
        assert collected(compactor, 1), "it is at work"
        process = compactor._process
        assert process is not None
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10)
        assert os.getsid(process.pid) == os.getsid(0), "among other sessions its priority would not count"
        assert os.getpgid(process.pid) != os.getpgid(0)
    finally:
        compactor.close()


def test_a_helper_that_dies_costs_its_merges_and_they_are_done_by_another(tmp_path: Path) -> None:
    store = DirStore(tmp_path / "store")
    manifest = written(store)
    compactor = ProcessCompactor(store.url, FakeClock(), 1, KEY_GROUPS)
    try:
        compactor.consider(manifest, ROUTING, dict.fromkeys(NAMES, 1))
        process = compactor._process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        before = collected(compactor, len(NAMES))
        assert not compactor.busy, "what it had not answered is under way no longer"
        manifest = manifest.apply({**merge_entry(before), "position": 1, "generation": 1})
        compactor.consider(manifest, ROUTING, dict.fromkeys(NAMES, 1))
        after = collected(compactor, len(NAMES))
    finally:
        compactor.close()
    assert sorted(entry["table"] for entry in [*before, *after]) == NAMES


class Merged:
    """Has merged whatever it is given, and says so when it is asked."""

    busy = False

    def __init__(self) -> None:
        self.finished: list[Json] = []

    def consider(self, *given: object) -> None: ...

    def collect(self) -> Json | None:
        return self.finished.pop(0) if self.finished else None

    def close(self) -> None: ...


def merged(local: Local, suffix: str) -> list[Json]:
    """All merges that are due, done."""
    manifest, found = local.manifest, []
    for merge, _, _ in due_merges(manifest, local.loop.routing, dict.fromkeys(local.loop.routing, local.parallelism)):
        data, rows = run_merge(merge, lambda ref: Segment(ref.name, local.store.map(ref.name)), local.key_groups)
        name = f"segments/{merge.table}/{merge.groups:x}-{suffix}.arrow"
        local.store.put(name, data)
        found.append(finished_merge(merge, name, rows, data.size, ends_of(data)))
    return found


def three_counts(out: dict[str, Any]) -> md.Flow:
    flow = md.Flow("merges")
    edits = flow.source("edits", md.generator("wikipedia", events=900, max_rows_per_epoch=50))
    for name, sink in out.items():
        edits.key_by("user").aggregate(md.count().alias("n"), name=name).sink(f"{name}_out", sink)
    return flow


@pytest.mark.many
@pytest.mark.parametrize("answered", [True, False])
def test_what_may_be_state_is_kept_where_nobody_can_say_whether_its_entry_is_in_the_log(answered: bool, tmp_path: Path) -> None:
    out = {name: md.memory() for name in ("a", "b", "c")}
    local = Local(three_counts(out), tmp_path, parallelism=2, replica="a")
    local.loop.housekeeping.compactor = merges = Merged()
    for _ in range(9):
        local.step()
    finished = merged(local, "00000001-0000000009-merge-done")
    merges.finished = list(finished)
    append = local.loop.log.append

    def unsure(entry: Json) -> None:
        manifest = append(entry)
        raise Taken(manifest.position, certain=False) if answered else md.Retryable("no answer")

    with mock.patch.object(local.loop.log, "append", unsure):
        if answered:
            local.loop.housekeeping.do()
        else:
            with pytest.raises(md.Retryable):
                local.loop.housekeeping.do()
            local.loop.siblings.keep_up(certain=False)
    local.loop.housekeeping.do()
    names = {merge["output"][0] for merge in finished}
    assert names <= local.manifest.segment_names()
    for _ in range(9):
        local.step()
    assert all(local.store.map(name) is not None for name in names)
    for sink in out.values():
        assert sink.frame().group_by("user").agg(pl.col("n").max())["n"].sum() == 900


def test_all_that_was_merged_meanwhile_is_one_entry_and_what_was_merged_twice_counts_once(tmp_path: Path) -> None:
    out = {name: md.memory() for name in ("a", "b", "c")}
    local = Local(three_counts(out), tmp_path, parallelism=2)
    local.loop.housekeeping.compactor = merges = Merged()
    for _ in range(9):
        local.step()
    twice = [*merged(local, "first"), *merged(local, "second")]
    assert len(twice) == 2 * 3 * 2
    before, merges.finished = local.manifest, list(twice)
    local.loop.housekeeping.do()
    after = local.manifest
    assert after.position == before.position + 1
    names = after.segment_names()
    assert {name for name in names if "first" in name} == {merge["output"][0] for merge in twice[:6]}
    assert not {name for name in names if "second" in name}
    local.run()
    for sink in out.values():
        counted = sink.frame().group_by("user").agg(pl.col("n").max())
        assert counted["n"].sum() == 900

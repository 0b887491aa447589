"""The driver's own helper process: merges of many operators at once, and a helper that dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import polars as pl

from meander.clock import FakeClock, SystemClock
from meander.coordinate.routing import spread
from meander.engine.compaction import AT_ONCE, ProcessCompactor
from meander.state.manifest import Json, Manifest, Table
from meander.state.segment import HASH, Segment, SegmentRef, encode_segment
from meander.state.store import DirStore

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
    for position, entry in enumerate(entries, 1):
        manifest = manifest.apply({**entry, "position": position, "generation": 1})
    for name in NAMES:
        (merged,) = manifest.tables[name].segments
        data = store.map(merged.name)
        assert data is not None
        assert Segment(merged.name, data).rows == 8


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
        for position, entry in enumerate(before, 1):
            manifest = manifest.apply({**entry, "position": position, "generation": 1})
        compactor.consider(manifest, ROUTING, dict.fromkeys(NAMES, 1))
        after = collected(compactor, len(NAMES))
    finally:
        compactor.close()
    assert sorted(entry["table"] for entry in [*before, *after]) == NAMES

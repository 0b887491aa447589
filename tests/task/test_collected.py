"""What the driver collects leaves the caches, too: by name, without looking through them."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from tests.memory_store import MemoryStore
from tests.simulation.steady import go_on, take_over

from meander.cache.client import Peer
from meander.cache.disk import Cache
from meander.cache.steward import Steward
from meander.epochs.events import LoopEvents
from meander.state.segment import HASH, encode_segment
from meander.state.stores.contract import DirStore


def test_a_steward_drops_what_it_is_told_with_all_its_parts_and_nothing_else(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    for name in ("segments/t/one", "segments/t/two"):
        cache.add(name, b"whole")
        cache.add_part(name, 0b1, b"part")
        cache.add_part(name, 0b10, b"another")
    mapped = cache.whole("segments/t/one")
    assert mapped is not None
    steward = Steward("127.0.0.1", "secret", cache, DirStore(tmp_path / "store"), 128)
    try:
        Peer(steward.address, "secret").drop(["segments/t/one", "segments/t/never there"])
    finally:
        steward.shutdown()
    assert cache.missing("segments/t/one", 0b11) == 0b11
    assert cache.whole("segments/t/one") is None
    assert mapped == pa.py_buffer(b"whole"), "who reads it goes on reading it"
    assert cache.missing("segments/t/two", 0b11) == 0
    assert cache.whole("segments/t/two") is not None


def test_what_is_collected_while_it_is_on_its_way_does_not_stay(tmp_path: Path) -> None:
    """It comes in pieces, slowly. Nobody would tell the steward a second time."""
    cache, store = Cache(tmp_path / "cache"), DirStore(tmp_path / "store")
    hashes = np.arange(1000, dtype=np.uint64) << np.uint64(54)
    data = encode_segment(pl.DataFrame({HASH: hashes, "n": range(1000)}))
    for name in ("segments/t/gone", "segments/t/alive"):
        store.put(name, data)
    steward = Steward("127.0.0.1", "secret", cache, store, 4)
    try:
        peer = Peer(steward.address, "secret")
        peer.drop(["segments/t/gone"])
        peer.fetch([[name, data.size, "f", None] for name in ("segments/t/gone", "segments/t/alive")])
        deadline = time.monotonic() + 20
        while peer.fetched()["pending"] and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        steward.shutdown()
    assert cache.missing("segments/t/gone", 0b1111) == 0b1111
    assert cache.missing("segments/t/alive", 0b1111) == 0


def test_the_counter_does_not_keep_what_left_the_cache(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    cache.add("segments/t/one", encode_segment(pl.DataFrame({HASH: np.arange(3, dtype=np.uint64), "n": range(3)})))
    steward = Steward("127.0.0.1", "secret", cache, DirStore(tmp_path / "store"), 4)
    try:
        peer = Peer(steward.address, "secret")
        (rows,) = peer.rows(["segments/t/one"], np.arange(2, dtype=np.uint64))
        assert rows is not None
        cache.drop("segments/t/one")  # by the background process, which is another process
        steward.close_dropped()
        assert peer.rows(["segments/t/one"], np.arange(2, dtype=np.uint64)) == [None]
    finally:
        steward.shutdown()


class Collected(LoopEvents):
    """The segments that a loop says are removed."""

    def __init__(self) -> None:
        self.segments: list[str] = []

    def segments_collected(self, segments: list[str]) -> None:
        self.segments.extend(segments)


@pytest.mark.parametrize("retain", [2])
def test_the_loop_tells_which_segments_it_has_removed_once_each(retain: int) -> None:
    store, collected = MemoryStore(), Collected()
    loop = take_over(store, retain=retain)
    loop.events.add(collected)
    go_on(loop, 60)
    told = collected.segments
    there = {name for name in store.objects if name.startswith("segments/")}
    assert told, "something was merged and collected"
    assert len(told) == len(set(told))
    assert not there & set(told)
    assert all(name.startswith("segments/") for name in told)

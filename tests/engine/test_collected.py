"""What the driver collects leaves the caches, too: by name, without looking through them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.simulation.steady import go_on, take_over

from meander.engine.cache import Cache
from meander.engine.peers import Peer
from meander.engine.steward import Steward
from meander.state.store import DirStore, MemoryStore


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
    assert not cache.has("segments/t/one", 0b1)
    assert cache.part("segments/t/one", 0b10) is None
    assert mapped == pa.py_buffer(b"whole"), "who reads it goes on reading it"
    assert cache.has("segments/t/two", 0b1)
    assert cache.part("segments/t/two", 0b10) == pa.py_buffer(b"another")


@pytest.mark.parametrize("retain", [2])
def test_the_loop_tells_which_segments_it_has_removed_once_each(retain: int) -> None:
    store, told = MemoryStore(), []
    loop = take_over(store, retain=retain)
    loop.collected = told.extend
    go_on(loop, 60)
    there = {name for name in store.objects if name.startswith("segments/")}
    assert told, "something was merged and collected"
    assert len(told) == len(set(told))
    assert not there & set(told)
    assert all(name.startswith("segments/") for name in told)

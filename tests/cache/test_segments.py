"""Which segments an executor keeps open, and how it comes by those it has not."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
import pytest
from tests.memory_store import MemoryStore

from meander.cache.disk import Cache
from meander.cache.open_segments import Opened, OpenSegments
from meander.cache.ranges import SMALL
from meander.cache.reader import Cached, Owned
from meander.cache.steward import Steward
from meander.errors import Corrupted
from meander.state.segment import HASH, Segment, SegmentRef, encode_segment
from meander.task.messages import Report

Peered = TypeVar("Peered", bound=Steward)
SEGMENT = Segment("", encode_segment(pl.DataFrame({HASH: np.zeros(0, np.uint64)})))


def test_as_many_as_are_looked_at_in_turn_stay_open_and_what_is_not_looked_at_goes() -> None:
    opened, missed = Opened(unused=1000), []
    for epoch in range(10):
        for number in range(500):  # one that keeps the latest 256 would miss each of them every time
            if opened.get(f"{number}") is None:
                missed.append(epoch)
                opened.put(f"{number}", SEGMENT)
    assert missed == [0] * 500
    for _ in range(4):
        for number in range(400):
            opened.get(f"{number}")
    assert len(opened) == 400, "a segment that was merged takes room on the disk as long as it is open"


class Far(MemoryStore):
    """Counts the calls that a far store would make one wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def get_range(self, name: str, start: int, length: int) -> bytes | None:
        self.calls.append(name)
        return super().get_range(name, start, length)


class Meeting(Far):
    """Where a call is answered when another one is there."""

    def __init__(self) -> None:
        super().__init__()
        self.met = threading.Barrier(2)

    def get_range(self, name: str, start: int, length: int) -> bytes | None:
        self.met.wait(20)  # breaks where calls come one after the other
        return super().get_range(name, start, length)


def cold(tmp_path: Path, store: Far, mode: str = "hybrid", count: int = 4, rows: int = 100) -> tuple[Cached, list[SegmentRef], Report]:
    hashes = np.arange(rows, dtype=np.uint64) << np.uint64(40)
    refs = []
    for number in range(count):
        data = encode_segment(pl.DataFrame({HASH: hashes, "n": np.random.default_rng(number).integers(0, 1 << 60, rows)}))
        store.put(f"segments/t/{number}", data)
        refs.append(SegmentRef(f"segments/t/{number}", rows, data.size, number, 0b1111))
    report, owned = Report((0, 0), ""), Owned(0b0011, 4, secret="secret", whole=mode == "local")
    return Cached(store, Cache(tmp_path / "cache"), owned, opened=OpenSegments(), report=report), refs, report


@pytest.mark.parametrize("mode", ["hybrid", "local"])
def test_a_small_segment_is_read_in_one_call_and_never_again(tmp_path: Path, mode: str) -> None:
    store = Far()
    cached, refs, report = cold(tmp_path, store, mode)
    wanted = np.zeros(1, np.uint64)
    for _ in range(3):
        cached.expect(refs, wanted)
        assert [cached.open(ref, wanted).rows for ref in refs] == [100] * 4
        assert [cached.scan(ref).frame().height for ref in refs] == [100] * 4
    assert sorted(store.calls) == [ref.name for ref in refs]
    assert report.counts["fetched_from_store"] == sum(ref.bytes for ref in refs)
    others = Owned(0b1100, 4, secret="secret", whole=mode == "local")
    another = Cached(store, Cache(tmp_path / "cache"), others, opened=OpenSegments(), report=Report((0, 1), ""))
    assert [another.open(ref, wanted).rows for ref in refs] == [100] * 4
    assert len(store.calls) == 4, "the other slots of this executor find them in its cache"


def test_small_segments_are_read_at_the_same_time(tmp_path: Path) -> None:
    cached, refs, _ = cold(tmp_path, Meeting())
    cached.expect(refs, np.zeros(1, np.uint64))
    assert [cached.open(ref, np.zeros(1, np.uint64)).rows for ref in refs] == [100] * 4


def test_a_large_segment_is_not_read_whole_for_one_key(tmp_path: Path) -> None:
    cached, (ref,), report = cold(tmp_path, Far(), count=1, rows=600_000)
    assert ref.bytes > 2 * SMALL
    wanted = np.zeros(1, np.uint64)
    cached.expect([ref], wanted)
    cached.open(ref, wanted)
    assert report.counts["fetched_from_store"] < ref.bytes / 4


def test_a_small_segment_that_is_not_whole_in_the_store_is_said_to_be_so(tmp_path: Path) -> None:
    store = Far()
    cached, refs, _ = cold(tmp_path, store)
    store.objects[refs[2].name] = store.objects[refs[2].name][:50]
    with pytest.raises(Corrupted, match="segments/t/2' is named by the manifest but is not whole"):
        cached.expect(refs, np.zeros(1, np.uint64))
    assert not Cache(tmp_path / "cache").has(refs[2].name)


def test_a_steward_brings_a_small_segment_in_one_call(tmp_path: Path) -> None:
    store = Far()
    _, refs, _ = cold(tmp_path, store)
    cache = Cache(tmp_path / "its own")
    steward = Steward("127.0.0.1", "secret", cache, store, 4)
    try:
        for ref in refs:
            steward._bring(ref.name, ref.bytes, 0b0011, None)
    finally:
        steward.shutdown()
    assert store.calls == [ref.name for ref in refs]
    assert all(cache.has(ref.name) for ref in refs)


def elsewhere(tmp_path: Path, store: Far, kind: type[Peered]) -> tuple[list[SegmentRef], Peered]:
    """Segments that another executor has in its cache, and its steward."""
    _, refs, _ = cold(tmp_path, store)
    away = Cache(tmp_path / "away")
    for ref in refs:
        away.add(ref.name, store.objects[ref.name])
    return refs, kind("127.0.0.1", "secret", away, store, 4)


def test_what_is_asked_of_a_peer_again_and_again_is_brought(tmp_path: Path) -> None:
    """Whoever was to bring it may have died, or been given the wrong list."""
    store = Far()
    refs, holder = elsewhere(tmp_path, store, Steward)
    own = Steward("127.0.0.1", "secret", Cache(tmp_path / "cache"), store, 4)
    wanted = np.zeros(1, np.uint64)
    owned = Owned(0b0011, 4, holders={ref.name: holder.address for ref in refs}, secret="secret")
    opened = OpenSegments()
    try:
        for epoch in range(200):
            report = Report((0, 0), "", steward=own.address)
            epochs = Cached(store, Cache(tmp_path / "cache"), owned, opened=opened, report=report)
            epochs.expect(refs, wanted)
            assert {epochs.open(ref, wanted).rows for ref in refs} <= {1, 100}, "the row that was asked for, or all"
            if "fetched_from_peers" not in report.counts:
                break
            if epoch > 64:
                time.sleep(0.05)  # it comes little by little
    finally:
        holder.shutdown()
        own.shutdown()
    assert 60 < epoch < 190, "not at once, and not never"
    assert store.calls == [], "from the peer, not from the store"


class Waited(Steward):
    """Answers when told to."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asked: list[list[str]] = []
        self.may_answer = threading.Event()

    def _rows(self, header: dict[str, Any], body: bytes) -> tuple[dict[str, Any], Any]:
        self.asked.append(header["names"])
        assert self.may_answer.wait(20)
        return super()._rows(header, body)


def test_what_operators_will_look_up_is_asked_for_before_the_first_one_works(tmp_path: Path) -> None:
    store = Far()
    refs, holder = elsewhere(tmp_path, store, Waited)
    some = np.arange(3, dtype=np.uint64) << np.uint64(40)
    holders = {ref.name: holder.address for ref in refs[:3]}
    owned = Owned(0b0011, 4, holders=holders, secret="secret")
    cached = Cached(store, Cache(tmp_path / "cache"), owned, opened=OpenSegments(), report=Report((0, 0), ""))
    try:
        cached.announce([(refs[:2], lambda: some), (refs[2:], lambda: some)])
        deadline = time.monotonic() + 20
        while len(holder.asked) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        holder.may_answer.set()
        for lookup in (refs[:2], refs[2:]):
            cached.expect(lookup, some[:2])  # less than was announced: operators leave out what they need not see
            assert {cached.open(ref, some[:2]).rows for ref in lookup if ref is not refs[3]} == {3}
        assert cached.open(refs[3], some).rows == 100, "nobody has it: from the store"
        assert sorted(holder.asked) == [[refs[0].name, refs[1].name], [refs[2].name]], "each once"
    finally:
        holder.may_answer.set()
        holder.shutdown()


def test_a_peer_that_is_gone_after_it_was_asked_is_done_without(tmp_path: Path) -> None:
    store = Far()
    _, refs, _ = cold(tmp_path, store)
    holders = {ref.name: "127.0.0.1:9" for ref in refs}
    owned = Owned(0b0011, 4, holders=holders, secret="secret")
    cached = Cached(store, Cache(tmp_path / "cache"), owned, opened=OpenSegments(), report=Report((0, 0), ""))
    wanted = np.zeros(1, np.uint64)
    cached.announce([([ref], lambda: wanted) for ref in refs])
    for ref in refs:
        cached.expect([ref], wanted)
        assert cached.open(ref, wanted).rows == 100


def test_an_answer_to_another_question_is_not_taken(tmp_path: Path) -> None:
    """Rows that were not asked for would pass for rows that are not there."""
    store = Far()
    refs, holder = elsewhere(tmp_path, store, Steward)
    hashes = np.arange(4, dtype=np.uint64) << np.uint64(40)
    holders = {ref.name: holder.address for ref in refs}
    owned = Owned(0b0011, 4, holders=holders, secret="secret")
    cached = Cached(store, Cache(tmp_path / "cache"), owned, opened=OpenSegments(), report=Report((0, 0), ""))
    try:
        cached.announce([([ref], lambda: hashes[:2]) for ref in refs])
        cached.expect([refs[0]], hashes)
        assert cached.open(refs[0], hashes).rows == 4
        assert cached.open(refs[1], hashes[1:]).rows == 3
        assert cached.open(refs[2], hashes[:1]).rows == 2, "all that was asked for"
    finally:
        holder.shutdown()

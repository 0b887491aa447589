"""Merges by several stewards at a time: no segment is in two of them at once, whatever is rescaled meanwhile."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from dataclasses import replace
from threading import Event
from typing import Any

import pytest

from meander.cache.client import Unreachable
from meander.clock import FakeClock
from meander.coordinate.routing import rebalance, slots_of, spread
from meander.epochs import steward_compaction
from meander.epochs.compaction import merge_entry
from meander.epochs.steward_compaction import StewardCompactor
from meander.state import compaction as compaction_module
from meander.state.manifest import Manifest, Table
from meander.state.segment import SegmentRef

KEY_GROUPS = 8
ALL = (1 << KEY_GROUPS) - 1


class Runner:
    secret = "s"

    def __init__(self) -> None:
        self.stewards = {"1": "a", "2": "b"}

    def holders(self, names: Any) -> dict[str, str]:
        return {}

    def holds(self, name: str, address: str) -> None:
        pass

    def steward_of(self, operator: str, slot: int) -> str:
        return "ab"[slot % 2]


class Stewards:
    """Both stewards: they are done with a merge when told so."""

    orders: dict[str, Any]

    def __init__(self) -> None:
        self.orders = {}
        self.done: dict[str, list[Any]] = {}
        self.fetches: dict[str, list[Any]] = {}

    def at(self, address: str, secret: str) -> Any:
        stewards = self

        class Peer:
            def merge(self, order: Any) -> None:
                assert address not in stewards.orders
                stewards.orders[address] = order

            def merged(self) -> list[Any]:
                return stewards.done.pop(address, [])

            def fetch(self, items: list[Any], share: float) -> None:
                stewards.fetches.setdefault(address, []).extend(items)

        return Peer()

    def finish(self, address: str) -> None:
        order = self.orders.pop(address)
        self.done[address] = [[order["table"], [], [order["name"], 10, 100]]]


class Inline(Executor):
    """Calls that are answered at once."""

    def submit(self, function: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments, **named))
        except Exception as error:
            future.set_exception(error)
        return future


def collected(compactor: StewardCompactor) -> Any:
    """What has come by the third time it is asked: one call begins the merge, one asks for it, one looks at the answer."""
    return next((entry for _ in range(3) if (entry := compactor.collect()) is not None), None)


class Helper:
    busy = False

    def consider(self, *_: Any) -> None:
        raise AssertionError("there are stewards")

    def collect(self) -> None:
        return None

    def close(self) -> None:
        pass


def in_one_slot() -> tuple[Manifest, list[int]]:
    """Four segments that are due to be merged, and the routing table."""
    refs = tuple(SegmentRef(f"s{number}", 10, 100, number, ALL) for number in range(4))
    table = spread(KEY_GROUPS, 1)
    return Manifest(key_groups=KEY_GROUPS, position=0, generation=1, tables={"t": Table(("k",), refs)}, routing={"t": table}), table


def test_no_segment_is_in_two_merges_at_once_though_the_routing_changes_under_them(monkeypatch: pytest.MonkeyPatch) -> None:
    stewards = Stewards()
    monkeypatch.setattr(steward_compaction, "Peer", stewards)
    monkeypatch.setattr(compaction_module, "FEWEST", 2)
    manifest, table = in_one_slot()
    compactor = StewardCompactor(Runner(), Helper(), FakeClock(), 1, Inline())  # type: ignore[arg-type]
    compactor.consider(manifest, {"t": table}, {"t": 1})
    assert set(stewards.orders) == {"a"}
    table = rebalance(table, 2)
    compactor.consider(manifest, {"t": table}, {"t": slots_of(table)})
    assert set(stewards.orders) == {"a"}, "all segments are in the first merge, also for the key groups that have moved"
    stewards.finish("a")
    entry = collected(compactor)
    assert entry is not None
    after = manifest.apply({**merge_entry([entry]), "position": 1, "generation": 1})
    assert [s.name for s in after.tables["t"].segments] == [entry["output"][0]]
    compactor.consider(after, {"t": table}, {"t": slots_of(table)})
    moved = sum(1 << group for group in range(KEY_GROUPS) if table[group] == 1)
    assert stewards.fetches == {"b": [[entry["output"][0], 100, f"{moved:x}", "a"]]}, "who owns some of it now will look into it"


def test_a_merge_that_ends_when_the_routing_has_just_changed_comes_to_its_new_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """All is at another executor from now on, and nobody has looked at merges since."""
    stewards = Stewards()
    monkeypatch.setattr(steward_compaction, "Peer", stewards)
    monkeypatch.setattr(compaction_module, "FEWEST", 2)
    manifest, table = in_one_slot()
    compactor = StewardCompactor(Runner(), Helper(), FakeClock(), 1, Inline())  # type: ignore[arg-type]
    compactor.consider(manifest, {"t": table}, {"t": 1})
    stewards.finish("a")
    entry = collected(compactor)
    assert entry is not None
    compactor.consider(manifest.apply({**merge_entry([entry]), "position": 1, "generation": 1}), {"t": [1] * KEY_GROUPS}, {"t": 2})
    assert stewards.fetches == {"b": [[entry["output"][0], 100, f"{ALL:x}", "a"]]}
    compactor.consider(manifest.apply({**merge_entry([entry]), "position": 1, "generation": 1}), {"t": [1] * KEY_GROUPS}, {"t": 2})
    assert len(stewards.fetches["b"]) == 1, "once"


def test_a_merge_that_is_done_but_not_in_the_log_yet_still_holds_its_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    stewards = Stewards()
    monkeypatch.setattr(steward_compaction, "Peer", stewards)
    monkeypatch.setattr(compaction_module, "FEWEST", 2)
    low, high = 0x0F, 0xF0
    refs = tuple(SegmentRef(f"{'lh'[number % 2]}{number}", 10, 100, number, (low, high)[number % 2]) for number in range(8))
    table = [0, 0, 0, 0, 1, 1, 1, 1]
    manifest = Manifest(key_groups=KEY_GROUPS, position=0, generation=1, tables={"t": Table(("k",), refs)}, routing={"t": table})
    compactor = StewardCompactor(Runner(), Helper(), FakeClock(), 1, Inline())  # type: ignore[arg-type]
    compactor.consider(manifest, {"t": table}, {"t": 2})
    assert set(stewards.orders) == {"a", "b"}
    stewards.finish("a")
    stewards.finish("b")
    first = collected(compactor)
    assert first is not None
    manifest = manifest.apply({**merge_entry([first]), "position": 1, "generation": 1})
    compactor.consider(manifest, {"t": table}, {"t": 2})
    assert stewards.orders == {}, "the other merge's result waits for its log entry"
    second = collected(compactor)
    assert second is not None
    manifest = manifest.apply({**merge_entry([second]), "position": 2, "generation": 1})
    assert len(manifest.tables["t"].segments) == 2


def test_an_epoch_does_not_wait_for_a_steward_that_is_slow_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    stewards, answer = Stewards(), Event()

    class Slow:
        def __init__(self, peer: Any) -> None:
            self.merge = peer.merge
            self._merged = peer.merged

        def merged(self) -> Any:
            answer.wait(30)
            return self._merged()

    monkeypatch.setattr(steward_compaction.Peer, "at", lambda address, secret: Slow(stewards.at(address, secret)))
    monkeypatch.setattr(compaction_module, "FEWEST", 2)
    manifest, table = in_one_slot()
    compactor = StewardCompactor(Runner(), Helper(), FakeClock(), 1)  # type: ignore[arg-type]
    compactor.consider(manifest, {"t": table}, {"t": 1})
    while not stewards.orders:
        pass
    stewards.finish("a")
    assert [compactor.collect() for _ in range(100)] == [None] * 100, "each of them would have waited"
    answer.set()
    while (entry := compactor.collect()) is None:
        pass
    assert len(entry["inputs"]) == 4
    compactor.close()


def test_a_steward_that_is_gone_loses_its_merge_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(address: str, secret: str) -> Any:
        class Peer:
            def merge(self, order: Any) -> None:
                raise Unreachable("gone")

        return Peer()

    monkeypatch.setattr(steward_compaction.Peer, "at", gone)
    monkeypatch.setattr(compaction_module, "FEWEST", 2)
    manifest, table = in_one_slot()
    compactor = StewardCompactor(Runner(), Helper(), FakeClock(), 1, Inline())  # type: ignore[arg-type]
    compactor.consider(manifest, {"t": table}, {"t": 1})
    assert compactor.collect() is None
    stewards = Stewards()
    monkeypatch.setattr(steward_compaction.Peer, "at", stewards.at)
    compactor.consider(manifest, {"t": table}, {"t": 1})
    assert set(stewards.orders) == {"a"}


def test_what_a_steward_tells_of_a_merge_that_was_given_up_is_not_taken_for_the_present_one(monkeypatch: pytest.MonkeyPatch) -> None:
    stewards = Stewards()
    monkeypatch.setattr(steward_compaction.Peer, "at", stewards.at)
    monkeypatch.setattr(compaction_module, "FEWEST", 2)
    manifest, table = in_one_slot()
    compactor = StewardCompactor(Runner(), Helper(), FakeClock(), 1, Inline())  # type: ignore[arg-type]
    compactor.consider(manifest, {"t": table}, {"t": 1})
    stewards.done["a"] = [["t", ["old"], ["segments/t/of-another-merge.arrow", 3, 30]]]
    assert collected(compactor) is None, "the log would name rows of other segments in place of these"
    stewards.finish("a")
    entry = collected(compactor)
    assert entry is not None
    assert entry["inputs"] == ["s0", "s1", "s2", "s3"]
    assert entry["output"][0] != "segments/t/of-another-merge.arrow"


def test_merges_keep_up_with_many_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    ordered: list[str] = []

    class Peer:
        def merge(self, order: Any) -> None:
            ordered.append(order["table"])

        def merged(self) -> list[Any]:
            return []

    monkeypatch.setattr(steward_compaction.Peer, "at", lambda address, secret: Peer())
    names = [f"t{number:02d}" for number in range(12)]
    refs = tuple(SegmentRef(f"s{number}", 10, 100, number, ALL) for number in range(8))
    tables = {name: Table(("k",), tuple(replace(ref, name=f"{name}-{ref.name}") for ref in refs)) for name in names}
    routing = {name: spread(KEY_GROUPS, 1) for name in names}
    manifest = Manifest(key_groups=KEY_GROUPS, position=0, generation=1, tables=tables, routing=routing)
    compactor = StewardCompactor(Runner(), Helper(), FakeClock(), 1, Inline())  # type: ignore[arg-type]
    for _ in range(2):
        compactor.consider(manifest, routing, dict.fromkeys(names, 1))
        assert sorted(ordered) == names, "each of them, and once"

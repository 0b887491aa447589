"""The names that sources have taken: all of them are found again, and keeping them costs what is new."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.memory_store import MemoryStore

from meander.clock import FakeClock
from meander.state import seen as seen_module
from meander.state.manifest import Manifest
from meander.state.seen import flush_seen, load_seen


class Weighed(MemoryStore):
    """Remembers how much the last flush wrote and read."""

    moved = 0

    def put(self, name: str, data: object) -> None:
        self.moved += len(memoryview(data))  # type: ignore[arg-type]
        super().put(name, data)  # type: ignore[arg-type]

    def get(self, name: str) -> bytes | None:
        data = super().get(name)
        self.moved += len(data or b"")
        return data


def test_every_name_is_found_again_and_no_flush_grows_with_the_names_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_module, "_LARGE_ENOUGH", 100)
    store, clock, manifest = Weighed(), FakeClock(), Manifest(generation=1)
    costs, taken = [], set()
    for number in range(400):
        names = [f"file-{number:04d}-{i}" for i in range(5)]
        taken.update(names)
        store.moved = 0
        manifest = replace(manifest, position=number, seen=flush_seen(store, clock, replace(manifest, recent={"in": names})))
        costs.append(store.moved)
    assert load_seen(store, manifest, "in") == taken
    assert max(costs[200:]) <= max(costs[:100]), "the two-thousandth name must not cost more than the five-hundredth"
    assert len(manifest.seen["in"]) < 40

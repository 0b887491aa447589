"""Reading state beside a flow that commits, merges and collects: at the worst moment, a read is of one epoch, or says why it is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.memory_store import MemoryStore
from tests.simulation.parts import OPERATOR
from tests.simulation.steady import as_state, expected, go_on, hurry, take_over

from meander.epochs.loop import Loop
from meander.errors import ConfigError, Corrupted, Retryable
from meander.state.log import entry_name, history, read_manifest, read_snapshot, readable_epochs, snapshot_name, snapshots
from meander.state.stores.contract import DirStore, Store
from meander.task.reading import read_operator

FAR = 12
"""Epochs after which nothing that was collectable is left."""


class Disturbed:
    """A reader's view of a store: something may happen right before any of its operations."""

    def __init__(self, store: Store, happens: Callable[[str, str], None]) -> None:
        self._store, self._happens = store, happens
        self.url = store.url

    def __getattr__(self, verb: str) -> Any:
        def act(name: str) -> Any:
            self._happens(verb, name)
            return getattr(self._store, verb)(name)

        return act


class Once:
    """Lets the flow go on, once, right before the first operation of a kind, or the first after ``skip`` of them."""

    def __init__(self, loop: Loop, verb: str, prefix: str, skip: int = 0) -> None:
        self.loop, self.verb, self.prefix, self.skip = loop, verb, prefix, skip
        self.done = False

    def __call__(self, verb: str, name: str) -> None:
        if self.done or verb != self.verb or not name.startswith(self.prefix):
            return
        self.skip -= 1
        if self.skip < 0:
            self.done = True
            go_on(self.loop, FAR)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else DirStore(tmp_path / "store")


def test_a_read_that_finds_a_segment_collected_starts_again_from_the_newest_manifest(store: Store) -> None:
    loop = take_over(store)
    go_on(loop, 8)
    before = loop.log.manifest.segment_names()
    overtaken = Once(loop, "map", "segments/")
    found = read_operator(Disturbed(store, overtaken), OPERATOR)
    assert overtaken.done
    assert not before & set(store.list("segments/")), "all that the first manifest named was collected"
    assert as_state(found) == expected(8 + FAR)


def test_a_mapped_segment_is_read_to_its_end_although_it_was_collected(tmp_path: Path) -> None:
    """The flow goes on between opening the segments and reading them: the read is of the epoch at which it began."""
    store = DirStore(tmp_path)
    loop = take_over(store)
    go_on(loop, 8)
    before = loop.log.manifest.segment_names()
    overtaken = Once(loop, "get", "plan/")
    assert as_state(read_operator(Disturbed(store, overtaken), OPERATOR)) == expected(8)
    assert overtaken.done
    assert not before & set(store.list("segments/"))


def test_every_segment_is_opened_before_any_is_worked_on() -> None:
    """What is opened late may be gone by then: work on the first segment is time in which the others are collected."""
    store = MemoryStore()
    loop = take_over(store)
    go_on(loop, 8)
    opened: list[str] = []
    names = loop.log.manifest.segment_names()
    for name in names:
        store.objects[name] = b"not a segment"
    with pytest.raises(Corrupted, match="cannot be read"):
        read_operator(Disturbed(store, lambda verb, name: opened.append(name) if verb == "map" else None), OPERATOR)
    assert len(names) > 1
    assert sorted(opened) == sorted(names)


@pytest.mark.parametrize("skip", [0, 1])
def test_a_log_that_is_collected_while_it_is_read_is_read_again(store: Store, skip: int) -> None:
    """The flow goes on between a snapshot and the log after it. What was collected ahead of the reader is not the log's end."""
    loop = take_over(store)
    while not (found := snapshots(store)) or loop.log.manifest.position < found[-1][0] + 2:
        go_on(loop, 1)
    before = loop.log.manifest
    overtaken = Once(loop, "get", "log/", skip)
    assert read_manifest(Disturbed(store, overtaken)) == loop.log.manifest
    assert overtaken.done
    assert loop.log.manifest.epoch == before.epoch + FAR
    assert store.get(entry_name(before.generation, before.position)) is None, "the end of the log that was being read is gone"


def test_a_snapshot_that_is_collected_before_it_is_read_is_looked_for_again(store: Store) -> None:
    loop = take_over(store)
    go_on(loop, 8)
    position, generation = snapshots(store)[-1]
    overtaken = Once(loop, "get", "manifest/")
    assert read_manifest(Disturbed(store, overtaken)) == loop.log.manifest
    assert overtaken.done
    assert store.get(snapshot_name(generation, position)) is None


def test_an_epoch_that_leaves_retention_during_the_read_is_said_to(store: Store) -> None:
    loop = take_over(store)
    go_on(loop, 8)
    overtaken = Once(loop, "map", "segments/")
    with pytest.raises(ConfigError, match=r"epoch 8 is not retained any more; epochs \d+ to 20 can be read"):
        read_operator(Disturbed(store, overtaken), OPERATOR, epoch=8)
    assert overtaken.done


@pytest.mark.parametrize("snapshot_every", [3, 1000])
def test_an_epoch_that_has_left_retention_is_an_error_that_names_those_that_have_not(
    snapshot_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the log has forgotten it, or still leads to it and its segments are gone."""
    hurry(monkeypatch, snapshot_every)
    store = MemoryStore()
    loop = take_over(store, retain=2)
    go_on(loop, 20)
    readable = readable_epochs(store)
    assert readable[-1] == 20
    assert 2 < len(readable) < 10
    for epoch in readable:
        assert as_state(read_operator(store, OPERATOR, epoch)) == expected(epoch)
    with pytest.raises(ConfigError, match=f"epoch {readable[0] - 1} is not retained any more; epochs {readable[0]} to 20 can be read"):
        read_operator(store, OPERATOR, readable[0] - 1)
    with pytest.raises(ConfigError, match=f"there is no epoch 21; epochs {readable[0]} to 20 can be read"):
        read_operator(store, OPERATOR, 21)


def test_the_readable_epochs_are_looked_for_again_when_the_flow_goes_on_meanwhile(store: Store) -> None:
    """All that the log led to is collected before the segments are listed: that does not mean that nothing can be read."""
    loop = take_over(store)
    go_on(loop, 8)
    overtaken = Once(loop, "list", "segments/")
    assert readable_epochs(Disturbed(store, overtaken)) == readable_epochs(store)
    assert overtaken.done
    assert readable_epochs(store)[-1] == 8 + FAR


def test_an_epoch_behind_a_gap_is_not_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merges take neighbours of one size: below what is retained, an epoch may be gone and an older one still be whole."""
    hurry(monkeypatch, snapshot_every=1000)
    store = MemoryStore()
    loop = take_over(store, retain=1000)
    go_on(loop, 20)
    states = {state.epoch: state for state in history(store, loop.log.manifest.position)}
    assert readable_epochs(store) == range(1, 21)
    users = Counter(name for state in states.values() for name in state.segment_names())
    gap, name = next((epoch, name) for epoch, state in states.items() for name in state.segment_names() if epoch > 1 and users[name] == 1)
    store.delete(name)
    assert readable_epochs(store) == range(gap + 1, 21)
    assert as_state(read_operator(store, OPERATOR, gap - 1)) == expected(gap - 1)


def test_a_late_snapshot_of_a_replaced_run_does_not_make_its_epoch_readable() -> None:
    """Its log and its segments are gone: neither its epoch nor one after it can be read."""
    store = MemoryStore()
    loop = take_over(store)
    go_on(loop, 6)
    position, generation = snapshots(store)[-1]
    name, manifest = snapshot_name(generation, position), read_snapshot(store, generation, position)
    assert manifest is not None
    late = store.objects[name]
    go_on(loop, FAR)
    assert store.put_if_absent(name, late), "it had been collected"
    for epoch in (manifest.epoch, manifest.epoch + 1):
        with pytest.raises(ConfigError, match=rf"epoch {epoch} is not retained any more; epochs \d+ to 18 can be read"):
            read_operator(store, OPERATOR, epoch)
    assert as_state(read_operator(store, OPERATOR)) == expected(18)


@pytest.mark.many
def test_a_flow_that_always_overtakes_the_reader_is_told_from_a_broken_store() -> None:
    store = MemoryStore()
    loop = take_over(store)
    go_on(loop, 8)

    def always(verb: str, name: str) -> None:
        if verb == "map":
            go_on(loop, FAR)

    with pytest.raises(Retryable, match="moves on faster than its state can be read"):
        read_operator(Disturbed(store, always), OPERATOR)
    (lost, *_) = sorted(loop.log.manifest.segment_names())
    store.delete(lost)
    for epoch in (None, loop.log.manifest.epoch):
        with pytest.raises(Corrupted, match=f"segment '{lost}' is named by the manifest but is not in store"):
            read_operator(store, OPERATOR, epoch)


def test_an_operator_has_no_state_before_the_first_epoch() -> None:
    store = MemoryStore()
    with pytest.raises(ConfigError, match="there is no flow in it"):
        read_operator(store, OPERATOR)
    loop = take_over(store)
    with pytest.raises(ConfigError, match=f"operator '{OPERATOR}' has no state yet at epoch 0"):
        read_operator(store, OPERATOR)
    go_on(loop, 1)
    with pytest.raises(ConfigError, match="there is no stateful operator 'other'; there are: totals"):
        read_operator(store, "other")

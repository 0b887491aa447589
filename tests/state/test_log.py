"""The log: who may append, what a successor sees, and what a late writer meets."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests import entries
from tests.memory_store import MemoryStore

from meander.clock import FakeClock
from meander.errors import ConfigError, Corrupted, Fenced, Retryable
from meander.state import log as log_module
from meander.state.formats import SNAPSHOT
from meander.state.log import Log, entry_name, newest_generation, read_manifest
from meander.state.manifest import Manifest
from meander.state.stores.opening import NAME, check_format


def epoch_entry(number: int) -> dict[str, Any]:
    return entries.epoch_entry(number, offsets={"s": {"next": number}})


class Scripted(MemoryStore):
    """A store whose next puts-if-absent go as the script says."""

    def __init__(self, *script: str) -> None:
        super().__init__()
        self.script = list(script)
        self.before_put: Callable[[], None] | None = None

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if self.before_put is not None:
            act, self.before_put = self.before_put, None
            act()
        step = self.script.pop(0) if self.script else "answers"
        if step == "fails before":
            raise Retryable("no answer")
        created = super().put_if_absent(name, bytes(bytearray(data)))
        if step == "fails after":
            raise Retryable("no answer")
        return created and step != "answers twice"


def take_over(store: MemoryStore, seed: int = 0) -> Log:
    return Log.take_over(store, FakeClock(seed=seed))


def test_a_fresh_store_has_no_owner_and_epoch_0() -> None:
    assert newest_generation(MemoryStore()) == 0
    assert read_manifest(MemoryStore()) == Manifest()


def test_a_takeover_seals_the_generation_before_it() -> None:
    store = MemoryStore()
    first = take_over(store, 1)
    first.append(epoch_entry(1))
    second = take_over(store, 2)
    assert (first.manifest.generation, second.manifest.generation) == (1, 2)
    assert second.manifest.offsets == {"s": {"next": 1}}
    assert json.loads(store.objects[entry_name(1, 2)])["kind"] == "takeover"
    assert newest_generation(store) == 2


def test_a_replaced_owner_is_fenced_and_changes_nothing() -> None:
    store = MemoryStore()
    first = take_over(store, 1)
    second = take_over(store, 2)
    before = dict(store.objects)
    with pytest.raises(Fenced, match=r"generation 1 .* replaced"):
        first.append(epoch_entry(1))
    assert store.objects == before
    assert second.append(epoch_entry(1)).epoch == 1


def test_a_replaced_owner_is_fenced_also_after_everything_but_seals_was_collected() -> None:
    store = MemoryStore()
    first = take_over(store, 1)
    first.append(epoch_entry(1))
    second = take_over(store, 2)
    for number in range(2, 6):
        second.append(epoch_entry(number))
    store.delete(entry_name(1, 1))
    with pytest.raises(Fenced):
        first.append(epoch_entry(2))


def test_of_two_newcomers_the_slower_takes_over_from_the_faster() -> None:
    store = Scripted()
    take_over(store, 1)
    faster: list[Log] = []
    store.before_put = lambda: faster.append(take_over(store, 2))
    slower = take_over(store, 3)
    assert (faster[0].manifest.generation, slower.manifest.generation) == (2, 3)
    with pytest.raises(Fenced):
        faster[0].append(epoch_entry(1))


def test_a_newcomer_that_was_overtaken_by_an_append_reads_again() -> None:
    store = Scripted()
    first = take_over(store, 1)
    store.before_put = lambda: first.append(epoch_entry(1)) and None
    assert take_over(store, 2).manifest.epoch == 1


def test_a_newcomer_that_read_the_log_while_it_was_collected_does_not_become_an_owner_of_the_past(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its seal goes into a hole of the log, where nobody meets it: it must notice, or two owners live."""
    monkeypatch.setattr(log_module, "SNAPSHOT_EVERY", 1)
    store = Scripted()
    first = take_over(store, 1)
    first.append(epoch_entry(1))

    def move_on() -> None:
        for number in (2, 3):
            first.append(epoch_entry(number))
        first._store.put_if_absent(log_module.snapshot_name(1, 3), SNAPSHOT.write(first.manifest.to_json()))
        for position in (1, 2, 3):
            store.delete(entry_name(1, position))

    store.before_put = move_on
    second = take_over(store, 2)
    assert second.manifest.epoch == 3
    with pytest.raises(Fenced):
        first.append(epoch_entry(4))


@pytest.mark.parametrize("step", ["fails before", "fails after", "answers twice"])
def test_an_unclear_answer_is_settled_by_reading_back(step: str) -> None:
    store = Scripted(step)
    owner = take_over(store, 1)
    store.script = [step, step]
    owner.append(epoch_entry(1))
    owner.append(epoch_entry(2))
    assert owner.manifest.epoch == 2
    assert read_manifest(store) == owner.manifest


def test_a_store_that_never_answers_is_a_retryable_error_and_the_owner_stays_where_it_was() -> None:
    store = Scripted()
    owner = take_over(store, 1)
    store.script = ["fails before"] * 100
    with pytest.raises(Retryable):
        owner.append(epoch_entry(1))
    assert owner.manifest.epoch == 0


def test_an_unclear_answer_to_a_replaced_owner_is_a_fence() -> None:
    store = Scripted()
    first = take_over(store, 1)
    take_over(store, 2)
    store.script = ["fails after"]
    with pytest.raises(Fenced):
        first.append(epoch_entry(1))


class Died(BaseException):
    """A process was killed."""


class Disk(MemoryStore):
    """A store in which a name can be seen before it is durable, as in a folder that is not synced yet."""

    def __init__(self) -> None:
        super().__init__()
        self.durable: dict[str, bytes] = {}
        self.dies_at: str | None = None

    def put_if_absent(self, name: str, data: bytes) -> bool:
        created = name not in self.objects
        self.objects.setdefault(name, data)
        if name == self.dies_at:
            self.dies_at = None
            raise Died
        folder = name.rpartition("/")[0]
        self.durable.update({other: there for other, there in self.objects.items() if other.rpartition("/")[0] == folder})
        return created


@pytest.mark.parametrize("dies_at", [NAME, entry_name(0, 0), entry_name(1, 2)])
def test_what_a_start_has_left_that_was_killed_before_it_was_durable_is_so_after_the_next(dies_at: str) -> None:
    store = Disk()
    if dies_at == entry_name(1, 2):
        take_over(store, 1).append(epoch_entry(1))
    store.dies_at = dies_at
    with pytest.raises(Died):
        take_over(store, 2)
    owner = take_over(store, 3)
    owner.append(epoch_entry(owner.manifest.epoch + 1))
    store.objects = store.durable  # the power is cut
    assert check_format(store)
    assert read_manifest(store) == owner.manifest


def test_every_epoch_is_readable_as_it_was() -> None:
    store = MemoryStore()
    owner = take_over(store, 1)
    seen = [owner.append(epoch_entry(number)) for number in (1, 2, 3)]
    take_over(store, 2)
    assert [read_manifest(store, number).offsets for number in (1, 2, 3)] == [manifest.offsets for manifest in seen]
    assert read_manifest(store, 0).offsets == {}
    with pytest.raises(ConfigError, match="there is no epoch 9; epochs 1 to 3 can be read"):
        read_manifest(store, 9)


def test_an_epoch_that_was_collected_is_named_as_such() -> None:
    store = MemoryStore()
    owner = take_over(store, 1)
    for number in (1, 2, 3):
        owner.append(epoch_entry(number))
    store.put_if_absent(log_module.snapshot_name(1, 3), SNAPSHOT.write(owner.manifest.to_json()))
    for position in (1, 2, 3):
        store.delete(entry_name(1, position))
    with pytest.raises(ConfigError, match="epoch 2 is not retained any more; epoch 3 can be read"):
        read_manifest(store, 2)


def test_a_gap_between_epochs_is_corruption() -> None:
    owner = take_over(MemoryStore(), 1)
    with pytest.raises(Corrupted, match="epoch 2, expected 1"):
        owner.append(epoch_entry(2))


def test_an_entry_that_is_no_json_is_corruption_and_named() -> None:
    store = MemoryStore()
    take_over(store, 1)
    store.objects[entry_name(1, 1)] = b"{"
    with pytest.raises(Corrupted, match="log/00000001/000000000001"):
        read_manifest(store)

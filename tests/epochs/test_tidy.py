"""Tidying: what a dead process left goes, what a live one needs stays, and a deletion that fails is not forgotten."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.memory_store import MemoryStore
from tests.simulation.parts import OPERATOR
from tests.simulation.steady import as_state, expected, go_on, hurry, take_over

from meander.epochs.tidy import Tidy
from meander.errors import Retryable
from meander.state.manifest import Manifest
from meander.state.stores.contract import DirStore
from meander.task.reading import read_operator

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


def start_driver(folder: Path, nth: int, what: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.epochs.halting", str(folder), str(nth), what]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)


def hidden(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob(".*"))


@pytest.mark.many
@pytest.mark.parametrize(
    ("nth", "place", "epoch"),
    [(1, ".format.", 0), (2, "log/00000000/.", 0), (3, "plan/.", 0), (5, "log/00000001/.", 1), (7, "manifest/.", 3)],
)
def test_the_next_start_removes_what_a_process_killed_inside_a_put_left_behind(tmp_path: Path, nth: int, place: str, epoch: int) -> None:
    driver = start_driver(tmp_path, nth, "kill")
    driver.communicate(timeout=60)
    assert driver.returncode == -signal.SIGKILL
    (left,) = hidden(tmp_path)
    assert left.startswith(place)
    store = DirStore(tmp_path)
    loop = take_over(store)
    assert hidden(tmp_path) == []
    assert loop.log.manifest.epoch == epoch
    go_on(loop, 2)
    assert as_state(read_operator(store, OPERATOR)) == expected(epoch + 2)


def test_the_temporary_file_of_a_replaced_run_that_still_lives_is_left_to_it(tmp_path: Path) -> None:
    """It stands still inside a put while its successor sweeps. When it wakes up it meets the seal, and removes its file itself."""
    old = start_driver(tmp_path, 5, "wait")
    try:
        assert old.stdout is not None
        assert old.stdout.readline() == "halted\n"
        (staged,) = hidden(tmp_path)
        store = DirStore(tmp_path)
        loop = take_over(store)
        assert hidden(tmp_path) == [staged]
        go_on(loop, 2)
        assert old.communicate("go on\n", timeout=60)[0] == "Fenced\n"
        assert hidden(tmp_path) == []
        assert as_state(read_operator(store, OPERATOR)) == expected(loop.log.manifest.epoch)
    finally:
        old.kill()
        old.communicate()


class Clinging(MemoryStore):
    """A store that does not always delete, and does not always say so when it has."""

    def __init__(self, refuses: Callable[[str], bool] = lambda name: False, after: bool = False) -> None:
        super().__init__()
        self.refuses, self.after = refuses, after
        self.refused: list[str] = []

    def delete(self, name: str) -> None:
        refused = self.refuses(name)
        if not refused or self.after:
            super().delete(name)
        if refused:
            self.refused.append(name)
            raise Retryable(f"'{name}' cannot be deleted")


def names_without_trouble(epochs: int) -> set[str]:
    """What is in the store of an undisturbed flow after so many epochs. All names follow from the seeds."""
    store = MemoryStore()
    go_on(take_over(store), epochs)
    return set(store.objects)


def kinds(names: list[str]) -> set[str]:
    return {name.split("/")[0] for name in names}


@pytest.mark.many
@pytest.mark.parametrize("after", [False, True], ids=["not deleted", "deleted"])
@pytest.mark.parametrize("often", [0.3, 1.0])
def test_a_deletion_that_fails_does_not_stop_the_flow_and_is_made_up_for(
    often: float, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of staged files, segments, snapshots and log entries, now and then or for a while: in the end exactly the same names are left."""
    hurry(monkeypatch)
    rng = random.Random(1)
    store = Clinging(lambda name: rng.random() < often, after)
    loop = take_over(store)
    go_on(loop, 30)
    assert often == 1.0 or kinds(store.refused) == {"staged", "segments", "manifest", "log"}
    assert as_state(read_operator(store, OPERATOR)) == expected(30)
    store.refuses = lambda name: False
    go_on(loop, 1)
    assert set(store.objects) == names_without_trouble(31)


@pytest.mark.many
@pytest.mark.parametrize("kind", ["staged", "segments", "manifest", "log"])
def test_a_name_that_can_never_be_deleted_keeps_no_other(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    store = Clinging()
    stuck: set[str] = set()

    def refuse(name: str) -> bool:
        if not stuck and name.startswith(kind):
            stuck.add(name)
        return name in stuck

    store.refuses = refuse
    loop = take_over(store)
    go_on(loop, 30)
    assert len(stuck) == 1
    loop.tidy.collect(loop.log.manifest)  # the round that met it left what was behind it to the next
    assert set(store.objects) == names_without_trouble(30) | stuck
    take_over(store)
    assert as_state(read_operator(store, OPERATOR)) == expected(30)


def test_a_store_that_deletes_nothing_costs_an_epoch_one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be one that answers after half a minute: an epoch must not wait for every name in turn."""
    hurry(monkeypatch)
    store = Clinging(lambda name: True)
    loop = take_over(store)
    go_on(loop, 30)
    assert len(store.refused) <= 30


def test_a_sweep_that_cannot_delete_does_not_stop_the_start_and_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    store = Clinging()
    go_on(take_over(store), 8)
    orphans = ["segments/totals/00000001-0000000009-0000-dead.arrow", "staged/out/00000001-0000000009-0000-dead"]
    for name in orphans:
        store.put(name, b"of an epoch that was never committed")
    store.refuses = lambda name: True
    loop = take_over(store)
    assert set(orphans) <= set(store.objects)
    store.refuses = lambda name: False
    go_on(loop, 1)
    assert not set(orphans) & set(store.objects)


class Waiting(MemoryStore):
    """A store whose deletions take as long as they are let; the first one fails."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.refuses = True

    def delete(self, name: str) -> None:
        self.go_on.wait(30)
        if self.refuses:
            self.refuses = False
            raise Retryable("busy")
        super().delete(name)


def test_an_epoch_does_not_wait_for_deletions_that_run_beside_it_and_none_is_forgotten() -> None:
    store = Waiting()
    for name in "abcd":
        store.put(name, b"")
    with ThreadPoolExecutor(1) as beside:
        tidy = Tidy(store, Manifest(), 1, beside=beside)
        tidy.published(Manifest(staged={"out": [{"name": "a"}, {"name": "b"}]}))
        for _ in range(100):
            tidy.collect(Manifest())  # each would have waited
        assert set(store.objects) == set("abcd")
        tidy.published(Manifest(staged={"out": [{"name": "c"}]}))
        store.go_on.set()
        while set(store.objects) != {"d"}:
            tidy.collect(Manifest())


def test_segments_that_went_beside_an_epoch_are_told_of_without_another_one() -> None:
    store, told = Waiting(), []
    store.put("segments/a", b"")
    store.refuses = False
    with ThreadPoolExecutor(1) as beside:
        tidy = Tidy(store, Manifest(), 1, told.extend, beside)
        tidy.unwanted("segments/a")
        tidy.collect(Manifest())
        store.go_on.set()
    assert told == ["segments/a"]


class Counted(MemoryStore):
    """A store far away, which counts the messages that deletions take."""

    def __init__(self) -> None:
        super().__init__()
        self.messages = 0
        self.told: Callable[[], None] = lambda: None

    def delete_all(self, names: Sequence[str]) -> None:
        self.messages += 1
        self.told()
        super().delete_all(names)


def remove_1200(stop_at_first: bool = False) -> Counted:
    store = Counted()
    names = [f"staged/{number}" for number in range(1200)]
    for name in names:
        store.put(name, b"")
    with ThreadPoolExecutor(1) as beside:
        tidy = Tidy(store, Manifest(), 1, beside=beside)
        if stop_at_first:
            store.told = tidy.close
        tidy.unwanted(*names)
        tidy.collect(Manifest())
    return store


def test_what_is_removed_from_a_store_far_away_takes_one_message_for_hundreds_of_names() -> None:
    store = remove_1200()
    assert (len(store.objects), store.messages) == (0, 3)


def test_a_run_that_stops_waits_for_one_message_and_not_for_all_that_is_to_be_removed() -> None:
    store = remove_1200(stop_at_first=True)
    assert (len(store.objects), store.messages) == (700, 1)

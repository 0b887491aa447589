"""When a folder is listed, and that nothing in it is missed or given twice."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meander.clock import FakeClock
from meander.connect import file_discovery
from meander.connect.file_discovery import Discovery, Found
from meander.errors import Retryable


class Slow(FakeClock):
    """A clock that a listing takes time on, and that counts listings."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, per_listing: float = 0.0) -> None:
        super().__init__(1_000.0)
        self.listings = 0
        scan = file_discovery.scan

        def slow_scan(folder: str, known: set[str]) -> Iterator[tuple[str, os.stat_result]]:
            self.listings += 1
            self.sleep(per_listing)
            return scan(folder, known)

        monkeypatch.setattr(file_discovery, "scan", slow_scan)


def names(discovery: Discovery) -> list[list[str]]:
    return [[file.name for file in found] for found in discovery.take()]


def write(folder: Path, name: str, at: int) -> None:
    (folder / name).write_text("{}\n")
    os.utime(folder / name, (at, at))


def live(discovery: Discovery, clock: FakeClock, seconds: float) -> None:
    """What the thread does in so many seconds."""
    end = clock.monotonic() + seconds
    while clock.monotonic() < end:
        clock.sleep(discovery.tick())


def test_the_files_of_one_listing_come_together_oldest_first_and_once(tmp_path: Path) -> None:
    discovery = Discovery(str(tmp_path), {"taken"})
    for name, at in (("b", 20), ("a", 20), ("c", 10), ("taken", 5)):
        write(tmp_path, name, at)
    discovery.look()
    write(tmp_path, "old", 1)
    discovery.look()
    discovery.look()
    assert names(discovery) == [["c", "a", "b"], ["old"]]
    assert names(discovery) == []


def test_a_thread_rests_ten_times_as_long_as_its_listing_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Slow(monkeypatch, per_listing=0.3)
    discovery = Discovery(str(tmp_path), set(), clock)
    assert discovery.tick() == pytest.approx(3.0)
    for second in range(100):
        os.utime(tmp_path, (second, second))  # something comes all the time
        live(discovery, clock, 1.0)
    assert clock.listings * 0.3 <= 0.1 * clock.monotonic()


@pytest.mark.parametrize("while_listing", [True, False])
def test_a_process_that_stood_still_looks_again_at_once(while_listing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Slow(monkeypatch)
    discovery = Discovery(str(tmp_path), set(), clock)
    live(discovery, clock, 5)
    place, name = (file_discovery, "scan") if while_listing else (os, "stat")
    awake = getattr(place, name)

    def paused(*given: Any) -> Any:
        monkeypatch.setattr(place, name, awake)
        clock.sleep(7.0)
        return awake(*given)

    monkeypatch.setattr(place, name, paused)
    if while_listing:
        os.utime(tmp_path)
    began = clock.monotonic()
    rest = discovery.tick()
    assert clock.monotonic() == began + 7.0
    assert rest < 1.0
    write(tmp_path, "came", 1)
    live(discovery, clock, 1.0)
    assert names(discovery) == [["came"]]


def test_looking_back_counts_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Slow(monkeypatch)
    discovery = Discovery(str(tmp_path), set(), clock)
    for name in ("a", "b"):
        write(tmp_path, name, 1)
        discovery.took(Found(1, name, 3))
    live(discovery, clock, 5)
    stat = os.stat

    def slow(path: str) -> os.stat_result:
        clock.sleep(0.1)
        return stat(path)

    with monkeypatch.context() as slowly:
        slowly.setattr(os, "stat", slow)
        rests = [discovery.tick() for _ in range(2)]
    assert rests[1] == pytest.approx(3.0)  # the folder's own and those of two files that were taken


def test_a_folder_that_nobody_writes_to_is_hardly_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Slow(monkeypatch, per_listing=0.01)
    discovery = Discovery(str(tmp_path), set(), clock)
    live(discovery, clock, 5)
    settled = clock.listings
    live(discovery, clock, 600)
    assert 0 < clock.listings - settled <= 60


def test_a_mount_that_never_changes_the_folders_mtime_hides_nothing_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Slow(monkeypatch)
    os.utime(tmp_path, (1_000, 1_000))
    discovery = Discovery(str(tmp_path), set(), clock)
    live(discovery, clock, 30)
    write(tmp_path, "a", 10)
    os.utime(tmp_path, (1_000, 1_000))
    live(discovery, clock, 11)
    assert names(discovery) == [["a"]]


def test_a_file_that_came_in_the_same_tick_of_the_folders_clock_as_the_listing_is_found(tmp_path: Path) -> None:
    clock = FakeClock(5_000.0)  # the folder's own clock is an hour behind: its mtime looks old
    discovery = Discovery(str(tmp_path), set(), clock)
    os.utime(tmp_path, (1_000, 1_000))
    discovery.tick()
    write(tmp_path, "a", 10)
    os.utime(tmp_path, (1_000, 1_000))
    live(discovery, clock, 3)
    assert names(discovery) == [["a"]]


def test_a_name_that_was_forgotten_is_found_again_although_the_folder_looks_unchanged(tmp_path: Path) -> None:
    clock = FakeClock()
    discovery = Discovery(str(tmp_path), set(), clock)
    write(tmp_path, "a", 10)
    live(discovery, clock, 5)
    assert names(discovery) == [["a"]]
    discovery.forget("a")  # it had gone, and was back before anyone could say so
    discovery.tick()
    assert names(discovery) == [["a"]]


def test_a_folder_that_cannot_be_listed_is_an_error_where_files_are_asked_for_until_it_is_back(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    discovery = Discovery(str(folder), set())
    discovery.look()
    folder.rename(tmp_path / "away")
    discovery.tick()
    with pytest.raises(Retryable, match="in: cannot be listed"):
        discovery.take()
    with pytest.raises(Retryable, match="in: cannot be listed"):
        discovery.look()
    (tmp_path / "away").rename(folder)
    write(folder, "a", 10)
    discovery.tick()
    assert names(discovery) == [["a"]]


def test_a_listing_that_fails_half_way_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        write(tmp_path, name, 10)
    discovery = Discovery(str(tmp_path), set())
    scan = file_discovery.scan

    def broken(folder: str, known: set[str]) -> Iterator[tuple[str, os.stat_result]]:
        yield next(scan(folder, known))
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(file_discovery, "scan", broken)
        with pytest.raises(Retryable, match="Input/output error"):
            discovery.look()
    discovery.look()
    assert names(discovery) == [["a", "b"]]


def test_asking_does_not_wait_for_a_listing_and_closing_ends_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    discovery = Discovery(str(tmp_path), set())
    discovery.watch()
    listing, go_on = threading.Event(), threading.Event()

    def stuck(folder: str, known: set[str]) -> Iterator[tuple[str, os.stat_result]]:
        listing.set()
        assert go_on.wait(10)
        yield from ()

    monkeypatch.setattr(file_discovery, "scan", stuck)
    write(tmp_path, "a", 10)
    assert listing.wait(10)
    assert names(discovery) == []
    discovery.forget("b")
    go_on.set()
    discovery.close()
    assert not [thread for thread in threading.enumerate() if thread.name == f"meander-files-{tmp_path.name}"]

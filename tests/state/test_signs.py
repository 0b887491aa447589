"""Signs of life: who lives is known by what changes before the reader's eyes, by the reader's own clock."""

from __future__ import annotations

import errno
import threading
import time

import pytest
from tests.memory_store import MemoryStore

from meander.clock import FakeClock, SystemClock
from meander.processes import ProcessId
from meander.replicate import membership as cohort
from meander.replicate.membership import DEAD_AFTER, Cohort
from meander.replicate.requests import SUPERVISOR, live_supervisor
from meander.state.signs import LONGEST_LOOK, SILENT_AFTER, Said, Watch, place_of

TORN = (b"", b"{", b'{"name": "a", "num', b"7", b'{"number": 1, "epoch": "x", "process": 7, "host": "here", "system": "x", "born": ""}')
SOMEBODY = ProcessId(7, "another system", "1")


def look_for(cohort: Cohort, clock: FakeClock, seconds: float) -> None:
    """As the thread does that looks for the others."""
    until = clock.monotonic() + seconds
    while clock.monotonic() < until:
        clock.sleep(0.5)
        cohort.look()


@pytest.mark.parametrize("data", TORN)
def test_a_sign_that_cannot_be_read_keeps_nobody_from_keeping_house(data: bytes) -> None:
    """Its replica was killed, or the disk was full, while it was written."""
    store, clock = MemoryStore(), FakeClock()
    store.put(place_of(1, "a"), data)
    b = Cohort(store, clock, "b", 1)
    b.look()
    assert not b.keeps_house(), "it may live: nobody has watched it yet"
    look_for(b, clock, DEAD_AFTER)
    assert b.keeps_house()
    assert not b.is_alive("a")


@pytest.mark.parametrize("data", TORN)
def test_a_sign_that_cannot_be_read_is_silent_after_a_while_and_says_what_it_said(data: bytes) -> None:
    store, clock = MemoryStore(), FakeClock()
    watch = Watch(store, clock)
    for number in (1, 2):
        store.put(place_of(1, "a"), Said(number, 5, SOMEBODY).to_bytes())
        assert watch.look()["a"].alive == (number == 2)
    store.put(place_of(1, "a"), data)
    assert watch.look()["a"].alive, "it has changed"
    found = watch.settle()
    clock.sleep(SILENT_AFTER)
    for _ in range(4):
        clock.sleep(LONGEST_LOOK)
        found = watch.look()
    assert (found["a"].alive, found["a"].sign.epoch, found["a"].sign.process) == (False, 5, SOMEBODY)


def test_a_sign_that_was_never_readable_is_settled_as_silent() -> None:
    store = MemoryStore()
    store.put(place_of(1, "a"), b"")
    found = Watch(store, FakeClock()).settle()
    assert (found["a"].alive, found["a"].sign.process, found["a"].sign.epoch) == (False, None, 0)


def test_one_that_was_paused_does_not_take_the_others_for_silent() -> None:
    store, clock = MemoryStore(), FakeClock()
    watch = Watch(store, clock)
    for number in (1, 2):
        store.put(place_of(1, "a"), Said(number, 5, SOMEBODY).to_bytes())
        watch.look()
    clock.sleep(600.0)  # nobody ran on this machine
    assert watch.look()["a"].silence <= LONGEST_LOOK
    assert watch.look()["a"].alive


def test_a_replica_that_was_paused_looks_before_it_takes_a_sibling_for_dead() -> None:
    store, clocks = MemoryStore(), [FakeClock(), FakeClock()]
    a, b = (Cohort(store, clock, name, 1) for clock, name in zip(clocks, "ab", strict=True))
    a.beat()
    b.look()
    clocks[1].sleep(600.0)
    assert b.is_alive("a"), "both were paused: it had no time to say anything"
    clocks[1].sleep(600.0)
    a.beat()
    assert b.is_alive("a"), "it has gone on meanwhile"
    for _ in range(5):
        clocks[1].sleep(600.0)
        b.siblings()
    assert not b.is_alive("a")


def test_a_replica_that_never_looked_for_others_does_not_begin_with_it_in_an_epoch() -> None:
    store, clock = MemoryStore(), FakeClock()
    Cohort(store, clock, "a", 1).beat()
    b = Cohort(store, clock, "b", 1)
    clock.sleep(600.0)
    assert b.keeps_house()


@pytest.mark.parametrize("skew", [-600.0, -5.0, 5.0, 600.0, 86_400.0])
def test_clocks_that_differ_change_nothing_about_who_lives(skew: float) -> None:
    store = MemoryStore()
    clocks = [FakeClock(start=1_000_000.0 + ahead, seed=seed) for seed, ahead in enumerate((skew, 0.0, -skew))]
    cohorts = [Cohort(store, clock, name, 1) for clock, name in zip(clocks, "abc", strict=True)]
    outside, watch_clock = FakeClock(start=5.0), FakeClock(start=5.0)
    watch = Watch(store, watch_clock)

    def half_seconds(count: int, living: str) -> None:
        for _ in range(count):
            for clock in (*clocks, watch_clock):
                clock.sleep(0.5)
            for one in cohorts:
                if one.name in living:
                    one.beat()
            for one in cohorts:
                one.look()
            watch.look()

    half_seconds(4, "abc")
    assert [one.keeps_house() for one in cohorts] == [True, False, False]
    assert all(seen.alive for seen in watch.look().values())
    half_seconds(7, "bc")
    assert [one.keeps_house() for one in cohorts[1:]] == [True, False]
    assert {name: seen.alive for name, seen in watch.look().items()} == {"a": False, "b": True, "c": True}
    assert live_supervisor(store, outside) is None


@pytest.mark.parametrize("data", TORN)
def test_a_supervisor_whose_words_cannot_be_read_is_waited_for_as_long_as_any_other(data: bytes) -> None:
    class Meanwhile(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if self.monotonic() > 1.0 and speaks:
                store.put(SUPERVISOR, b'{"format": 1, "process": 7, "host": "here", "number": 3}')

    store, speaks = MemoryStore(), False
    store.put(SUPERVISOR, data)
    assert live_supervisor(store, clock := Meanwhile()) is None
    assert clock.monotonic() == pytest.approx(SILENT_AFTER, abs=0.3)
    speaks = True
    said = live_supervisor(store, Meanwhile())
    assert said is not None
    assert said["process"] == 7


def test_whatever_the_store_raises_a_replica_goes_on_to_give_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cohort, "BEAT", 0.01)
    store = MemoryStore()
    a = Cohort(store, SystemClock(), "a", 1).start()
    failed = threading.Event()

    def fails(prefix: str) -> list[str]:
        failed.set()
        raise OSError(errno.EACCES, "not allowed")

    try:
        with monkeypatch.context() as patch:
            patch.setattr(store, "list", fails)
            assert failed.wait(10)
        before = store.get(place_of(1, "a"))
        deadline = time.monotonic() + 10
        while store.get(place_of(1, "a")) == before and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
        assert store.get(place_of(1, "a")) != before
        assert a._thread.is_alive()
    finally:
        a.close()

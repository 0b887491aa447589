"""Leases: a live owner is found out by its beats, a dead one is waited for no longer than a lease's length."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from tests.memory_store import MemoryStore

from meander.clock import FakeClock, SystemClock
from meander.errors import Busy, Retryable
from meander.state.stores.contract import open_store
from meander.state.stores.lease import SECONDS, Lease, live_owner, refuse_beside_live


class Meanwhile(FakeClock):
    """A watcher's clock: while it sleeps, others act."""

    def __init__(self, act: Callable[[float], None]) -> None:
        super().__init__()
        self._act = act

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self._act(self.monotonic())


def test_an_owner_that_beats_is_live_and_named() -> None:
    store = MemoryStore()
    lease = Lease(store, 3, FakeClock())
    before = dict(store.objects)
    clock = Meanwhile(lambda now: lease.beat() if now >= 1.0 else None)
    with pytest.raises(Busy, match=rf"live run \(process {os.getpid()} on .*\); nothing was touched"):
        refuse_beside_live(store, 3, clock)
    assert 1.0 <= clock.monotonic() < 1.5, "it does not wait longer than for the next beat"
    assert store.objects.keys() == before.keys()


def test_an_owner_that_does_not_beat_is_dead_after_the_length_of_a_lease_on_the_watchers_own_clock() -> None:
    store = MemoryStore()
    Lease(store, 3, FakeClock(start=10_000_000.0))  # its machine's wall clock is months ahead
    clock = FakeClock()
    assert live_owner(store, 3, clock) is None
    assert clock.monotonic() == pytest.approx(SECONDS)


def test_a_released_lease_delays_nobody() -> None:
    store = MemoryStore()
    Lease(store, 3, FakeClock()).start().release()
    clock = FakeClock()
    refuse_beside_live(store, 3, clock)
    assert clock.monotonic() == 0.0


def test_a_release_while_somebody_watches_lets_it_go_ahead() -> None:
    store = MemoryStore()
    lease = Lease(store, 3, FakeClock())
    clock = Meanwhile(lambda now: lease.release() if now >= 2.0 else None)
    assert live_owner(store, 3, clock) is None
    assert clock.monotonic() < 2.5


def test_an_owner_between_takeover_and_first_beat_is_found() -> None:
    store = MemoryStore()
    clock = Meanwhile(lambda now: Lease(store, 3, FakeClock()) and None if now >= 3.0 else None)
    assert live_owner(store, 3, clock) is not None


def test_a_lease_removes_those_of_older_generations() -> None:
    store = MemoryStore()
    for generation in (9, 10, 11):
        Lease(store, generation, FakeClock())
    assert store.list("lease/") == ["lease/00000011"]


def test_a_store_that_is_away_does_not_end_the_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meander.state.stores.lease.SECONDS", 0.1)
    store, away = MemoryStore(), []

    def put(name: str, data: bytes) -> None:
        if away:
            away.append(name)
            raise Retryable("away")
        store.objects[name] = data

    monkeypatch.setattr(store, "put", put)
    lease = Lease(store, 1, SystemClock()).start()
    away.append("")
    while len(away) < 4:
        time.sleep(0.01)
    seen = store.get("lease/00000001")
    away.clear()
    deadline = time.monotonic() + 10
    while store.get("lease/00000001") == seen:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    lease.release()


HOLDER = """
import sys, time
from meander.clock import SystemClock
from meander.state.stores.lease import Lease
from meander.state.stores.contract import open_store
lease = Lease(open_store(sys.argv[1]), 1, SystemClock()).start()
print("held", flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_a_lease_refuses_a_second_process_and_ends_soon_after_kill_9(redis_url: str) -> None:
    url = f"{redis_url}/lease"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    owner = subprocess.Popen([sys.executable, "-c", HOLDER, url], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "held\n"
        store = open_store(url)
        with pytest.raises(Busy, match=f"process {owner.pid} on "):
            refuse_beside_live(store, 1, SystemClock())
        owner.send_signal(signal.SIGKILL)
        owner.wait(timeout=10)
        began = time.monotonic()
        refuse_beside_live(store, 1, SystemClock())
        assert time.monotonic() - began < SECONDS + 2
    finally:
        owner.kill()
        owner.communicate()


@pytest.mark.parametrize("data", [b"", b"{", b"7"])
def test_a_lease_that_cannot_be_read_is_watched_as_any_other(data: bytes) -> None:
    store, clock = MemoryStore(), FakeClock()
    store.put("lease/00000003", data)
    assert live_owner(store, 3, clock) is None
    assert clock.monotonic() == pytest.approx(SECONDS)
    assert live_owner(store, 3, Meanwhile(lambda now: store.put("lease/00000003", b"{"))) == (None if data == b"{" else "unknown process")

"""The loop of a run that was replaced: whatever it meets, it is told that it was, and not what it missed because of that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests.memory_store import MemoryStore
from tests.simulation.steady import ROWS, SOURCE, Steady, go_on, hurry, take_over

from meander.clock import FakeClock
from meander.connect.source import Split
from meander.epochs.decision import Decision, Outcome
from meander.epochs.loop import Loop
from meander.errors import Corrupted, Fenced, Retryable
from meander.state.log import _ATTEMPTS
from meander.state.manifest import Json, Manifest

FAR = 12


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


def replace(store: MemoryStore) -> None:
    """Somebody takes the store over, and goes on until all that the run before it needs is collected."""
    go_on(take_over(store, clock=FakeClock(2_000.0, seed=2)), FAR)


def started(store: MemoryStore) -> tuple[Loop, Steady]:
    source = Steady()
    loop = take_over(store, source=source)
    go_on(loop, 8)
    return loop, source


def idle(store: MemoryStore) -> Loop:
    """A run without input, and with nothing left to merge."""
    loop, source = started(store)
    source.paused = True
    for _ in range(30):
        assert not loop.step()
    return loop


class Overtaken:
    """A compactor whose run is replaced while it merges: what it was merging is gone."""

    def __init__(self, happens: Callable[[], None]) -> None:
        self._happens = happens

    def consider(self, manifest: Manifest, routing: Mapping[str, list[int]], slots: Mapping[str, int]) -> None:
        pass

    def collect(self) -> Json | None:
        self._happens()
        raise Corrupted("a segment is not in the store")

    def close(self) -> None:
        pass


def test_an_idle_run_notices_that_it_was_replaced() -> None:
    """It has nothing to append, so that it would never meet the seal."""
    store = MemoryStore()
    loop = idle(store)
    replace(store)
    with pytest.raises(Fenced, match="replaced by a newer one"):
        loop.step()


def test_an_idle_run_that_is_replaced_while_it_tidies_up_is_fenced_and_not_corrupted() -> None:
    store = MemoryStore()
    loop = idle(store)
    loop.housekeeping.compactor = Overtaken(lambda: replace(store))
    with pytest.raises(Fenced):
        loop.step()


def test_what_is_missing_without_a_successor_is_corruption() -> None:
    loop = idle(MemoryStore())
    loop.housekeeping.compactor = Overtaken(lambda: None)
    with pytest.raises(Corrupted):
        loop.step()


def test_an_epoch_that_somebody_else_decided_is_fenced_like_any_other() -> None:
    """Structured Streaming hands its batches to a replaced run, too, whose segments are gone."""
    store = MemoryStore()
    loop, _ = started(store)
    replace(store)
    epoch = loop.log.manifest.epoch + 1
    split = Split({"start": (epoch - 1) * ROWS, "end": epoch * ROWS}, ROWS, 0)
    with pytest.raises(Fenced):
        loop.run_epoch(Decision(epoch, loop.input.now(), ((SOURCE, split),), {}))


def test_a_replaced_run_is_not_told_to_try_again() -> None:
    """Its tasks fail again and again, as those do whose input its successor has removed."""

    class Failing:
        def begin(self, decision: Decision, manifest: Manifest, routing: dict[str, list[int]], prepared: Any) -> Callable[[], Outcome]:
            raise Retryable("the input cannot be read")

        def recover(self) -> None:
            pass

    store = MemoryStore()
    loop, _ = started(store)
    loop.attempts.runner = Failing()  # type: ignore[assignment]
    with pytest.raises(Retryable):
        loop.step()
    replace(store)
    with pytest.raises(Fenced):
        loop.step()


class Deaf(MemoryStore):
    """A store that does not answer: neither to a look at the log, nor to a put into it that it has done."""

    puts = looks = 0
    """How many of them it does not answer from now on."""

    def get(self, name: str) -> bytes | None:
        if self.looks and name.startswith("log/"):
            self.looks -= 1
            raise Retryable("no answer")
        return super().get(name)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        created = super().put_if_absent(name, data)
        if self.puts and name.startswith("log/"):
            self.puts -= 1
            raise Retryable("no answer")
        return created


def test_a_store_that_does_not_answer_does_not_stop_an_idle_run() -> None:
    store = Deaf()
    loop = idle(store)
    store.looks = 1
    assert not loop.step()
    assert store.looks == 0


def test_a_commit_that_was_never_answered_is_not_taken_for_a_successor() -> None:
    """Its entry stands where a seal would. The next start finds it; this run cannot know, and says so."""
    store = Deaf()
    loop, _ = started(store)
    store.puts = _ATTEMPTS
    with pytest.raises(Retryable, match="no answer"):
        loop.step()
    assert store.puts == 0
    assert take_over(store).log.manifest.epoch == 9


def test_an_error_is_told_as_it_is_where_nobody_can_say_whether_the_run_was_replaced() -> None:
    store = Deaf()
    loop = idle(store)
    loop.housekeeping.compactor = Overtaken(lambda: None)
    store.looks = 2
    with pytest.raises(Corrupted):
        loop.step()


def test_a_change_waits_for_the_epoch_that_runs_in_another_thread() -> None:
    """Structured Streaming runs epochs in a thread of its own: whoever asks for a change must not make it in the middle of one."""
    loop, _ = started(MemoryStore())
    inside, go = threading.Event(), threading.Event()
    begin, seen = loop.attempts.runner.begin, []

    def held(*arguments: Any) -> Callable[[], Outcome]:
        inside.set()
        assert go.wait(10)
        return begin(*arguments)

    loop.attempts.runner.begin = held  # type: ignore[method-assign]
    epoch = loop.log.manifest.epoch
    running = threading.Thread(target=loop.step)
    running.start()
    assert inside.wait(10)
    change = loop.requests.put(lambda: seen.append(loop.log.manifest.epoch))
    asking = threading.Thread(target=loop.requests.perform)
    asking.start()
    asking.join(0.2)
    assert not change.done()
    go.set()
    for thread in (running, asking):
        thread.join(10)
    assert seen == [epoch + 1]

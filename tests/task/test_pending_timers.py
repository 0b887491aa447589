"""The timers of keys while calls set, delete and fire them."""

from __future__ import annotations

from meander.task.operators.processors.per_key import Pending


def test_one_key_may_set_delete_and_fire_a_hundred_thousand_timers_in_an_epoch() -> None:
    many = 100_000
    timers = Pending({"event": [list(range(many))]})
    timers.begin(0)
    for at in range(many):
        timers.set("event", at)  # set already
        timers.set("event", many + at)
    for at in range(0, 2 * many, 2):
        timers.delete("event", at)
    assert len(timers.added) == many
    assert sum(timers.fire("event", 0, at) for at in range(2 * many)) == many
    assert not timers.of("event", 0)


def test_a_call_that_failed_has_done_nothing_to_timers() -> None:
    timers = Pending({"event": [[1, 2], [3]], "processing": [[], []]})
    timers.begin(0)
    timers.set("event", 5)
    timers.begin(0)
    for at in (1, 6, 5):
        timers.delete("event", at)
        timers.set("event", at + 10)
    timers.set("event", 1)
    timers.set("processing", 7)
    timers.roll_back()
    assert sorted(timers.of("event", 0)) == [1, 2, 5]
    assert list(timers.of("processing", 0)) == []
    assert list(timers.changed) == [("event", 0)]
    assert list(timers.added) == [("event", 0, 5)]
    timers.forget({0})
    assert sorted(timers.of("event", 0)) == [1, 2]
    assert not timers.changed
    assert not timers.added


def test_a_timer_that_was_set_already_changes_nothing() -> None:
    timers = Pending({"event": [[1, 2]]})
    timers.begin(0)
    timers.set("event", 2)
    timers.delete("event", 3)
    assert not timers.changed
    assert not timers.fire("event", 0, 3)
    assert not timers.changed

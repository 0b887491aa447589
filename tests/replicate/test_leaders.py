"""Leaders that live and cannot get an epoch done, without Spark: another one commits it, and nobody is deposed for nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.local import Local
from tests.replicate.ballot import Ballot, Candidate
from tests.replicate.test_replica_changes import changing
from tests.replicate.test_replicas import SCRIPT, Away, Patient, alone, during_its_run, finish, numbered, published, replica

import meander as md
from meander.clock import FakeClock


class Waiting(FakeClock):
    """Time that passes when somebody waits, and ends: who waits for ever is found."""

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        assert self.monotonic() < 300, "it waits for ever"


def voters(names: str, folder: Path, deposes_after: float = 1.0) -> tuple[Ballot, list[Local]]:
    """Replicas in leader mode; the first leads."""
    ballot = Ballot()
    made = [
        replica(SCRIPT, folder, name, election=Candidate(ballot, name, deposes_after), ahead=False, clock=Waiting(1000.0, seed))
        for seed, name in enumerate(names)
    ]
    for one in made:
        one.cohort.look()
    return ballot, made


def test_a_leader_that_cannot_get_an_epoch_done_is_deposed_by_who_has_it(tmp_path: Path) -> None:
    ballot, (a, b) = voters("ab", tmp_path)
    with during_its_run(a, b.step):  # its executor is lost: until Spark has another one all of this happens
        a.step()
    assert (b.manifest.epoch, b.manifest.by) == (1, "b")
    assert (a.manifest.epoch, a.manifest.by) == (1, "b"), "what it has made of the epoch in the end is not needed"
    assert (ballot.order, ballot.deposed) == ("ba", ["a-1"])
    assert not a.step(), "it does not decide any more"
    b.step()
    assert not a.step()
    assert numbered(tmp_path / "totals") == [1, 2]
    finish(b)
    finish(a)
    expected = alone(SCRIPT, tmp_path / "alone")
    assert {name: published(tmp_path / name) for name in expected} == expected
    assert ballot.deposed == ["a-1"]


def test_of_three_the_one_commits_that_has_the_epoch_whoever_is_next_in_line(tmp_path: Path) -> None:
    ballot, (a, b, c) = voters("abc", tmp_path)

    def b_is_stuck_as_well() -> None:
        with during_its_run(b, c.step):
            b.step()

    with during_its_run(a, b_is_stuck_as_well):
        a.step()
    assert {(one.manifest.epoch, one.manifest.by) for one in (a, b, c)} == {(1, "c")}
    assert (ballot.order, ballot.deposed) == ("cab", ["a-1", "b-2"])


def test_a_leader_has_its_time_anew_when_it_has_just_come_to_lead(tmp_path: Path) -> None:
    ballot, (_, _, c) = voters("abc", tmp_path)
    c.cohort.wait_for_leader(since=0.0)
    c.clock.sleep(0.9)
    c.cohort.wait_for_leader(since=0.0)
    ballot.remove("a-1")  # by somebody else
    c.clock.sleep(0.9)
    c.cohort.wait_for_leader(since=0.0)
    assert ballot.order == "bca", "it has waited longer than that, but not for this one"
    c.clock.sleep(1.1)
    c.cohort.wait_for_leader(since=0.0)
    assert ballot.order == "cab"


def test_nobody_is_deposed_for_an_epoch_that_takes_as_long_for_everybody(tmp_path: Path) -> None:
    ballot, (a, b) = voters("ab", tmp_path)
    for _ in range(3):
        with during_its_run(a, lambda: a.clock.sleep(30)):
            a.step()
        with during_its_run(b, lambda: b.clock.sleep(30)):
            b.step()
    assert ballot.deposed == []
    assert (a.manifest.epoch, a.manifest.by) == (3, "a")


def rounds(a: Local, b: Local, count: int) -> None:
    """What b sees of a in so many tenths of a second, and whatever b does."""
    for _ in range(count):
        a.cohort.beat()
        b.cohort.look()
        b.step()
        b.clock.sleep(0.1)


def test_a_leader_that_hangs_before_it_decides_is_deposed(tmp_path: Path) -> None:
    ballot, (a, b) = voters("ab", tmp_path)
    choose = a.loop.input.choose

    def hangs(*given: Any) -> Any:  # the folder that it lists does not answer, say
        rounds(a, b, 19)
        assert ballot.deposed == [], "it may still"
        rounds(a, b, 2)
        assert (ballot.deposed, ballot.order) == (["a-1"], "ba")
        rounds(a, b, 1)
        assert b.manifest.epoch == 1
        return choose(*given)

    with mock.patch.object(a.loop.input, "choose", hangs):
        a.step()
    finish(b)
    finish(a)
    assert ballot.deposed == ["a-1"]
    expected = alone(SCRIPT, tmp_path / "alone")
    assert {name: published(tmp_path / name) for name in expected} == expected


def test_a_leader_is_not_deposed_when_an_epoch_that_took_long_is_over(tmp_path: Path) -> None:
    ballot, (a, b) = voters("ab", tmp_path)
    house = a.loop.housekeeping.do
    rounds(a, b, 2)  # it waits for the first decision

    def long_epoch() -> None:
        for _ in range(50):
            a.cohort.beat()
            b.cohort.look()
            b.clock.sleep(0.1)

    def then_tidies_up(**given: bool) -> None:
        rounds(a, b, 5)
        assert b.manifest.epoch == 1
        house(**given)

    with during_its_run(a, long_epoch), mock.patch.object(a.loop.housekeeping, "do", then_tidies_up):
        a.step()
    assert ballot.deposed == []


def test_who_has_just_come_to_lead_is_not_deposed_for_what_the_one_before_said_last(tmp_path: Path) -> None:
    ballot, (a, b, c) = voters("abc", tmp_path, deposes_after=0.5)
    for one in (a, b, c):
        finish(one)
    with a.cohort.stepping():
        a.cohort.beat()  # and no more: it was killed
    ballot.line.remove("a-1")
    for _ in range(25):
        b.cohort.beat()
        c.cohort.look()
        c.step()
        c.clock.sleep(0.1)
    assert (ballot.deposed, ballot.order) == ([], "bc")


def test_who_leads_now_does_not_depose_itself_for_what_the_one_before_said_last(tmp_path: Path) -> None:
    ballot, (a, b) = voters("ab", tmp_path, deposes_after=0.5)
    finish(a)
    finish(b)
    with a.cohort.stepping():
        a.cohort.beat()  # and no more: it was paused
        b.cohort.look()
        ballot.remove("a-1")
        for _ in range(25):
            b.cohort.look()
            b.step()
            b.clock.sleep(0.1)
    assert (ballot.deposed, ballot.order) == (["a-1"], "ba")


def test_a_leader_that_rests_is_left_alone(tmp_path: Path) -> None:
    ballot, (a, b) = voters("ab", tmp_path)
    a.step()
    b.step()
    rounds(a, b, 100)
    assert ballot.deposed == []


def test_a_leader_that_takes_long_to_publish_is_left_alone(tmp_path: Path) -> None:
    ballot, (a, b) = voters("ab", tmp_path)
    publish, b_was_behind = a.loop.publisher.publish, []

    def slowly(*given: Any) -> None:
        rounds(a, b, 100)
        b_was_behind.append(b.manifest.epoch)
        publish(*given)

    with mock.patch.object(a.loop.publisher, "publish", slowly):
        a.step()
    assert (ballot.deposed, b_was_behind) == ([], [1])


def test_one_that_is_alone_leads_however_long_it_takes(tmp_path: Path) -> None:
    ballot, (a,) = voters("a", tmp_path)
    with during_its_run(a, lambda: a.clock.sleep(200)):
        a.step()
    assert (a.manifest.epoch, ballot.deposed) == (1, [])


def test_a_leader_whose_store_does_not_answer_lets_another_one_lead(tmp_path: Path) -> None:
    ballot, store = Ballot(), Away(tmp_path / "state")

    class Meanwhile(Patient):
        """While it waits, the other one is at work."""

        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            b.step()

    a = replica(SCRIPT, tmp_path, "a", store=store, clock=Meanwhile(), election=Candidate(ballot, "a"), ahead=False)
    b = replica(SCRIPT, tmp_path, "b", election=Candidate(ballot, "b"), ahead=False)
    store.away = range(store.calls + 1, store.calls + 30)
    a.loop.siblings.persevere(a.loop.step, everything=True)
    assert b.manifest.epoch >= 1, "somebody has decided"
    finish(b)
    finish(a)
    expected = alone(SCRIPT, tmp_path / "alone")
    assert {name: published(tmp_path / name) for name in expected} == expected


def test_a_leader_that_is_alone_gets_on_when_its_store_answers_again(tmp_path: Path) -> None:
    ballot, store = Ballot(), Away(tmp_path / "state")
    a = replica(SCRIPT, tmp_path, "a", store=store, clock=Patient(), election=Candidate(ballot, "a"), ahead=False)
    store.away = range(store.calls + 1, store.calls + 30)
    a.loop.siblings.persevere(a.loop.step, everything=True)
    assert a.manifest.epoch == 1


def test_a_follower_can_try_a_change_and_nobody_deposes_who_tries_one(tmp_path: Path) -> None:
    ballot = Ballot()
    a, b = (
        Local(
            changing(tmp_path),
            tmp_path / "state",
            replica=name,
            election=Candidate(ballot, name),
            ahead=False,
            clock=Waiting(1000.0, seed),
        )
        for seed, name in enumerate("ab")
    )
    for one in (a, b):
        one.cohort.look()
    a.step()

    def b_computes_the_same_epoch() -> None:
        b.cohort._siblings["a"].changed = b.clock.monotonic() + 30  # its signs of life go on
        with mock.patch.object(b.clock, "sleep", stopped_after(b.clock, 20.0)), pytest.raises(TimeoutError):
            b.step()

    trial = a.propose(md.Replace("kept", md.filter("k > 0")))
    with during_its_run(a, b_computes_the_same_epoch):
        a.step()
    assert trial.done.result().epoch == 2
    assert ballot.deposed == [], "the leader tries it: it has the time that it asked for"
    b.loop.siblings.persevere(b.loop.step)
    assert (b.manifest.epoch, b.modifier.plan.version) == (2, 2)

    def b_tries() -> None:
        """While a, which leads, computes the same epoch under the old plan."""
        change = b.propose(md.Replace("kept", md.filter("k > 1")))
        b.step()
        assert change.done.result().epoch == 3

    with during_its_run(a, b_tries):
        a.step()
    assert (a.manifest.epoch, a.manifest.by, a.modifier.plan.version) == (3, "b", 3)
    assert ballot.order == "ba"


def stopped_after(clock: FakeClock, seconds: float) -> Callable[[float], None]:
    until, sleep = clock.monotonic() + seconds, clock.sleep

    def stop(duration: float) -> None:
        sleep(duration)
        if clock.monotonic() > until:
            raise TimeoutError

    return stop


@pytest.mark.many
@pytest.mark.parametrize("names", ["a", "ab", "abc"])
def test_replicas_that_are_all_slower_than_leaders_may_be_get_on(names: str, tmp_path: Path) -> None:
    """Each in a thread of its own, and each epoch takes a multiple of the time that a leader is waited for."""
    ballot, lock = Ballot(), threading.RLock()

    class Locked(Candidate):
        def leads(self) -> bool:
            with lock:
                return super().leads()

        def leader(self) -> str | None:
            with lock:
                return super().leader()

        def depose(self, leader: str) -> None:
            with lock:
                super().depose(leader)

    made = [replica(SCRIPT, tmp_path, name, election=Locked(ballot, name, 0.02), ahead=False) for name in names]
    failed: list[BaseException] = []

    def work(one: Local, slow: float) -> None:
        begin = one.loop.attempts.runner.begin

        def begin_slowly(*arguments: Any) -> Any:
            result = begin(*arguments)
            return lambda: (time.sleep(slow), result())[1]

        try:
            with mock.patch.object(one.loop.attempts.runner, "begin", begin_slowly):
                deadline = time.monotonic() + 40
                while one.manifest.epoch < len(SCRIPT) and time.monotonic() < deadline:
                    one.step() or time.sleep(0.005)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(one, 0.1 + 0.06 * number), daemon=True) for number, one in enumerate(made)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert not failed
    assert {one.manifest.epoch for one in made} == {len(SCRIPT)}
    finish(next(one for one in made if one.cohort.leads()))
    expected = alone(SCRIPT, tmp_path / "alone")
    assert {name: published(tmp_path / name) for name in expected} == expected

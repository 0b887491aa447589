"""A supervisor over processes that stand in for replicas: whatever becomes of them, and of itself."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import meander as md
from meander.clock import SystemClock
from meander.processes import ProcessId, is_running
from meander.replicate import priority
from meander.replicate.process import Adopted, Child, replicas_here
from meander.replicate.requests import SUPERVISOR, ask, claim_term, live_supervisor
from meander.replicate.restarts import Death, Patience, Restarts
from meander.replicate.supervisor import Orders, Supervisor
from meander.state.signs import Said, place_of
from meander.state.stores.contract import DirStore

pytestmark = pytest.mark.many  # processes of its own in every test

FAKE = Path(__file__).with_name("fake_replica.py")
QUICK = Patience(pause=0.05, longest_pause=0.2, well_after=1.0, tries=3, start=5.0, hang=4.0, grace=1.5)


class Stage:
    """A store, and supervisors on it whose replicas do what they are told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = DirStore(folder / "state")
        self.told: list[str] = []
        self.firsts: list[tuple[str, bool]] = []
        self.supervisors: list[Supervisor] = []
        self.does: dict[str, str] = {}
        self.wrapper: list[str] = []

    def command(self, name: str, first: bool) -> list[str]:
        self.firsts.append((name, first))
        return [*self.wrapper, sys.executable, "-S", "-E", str(FAKE), str(self.store.root), name, self.does.get(name, "live")]

    def start(self, count: int, patience: Patience = QUICK) -> Supervisor:
        made = Supervisor(
            self.store, SystemClock(), Orders(self.command, count, self.folder / "logs"), patience=patience, tell=self.told.append
        )
        self.supervisors.append(made)
        return made.start()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    for supervisor in made.supervisors:
        supervisor.kill()
        supervisor.close()


def until(supervisor: Supervisor, condition: Callable[[], Any], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, supervisor.replicas()
        supervisor.step()
        time.sleep(0.02)


def states(supervisor: Supervisor) -> dict[str, str]:
    return {one["name"]: one["state"] for one in supervisor.replicas()}


def all_running(supervisor: Supervisor, *names: str) -> Callable[[], bool]:
    return lambda: states(supervisor) == dict.fromkeys(names, "running")


def pid(supervisor: Supervisor, name: str) -> int:
    found = next(one["process"] for one in supervisor.replicas() if one["name"] == name)
    assert isinstance(found, int)
    return found


def done(supervisor: Supervisor, future: Future[list[str]]) -> list[str]:
    until(supervisor, future.done)
    return future.result()


def test_a_killed_replica_comes_back_and_the_others_are_left_alone(stage: Stage) -> None:
    supervisor = stage.start(2)
    until(supervisor, all_running(supervisor, "a", "b"))
    first, other = pid(supervisor, "a"), pid(supervisor, "b")
    os.kill(first, signal.SIGKILL)
    until(supervisor, lambda: states(supervisor)["a"] != "running")
    until(supervisor, all_running(supervisor, "a", "b"))
    assert pid(supervisor, "a") != first
    assert pid(supervisor, "b") == other
    assert [one["restarts"] for one in supervisor.replicas()] == [1, 0]
    assert any("has died: it was killed by SIGKILL; it is started again at once" in line for line in stage.told)
    assert stage.firsts.count(("a", True)) == stage.firsts.count(("a", False)) == 1, "the second start is told from the first"
    supervisor.stop()
    assert not is_running(other)
    assert stage.store.get(SUPERVISOR) is None


def test_one_that_fails_at_once_again_and_again_is_given_up_and_the_others_go_on(stage: Stage) -> None:
    stage.does["b"] = "crash"
    supervisor = stage.start(2)
    until(supervisor, lambda: states(supervisor) == {"a": "running", "b": "given up"})
    assert stage.firsts.count(("b", False)) == 2
    assert supervisor.last_lines("b") == ["b does: crash", "error: there is no column 'x'"]
    assert "there is no column 'x'" in next(one["error"] for one in supervisor.replicas() if one["name"] == "b")
    assert not supervisor.over
    supervisor.stop()
    assert (supervisor.outcome, supervisor.failure()) == ("stopped", None)


def test_when_none_is_left_it_ends_with_the_error_of_the_last(stage: Stage) -> None:
    stage.does = {"a": "cannot be", "b": "cannot be"}
    supervisor = stage.start(2)
    until(supervisor, lambda: supervisor.over)
    assert len(stage.firsts) == 2, "what a start does not cure is not tried again"
    failure = supervisor.failure()
    assert isinstance(failure, md.FlowError)
    assert "there is no column 'x'" in str(failure)
    assert "replica-b.log" in str(failure)


def test_one_that_comes_up_and_fails_by_itself_is_given_up_after_a_while(stage: Stage) -> None:
    stage.does["a"] = "fail soon"
    supervisor = stage.start(1)
    until(supervisor, lambda: supervisor.over)
    assert len(stage.firsts) == QUICK.tries
    assert "something else came out" in str(supervisor.failure())


def test_one_whose_input_has_ended_is_not_started_again(stage: Stage) -> None:
    stage.does = {"a": "finish", "b": "finish"}
    supervisor = stage.start(2)
    until(supervisor, lambda: supervisor.over)
    assert supervisor.outcome == "finished"
    assert len(stage.firsts) == 2
    with pytest.raises(md.ConfigError, match="about to end"):
        supervisor.add()


def test_one_that_dies_after_another_has_finished_need_not_come_back(stage: Stage) -> None:
    stage.does["a"] = "finish"
    supervisor = stage.start(2)
    until(supervisor, lambda: states(supervisor) == {"a": "finished", "b": "running"})
    os.kill(pid(supervisor, "b"), signal.SIGKILL)
    until(supervisor, lambda: supervisor.over)
    assert states(supervisor) == {"a": "finished", "b": "finished"}


@pytest.mark.slow
def test_one_that_hangs_is_replaced(stage: Stage) -> None:
    supervisor = stage.start(1)
    until(supervisor, all_running(supervisor, "a"))
    paused = pid(supervisor, "a")
    os.kill(paused, signal.SIGSTOP)
    until(supervisor, lambda: states(supervisor) == {"a": "silent"})
    until(supervisor, lambda: states(supervisor) == {"a": "running"} and pid(supervisor, "a") != paused)
    assert any("silent for 4 s: killed" in line for line in stage.told)
    supervisor.stop()


def test_one_that_was_paused_for_a_moment_is_not(stage: Stage) -> None:
    supervisor = stage.start(1)
    until(supervisor, all_running(supervisor, "a"))
    paused = pid(supervisor, "a")
    os.kill(paused, signal.SIGSTOP)
    until(supervisor, lambda: states(supervisor) == {"a": "silent"})
    os.kill(paused, signal.SIGCONT)
    until(supervisor, all_running(supervisor, "a"))
    assert pid(supervisor, "a") == paused


def test_one_that_never_shows_up_is_replaced_and_then_given_up(stage: Stage) -> None:
    stage.does["a"] = "mute"
    supervisor = stage.start(1, Patience(pause=0.05, tries=2, start=0.5))
    until(supervisor, lambda: supervisor.over)
    assert "gave no sign of life within 0.5 s" in str(supervisor.failure())


def test_one_that_does_not_want_to_end_is_killed_after_the_grace(stage: Stage) -> None:
    stage.does["a"] = "stubborn"
    supervisor = stage.start(2)
    until(supervisor, all_running(supervisor, "a", "b"))
    both = [pid(supervisor, name) for name in "ab"]
    began = time.monotonic()
    supervisor.stop()
    assert QUICK.grace <= time.monotonic() - began < QUICK.grace + 5
    assert not any(is_running(one) for one in both)
    record = json.loads((stage.folder / "logs" / "replica-b.ended").read_text())
    assert record["outcome"] == "stopped", "the other could end as it wanted"


def test_more_and_fewer_while_they_run(stage: Stage) -> None:
    supervisor = stage.start(2)
    until(supervisor, all_running(supervisor, "a", "b"))
    assert done(supervisor, supervisor.add()) == ["c"]
    assert states(supervisor)["c"] == "running"
    gone = pid(supervisor, "a")
    assert done(supervisor, supervisor.drain("a")) == ["a"]
    assert set(states(supervisor)) == {"b", "c"}
    assert not is_running(gone)
    until(supervisor, lambda: "a" not in supervisor._sightings)
    assert done(supervisor, supervisor.add()) == ["a"], "a name that is free again"
    with pytest.raises(md.ConfigError, match="there is no replica 'x' here; there are: a, b, c"):
        supervisor.drain("x")


def test_the_last_one_is_not_let_go(stage: Stage) -> None:
    supervisor = stage.start(1)
    with pytest.raises(md.ConfigError, match="the only one"):
        supervisor.drain("a")


def test_restarts_go_one_after_the_other(stage: Stage) -> None:
    supervisor = stage.start(3)
    until(supervisor, all_running(supervisor, "a", "b", "c"))
    before = {name: pid(supervisor, name) for name in "abc"}
    rolling, fewest = supervisor.restart(), 3

    def over() -> bool:
        nonlocal fewest
        fewest = min(fewest, sum(state == "running" for state in states(supervisor).values()))
        return rolling.done()

    until(supervisor, over, 30.0)
    assert rolling.result() == ["a", "b", "c"]
    assert fewest == 2
    assert all(pid(supervisor, name) != before[name] for name in "abc")


def test_a_restart_that_fails_stops_there(stage: Stage) -> None:
    supervisor = stage.start(2)
    until(supervisor, all_running(supervisor, "a", "b"))
    other = pid(supervisor, "b")
    stage.does["a"] = "cannot be"
    with pytest.raises(md.FlowError, match="replica a was given up"):
        done(supervisor, supervisor.restart())
    assert states(supervisor) == {"a": "given up", "b": "running"}
    assert pid(supervisor, "b") == other
    stage.does["a"] = "live"
    assert done(supervisor, supervisor.restart("a")) == ["a"], "who was given up gets another chance"


def test_it_is_asked_through_the_store(stage: Stage) -> None:
    supervisor = stage.start(1)
    until(supervisor, all_running(supervisor, "a"))
    script = (
        "import sys; from meander.cli.main import main\n"
        "sys.exit(main(['replicas', 'add', '--store', sys.argv[1]]) or main(['replicas', 'drain', 'a', '--store', sys.argv[1]]))"
    )
    asking = subprocess.Popen([sys.executable, "-c", script, str(stage.store.root)], stdout=subprocess.PIPE, text=True)
    until(supervisor, lambda: asking.poll() is not None, 30)
    assert asking.returncode == 0
    assert asking.communicate()[0].count("replica") >= 2
    assert states(supervisor) == {"b": "running"}
    assert stage.store.list("replicas/asked/") == stage.store.list("replicas/answered/") == []


WRONG = {
    "count": b'{"format": 1, "do": "add", "count": "x"}',
    "no name": b'{"format": 1, "do": "drain"}',
    "no sense": b'{"format": 1, "do": ["add"], "count": {}}',
    "half": b'{"format": 1, "do": "add", "cou',
    "list": b"[1]",
    "empty": b"",
}


def test_a_wish_that_makes_no_sense_is_refused_and_the_next_one_is_fulfilled(stage: Stage) -> None:
    supervisor = stage.start(1)
    for identity, wish in WRONG.items():
        stage.store.put(f"replicas/asked/{identity}", wish)
    until(supervisor, lambda: len(stage.store.list("replicas/answered/")) == len(WRONG))
    said = [json.loads(stage.store.get(name) or b"") for name in stage.store.list("replicas/answered/")]
    refusals = {"ConfigError": "does not understand", "Corrupted": "does not say its format"}
    assert {one["kind"] for one in said} == {*refusals}
    assert all(refusals[one["kind"]] in one["error"] for one in said)
    until(supervisor, lambda: stage.store.list("replicas/asked/") == [])
    asking = threading.Thread(target=ask, args=(stage.store, SystemClock(), "add", 20.0), kwargs={"count": 1})
    asking.start()
    until(supervisor, lambda: not asking.is_alive())
    assert all_running(supervisor, "a", "b")()


def test_whatever_the_store_raises_the_supervisor_goes_on_to_look(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = stage.start(1)
    until(supervisor, all_running(supervisor, "a"))

    def fails(prefix: str) -> list[str]:
        raise OSError(errno.EACCES, "not allowed")

    with monkeypatch.context() as patch:
        patch.setattr(stage.store, "list", fails)
        until(supervisor, lambda: any("cannot look after the store: PermissionError" in line for line in stage.told))
    said = json.loads(stage.store.get(SUPERVISOR) or b"")["number"]
    until(supervisor, lambda: json.loads(stage.store.get(SUPERVISOR) or b"")["number"] > said)


def test_a_replica_that_cannot_be_started_now_is_started_later_and_the_others_go_on(stage: Stage) -> None:
    supervisor = stage.start(1)
    until(supervisor, all_running(supervisor, "a"))
    log = stage.folder / "logs" / "replica-b.log"
    log.with_suffix(".before.log").mkdir()  # what the system says does not matter
    (log.with_suffix(".before.log") / "full").touch()
    log.touch()
    added = supervisor.add()
    until(supervisor, lambda: any("replica b: it cannot be started" in line for line in stage.told))
    for _ in range(5):
        supervisor.step()
        time.sleep(0.1)
    assert states(supervisor) == {"a": "running", "b": "waiting"}
    log.unlink()
    assert done(supervisor, added) == ["b"]


def test_where_there_is_no_supervisor_asking_says_so(stage: Stage) -> None:
    with pytest.raises(md.ConfigError, match="no supervisor answers"):
        ask(stage.store, SystemClock(), "add", 5.0)


def test_a_second_supervisor_is_refused(stage: Stage) -> None:
    stage.start(1)
    with pytest.raises(md.Busy, match="has a supervisor at work"):
        stage.start(1)
    stage.supervisors[1].stop()
    assert stage.store.get(SUPERVISOR) is not None, "that is the first one's"
    assert len(stage.firsts) == 1


def test_what_a_killed_supervisor_leaves_is_adopted_by_the_next(stage: Stage) -> None:
    lost = stage.start(2)
    until(lost, all_running(lost, "a", "b"))
    before = {name: pid(lost, name) for name in "ab"}
    killed_supervisor(lost, stage)
    again = stage.start(3)
    until(again, all_running(again, "a", "b", "c"))
    assert {name: pid(again, name) for name in "ab"} == before
    assert [name for name, _ in stage.firsts] == ["a", "b", "c"]
    os.kill(before["a"], signal.SIGKILL)
    lost._members["a"].process.ended()  # type: ignore[union-attr]  # a parent that lives must reap it; init would have
    until(again, lambda: states(again)["a"] != "running")
    until(again, all_running(again, "a", "b", "c"))
    assert pid(again, "a") != before["a"]
    again.stop()
    assert not is_running(before["b"])


def killed_supervisor(supervisor: Supervisor, stage: Stage) -> None:
    """As if it had been killed: its replicas and its last words stay."""
    supervisor._halt.set()
    supervisor._observer.join()
    words = json.loads(stage.store.get(SUPERVISOR) or b"")
    stage.store.put(SUPERVISOR, json.dumps({**words, "process": 2**22 + 1}).encode())


def test_a_replica_that_has_not_come_up_when_its_supervisor_is_killed_is_not_started_twice(stage: Stage) -> None:
    stage.does["a"] = "mute"  # its Spark takes a while
    lost = stage.start(1)
    first = pid(lost, "a")
    killed_supervisor(lost, stage)
    stage.does["b"] = "live"
    again = stage.start(2)
    assert (states(again)["a"], pid(again, "a")) == ("starting", first)
    until(again, lambda: states(again) == {"a": "starting", "b": "running"})
    assert [name for name, _ in stage.firsts] == ["a", "b"]
    again.stop()
    assert not is_running(first)


@pytest.mark.parametrize("silent", ["not up yet", "hung"])
def test_a_replica_behind_a_wrapper_is_not_started_twice_where_it_is_silent_when_its_supervisor_is_killed(
    stage: Stage, silent: str
) -> None:
    """The wrapper becomes the replica, whose command line is another one then."""
    wrapper = stage.folder / "wrapper"
    wrapper.write_text('#!/bin/sh\nexec env MEANDER_TEST=1 "$@"\n')
    wrapper.chmod(0o755)
    stage.wrapper, stage.does["a"] = [str(wrapper)], "mute" if silent == "not up yet" else "live"
    lost = stage.start(1)
    first = pid(lost, "a")
    if silent == "hung":
        until(lost, all_running(lost, "a"))
        os.kill(first, signal.SIGSTOP)
    killed_supervisor(lost, stage)
    again = stage.start(1, replace(QUICK, hang=60.0))
    assert pid(again, "a") == first
    assert [name for name, _ in stage.firsts] == ["a"]
    os.kill(first, signal.SIGCONT)
    again.stop()
    assert not is_running(first)


def test_a_replica_that_hangs_when_its_supervisor_is_killed_is_replaced_and_not_left_behind(stage: Stage) -> None:
    lost = stage.start(1)
    until(lost, all_running(lost, "a"))
    hung = pid(lost, "a")
    killed_supervisor(lost, stage)
    os.kill(hung, signal.SIGSTOP)
    again = stage.start(1, replace(QUICK, hang=1.0))
    until(again, lambda: states(again) == {"a": "running"} and pid(again, "a") != hung)
    assert not is_running(hung)


def test_of_two_processes_of_one_replica_the_one_that_is_at_work_stays(stage: Stage) -> None:
    lost = stage.start(1)
    until(lost, all_running(lost, "a"))
    kept = pid(lost, "a")
    killed_supervisor(lost, stage)
    words = [*stage.command("a", False)[:-1], "mute"]
    double = Child(words, stage.folder / "log", stage.folder / "record", stage.store.url, "a")
    again = stage.start(1)
    until(again, all_running(again, "a"))
    until(again, lambda: double.ended() is not None)
    assert pid(again, "a") == kept
    assert any(f"process {double.id.pid} is killed" in line for line in stage.told)


def test_what_a_replica_starts_and_the_replicas_of_other_stores_are_not_taken_for_its_own(stage: Stage) -> None:
    """A steward leads a session of its own, and inherits the environment."""
    sleep = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    words = [sys.executable, "-S", "-c", f"import subprocess, time; subprocess.Popen({sleep!r}, start_new_session=True); time.sleep(60)"]
    replica = Child(words, stage.folder / "log", stage.folder / "record", stage.store.url, "a")
    try:
        deadline = time.monotonic() + 10
        while not (found := replicas_here(stage.store.url)) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.3)
        assert found == replicas_here(stage.store.url) == [("a", replica.id)]
        assert replicas_here("file:///elsewhere") == []
    finally:
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"MEANDER_REPLICA_ENDED={stage.folder / 'record'}".encode() in (entry / "environ").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
        while replica.ended() is None:
            time.sleep(0.01)


@pytest.fixture
def bystander() -> Iterator[ProcessId]:
    """A process that has nothing to do with replicas, in a session of its own."""
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], start_new_session=True) as process:
        yield ProcessId.of(process.pid)
        process.kill()


@pytest.mark.parametrize("other", [{"born": "1"}, {"system": "before the last boot"}, {"system": "another container", "born": "1"}])
def test_a_process_that_only_has_the_number_of_a_replica_is_neither_adopted_nor_killed(
    other: dict[str, str], stage: Stage, bystander: ProcessId
) -> None:
    over, number = threading.Event(), itertools.count()
    said = replace(bystander, **other)

    def beat() -> None:
        while not over.wait(0.05):
            stage.store.put(place_of(1, "a"), Said(next(number), 3, said).to_bytes())

    stage.store.put(place_of(1, "a"), Said(next(number), 3, said).to_bytes())
    beating = threading.Thread(target=beat)
    beating.start()
    try:
        supervisor = stage.start(1)
        until(supervisor, all_running(supervisor, "b"))
        supervisor.stop()
    finally:
        over.set()
        beating.join()
    lost = Adopted(said, stage.folder / "log", stage.folder / "record")
    ended = lost.ended()
    assert ended is not None
    assert ended.outcome == "killed"
    lost.terminate()
    lost.kill()
    assert bystander.is_running


def test_what_an_adopted_replica_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    """Its JVM, say, which notices only after a while that it is alone."""
    words = "import subprocess, sys; left = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)'], stdout=2); "
    words += "print(left.pid, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as leader:
        assert leader.stdout is not None
        left = ProcessId.of(int(leader.stdout.readline()))
        adopted = Adopted(ProcessId.of(leader.pid), tmp_path / "log", tmp_path / "record")
        assert adopted.ended() is None
        leader.kill()
        leader.wait()
    assert adopted.ended() is not None
    assert left.is_running
    adopted.kill()
    deadline = time.monotonic() + 10
    while left.is_running and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left.is_running


def test_the_next_supervisor_lets_those_go_that_are_too_many(stage: Stage) -> None:
    lost = stage.start(2)
    until(lost, all_running(lost, "a", "b"))
    lost.close()
    again = stage.start(1)
    until(again, lambda: states(again) == {"a": "running"})
    assert len(stage.firsts) == 2


def test_a_supervisor_that_was_replaced_lets_go(stage: Stage) -> None:
    supervisor = stage.start(1)
    until(supervisor, all_running(supervisor, "a"))
    supervisor._halt.set()
    supervisor._observer.join()
    stage.store.put(SUPERVISOR, json.dumps({"term": 2, "process": 1, "host": "elsewhere", "number": 1}).encode())
    supervisor.observe()
    assert supervisor.over
    assert isinstance(supervisor.failure(), md.Fenced)
    supervisor.stop()
    assert is_running(pid(supervisor, "a"))
    assert stage.store.get(SUPERVISOR) is not None, "that is the other's"


def test_a_supervisor_that_was_paused_starts_nothing_before_it_knows_that_it_still_is_one(stage: Stage) -> None:
    """Another one has taken it for dead, adopted its replicas, and replaced one that died."""
    paused = stage.start(1)
    until(paused, all_running(paused, "a"))
    paused._halt.set()
    paused._observer.join()
    first = pid(paused, "a")
    paused._stepped -= 60.0
    again = stage.start(1)
    assert pid(again, "a") == first
    os.kill(first, signal.SIGKILL)
    while paused._members["a"].process is not None:
        paused.step()
    for _ in range(3):
        paused.step()
    assert states(paused) == {"a": "waiting"}, "it may have been replaced"
    paused.observe()
    assert paused.replaced
    until(again, lambda: states(again) == {"a": "running"} and pid(again, "a") != first)
    assert len(stage.firsts) == 2


def test_a_supervisor_that_was_paused_goes_on_where_it_still_is_the_one(stage: Stage) -> None:
    paused = stage.start(1)
    until(paused, all_running(paused, "a"))
    first = pid(paused, "a")
    paused._stepped -= 60.0
    os.kill(first, signal.SIGKILL)
    until(paused, lambda: states(paused) == {"a": "running"} and pid(paused, "a") != first)


def test_what_a_supervisor_writes_when_it_wakes_up_does_not_depose_the_one_that_replaced_it(stage: Stage) -> None:
    paused = stage.start(1)
    until(paused, all_running(paused, "a"))
    paused._halt.set()
    paused._observer.join()
    again = stage.start(1)
    paused._say()  # it was paused after it had looked who is there
    again.observe()
    assert not again.replaced
    paused.observe()
    assert paused.replaced


def test_of_two_supervisors_that_start_at_once_one_does(stage: Stage) -> None:
    claimed = claim_term(stage.store, 1, "the other")
    assert claimed
    with pytest.raises(md.Busy, match="started at the same time"), mock.patch("meander.replicate.supervisor.newest_term", return_value=0):
        stage.start(1)
    assert stage.firsts == []
    stage.start(1)
    assert stage.store.list("replicas/terms/") == ["replicas/terms/00000002"]


def test_a_name_that_is_used_on_another_machine_is_not_taken(stage: Stage) -> None:
    said: dict[str, Any] = {"name": "a", "epoch": 3, "process": 7, "host": "elsewhere", "system": "another", "born": "1"}
    program = """
import json, sys, time
for number in range(400):
    open(sys.argv[1], "w").write(json.dumps({**json.loads(sys.argv[2]), "number": number}))
    time.sleep(0.05)
"""
    place = _made(stage.store.root / "replicas" / "00000001") / "a"
    writer = subprocess.Popen([sys.executable, "-W", "ignore", "-c", program, str(place), json.dumps(said)])
    try:
        time.sleep(0.5)
        supervisor = stage.start(1)
        until(supervisor, all_running(supervisor, "b"))
        supervisor.stop()
        assert live_supervisor(stage.store, SystemClock()) is None
    finally:
        writer.kill()
        writer.wait()


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def test_who_is_killed_from_outside_is_never_given_up() -> None:
    record = Restarts(Patience(pause=1.0, longest_pause=4.0, tries=2))
    assert [record.after(Death(1.0, by_itself=False)) for _ in range(6)] == [0.0, 1.0, 2.0, 4.0, 4.0, 4.0]


def test_who_was_well_for_a_while_begins_anew() -> None:
    record = Restarts(Patience(pause=1.0, well_after=10.0, tries=2))
    for _ in range(5):
        assert record.after(Death(11.0, by_itself=True)) == 0.0
    assert record.after(Death(1.0, by_itself=True)) is None


def test_who_was_fenced_does_not_come_back() -> None:
    assert Restarts(Patience()).after(Death(100.0, by_itself=True, error="Fenced")) is None


def courtesies(supervisor: Supervisor, *names: str) -> list[tuple[str, int]]:
    """The priority of each one's session among sessions, and its own."""
    pids = [pid(supervisor, name) for name in names]
    return [(Path(f"/proc/{one}/autogroup").read_text().split()[-1], os.getpriority(os.PRIO_PROCESS, one)) for one in pids]


def killed(supervisor: Supervisor, name: str) -> None:
    """Kill one, and have it started again."""
    before = pid(supervisor, name)
    os.kill(before, signal.SIGKILL)
    until(supervisor, lambda: states(supervisor)[name] == "starting" and pid(supervisor, name) != before)


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="sessions have no priorities here")
def test_who_comes_up_beside_others_gives_way_to_them_until_it_has_settled_in(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priority, "SETTLED_AFTER", 0.5)
    usual, lower = (
        os.getpriority(os.PRIO_PROCESS, 0),
        min(19, os.getpriority(os.PRIO_PROCESS, 0) + (priority.LOWER if priority.may_raise() else 0)),
    )
    supervisor = stage.start(2)
    assert courtesies(supervisor, "a", "b") == [("0", usual)] * 2  # nobody is at work
    until(supervisor, all_running(supervisor, "a", "b"))
    killed(supervisor, "b")
    assert courtesies(supervisor, "a", "b") == [("0", usual), (str(priority.LOWER), lower)]
    until(supervisor, all_running(supervisor, "a", "b"))
    until(supervisor, lambda: courtesies(supervisor, "b") == [("0", usual)])


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="sessions have no priorities here")
def test_nobody_gives_way_to_no_one_or_for_ever(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = stage.start(2)
    until(supervisor, all_running(supervisor, "a", "b"))
    stage.does["b"] = "mute"
    killed(supervisor, "b")
    assert courtesies(supervisor, "b")[0][0] == "10"
    killed(supervisor, "a")  # there is nobody at work any more
    until(supervisor, lambda: courtesies(supervisor, "b")[0][0] == "0")
    until(supervisor, lambda: states(supervisor)["a"] == "running")
    monkeypatch.setattr(priority, "LONGEST", 1.0)
    killed(supervisor, "b")
    assert courtesies(supervisor, "b")[0][0] == "10"
    until(supervisor, lambda: courtesies(supervisor, "b")[0][0] == "0")


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="sessions have no priorities here")
def test_who_gives_way_when_its_supervisor_is_killed_is_as_the_others_under_the_next(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([False, False])  # Linux allows ten changes per second
    supervisor = stage.start(2)
    until(supervisor, all_running(supervisor, "a", "b"))
    killed(supervisor, "b")
    until(supervisor, all_running(supervisor, "a", "b"))
    assert courtesies(supervisor, "b")[0][0] == "10"
    supervisor.close()
    monkeypatch.setattr(priority, "_raise_again", lambda *given, really=priority._raise_again: next(answers, True) and really(*given))
    again = stage.start(2)
    until(again, lambda: courtesies(again, "a", "b") == [("0", os.getpriority(os.PRIO_PROCESS, 0))] * 2)


@pytest.mark.skipif(not priority.may_raise(), reason="priorities can only be lowered here")
def test_what_is_of_low_priority_in_a_replica_stays_so_when_it_has_settled_in() -> None:
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    helper = "import os, time; os.nice(10); print(os.getpid(), flush=True); time.sleep(30)"
    leader = f"import subprocess, sys, time; sys.stdin.read(1); subprocess.run([sys.executable, '-S', '-c', {helper!r}])"
    words = [sys.executable, "-S", "-c", leader]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            way = priority.LowPriority.begin(process.pid, now=0.0)
            process.stdin.write(b"\n")
            process.stdin.flush()
            beside = int(process.stdout.readline())
            assert [os.getpriority(os.PRIO_PROCESS, one) for one in (process.pid, beside)] == [min(19, usual + 10), min(19, usual + 20)]
            while not way.is_over(now=10.0, at_work_since=1.0, beside_others=True):
                time.sleep(0.05)
            assert os.getpriority(os.PRIO_PROCESS, process.pid) == usual
            while not priority.LowPriority.overdue(process.pid).is_over(now=20.0, at_work_since=None, beside_others=True):
                time.sleep(0.05)  # adopted by another supervisor
            assert os.getpriority(os.PRIO_PROCESS, beside) == min(19, usual + 20) - (min(19, usual + 10) - usual)
        finally:
            os.killpg(process.pid, signal.SIGKILL)

"""A store that is away for a while costs that while, and nothing else: whatever was under way, and whether or not it arrived."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl
import pyarrow as pa
import pytest
from tests.local import Local, Script, constants
from tests.memory_store import MemoryStore

import meander as md
from meander.clock import FakeClock
from meander.coordinate.routing import rebalance, slots_of
from meander.epochs import patience as patience_module
from meander.epochs.patience import LONGEST_WAIT, Patience
from meander.errors import Fenced, Retryable, Unavailable
from meander.on_spark.jobs import failure_of
from meander.plan.change.modify import Remove, Replace
from meander.state import log as log_module
from meander.state.log import Log
from meander.state.stores.contract import DirStore

COLUMNS = {"k": pl.Int64(), "v": pl.Int64()}
EPOCHS = 5
SCRIPT = tuple(((0, tuple((key, epoch) for key in range(3))),) for epoch in range(EPOCHS))
MINUTE = 60.0


class Away(DirStore):
    """Answers to nothing for a minute, from one of its calls on."""

    def __init__(self, root: Path, clock: FakeClock, call: int = 1 << 30, arrives: bool = False) -> None:
        super().__init__(root, clock)
        self.time, self.call, self.arrives, self.calls = clock, call, arrives, 0
        self._until: float | None = None

    def _answer(self, name: str, does: Callable[[], Any], writes: bool = False) -> Any:
        self.calls += 1
        if self.calls == self.call:
            self._until = self.time.monotonic() + MINUTE
            if writes and self.arrives:
                does()
        if self._until is not None and self.time.monotonic() < self._until:
            raise Unavailable(f"store: '{name}': no answer")
        return does()

    def get(self, name: str) -> bytes | None:
        found: bytes | None = self._answer(name, lambda: DirStore.get(self, name))
        return found

    def put(self, name: str, data: bytes | pa.Buffer) -> None:
        self._answer(name, lambda: DirStore.put(self, name, data), writes=True)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return bool(self._answer(name, lambda: DirStore.put_if_absent(self, name, data), writes=True))

    def list(self, prefix: str) -> list[str]:
        found: list[str] = self._answer(prefix, lambda: DirStore.list(self, prefix))
        return found

    def delete(self, name: str) -> None:
        self._answer(name, lambda: DirStore.delete(self, name), writes=True)


def flow_of(out: Any, called: list[int] | None = None) -> md.Flow:
    flow = md.Flow("held")
    totals = flow.source("events", Script(COLUMNS, SCRIPT)).key_by("k").aggregate(md.sum("v").alias("total"), name="totals")
    totals.sink("out", out)
    if called is not None:
        totals.sink("called", md.foreach_batch(lambda frame, epoch: called.append(epoch)))
    return flow


def run(local: Local) -> None:
    while local.loop.siblings.persevere(local.loop.step, everything=True):
        pass


@pytest.mark.many
@pytest.mark.parametrize("replica", [None, "a"])
@pytest.mark.parametrize("arrives", [False, True])
def test_a_store_that_is_away_for_a_minute_costs_nothing_but_the_minute(tmp_path: Path, arrives: bool, replica: str | None) -> None:
    expected = md.memory()
    with constants(SNAPSHOT_EVERY=(log_module, 3)):
        Local(flow_of(expected), tmp_path / "expected").run()
        calls, waited = 1, 0
        while True:
            clock = FakeClock(1000.0, seed=calls)
            store, out, called = Away(tmp_path / f"{calls}", clock), md.memory(), list[int]()
            local = Local(flow_of(out, called), tmp_path / f"{calls}", store=store, clock=clock, replica=replica)
            store.call, store.arrives = store.calls + calls, arrives
            run(local)
            assert out.epochs().keys() == expected.epochs().keys()
            assert all(out.epochs()[epoch].equals(frame) for epoch, frame in expected.epochs().items())
            assert set(called) == set(range(1, EPOCHS + 1))
            if replica is None:  # it knows what it has published; a replica asks the store
                assert len(called) == EPOCHS
            if store.calls < store.call:
                break
            waited += clock.monotonic() >= MINUTE  # nobody waits for a deletion
            calls += 2 if replica is None else 7
    assert waited >= 8


@pytest.mark.many
@pytest.mark.parametrize("call", range(0, 30, 2))
@pytest.mark.parametrize("arrives", [False, True])
def test_a_modification_that_the_store_interrupts_is_in_force_or_not(tmp_path: Path, call: int, arrives: bool) -> None:
    clock, out = FakeClock(1000.0), md.memory()
    store = Away(tmp_path, clock)
    flow = md.Flow("changing")
    events = flow.source("events", Script(COLUMNS, SCRIPT)).filter("v >= 0", name="some")
    events.key_by("k").aggregate(md.count().alias("n"), name="counts").sink("out", out)
    local = Local(flow, tmp_path, store=store, clock=clock)
    local.step()
    store.call, store.arrives = store.calls + call, arrives
    trial = local.propose(Replace("some", md.filter("k > 0")))
    run(local)
    assert trial.done.done()
    is_in_force = local.manifest.plan["version"] == 2
    if trial.done.exception() is None:
        assert is_in_force
    assert local.manifest.epoch == EPOCHS
    last = dict(out.frame().select("k", "n").rows())
    assert last == ({0: 1, 1: EPOCHS, 2: EPOCHS} if is_in_force else dict.fromkeys(range(3), EPOCHS))
    assert local.loop.in_force.plan["digest"] == local.manifest.plan["digest"]
    assert local.modifier.plan.version == local.manifest.plan["version"]


@pytest.mark.parametrize("replica", [None, "a"])
def test_a_change_that_the_store_interrupts_undoes_no_rescale(tmp_path: Path, replica: str | None) -> None:
    """The operator that it would have removed is back, with the slots that it had."""
    flow = md.Flow("two")
    keyed = flow.source("events", Script(COLUMNS, SCRIPT)).key_by("k")
    keyed.aggregate(md.count().alias("n"), name="totals").sink("out", md.memory())
    keyed.aggregate(md.sum("v").alias("total"), name="sums").sink("other", md.memory())
    local = Local(flow, tmp_path, replica=replica, ahead=False, clock=FakeClock(1000.0))
    local.step()
    local.loop.reroute("sums", rebalance(local.loop.routing["sums"], 4))
    local.step()
    trial = local.propose(Remove("other"), Remove("sums"), drop=["sums"])
    with unanswered_once(local):
        local.loop.siblings.persevere(local.loop.step, everything=True)
    assert isinstance(trial.done.exception(), Retryable)
    local.step()
    assert (local.manifest.plan["version"], slots_of(local.manifest.routing["sums"])) == (1, 4)


@pytest.mark.parametrize("replica", [None, "a"])
def test_a_change_that_the_store_interrupts_before_the_first_epoch_leaves_the_flow_as_it_was_given(
    tmp_path: Path, replica: str | None
) -> None:
    out = md.memory()
    local = Local(flow_of(out, []), tmp_path, replica=replica, ahead=False, clock=FakeClock(1000.0))
    local.propose(Replace("totals", md.aggregate(md.sum("v").alias("total"), md.count().alias("n"), by="k")))
    with unanswered_once(local):
        run(local)
    assert (local.manifest.epoch, local.manifest.plan["version"]) == (EPOCHS, 1)
    assert out.table().column_names == ["k", "total"]


@pytest.mark.parametrize("replica", [None, "a"])
def test_sinks_that_came_with_a_change_stay_those_that_were_given(tmp_path: Path, replica: str | None) -> None:
    """What the store has of them are copies: nobody would see what goes into these."""
    called, out = list[int](), md.memory()
    local = Local(flow_of(md.memory(), []), tmp_path, replica=replica, ahead=False, clock=FakeClock(1000.0))
    local.step()
    trial = local.propose(Replace("out", out), Replace("called", md.foreach_batch(lambda frame, epoch: called.append(epoch))))
    local.step()
    assert trial.done.result().epoch == 2
    other = md.aggregate(md.sum("v").alias("total"), md.count().alias("n"), by="k")
    trial = local.propose(Replace("totals", other))
    with unanswered_once(local):
        run(local)
    assert isinstance(trial.done.exception(), Retryable)
    assert list(out.epochs()) == called == list(range(2, EPOCHS + 1))


@pytest.mark.parametrize("replica", [None, "a"])
def test_files_of_an_epoch_whose_commit_was_not_answered_are_archived(tmp_path: Path, replica: str | None) -> None:
    for number in range(2):
        pl.DataFrame({"k": [number]}).write_parquet(tmp_path / f"{number}.parquet")
    flow = md.Flow("archived")
    files = md.files(tmp_path, schema={"k": "long"}, after="archive", settle=0.0, max_files_per_epoch=1)
    flow.source("events", files).sink("out", md.memory())
    local = Local(flow, tmp_path / "state", replica=replica, ahead=False)
    log, append, before, failed = local.loop.log, local.loop.log.append, local.manifest, list[bool]()

    def unanswered(entry: Any) -> Any:
        after = append(entry)
        if entry["kind"] == "epoch" and not failed:
            failed.append(True)
            log.manifest = before
            raise Unavailable("store: 'log': no answer")
        return after

    with mock.patch.object(log, "append", unanswered):
        local.loop.input.look()
        run(local)
        local.loop.input.look()
        run(local)
    assert (failed, local.manifest.epoch) == ([True], 2)
    assert sorted(file.name for file in (tmp_path / "_archive").iterdir()) == ["0.parquet", "1.parquet"]


@pytest.mark.parametrize("replica", [None, "a"])
def test_who_asks_for_all_input_gets_all_of_it_although_the_store_was_away(tmp_path: Path, replica: str | None) -> None:
    """Otherwise what was left would come after a flush, and be late."""
    for number in range(3):
        pl.DataFrame({"k": [number]}).write_parquet(tmp_path / f"{number}.parquet")
    flow, out = md.Flow("all"), md.memory()
    flow.source("events", md.files(tmp_path, schema={"k": "long"}, settle=0.0, max_files_per_epoch=1)).sink("out", out)
    local = Local(flow, tmp_path / "state", replica=replica, ahead=False)
    local.loop.input.look()
    with unanswered_once(local):
        run(local)
    assert (local.manifest.epoch, out.frame()["k"].to_list()) == (3, [0, 1, 2])


def unanswered_once(local: Local) -> Any:
    """The next epoch's entry does not get into the log, and nobody is told."""
    append, failed = local.loop.log.append, []

    def fails_once(entry: Any) -> Any:
        if entry["kind"] == "epoch" and not failed:
            failed.append(True)
            raise Unavailable("store: 'log': no answer")
        return append(entry)

    return mock.patch.object(local.loop.log, "append", fails_once)


def test_input_that_was_decided_is_decided_again(tmp_path: Path) -> None:
    """Epochs that fail with the store, again and again, take the same input in the end."""
    clock, out = FakeClock(1000.0), md.memory()
    local = Local(flow_of(out), tmp_path, store=Away(tmp_path, clock), clock=clock)
    begin, failures = local.loop.attempts.runner.begin, iter([True] * 12)

    def fails(*arguments: Any) -> Any:
        if next(failures, False):
            raise Unavailable("a task had no answer")
        return begin(*arguments)

    local.loop.attempts.runner.begin = fails  # type: ignore[method-assign]
    run(local)
    assert sorted(out.frame()["total"].to_list()) == sorted(sum(range(epoch + 1)) for epoch in range(EPOCHS) for _ in range(3))


def test_what_is_not_the_stores_fault_still_ends_a_run_alone(tmp_path: Path) -> None:
    local = Local(flow_of(md.memory()), tmp_path, clock=FakeClock(1000.0))

    def fails(*arguments: Any) -> Any:
        raise Retryable("a Spark job failed: Traceback …")

    local.loop.attempts.runner.begin = fails  # type: ignore[method-assign]
    with pytest.raises(Retryable, match="a Spark job failed"):
        run(local)


def test_an_entry_of_ours_that_arrives_late_is_taken_up_and_no_fence() -> None:
    store, clock = MemoryStore(), FakeClock()
    log = Log.take_over(store, clock)
    entry = {"kind": "trial", "by": "me", "seconds": 1.0}
    before = log.manifest
    late = log.append(entry)
    log.manifest = before  # the put was not answered, and not seen when we looked
    with pytest.raises(Unavailable, match="not answered is in the log"):
        log.append(entry)
    assert [after for _, _, after in log.news()] == [late]
    Log.take_over(store, clock)
    with pytest.raises(Fenced):
        log.append(entry)


class Late(DirStore):
    """Log entries are not answered for a while, and the first of them arrives after that."""

    def __init__(self, root: Path, clock: FakeClock) -> None:
        super().__init__(root, clock)
        self.is_away, self.held_back = False, list[tuple[str, bytes]]()

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if name.startswith("log/") and self.is_away:
            self.held_back.append((name, data))
            raise Unavailable(f"store: '{name}': no answer")
        return super().put_if_absent(name, data)

    def arrive(self) -> None:
        self.is_away = False
        super().put_if_absent(*self.held_back[0])


@pytest.mark.parametrize("early", [True, False])
def test_an_entry_that_arrives_after_it_was_looked_for_misses_nothing_that_it_names(tmp_path: Path, early: bool) -> None:
    """The network had it all the time: it arrives before what failed is removed, or after."""
    clock, out = FakeClock(1000.0), md.memory()
    store = Late(tmp_path, clock)
    local = Local(flow_of(out), tmp_path, store=store, clock=clock)
    local.step()
    news, undo = local.loop.log.news, local.loop.tidy.undo

    def looked_for() -> Any:
        yield from news()
        if store.is_away:
            store.arrive() if early else setattr(store, "is_away", False)

    def removed(manifest: Any) -> None:
        undo(manifest)
        store.arrive()

    store.is_away = True
    with mock.patch.object(local.loop.log, "news", looked_for), mock.patch.object(local.loop.tidy, "undo", undo if early else removed):
        local.loop.siblings.persevere(local.loop.step, everything=True)
    run(local)
    assert list(out.epochs()) == list(range(1, EPOCHS + 1))
    assert all(store.get(name) is not None for name in local.manifest.segment_names())
    assert sorted(out.frame().filter(pl.col("k") == 1).get_column("total")) == [0, 1, 3, 6, 10]


class Times:
    """Work that fails so many times."""

    def __init__(self, failures: int, kind: type[Exception] = Unavailable) -> None:
        self.left, self.kind = failures, kind

    def __call__(self) -> str:
        self.left -= 1
        if self.left >= 0:
            raise self.kind("store: 'log/7': no answer")
        return "done"


def test_holding_is_said_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock(1000.0)
    one, seen = Patience(clock, "flow 'f'"), list[Any]()
    with caplog.at_level(logging.WARNING, "meander"):
        assert one.persevere(Times(40), lambda: seen.append(one.held)) == "done"
    said = [record.message for record in caplog.records]
    assert len(said) == 2
    assert said[0] == "flow 'f' holds, and tries again: store: 'log/7': no answer"
    assert said[1].startswith("flow 'f' goes on, after")
    assert [held.tries for held in seen] == list(range(1, 41))
    assert {(held.since, held.why) for held in seen} == {(1000.0, "store: 'log/7': no answer")}
    assert one.held is None


def test_waits_grow_to_a_bound_differ_from_run_to_run_and_follow_from_the_seed() -> None:
    def waits(seed: int) -> list[float]:
        clock, moments = FakeClock(seed=seed), list[float]()
        Patience(clock, "f").persevere(Times(12), lambda: moments.append(clock.monotonic()))
        return [after - before for before, after in zip([0.0, *moments], moments, strict=False)]

    first = waits(1)
    assert first == waits(1) != waits(2)
    assert first[0] < 0.2
    assert all(LONGEST_WAIT / 2 <= wait <= 1.5 * LONGEST_WAIT + patience_module._SLICE for wait in first[6:])


def test_a_limit_ends_it_with_what_was_not_answered() -> None:
    clock = FakeClock()
    with pytest.raises(Unavailable, match="'log/7'"):
        Patience(clock, "f", limit=90.0).persevere(Times(1 << 30), lambda: None)
    assert 90 < clock.monotonic() < 110


def test_who_leaves_waits_no_longer() -> None:
    clock = FakeClock()
    one = Patience(clock, "f")
    with pytest.raises(Unavailable):
        one.persevere(Times(1 << 30), lambda: one.leave() if clock.monotonic() > 20 else None)
    assert clock.monotonic() < 30


def test_a_job_that_failed_with_the_store_is_told_from_one_that_failed_by_itself() -> None:
    head = "Job aborted due to stage failure:\nTraceback (most recent call last):\n  File x\n"
    away = failure_of([head + "meander.errors.Unavailable: store s3://b: 'segments/x': 503"])
    assert isinstance(away, Unavailable)
    assert str(away) == "a task had no answer: store s3://b: 'segments/x': 503"
    assert not isinstance(failure_of([head + "ValueError: Unavailable: no"]), Unavailable)


def test_a_full_disk_under_a_task_is_the_stores_fault_though_the_systems_error_comes_first() -> None:
    said = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "store.py", line 104, in put
    write(fd, data)
OSError: [Errno 28] No space left on device

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "store.py", line 108, in put
    raise Unavailable(f"store {self.url}: '{name}' cannot be written: {error}") from error
meander.errors.Unavailable: store file:///state: 'segments/1' cannot be written: [Errno 28] No space left on device
 SQLSTATE: 38000"""
    failure = failure_of(["Job aborted due to stage failure", said])
    assert isinstance(failure, Unavailable)
    assert str(failure) == "a task had no answer: store file:///state: 'segments/1' cannot be written: [Errno 28] No space left on device"

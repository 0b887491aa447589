"""Replicas on one store, without Spark: whoever is at work, dies, sleeps or comes back, what comes out is what one run would give out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.local import Local, Script, constants

import meander as md
from meander.clock import SystemClock
from meander.coordinate.routing import rebalance
from meander.epochs import compaction as compaction_module
from meander.epochs.compaction import still_holds
from meander.epochs.loop import Loop
from meander.replicate.follow import Follower
from meander.state.formats import DIGESTS
from meander.state.stores.contract import DirStore

COLUMNS = {"k": pl.Int64(), "v": pl.Int64(), "ts": pl.Datetime("us")}
SECOND = 1_000_000
LIMITS = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


class Killed(Exception):
    """This replica is dead from here on."""


def flow_of(script: Any, out: Path) -> md.Flow:
    flow = md.Flow("replicated")
    events = flow.source("events", Script(COLUMNS, script)).watermark("ts", grace="2s")
    keyed = events.key_by("k")
    keyed.aggregate(md.count().alias("n"), md.sum("v").alias("total"), name="totals").sink("totals_out", md.parquet(out / "totals"))
    keyed.window(md.tumbling("5s")).aggregate(md.sum("v").alias("total"), name="windows").sink("windows_out", md.parquet(out / "windows"))
    return flow


def published(folder: Path) -> list[Any]:
    files = sorted(folder.glob("*.parquet"))
    return [] if not files else sorted(pl.read_parquet(files).rows(), key=repr)


def numbered(folder: Path) -> list[int]:
    return sorted({int(file.name.split("-")[1]) for file in folder.glob("part-*.parquet")})


SCRIPT = tuple(((0, tuple((key, epoch, (epoch * 3 + key) * SECOND) for key in range(3))),) for epoch in range(9))


def alone(script: Any, folder: Path) -> dict[str, list[Any]]:
    Local(flow_of(script, folder), folder / "state").run(flush=True)
    return {name: published(folder / name) for name in ("totals", "windows")}


def replica(script: Any, folder: Path, name: str, **options: Any) -> Local:
    return Local(flow_of(script, folder), folder / "state", replica=name, **options)


def finish(local: Local) -> None:
    while local.step(flush=local.loop.finished()):
        pass


def during_its_run(local: Local, act: Callable[[], Any]) -> Any:
    """The replica's next epoch takes so long that all of this happens before it has ended."""
    begin, acted = local.loop.attempts.runner.begin, []

    def slow(*arguments: Any) -> Any:
        result = begin(*arguments)

        def later() -> Any:
            found = result()
            if not acted:
                acted.append(True)
                act()
            return found

        return later

    return mock.patch.object(local.loop.attempts.runner, "begin", slow)


def test_two_replicas_give_out_what_one_would(tmp_path: Path) -> None:
    expected = alone(SCRIPT, tmp_path / "alone")
    a, b = replica(SCRIPT, tmp_path / "two", "a"), replica(SCRIPT, tmp_path / "two", "b", parallelism=3)
    assert a.manifest.generation == b.manifest.generation
    for _ in range(4):
        a.step()
        b.step()
    finish(b)
    finish(a)
    assert a.manifest.epoch == b.manifest.epoch
    assert {name: published(tmp_path / "two" / name) for name in expected} == expected


def test_who_comes_second_takes_up_what_the_first_has_committed(tmp_path: Path) -> None:
    a, b = replica(SCRIPT, tmp_path, "a"), replica(SCRIPT, tmp_path, "b")
    with during_its_run(a, b.step):
        a.step()
    assert (a.manifest.epoch, a.manifest.nonces) == (1, b.manifest.nonces)
    names = set((tmp_path / "state" / "segments").rglob("*.arrow"))
    assert {str(file.relative_to(tmp_path / "state")) for file in names} == a.manifest.segment_names(), "the second's own are gone"
    assert numbered(tmp_path / "totals") == [1]


@pytest.mark.many
def test_a_replica_that_slept_through_everything_goes_on_where_the_others_are(tmp_path: Path) -> None:
    script = SCRIPT * 12
    expected = alone(script, tmp_path / "alone")
    a, b = replica(script, tmp_path / "two", "a"), replica(script, tmp_path / "two", "b")

    def long() -> None:
        for _ in range(100):
            b.step()

    with during_its_run(a, long):
        a.step()
    assert a.manifest.epoch == b.manifest.epoch == 100
    log = sorted((tmp_path / "two" / "state" / "log").rglob("0*"))
    assert len([file for file in log if file.is_file()]) < 60, "what it slept through is collected"
    finish(a)
    assert {name: published(tmp_path / "two" / name) for name in expected} == expected


@pytest.mark.many
def test_it_would_show_if_nobody_looked_whether_an_entry_stands_in_a_hole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meander.state.log._was_read", lambda *_: True)
    with pytest.raises(AssertionError):
        test_a_replica_that_slept_through_everything_goes_on_where_the_others_are(tmp_path)


def test_a_committer_that_dies_before_it_publishes_is_stood_in_for(tmp_path: Path) -> None:
    a, b = replica(SCRIPT, tmp_path, "a"), replica(SCRIPT, tmp_path, "b")
    with mock.patch.object(a.loop.publisher, "publish", side_effect=Killed), pytest.raises(Killed):
        a.step()
    assert numbered(tmp_path / "totals") == []
    b.step()
    assert numbered(tmp_path / "totals") == [1, 2]


def test_what_a_killed_replica_had_written_goes_when_one_joins(tmp_path: Path) -> None:
    a, b = replica(SCRIPT, tmp_path, "a"), replica(SCRIPT, tmp_path, "b")
    for _ in range(2):
        with mock.patch.object(a.loop.log, "append", side_effect=Killed), pytest.raises(Killed):
            a.step()
        b.step()
    state = tmp_path / "state"

    def stored() -> set[str]:
        return {str(file.relative_to(state)) for folder in ("segments", "staged") for file in (state / folder).rglob("*") if file.is_file()}

    assert stored() > b.manifest.object_names(), "it left something behind"
    c = replica(SCRIPT, tmp_path, "c")
    assert stored() == c.manifest.object_names() | {name for name in stored() if "-merge-" in name}
    finish(b)
    assert last(published(tmp_path / "totals")) == last(alone(SCRIPT, tmp_path / "alone")["totals"])


def test_names_that_were_written_for_a_position_of_the_log_that_is_taken_go_when_one_joins(tmp_path: Path) -> None:
    b = replica(SCRIPT, tmp_path, "b")
    for _ in range(3):
        b.step()
    position, generation = b.manifest.position, b.manifest.generation
    lost, next_one = (f"seen/events/{generation:08d}-{at:012d}-1-dead" for at in (position - 1, position))
    for name in (lost, next_one):
        b.store.put(name, b"[]")
    replica(SCRIPT, tmp_path, "c")
    assert b.store.list("seen/") == [next_one], "whoever wrote it may be about to append its entry"


def test_what_a_merge_of_long_ago_wrote_goes_when_one_joins_and_can_never_be_state_again(tmp_path: Path) -> None:
    """One that merges may stand still for as long as it likes: what it wakes up with must not name what is gone."""
    state = tmp_path / "state"
    with constants(MOST_EPOCHS=(compaction_module, 3)):
        b = replica(SCRIPT, tmp_path, "b")
        for _ in range(3):
            b.step()
        generation, epoch = b.manifest.generation, b.manifest.epoch
        sleeper = replica(SCRIPT, tmp_path, "a")
        read = b.manifest.tables["totals"].segments
        assert read
        late, newer = (f"segments/totals/{generation:08d}-{begun:010d}-merge-dead.arrow" for begun in (epoch, epoch + 2))
        merge = {
            "table": "totals",
            "inputs": [ref.name for ref in read],
            "read": {ref.name: f"{ref.groups:x}" for ref in read},
            "output": replace(read[-1], name=late).to_json(),
        }
        assert still_holds(merge, b.manifest)
        for name in (late, newer):
            (state / name).write_bytes(b"")
        while b.manifest.epoch < epoch + 4:
            assert b.step()
        replica(SCRIPT, tmp_path, "c")
        assert ((state / late).exists(), (state / newer).exists()) == (False, True)
        sleeper.loop.housekeeping._finished.append(merge)
        finish(sleeper)
        assert late not in sleeper.manifest.segment_names()
        assert last(published(tmp_path / "totals")) == last(alone(SCRIPT, tmp_path / "alone")["totals"])


def test_a_rescale_of_one_is_a_rescale_of_all(tmp_path: Path) -> None:
    a, b = replica(SCRIPT, tmp_path, "a"), replica(SCRIPT, tmp_path, "b")
    a.step()
    b.step()
    table = rebalance(a.loop.routing["totals"], 4)
    a.loop.reroute("totals", table)
    b.step()
    assert b.loop.routing["totals"] == a.loop.routing["totals"] == table
    assert b.manifest.routing["totals"] == table


def test_a_run_of_its_own_ends_the_replicas(tmp_path: Path) -> None:
    a, b = replica(SCRIPT, tmp_path, "a"), replica(SCRIPT, tmp_path, "b")
    a.step()
    single = Local(flow_of(SCRIPT, tmp_path), tmp_path / "state")
    for one in (a, b):
        with pytest.raises(md.Fenced):
            one.step()
    single.run(flush=True)
    again = replica(SCRIPT, tmp_path, "a")
    assert again.manifest.generation > single.manifest.generation


DICE: dict[str, int] = {"shows": 1, "falls by": 0}
"""What the world outside shows to code that looks there."""


def throw(frame: pl.DataFrame) -> pl.DataFrame:
    DICE["shows"] += DICE["falls by"]
    return frame.with_columns(v=pl.lit(DICE["shows"], pl.Int64()))


def by_chance(out: Path) -> md.Flow:
    flow = md.Flow("chance")
    noisy = flow.source("events", Script(COLUMNS, SCRIPT)).map_batches(throw, schema=COLUMNS, name="noisy")
    noisy.key_by("k").aggregate(md.sum("v").alias("total"), name="totals").sink("out", md.parquet(out / "out"))
    return flow


def test_code_that_goes_by_chance_is_found_in_the_epoch_in_which_it_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (Local(by_chance(tmp_path), tmp_path / "state", replica=name, ahead=False) for name in "ab")
    with during_its_run(a, b.step):
        a.step()  # the same: nobody minds
    monkeypatch.setitem(DICE, "falls by", 1)
    message = r"replica 'a' .* than 'b' in epoch 2: operator 'noisy' gave out other rows"
    with during_its_run(a, b.step), pytest.raises(md.Divergent, match=message):
        a.step()
    b.step()
    assert numbered(tmp_path / "out") == [1, 2, 3], "the other one goes on"


class Toggle(md.Processor):
    """Forgets a key with every second row of it."""

    output: ClassVar[Any] = {"n": "int64"}
    n = md.value("int64", default=0)

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        for row in rows:
            state.n = 0 if state.n else row.v + 1
        yield (state.n,)


def test_replicas_agree_on_what_was_forgotten_whatever_slots_they_had(tmp_path: Path) -> None:
    script = (((0, tuple((key, 0, 0) for key in (0, 1, 2))),), ((0, ((0, 0, 0), (3, 0, 0), (4, 0, 0), (5, 0, 0))),))

    def start(name: str) -> Local:
        flow = md.Flow("toggled")
        flow.source("events", Script(COLUMNS, script)).key_by("k").process(Toggle, name="p").sink("out", md.memory())
        return Local(flow, tmp_path, replica=name, ahead=False, parallelism=1)

    a, b = start("a"), start("b")
    a.step()
    b.loop.siblings.keep_up()

    def a_is_faster_with_other_slots() -> None:
        a.loop.reroute("p", rebalance(a.loop.routing["p"], 4))
        a.step()

    with during_its_run(b, a_is_faster_with_other_slots):
        b.step()  # Divergent where it depends on slots
    assert (b.manifest.epoch, b.manifest.by) == (2, "a")


def test_of_three_the_one_stops_that_two_contradict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = (Local(by_chance(tmp_path), tmp_path / "state", replica=name, ahead=False) for name in "abc")
    for one in (a, b, c):
        one.cohort.look()
    said = threading.Event()

    def others() -> None:
        """While a computes, c is faster, with other dice; b has computed the same as a, and objects."""
        with during_its_run(b, c_is_first), mock.patch.object(b.cohort, "object_to", b_objects):
            b.step()

    def c_is_first() -> None:
        with monkeypatch.context() as other:
            other.setitem(DICE, "shows", 2)
            c.step()

    def b_objects(entry: Any, digests: Any) -> None:
        b.store.put(
            b.cohort._objection(entry["epoch"], "b"), DIGESTS.write({"digests": digests})
        )  # in life it waits in a process of its own
        said.set()

    with during_its_run(a, others):
        a.step()  # two against one: it goes on
    assert said.is_set()
    a.step()
    c.cohort._looked = -10.0
    with pytest.raises(md.Divergent, match=r"replica 'c' .* than two others in epoch 1: operator 'noisy'"):
        c.step()


def test_a_function_is_called_by_one_replica_per_epoch_and_by_another_if_that_one_dies(tmp_path: Path) -> None:
    calls: list[tuple[str, int]] = []

    def flow_for(name: str) -> md.Flow:
        flow = md.Flow("called")
        flow.source("events", Script(COLUMNS, SCRIPT)).sink("out", md.foreach_batch(lambda frame, epoch: calls.append((name, epoch))))
        return flow

    a, b = (Local(flow_for(name), tmp_path / "state", replica=name) for name in "ab")
    for _ in range(2):
        a.step()
        b.step()
    assert calls == [("a", 1), ("b", 2), ("a", 3), ("b", 4)]
    a.cohort.look()
    b.cohort.look()
    a.loop.siblings.keep_up()
    with mock.patch.object(a.loop.publisher, "publish", side_effect=Killed), pytest.raises(Killed):
        a.step()
    b.cohort._siblings["a"].changed = -10.0  # nothing was heard of it for long
    b.step()
    assert calls[4:] == [("b", 5), ("b", 6)]


def test_a_replica_that_is_restarted_under_its_own_name_calls_the_function_for_the_epoch_it_had_committed(tmp_path: Path) -> None:
    calls: list[tuple[str, int]] = []

    def start(name: str, life: str) -> Local:
        flow = md.Flow("called")
        flow.source("events", Script(COLUMNS, SCRIPT)).sink("out", md.foreach_batch(lambda frame, epoch: calls.append((life, epoch))))
        return Local(flow, tmp_path / "state", replica=name)

    a = start("a", "first")
    a.step()
    with mock.patch.object(a.loop.publisher, "publish", side_effect=Killed), pytest.raises(Killed):
        a.step()
    b = start("b", "other")
    assert not b.loop.siblings.stand_in(wait=False), "as far as it can see the committer lives, and is about to publish"
    a = start("a", "second")
    a.step()
    assert calls == [("first", 1), ("second", 2), ("second", 3)]
    b.step()
    a = start("a", "third")
    assert calls[3:] == [("other", 4)], "what was said to be published is not published again"
    assert a.manifest.epoch == 4
    assert [int(name.rsplit("/", 1)[1]) for name in a.store.list("published/")] == [4]


def without_staged(local: Local) -> Any:
    """Staged files are not removed for a while."""
    delete = local.store.delete_all
    return mock.patch.object(local.store, "delete_all", lambda names: delete([name for name in names if not name.startswith("staged/")]))


def test_a_replica_that_comes_back_late_does_not_call_for_an_epoch_that_another_has_called_for(tmp_path: Path) -> None:
    """Who says that an epoch is published removes what said it of the one before. Other deletions may have failed meanwhile."""
    calls: list[tuple[str, int]] = []

    def start(name: str, life: str) -> Local:
        flow = md.Flow("called")
        flow.source("events", Script(COLUMNS, SCRIPT)).sink("out", md.foreach_batch(lambda frame, epoch: calls.append((life, epoch))))
        return Local(flow, tmp_path / "state", replica=name)

    a = start("a", "first")
    with mock.patch.object(a.loop.publisher, "publish", side_effect=Killed), pytest.raises(Killed):
        a.step()
    with mock.patch.object(Follower, "recover"):
        late = start("a", "late")  # it has read the log, and not begun
    b = start("b", "other")
    with without_staged(b), mock.patch.object(b.cohort, "is_alive", return_value=False):
        for _ in range(3):
            b.step()
    assert calls == [("other", 1), ("other", 2), ("other", 3), ("other", 4)]
    late.loop.siblings.recover()
    assert len(calls) == 4


def test_a_committer_whose_function_fails_for_long_does_not_call_it_when_another_has_gone_on(tmp_path: Path) -> None:
    calls: list[tuple[str, int]] = []
    failed: list[int] = []

    def start(name: str) -> Local:
        def call(frame: pl.DataFrame, epoch: int) -> None:
            if name == "a" and epoch == 2 and not failed:
                failed.append(epoch)
                with without_staged(b), mock.patch.object(b.cohort, "is_alive", return_value=False):  # so long that it seems to be dead
                    b.step()
                    b.step()
                raise OSError("the database is away")
            calls.append((name, epoch))

        flow = md.Flow("called")
        flow.source("events", Script(COLUMNS, SCRIPT)).sink("out", md.foreach_batch(call))
        return Local(flow, tmp_path / "state", replica=name)

    a, b = start("a"), start("b")
    a.step()
    a.step()
    assert failed
    assert calls[:3] == [("a", 1), ("b", 2), ("b", 3)]
    assert [epoch for _, epoch in calls] == sorted(epoch for _, epoch in calls)


@pytest.mark.many
@pytest.mark.parametrize(("kind", "epochs"), [("linked", 2), ("partitioned", 2), ("function", 2), ("linked", 100)])
def test_a_committer_that_sleeps_before_it_publishes_goes_on_behind_the_others(tmp_path: Path, kind: str, epochs: int) -> None:
    calls: list[int] = []
    script = SCRIPT if epochs == 2 else SCRIPT * 12

    def start(name: str) -> Local:
        flow = md.Flow("slept")
        sinks = {
            "linked": lambda: md.parquet(tmp_path / "out"),
            "partitioned": lambda: md.parquet(tmp_path / "out", partition_by="k"),
            "function": lambda: md.foreach_batch(lambda frame, epoch: calls.append(epoch)),
        }
        flow.source("events", Script(COLUMNS, script)).sink("out", sinks[kind]())
        return Local(flow, tmp_path / "state", replica=name)

    a, b = start("a"), start("b")
    publish, slept = a.loop.publisher.publish, []

    def sleepy(*arguments: Any) -> None:
        """So long that entries and snapshots behind its own are collected, too."""
        if not slept:
            slept.append(True)
            for _ in range(epochs):
                b.step()
        publish(*arguments)

    with mock.patch.object(a.loop.publisher, "publish", sleepy):
        a.step()
    assert (a.manifest.epoch, b.manifest.epoch) == (1, epochs + 1)
    finish(a)
    finish(b)
    found = calls if kind == "function" else [int(file.name.split("-")[1]) for file in (tmp_path / "out").rglob("part-*.parquet")]
    assert sorted(set(found)) == list(range(1, len(script) + 1))
    assert len(found) == len(set(found)) * (3 if kind == "partitioned" else 1)


def test_staged_output_that_is_missing_is_corruption_where_nobody_has_gone_on(tmp_path: Path) -> None:
    a = replica(SCRIPT, tmp_path, "a")
    publish = a.loop.publisher.publish

    def lost(*arguments: Any) -> None:
        for file in (tmp_path / "state" / "staged").rglob("0*"):
            file.unlink()
        publish(*arguments)

    with mock.patch.object(a.loop.publisher, "publish", lost), pytest.raises(md.Corrupted, match="is named by the log but is not in store"):
        a.step()


@dataclass
class Vote:
    """What a replica believes."""

    leads_now: bool
    deposes_after: float = 60.0

    def leads(self) -> bool:
        return self.leads_now

    def leader(self) -> str | None:
        return None

    def depose(self, leader: str) -> None: ...

    def step_down(self) -> None: ...

    def close(self) -> None: ...


def test_only_the_leader_decides_and_commits_and_the_next_one_goes_on_with_what_it_has_computed(tmp_path: Path) -> None:
    votes = {"a": Vote(True), "b": Vote(False)}
    a, b = (replica(SCRIPT, tmp_path, name, election=votes[name], ahead=False) for name in "ab")
    assert not b.step(), "nobody has decided"
    a.step()
    assert b.manifest.epoch == 0
    assert not b.step()
    assert (b.manifest.epoch, b.manifest.by) == (1, "a")

    def a_is_replaced() -> None:
        """While b computes what a has decided."""
        votes["a"].leads_now, votes["b"].leads_now = False, True

    with mock.patch.object(a.loop, "_run", side_effect=Killed), pytest.raises(Killed):
        a.step()
    with during_its_run(b, a_is_replaced):
        b.step()
    assert (b.manifest.epoch, b.manifest.by) == (2, "b")


def test_a_leader_that_was_replaced_while_it_slept_commits_nothing(tmp_path: Path) -> None:
    votes = {"a": Vote(True), "b": Vote(False)}
    a, b = (replica(SCRIPT, tmp_path, name, election=votes[name], ahead=False) for name in "ab")
    a.step()

    def a_sleeps() -> None:
        """It still believes that it leads: its session has ended without its knowing."""
        votes["b"].leads_now = True
        for _ in range(3):
            b.step()

    with during_its_run(a, a_sleeps):
        a.step()
    assert (a.manifest.epoch, a.manifest.by) == (4, "b")
    assert numbered(tmp_path / "totals") == [1, 2, 3, 4]


class Away(DirStore):
    """A store that does not answer for a while, from some call of the driver's on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.calls, self.away = 0, range(0)

    def _call(self) -> None:
        self.calls += 1
        if self.calls in self.away:
            raise md.Retryable("the store is away")

    def get(self, name: str) -> bytes | None:
        self._call()
        return super().get(name)

    def put(self, name: str, data: Any) -> None:
        self._call()
        super().put(name, data)
        self._call()  # it was put, and nobody was told

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self._call()
        done = super().put_if_absent(name, data)
        self._call()
        return done


class Patient(SystemClock):
    """Waits, and does not take long for it."""

    def sleep(self, seconds: float) -> None:
        super().sleep(min(seconds, 0.001))


@pytest.mark.many
@pytest.mark.parametrize("first", range(0, 52, 4))
def test_a_store_that_is_away_for_a_while_holds_a_replica_up_and_no_more(first: int, tmp_path: Path) -> None:
    expected = alone(SCRIPT, tmp_path / "alone")
    store = Away(tmp_path / "two" / "state")
    a = replica(SCRIPT, tmp_path / "two", "a", store=store, clock=Patient())
    b = replica(SCRIPT, tmp_path / "two", "b")
    store.away = range(store.calls + first, store.calls + first + 40)
    for _ in range(3):
        a.loop.siblings.persevere(a.loop.step, everything=True)
        b.step()
    for _ in range(2):  # whether everything is decided is known after what was away has come back
        while a.loop.siblings.persevere(a.loop.step, everything=True, flush=a.loop.finished()):
            pass
    assert store.calls > store.away.start
    assert {name: published(tmp_path / "two" / name) for name in expected} == expected


PLACES = ("deciding", "before the commit", "after the commit", "after the publication", "housekeeping")


def kill_at(local: Local, place: str) -> Any:
    loop: Loop = local.loop
    if place == "deciding":
        return mock.patch.object(local.cohort, "agree", side_effect=Killed)
    if place == "before the commit":
        return mock.patch.object(loop.log, "append", side_effect=Killed)
    if place == "after the commit":
        return mock.patch.object(loop.publisher, "publish", side_effect=Killed)
    if place == "after the publication":
        return mock.patch.object(loop.tidy, "published", side_effect=Killed)
    return mock.patch.object(loop.housekeeping, "do", side_effect=Killed)


acts = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sampled_from(["step", "step", "step", "overtaken", "rescale", *PLACES]),
        st.sampled_from("abc"),
        st.integers(1, 3),
    ),
    max_size=25,
)
moments = st.integers(0, 40).map(lambda second: second * SECOND)
rows = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), moments), max_size=5).map(tuple)
scripts = st.lists(rows.map(lambda some: ((0, some),)), min_size=1, max_size=8).map(tuple)


@pytest.mark.many
@LIMITS
@given(scripts, acts)
def test_whatever_becomes_of_replicas_the_output_is_that_of_one_run(
    tmp_path_factory: pytest.TempPathFactory, script: Any, acts: list[tuple[str, str, str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("replicas")
    live = {name: replica(script, folder, name, parallelism=number + 1) for number, name in enumerate("abc")}

    def act(name: str, what: str, other: str, count: int) -> None:
        one = live[name]
        try:
            if what == "rescale":
                one.loop.reroute("totals", rebalance(one.loop.routing["totals"], count))
            elif what == "overtaken" and other != name:
                with during_its_run(one, lambda: [live[other].step() for _ in range(count)]):
                    one.step()
            elif what in PLACES:
                with kill_at(one, what):
                    one.step()
            else:
                one.step()
        except Killed:
            live[name] = replica(script, folder, name, parallelism=count)

    for one in acts:
        act(*one)
    for one in live.values():
        finish(one)
    assert len({one.manifest.position for one in live.values()} | {one.manifest.epoch for one in live.values()}) <= 2
    expected = alone(script, tmp_path_factory.mktemp("alone"))
    assert last(published(folder / "totals")) == last(expected["totals"])
    assert published(folder / "windows") == expected["windows"]
    state = pl.DataFrame(pl.from_arrow(md.read_state(folder / "state", "totals"))).sort("k").rows() if expected["totals"] else []
    assert state == sorted(last(expected["totals"]).values())


def last(rows: list[Any]) -> dict[Any, Any]:
    """The row of each key with the largest count: epochs may be cut differently."""
    found: dict[Any, Any] = {}
    for row in rows:
        if row[0] not in found or row[1] > found[row[0]][1]:
            found[row[0]] = row
    return found

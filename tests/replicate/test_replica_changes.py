"""Changes of a flow that replicas run: one tries, all have the same plan then, and no failure on the way does it twice or by halves."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl
import pytest
from tests.local import Local, Script
from tests.replicate.test_replicas import COLUMNS, SCRIPT, during_its_run

import meander as md
from meander.replicate.follow import Follower


def changing(out: Path) -> md.Flow:
    flow = md.Flow("changing")
    kept = flow.source("events", Script(COLUMNS, SCRIPT)).filter("v >= 0", name="kept")
    kept.key_by("k").aggregate(md.count().alias("n"), name="totals").sink("out", md.parquet(out / "out"))
    return flow


def test_a_change_of_one_is_a_change_of_all(tmp_path: Path) -> None:
    a, b = (Local(changing(tmp_path), tmp_path / "state", replica=name) for name in "ab")
    a.step()
    b.step()
    trial = a.propose(md.Replace("kept", md.filter("k > 0")))
    a.step()
    assert trial.done.result().epoch == 3
    b.step()
    assert b.modifier.plan.version == a.modifier.plan.version == 2
    assert (b.manifest.epoch, b.manifest.by) == (4, "b")
    keys = {e: set(pl.read_parquet(tmp_path / "out" / f"part-{e:010d}-*.parquet").get_column("k")) for e in range(1, 5)}
    assert keys == {1: {0, 1, 2}, 2: {0, 1, 2}, 3: {1, 2}, 4: {1, 2}}
    again = Local(changing(tmp_path), tmp_path / "state", replica="c")
    assert again.modifier.plan.version == 2


def test_siblings_let_a_replica_try_a_change_unless_it_dies(tmp_path: Path) -> None:
    a, b = (Local(changing(tmp_path), tmp_path / "state", replica=name, ahead=False) for name in "ab")
    for one in (a, b):
        one.cohort.look()
    a.step()

    def a_tries() -> None:
        """While b computes the same epoch under the old plan."""
        trial = a.propose(md.Replace("kept", md.filter("k > 0")))
        a.step()
        assert trial.done.result().epoch == 2

    with during_its_run(b, a_tries):
        b.step()  # another plan's digest is no divergence
    assert (b.manifest.epoch, b.manifest.by, b.modifier.plan.version) == (2, "a", 2)

    trial = a.propose(md.Replace("kept", md.filter("k > 1")))
    with mock.patch.object(a.loop.in_force, "install", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        a.step()
    assert b.manifest.trial is None
    b.cohort._siblings["a"].changed = -10.0  # nothing was heard of it for long
    b.step()
    assert (b.manifest.epoch, b.manifest.by, b.modifier.plan.version) == (3, "b", 2)
    assert not trial.done.done()


def test_a_change_that_fails_is_taken_back_and_siblings_never_see_it(tmp_path: Path) -> None:
    a, b = (Local(changing(tmp_path), tmp_path / "state", replica=name) for name in "ab")
    a.step()
    trial = a.propose(md.Insert("broken", md.map_batches(fails, schema=COLUMNS), after="kept"))
    a.step()
    with pytest.raises(md.Rejected, match="no such luck"):
        trial.done.result()
    b.step()
    assert (b.manifest.epoch, b.modifier.plan.version) == (3, 1)
    assert b.manifest.totals["rows_in"] == 9
    with pytest.raises(md.FlowError, match="cannot be changed while several replicas run"):
        a.propose(md.Replace("events", Script(COLUMNS, SCRIPT), resume=True))


def fails(frame: pl.DataFrame) -> pl.DataFrame:
    raise ValueError("no such luck")


def counting(out: Path) -> md.Flow:
    flow = md.Flow("counting")
    keyed = flow.source("events", Script(COLUMNS, SCRIPT)).key_by("k")
    keyed.aggregate(md.count().alias("n"), name="totals").sink("out", md.parquet(out / "out"))
    return flow


def test_a_change_whose_commit_was_not_answered_is_made_once(tmp_path: Path) -> None:
    """The entry is in the log, and who put it does not know: what the change does to the state must not be done again."""
    a = Local(counting(tmp_path), tmp_path / "state", replica="a", ahead=False)
    a.step()
    other = md.aggregate(md.count().alias("n"), md.sum("v").alias("total"), by="k")
    trial = a.propose(md.Replace("totals", other), drop=["totals"])
    append = a.loop.log.append

    def unanswered(entry: Any) -> Any:
        found = append(entry)
        if entry["kind"] == "epoch" and not failed:
            failed.append(True)
            raise md.Retryable("no answer")
        return found

    failed: list[bool] = []
    with mock.patch.object(a.loop.log, "append", unanswered):
        a.loop.siblings.persevere(a.loop.step, everything=True)
    with pytest.raises(md.Retryable, match="cannot be said now"):
        trial.done.result()
    assert (a.manifest.epoch, a.modifier.plan.version, a.manifest.plan["version"]) == (3, 2, 2)
    state = pl.DataFrame(pl.from_arrow(md.read_state(tmp_path / "state", "totals"))).sort("k")
    assert state.select("k", "n").rows() == [(0, 2), (1, 2), (2, 2)], "the epoch of the change, and the one after it"
    assert sorted({int(file.name.split("-")[1]) for file in (tmp_path / "out").glob("part-*")}) == [1, 2, 3]


def test_who_leaves_commits_nothing_behind_an_epoch_that_nobody_has_published(tmp_path: Path) -> None:
    calls: list[tuple[str, int]] = []

    def flow_for(name: str) -> md.Flow:
        flow = md.Flow("called")
        flow.source("events", Script(COLUMNS, SCRIPT)).sink("out", md.foreach_batch(lambda frame, epoch: calls.append((name, epoch))))
        return flow

    a, b = (Local(flow_for(name), tmp_path / "state", replica=name, ahead=False) for name in "ab")
    for one in (a, b):
        one.cohort.look()
    with mock.patch.object(a.loop.publisher, "publish", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        a.step()
    b.cohort.leave()  # while a, as far as anybody knows, is about to publish
    b.step()
    assert (b.manifest.epoch, calls) == (1, [])
    c = Local(flow_for("c"), tmp_path / "state", replica="c", ahead=False)
    c.step()
    assert calls == [("c", 1), ("c", 2)]


def test_code_that_replicas_would_not_agree_on_is_refused_before_it_runs(tmp_path: Path) -> None:
    a, b = (Local(changing(tmp_path), tmp_path / "state", replica=name) for name in "ab")
    a.step()
    by_chance = md.map_batches(lambda frame: frame.filter(random.random() < 2), schema=COLUMNS)
    with pytest.raises(md.FlowError, match=r"'lucky' calls random\.random: replicas would not get the same result"):
        a.propose(md.Insert("lucky", by_chance, after="kept"))
    b.step()
    assert (b.manifest.epoch, b.modifier.plan.version) == (2, 1)


def test_a_sink_that_one_replaces_is_replaced_for_all(tmp_path: Path) -> None:
    """The plan's digest stays the same: it has no places."""

    def epochs(folder: str) -> list[int]:
        return sorted({int(file.name.split("-")[1]) for file in (tmp_path / folder).glob("part-*")})

    a, b = (Local(changing(tmp_path), tmp_path / "state", replica=name) for name in "ab")
    a.step()
    b.step()
    trial = a.propose(md.Replace("out", md.parquet(tmp_path / "out2")))
    a.step()
    assert trial.done.result(0).epoch == 3
    b.step()
    a.step()
    c = Local(changing(tmp_path), tmp_path / "state", replica="c")
    c.step()
    assert (epochs("out"), epochs("out2")) == ([1, 2], [3, 4, 5, 6])
    assert [one.modifier.plan.version for one in (a, b, c)] == [2, 2, 2]


def test_who_tries_a_function_does_not_wait_for_a_sibling_to_call_it_that_does_not_have_it(tmp_path: Path) -> None:
    a, b = (Local(changing(tmp_path), tmp_path / "state", replica=name, ahead=False) for name in "ab")
    for one in (a, b):
        one.cohort.look()
    a.step()
    calls: list[int] = []
    trial = b.propose(md.Insert("tap", md.foreach_batch(lambda frame, epoch: calls.append(epoch)), after="kept"))
    waited = mock.Mock(side_effect=AssertionError("it waits for a call that nobody makes"))
    with mock.patch.object(b.loop.siblings._clock, "sleep", waited):
        b.step()
    assert (trial.done.result(0).epoch, calls) == (2, [2])


def test_an_epoch_is_published_in_the_sinks_of_its_own_plan_while_another_plan_is_tried(tmp_path: Path) -> None:
    a, b = (Local(changing(tmp_path), tmp_path / "state", replica=name, ahead=False) for name in "ab")
    a.step()
    calls: list[int] = []
    trial = a.propose(md.Replace("out", md.foreach_batch(lambda frame, epoch: calls.append(epoch))))

    def b_does_not_let_it() -> None:
        with mock.patch.object(b.loop.siblings, "_is_free", return_value=True), mock.patch.object(b.loop.publisher, "publish"):
            b.step()  # and dies before it publishes

    with during_its_run(a, b_does_not_let_it):
        a.step()
    with pytest.raises(md.Rejected, match="other replicas have gone on without it"):
        trial.done.result(0)
    assert a.manifest.by == "b"
    assert calls == []
    assert sorted({int(file.name.split("-")[1]) for file in (tmp_path / "out").glob("*.parquet")}) == [1, 2]


def test_a_change_asked_of_a_replica_that_is_behind_does_not_undo_what_a_sibling_has_changed(tmp_path: Path) -> None:
    a, b = (Local(changing(tmp_path), tmp_path / "state", replica=name, ahead=False) for name in "ab")
    trial = b.propose(md.Insert("second", md.filter("k <> 1"), after="kept"))
    a.propose(md.Insert("first", md.filter("k <> 0"), after="kept"))
    a.step()
    b.step()
    assert trial.done.result(0).version == 3
    keys = set(pl.read_parquet(tmp_path / "out" / "part-0000000002-*.parquet").get_column("k"))
    assert keys == {2}
    trials = [one.propose(md.Remove("second")) for one in (a, b)]
    a.step()
    b.step()
    assert trials[0].done.result(0).version == 4
    with pytest.raises(md.Rejected, match="another modification came into force before it was tried"):
        trials[1].done.result(0)
    assert b.manifest.epoch == 4, "the epoch runs all the same"


def test_of_two_changes_tried_with_one_epoch_the_one_that_lost_does_not_undo_the_other(tmp_path: Path) -> None:
    a, b = (Local(changing(tmp_path), tmp_path / "state", replica=name, ahead=False) for name in "ab")
    for one in (a, b):
        one.cohort.look()
    a.step()
    mine = a.propose(md.Replace("kept", md.filter("k > 0")))

    def b_tries_another_one() -> None:
        theirs = b.propose(md.Insert("more", md.filter("k < 2"), after="kept"))
        b.step()
        assert theirs.done.result().epoch == 2

    with during_its_run(a, b_tries_another_one):
        a.step()
    with pytest.raises(md.Rejected, match="a change of theirs came first"):
        mine.done.result()
    a.step()
    assert (a.manifest.epoch, a.manifest.by, a.manifest.plan["version"]) == (3, "a", 2)
    keys = set(pl.read_parquet(tmp_path / "out" / "part-0000000003-*.parquet").get_column("k"))
    assert keys == {0, 1}


@pytest.mark.parametrize("sink", [False, True])
def test_a_change_that_comes_while_a_replica_starts_is_not_undone_by_it(tmp_path: Path, sink: bool) -> None:
    """It finds out while it publishes what it believes to be the last epoch."""
    a = Local(changing(tmp_path), tmp_path / "state", replica="a", ahead=False)
    a.step()
    publish, changed = Follower.publish_theirs, []

    def slow(self: Follower) -> None:
        if not changed:
            changed.append(True)
            other = md.Replace("out", md.parquet(tmp_path / "other")) if sink else md.Replace("kept", md.filter("k > 0"))
            trial = a.propose(other)
            a.step()
            assert trial.done.result().epoch == 2
        publish(self)

    with mock.patch.object(Follower, "publish_theirs", slow):
        b = Local(changing(tmp_path), tmp_path / "state", replica="b", ahead=False)
    assert b.loop.in_force.plan["version"] == 2
    b.step()
    assert (b.manifest.epoch, b.manifest.by, b.manifest.plan["version"]) == (3, "b", 2)
    a.step()
    assert a.manifest.plan["version"] == 2
    assert bool(list((tmp_path / "other").glob("part-0000000003-*"))) == sink


def test_a_change_that_is_accepted_late_does_not_hide_one_that_came_on_top_of_it(tmp_path: Path) -> None:
    a, b = (Local(changing(tmp_path), tmp_path / "state", replica=name, ahead=False) for name in "ab")
    first = a.propose(md.Insert("first", md.filter("k <> 0"), after="kept"))
    housekeeping, acted = a.loop.housekeeping.do, []

    def slow(*arguments: Any, **options: Any) -> None:
        if not acted:
            acted.append(b.propose(md.Insert("second", md.filter("k <> 1"), after="kept")))
            b.step()
            a.loop.siblings.keep_up()
        housekeeping(*arguments, **options)

    with mock.patch.object(a.loop.housekeeping, "do", slow):
        a.step()
    assert (first.done.result(0).version, acted[0].done.result(0).version) == (2, 3)
    assert a.modifier.plan.version == 3
    third = a.propose(md.Insert("third", md.filter("k <> 7"), after="kept"))
    a.step()
    assert third.done.result(0).version == 4
    assert {"first", "second", "third"} <= {node.name for node in a.modifier.plan.nodes}


def test_state_that_a_lost_change_has_rewritten_goes_when_a_replica_joins(tmp_path: Path) -> None:
    a, b = (Local(changing(tmp_path), tmp_path / "state", replica=name, ahead=False) for name in "ab")
    a.step()
    a.propose(md.Replace("totals", md.aggregate(md.count().alias("n"), md.sum("v").alias("s"))), backfill={"totals": {"s": 0}})
    with mock.patch.object(a.loop, "_commit", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        a.step()
    rewritten = [name for name in b.store.list("segments/") if "-upgrade-" in name]
    assert rewritten
    Local(changing(tmp_path), tmp_path / "state", replica="c")
    assert set(rewritten) <= set(b.store.list("segments/")), "its epoch may still be committed"
    with mock.patch.object(b.loop.siblings, "_is_free", return_value=True):
        b.step()
    Local(changing(tmp_path), tmp_path / "state", replica="c")
    assert not [name for name in b.store.list("segments/") if "-upgrade-" in name]

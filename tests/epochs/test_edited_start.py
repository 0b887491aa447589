"""Starting an edited flow file: what the store holds becomes what the file says, with the first epoch, on probation, or not at all."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.local import Local, Script
from tests.replicate.test_replicas import during_its_run
from tests.simulation.whole.actors import Crash
from tests.task.test_changed_columns import NEW, OLD, after, all_of, before, orders, published, totals, write

import meander as md
from meander.epochs.modification import at_start

COLUMNS: dict[str, Any] = {"k": pl.Int64(), "v": pl.Int64()}
SCRIPT = tuple(((0, tuple((key, epoch) for key in range(3))),) for epoch in range(9))


def fails(frame: pl.DataFrame) -> pl.DataFrame:
    if frame.height:
        raise ZeroDivisionError("no such luck")
    return frame


def same(frame: pl.DataFrame) -> pl.DataFrame:
    return frame


def flow_of(folder: Path, least: int = 0, broken: bool = False, out: str = "out", aggs: int = 1, top: bool = False) -> md.Flow:
    flow = md.Flow("edited")
    rows = flow.source("events", Script(COLUMNS, SCRIPT)).filter(f"k >= {least}", name="some")
    rows = rows.map_batches(fails, name="broken") if broken else rows
    made = [md.count().alias("n"), md.sum("v").alias("s"), md.max("v").alias("m")][:aggs]
    counted = rows.key_by("k").aggregate(*made, name="totals")
    counted.sink(out, md.parquet(folder / out))
    if top:
        counted.key_by("k").top(1, by="n", name="best").sink("tops", md.parquet(folder / "tops"))
    return flow


def keys(folder: Path, epoch: int, out: str = "out") -> set[int]:
    return set(pl.read_parquet(folder / out / f"part-{epoch:010d}-*.parquet")["k"])


def run_once(folder: Path, **options: Any) -> None:
    local = Local(flow_of(folder, **options), folder / "state")
    local.step()
    local.step()
    local.loop.close()


def test_without_the_flag_the_refusal_names_it(tmp_path: Path) -> None:
    run_once(tmp_path)
    with pytest.raises(md.ConfigError, match=r"filter 'some' differs .*start this one with apply=True.*meander apply FLOW\.py"):
        Local(flow_of(tmp_path, 1), tmp_path / "state")


def test_an_edited_file_is_in_force_with_the_first_epoch_and_started_like_any_other_after_that(tmp_path: Path) -> None:
    run_once(tmp_path)
    local = Local(flow_of(tmp_path, 1), tmp_path / "state", apply=True)
    assert local.modifier.plan.version == 1
    local.step()
    assert local.trial is not None
    assert (local.trial.done.result(0).epoch, local.modifier.plan.version) == (3, 2)
    local.loop.close()
    for apply in (False, True):
        again = Local(flow_of(tmp_path, 1), tmp_path / "state", apply=apply)
        assert again.trial is None
        again.step()
        again.loop.close()
    assert [keys(tmp_path, epoch) for epoch in range(1, 6)] == [{0, 1, 2}, {0, 1, 2}, {1, 2}, {1, 2}, {1, 2}]
    assert again.manifest.plan["version"] == 2


def test_what_was_in_force_once_is_started_as_without_the_flag(tmp_path: Path) -> None:
    """A service that is always started with it must not undo what was changed while it ran."""
    run_once(tmp_path)
    local = Local(flow_of(tmp_path), tmp_path / "state", apply=True)
    local.propose(md.Replace("some", md.filter("k >= 2")))
    local.step()
    local.loop.close()
    again = Local(flow_of(tmp_path), tmp_path / "state", apply=True)
    again.step()
    assert (again.trial, again.manifest.plan["version"], keys(tmp_path, 4)) == (None, 2, {2})


def test_a_new_store_takes_the_file_as_it_is(tmp_path: Path) -> None:
    local = Local(flow_of(tmp_path, 1), tmp_path / "state", apply={"drop_state": ["totals"]})
    local.step()
    assert (local.trial, local.manifest.plan["version"]) == (None, 1)


def test_a_file_that_fails_is_not_in_force_and_the_flow_goes_on_as_it_was(tmp_path: Path) -> None:
    run_once(tmp_path)
    for epoch in (3, 4):  # and again, if it is started again
        local = Local(flow_of(tmp_path, broken=True), tmp_path / "state", apply=True)
        local.step()
        assert local.trial is not None
        with pytest.raises(md.Rejected, match="no such luck"):
            local.trial.done.result(0)
        assert (local.manifest.epoch, local.manifest.plan["version"]) == (epoch, 1)
        local.loop.close()
    with pytest.raises(md.ConfigError, match="apply=True"):
        Local(flow_of(tmp_path, broken=True), tmp_path / "state")
    run_once(tmp_path)
    assert [keys(tmp_path, epoch) for epoch in range(1, 7)] == [{0, 1, 2}] * 6


def test_what_cannot_be_applied_is_refused_and_drop_state_names_what_may_go(tmp_path: Path) -> None:
    """What is told of changes begins anew together with what makes them: it must have been told of all that is there."""
    run_once(tmp_path, top=True)
    with pytest.raises(md.FlowError, match=r"top 'best' cannot go on.*drop_state=\['best'\]"):
        Local(flow_of(tmp_path, top=True, aggs=2), tmp_path / "state", apply=True)
    with pytest.raises(md.FlowError, match=r"drop_state=\['best', 'totals'\], so that they begin anew together"):
        Local(flow_of(tmp_path, top=True, aggs=2), tmp_path / "state", apply={"drop_state": ["best"]})
    local = Local(flow_of(tmp_path, top=True, aggs=2), tmp_path / "state", apply={"drop_state": ["best", "totals"]})
    local.step()
    assert local.trial is not None
    assert local.trial.done.result(0).effects["drops"] == ["best", "totals"]
    assert pl.read_parquet(tmp_path / "out" / "part-0000000003-*.parquet").sort("k").rows() == [(k, 1, 2) for k in range(3)]


def test_after_changes_while_it_ran_a_file_can_be_edited_again(tmp_path: Path) -> None:
    run_once(tmp_path)
    local = Local(flow_of(tmp_path), tmp_path / "state")
    local.propose(md.Replace("some", md.filter("k >= 2")))
    local.step()
    local.loop.close()
    local = Local(flow_of(tmp_path, 1, aggs=2), tmp_path / "state", apply=True)
    local.step()
    assert (local.manifest.plan["version"], keys(tmp_path, 3), keys(tmp_path, 4)) == (3, {2}, {1, 2})
    assert [change["verdict"] for change in local.modifier.history()] == ["in force", "in force"]


def test_the_folders_of_the_last_start_count(tmp_path: Path) -> None:
    """What the store has of the plan before is as it was started last, and not as it was first."""
    write(tmp_path / "in", "a", before("ada"))
    local = Local(orders(tmp_path, OLD), tmp_path / "state")
    all_of(local)
    local.loop.close()
    (tmp_path / "in").rename(tmp_path / "moved")
    local = Local(orders(tmp_path, OLD, source="moved"), tmp_path / "state")
    all_of(local)
    local.loop.close()
    write(tmp_path / "moved", "b", after("bob"))
    local = Local(orders(tmp_path, NEW, source="moved"), tmp_path / "state", apply=True)
    all_of(local)
    assert published(tmp_path) == [("ada", 1, None), ("bob", 2, "no")]
    assert totals(tmp_path) == [("ada", 1, 1), ("bob", 1, 2)]


def test_the_last_epoch_of_the_plan_before_is_published_in_its_own_sinks(tmp_path: Path) -> None:
    local = Local(flow_of(tmp_path), tmp_path / "state")
    local.step()
    local.loop.publisher.publish = lambda *_: (_ for _ in ()).throw(Crash())  # type: ignore[method-assign]
    with pytest.raises(Crash):
        local.step()
    edited = Local(flow_of(tmp_path, out="out2"), tmp_path / "state", apply=True)
    edited.step()
    numbers = [sorted({int(file.name.split("-")[1]) for file in (tmp_path / out).glob("part-*")}) for out in ("out", "out2")]
    assert numbers == [[1, 2], [3]]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_around_the_commit_leaves_one_or_the_other(tmp_path: Path, when: str) -> None:
    run_once(tmp_path)
    local = Local(flow_of(tmp_path, 1), tmp_path / "state", apply=True)
    append = local.loop.log.append

    def dies(entry: Any) -> Any:
        if when == "after":
            append(entry)
        raise Crash

    local.loop.log.append = dies  # type: ignore[method-assign]
    with pytest.raises(Crash):
        local.step()
    local.loop.close()
    if when == "before":  # it was never in force
        run_once(tmp_path)
        assert [keys(tmp_path, epoch) for epoch in (3, 4)] == [{0, 1, 2}] * 2
    again = Local(flow_of(tmp_path, 1), tmp_path / "state", apply=when == "before")
    again.step()
    assert (again.manifest.plan["version"], keys(tmp_path, again.manifest.epoch)) == (2, {1, 2})


def test_replicas_that_are_all_started_with_it_put_it_in_force_once(tmp_path: Path) -> None:
    run_once(tmp_path)
    a, b = (Local(flow_of(tmp_path, 1), tmp_path / "state", replica=name, apply=True) for name in "ab")
    a.step()
    b.step()
    b.step()
    assert a.trial is not None
    assert a.trial.done.result(0).epoch == 3
    assert (a.manifest.plan["version"], b.manifest.plan["version"], b.modifier.plan.version) == (2, 2, 2)
    c = Local(flow_of(tmp_path, 1), tmp_path / "state", replica="c", apply=True)
    c.step()
    assert (c.trial, c.manifest.epoch) == (None, b.manifest.epoch + 1)
    assert [keys(tmp_path, epoch) for epoch in range(3, c.manifest.epoch + 1)] == [{1, 2}] * (c.manifest.epoch - 2)
    assert [change["verdict"] for change in c.modifier.history() if change["verdict"] == "in force"] == ["in force"]


def test_replicas_go_on_as_they_were_where_it_fails_and_say_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_once(tmp_path)
    a = Local(flow_of(tmp_path, broken=True), tmp_path / "state", replica="a", apply=True)
    a.step()
    a.step()
    assert (a.manifest.epoch, a.manifest.plan["version"]) == (4, 1)
    assert "the edited file is not in force, and the plan before it goes on" in caplog.text


def test_a_replica_that_joins_with_it_changes_those_that_run(tmp_path: Path) -> None:
    a = Local(flow_of(tmp_path), tmp_path / "state", replica="a")
    a.step()
    b = Local(flow_of(tmp_path, 1), tmp_path / "state", replica="b", apply=True)
    b.step()
    a.step()
    assert (b.manifest.plan["version"], a.manifest.plan["version"], keys(tmp_path, 2), keys(tmp_path, 3)) == (2, 2, {1, 2}, {1, 2})


def test_a_function_that_cannot_be_stored_and_that_the_file_has_no_more_is_said(tmp_path: Path) -> None:
    lock = threading.Lock()

    def flow(*names: str) -> md.Flow:
        made = md.Flow("locked")
        rows = made.source("events", Script(COLUMNS, SCRIPT))
        for name in names:
            rows.sink(name, md.foreach_batch(lambda frame, epoch: lock.locked() and None))
        return made

    local = Local(flow("out"), tmp_path / "state")
    local.step()
    local.loop.close()
    with pytest.raises(md.ConfigError, match=r"sink 'out': its function cannot be stored.*start the flow as it was"):
        Local(flow("other"), tmp_path / "state", apply=True)
    with pytest.raises(md.FlowError, match="sink 'other': it cannot be stored"):
        Local(flow("out", "other"), tmp_path / "state", apply=True)


def test_a_store_of_an_older_version_has_to_be_started_as_it_was_once(tmp_path: Path) -> None:
    run_once(tmp_path)
    (started,) = (tmp_path / "state" / "plan").glob("*.started")
    started.unlink()
    with pytest.raises(md.ConfigError, match=r"has lost the plan that it runs.*start the flow as it was"):
        Local(flow_of(tmp_path, 1), tmp_path / "state", apply=True)


@pytest.mark.parametrize(
    ("apply", "why"),
    [
        (1, "it is True, or a dict"),
        ("yes", "it is True, or a dict"),
        ({"drop": True}, "there is no option 'drop'; there are author, backfill"),
    ],
)
def test_what_is_asked_for_is_checked(apply: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(md.ConfigError, match=why):
        at_start(apply, flow_of(tmp_path).plan(), "x")


def test_another_folder_in_an_edited_file_is_another_sink_and_gets_nothing_of_the_epochs_before(tmp_path: Path) -> None:
    def flow(out: str, least: int) -> md.Flow:
        made = md.Flow("folders")
        rows = made.source("events", Script(COLUMNS, SCRIPT)).filter(f"k >= {least}", name="some")
        rows.sink("out", md.parquet(tmp_path / out))
        return made

    local = Local(flow("old", 0), tmp_path / "state")
    local.step()
    local.loop.close()
    edited = Local(flow("new", 1), tmp_path / "state", apply=True)  # the last epoch is published again at a start
    edited.step()
    edited.loop.close()
    Local(flow("new", 1), tmp_path / "state").step()
    numbers = [sorted({int(file.name.split("-")[1]) for file in (tmp_path / out).glob("part-*")}) for out in ("old", "new")]
    assert numbers == [[1], [2, 3]]


def test_another_folder_of_a_source_in_an_edited_file_has_to_be_explained(tmp_path: Path) -> None:
    write(tmp_path / "in", "a", before("ada"))
    write(tmp_path / "in2", "b", after("bob"))
    local = Local(orders(tmp_path, OLD), tmp_path / "state")
    all_of(local)
    local.loop.close()
    with pytest.raises(md.FlowError, match="say whether the new one continues"):
        Local(orders(tmp_path, NEW, source="in2"), tmp_path / "state", apply=True)
    edited = Local(orders(tmp_path, NEW, source="in2"), tmp_path / "state", apply={"resume": False})
    all_of(edited)
    all_of(edited)  # what was found before the change was of the source before
    assert published(tmp_path) == [("ada", 1, None), ("bob", 2, "no")]


def test_of_two_replicas_that_try_the_same_file_with_one_epoch_none_is_told_that_it_was_rejected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_once(tmp_path)
    a, b = (Local(flow_of(tmp_path, 1), tmp_path / "state", replica=name, apply=True, ahead=False) for name in "ab")
    with during_its_run(b, lambda: a.step()):
        b.step()
    b.step()
    assert (b.manifest.plan["version"], b.manifest.by) == (2, "b")
    assert [change["verdict"] for change in b.modifier.history()] == ["in force", "in force"]
    assert "not in force" not in caplog.text


@pytest.mark.parametrize("restarts", [False, True])
def test_what_is_taken_back_goes_back_to_its_own_folders(tmp_path: Path, restarts: bool) -> None:
    def flow(out: str, broken: bool, least: int = 0) -> md.Flow:
        made = md.Flow("back")
        rows = made.source("orders", md.files(tmp_path / "in", format="json", schema=OLD)).filter(f"amount >= {least}", name="some")
        rows.map_batches(fails if broken else same, name="code").sink("out", md.parquet(tmp_path / out))
        return made

    def start(*described: Any, **options: Any) -> Local:
        return Local(flow(*described), tmp_path / "state", **options)

    write(tmp_path / "in", "a", before("ada"))
    local = start("old", False)
    all_of(local)
    local.propose(md.Replace("code", md.map_batches(fails)))
    local.step()  # without rows: it stays on probation
    local.loop.close()
    edited = start("new", True, 1, apply=True)
    edited.step()
    assert edited.manifest.plan["version"] == 3
    if restarts:
        edited.loop.close()
        edited = start("new", True, 1)
    write(tmp_path / "in", "b", before("bob"))
    all_of(edited)
    assert edited.manifest.plan["version"] == 1
    assert (published(tmp_path, "old"), list((tmp_path / "new").glob("*.parquet"))) == ([("ada", 1), ("bob", 1)], [])

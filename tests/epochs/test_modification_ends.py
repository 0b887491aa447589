"""Sources and sinks that are replaced while a flow runs: what is opened, what a restart goes on with, and who is told."""

from __future__ import annotations

import threading
from importlib import import_module
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.local import Local, Script

import meander as md
from meander.plan.change.code import pack_changes, unpack_changes

COLUMNS: dict[str, Any] = {"k": pl.Int64(), "v": pl.Int64()}
SCRIPT = tuple(((0, tuple((key, epoch) for key in range(3))),) for epoch in range(9))


def passing(folder: Path, out: str = "out") -> md.Flow:
    flow = md.Flow("passing")
    flow.source("events", Script(COLUMNS, SCRIPT)).sink("out", md.parquet(folder / out))
    return flow


def published(folder: Path) -> list[int]:
    return sorted({int(file.name.split("-")[1]) for file in folder.glob("part-*.parquet")})


def test_a_sink_that_takes_the_place_of_another_is_opened_first(tmp_path: Path) -> None:
    local = Local(passing(tmp_path), tmp_path / "state")
    local.step()
    trial = local.propose(md.Replace("out", md.parquet(tmp_path / "out2")))
    local.step()
    assert trial.done.result(0).epoch == 2
    assert (published(tmp_path / "out"), published(tmp_path / "out2")) == ([1], [2])


def test_a_sink_that_cannot_be_opened_costs_the_change_and_not_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    local = Local(passing(tmp_path), tmp_path / "state")
    local.step()
    trial = local.propose(md.Replace("out", md.parquet(tmp_path / "file" / "out2")))
    local.step()
    with pytest.raises(md.Rejected, match="cannot write there"):
        trial.done.result(0)
    local.run()
    assert (published(tmp_path / "out"), local.manifest.plan["version"]) == ([*range(1, 10)], 1)


class Calls(list[int]):
    """Pickled by name: what is called of a stored copy is seen here, too."""

    def __reduce__(self) -> Any:
        return (_calls, ())


CALLS = Calls()


def _calls() -> Calls:
    """Of this module, and not of the copy of this function that a store has: code is stored by value."""
    found: Calls = import_module("tests.epochs.test_modification_ends").CALLS
    return found


def test_a_function_that_came_with_a_change_is_called_after_a_restart_of_the_flow_as_first_written(tmp_path: Path) -> None:
    CALLS.clear()
    calls = CALLS
    local = Local(passing(tmp_path), tmp_path / "state")
    local.step()
    trial = local.propose(md.Insert("tap", md.foreach_batch(lambda frame, epoch: calls.append(epoch)), after="events"))
    local.step()
    assert trial.done.result(0).epoch == 2
    again = Local(passing(tmp_path), tmp_path / "state")
    again.step()
    assert again.manifest.plan["version"] == 2
    assert sorted(set(calls)) == [2, 3]
    assert published(tmp_path / "out") == [1, 2, 3]


def test_a_function_that_cannot_be_stored_is_refused_as_a_change_and_not_in_the_flow(tmp_path: Path) -> None:
    lock = threading.Lock()

    def save(frame: pl.DataFrame, epoch: int) -> None:
        with lock:
            saved.append(epoch)

    saved: list[int] = []

    def flow() -> md.Flow:
        made = md.Flow("locked")
        made.source("events", Script(COLUMNS, SCRIPT)).filter("k > 0", name="some").sink("out", md.foreach_batch(save))
        return made

    local = Local(flow(), tmp_path / "state")
    local.step()
    with pytest.raises(md.FlowError, match=r"sink 'tap': it cannot be stored, and a restart could not go on with it \(TypeError"):
        local.propose(md.Insert("tap", md.foreach_batch(save), after="events"))
    local.propose(md.Replace("some", md.filter("k > 1")))
    local.step()
    again = Local(flow(), tmp_path / "state")
    again.step()
    assert (again.manifest.plan["version"], sorted(set(saved))) == (2, [1, 2, 3])


def test_an_edited_file_is_sent_with_the_functions_that_can_travel(tmp_path: Path) -> None:
    lock = threading.Lock()
    flow = md.Flow("sent")
    events = flow.source("events", Script(COLUMNS, SCRIPT))
    events.sink("locked", md.foreach_batch(lambda frame, epoch: lock.release()))
    events.sink("plain", md.foreach_batch(lambda frame, epoch: None))
    (change,) = unpack_changes(pack_changes([md.Become(flow.plan())])).changes
    assert isinstance(change, md.Become)
    assert change.plan.digest() == flow.plan().digest()
    assert [change.plan.node(name).op.sink.function is None for name in ("locked", "plain")] == [True, False]  # type: ignore[attr-defined]


def counting(folder: Path, source: str = "in") -> md.Flow:
    flow = md.Flow("counting")
    orders = flow.source("orders", md.files(folder / source, schema={"k": "string"}))
    orders.key_by("k").aggregate(md.count().alias("n"), name="totals").sink("out", md.parquet(folder / "out"))
    return flow


def write(folder: Path, name: str, key: str) -> None:
    folder.mkdir(exist_ok=True)
    pl.DataFrame({"k": [key]}).write_parquet(folder / f"{name}.parquet")


def totals(folder: Path) -> list[tuple[Any, ...]]:
    return sorted(pl.DataFrame(pl.from_arrow(md.read_state(folder / "state", "totals"))).rows())


def all_of(local: Local) -> None:
    local.loop.input.look()
    local.run()


def replaced(folder: Path) -> None:
    """A flow that has read in/, and then one file of in2/."""
    for number in range(3):
        write(folder / "in", f"f{number}", "a")
    write(folder / "in2", "g0", "b")
    local = Local(counting(folder), folder / "state")
    all_of(local)
    trial = local.propose(md.Replace("orders", md.files(folder / "in2", schema={"k": "string"}), resume=False))
    local.loop.input.look()
    while not trial.done.done():
        local.step()
        local.loop.input.look()
    local.run()
    local.loop.close()


@pytest.mark.parametrize("replica", [None, "a"])
def test_a_source_that_was_replaced_goes_on_after_a_restart(tmp_path: Path, replica: str | None, caplog: pytest.LogCaptureFixture) -> None:
    replaced(tmp_path)
    write(tmp_path / "in2", "g1", "b")
    for again in range(2):
        local = Local(counting(tmp_path), tmp_path / "state", replica=replica)
        all_of(local)
        local.loop.close()
        assert totals(tmp_path) == [("a", 3), ("b", 2)]
        assert caplog.text.count("source 'orders' was changed while the flow ran and goes on so: in force is files parquet") == again + 1
    assert "`meander apply FLOW.py --restart`" in caplog.text


def test_the_edited_file_goes_on_with_the_source_that_it_names_and_an_outdated_one_does_not_bring_the_old_one_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    replaced(tmp_path)
    write(tmp_path / "in2", "g1", "b")
    edited = Local(counting(tmp_path, "in2"), tmp_path / "state")
    all_of(edited)
    edited.loop.close()
    assert "was changed while the flow ran" not in caplog.text
    (tmp_path / "in2").rename(tmp_path / "in3")  # what the file says may move again
    write(tmp_path / "in3", "g2", "b")
    moved = Local(counting(tmp_path, "in3"), tmp_path / "state")
    all_of(moved)
    moved.loop.close()
    assert totals(tmp_path) == [("a", 3), ("b", 3)]
    assert "was changed while the flow ran" not in caplog.text
    (tmp_path / "in3").rename(tmp_path / "in2")
    outdated = Local(counting(tmp_path), tmp_path / "state")
    all_of(outdated)
    assert totals(tmp_path) == [("a", 3), ("b", 3)]
    assert "source 'orders' was changed while the flow ran" in caplog.text


def test_a_source_that_is_replaced_back_begins_at_its_beginning(tmp_path: Path) -> None:
    replaced(tmp_path)
    local = Local(counting(tmp_path), tmp_path / "state")
    trial = local.propose(md.Become(counting(tmp_path).plan(), resume=False))
    while not trial.done.done():
        local.loop.input.look()
        local.step()
    all_of(local)
    local.loop.close()
    assert totals(tmp_path) == [("a", 6), ("b", 1)]
    again = Local(counting(tmp_path), tmp_path / "state")
    all_of(again)
    assert totals(tmp_path) == [("a", 6), ("b", 1)]


def test_a_sink_that_was_replaced_goes_on_after_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    local = Local(passing(tmp_path), tmp_path / "state")
    local.step()
    local.propose(md.Replace("out", md.parquet(tmp_path / "out2")))
    local.step()
    for out in ("out", "out2", "out"):
        Local(passing(tmp_path, out), tmp_path / "state").step()
    assert (published(tmp_path / "out"), published(tmp_path / "out2")) == ([1], [2, 3, 4, 5])
    assert caplog.text.count("sink 'out' was changed while the flow ran and goes on so") == 2

"""The golden store of version 1: every later version goes on with it, and comes to what a run of the whole input gives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.golden.golden_store import ARCHIVE, FILES, STORED, Life, a_flow, inside, machine_paths, make, small_constants, unpack

import meander as md
from meander.state.history import read_history
from meander.state.log import entries_after, snapshots
from meander.state.manifest import Manifest
from meander.state.signs import read_signs
from meander.state.stores.contract import DirStore
from meander.task.operators import _MAKERS as MAKERS


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Life:
    """A run of the whole input from scratch."""
    with inside(tmp_path_factory.mktemp("whole")), small_constants():
        life = Life()
        life.finish()
    return life


@pytest.fixture(params=["golden", "made now"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """The store in the working directory: as it was written in version 1, and as it is written today."""
    with inside(tmp_path):
        if request.param == "golden":
            unpack(ARCHIVE, tmp_path / "store")
            for name, epoch in FILES.items():
                if epoch <= STORED:
                    (tmp_path / "in").mkdir(exist_ok=True)
                    (tmp_path / "in" / name).touch()  # it was read: that its name is known keeps it from being read again
        else:
            make()
        yield tmp_path / "store"


def test_the_store_goes_on_as_if_it_had_never_stopped(stored: Path, whole: Life) -> None:
    with small_constants():
        life = Life()
        assert life.epoch == STORED
        life.finish()
    expected = whole.output(STORED)
    assert [name for name, epochs in expected.items() if not epochs] == []
    for name, epochs in life.output(STORED).items():
        assert epochs == expected[name], name
    assert life.epoch == whole.epoch
    assert life.state() == whole.state()
    assert life.letters() == whole.letters()


def test_a_store_with_keys_that_are_not_known_goes_on(tmp_path: Path, whole: Life) -> None:
    """As a later Meander may write them within version 1."""
    with inside(tmp_path), small_constants():
        make()
        for folder in ("log", "manifest", "seen", "decide", "replicas", "modifications"):
            for place in Path("store", folder).rglob("*"):
                if place.is_file():
                    place.write_text(json.dumps({"later": {"of": [1]}, **json.loads(place.read_text())}))
        life = Life()
        life.finish()
    assert life.state() == whole.state()
    assert life.output(STORED) == whole.output(STORED)


def test_its_state_is_read_without_going_on(stored: Path) -> None:
    with inside(stored.parent):
        (row,) = md.read_state(stored, "whole").to_pylist()
    assert row["n"] == 5 * STORED


def test_everything_is_in_it(stored: Path) -> None:
    store = DirStore(stored)
    entries = list(entries_after(store, Manifest()))
    behind = [position for position, _ in snapshots(store)]
    assert behind
    assert max(entry["position"] for entry in entries) > max(behind)
    kinds = {entry["kind"].removesuffix("s") for entry in entries}
    assert kinds >= {"takeover", "epoch", "compaction", "name", "routing"}
    assert [record["verdict"] for record in read_history(store)] == ["in force", "rejected"]
    assert [sign.name for sign in read_signs(store)] == ["a"]
    assert md.read_dead_letters(stored).num_rows == 2
    assert store.list("tables/")
    assert store.list("seen/")
    plan = a_flow({}).plan()
    missing = {kind.__name__ for kind in MAKERS} - {type(node.op).__name__ for node in plan.nodes}
    assert not missing, f"the golden store has no {missing}"


def test_the_archive_is_small_and_has_nothing_of_a_machine_in_it(tmp_path: Path) -> None:
    assert ARCHIVE.stat().st_size < 500_000
    unpack(ARCHIVE, tmp_path)
    assert machine_paths(tmp_path) == []

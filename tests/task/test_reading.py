"""State is read from a store without running what is in it: by kinds and parameters. Code of the flow's own is asked for first."""

from __future__ import annotations

import _pickle
import base64
import contextlib
import hashlib
import json
import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import polars as pl
import pytest
from tests.everything import everything
from tests.local import Local
from tests.pickles import code_in

import meander as md
from meander.cli.main import main
from meander.errors import ConfigError, Corrupted
from meander.state.reading import plan_name
from meander.stored.code import versions

_watching: list[bool] = []


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if _watching and event == "pickle.find_class":
        raise AssertionError(f"something was unpickled: {arguments}")


@contextlib.contextmanager
def nothing_unpickled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within this, unpickling anything raises."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was unpickled")

    if not getattr(sys, "_meander_refuses", False):  # a hook cannot be removed
        sys.addaudithook(_refuse)
        sys._meander_refuses = True  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        for name in ("loads", "load"):
            patch.setattr(pickle, name, refuse)
            patch.setattr(cloudpickle, name, refuse)
        _watching.append(True)
        try:
            yield
        finally:
            _watching.clear()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("everything")
    (folder / "in").mkdir()
    (folder / "in" / "1.json").write_text('{"k": 1, "w": 2.5}\n')
    os.utime(folder / "in" / "1.json", (0, 0))
    local = Local(everything(folder), folder / "state", 1)
    local.step()
    local.step()
    return folder / "state"


def test_the_watch_sees_what_is_unpickled(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pickle.dumps(Path)
    with nothing_unpickled(monkeypatch), pytest.raises(AssertionError, match="was unpickled"):
        _pickle.loads(packed)


def test_the_state_of_every_operator_is_read_without_unpickling_anything(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readers = json.loads((store / plan_name(_digest(store))).read_text())["readers"]
    assert len(readers) > 25
    for operator in set(readers) - {"own"}:
        with nothing_unpickled(monkeypatch):
            found = md.read_state(store, operator)
        assert found.num_rows, operator


def test_an_aggregate_of_the_flows_own_is_run_only_where_that_is_allowed(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"operator 'own': it has code of the flow's own \('Spread'\).*run_code=True.*--run-code"):
        md.read_state(store, "own")
    found = pl.DataFrame(pl.from_arrow(md.read_state(store, "own", run_code=True)))
    assert found.columns == ["k", "spread", "count"]
    assert main(["state", str(store), "own"]) != 0
    assert "--run-code" in capsys.readouterr().err
    assert main(["state", str(store), "own", "--run-code", "--format", "csv"]) == 0


class Bomb:
    """Unpickling it leaves a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self._path,))


def _digest(store: Path) -> str:
    return next(name.stem for name in (store / "plan").glob("*.json"))


def malicious(path: Path) -> dict[str, Any]:
    """A blob that would pass all checks."""
    data = pickle.dumps(Bomb(path))
    code = {"name": "harmless", "does": "", "written_by": versions(), "sha256": hashlib.sha256(data).hexdigest()}
    return {"$code": {**code, "pickle": base64.b64encode(data).decode()}}


AGGREGATOR = {"kind": "aggregator", "column": None, "label": None, "expression": None, "written": None}


def _totals(readers: dict[str, Any]) -> Any:
    return readers["totals"]


@pytest.mark.parametrize(
    "place",
    [
        lambda readers, bomb: readers.update(totals=bomb),
        lambda readers, bomb: readers["totals"].update(keys=[bomb]),
        lambda readers, bomb: readers["totals"]["aggregates"].append(bomb),
        lambda readers, bomb: readers["totals"]["aggregates"].append({**AGGREGATOR, "user": bomb}),
        lambda readers, bomb: readers["totals"].update(keys={"$own": {"class": bomb["$code"], "attributes": {}}}),
        lambda readers, bomb: readers["totals"].update(keys={"$map": [[bomb, 1]]}),
    ],
)
def test_code_in_a_stores_plan_is_not_run_by_reading_state(tmp_path: Path, place: Any) -> None:
    local = Local(everything(tmp_path, own=False), tmp_path / "state", 1)
    local.step()
    name = plan_name(local.manifest.plan["digest"])
    document = json.loads(local.store.get(name))
    assert not list(code_in(document))
    place(document["readers"], malicious(tmp_path / "run"))
    local.store.put(name, json.dumps(document).encode())
    with pytest.raises(ConfigError, match="it has code of the flow's own"):
        md.read_state(tmp_path / "state", "totals")
    assert not (tmp_path / "run").exists()
    assert md.read_state(tmp_path / "state", "all").num_rows, "what is said of the others does not matter"
    with contextlib.suppress(Exception):  # what comes of it is no state
        md.read_state(tmp_path / "state", "totals", run_code=True)
    assert (tmp_path / "run").exists(), "it would be, by whoever allows it"


def test_expressions_in_polars_own_form_are_not_read_either(tmp_path: Path) -> None:
    local = Local(everything(tmp_path, own=False), tmp_path / "state", 1)
    local.step()
    name = plan_name(local.manifest.plan["digest"])
    document = json.loads(local.store.get(name))
    packed = base64.b64encode(pl.col("v").map_batches(lambda values: values).meta.serialize()).decode()
    _totals(document["readers"])["aggregates"][0]["expression"] = {"$expression": {"polars": pl.__version__, "binary": packed}}
    local.store.put(name, json.dumps(document).encode())
    with pytest.raises(ConfigError, match="an expression in Polars' own form, which may hold code"):
        md.read_state(tmp_path / "state", "totals")


def test_code_that_was_damaged_is_not_run(store: Path, tmp_path: Path) -> None:
    name = store / plan_name(_digest(store))
    before = name.read_text()
    document = json.loads(before)
    (code,) = [agg["user"]["$own"]["class"] for agg in document["readers"]["own"]["aggregates"] if agg["kind"] == "aggregator"]
    code["pickle"] = base64.b64encode(pickle.dumps(Bomb(tmp_path / "run"))).decode()
    name.write_text(json.dumps(document))
    try:
        with pytest.raises(Corrupted, match="is damaged: its digest is"):
            md.read_state(store, "own", run_code=True)
    finally:
        name.write_text(before)
    assert not (tmp_path / "run").exists()

"""Plans as stored documents: what is read is what was written, under whatever names classes have, and nothing else is understood."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.everything import NAMES, everything
from tests.local import Local
from tests.pickles import by_value, code_in, imports_in

import meander as md
from meander.errors import ConfigError, Corrupted, FlowError
from meander.nexmark.queries import FLOWS, build
from meander.nexmark.stream import sources
from meander.plan.documents import read_plan, write_plan
from meander.plan.graph import Plan
from meander.plan.joins import Matching
from meander.plan.tables import StoredLookup
from meander.state.log import read_manifest
from meander.stored.kinds import all_kinds
from meander.stored.values import Reader, Writer

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "plan.json"


def same(one: Plan, other: Plan) -> bool:
    from meander.plan.explain import explain

    assert one.record() == other.record()
    assert explain(one) == explain(other)
    assert one.changes == other.changes
    return (one.digest(), one.version, one.retired) == (other.digest(), other.version, other.retired)


def kinds_in(data: Any) -> Iterator[str]:
    """Every kind in a document."""
    if isinstance(data, dict):
        if "kind" in data:
            yield data["kind"]
        for value in data.values():
            yield from kinds_in(value)
    elif isinstance(data, list):
        for value in data:
            yield from kinds_in(value)


def test_the_plan_that_is_read_is_the_plan_that_was_written(tmp_path: Path) -> None:
    plan = everything(tmp_path).plan().with_retired({"totals": ("old.n",)})
    assert same(plan, read_plan(write_plan(plan, "stored"), "the plan"))


@pytest.mark.parametrize("query", FLOWS)
def test_so_are_the_plans_of_nexmark(query: str) -> None:
    plan = build(query, sources(list(FLOWS[query]), events=10), md.memory()).plan()
    found = write_plan(plan, "stored")
    assert same(plan, read_plan(found, "the plan"))
    assert not [module for code in code_in(json.loads(found)) for module in imports_in(code) if module.startswith("meander")]


def test_a_plan_without_code_has_one_document(tmp_path: Path) -> None:
    written = write_plan(everything(tmp_path, own=False).plan(), "stored")
    assert write_plan(read_plan(written, "the plan"), "stored") == written


def test_there_is_a_test_for_every_kind(tmp_path: Path) -> None:
    found = set(kinds_in(json.loads(write_plan(everything(tmp_path).plan(), "stored"))))
    local = Local(everything(tmp_path), tmp_path / "state")
    local.step()
    readers = local.store.get(f"plan/{local.manifest.plan['digest']}")
    found |= set(kinds_in(json.loads(readers)))
    elsewhere = {"stored_table", "spool", "spark_stream", "nexmark", "nexmark_workload", "rehearsed", "workload", "workload_shape"}
    assert {kind.name for kind in all_kinds()} - found <= elsewhere


def test_a_table_that_is_stored_apart_is_not_in_the_document() -> None:
    lookup = StoredLookup(Matching(("k",), ("k",)), "left", NAMES.schema, "d1", rows=3, bytes=9, frame=NAMES)
    again = Reader("a table", run_code=False).read(Writer().write(lookup))
    assert again.frame is None
    assert again.identity() == lookup.identity()


def test_a_golden_document_is_written_and_read(tmp_path: Path) -> None:
    """Whatever fails here makes stores of before unreadable: change what is read, and never what the golden file says."""
    plan = everything(tmp_path, own=False).plan()
    written = json.loads(write_plan(plan, "stored"))
    written.pop("written_by")
    text = json.dumps(written, indent=1).replace(str(tmp_path), "FOLDER") + "\n"
    if os.environ.get("WRITE_GOLDEN"):
        GOLDEN.write_text(text)
    stored = GOLDEN.read_text()
    assert text.replace(f'"polars": "{pl.__version__}"', '"polars": "2.1.0"') == stored
    assert same(plan, read_plan(stored.replace("FOLDER", str(tmp_path)).encode(), "the plan"))


def changed(document: bytes, change: Any) -> bytes:
    found = json.loads(document)
    change(found)
    return json.dumps(found).encode()


def simple() -> bytes:
    flow = md.Flow("simple")
    flow.source("in", md.generator("key_value")).filter("value > 0.5", name="half").sink("out", md.memory())
    return write_plan(flow.plan(), "stored")


def _filter(document: dict[str, Any]) -> Any:
    return next(op["operator"] for op in document["operators"] if op["name"] == "half")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: _filter(d).update(kind="sieve"), "operator 'half': its kind 'sieve' is not known to Meander .*newer Meander"),
        (lambda d: _filter(d).update(mesh=3), "operator 'half': filter has a parameter 'mesh' that Meander .*newer Meander"),
        (lambda d: _filter(d).pop("text"), "operator 'half': filter has no parameter 'text'.*another version"),
        (lambda d: _filter(d).update(text={"$tale": 1}), "operator 'half': .*tale.* is not understood by Meander"),
        (lambda d: _filter(d).update(text={"$type": "int65"}), "operator 'half': .*int65.* is not understood by Meander"),
        (lambda d: d.update(format=2), "'p' has format 2, and this Meander reads format 1: use a newer Meander; it was written by Meander"),
    ],
)
def test_a_document_of_a_newer_version_is_refused_with_a_sentence(change: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_plan(changed(simple(), change), "'p'")


@pytest.mark.parametrize("data", [b"", b"\x80\x05N.", b"[]", b"{"])
def test_what_is_no_document_is_damaged(data: bytes) -> None:
    with pytest.raises(Corrupted, match="the plan is damaged"):
        read_plan(data, "the plan")


def test_an_object_without_a_format_is_refused() -> None:
    with pytest.raises(ConfigError, match="the plan does not say its format: it was written before format 1"):
        read_plan(b"{}", "the plan")


def with_function(function: Any) -> Plan:
    flow = md.Flow("own")
    flow.source("in", md.generator("key_value")).map_batches(function, name="mine", schema={"key": pl.Int64()}).sink("out", md.memory())
    return flow.plan()


def test_code_whose_digest_is_wrong_is_corrupted() -> None:
    def spoil(document: dict[str, Any]) -> None:
        found = document["operators"][1]["operator"]["function"]["$code"]
        found["pickle"] = base64.b64encode(base64.b64decode(found["pickle"]) + b"x").decode()

    document = write_plan(with_function(lambda frame: frame.select("key")), "stored")
    with pytest.raises(Corrupted, match=r"operator 'mine': the stored code of .*lambda.* is damaged: its digest is"):
        read_plan(changed(document, spoil), "the plan")


def test_code_that_cannot_be_read_here_says_whose_it_is_and_what_has_written_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "gone_tomorrow.py").write_text("def fix(frame):\n    return frame\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import gone_tomorrow  # type: ignore[import-not-found]

    document = write_plan(with_function(lambda frame: gone_tomorrow.fix(frame)), "stored").replace(b'"3.1', b'"2.0')
    monkeypatch.delitem(sys.modules, "gone_tomorrow")
    (tmp_path / "gone_tomorrow.py").unlink()
    with pytest.raises(ConfigError, match=r"operator 'mine': .*gone_tomorrow.*written with Python .*here are Python .*Use the versions"):
        read_plan(document, "the plan")


def test_what_cannot_be_stored_is_named() -> None:
    lock = threading.Lock()
    with pytest.raises(FlowError, match="map_batches 'mine': it cannot be stored"):
        write_plan(with_function(lambda frame: frame.head(lock.locked())), "stored")


def test_code_comes_with_what_it_does_and_what_wrote_it() -> None:
    written = json.loads(write_plan(with_function(lambda frame: frame.select("key")), "stored"))
    code = written["operators"][1]["operator"]["function"]["$code"]
    assert code["written_by"].keys() == {"python", "meander", "polars", "cloudpickle"}
    assert code["does"] == with_function(lambda frame: frame.select("key")).node("mine").code.digest


RENAMED = """
import sys, types
from pathlib import Path

import meander
from meander.state.log import read_manifest
from meander.stored.kinds import all_kinds
from tests.everything import everything
from tests.local import Local
from tests.pickles import code_in, imports_in

moved = types.ModuleType("meander.moved")
sys.modules["meander.moved"] = meander.moved = moved
for number, kind in enumerate(all_kinds()):
    found, name = kind.type, f"Renamed{number}"
    found.__module__, found.__name__, found.__qualname__ = "meander.moved", name, name
    setattr(moved, name, found)

folder = Path(sys.argv[1])
local = Local(everything(folder), folder / "state", 1)
assert "packed" in local.loop.in_force.plan
assert local.modifier.plan.node("large").op.text == "v > 3"
assert local.step()
assert meander.read_state(folder / "state", "totals").num_rows
assert meander.read_state(folder / "state", "own", run_code=True).num_rows
"""


@by_value(everything)
def test_a_store_survives_it_that_every_class_in_it_gets_another_name(tmp_path: Path) -> None:
    local = Local(everything(tmp_path), tmp_path / "state", 1)
    local.step()
    trial = local.propose(
        md.Insert("large", md.filter("v > 3"), after="same"),
        md.Insert("mine", md.map_batches(lambda frame: frame), after="large"),
        drop=True,
    )
    local.step()
    assert trial.done.result(0).version == 2
    done = subprocess.run(
        [sys.executable, "-c", RENAMED, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert read_manifest(local.store).epoch == 3

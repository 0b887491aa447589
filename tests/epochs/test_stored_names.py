"""Nothing in a store names a module of ours: every object of a store is looked through, in plain bytes and in the code of users."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.everything import COLUMNS, SCRIPT, everything
from tests.local import Local, Script
from tests.pickles import by_value, code_in, imports_in, texts_in

import meander as md
from meander.errors import Corrupted

OURS = re.compile(rb"meander\.[a-z_]+")
"""How a module of ours is written. Names of files and versions say ``meander`` in other ways."""


@by_value(everything)
def test_no_object_of_a_store_names_a_module_of_ours(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"k": 1, "w": 2.5}\n{"k": "bad"}\n')
    local = Local(everything(tmp_path), tmp_path / "state", 1)
    local.step()
    trial = local.propose(
        md.Insert("large", md.filter("v > 3"), after="same"),
        md.Insert("mine", md.map_batches(lambda frame: md.Flow and frame), after="large"),
        md.Insert("tapped", md.foreach_batch(lambda frame, epoch: None), after="mine"),
    )
    local.step()
    assert trial.done.result(0).version == 2
    local = Local(everything(tmp_path), tmp_path / "state", 1)  # a restart, which stores what it goes on with
    local.step()
    edited = local.propose(md.Remove("mine"), md.Replace("end_5", md.parquet(tmp_path / "other")))
    local.step()
    assert edited.done.result(0).version == 3
    names = list(local.store.list(""))
    kinds = {name.split("/")[0] for name in names}
    assert {"plan", "log", "segments", "modifications"} <= kinds
    assert {name.rpartition(".")[2] for name in names if name.startswith("plan/")} >= {"packed", "json"}
    seen = 0
    for name in names:
        data = local.store.get(name)
        assert data is not None
        assert not OURS.findall(data), name
        assert not data.startswith(b"\x80"), f"{name} is a pickle"
        for code in code_in(json.loads(data)) if name.startswith("plan/") and data.startswith(b"{") else ():
            seen += 1
            assert not [text for text in texts_in(code) if OURS.search(text.encode())], name
            assert not [module for module in imports_in(code) if module.startswith("meander")], name
    assert seen > 8


def test_the_search_would_find_a_name(tmp_path: Path) -> None:
    import pickle

    from meander.plan.windows import Window

    packed = pickle.dumps(Window(1, 1))
    assert OURS.findall(packed)
    assert imports_in(packed) == {"meander.plan.windows"}


def test_a_stored_plan_that_was_changed_is_corrupted(tmp_path: Path) -> None:
    def flow() -> md.Flow:
        made = md.Flow("small")
        made.source("in", Script(COLUMNS, SCRIPT)).filter("v >= 0", name="kept").sink("out", md.memory())
        return made

    local = Local(flow(), tmp_path, 1)
    local.step()
    local.propose(md.Replace("kept", md.filter("v > 3")))
    local.step()
    name = local.loop.in_force.plan["packed"]
    data = local.store.get(name)
    local.store.put(name, data.replace(b"v > 3", b"v > 4"))
    with pytest.raises(Corrupted, match=r"packed' is damaged: its content is not the one that its name stands for"):
        Local(flow(), tmp_path, 1)
    local.store.put(name, data)
    assert Local(flow(), tmp_path, 1).modifier.plan.node("kept").op.text == "v > 3"

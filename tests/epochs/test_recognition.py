"""A flow that its store knows, written otherwise: changed code that does the same, and another version of Polars or Python."""

from __future__ import annotations

import json
import linecache
import logging
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.local import Local, Script

import meander as md
from meander.plan import graph
from meander.plan.change.modify import Replace
from meander.plan.operators import Filter
from meander.state.reading import plan_record_name
from meander.state.stores.contract import DirStore

COLUMNS: dict[str, Any] = {"k": pl.Int64(), "v": pl.Int64()}
SCRIPT = tuple(((0, tuple((key, epoch) for key in range(3))),) for epoch in range(9))

FLOW = """
import polars as pl
import meander as md

RATE = 2

def rate(x):
    return x * RATE

def enrich(df):
    return df.with_columns(v=rate(pl.col("v")))

def unchanged(df):
    return df

class Last(md.Processor):
    total = md.value(int, default=0)
    output = {"last": int}

    def on_events(self, key, rows, state, ctx):
        state.total += rate(sum(row.v for row in rows))
        yield (state.total,)

def flow_of(source, out, least=0, predicate=None):
    flow = md.Flow("rates")
    rows = flow.source("events", source).filter(predicate if predicate is not None else f"k >= {least} AND k IN (0, 1, 2)", name="some")
    rows = rows.map_batches(enrich, name="enrich").map_batches(unchanged, name="plain")
    rows.key_by("k").process(Last(), name="last").sink("out", md.parquet(out))
    return flow
"""


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Any]:
    """Writes the flow's file, with edits, and loads it as a process that starts now would."""
    count = 0

    def write(*edits: tuple[str, str], **options: Any) -> md.Flow:
        nonlocal count
        count += 1
        text = FLOW
        for old, new in edits:
            assert old in text
            text = text.replace(old, new)
        file = tmp_path / f"flow{count}.py"
        file.write_text(text)
        module = types.ModuleType("flow_file")
        module.__file__ = str(file)
        exec(compile(text, str(file), "exec"), vars(module))
        flow: md.Flow = module.flow_of(Script(COLUMNS, SCRIPT), tmp_path / "out", **options)
        return flow

    return write


def run_once(flow: md.Flow, folder: Path, **options: Any) -> Local:
    local = Local(flow, folder / "state", **options)
    local.step()
    local.loop.close()
    return local


SLOWER = ("return x * RATE", "y = x * RATE\n    return y")
"""The same, written otherwise."""
CODED = ["enrich", "last"]


def test_an_edited_comment_is_no_edit(tmp_path: Path, written: Callable[..., Any]) -> None:
    before = run_once(written(), tmp_path)
    after = run_once(written(("def rate", "# how much\ndef rate"), ("return x * RATE", "'''The rate.'''\n    return (x * RATE)")), tmp_path)
    assert (after.manifest.epoch, after.manifest.plan) == (2, before.manifest.plan)


def test_a_changed_helper_is_refused_by_its_name_and_the_offer_is_made(tmp_path: Path, written: Callable[..., Any]) -> None:
    run_once(written(), tmp_path)
    said = "map_batches 'enrich' has other Python code: rate() changed; process 'last' has other Python code: rate() changed"
    with pytest.raises(md.ConfigError, match=re.escape(said)) as refused:
        Local(written(SLOWER), tmp_path / "state")
    assert "same_code=['enrich', 'last']; 'What counts as code' in docs/modifications.md" in str(refused.value)
    with pytest.raises(md.ConfigError, match=r"has other Python code: RATE changed"):
        Local(written(("RATE = 2", "RATE = 3")), tmp_path / "state")


@pytest.mark.parametrize("said", [True, CODED])
def test_code_that_is_said_to_be_the_same_goes_on_and_is_not_asked_about_again(
    tmp_path: Path, written: Callable[..., Any], said: Any, caplog: pytest.LogCaptureFixture
) -> None:
    before = run_once(written(), tmp_path)
    with caplog.at_level(logging.WARNING):
        after = run_once(written(SLOWER), tmp_path, same_code=said)
    assert "the changed code of 'enrich' (rate()) is taken for the same" in caplog.text
    assert after.manifest.plan == before.manifest.plan
    caplog.clear()
    again = run_once(written(SLOWER), tmp_path)
    last = run_once(written(), tmp_path)
    assert (again.manifest.plan, last.manifest.plan, last.manifest.epoch) == (before.manifest.plan, before.manifest.plan, 4)
    assert "taken for the same" not in caplog.text


def test_all_that_differs_beside_it_is_still_refused(tmp_path: Path, written: Callable[..., Any]) -> None:
    run_once(written(), tmp_path)
    with pytest.raises(
        md.ConfigError, match=r"\): filter 'some' differs \(was[^)]*\); is[^)]*\)\)\. Start"
    ):  # and the code is no difference any more
        Local(written(SLOWER, least=1), tmp_path / "state", same_code=True)
    with pytest.raises(md.ConfigError, match=r": process 'last' has other Python code: rate\(\) changed\. Start"):
        Local(written(SLOWER), tmp_path / "state", same_code=["enrich"])
    with pytest.raises(md.ConfigError, match=r"same_code: there is no operator 'enrihc' with Python code; did you mean 'enrich'"):
        Local(written(SLOWER), tmp_path / "state", same_code=["enrihc"])
    with pytest.raises(md.ConfigError, match="has other Python code"):  # of all that nothing was noted
        Local(written(SLOWER), tmp_path / "state")


def test_what_was_said_once_holds_for_later_edits_of_the_file(tmp_path: Path, written: Callable[..., Any]) -> None:
    run_once(written(), tmp_path)
    run_once(written(SLOWER), tmp_path, same_code=True)
    edited = Local(written(SLOWER, least=1), tmp_path / "state", apply=True)
    edited.step()
    assert edited.trial is not None
    assert edited.trial.done.result(0).effects["plan"] == [
        "filter 'some' differs (was: k >= 0 AND k IN (0, 1, 2); is: k >= 1 AND k IN (0, 1, 2))"
    ]
    edited.loop.close()
    assert run_once(written(SLOWER, least=1), tmp_path).manifest.plan["version"] == 2


def test_with_apply_the_code_that_is_said_to_be_the_same_is_no_part_of_the_change(tmp_path: Path, written: Callable[..., Any]) -> None:
    run_once(written(), tmp_path)
    edited = Local(written(SLOWER, least=1), tmp_path / "state", apply=True, same_code=True)
    edited.step()
    assert edited.trial is not None
    assert len(edited.trial.done.result(0).effects["plan"]) == 1
    edited.loop.close()
    assert run_once(written(SLOWER, least=1), tmp_path).manifest.plan["version"] == 2


def test_the_file_of_a_flow_that_was_modified_since_can_be_said_to_be_the_same(tmp_path: Path, written: Callable[..., Any]) -> None:
    """What is in force is another plan; the file is compared with those that were started."""
    local = Local(written(), tmp_path / "state")
    local.step()
    trial = local.propose(Replace("some", md.filter("k >= 2")))
    local.step()
    assert trial.done.result(0).version == 2
    local.loop.close()
    with pytest.raises(md.ConfigError, match="has other Python code"):
        Local(written(SLOWER), tmp_path / "state")
    for said in (True, False):
        after = run_once(written(SLOWER), tmp_path, same_code=said)
        assert after.manifest.plan["version"] == 2
        assert isinstance(op := after.modifier.plan.node("some").op, Filter)
        assert op.text == "k >= 2"


def test_a_function_that_a_change_brought_is_that_of_the_edited_file(tmp_path: Path, written: Callable[..., Any]) -> None:
    """Also where its file is gone, or has other lines: in force is a function that was unpickled from the store."""
    local = Local(written(), tmp_path / "state")
    local.step()
    trial = local.propose(md.Become(written(("RATE = 2", "RATE = 3")).plan()))
    local.step()
    assert trial.done.result(0).version == 2
    local.loop.close()
    commented = ("def rate", "# how much\n\n\ndef rate")
    for edits in ([("RATE = 2", "RATE = 3")], [("RATE = 2", "RATE = 3"), commented], [], [commented]):
        for file in tmp_path.glob("flow*.py"):
            file.unlink()
        linecache.clearcache()
        after = run_once(written(*edits), tmp_path)
        assert after.manifest.plan["digest"] == local.manifest.plan["digest"] == after.modifier.plan.digest()
    with pytest.raises(md.ConfigError, match="has other Python code: RATE changed"):
        Local(written(("RATE = 2", "RATE = 4")), tmp_path / "state")


# -- another version --------------------------------------------------------------------------------------------------


@pytest.fixture
def another_version(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From here on this process is one of another Polars, which writes IN lists and all other expressions in its own way."""

    def become() -> None:
        monkeypatch.setattr(graph.pl, "__version__", "9.9.9")
        own = Filter.canonical
        monkeypatch.setattr(Filter, "canonical", lambda op: own(op).replace("BinaryExpr", "Binary"))

    return become


def test_sql_is_known_again_when_another_polars_makes_another_expression_of_it(
    tmp_path: Path, written: Callable[..., Any], another_version: Callable[[], None]
) -> None:
    before = run_once(written(), tmp_path)
    own = written().plan().digest()
    another_version()
    assert written().plan().digest() != own
    after = run_once(written(), tmp_path)
    assert (after.manifest.plan, after.manifest.epoch) == (before.manifest.plan, 2)
    assert after.modifier.plan.digest() == own
    with pytest.raises(md.ConfigError, match=r"filter 'some' differs .*made with Polars 2\.[0-9.]+ and this is Polars 9\.9\.9"):
        Local(written(least=1), tmp_path / "state")


def test_an_expression_is_known_again_by_the_plan_that_is_stored(
    tmp_path: Path, written: Callable[..., Any], another_version: Callable[[], None]
) -> None:
    before = run_once(written(predicate=pl.col("k") >= 0), tmp_path)
    another_version()
    after = run_once(written(predicate=pl.col("k") >= 0), tmp_path)
    assert (after.manifest.plan, after.manifest.epoch) == (before.manifest.plan, 2)
    with pytest.raises(md.ConfigError, match="filter 'some' differs"):
        Local(written(predicate=pl.col("k") >= 1), tmp_path / "state")


def test_a_modified_flow_goes_on_under_another_polars_with_the_digest_that_the_log_has(
    tmp_path: Path, written: Callable[..., Any], another_version: Callable[[], None]
) -> None:
    local = Local(written(predicate=pl.col("k") >= 0), tmp_path / "state")
    local.step()
    trial = local.propose(Replace("some", md.filter(pl.col("k") >= 2)))
    local.step()
    assert trial.done.result(0).version == 2
    local.loop.close()
    another_version()
    for predicate in (pl.col("k") >= 0, pl.col("k") >= 2):  # the file as it was, and as it was edited since
        after = run_once(written(predicate=predicate), tmp_path)
        assert after.manifest.plan["digest"] == local.manifest.plan["digest"]
        assert after.modifier.plan.version == 2


def test_another_python_is_no_difference(tmp_path: Path, written: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The record says that another version has made it; what is compared is the source, which is the same."""
    before = run_once(written(), tmp_path)
    store = DirStore(tmp_path / "state")
    name = plan_record_name(before.manifest.plan["digest"])
    record = json.loads(store.get(name) or b"")
    record["made_with"]["Python"] = "3.99"
    store.put(name, json.dumps(record).encode())
    assert run_once(written(), tmp_path).manifest.epoch == 2
    with pytest.raises(md.ConfigError) as refused:
        Local(written(SLOWER), tmp_path / "state")
    assert "3.99" not in str(refused.value)

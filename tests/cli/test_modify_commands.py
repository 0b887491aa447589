"""Changing a flow from the shell: what is sent, what is printed, and what is refused before anything is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.control.fake_run import FakeRun

from meander.cli.main import main
from meander.clock import SystemClock
from meander.control.server import Server
from meander.errors import FlowError, Rejected
from meander.plan.change.become import Become
from meander.plan.change.code import unpack_changes
from meander.plan.change.modify import Insert, Replace

TOKEN, CODE = "correct-horse-battery", "staple-and-more-than-that"
FLOW = """
import meander as md
import polars as pl

def clean(frame):
    return frame.filter(pl.col("amount") > {least})

flow = md.Flow("orders")
orders = flow.source("orders", md.files("{folder}/in", schema={{"customer": pl.String, "amount": pl.Float64}}))
cleaned = orders.map_batches(clean, name="clean")
cleaned.key_by("{key}").aggregate(md.count().alias("n"), name="totals").sink("out", md.parquet("{folder}/out"))
"""


@pytest.fixture
def run() -> FakeRun:
    return FakeRun()


@pytest.fixture
def server(run: FakeRun, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    serving = Server(run, "127.0.0.1", 0, TOKEN, SystemClock(), code_token=CODE)
    monkeypatch.setenv("MEANDER_URL", serving.url)
    monkeypatch.setenv("MEANDER_TOKEN", TOKEN)
    monkeypatch.setenv("MEANDER_CODE_TOKEN", CODE)
    yield serving
    serving.close()


def sent(run: FakeRun) -> dict[str, Any]:
    ((_, told, code),) = run.asked
    assert code is None
    (change,) = told["changes"]
    return {name: value for name, value in change.items() if value is not None}


def write(folder: Path, name: str, **values: Any) -> str:
    (folder / "in").mkdir(exist_ok=True)
    path = folder / name
    path.write_text(FLOW.format(**{"least": 0, "key": "customer", "folder": folder, **values}))
    return str(path)


def test_replace_says_what_is_in_force(server: Server, run: FakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replace", "people", "--filter", "age > 10", "--author", "ada", "--request-id", "one"]) == 0
    assert sent(run) == {"change": "replace", "name": "people", "operator": {"filter": "age > 10"}}
    assert (run.asked[0][1]["author"], run.asked[0][1]["request_id"]) == ("ada", "one")
    out = capsys.readouterr().out
    assert out == (
        "plan version 2 is in force from epoch 13 on, 250 ms after it was asked for\n  plan: filter 'people' differs\n"
        "  state of 'counts': kept\n"
    )


@pytest.mark.parametrize(
    ("words", "change"),
    [
        (["remove", "people"], {"change": "remove", "name": "people"}),
        (
            ["insert", "no_bots", "--filter", "age > 1", "--after", "people", "--before", "counts"],
            {"change": "insert", "name": "no_bots", "operator": {"filter": "age > 1"}, "after": "people", "before": ["counts"]},
        ),
        (
            ["replace", "counts", "--aggregate", "n=count()", "--aggregate", "oldest=max(age)", "--by", "name"],
            {"change": "replace", "name": "counts", "operator": {"aggregate": {"n": "count()", "oldest": "max(age)"}, "by": ["name"]}},
        ),
        (
            ["replace", "time", "--watermark", "ts", "--grace", "5s"],
            {"change": "replace", "name": "time", "operator": {"watermark": "ts", "grace": "5s"}},
        ),
        (
            ["replace", "time", "--watermark", "ts", "--idle", "1m", "--max-ahead", "1h"],
            {"change": "replace", "name": "time", "operator": {"watermark": "ts", "idle": "1m", "max_ahead": "1h"}},
        ),
        (
            ["replace", "people", "--with-columns", "next=age + 1"],
            {"change": "replace", "name": "people", "operator": {"with_columns": {"next": "age + 1"}}},
        ),
        (
            ["replace", "people", "--select", "age", "--select", "name"],
            {"change": "replace", "name": "people", "operator": {"select": ["age", "name"]}},
        ),
    ],
)
def test_what_can_be_said_as_text_is_sent_as_text(words: list[str], change: dict[str, Any], server: Server, run: FakeRun) -> None:
    assert main(words) == 0
    assert sent(run) == change


def test_a_dry_run_changes_nothing_and_says_so(server: Server, run: FakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["remove", "people", "--dry-run", "--drop-state"]) == 0
    assert (run.asked[0][1]["dry_run"], run.asked[0][1]["drop_state"]) == (True, ["people"])
    assert capsys.readouterr().out.startswith("nothing was changed; this would be\nplan version 2\n  plan: filter 'people' differs\n")
    assert main(["remove", "people", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"] == ["filter 'people' differs"]


def test_backfill_and_state(server: Server, run: FakeRun) -> None:
    assert main(["replace", "counts", "--aggregate", "n=count()", "--backfill", "n=0", "--drop-state"]) == 0
    assert run.asked[0][1]["backfill"] == {"counts": {"n": 0}}


def test_code_of_a_file_travels_as_code(server: Server, run: FakeRun, tmp_path: Path) -> None:
    path = write(tmp_path, "flow.py")
    assert main(["replace", "clean", "--code", f"{path}:clean"]) == 0
    ((_, told, code),) = run.asked
    (change,) = unpack_changes(code).changes
    assert isinstance(change, Replace)
    assert (change.name, told["changes"], change.op.kind) == ("clean", None, "map_batches")  # type: ignore[union-attr]
    assert main(["insert", "tap", "--parquet", str(tmp_path / "tap"), "--after", "clean"]) == 0
    (change,) = unpack_changes(run.asked[1][2]).changes
    assert isinstance(change, Insert)
    assert change.after == "clean"


def test_without_the_code_token_code_is_refused(
    server: Server, run: FakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MEANDER_CODE_TOKEN")
    assert main(["apply", write(tmp_path, "flow.py")]) == 2
    assert "need the code token" in capsys.readouterr().err
    assert run.asked == []


def test_apply_sends_the_whole_flow(server: Server, run: FakeRun, tmp_path: Path) -> None:
    assert main(["apply", write(tmp_path, "flow.py"), "--drop-state", "--restart"]) == 0
    ((_, told, code),) = run.asked
    (change,) = unpack_changes(code).changes
    assert isinstance(change, Become)
    assert (change.plan.flow, change.resume, told["drop_state"]) == ("orders", False, True)


def test_diff_says_what_apply_would_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new, other = write(tmp_path, "a.py"), write(tmp_path, "b.py", least=5), write(tmp_path, "c.py", key="amount")
    assert main(["diff", old, new]) == 0
    assert capsys.readouterr().out == "plan version 2\n  plan: map_batches 'clean' has other Python code\n  state of 'totals': kept\n"
    assert main(["diff", old, write(tmp_path, "d.py")]) == 0
    assert capsys.readouterr().out == "both are the same flow\n"
    assert main(["diff", old, other]) == 2
    said = capsys.readouterr()
    assert "plan: aggregate 'totals' differs" in said.out
    assert "this cannot be applied to a running flow: aggregate 'totals' cannot go on with its state: it was keyed by customer" in said.err
    assert "--drop-state totals" in said.err
    assert "drop_state" not in said.err
    assert main(["diff", old, other, "--drop-state", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == {"totals": "dropped and begun anew"}
    assert main(["diff", old, other, "--drop-state", "totals", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["drops"] == ["totals"]


def test_whose_state_may_go_is_named(server: Server, run: FakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "flow.py")
    for words, wanted in (
        (["apply", path], False),
        (["apply", path, "--drop-state"], True),
        (["apply", path, "--drop-state", "best", "--drop-state=totals"], ["best", "totals"]),
        (["remove", "people", "--drop-state"], ["people"]),
        (["remove", "people", "--drop-state", "best"], ["best"]),
        (["remove", "people", "--drop-state", "best", "--drop-state"], ["people", "best"]),
    ):
        run.asked.clear()
        assert main(words) == 0
        assert run.asked[0][1]["drop_state"] == wanted


def test_what_the_control_plane_refuses_is_told_in_the_words_of_the_shell(
    server: Server, run: FakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run.failure = FlowError("top 'best' cannot go on with its state: no. To begin anew, give drop_state=['best'], or use another name")
    assert main(["remove", "people"]) == 2
    assert capsys.readouterr().err == (
        "error: top 'best' cannot go on with its state: no. To begin anew, give --drop-state best, or use another name\n"
    )


def test_a_rejection_is_said(server: Server, run: FakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    run.failure = Rejected("the modification was rejected, and the plan before it is back: ZeroDivisionError")
    assert main(["replace", "people", "--filter", "age > 10"]) == 2
    assert capsys.readouterr().err == "error: the modification was rejected, and the plan before it is back: ZeroDivisionError\n"


def test_the_history_is_told(server: Server, run: FakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["modifications"]) == 0
    out = capsys.readouterr().out
    assert "ada: in force in epoch 3\n    replace 'people' by filter\n" in out
    assert "somebody: rejected in epoch 4" in out
    assert "because: ZeroDivisionError: no" in out
    assert main(["modifications", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == run.modifications()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["replace", "people"], "say what 'people' is to be, with one of --filter"),
        (["replace", "people", "--filter", "a > 1", "--select", "a"], "given are 2"),
        (["replace", "people", "--aggregate", "count()"], "write it as NAME=..."),
        (["replace", "people", "--code", "clean"], "write it as FILE.py:NAME"),
        (["replace", "people", "--code", "nowhere.py:clean"], "there is no such file"),
        (["diff", "nowhere.py", "other.py"], "there is no such file"),
        (["modifications", "/nowhere/at/all"], "there is no flow in it"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_sent(
    words: list[str], why: str, server: Server, run: FakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert why in capsys.readouterr().err
    assert run.asked == []

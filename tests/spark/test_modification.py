"""Changing a flow on real Spark, while events flow: in force from one epoch to the next, and taken back where it fails."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.drivers import write_input
from tests.oracle import decisions

import meander as md
from meander.cli.flow_file import load_flow
from meander.cli.main import main


def flow_of(tmp_path: Path) -> tuple[md.Flow, Any]:
    flow, out = md.Flow("changing"), md.memory()
    events = flow.source("events", md.files(tmp_path / "in", max_files_per_epoch=1))
    clean = events.filter("value >= 0", name="positive").map_batches(lambda frame: frame, name="clean")
    clean.key_by("key").aggregate(md.count().alias("n"), md.sum("value").alias("total"), name="totals").sink("out", out)
    return flow, out


def test_a_flow_is_changed_while_it_runs_and_nothing_is_lost(tmp_path: Path, spark: Any) -> None:
    folder = write_input(tmp_path / "in", files=60, rows=300, keys=40)
    flow, _ = flow_of(tmp_path)

    def typo(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.with_columns(pl.lit(1 / (0 if frame.height else 1)).alias("value"))

    with flow.start(tmp_path / "state", spark=spark, parallelism=2, retain_epochs=1000) as run:
        first = run.replace("positive", md.filter("value > 100"), request_id="above", author="ada")
        assert run.replace("positive", md.filter("value > 100"), request_id="above").epoch == first.epoch
        with pytest.raises(md.FlowError, match="no column 'amuont'"):
            run.replace("positive", md.filter("amuont > 10"))
        effects = run.insert("even", md.filter("key % 2 = 0"), after="positive", dry_run=True)
        assert "filter 'even' is new" in str(effects)
        second = run.insert("even", md.filter("key % 2 = 0"), after="positive")
        with pytest.raises(md.Rejected, match=r"(?s)ZeroDivisionError"):
            run.replace("clean", md.map_batches(typo))
        third = run.remove("even")
        assert first.epoch < second.epoch < third.epoch
        assert run.status()["plan"] == 4
        deadline = time.monotonic() + 90
        while run.status()["rows_in"] < 60 * 300 and time.monotonic() < deadline:
            time.sleep(0.05)
        history = run.modifications()
        assert run.status()["dead_letters"] == 0
    assert [record["verdict"] for record in history] == ["in force", "in force", "rejected", "in force"]
    assert (history[0]["author"], history[2]["code"]["clean"]["kind"]) == ("ada", "map_batches")
    assert "def typo" in history[2]["code"]["clean"]["source"]
    state: dict[int, tuple[int, float]] = {}
    files = set()
    for entry in decisions(tmp_path / "state"):
        version = entry["plan"]["version"]
        for _, payload in entry["splits"]:
            files.add(os.path.basename(payload["path"]))
            for key, value in pl.read_parquet(folder / os.path.basename(payload["path"])).iter_rows():
                if (version == 1 or value > 100) and (version != 3 or key % 2 == 0):
                    n, total = state.get(key, (0, 0.0))
                    state[key] = (n + 1, total + value)
    assert len(files) == 60
    stored = pl.DataFrame(pl.from_arrow(md.read_state(tmp_path / "state", "totals")))
    assert {key: (n, total) for key, n, total in stored.iter_rows()} == state


def test_a_change_without_input_and_a_restart(tmp_path: Path, spark: Any) -> None:
    write_input(tmp_path / "in", files=2, rows=100, keys=5)
    flow, out = flow_of(tmp_path)
    with flow.start(tmp_path / "state", spark=spark, trigger=None) as run:
        run.process_available()
        done = run.replace("totals", md.aggregate(md.count().alias("n"), md.sum("value").alias("total"), md.max("value").alias("most")))
        assert (done.epoch, done.version) == (3, 2)
        assert done.effects["state"] == {"totals": "kept, with the new most.value"}
    frame = pl.DataFrame({"key": [1], "value": [7.0]})
    frame.write_parquet(tmp_path / "in" / "9999.parquet")
    with flow.start(tmp_path / "state", spark=spark, trigger=None) as run:
        assert run.status()["plan"] == 2
        run.process_available()
    assert out.frame().tail(1).select("key", "most").rows() == [(1, 7.0)]


@pytest.mark.slow
def test_a_worker_that_dies_takes_its_change_with_it(tmp_path: Path, spark: Any) -> None:
    write_input(tmp_path / "in", files=3, rows=100, keys=5)
    flow, _ = flow_of(tmp_path)

    def dies(frame: pl.DataFrame) -> pl.DataFrame:
        if frame.height:
            os._exit(3)
        return frame

    def hangs(frame: pl.DataFrame) -> pl.DataFrame:
        if frame.height:
            time.sleep(60)
        return frame

    with flow.start(tmp_path / "state", spark=spark, trigger=None) as run:
        with pytest.raises(md.Rejected, match="exited unexpectedly"):
            run.replace("clean", md.map_batches(dies))
        with pytest.raises(md.Rejected, match="has not ended in time"):
            run.replace("clean", md.map_batches(hangs), timeout="3s")
        run.process_available()
        assert run.status()["rows_in"] == 300
        assert [record["verdict"] for record in run.modifications()] == ["rejected", "rejected"]


FILE = """
import meander as md

def clean(frame):
    return frame.filter(frame["value"] > {least})

flow = md.Flow("written")
events = flow.source("events", md.files({folder!r}, max_files_per_epoch=1))
kept = events.filter("value >= 0", name="positive").map_batches(clean, name="clean")
aggregates = [md.count().alias("n"), md.sum("value").alias("total"), *({more})]
kept.key_by("key").aggregate(*aggregates, name="totals").sink("out", md.memory())
"""


def test_a_flow_is_changed_from_the_shell_and_becomes_what_its_file_says(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_input(tmp_path / "in", files=3, rows=50, keys=5)
    old, new = tmp_path / "old.py", tmp_path / "new.py"
    old.write_text(FILE.format(least=-1, folder=str(folder), more="[]"))
    new.write_text(FILE.format(least=10, folder=str(folder), more='[md.max("value").alias("most")]'))
    with load_flow(old).start(tmp_path / "state", spark=spark, trigger="50ms") as run:
        monkeypatch.setenv("MEANDER_URL", run.serve(port=0, token="secret-token", code_token="secret-code-token").url)
        monkeypatch.setenv("MEANDER_TOKEN", "secret-token")
        assert main(["replace", "positive", "--filter", "value >= 1", "--author", "ada"]) == 0
        assert "plan version 2 is in force from epoch" in capsys.readouterr().out
        assert main(["replace", "positive", "--filter", "valeu >= 1"]) == 2
        assert "no column 'valeu'" in capsys.readouterr().err
        assert main(["apply", str(new)]) == 2
        assert "need the code token" in capsys.readouterr().err
        monkeypatch.setenv("MEANDER_CODE_TOKEN", "secret-code-token")
        assert main(["apply", str(new), "--dry-run"]) == 0
        said = capsys.readouterr().out
        assert "map_batches 'clean' has other Python code" in said
        assert "state of 'totals': kept, with the new most.value" in said
        assert main(["apply", str(new)]) == 0
        assert "plan version 3 is in force" in capsys.readouterr().out
        pl.DataFrame({"key": [77, 77, 77], "value": [5.0, 11.0, 12.0]}).write_parquet(folder / "9999.parquet")
        deadline = time.monotonic() + 60
        while run.status()["rows_in"] < 153 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert main(["modifications"]) == 0
        assert "ada: in force" in capsys.readouterr().out
    stored = pl.DataFrame(pl.from_arrow(md.read_state(tmp_path / "state", "totals")))
    assert stored.filter(pl.col("key") == 77).rows() == [(77, 2, 23.0, 12.0)]
    assert main(["modifications", str(tmp_path / "state")]) == 0
    assert "become the flow as it is written now" in capsys.readouterr().out
    with load_flow(new).start(tmp_path / "state", spark=spark, trigger=None) as run:
        assert run.status()["plan"] == 3
    other = tmp_path / "other.py"
    other.write_text(new.read_text().replace("> 10", "> 20"))
    with pytest.raises(md.ConfigError, match=r"(?s)'clean' has other Python code.*meander apply FLOW.py"):
        load_flow(other).start(tmp_path / "state", spark=spark, trigger=None)


EDITED = """
import meander as md

def clean(frame):
    return frame{clean}

flow = md.Flow("edited")
orders = flow.source("orders", md.files({folder!r}, format="json", schema={schema!r}))
orders.map_batches(clean, name="clean").sink("out", md.parquet({out!r}))
orders.key_by("customer").aggregate(md.sum("amount").alias("total"), name="totals").sink("sums", md.parquet({sums!r}))
"""


def test_an_edited_file_is_started_and_its_source_goes_on_with_other_columns(tmp_path: Path, spark: Any) -> None:
    def flow(name: str, clean: str = "", **columns: str) -> Any:
        places = {place: str(tmp_path / place) for place in ("out", "sums")}
        schema = {"customer": "string", "amount": "int", **columns}
        (tmp_path / name).write_text(EDITED.format(folder=str(tmp_path / "in"), schema=schema, clean=clean, **places))
        return load_flow(tmp_path / name)

    def write(name: str, text: str) -> None:
        (tmp_path / "in" / name).write_text(text)

    (tmp_path / "in").mkdir()
    write("1.json", '{"customer": "ada", "amount": 1}\n')
    with flow("old.py").start(tmp_path / "state", spark=spark, trigger=None) as run:
        run.process_available()
    write("2.json", '{"customer": "bob", "amount": 2}\n')
    edited = flow("new.py", country="string", amount="long")
    with pytest.raises(md.ConfigError, match=r"source 'orders' has other columns .*start this one with apply=True"):
        edited.start(tmp_path / "state", spark=spark, trigger=None)
    broken = flow("broken.py", clean='.cast({"customer": int})')
    with pytest.raises(md.Rejected, match=r"(?s)flow 'edited' was not started with the edited file\. .*plan before it is back"):
        broken.start(tmp_path / "state", spark=spark, trigger=None, apply=True)
    write("3.json", '{"customer": "ada", "amount": 3, "country": "no"}\n')
    write("4.json", '{"customer": "cyd", "amount": 4, "country": "se"}\n')
    with edited.start(tmp_path / "state", spark=spark, trigger="50ms", apply=True) as run:
        assert run.status()["plan"] == 2
        (change,) = [change for change in run.modifications() if change["verdict"] == "in force"]
        assert (change["effects"]["go_on"], change["effects"]["drops"]) == (["orders"], [])
        deadline = time.monotonic() + 60
        while run.status()["rows_in"] < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
    write("5.json", '{"customer": "ada", "amount": 3000000000}\n')
    with flow("again.py", country="string", amount="long").start(tmp_path / "state", spark=spark, trigger=None) as run:
        run.process_available()
    rows = pl.concat([pl.read_parquet(file) for file in (tmp_path / "out").glob("*.parquet")], how="diagonal_relaxed").sort("amount")
    assert rows.select("customer", "amount").rows() == [("ada", 1), ("bob", 2), ("ada", 3), ("cyd", 4), ("ada", 3_000_000_000)]
    assert rows["country"].to_list() == [None, None, "no", "se", None]
    stored = pl.DataFrame(pl.from_arrow(md.read_state(tmp_path / "state", "totals")))
    assert sorted(stored.rows()) == [("ada", 3_000_000_004), ("bob", 2), ("cyd", 4)]


def test_the_example_of_the_manual_runs(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    text = (Path(__file__).parents[2] / "docs" / "modifications.md").read_text()
    code = text.split("```python\n")[1].split("```")[0].replace("trigger=None", "trigger=None, spark=spark")
    (tmp_path / "in").mkdir()
    pl.DataFrame({"customer": ["ada", "bot"], "amount": [20.0, 30.0]}).write_parquet(tmp_path / "in" / "a.parquet")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "modifications.md", "exec"), {"spark": spark})
    said = capsys.readouterr().out
    assert "filter 'no_bots' is not there any more" in said
    assert said.count("in force") == 4

"""What type checkers and editors see: a user's script passes ``mypy --strict``, and a wrong one does not."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import meander as md
from meander.settings import Settings
from meander.starting import Startable, defaults

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = """
from collections.abc import Iterator
from typing import Any

import polars as pl

import meander as md


class Visits(md.Processor):
    output = {"n": "int64"}
    n = md.value("int64", default=0)

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Iterator[tuple[int]]:
        state.n += len(rows)
        yield (state.n,)


class Both(Visits):
    def on_other_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> None: ...


def clean(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.drop_nulls()


flow = md.Flow("orders")
orders: md.Stream = flow.source("orders", md.files("in/", format="json", schema={"customer": "string", "amount": "double"}))
good = orders.where("amount > 0").with_columns(cents=pl.col("amount") * 100).select(["customer", "cents"]).map_batches(clean)
keyed: md.KeyedStream = good.rename({"cents": "c"}).key_by("customer")
aggregate: md.Agg = md.avg("c").alias("mean")
keyed.aggregate(md.count().alias("n"), aggregate, name="totals").sink("out", md.parquet("out/"))
windows: md.WindowedStream = keyed.window(md.tumbling("10s"))
connected: md.ConnectedStreams = keyed.connect(good.key_by("cents"))
connected.process(Both, name="both").sink("both_out", md.discard())
keyed.process(Visits).sink("visits", md.foreach_batch(lambda frame, epoch: None))


def seen(done: md.EpochDone) -> None:
    print(done.epoch)


with flow.start("state/", spark="local[2]", trigger="1s", autoscale=md.autoscale(max=4), dead_letters="bad/") as run:
    run.on_epoch(seen)
    progress: md.Progress = run.process_available()
    rescaled: md.Rescaled = run.rescale("totals", 4)
    migrated: md.Migrated = run.migrate("totals", "1")
    modified: md.Modified = run.replace("filter_1", md.filter("amount > 10"), timeout="10s", drop_state=False)
    effects: md.Effects = run.remove("filter_1", dry_run=True)
    print(progress.rows_in, rescaled.moved, migrated.epoch, modified.epoch, effects.to_json(), run.status()["epoch"])

replicas: md.Replicas = flow.start("state/", replicas=2, replication="leader")
by_all: md.Rescaled = replicas.rescale("totals", 4)
changed: md.Modified = replicas.replace("filter_1", md.filter("amount > 10"), timeout="10s")
said: md.Effects = replicas.modify([md.Become(flow)], dry_run=True)
moved: md.Migrated = replicas.migrate("totals", "1", replica="b")
print(replicas.modifications(), replicas.serve(port=0).url, by_all.moved, changed.epoch, said.version, moved.epoch)
"""
WRONG = {
    'flow.start("state/", paralelism=2)': "call-overload",
    'flow.start("state/", state_mode="hybird")': "call-overload",
    'flow.start("state/", replicas=2).process_available()': "attr-defined",
    'flow.source("a", md.generator("key_value")).groupBy("k")': "attr-defined",
    "md.groupBy": "attr-defined",
    'run = flow.start("state/"); run.replace("a", md.filter("b > 1"), drop_stat=True)': "call-overload",
}


def check(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "user.py").write_text(text)
    (folder / "mypy.ini").write_text(f"[mypy]\nstrict = true\nmypy_path = {ROOT / 'src'}\nfollow_imports = silent\n")
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(ROOT / ".mypy_cache"), "user.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280, check=False)


@pytest.mark.slow
def test_a_users_script_passes_mypy_strict_and_wrong_lines_do_not(tmp_path: Path) -> None:
    good = check(SCRIPT, tmp_path)
    assert good.returncode == 0, good.stdout + good.stderr
    lines = ["import meander as md", 'flow = md.Flow("orders")', *WRONG]
    found = check("\n".join(lines) + "\n", tmp_path).stdout
    for number, (line, code) in enumerate(WRONG.items(), 3):
        assert any(said.startswith(f"user.py:{number}: error") and f"[{code}]" in said for said in found.splitlines()), (line, found)


def test_every_setting_is_an_option_of_start_with_a_type_and_the_same_default() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(Settings)}
    options = defaults()
    assert fields.keys() <= options.keys()
    assert options.keys() - fields.keys() == {"replicas", "spark", "apply", "clock"}
    assert {name: options[name] for name in fields} == fields
    document = inspect.getdoc(Startable.start) or ""
    assert not [name for name in options if f"``{name}``" not in document]


def test_the_overloads_of_start_have_the_options_that_it_has() -> None:
    run, replicas = typing.get_overloads(Startable.start)
    options = defaults()
    for overload, lacks in ((run, set[str]()), (replicas, {"autoscale", "replica"})):
        parameters = inspect.signature(overload).parameters
        assert parameters.keys() - {"self", "store"} == options.keys() - lacks
        assert {name: p.default for name, p in parameters.items() if name in options and name != "replicas"} == {
            name: options[name] for name in parameters if name in options and name != "replicas"
        }


def test_a_misspelt_option_is_answered_with_the_one_that_is_like_it(tmp_path: Path) -> None:
    flow = md.Flow("f")
    flow.source("in", md.generator("key_value", events=1)).sink("out", md.discard())
    for replicas in ({}, {"replicas": 2}):
        with pytest.raises(
            md.ConfigError, match=r"unknown option 'paralelism'; did you mean 'parallelism'\?; options are apply, autoscale"
        ):
            flow.start(tmp_path, paralelism=3, **replicas)  # type: ignore[call-overload]


def test_a_master_may_be_given_by_its_name_and_nothing_else_that_is_no_session(tmp_path: Path) -> None:
    flow = md.Flow("f")
    flow.source("in", md.generator("key_value", events=1)).sink("out", md.discard())
    with pytest.raises(md.ConfigError, match=r"spark=3: give a Spark session, such as md.spark\(master='local\[4\]'\), or a master's name"):
        flow.start(tmp_path, spark=3)  # type: ignore[call-overload]
    assert not list(tmp_path.iterdir())

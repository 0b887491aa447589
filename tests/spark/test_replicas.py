"""Replicas on real Sparks, under a supervisor: killed, added, let go, restarted; what comes out is what went in, once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

MEANDER = [sys.executable, "-m", "meander.cli.main"]
FLOW = """
import meander as md
flow = md.Flow("replicated")
rows = flow.source("rows", md.files({input!r}, schema={{"id": "long", "key": "long"}}, settle=0))
rows.sink("all", md.parquet({out!r} + "/all"))
rows.key_by("key").aggregate(md.count().alias("n"), name="counts").sink("counted", md.parquet({out!r} + "/counted"))
"""
IN_PYTHON = """
import os, signal, sys, time
import polars as pl
import meander as md


def twice(frame):
    return frame.with_columns(pl.col("id") * 2)


if __name__ == "__main__":
    out = md.memory()
    flow = md.Flow("packed")
    rows = flow.source("rows", md.files(sys.argv[1], schema={"id": "long", "key": "long"}, settle=0))
    rows.map_batches(twice, name="twice", deterministic=True).sink("out", out)
    with flow.start(sys.argv[2], replicas=2, spark="local[1]", parallelism=1, trigger="200ms") as run:
        deadline = time.time() + 200
        while sum(one["state"] == "running" for one in run.replicas) < 2 or out.table().num_rows < 300:
            assert time.time() < deadline, run
            time.sleep(0.2)
        os.killpg(run.replicas[0]["process"], signal.SIGKILL)
        pl.DataFrame({"id": range(300, 400), "key": [0] * 100}).write_parquet(sys.argv[1] + "/last.parquet")
        while out.table().num_rows < 400:
            assert time.time() < deadline, run
            time.sleep(0.2)
        assert out.table().column_names == ["id", "key"]
    from pyspark import SparkContext
    assert SparkContext._active_spark_context is None
    assert sorted(out.frame()["id"].to_list()) == [2 * number for number in range(400)]
    print("ok", run.status()["state"])
"""


class Feeder(threading.Thread):
    """Writes a small file every now and then."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        folder.mkdir()
        self._folder, self._stop_it, self.rows = folder, threading.Event(), 0
        self.start()

    def run(self) -> None:
        while not self._stop_it.wait(0.3):
            ids = range(self.rows, self.rows + 50)
            staged = self._folder / ".staged"
            pl.DataFrame({"id": ids, "key": [number % 7 for number in ids]}).write_parquet(staged)
            os.replace(staged, self._folder / f"{self.rows:08d}.parquet")
            self.rows += 50

    def finish(self) -> int:
        self._stop_it.set()
        self.join()
        return self.rows


@pytest.fixture
def feeder(tmp_path: Path) -> Iterator[Feeder]:
    made = Feeder(tmp_path / "in")
    yield made
    made.finish()


def meander(*words: str) -> dict[str, Any]:
    done = subprocess.run([*MEANDER, *words, "--json"], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def until(condition: Callable[[], Any], seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.5)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_replicas_are_killed_added_and_let_go_and_the_output_is_whole(tmp_path: Path, feeder: Feeder) -> None:
    flow, store = tmp_path / "flow.py", str(tmp_path / "state")
    flow.write_text(FLOW.format(input=str(tmp_path / "in"), out=str(tmp_path / "out")))
    words = ["run", str(flow), "--store", store, "--replicas", "2", "--replication", "leaderless", "--http", "0", "--json"]
    words += ["--master", "local[1]", "--parallelism", "1", "--trigger", "200ms"]
    with (tmp_path / "run.json").open("w") as out, (tmp_path / "run.txt").open("w") as err:
        run = subprocess.Popen([*MEANDER, *words], stdout=out, stderr=err)
    try:

        def listed() -> dict[str, Any]:
            if run.poll() is not None:
                pytest.fail((tmp_path / "run.txt").read_text())
            done = subprocess.run([*MEANDER, "replicas", store, "--json"], capture_output=True, text=True, check=False)
            return {one["name"]: one for one in json.loads(done.stdout)["replicas"]} if done.returncode == 0 else {}

        def running(*names: str) -> bool:
            now = listed()
            return now.keys() == set(names) and all(one["state"] == "running" and one["alive"] for one in now.values())

        until(lambda: running("a", "b"))
        before = listed()
        assert all(one["url"].startswith("http://127.0.0.1:") for one in before.values())
        assert (before["a"]["keeps_house"], before["b"]["keeps_house"]) == (True, False)
        os.killpg(before["a"]["process"], signal.SIGKILL)
        until(lambda: listed()["a"]["state"] != "running", 20)
        until(lambda: running("a", "b"))
        after = listed()
        assert (after["a"]["restarts"], after["b"]["restarts"]) == (1, 0)
        assert after["b"]["process"] == before["b"]["process"]
        assert meander("replicas", "add", "--store", store)["names"] == ["c"]
        assert meander("replicas", "drain", "b", "--store", store)["names"] == ["b"]
        assert running("a", "c")
        meander("replicas", "restart", "c", "--store", store)
        total = feeder.finish()
        until(lambda: meander("status", store)["rows_in"] >= total)
        processes = [one["process"] for one in listed().values()]
        run.send_signal(signal.SIGTERM)
        assert run.wait(90) == 0, (tmp_path / "run.txt").read_text()
    finally:
        if run.poll() is None:
            run.send_signal(signal.SIGTERM)
            run.wait(90)
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
    summary = json.loads((tmp_path / "run.json").read_text())
    assert (summary["outcome"], summary["rows_in"]) == ("stopped", total)
    assert [(one["name"], one["state"], one["restarts"]) for one in summary["replicas"]] == [("a", "stopped", 1), ("c", "stopped", 1)]
    everything = pl.read_parquet(tmp_path / "out" / "all" / "*.parquet")
    assert everything["id"].sort().to_list() == list(range(total)), "each row once"
    counted = pl.read_parquet(tmp_path / "out" / "counted" / "*.parquet")
    assert not counted.select("key", "n").is_duplicated().any()
    assert dict(counted.group_by("key").agg(pl.col("n").max()).rows()) == {key: len(range(key, total, 7)) for key in range(7)}, (
        "counted once, each"
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_flow_of_a_script_runs_in_replicas_and_its_rows_come_back(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for first in (0, 100, 200):
        pl.DataFrame({"id": range(first, first + 100), "key": [0] * 100}).write_parquet(tmp_path / "in" / f"{first}.parquet")
    (tmp_path / "script.py").write_text(IN_PYTHON)
    command = [sys.executable, "script.py", str(tmp_path / "in"), str(tmp_path / "state")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False)
    logs = "".join(log.read_text()[-1500:] for log in (tmp_path / "state" / "logs").glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    assert done.stdout.strip() == "ok stopped"


CHANGED_IN_PYTHON = """
import sys, time
import polars as pl
import meander as md
from meander.control.client import Client


def tenfold(frame):
    return frame.with_columns(pl.col("id") * 10)


if __name__ == "__main__":
    out = md.memory()
    flow = md.Flow("changed")
    rows = flow.source("rows", md.files(sys.argv[1], schema={"id": "long", "key": "long"}, settle=0))
    kept = rows.filter("id >= 0", name="kept")
    kept.sink("out", out)
    kept.key_by("key").aggregate(md.count().alias("n"), name="counts").sink("counted", md.discard())
    with flow.start(sys.argv[2], replicas=2, spark="local[1]", parallelism=1, trigger="200ms") as run:
        deadline = time.time() + 250

        def until(condition):
            while not condition():
                assert time.time() < deadline, run
                time.sleep(0.2)

        until(lambda: sum(one["state"] == "running" for one in run.replicas) == 2 and out.table().num_rows == 100)
        moved = run.rescale("counts", 3)
        assert (moved.before, moved.after) == (1, 3), moved
        pl.DataFrame({"id": [100], "key": [1]}).write_parquet(sys.argv[1] + "/more.parquet")
        done = run.insert("tenfold", md.map_batches(tenfold, deterministic=True), after="kept", before="out", timeout="60s")
        assert isinstance(done, md.Modified), done
        pl.DataFrame({"id": [101], "key": [1]}).write_parquet(sys.argv[1] + "/last.parquet")
        until(lambda: 1010 in out.frame()["id"].to_list())
        server = run.serve(port=0)
        assert Client(server.url).status()["operators"]["counts"]["parallelism"] == 3
        until(lambda: all(f'replica="{one}"' in Client(server.url).metrics() for one in "ab"))
        assert [one["verdict"] for one in run.modifications()] == ["in force"], run.modifications()
        try:
            run.evacuate("driver", replica="b")
            raise AssertionError("a local Spark has one executor")
        except md.ConfigError as error:
            assert "executor 'driver' is the last one" in str(error), error
    print("ok", md.read_state(sys.argv[2], "counts").to_pydict())
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_handle_changes_all_its_replicas(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pl.DataFrame({"id": range(100), "key": [0] * 100}).write_parquet(tmp_path / "in" / "first.parquet")
    (tmp_path / "script.py").write_text(CHANGED_IN_PYTHON)
    command = [sys.executable, "script.py", str(tmp_path / "in"), str(tmp_path / "state")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False)
    logs = "".join(log.read_text()[-1500:] for log in (tmp_path / "state" / "logs").glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    assert done.stdout.startswith("ok {'key': [0, 1], 'n': [100, 2]}"), done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_code_token_of_the_command_line_reaches_replicas(tmp_path: Path, feeder: Feeder) -> None:
    flow, store, secret = tmp_path / "flow.py", str(tmp_path / "state"), "secret-code-token"
    flow.write_text(FLOW.format(input=str(tmp_path / "in"), out=str(tmp_path / "out")))
    (tmp_path / "fixes.py").write_text("def same(frame):\n    return frame\n")
    words = ["run", str(flow), "--store", store, "--replicas", "2", "--http", "0", "--code-token", secret, "--master", "local[1]"]
    with (tmp_path / "run.txt").open("w") as err:
        run = subprocess.Popen([*MEANDER, *words], stdout=err, stderr=err)
    try:

        def urls() -> list[str]:
            assert run.poll() is None, (tmp_path / "run.txt").read_text()
            done = subprocess.run([*MEANDER, "replicas", store, "--json"], capture_output=True, text=True, check=False)
            return [one["url"] for one in json.loads(done.stdout)["replicas"] if one["url"]] if done.returncode == 0 else []

        until(lambda: len(urls()) == 2)
        change = ["insert", "same", "--code", str(tmp_path / "fixes.py:same"), "--after", "rows", "--url", urls()[1]]
        done = subprocess.run([*MEANDER, *change], capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode != 0
        assert "need the code token" in done.stderr
        meander(*change, "--token", secret)
        assert secret not in " ".join((tmp_path / "run.txt").read_text())
    finally:
        run.send_signal(signal.SIGTERM)
        assert run.wait(90) == 0, (tmp_path / "run.txt").read_text()

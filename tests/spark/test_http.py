"""A flow that serves itself, on real Spark: asked and changed over HTTP while events flow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.drivers import write_input
from tests.oracle import check_totals, decisions

import meander as md
from meander.control.client import Client, NothingListens

FLOW = """
import meander as md

flow = md.Flow("totals")
events = flow.source("events", md.files("in", max_files_per_epoch=1))
totals = events.key_by("key").aggregate(md.count().alias("n"), md.sum("value").alias("total"), name="totals")
totals.sink("out", md.parquet("out"))
"""


def wait_for(what: Any, timeout: float = 60.0) -> Any:
    deadline = time.monotonic() + timeout
    while not (found := what()):
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.05)
    return found


def answers(client: Client) -> bool:
    try:
        return bool(client.status()["epoch"] >= 1)
    except NothingListens:
        return False


def metrics(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {f"{s.name}{','.join(v for k, v in s.labels.items() if k != 'flow')}": s.value for f in families for s in f.samples}


@pytest.mark.slow
def test_a_run_that_serves_itself_is_rescaled_over_http_while_events_flow(tmp_path: Path) -> None:
    folder = write_input(tmp_path / "in", files=60, rows=400, keys=100)
    (tmp_path / "flow.py").write_text(FLOW)
    from tests.cli.test_control_commands import free_port

    port = free_port()
    command = [sys.executable, "-m", "meander.cli.main", "run", "flow.py", "--store", "state", "--json", "--http", str(port)]
    client = Client(f"http://127.0.0.1:{port}")
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=log, text=True, env=dict(os.environ))
    try:
        wait_for(lambda: process.poll() is not None or answers(client), 90)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/scale?stage=2", timeout=60) as answer:
            scaled = json.loads(answer.read())
        assert (scaled["slots"], scaled["rescaled"][0]["before"]) == (3, 2)
        changed = client.rescale("totals", 5, "lazy")
        assert (changed["before"], changed["after"]) == (3, 5)
        status = wait_for(lambda: (s := client.status())["rows_in"] >= 60 * 400 and s)
        assert status["operators"]["totals"]["parallelism"] == 5
        assert sorted(set(status["operators"]["totals"]["routing"])) == [0, 1, 2, 3, 4]
        assert [[op["name"] for op in stage["operators"]] for stage in status["stages"]] == [["events"], ["totals", "out"]]
        assert status["executors"] == {"driver": {"slots": 5, "stages": [2], "leaving": False, "introduced": True}}
        assert (status["waiting"], status["autoscaler"]) == (0, None)
        found = metrics(client.url)
        assert found["meander_parallelismtotals"] == 5
        assert found["meander_epochs_total"] >= 55
        assert found["meander_records_in_total1"] >= 55 * 400
        assert found["meander_records_out_total2"] > 0
        with pytest.raises(md.ConfigError, match="is the last one"):
            client.evacuate("driver")
        client.stop()
        out, _ = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
    assert process.returncode == 0, (tmp_path / "log").read_text()
    assert json.loads(out.splitlines()[-1])["outcome"] == "stopped"
    with pytest.raises(NothingListens):
        client.status()
    state = pl.DataFrame(pl.from_arrow(md.read_state(tmp_path / "state", "totals")))
    check_totals(tmp_path / "state", folder, tmp_path / "out", state)
    slots = [max(entry["routing"]["totals"]) + 1 for entry in decisions(tmp_path / "state")]
    assert sorted(set(slots)) == [2, 3, 5], "changed while events flowed"


def test_a_run_serves_itself_until_it_is_stopped(tmp_path: Path, spark: Any) -> None:
    write_input(tmp_path / "in", files=2, rows=10, keys=5)
    flow = md.Flow("totals")
    events = flow.source("events", md.files(tmp_path / "in"))
    events.key_by("key").aggregate(md.count().alias("n"), name="totals").sink("out", md.memory())
    with flow.start(tmp_path / "state", spark=spark, trigger=None) as run:
        server = run.serve(port=0)
        with pytest.raises(md.ConfigError, match="is served at"):
            run.serve(port=0)
        run.process_available()
        client = Client(server.url)
        assert client.rescale("totals", 4)["after"] == 4
        assert client.status() == run.status()
        with pytest.raises(md.ConfigError, match="from 1 to 128"):
            client.rescale("totals", 1000)
        assert client.stop()["stopping"]
        wait_for(lambda: not answers(client))
        assert run.status()["state"] == "stopped"
    with pytest.raises(NothingListens):
        client.status()
    with pytest.raises(md.ConfigError, match="is stopped"):
        run.serve(port=0)

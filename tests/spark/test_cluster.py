"""Real executors on one machine (local-cluster): one of them killed, a Python worker killed, three stateful stages in a row."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests import oracle
from tests.drivers import write_input
from tests.oracle import check_totals

import meander as md

Start = Callable[..., Any]


def descendants(pid: int) -> list[int]:
    found, pending = [], [pid]
    while pending:
        parent = pending.pop()
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                children = [int(c) for c in task.read_text().split()]
            except OSError:
                continue
            found.extend(children)
            pending.extend(children)
    return found


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def wait_for_epochs(out: Path, count: int, deadline: float = 90) -> None:
    end = time.monotonic() + deadline
    while len(list(out.glob("*.parquet"))) < count:
        assert time.monotonic() < end, "no output"
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("chain", [pytest.param(False, marks=pytest.mark.long), True], ids=["one-stage", "three-stages"])
def test_an_executor_killed_in_the_middle_changes_nothing(tmp_path: Path, child: Start, chain: bool) -> None:
    folder = write_input(tmp_path / "in", files=40, rows=20_000, keys=4000)
    victim = child(
        store=str(tmp_path / "state"), out=str(tmp_path / "out"), master="local-cluster[2,1,1024]", chain=chain, **{"in": str(folder)}
    )
    victim.wait_started()
    for kills in range(2):
        wait_for_epochs(tmp_path / "out", 6 + 16 * kills)
        executors = [pid for pid in descendants(victim.process.pid) if "CoarseGrainedExecutorBackend" in command(pid)]
        assert executors
        os.kill(executors[-1], signal.SIGKILL)
    code, answer = victim.finish(240)
    assert code == 0, answer
    state = pl.DataFrame(pl.from_arrow(md.read_state(tmp_path / "state", "totals")))
    check_totals(tmp_path / "state", folder, tmp_path / "out", state)
    if chain:
        check_chain(tmp_path, folder)


def check_chain(tmp_path: Path, folder: Path) -> None:
    """The second and third stage, over all input at once; and the third from its log of changes."""
    counts = Counter(pl.read_parquet(folder).get_column("key"))
    sizes: Counter[int] = Counter()
    for n in counts.values():
        sizes[n % 5] += n
    state = pl.DataFrame(pl.from_arrow(md.read_state(tmp_path / "state", "by_size")))
    assert dict(state.iter_rows()) == sizes
    odds = {odd: [m for m in sizes.values() if m % 2 == odd] for odd in (0, 1)}
    log = pl.concat(oracle.published(tmp_path / "out-chain").values())
    current = log.group_by(pl.exclude("change")).agg(pl.col("change").cast(pl.Int64).sum()).filter(pl.col("change") != 0)
    assert sorted(current.rows()) == [(odd, len(found), max(found), 1) for odd, found in odds.items() if found]


@pytest.mark.parametrize("where", ["before the exchange", "after its segment is written"])
def test_a_python_worker_that_dies_is_replaced_and_its_task_runs_again(tmp_path: Path, spark: Any, where: str) -> None:
    folder = write_input(tmp_path / "in", files=4, rows=500, keys=50)
    marker = tmp_path / "died"

    def deadly(frame: pl.DataFrame) -> pl.DataFrame:
        if frame.height and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return frame

    flow = md.Flow("deadly")
    events = flow.source("events", md.files(folder, max_files_per_epoch=1))
    if where == "before the exchange":
        events = events.map_batches(deadly, name="deadly")
    totals = events.key_by("key").aggregate(md.count().alias("n"), md.sum("value").alias("total"), name="totals")
    if where == "after its segment is written":
        totals = totals.map_batches(deadly, name="deadly")
    totals.sink("out", md.parquet(tmp_path / "out"))
    with flow.start(tmp_path / "state", spark=spark, trigger=None) as run:
        assert run.process_available().epochs == 4
    assert marker.exists()
    check_totals(tmp_path / "state", folder, tmp_path / "out", pl.DataFrame(pl.from_arrow(md.read_state(tmp_path / "state", "totals"))))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_slots_run_where_the_routing_table_says(tmp_path: Path) -> None:
    """On two executors, each slot of every epoch runs in the same executor: its cache stays warm."""
    import subprocess
    import sys

    script = Path(__file__).with_name("placement.py")
    environment = {**os.environ, "PYTHONPATH": str(script.parents[2])}
    command = [sys.executable, str(script), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, env=environment)
    assert result.returncode == 0, result.stderr[-3000:]
    assert "every slot stayed where it was: True" in result.stdout

"""``meander workgen`` from the shell: what it writes, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import meander as md
from meander.cli.main import main


def test_it_writes_what_was_asked_for_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--keys 20 --skew 1.2 --interval 2ms --duration 2s --payload 8 --junk 100 --cpu 0.5ms --partitions 2 --load --json"
    assert main(["workgen", str(tmp_path / "in"), *words.split()]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["events"], summary["files"]) == (1020, 5)
    assert summary["workload"]["rate"] == 500.0
    events = pl.concat([pl.read_parquet(file) for file in (tmp_path / "in").glob("events-*")])
    assert events.height == 1000
    assert events.select("cpu_us", "junk").unique().rows() == [(500, 100)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--rate 0", "--rate 0: must be a number of events per second above 0"),
        ("--interval soon", "--interval soon: duration 'soon'"),
        ("--interval 0ms", "--interval 0ms: must be above 0"),
        ("--events -1", "--events -1: must be at least 0"),
        ("--keys 0", "keys=0: must be at least 1"),
        ("--rate 5 --interval 2ms", "not allowed with argument"),
        ("--events 5 --duration 2s", "not allowed with argument"),
    ],
)
def test_what_cannot_be_written_is_said(words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["workgen", str(tmp_path / "in"), *words.split()])
    except SystemExit as exit:
        code = exit.code
    assert code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "in").exists()


@pytest.mark.spark
@pytest.mark.slow
def test_the_example_takes_what_it_wrote(tmp_path: Path) -> None:
    words = "--keys 50 --events 2000 --junk 100 --cpu 0.01ms --partitions 2 --load"
    assert main(["workgen", str(tmp_path / "workload/in"), *words.split()]) == 0
    example = Path(__file__).resolve().parents[2] / "examples" / "workload.py"
    command = [sys.executable, "-m", "meander.cli.main", "run", str(example), "--store", "workload/state", "--once", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    state = pl.DataFrame(md.read_state(tmp_path / "workload/state", "counts"))
    assert (state.height, state.get_column("n").sum()) == (50, 2050)
    assert state.get_column("held").bin.size().unique().to_list() == [100]

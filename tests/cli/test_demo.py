from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console
from tests.cli.small_store import make_store

from meander.cli.demo import _print_next, choose_workload, prepare
from meander.cli.demo_flow import Workload, build_flow, differences, recount
from meander.cli.main import build_parser
from meander.errors import Busy, ConfigError
from meander.state.stores.contract import Lock


def workload(*words: str) -> Workload:
    return choose_workload(build_parser("demo").parse_args(["demo", *words]))


def test_the_size_of_the_workload_follows_from_what_was_said() -> None:
    assert workload() == Workload(500_000, 25_000)
    assert workload("--rate", "100", "--seconds", "5") == Workload(500, 100.0)
    assert workload("--events", "1000", "--seconds", "5") == Workload(1000, 200.0)
    assert workload("--events", "1000", "--rate", "0") == Workload(1000, 0.0)


@pytest.mark.parametrize("words", ["--rate -1", "--seconds 0", "--events 0", "--events 9 --rate 3 --seconds 3"])
def test_a_workload_that_makes_no_sense_is_refused(words: str) -> None:
    with pytest.raises(ConfigError):
        workload(*words.split())


def test_a_folder_that_no_demo_made_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    with pytest.raises(ConfigError, match="no demo made"):
        prepare(tmp_path, Workload(10, 1.0), keep=False)
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_demos_own_folder_is_wiped_or_kept(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    prepare(folder, Workload(10, 1.0), keep=False)
    (folder / "out").mkdir()
    assert prepare(folder, Workload(20, 2.0), keep=True) == Workload(10, 1.0)
    assert (folder / "out").exists()
    assert prepare(folder, Workload(20, 2.0), keep=False) == Workload(20, 2.0)
    assert not (folder / "out").exists()


def test_a_demo_that_runs_is_not_wiped(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    prepare(folder, Workload(10, 1.0), keep=False)
    lock = Lock(make_store(folder / "state", {"ada": (1, 1.0)}), "00000001")
    with pytest.raises(Busy, match="another demo runs"):
        prepare(folder, Workload(10, 1.0), keep=False)
    lock.release()
    assert (folder / "state").exists()


def test_the_recount_counts_the_edits_of_people() -> None:
    counts = recount(Workload(2000, 100.0))
    frame = Workload(2000, 100.0).source(paced=False)
    lines = [line for p in (0, 1) for line in frame.read({"partition": p, "start": 0, "count": 1000}).frame["line"]]
    people = Counter(edit["server_name"] for edit in map(json.loads, lines) if not edit["bot"])
    assert {server: edits for server, (edits, _) in counts.items()} == people


def test_differences_name_every_server_on_which_two_counts_disagree() -> None:
    assert differences({"a": (1, 1), "b": (2, 2)}, {"a": (1, 1), "b": (2, 3), "c": (1, 1)}) == ["b", "c"]


def test_the_flow_of_the_demo_is_a_valid_plan(tmp_path: Path) -> None:
    assert build_flow(Workload(10, 1.0), tmp_path).plan().flow == "server_counts"


def test_all_places_say_the_same_length_of_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    root = Path(__file__).resolve().parents[2]
    with pytest.raises(SystemExit):
        build_parser("demo").parse_args(["demo", "--help"])
    for text in ((root / "README.md").read_text(), (root / "Makefile").read_text(), capsys.readouterr().out):
        assert "about half a minute, set-up aside" in " ".join(text.split())


@pytest.mark.spark
@pytest.mark.slow
def test_the_demo_ends_by_itself_with_counts_that_hold(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "meander.cli.main",
        "demo",
        "--rate",
        "5000",
        "--seconds",
        "3",
        "--folder",
        str(tmp_path / "d"),
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["recount"], result["rows_in"]) == ("equal", 15_000)
    assert result["latency_ms"]["p99"] > 0
    assert "Try next" in done.stderr
    assert "WARN" not in done.stderr

    again = subprocess.run([*command, "--keep"], capture_output=True, text=True, env=dict(os.environ), timeout=200, check=False)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["rows_in"] == 0  # all of it was there already, and is there once


@pytest.mark.parametrize("has_examples", [True, False])
def test_the_demo_names_examples_only_where_they_are(has_examples: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel has none."""
    make_store(tmp_path / "state", {"ada": (1, 1.0)})
    monkeypatch.chdir(tmp_path)
    if has_examples:
        (tmp_path / "examples").mkdir()
        (tmp_path / "examples" / "server_counts.py").touch()
    written = io.StringIO()
    _print_next(Console(file=written), tmp_path)
    assert "Try next" in written.getvalue()
    assert ("examples/server_counts.py" in written.getvalue()) == has_examples

"""``meander run --replicas`` and ``meander replicas``: what they refuse, what a replica's command line is, and what is listed."""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.small_store import make_store

from meander.cli.main import build_parser, main
from meander.cli.progress import make_console
from meander.cli.replicas import _state, table_of
from meander.cli.replicated import check, child
from meander.cli.run import check_server
from meander.processes import ProcessId
from meander.state.signs import Said, place_of

FLOW = """
import meander as md
flow = md.Flow("f")
flow.source("edits", md.generator("wikipedia", rate=10)).sink("out", md.discard())
"""


@pytest.fixture
def flow_file(tmp_path: Path) -> str:
    (tmp_path / "flow.py").write_text(FLOW)
    return str(tmp_path / "flow.py")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--replicas", "0"], "--replicas 0: at least 1"),
        (["--replicas", "2", "--autoscale", "1-4"], "rescale by hand"),
        (["--replicas", "2", "--replica", "a"], "leave one out"),
        (["--replicas", "2", "--http", "65535"], "a port of its own"),
        (["--replicas", "2", "--http", "0", "--host", "0.0.0.0"], "token"),
        (["--replicas", "2", "--once", "--trigger", "1s"], "contradict"),
    ],
)
def test_run_refuses_what_cannot_be(
    words: list[str], said: str, flow_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", flow_file, "--store", str(tmp_path / "state"), *words]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "state").exists()


def parsed(*words: str) -> argparse.Namespace:
    return build_parser("run").parse_args(["run", "flow.py", *words])


def test_replicas_have_both_tokens_and_no_list_of_processes_shows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("MEANDER_TOKEN", "MEANDER_CODE_TOKEN"):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    run = parsed("--replicas", "2", "--http", "0", "--token", "to change", "--code-token", "to run code")
    check(run)
    words = child(run, "state/", "b", first=False)
    assert not {"to change", "to run code"} & set(words)
    replica = build_parser("run").parse_args(list(words[3:]))
    check_server(replica, 0)
    assert (replica.token, replica.code_token) == ("to change", "to run code")


def test_a_replica_is_told_what_the_run_was_told() -> None:
    arguments = parsed("--replicas", "2", "--parallelism", "4", "--http", "9010", "--latency-file", "l", "--strict", "--takeover", "--once")
    words = list(child(arguments, "state", "b", True))
    assert words[1:8] == ["-m", "meander.cli.main", "run", "flow.py", "--replica", "b", "--store"]
    again = build_parser("run").parse_args(words[3:])
    assert (again.replica, again.store, again.parallelism, again.http, again.latency_file) == ("b", "state", 4, 9011, "l.b")
    assert (again.strict, again.once, again.takeover, again.replicas) == (True, True, True, None)
    assert "--takeover" not in child(arguments, "state", "b", False), "one that comes back takes the store from nobody"
    assert build_parser("run").parse_args(list(child(parsed("--replicas", "2", "--http", "0"), "s", "c", True))[3:]).http == 0


def test_every_replica_brings_an_edited_file_with_all_that_was_said_of_it() -> None:
    """Also one that comes back: until the file is in force it could not be started otherwise, and afterwards it is started as any."""
    said = parsed("--replicas", "2", "--apply", "--drop-state", "best", "--drop-state", "--resume", "--takeover")
    for first in (True, False):
        words = list(child(said, "state", "b", first))
        again = build_parser("run").parse_args(words[3:])
        assert (again.apply, again.drop_state, again.resume, again.takeover) == (True, ["best", True], True, first)
    assert not {"--apply", "--resume", "--restart"} & set(child(parsed("--replicas", "2"), "state", "b", True))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["add"], "say of which store"),
        (["drain", "--store", "S"], "drain needs the replica's name"),
        (["add", "b", "--store", "S"], "get their names themselves"),
        (["remove", "b", "--store", "S"], "there is no 'remove' to do; there are: list, add, drain, restart"),
        (["add", "--store", "S"], "no supervisor answers"),
        (["S-nowhere"], "there is no flow in it"),
    ],
)
def test_replicas_refuses_what_cannot_be(words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replicas", *(word.replace("S", str(tmp_path / "state"), 1) if word.startswith("S") else word for word in words)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_replicas_lists_who_is_there_and_who_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = make_store(tmp_path / "state", {"ada": (1, 1.0)})
    fake = Path(__file__).parents[1] / "replicate" / "fake_replica.py"
    store.put(place_of(1, "a"), Said(3, 1, ProcessId(7, "another", "1", "gone"), at=1.0).to_bytes())
    process = subprocess.Popen([sys.executable, "-S", "-E", str(fake), str(store.root), "b", "live"], stdout=subprocess.DEVNULL)
    try:
        while store.get("replicas/00000001/b") is None:
            pass
        assert main(["replicas", str(store.root), "--json"]) == 0
        roster = json.loads(capsys.readouterr().out)
        assert main(["replicas", str(store.root), "--no-color"]) == 0
    finally:
        process.kill()
        process.wait()
    a, b = roster["replicas"]
    assert (a["name"], a["state"], a["alive"], a["host"], a["silent_since"], a["lag"]) == ("a", "silent", False, "gone", 1.0, None)
    assert (b["name"], b["alive"], b["keeps_house"], b["process"], b["supervised"]) == ("b", True, True, process.pid, False)
    assert b["lag"] <= 5
    shown = capsys.readouterr().out
    assert "no supervisor" in shown
    assert "running (keeps house)" in shown


@pytest.mark.parametrize("ahead", [-600.0, 600.0])
def test_for_how_long_one_is_silent_is_told_by_the_clock_of_its_own_machine_or_not_at_all(ahead: float) -> None:
    silent = {"state": "silent", "silent_since": time.time() + ahead, "host": "another machine"}
    assert _state(silent) == "[red]silent[/]"
    here = _state({**silent, "host": socket.gethostname()})
    assert here.startswith("[red]silent[/] for ")
    assert "-" not in here


def test_a_table_of_replicas_in_a_pipe_has_whole_processes_and_addresses(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    one = {"name": "a", "state": "running", "alive": True, "epoch": 1_234_567, "lag": 0, "restarts": 12, "keeps_house": True}
    where = {"process": 4_123_456, "host": "a-machine-with-a-long-name.example", "url": "http://127.0.0.1:19208"}
    make_console(False, True).print(table_of([{**one, **where}]))
    shown = capsys.readouterr().out
    assert "running (keeps house)" in shown
    assert "4123456 on a-machine-with-a-long-name.example   http://127.0.0.1:19208" in shown

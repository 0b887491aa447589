"""The shell as a client of the control plane: what it asks, what it prints, and what it says when nothing listens."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
from tests.control.fake_run import FakeRun

from meander.cli.main import main
from meander.clock import SystemClock
from meander.control.client import Client, NothingListens
from meander.control.server import Server
from meander.errors import Busy, Fenced

TOKEN = "correct-horse-battery"


@pytest.fixture
def run() -> FakeRun:
    return FakeRun()


@pytest.fixture
def server(run: FakeRun) -> Iterator[Server]:
    serving = Server(run, "127.0.0.1", 0, TOKEN, SystemClock())
    yield serving
    serving.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_rescale_says_what_is_in_force(server: Server, run: FakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rescale", "counts", "4", "--strategy", "lazy", "--url", server.url, "--token", TOKEN]) == 0
    assert capsys.readouterr().out == "'counts' has 4 slots instead of 2 from epoch 13 on; 42 key groups moved (lazy)\n"
    assert run.asked == [("rescale", "counts", 4, "lazy")]


def test_migrate_says_what_has_moved(server: Server, run: FakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["migrate", "counts", "--to", "1", "--key-groups", "0-2,7", "--url", server.url, "--token", TOKEN]
    assert main(words) == 0
    assert capsys.readouterr().out == "21 key groups of 'counts' moved to executor 1, from epoch 14 on, in 500 ms\n"
    assert run.asked == [("migrate", ["counts"], "1", [0, 1, 2, 7], "hybrid")]
    assert main([*words[:4], "--key-groups", "few", "--url", server.url]) == 2
    assert "write numbers and ranges, such as 0-31,64" in capsys.readouterr().err


def test_evacuate_says_what_is_left(server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEANDER_URL", server.url)
    monkeypatch.setenv("MEANDER_TOKEN", TOKEN)
    assert main(["evacuate", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"executor": "0", "slots": 0}


def test_status_without_a_store_is_the_control_planes(server: Server, run: FakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--url", server.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == run.status()


def test_a_problem_is_one_line_and_exit_code_2(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rescale", "count", "4", "--url", server.url, "--token", TOKEN]) == 2
    assert capsys.readouterr().err == "error: there is no stateful operator 'count' to rescale; there are: counts\n"
    assert main(["rescale", "counts", "4", "--url", server.url]) == 2
    assert "changes need the token" in capsys.readouterr().err


def test_an_error_comes_out_of_the_client_as_it_went_in(server: Server, run: FakeRun) -> None:
    run.failure = Fenced("another run has taken the store over")
    with pytest.raises(Fenced, match="taken the store over"):
        Client(server.url, TOKEN).rescale("counts", 3)


def test_status_says_that_a_flow_holds_and_what_it_waits_for(
    server: Server, run: FakeRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = {"since": 0.0, "seconds": 12.0, "why": "epoch 3 is committed, and sink 'out' does not take it: No space left", "tries": 5}
    rest = {"generation": 1, "epoch_seconds": 0.1, "rows_in": 1, "rows_out": 1, "rows_per_second": 1.0, "waiting": 0, "dead_letters": 0}
    now = {**run.status(), **rest, "autoscaler": None, "error": None, "stages": [], "executors": {}, "holding": held}
    monkeypatch.setattr(run, "status", lambda: now)
    assert main(["status", "--url", server.url]) == 0
    shown = capsys.readouterr().out
    assert "holding" in shown
    assert "for 12.00 s" in shown
    assert "sink 'out' does not take it: No space left" in shown
    assert "the store does not answer" not in shown


@pytest.mark.parametrize("words", [["status"], ["rescale", "counts", "4"], ["evacuate", "1"]])
def test_where_nothing_listens_it_is_said_how_to_start_something(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert main([*words, "--url", url]) == 2
    error = capsys.readouterr().err
    assert f"no control plane answers at {url}" in error
    assert "meander run FLOW.py --http" in error


def test_an_address_that_is_none_and_a_server_that_is_no_control_plane_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--url", "localhost:9008"]) == 2
    assert "write it like http://127.0.0.1:9008" in capsys.readouterr().err
    assert main(["status", "state/", "--url", "http://127.0.0.1:9008"]) == 2
    assert "a store or --url, not both" in capsys.readouterr().err


def test_a_port_in_use_and_an_open_host_are_refused_before_spark_is_started(
    server: Server, tmp_path: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MEANDER_TOKEN", raising=False)
    assert main(["run", "flow.py", "--http", str(server.port)]) == 2
    assert f"port {server.port} on 127.0.0.1 is in use" in capsys.readouterr().err
    for command in (["run", "flow.py", "--http"], ["control-plane", "flow.py"]):
        assert main([*command, "--host", "0.0.0.0"]) == 2
        assert "give a token (--token or MEANDER_TOKEN), or listen on 127.0.0.1" in capsys.readouterr().err


def test_a_task_manager_wants_a_spark_master(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["task-manager", "--master", "yarn"]) == 2
    assert "write spark://host:port" in capsys.readouterr().err


def test_a_closed_server_leaves_its_port(run: FakeRun) -> None:
    serving = Server(run, "127.0.0.1", 0, None, SystemClock())
    assert Client(serving.url).stop() == {"flow": "edits", "stopping": True}
    serving.close()
    with pytest.raises(NothingListens):
        Client(serving.url).status()
    again = Server(run, "127.0.0.1", serving.port, None, SystemClock())
    with pytest.raises(Busy, match="is in use"):
        Server(run, "127.0.0.1", serving.port, None, SystemClock())
    again.close()

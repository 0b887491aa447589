"""What ``flow.start(store, replicas=n)`` refuses, and how rows of a memory sink come back; without Spark."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.memory_store import MemoryStore

import meander as md
from meander.connect import arrow_ipc
from meander.connect.sink import Staged, StagedFile
from meander.connect.spool import SpoolSink, empty_spool
from meander.processes import is_running
from meander.replicate.handle import _settings, _spooled
from meander.replicate.signals import UntilSignalled
from meander.state.stores.contract import DirStore

FAKE = Path(__file__).with_name("fake_replica.py")


def a_flow(sink: Any = None) -> md.Flow:
    flow = md.Flow("f")
    flow.source("edits", md.generator("wikipedia", rate=10)).sink("out", sink or md.discard())
    return flow


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"replicas": 0}, "a whole number from 1 up"),
        ({"replicas": True}, "a whole number from 1 up"),
        ({"replicas": 2, "spark": object()}, "a Spark of its own"),
        ({"replicas": 2, "trigger": None}, "nobody to ask them"),
        ({"replicas": 2, "autoscale": md.autoscale()}, "cannot have an autoscaler"),
        ({"replicas": 2, "replica": "a"}, "leave replica= out"),
        ({"replicas": 2, "replication": "by luck"}, "there are 'leaderless' and 'leader'"),
        ({"replicas": 2, "paralelism": 3}, "unknown option 'paralelism'"),
        ({"replicas": 2, "apply": "yes"}, "it is True, or a dict of the options of run.apply"),
        ({"replicas": 2, "apply": {"guard": print}}, "upgrade= and guard= do not travel to replicas; start the flow once without"),
    ],
)
def test_what_cannot_be_is_said_before_a_process_is_started(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(md.ConfigError, match=said):
        a_flow().start(tmp_path / "state", **options)
    assert not (tmp_path / "state").exists()


def test_options_travel_as_they_are_meant() -> None:
    options = _settings({"trigger": "500ms", "replication": "leaderless", "dead_letters": "dead", "takeover": True, "parallelism": 3})
    assert options == {"trigger": 0.5, "dead_letters": str(Path("dead").absolute()), "parallelism": 3}
    assert _settings({"apply": {"drop_state": ["best"]}}) == {"apply": {"drop_state": ["best"]}}


SCRIPT = """
import signal, sys, time
import meander as md
from meander.replicate import handle

fake, store, ends = sys.argv[1:]
handle._command = lambda packed, takeover: lambda name, first: [sys.executable, "-S", "-E", fake, store, name, "live"]
if ends == "its own way":
    signal.signal(signal.SIGTERM, lambda *_: print("mine", flush=True))
flow = md.Flow("f")
flow.source("edits", md.generator("wikipedia", rate=10)).sink("out", md.discard())
run = flow.start(store, replicas=2)
print(*(one["process"] for one in run.replicas), flush=True)
time.sleep(60 if ends == "when told" else 0.5)
if ends == "its own way":
    time.sleep(1)
run.stop()
print("stopped", signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)
"""


@contextlib.contextmanager
def script(tmp_path: Path, ends: str, *before: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A script that has started replicas; their processes. Nothing of it is left, also where a test fails."""
    words = [*before, sys.executable, "-c", SCRIPT, str(FAKE), str(tmp_path / "state"), ends]
    replicas: list[int] = []
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            replicas += [int(word) for word in process.stdout.readline().split()]
            yield process, replicas
        finally:
            process.kill()
            for pid in replicas:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)


@pytest.mark.many
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_script_that_is_told_to_end_leaves_no_replicas(number: signal.Signals, tmp_path: Path) -> None:
    with script(tmp_path, "when told") as (process, replicas):
        assert len(replicas) == 2
        assert all(is_running(pid) for pid in replicas)
        process.send_signal(number)
        process.communicate(timeout=30)
        assert process.returncode == 128 + number
        assert not any(is_running(pid) for pid in replicas)


@pytest.mark.many
def test_a_script_under_nohup_does_not_mind_a_closed_terminal(tmp_path: Path) -> None:
    with script(tmp_path, "by itself", "nohup") as (process, replicas):
        process.send_signal(signal.SIGHUP)
        assert process.communicate(timeout=30)[0] == "stopped True\n"
        assert process.returncode == 0
        assert not any(is_running(pid) for pid in replicas)


@pytest.mark.many
def test_a_script_that_handles_signals_itself_is_left_alone(tmp_path: Path) -> None:
    with script(tmp_path, "its own way") as (process, replicas):
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
        assert (out, process.returncode) == ("mine\nstopped False\n", 0)
        assert not any(is_running(pid) for pid in replicas)


def test_who_is_told_to_end_stops_all_that_it_has_started_and_is_told_once() -> None:
    until_signalled = UntilSignalled()
    before = signal.getsignal(signal.SIGTERM)
    first, second = until_signalled.begin(), until_signalled.begin()
    first()
    first()
    with pytest.raises(SystemExit, match="143"):  # the other one has still something to stop
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)  # while it is stopped
    second()
    assert signal.getsignal(signal.SIGTERM) is before is signal.SIG_DFL
    until_signalled.begin()()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.many
def test_signals_are_as_they_were_when_replicas_have_stopped(tmp_path: Path) -> None:
    with script(tmp_path, "by itself") as (process, _):
        assert process.communicate(timeout=30)[0] == "stopped True\n"


def staged(slot: int, *values: int) -> Staged:
    data = arrow_ipc.encode(pl.DataFrame({"v": values}))
    return Staged(StagedFile(f"s{slot}", slot, len(values)), lambda: data, None)


def test_rows_of_a_memory_sink_come_back_through_the_stores_folder(tmp_path: Path) -> None:
    out = md.memory()
    flow = a_flow(out)
    plan, memories = _spooled(flow.plan(), DirStore(tmp_path))
    assert plan.digest() == flow.plan().digest(), "a run without replicas goes on with the same plan"
    ((sink, folder),) = memories
    assert sink is out
    out.follow(folder)
    spool = plan.node("out").op.sink  # type: ignore[attr-defined]
    assert isinstance(spool, SpoolSink)
    spool.open()
    spool.publish(2, [staged(1, 4), staged(0, 2, 3)])
    spool.publish(1, [staged(0, 1)])
    spool.publish(2, [staged(0, 9)])
    assert out.frame()["v"].to_list() == [1, 2, 3, 4]
    out.clear()
    spool.publish(3, [staged(0, 5)])
    assert out.table().to_pydict() == {"v": [5]}
    empty_spool(folder)
    assert md.memory().frame().is_empty()


def test_a_memory_sink_needs_a_store_that_is_a_folder() -> None:
    with pytest.raises(md.ConfigError, match=r"sink 'out': md.memory\(\) of a replicated flow needs a store that is a folder"):
        _spooled(a_flow(md.memory()).plan(), MemoryStore())

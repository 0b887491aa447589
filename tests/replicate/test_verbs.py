"""The verbs of ``Run`` on replicas: real control planes over a fake run, as replicas serve them, and stand-ins for their processes."""

from __future__ import annotations

import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.control.fake_run import FakeRun
from tests.control.test_push import Gateway, gateway  # noqa: F401
from tests.replicate.test_handle import FAKE, a_flow

import meander as md
from meander.clock import SystemClock
from meander.control.client import Client
from meander.control.server import Server
from meander.replicate import handle
from meander.replicate.reach import Tokens

CLOCK = SystemClock()


@pytest.fixture
def run() -> FakeRun:
    return FakeRun()


@pytest.fixture
def replicas(run: FakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[md.Replicas]:
    """Two that show the same address: that of a control plane here, which wants the handle's tokens."""
    tokens = Tokens.kept_in(tmp_path / "state" / "logs" / "f.tokens", CLOCK)
    server = Server(run, "127.0.0.1", 0, tokens.changes, CLOCK, code_token=tokens.code)
    monkeypatch.setenv("FAKE_REPLICAS_URL", server.url)
    command = [sys.executable, "-S", "-E", str(FAKE), str(tmp_path / "state")]
    monkeypatch.setattr(handle, "_command", lambda packed, takeover: lambda name, first: [*command, name, "live"])
    with a_flow().start(tmp_path / "state", replicas=2) as started:
        yield started
    server.close()


def test_a_rescale_is_asked_of_one_replica_and_answered_as_by_a_run(replicas: md.Replicas, run: FakeRun) -> None:
    done = replicas.rescale("counts", 4, "lazy")
    assert (done, type(done)) == (md.Rescaled("counts", 2, 4, 42, "lazy", 13), md.Rescaled)
    assert run.asked == [("rescale", "counts", 4, "lazy")]
    with pytest.raises(md.ConfigError, match="strategy 'lasy': there are eager"):
        replicas.rescale("counts", 4, "lasy")  # type: ignore[arg-type]
    run.failure = md.FlowError("not now")
    with pytest.raises(md.FlowError, match="not now"):
        replicas.rescale("counts", 4)


def test_changes_travel_as_code_and_are_answered_as_by_a_run(replicas: md.Replicas, run: FakeRun) -> None:
    done = replicas.replace("people", md.filter("n > 1"), request_id="once", timeout="10s")
    assert isinstance(done, md.Modified)
    (asked,) = run.asked
    assert asked[0] == "modify"
    assert (asked[1]["request_id"], asked[1]["timeout"]) == ("once", 10.0)
    effects = replicas.remove("counts", dry_run=True, drop_state=True)
    assert isinstance(effects, md.Effects)
    assert run.asked[-1][1]["drop_state"] == ["counts"]
    assert replicas.modifications() == run.modifications()


def test_executors_are_those_of_a_replica_that_is_named(replicas: md.Replicas, run: FakeRun) -> None:
    with pytest.raises(md.ConfigError, match=r"executors of its own: say whose are meant, as in replica='a'; there are a, b"):
        replicas.evacuate("1")
    with pytest.raises(md.ConfigError, match="flow 'f' has no replica 'c'; there are a, b"):
        replicas.migrate("counts", "1", replica="c")
    until(lambda: all(one["url"] for one in replicas.replicas))
    replicas.evacuate("1", replica="b")
    assert run.asked == [("evacuate", "1")]
    assert replicas.migrate("counts", "1", [0, 1], replica="b").operators == ("counts",)


def test_all_are_served_at_one_address(replicas: md.Replicas, run: FakeRun) -> None:
    server = replicas.serve(port=0, token="t" * 16)
    client = Client(server.url, "t" * 16)
    status = client.status()
    assert [one["name"] for one in status["replicas"]] == ["a", "b"]
    assert status["operators"].keys() == {"counts"}
    assert client.rescale("counts", 3)["after"] == 3
    with pytest.raises(md.ConfigError, match="changes need the token"):
        Client(server.url, "u" * 16).rescale("counts", 3)
    until(lambda: all(one["url"] for one in replicas.replicas))
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        text = answer.read().decode()
    assert 'meander_epoch{flow="edits",replica="a"} 12.0' in text
    assert 'meander_epoch{flow="edits",replica="b"} 12.0' in text
    with pytest.raises(md.ConfigError, match="is served at http"):
        replicas.serve(port=0)


def test_each_replicas_metrics_are_pushed_under_its_name(replicas: md.Replicas, gateway: Gateway) -> None:  # noqa: F811
    until(lambda: all(one["url"] for one in replicas.replicas))
    replicas.push_metrics(gateway.address, every=0.05)
    until(lambda: len(gateway.groups) == 2)
    assert sorted(gateway.groups) == [f"/metrics/job/meander/flow/f/replica/{name}" for name in "ab"]
    assert all("meander_epoch" in text for text in gateway.groups.values())


def test_what_has_ended_cannot_be_asked(replicas: md.Replicas) -> None:
    replicas.stop()
    with pytest.raises(md.ConfigError, match=r"the replicas of flow 'f' have ended; start them again"):
        replicas.serve(port=0)
    with pytest.raises(md.ConfigError, match=r"the replicas of flow 'f' have ended; start them again"):
        replicas.rescale("counts", 4)


def test_the_tokens_are_for_their_owner_alone_and_are_kept(tmp_path: Path) -> None:
    first = Tokens.kept_in(tmp_path / "logs" / "f.tokens", CLOCK)
    assert (tmp_path / "logs" / "f.tokens").stat().st_mode & 0o077 == 0
    assert Tokens.kept_in(tmp_path / "logs" / "f.tokens", CLOCK) == first
    assert first.code != first.changes
    assert first.code not in repr(first)


def until(condition: object) -> None:
    deadline = time.monotonic() + 20
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)

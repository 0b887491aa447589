"""Metrics pushed to a gateway, which is a real HTTP server here: what it gets, and that nothing hangs on it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.cli.test_control_commands import free_port
from tests.control.fake_run import FakeRun

from meander.clock import SystemClock
from meander.control.push import push_run
from meander.errors import ConfigError


class Gateway(ThreadingHTTPServer):
    """Keeps what it is given, as a Pushgateway does: by group, the newest only."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.groups: dict[str, str] = {}
        self.pushes = 0
        self.address = f"127.0.0.1:{self.server_address[1]}"

    def value(self, name: str) -> float:
        (text,) = self.groups.values()
        return next(s.value for family in text_string_to_metric_families(text) for s in family.samples if s.name == name)


class Handler(BaseHTTPRequestHandler):
    server: Gateway

    def do_PUT(self) -> None:
        self.server.groups[self.path] = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.pushes += 1
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_epochs_arrive_under_the_flows_own_group_and_the_last_push_has_the_last_epoch(gateway: Gateway) -> None:
    run = FakeRun()
    pusher = push_run(run, gateway.address, 0.02, SystemClock())
    run.epoch(now=time.time())
    deadline = time.monotonic() + 10
    while gateway.pushes < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert list(gateway.groups) == ["/metrics/job/meander/flow/edits"]
    assert gateway.value("meander_epochs_total") == 1
    pusher._every = 3600
    run.epoch(now=time.time())
    pusher.close()
    assert gateway.value("meander_epochs_total") == 2
    assert gateway.value("meander_latency_seconds_count") == 2000


def test_replicas_do_not_overwrite_each_other(gateway: Gateway) -> None:
    for name in ("a", "b"):
        push_run(FakeRun(), gateway.address, 3600, SystemClock(), name).close()
    assert sorted(gateway.groups) == [f"/metrics/job/meander/flow/edits/replica/{name}" for name in ("a", "b")]


def test_a_gateway_that_does_not_answer_is_said_once_and_holds_nobody_up(caplog: pytest.LogCaptureFixture) -> None:
    run = FakeRun()
    with caplog.at_level(logging.WARNING, "meander"):
        pusher = push_run(run, f"http://127.0.0.1:{free_port()}", 0.01, SystemClock())
        run.epoch(now=time.time())
        time.sleep(0.2)
        began = time.monotonic()
        pusher.close()
    assert time.monotonic() - began < 5
    (told,) = [record.getMessage() for record in caplog.records]
    assert "metrics of flow 'edits' cannot be pushed to http://127.0.0.1:" in told


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="write its address, such as"):
        push_run(FakeRun(), "ftp://somewhere", 1.0, SystemClock())

"""/metrics: what an epoch adds to it, and that Prometheus itself can read it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from tests.control.fake_run import FakeRun

from meander import metrics
from meander.clock import FakeClock
from meander.control.api import make_app
from meander.control.guard import policy

ROOT = Path(__file__).resolve().parents[2]


def exposed(run: FakeRun, epochs: int = 2) -> str:
    http = TestClient(make_app(run, policy("127.0.0.1", None), FakeClock(start=1000.0)), base_url="http://127.0.0.1")
    for _ in range(epochs):
        run.epoch(now=1000.0)
    http.get("/scale?stage=2")
    answer = http.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return answer.text


def values(text: str) -> dict[tuple[str, str], float]:
    """By name and the value of the one label beside the flow."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels["flow"] == "edits"
            labels = [value for name, value in sample.labels.items() if name != "flow"]
            found[sample.name, ",".join(labels)] = sample.value
    return found


def test_epochs_are_counted_by_stage_and_part() -> None:
    found = values(exposed(FakeRun()))
    assert found["meander_epochs_total", ""] == 2
    assert found["meander_records_in_total", "1"] == 2000
    assert found["meander_records_out_total", "2"] == 100
    assert found["meander_busy_seconds_total", "1"] == pytest.approx(1.0)
    assert found["meander_true_rate_records_per_second", "2"] == pytest.approx(3000)
    assert found["meander_fetched_bytes_total", "store"] == 8192
    assert found["meander_fetched_bytes_total", "peers"] == 0
    assert found["meander_cache_hits_total", ""] == 10
    assert found["meander_dead_letters_total", ""] == 6
    assert found["meander_late_rows_total", "counts"] == 4
    assert found["meander_epoch_duration_seconds_count", "run"] == 2
    assert found["meander_epoch_duration_seconds_sum", "commit"] == pytest.approx(0.02)


def test_latency_counts_every_event_between_its_birth_and_the_publication() -> None:
    found = values(exposed(FakeRun()))
    assert found["meander_latency_seconds_count", ""] == 2000
    assert found["meander_latency_seconds_sum", ""] == pytest.approx(1000, rel=0.02)
    assert found["meander_latency_seconds_bucket", "0.5"] == pytest.approx(1000, rel=0.02)
    assert found["meander_latency_seconds_bucket", "+Inf"] == 2000


def test_what_is_now_comes_from_the_status() -> None:
    found = values(exposed(FakeRun()))
    assert found["meander_running", ""] == 1
    assert found["meander_waiting_records", ""] == 40
    assert found["meander_parallelism", "counts"] == 3
    assert found["meander_state_bytes", "counts"] == 9000
    assert found["meander_executor_slots", "0"] == 2
    assert found["meander_rescales_total", "counts"] == 1


def test_every_declared_metric_is_exposed_and_has_a_name_of_its_own() -> None:
    text = exposed(FakeRun())
    assert len({metric.name for metric in metrics.ALL}) == len(metrics.ALL)
    for metric in metrics.ALL:
        assert f"# TYPE {metric.name} {metric.kind}\n" in text
        assert f"# HELP {metric.name} {metric.help}\n" in text
        assert any(line.startswith(metric.name) for line in text.splitlines()), metric.name


def test_prometheus_own_parser_and_linter_take_it() -> None:
    promtool = shutil.which("promtool") or str(ROOT / ".servers" / "promtool")
    if not Path(promtool).exists():
        pytest.skip("promtool is not here: `make test-servers` gets it, or the package prometheus has it")
    text = exposed(FakeRun())
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done.stdout + done.stderr

from __future__ import annotations

import argparse
import io
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from meander.cli.interruption import Stop
from meander.cli.main import build_parser
from meander.cli.progress import Meter, Reading, line, percentiles, waiting
from meander.cli.run import available, start_options
from meander.connect.source import Split
from meander.errors import ConfigError


def parsed(*words: str) -> argparse.Namespace:
    return build_parser("run").parse_args(["run", "flow.py", *words])


def test_run_passes_on_what_was_said_and_leaves_the_rest_to_the_defaults() -> None:
    assert start_options(parsed()) == {"strict": False, "takeover": False}
    options = start_options(parsed("--parallelism", "4", "--trigger", "500ms", "--strict", "--takeover", "--latency-file", "l.txt"))
    assert options == {"strict": True, "takeover": True, "parallelism": 4, "trigger": "500ms", "latency_file": "l.txt"}


def test_run_says_where_dead_letters_go_when_the_store_is_no_folder() -> None:
    options = start_options(parsed("--store", "redis://127.0.0.1:6379/0/orders", "--dead-letters", "dead/"))
    assert options["dead_letters"] == "dead/"


def test_run_lets_the_slots_follow_the_load_within_bounds() -> None:
    found = start_options(parsed("--autoscale", "2-6"))["autoscale"]
    assert (found.min, found.max) == (2, 6)
    for words in ("6", "a-b", "-3"):
        with pytest.raises(ConfigError, match="such as 1-8"):
            start_options(parsed(f"--autoscale={words}"))
    with pytest.raises(ConfigError, match="below min"):
        start_options(parsed("--autoscale", "6-2"))


def test_once_runs_only_when_asked() -> None:
    assert start_options(parsed("--once"))["trigger"] is None
    with pytest.raises(ConfigError, match="contradict"):
        start_options(parsed("--once", "--trigger", "1s"))


def done(epoch: int, rows: int, born: tuple[float, float]) -> SimpleNamespace:
    return SimpleNamespace(
        epoch=epoch,
        seconds={"run": 0.5, "tidy": 0.0},
        decision=SimpleNamespace(splits=[("s", Split({}, rows, 0, born))]),
        outcome=SimpleNamespace(counts={"rows_in": rows, "rows_out": 1}),
        manifest=SimpleNamespace(tables={}),
    )


def test_a_meter_adds_up_epochs_and_measures_from_birth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 100.0)
    meter = Meter(keep_latencies=True)
    meter(done(7, 1000, (98.0, 98.0)))  # type: ignore[arg-type]
    meter(done(8, 1000, (99.0, 99.0)))  # type: ignore[arg-type]
    reading = meter.read()
    assert reading is not None
    assert (reading.epoch, reading.epochs, reading.rows_in, reading.rows_out) == (8, 2, 2000, 2)
    assert (reading.p50, reading.p99) == (1.0, 1.0)
    assert meter.latency(50, 99) == (1.0, 2.0)
    assert "epoch 8 · 2,000 rows in" in line(reading)


def test_percentiles_follow_the_weight() -> None:
    values, weights = np.array([1.0, 2.0, 3.0]), np.array([1.0, 1.0, 998.0])
    assert percentiles(values, weights, (0.1, 50)) == (1.0, 3.0)
    assert percentiles(np.zeros(0), np.zeros(0), (50,)) == (0.0,)


class Epochs:
    """Stands in for a Run: process_available runs epochs until a listener raises."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[object], None]] = []
        self.finished = 0
        self.began = threading.Event()

    def on_epoch(self, listener: Callable[[object], None]) -> None:
        self.listeners.append(listener)

    def process_available(self) -> None:
        while True:
            self.began.set()
            time.sleep(0.05)
            self.finished += 1
            for listener in self.listeners:
                listener(None)


def test_stopping_once_waits_for_the_epoch_that_runs() -> None:
    run, stop = Epochs(), Stop()
    ended = available(run, stop)  # type: ignore[arg-type]
    assert run.began.wait(10)
    assert not ended(0.0)
    stop.wanted.set()
    assert ended(0.0)
    finished = run.finished
    time.sleep(0.1)
    assert run.finished == finished >= 1


def test_a_progress_line_counts_in_words_that_hold() -> None:
    reading = Reading(3, 3, 10, 2, 1, 5.0, 0.1, 0.2, 9929, 1000, 4, 0.1)
    assert line(reading).endswith("state 9,929 rows stored, 1.0 kB · 1 dead letter")


def test_a_log_is_told_what_is_waited_for() -> None:
    out = io.StringIO()
    with waiting(Console(file=out), "starting Spark …"):
        assert out.getvalue() == "starting Spark …\n"


def test_an_edited_file_is_applied_where_that_is_said() -> None:
    given = start_options(parsed("--apply", "--drop-state", "best", "--drop-state", "totals", "--restart"))["apply"]
    assert (given["drop_state"], given["resume"]) == (["best", "totals"], False)
    assert {start_options(parsed("--apply", "--drop-state"))["apply"]["drop_state"]} == {True}
    assert start_options(parsed("--apply"))["apply"] == {**given, "drop_state": False, "resume": None}
    for words in (["--drop-state"], ["--drop-state", "best"], ["--resume"], ["--restart"]):
        with pytest.raises(ConfigError, match=f"{words[0]} says what becomes .* add --apply"):
            start_options(parsed(*words))

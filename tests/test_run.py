"""The handle of a running flow, on a driver that does what a test tells it. No Spark."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meander.clock import SystemClock
from meander.epochs.patience import Patience
from meander.errors import BadInput, ConfigError, Retryable, Unavailable
from meander.run import Run
from meander.settings import Settings, seconds
from meander.state.manifest import Manifest


class Steps:
    """A driver whose every step is one call of a function."""

    def __init__(self, step: Callable[[], bool]) -> None:
        log, patience = SimpleNamespace(manifest=Manifest()), Patience(SystemClock(), "flow 'f'")
        self.loop: Any = SimpleNamespace(log=log, routing={}, input=SimpleNamespace(waiting=lambda: 0), patience=patience)
        self.leave = patience.leave
        self._step = step
        self.stopped = 0

    def look(self) -> None:
        pass

    def step(self, everything: bool) -> bool:
        return self._step()

    def finished(self) -> bool:
        return False

    def stop(self) -> None:
        self.stopped += 1


def fails() -> bool:
    raise BadInput("operator 'm', epoch 1, row 7: no")


def run_of(step: Callable[[], bool], drivers: list[Any] | None = None, **options: Any) -> Run:
    nothing: dict[str, Any] = dict.fromkeys(("session", "placement", "migration", "modifier", "autoscaler", "cohort"))
    driver = Steps(step)
    if drivers is not None:
        drivers.append(driver)
    opened: Any = SimpleNamespace(driver=driver, close=[], listeners=[], application="", **nothing)
    return Run("f", opened, Settings(**options), SystemClock())


def test_late_rows_are_in_the_status() -> None:
    with run_of(lambda: False, trigger=None) as run:
        run._loop.log.manifest = Manifest(totals={"late_rows": 3, "late_rows.w": 3})
        run._loop.routing = {"w": [0, 1]}
        status = run.status()
    assert (status["late_rows"], status["operators"]["w"]["late_rows"]) == (3, 3)


def died(run: Run) -> Run:
    deadline = time.monotonic() + 10
    while run._thread.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    return run


def test_the_end_of_a_with_block_raises_what_the_flow_failed_with() -> None:
    with pytest.raises(BadInput, match="row 7"), run_of(fails) as run:
        died(run)


def test_stop_raises_a_failure_once_and_is_quiet_then() -> None:
    run = died(run_of(fails))
    with pytest.raises(BadInput, match="row 7"):
        run.stop()
    run.stop()


def test_a_failure_that_was_raised_already_is_not_raised_again_by_stop() -> None:
    with run_of(fails, trigger=None) as run, pytest.raises(BadInput):
        run.process_available()
    with run_of(fails) as run, pytest.raises(BadInput):
        run.await_termination(10)


def test_what_the_body_of_a_with_block_raises_comes_before_the_flows_failure() -> None:
    with pytest.raises(TypeError), run_of(fails) as run:
        _ = died(run) / 0  # type: ignore[operator]


def test_a_flow_that_dies_alone_says_so_in_one_line_on_standard_error() -> None:
    script = "from tests.test_run import died, fails, run_of; died(run_of(fails))"
    done = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.stderr == "flow 'f' failed at epoch 1: operator 'm', epoch 1, row 7: no; nothing of this epoch was committed\n"


def test_a_failure_after_the_commit_does_not_claim_that_nothing_was_committed(caplog: Any) -> None:
    def commits_and_fails() -> bool:
        run._loop.log.manifest = SimpleNamespace(epoch=1, generation=1, totals={})  # type: ignore[assignment]
        raise BadInput("the sink's folder is gone\n\n  and more\n  of it")

    run = run_of(commits_and_fails, trigger=None)
    run._run()
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("flow 'f' failed after epoch 1 was committed: the sink's folder is gone … of it; ")


def test_a_run_shows_itself_in_one_line() -> None:
    run = run_of(lambda: False)
    assert repr(run) == "<Run of flow 'f': running, epoch 0, 0 rows in, 0 out, 0 to the dead letters>"
    run.stop()
    assert repr(run).startswith("<Run of flow 'f': stopped, ")
    assert repr(died(run_of(fails))).endswith(": operator 'm', epoch 1, row 7: no>")


@pytest.mark.parametrize(
    ("text", "value"),
    [("5s", 5.0), ("5 seconds", 5.0), ("1 minute", 60.0), ("200 milliseconds", 0.2), ("2 Hours", 7200.0), ("1 day", 86400.0)],
)
def test_durations_may_be_written_as_spark_writes_them(text: str, value: float) -> None:
    assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize("wrong", ["soon", "5 fortnights", "1.2.3s", "-1s", -1, True, [1]])
def test_what_is_no_duration_is_refused_with_an_example(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"such as '500ms', '5s', '5 seconds'"):
        seconds(wrong)


@pytest.mark.parametrize(
    ("option", "wrong"), [("parallelism", "2"), ("parallelism", 2.0), ("parallelism", True), ("retain_epochs", "64"), ("strict", "yes")]
)
def test_an_option_of_the_wrong_type_is_refused_by_name(option: str, wrong: Any) -> None:
    with pytest.raises(ConfigError, match=f"{option}={wrong!r}: "):
        Settings(**{option: wrong})


def test_a_change_cuts_one_pause_short_and_not_all_that_follow() -> None:
    steps: list[None] = []

    def idle() -> bool:
        steps.append(None)
        return False

    run = run_of(idle, idle_poll=60.0)
    try:
        for expected in (1, 2):
            deadline = time.monotonic() + 10
            while len(steps) < expected and time.monotonic() < deadline:
                time.sleep(0.01)
            run._wake.set()  # as a rescaling does
        time.sleep(0.3)
        assert len(steps) <= 3, "an idle flow looks for input without a rest"
    finally:
        run.stop()


def away() -> bool:
    raise Unavailable("store s3://b/x: 'log/1': no answer")


def holding(**options: Any) -> Run:
    """A run whose store does not answer."""
    drivers: list[Any] = []
    return run_of(lambda: bool(drivers[0].loop.patience.persevere(away, lambda: None)), drivers, **{"trigger": None, **options})


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_run_that_holds_says_so_and_can_be_stopped() -> None:
    run = holding(trigger=0.0)
    until(lambda: run.status()["holding"])
    status = run.status()
    assert (status["state"], status["error"]) == ("running", None)
    assert "'log/1'" in status["holding"]["why"]
    assert status["holding"]["since"] <= time.time()
    began = time.monotonic()
    run.stop()  # nothing has failed
    assert time.monotonic() - began < 2
    assert run.status()["state"] == "stopped"
    assert run.status()["holding"] is None


def test_who_waits_for_a_run_that_is_stopped_while_it_holds_is_told() -> None:
    run, told = holding(), []

    def process() -> None:
        with pytest.raises(Retryable) as error:
            run.process_available()
        told.append(str(error.value))

    thread = threading.Thread(target=process)
    thread.start()
    until(lambda: run.status()["holding"])
    run.stop()
    thread.join(10)
    assert "no answer" in told[0]


def test_all_of_a_run_is_closed_whatever_a_part_raises() -> None:
    closed: list[str] = []

    def fail() -> None:
        closed.append("first")
        raise OSError("a full disk")

    run = run_of(lambda: False, trigger=None)
    run._on_close = [fail, lambda: closed.append("second")]
    with pytest.raises(OSError, match="a full disk"):
        run.stop()
    assert closed == ["first", "second"]

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import meander as md
from meander.cli import status
from meander.cli.main import COMMANDS, main


@pytest.mark.parametrize("command", ["swap", "frobnicate"])
def test_an_unknown_command_is_refused_with_a_list_of_what_there_is(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--with", "options"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: there is no command '{command}'")
    assert all(name in error for name in COMMANDS)


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "meander demo" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert "examples:\n" in shown
    assert f"\n  meander {command} " in shown


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"meander {md.__version__}\n"


@pytest.mark.parametrize("words", [["run"], ["rescale", "counts"], ["run", "f.py", "--trigger"], ["state", "s", "o", "--epoch", "x"]])
def test_a_wrong_call_exits_with_2_and_says_where_help_is(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert f"try: meander {words[0]} --help" in error


def test_an_unknown_option_is_not_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "s", "--js"]) == 2
    assert capsys.readouterr().err == "error: unknown option --js\ntry: meander status --help\n"


def test_our_errors_are_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "/no/such/store"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: store file:///no/such/store: there is no flow in it")
    assert len(error.splitlines()) == 1


def test_debug_shows_the_traceback_wherever_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--debug", "status", "/no/such/store"], ["status", "/no/such/store", "--debug"]):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert "Traceback" in error
        assert error.splitlines()[-1].startswith("error: ")


def test_other_failures_exit_with_1_and_without_a_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(url: str) -> dict[str, object]:
        raise ZeroDivisionError("of all things\nand more")

    monkeypatch.setattr(status, "read_status", fails)
    assert main(["status", "anywhere"]) == 1
    assert capsys.readouterr().err == "error: ZeroDivisionError: of all things (--debug shows where)\n"


def test_a_reader_that_goes_away_is_no_failure() -> None:
    command = f"{sys.executable} -m meander.cli.main --help | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=dict(os.environ), timeout=60)
    assert "Traceback" not in done.stderr


def test_a_command_shows_the_warnings_of_a_flow_and_leaves_its_failure_to_the_last_line() -> None:
    script = (
        "import logging; from meander.cli.main import main; from tests.test_run import died, fails, run_of; main([]); "
        "logging.getLogger('meander').warning('flow f holds'); died(run_of(fails))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.stderr == "flow f holds\n"

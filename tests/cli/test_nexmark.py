"""``meander nexmark`` from the shell: what it lists, writes, checks and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from meander.cli import nexmark as command
from meander.cli.main import main
from meander.cli.nexmark_verify import words_of
from meander.nexmark.queries import FLOWS
from meander.nexmark.verify import Trial, Verdict


def test_the_list_has_every_query_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nexmark", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[::2]] == list(FLOWS)
    assert main(["nexmark", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["q3"]["reads"] == ["person", "auction"]


def test_without_a_command_it_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nexmark"]) == 0
    assert "meander nexmark run q5" in capsys.readouterr().out
    for words in ("run", "verify", "generate", "bench", "list"):
        with pytest.raises(SystemExit) as end:
            main(["nexmark", words, "--help"])
        assert end.value.code == 0


def test_the_events_are_written_as_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["nexmark", "generate", str(tmp_path / "events"), "--events", "1000", "--events-per-file", "600", "--seed", "3"]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == 6
    assert pl.read_parquet(tmp_path / "events" / "bid" / "*.parquet").height == 920
    assert main(words) == 2
    assert "there are files in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run q23", "there is no such query; there are q0"),
        ("run q5 --events 0", "--events 0: must be at least 1"),
        ("run q5 --parallelism 0", "--parallelism 0: must be at least 1"),
        ("run q5 --store s3://bucket/state", "give a folder"),
        ("bench q99", "there is no such query"),
        ("bench --against flink", "there is no such peer; there are spark"),
        ("bench --events 150", "must be a multiple"),
    ],
)
def test_what_cannot_be_run_is_said(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nexmark", *words.split()]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.spark
@pytest.mark.slow
def test_a_run_is_checked_and_one_that_is_wrong_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["nexmark", "run", "q8", "--events", "20000", "--event-rate", "1000", "--events-per-epoch", "6000", "--json", "--check"]
    places = ["--store", str(tmp_path / "state"), "--out", str(tmp_path / "out")]
    assert main([*words, *places]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["check"]["equal"] is True
    assert summary["check"]["rows"] > 0
    min((tmp_path / "out").glob("*.parquet")).unlink()  # not of the last epoch: that one would be published again
    assert main([*words, *places]) == 1
    assert "missing" in json.loads(capsys.readouterr().out.splitlines()[-1])["check"]["difference"]


def test_every_query_says_what_it_is() -> None:
    assert all(len(command.described(query)) > 20 for query in FLOWS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["q23"], "there is no such query"),
        (["q5", "--parallelism", "2,2"], "different numbers above 0"),
        (["q5", "--parallelism", "two"], "different numbers above 0"),
        (["q5", "--events", "0"], "must be at least 1"),
        (["q5", "--events", "100000"], "to be killed in the middle, a query needs 250000"),
    ],
)
def test_what_cannot_be_verified_is_said_before_anything_runs(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nexmark", "verify", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_verdict_says_what_happened_on_the_way() -> None:
    trial = Trial("q5", 2, 4, killed=True, events=1000, per_epoch=50, seed=0)
    assert words_of(Verdict(trial, 4, 7, 20, 12, None, 9.6)) == (
        "q5   2 slots, killed after epoch 4, 4 slots from epoch 7 on, 20 epochs in all: 12 rows equal (10 s)"
    )
    assert "DIFFERENT. one row is missing" in words_of(Verdict(trial, None, None, 20, 12, "one row is missing", 9.6))

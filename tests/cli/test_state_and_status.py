from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from tests.cli.small_store import make_store

import meander as md
from meander.cli.main import main
from meander.cli.store_view import owner_of
from meander.errors import ConfigError
from meander.state.formats import SNAPSHOT
from meander.state.log import entry_name, read_manifest, readable_epochs
from meander.state.stores.contract import Lock
from meander.task.evaluate import DeadLetter
from meander.task.stage import dead_letter_frame, encode_dead_letters

ADA, BOB, CLEO = ("ada", (2, 21.5)), ("bob", (1, 5.0)), ("cleo", (1, 300.0))


@pytest.fixture
def store(tmp_path: Path) -> str:
    make_store(tmp_path / "state", dict([ADA, BOB]), dict([CLEO]), {"ada": (3, 40.0)})
    return str(tmp_path / "state")


def contents(folder: str) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(Path(folder).rglob("*"))}


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_state_without_an_operator_lists_operators_and_epochs(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["state", store]) == 0
    shown = capsys.readouterr().out
    assert "flow 'orders', epoch 3; epochs 1 to 3 can be read" in shown
    assert "totals" in shown
    assert "customer" in shown


def test_state_shows_the_newest_values_as_a_table(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["state", store, "totals"]) == 0
    shown = [line.split() for line in lines(capsys)]
    assert ["ada", "3", "40"] in shown
    assert ["cleo", "1", "300"] in shown


def test_state_of_an_earlier_epoch_is_what_it_was(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["state", store, "totals", "--epoch", "1", "--format", "json"]) == 0
    rows = [json.loads(line) for line in lines(capsys)]
    assert {row["customer"]: (row["n"], row["total"]) for row in rows} == dict([ADA, BOB])


def test_sql_runs_over_the_table_named_state(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["state", store, "totals", "--sql", "SELECT customer FROM state ORDER BY total DESC LIMIT 2", "--format", "csv"]) == 0
    assert lines(capsys) == ["customer", "cleo", "ada"]


def test_a_table_is_cut_at_the_limit_and_says_so(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["state", store, "totals", "--limit", "1"]) == 0
    assert "1 of 3 rows; --limit 0 shows all" in capsys.readouterr().out


def test_machine_formats_have_all_rows_and_can_go_to_a_file(store: str, tmp_path: Path) -> None:
    target = tmp_path / "totals.parquet"
    assert main(["state", store, "totals", "--output", str(target)]) == 0
    assert pl.read_parquet(target).sort("customer").rows() == [("ada", 3, 40.0), ("bob", 1, 5.0), ("cleo", 1, 300.0)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["nothing"], "there is no stateful operator 'nothing'; there are: totals"),
        (["totals", "--epoch", "9"], "there is no epoch 9; epochs 1 to 3 can be read"),
        (["totals", "--sql", "SELEC 1"], "--sql: Parser Error"),
        (["totals", "--sql", "SELECT x FROM state"], "its columns are customer, n, total"),
        (["totals", "--output", "totals.txt"], "say the format with --format"),
        (["totals", "--output", "/no/such/folder/totals.csv"], "cannot be written"),
        (["--sql", "SELECT 1"], "which operator's state?"),
        (["totals", "--epoch", "0"], "there is no epoch 0: they are counted from 1"),
    ],
)
def test_wrong_questions_get_an_answer_that_helps(store: str, options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["state", store, *options]) == 2
    assert message in capsys.readouterr().err


def test_an_epoch_whose_log_entries_are_gone_is_not_retained(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opened = make_store(tmp_path / "other", dict([ADA]), dict([BOB]), dict([CLEO]))
    base = read_manifest(opened, 2)
    opened.put(f"manifest/{base.generation:08d}-{base.position:012d}", SNAPSHOT.write(base.to_json()))
    opened.delete(entry_name(1, 1))
    assert readable_epochs(opened) == range(2, 4)
    assert main(["state", str(tmp_path / "other"), "totals", "--epoch", "1"]) == 2
    assert "epoch 1 is not retained any more; epochs 2 to 3 can be read" in capsys.readouterr().err


def test_an_epoch_whose_segments_are_gone_is_not_readable(tmp_path: Path) -> None:
    opened = make_store(tmp_path / "state", dict([ADA]), dict([BOB]))
    for ref in read_manifest(opened).tables["totals"].segments[1:]:
        opened.delete(ref.name)
    assert readable_epochs(opened) == range(1, 2)


def test_status_says_where_the_flow_is(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", store, "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["flow"], status["epoch"], status["generation"], status["running"]) == ("orders", 3, 1, False)
    assert (status["rows_in"], status["rows_out"], status["dead_letters"]) == (30, 4, 3)
    assert (status["late_rows"], status["late_rows_of"]) == (6, {"totals": 6})
    table = status["tables"]["totals"]
    assert (table["keys"], table["segments"], table["rows"], table["parallelism"]) == (["customer"], 3, 4, 2)


def test_status_for_people_names_flow_and_operators(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", store]) == 0
    shown = capsys.readouterr().out
    assert "orders, not running" in shown
    assert "totals" in shown
    assert "6 (6 of totals)" in shown


def test_a_live_run_is_seen_and_not_disturbed(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opened = make_store(tmp_path / "live", dict([ADA]))
    lock = Lock(opened, "00000001")
    assert main(["status", str(tmp_path / "live"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["running"] is True
    lock.release()
    assert not owner_of(opened).live
    Lock(opened, "00000001").release()  # asking left no lock behind


def test_status_and_state_change_nothing(store: str, tmp_path: Path) -> None:
    before = contents(store)
    for words in (["status", store], ["state", store], ["state", store, "totals"]):
        assert main(words) == 0
    assert contents(store) == before
    assert main(["status", str(tmp_path / "nothing")]) == 2
    assert not (tmp_path / "nothing").exists()


def test_epochs_are_counted_from_1_for_readers_too(store: str) -> None:
    for epoch in (0, -1):
        with pytest.raises(ConfigError, match=f"there is no epoch {epoch}: they are counted from 1"):
            md.read_state(store, "totals", epoch=epoch)


@pytest.mark.parametrize("words", [["state", "s", "totals"], ["dead-letters", "s"]])
@pytest.mark.parametrize("limit", ["-1", "many"])
def test_a_limit_below_0_is_refused(words: list[str], limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*words, "--limit", limit])
    assert f"{limit} is not a whole number from 0 up" in capsys.readouterr().err


def test_status_of_a_flow_that_is_just_starting_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "state" / "probe").mkdir(parents=True)
    assert main(["status", str(tmp_path / "state")]) == 2
    assert "a flow was started in it and has no epoch yet" in capsys.readouterr().err
    assert main(["status", str(tmp_path / "other")]) == 2
    assert "a flow that is just starting makes it" in capsys.readouterr().err.lower()


def write_letters(store: str, *epochs: int) -> None:
    folder = Path(store) / "dead_letters"
    folder.mkdir()
    for epoch in epochs:
        letter = DeadLetter("parse", f"a.json:{epoch}", "not JSON", '{"a": [')
        (folder / f"{epoch}.parquet").write_bytes(encode_dead_letters(dead_letter_frame(epoch, [letter])))


def test_dead_letters_are_shown_with_their_reason_the_newest_last(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_letters(store, 1, 10, 2)
    assert main(["dead-letters", store]) == 0
    shown = lines(capsys)
    assert shown[-2:] == ["epoch 10, parse, a.json:10: not JSON", '    {"a": [']
    assert main(["dead-letters", store, "--limit", "1"]) == 0
    assert lines(capsys) == ["epoch 10, parse, a.json:10: not JSON", '    {"a": [', "the newest 1 of 3; --limit 0 shows all"]


def test_dead_letters_as_json_are_one_object_per_line(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_letters(store, 1, 2)
    assert main(["dead-letters", store, "--json"]) == 0
    assert [json.loads(line)["epoch"] for line in lines(capsys)] == [1, 2]


def test_dead_letters_that_went_elsewhere_are_not_denied(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dead-letters", store]) == 0
    assert "3 dead letters, in the folder that the flow names with dead_letters=" in capsys.readouterr().out
    assert main(["status", store]) == 0
    assert f"meander dead-letters {store}" in capsys.readouterr().out


def test_dead_letters_of_a_store_that_is_not_there_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="there is no flow in it"):
        md.read_dead_letters(tmp_path / "typo")
    assert main(["dead-letters", str(tmp_path / "typo")]) == 2
    assert "there is no flow in it" in capsys.readouterr().err

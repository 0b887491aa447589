"""Which files are taken, when, and in which pieces."""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meander.connect import file_discovery, file_splits
from meander.connect.file_discovery import Found
from meander.connect.file_splits import FilesCursor
from meander.connect.files import FilesSource, files
from meander.connect.source import Choice
from meander.errors import ConfigError, Corrupted, FlowError, Retryable

NOW = 2_000_000_000.0  # after every file's mtime


Watching = Callable[[FilesSource], FilesCursor]


def write(folder: Path, name: str, values: list[int], at: float = 1_000_000_000.0) -> Path:
    path = folder / name
    path.write_text("".join(f'{{"a":{value}}}\n' for value in values))
    os.utime(path, (at, at))
    return path


def source(folder: Path, **options: Any) -> FilesSource:
    return files(folder, format="json", schema={"a": "long"}, **options)


@pytest.fixture
def watching() -> Iterator[Watching]:
    """Cursors that find files by themselves, and end doing so with the test."""
    cursors: list[FilesCursor] = []

    def start(described: FilesSource) -> FilesCursor:
        cursors.append(described.cursor({}, set()))
        return cursors[-1]

    yield start
    for cursor in cursors:
        cursor.close()


def look(described: FilesSource, offset: dict[str, Any] | None = None, seen: set[str] | None = None, throttle: float = 1.0) -> FilesCursor:
    """A cursor that knows what is there now."""
    cursor = described.cursor(offset or {}, seen or set(), throttle)
    cursor.look()
    return cursor


def drain(described: FilesSource, offset: dict[str, Any] | None = None, seen: set[str] | None = None) -> list[Choice]:
    cursor = look(described, offset, seen)
    choices = []
    while (choice := cursor.choose(NOW, True)) is not None:
        choices.append(choice)
    return choices


def values(described: FilesSource, choices: list[Choice]) -> list[int]:
    return [value for choice in choices for split in choice.splits for value in described.read(split.payload).frame["a"].to_list()]


def test_files_are_taken_once_in_order_of_mtime_then_name(tmp_path: Path) -> None:
    write(tmp_path, "b.json", [3], at=20)
    write(tmp_path, "a.json", [2], at=20)
    write(tmp_path, "z.json", [1], at=10)
    described = source(tmp_path)
    cursor = look(described)
    choice = cursor.choose(NOW, True)
    assert choice is not None
    assert choice.seen == ("z.json", "a.json", "b.json")
    assert choice.offset == {}
    assert values(described, [choice]) == [1, 2, 3]
    cursor.look()
    assert cursor.choose(NOW, True) is None
    assert not cursor.finished()


def test_hidden_files_folders_and_names_already_seen_are_ignored(tmp_path: Path) -> None:
    for name in (".a.json", "_b.json", "old.json", "new.json"):
        write(tmp_path, name, [1])
    (tmp_path / "folder").mkdir()
    assert [choice.seen for choice in drain(source(tmp_path), seen={"old.json"})] == [("new.json",)]


def test_a_file_younger_than_the_settle_time_waits_unless_everything_is_asked_for(tmp_path: Path, watching: Watching) -> None:
    write(tmp_path, "old.json", [1], at=NOW - 5)
    write(tmp_path, "young.json", [2], at=NOW - 0.5)
    cursor = watching(source(tmp_path))
    first = cursor.choose(NOW, False)
    assert first is not None
    assert first.seen == ("old.json",)
    assert cursor.choose(NOW, False) is None
    second = cursor.choose(NOW + 1, False)
    assert second is not None
    assert second.seen == ("young.json",)
    at_once = look(source(tmp_path)).choose(NOW, True)
    assert at_once is not None
    assert at_once.seen == ("old.json", "young.json")


def test_a_file_that_grew_while_it_waited_settles_again_and_the_others_go_on(tmp_path: Path, watching: Watching) -> None:
    for number in range(3):
        write(tmp_path, f"{number}.json", [number], at=number)
    cursor = watching(source(tmp_path, max_files_per_epoch=1))
    taken = [cursor.choose(NOW, False)]
    write(tmp_path, "1.json", [1, 1], at=NOW)
    taken += [cursor.choose(now, False) for now in (NOW, NOW, NOW + 1)]
    assert [choice and choice.seen for choice in taken] == [("0.json",), ("2.json",), None, ("1.json",)]


def test_a_file_that_arrives_later_is_found_without_a_listing_in_the_epoch(tmp_path: Path, watching: Watching) -> None:
    cursor = watching(source(tmp_path))
    assert cursor.choose(NOW, False) is None
    for number in range(3):
        write(tmp_path, f"{number}.json", [number])
        deadline = time.monotonic() + 10
        while (choice := cursor.choose(NOW, False)) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert choice is not None
        assert choice.seen == (f"{number}.json",)


def test_asked_for_everything_it_takes_what_the_last_look_found_and_lists_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        write(tmp_path, f"{number}.json", [number], at=NOW)
    listings: list[str] = []
    scan = file_discovery.scan
    monkeypatch.setattr(file_discovery, "scan", lambda folder, known: listings.append(folder) or scan(folder, known))
    cursor = look(source(tmp_path, max_files_per_epoch=1))
    taken = [cursor.choose(NOW, True)]
    write(tmp_path, "late.json", [9])
    taken += [cursor.choose(NOW, True) for _ in range(3)]
    assert [choice and choice.seen for choice in taken] == [("0.json",), ("1.json",), ("2.json",), None]
    assert len(listings) == 1
    cursor.look()
    assert (cursor.choose(NOW, True) or pytest.fail("not found")).seen == ("late.json",)


def test_a_choice_that_fails_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        write(tmp_path, f"{number}.json", [number], at=number)
    cursor = look(source(tmp_path, max_files_per_epoch=3))
    cut = file_splits.cut_text

    def fail_at_the_third(path: str, *arguments: Any, **options: Any) -> Any:
        if path.endswith("2.json"):
            raise PermissionError(13, "Permission denied")
        return cut(path, *arguments, **options)

    monkeypatch.setattr(file_splits, "cut_text", fail_at_the_third)
    with pytest.raises(Retryable, match=r"2\.json: cannot be read"):
        cursor.choose(NOW, True)
    monkeypatch.undo()
    taken = [cursor.choose(NOW, True) for _ in range(3)]
    assert [choice and choice.seen for choice in taken] == [("0.json", "1.json", "2.json"), ("3.json",), None]


def test_an_epoch_costs_what_it_takes_and_not_what_waits(tmp_path: Path) -> None:
    """Counted, not timed: how often waiting files are compared, at a backlog of 100 and of 5,000."""
    compared = 0

    class Counted(Found):
        def __lt__(self, other: tuple[Any, ...]) -> bool:
            nonlocal compared
            compared += 1
            return tuple(self) < other

    def costs(files: int) -> int:
        nonlocal compared
        cursor = look(source(tmp_path, max_files_per_epoch=2))
        cursor._waiting = [Counted(number, "there.json", 8) for number in range(files)]
        compared = 0
        assert cursor.choose(NOW, True) is not None
        return compared

    write(tmp_path, "there.json", [1])
    assert 0 < costs(5_000) <= 3 * costs(100)


def test_the_file_limit_bounds_an_epoch_and_the_throttle_lowers_it(tmp_path: Path) -> None:
    for number in range(5):
        write(tmp_path, f"{number}.json", [number])
    described = source(tmp_path, max_files_per_epoch=2)
    assert [len(choice.splits) for choice in drain(described)] == [2, 2, 1]
    slow = look(described, throttle=0.1).choose(NOW, True)
    assert slow is not None
    assert len(slow.splits) == 1


def test_the_byte_limit_takes_at_least_one_split(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path, f"{number}.json", list(range(10)))
    assert [len(choice.splits) for choice in drain(source(tmp_path, max_bytes_per_epoch=1))] == [1, 1, 1]


def test_the_row_limit_holds_for_small_text_files_exactly(tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path, f"{number}.json", [1, 2, 3])
    choices = drain(source(tmp_path, max_rows_per_epoch=7))
    assert [sum(split.rows for split in choice.splits) for choice in choices] == [6, 6]


def test_a_cursor_rebuilt_from_any_offset_continues_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_splits, "_SAMPLE", 64)
    for number in range(3):
        write(tmp_path, f"{number}.json", list(range(number * 100, number * 100 + 100)), at=number + 1)
    described = source(tmp_path, max_bytes_per_epoch=300)
    straight = drain(described)
    assert len(straight) > 6
    assert any(choice.offset for choice in straight)
    assert values(described, straight) == list(range(300))
    seen: set[str] = set()
    for done, choice in enumerate(straight):
        seen |= set(choice.seen)
        offset = json.loads(json.dumps(choice.offset))
        assert drain(described, offset, seen) == straight[done + 1 :]


def test_a_cursor_goes_on_in_a_folder_that_was_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_splits, "_SAMPLE", 64)
    (tmp_path / "here").mkdir()
    for number in range(3):
        write(tmp_path / "here", f"{number}.json", list(range(number * 100, number * 100 + 100)), at=number + 1)
    before = source(tmp_path / "here", max_bytes_per_epoch=300)
    straight = drain(before)
    (tmp_path / "here").rename(tmp_path / "there")
    after = source(tmp_path / "there", max_bytes_per_epoch=300)
    seen: set[str] = set()
    for done, choice in enumerate(straight):
        seen |= set(choice.seen)
        assert drain(after, choice.offset, seen) == straight[done + 1 :]
    assert values(after, straight) == list(range(300))


def test_a_half_taken_file_goes_on_under_other_limits_without_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_splits, "_SAMPLE", 64)
    write(tmp_path, "a.json", list(range(200)))
    before = source(tmp_path, max_bytes_per_epoch=300)
    first = look(before).choose(NOW, True)
    assert first is not None
    after = source(tmp_path, max_bytes_per_epoch=777)
    assert values(before, [first]) + values(after, drain(after, first.offset, set(first.seen))) == list(range(200))


def test_a_half_taken_file_that_changed_or_went_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_splits, "_SAMPLE", 64)
    path = write(tmp_path, "a.json", list(range(200)))
    described = source(tmp_path, max_bytes_per_epoch=300)
    choice = look(described).choose(NOW, True)
    assert choice is not None
    write(tmp_path, "a.json", list(range(201)))
    with pytest.raises(Corrupted, match=r"a\.json has changed"):
        look(described, choice.offset).choose(NOW, True)
    path.unlink()
    with pytest.raises(Corrupted, match=r"a\.json is gone"):
        look(described, choice.offset).choose(NOW, True)


def test_a_file_that_went_before_it_was_decided_is_no_input_and_one_that_comes_back_is(tmp_path: Path) -> None:
    for number in range(2):
        write(tmp_path, f"{number}.json", [number], at=number + 1)
    cursor = look(source(tmp_path, max_files_per_epoch=1))
    assert cursor.choose(NOW, True) is not None
    (tmp_path / "1.json").unlink()
    assert cursor.choose(NOW, True) is None
    write(tmp_path, "1.json", [5])
    cursor.look()
    choice = cursor.choose(NOW, True)
    assert choice is not None
    assert choice.seen == ("1.json",)
    cursor.look()
    assert cursor.choose(NOW, True) is None


def test_parquet_is_cut_at_row_groups_by_the_row_limit_and_reads_back_whole(tmp_path: Path) -> None:
    pl.DataFrame({"a": range(1000)}).write_parquet(tmp_path / "a.parquet", row_group_size=100)
    described = files(tmp_path, max_rows_per_epoch=250)
    choices = drain(described)
    assert [split.payload["groups"] for choice in choices for split in choice.splits] == [[0, 2], [2, 4], [4, 6], [6, 8], [8, 10]]
    assert [split.rows for choice in choices for split in choice.splits] == [200] * 5
    assert values(described, choices) == list(range(1000))
    assert [choice.seen for choice in choices] == [(), (), (), (), ("a.parquet",)]
    assert values(described, drain(described, choices[1].offset)) == list(range(400, 1000))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=st.lists(st.integers(0, 12), min_size=1, max_size=40), step=st.integers(1, 30), trailing=st.booleans(), crlf=st.booleans())
def test_byte_ranges_that_meet_own_every_line_exactly_once(
    tmp_path: Path, lengths: list[int], step: int, trailing: bool, crlf: bool
) -> None:
    lines = [json.dumps({"a": f"{number}{'é' * length}"}, ensure_ascii=False) for number, length in enumerate(lengths)]
    end = "\r\n" if crlf else "\n"
    path = tmp_path / "a.json"
    path.write_bytes((end.join(lines) + (end if trailing else "")).encode())
    stat = path.stat()
    described = files(tmp_path, format="json", schema={"a": "string"})
    rows = []
    for start in range(0, stat.st_size, step):
        base = {"path": "a.json", "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
        batch = described.read({**base, "start": start, "end": min(start + step, stat.st_size)})
        assert not batch.bad
        rows += batch.frame["a"].to_list()
    assert rows == [json.loads(line)["a"] for line in lines]


def test_csv_ranges_know_the_header_and_do_not_read_it_as_a_row(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,a\n" + "".join(f"t,{value}\n" for value in range(50)))
    stat = path.stat()
    described = files(tmp_path, format="csv", schema={"a": "long"})
    rows = []
    for start in range(0, stat.st_size, 7):
        base = {"path": "a.csv", "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
        batch = described.read({**base, "start": start, "end": min(start + 7, stat.st_size)})
        assert not batch.bad
        rows += batch.frame["a"].to_list()
    assert rows == list(range(50))


def test_the_description_travels_and_compares(tmp_path: Path) -> None:
    described = source(tmp_path, optional=["a"])
    assert pickle.loads(pickle.dumps(described)) == described
    assert hash(described) == hash(source(tmp_path, optional=["a"]))
    assert described.describe() == f"files json {tmp_path}"


def test_what_cannot_run_is_refused_when_it_is_described(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="mounted"):
        files("s3://bucket/in")
    with pytest.raises(ConfigError, match="unknown format"):
        files(tmp_path, format="avro")
    with pytest.raises(ConfigError, match="not a folder"):
        files(tmp_path / "nowhere")
    with pytest.raises(FlowError, match="give schema="):
        files(tmp_path)
    with pytest.raises(FlowError, match="give schema="):
        files(tmp_path, format="json")
    with pytest.raises(FlowError, match="unknown type 'decimal'"):
        files(tmp_path, format="json", schema={"a": "decimal"})
    with pytest.raises(FlowError, match="cannot be read from csv"):
        files(tmp_path, format="csv", schema={"a": pl.List(pl.Int64)})
    with pytest.raises(FlowError, match="not in the schema"):
        files(tmp_path, format="json", schema={"a": "long"}, optional=["b"])
    with pytest.raises(ConfigError, match="at least 1"):
        files(tmp_path, format="json", schema={"a": "long"}, max_rows_per_epoch=0)


def archiving(folder: Path) -> FilesCursor:
    return look(source(folder, after="archive"))


def test_what_was_read_stays_unless_it_is_to_be_archived(tmp_path: Path) -> None:
    write(tmp_path, "a.json", [1])
    look(source(tmp_path)).release(["a.json"])
    assert (tmp_path / "a.json").exists()
    archiving(tmp_path).release(["a.json"])
    assert os.listdir(tmp_path) == ["_archive"]
    archiving(tmp_path).release(["a.json"])  # as after a restart
    assert (tmp_path / "_archive" / "a.json").read_text() == '{"a":1}\n'


def test_the_archive_is_no_input_and_nothing_in_it_is_overwritten(tmp_path: Path) -> None:
    write(tmp_path, "a.json", [1])
    cursor = archiving(tmp_path)
    choice = cursor.choose(NOW, True)
    assert choice is not None
    cursor.release(choice.seen)
    write(tmp_path, "a.json", [2])  # a name is taken once
    cursor.look()
    assert cursor.choose(NOW, True) is None
    archiving(tmp_path).release(["a.json"])
    assert (tmp_path / "a.json").read_text() == '{"a":2}\n'
    assert (tmp_path / "_archive" / "a.json").read_text() == '{"a":1}\n'


def test_a_folder_whose_files_cannot_be_moved_is_an_error_that_says_so(tmp_path: Path) -> None:
    write(tmp_path, "a.json", [1])
    cursor = archiving(tmp_path)
    (tmp_path / "_archive").write_text("a file where the archive should be")
    with pytest.raises(Retryable, match="cannot be archived"):
        cursor.release(["a.json"])
    with pytest.raises(ConfigError, match="archive it"):
        source(tmp_path, after="delete")
    with pytest.raises(ConfigError, match="'keep' or 'archive'"):
        source(tmp_path, after="move")


def test_the_schema_is_still_that_of_the_first_file_when_it_is_in_the_archive(tmp_path: Path) -> None:
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "a.parquet")
    described = files(tmp_path, after="archive")
    look(described).release(["a.parquet"])
    assert files(tmp_path, after="archive") == described
    pl.DataFrame({"b": ["x"]}).write_parquet(tmp_path / "b.parquet")
    assert files(tmp_path, after="archive") == described


def test_what_is_added_to_a_file_that_was_read_becomes_a_dead_letter_once(tmp_path: Path) -> None:
    described = source(tmp_path)
    path = write(tmp_path, "a.json", [1, 2])
    cursor = look(described)
    assert cursor.choose(NOW, True) is not None
    cursor.look()
    assert cursor.choose(NOW, True) is None
    with path.open("a") as out:
        out.write('{"a":3}\n')
    cursor.look()
    choice = cursor.choose(NOW, True)
    assert choice is not None
    assert choice.seen == ()
    (split,) = choice.splits
    batch = described.read(split.payload)
    assert batch.frame.height == 0
    (bad,) = batch.bad
    assert bad.reason == "changed from 16 to 24 bytes after it was read; what was added is not read: add rows as new files"
    with path.open("a") as out:  # it may grow on while the epoch runs: that is told next time, and no reason to stop
        out.write('{"a":4}\n')
    assert described.read(split.payload).bad == batch.bad
    cursor.look()
    assert cursor.choose(NOW, True) is not None
    cursor.look()
    assert cursor.choose(NOW, True) is None


def test_a_schema_may_be_written_as_spark_takes_it(tmp_path: Path) -> None:
    write(tmp_path, "a.json", [1])
    written = files(tmp_path, format="json", schema="a bigint")
    assert written.schema() == source(tmp_path).schema()

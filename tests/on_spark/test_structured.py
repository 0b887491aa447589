"""Which batches of Structured Streaming are epochs already: by their id, and by the range of input that they are."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from meander.errors import Corrupted
from meander.on_spark.structured import Structured, input_of, is_new


class GoneQuery:
    """A query of a JVM that has ended."""

    @property
    def isActive(self) -> bool:
        raise Py4JNetworkError("Answer from Java side is empty")


def test_a_flow_can_be_stopped_after_its_spark_has_ended() -> None:
    driver = object.__new__(Structured)
    driver._stopping, driver._batch_thread, driver._query = threading.Event(), None, GoneQuery()
    driver.stop()
    assert driver._stopping.is_set()


def batch(number: int, input: str | None = "a", query: str = "q") -> dict[str, Any]:
    return {"query": query, "batch": number, "input": input}


def test_the_next_batch_is_new_and_the_last_one_is_not() -> None:
    assert is_new("s", None, batch(0))
    assert is_new("s", batch(4), batch(5, "b"))
    assert not is_new("s", batch(5), batch(5))


@pytest.mark.parametrize("sent", [batch(3), batch(6), batch(4, query="other")])
def test_a_gap_a_step_back_and_another_query_are_errors(sent: dict[str, Any]) -> None:
    with pytest.raises(Corrupted, match="belong together"):
        is_new("s", batch(4), sent)


def test_a_query_that_is_further_than_the_store_is_an_error() -> None:
    with pytest.raises(Corrupted, match="no epoch of this query"):
        is_new("s", None, batch(1))


def test_a_batch_with_the_same_id_and_another_range_is_an_error_and_no_skip() -> None:
    with pytest.raises(Corrupted, match="batch 4 again, with other input"):
        is_new("s", batch(4), batch(4, "b"))


def written(checkpoint: Path, offset: Any, files: list[str] | None = None, at: int = 1000, name: str = "0") -> str | None:
    """A checkpoint as Spark writes one, with one source, at batch 7."""
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / "7").write_text(f'v1\n{{"batchTimestampMs":{at},"conf":{{}}}}\n{json.dumps(offset)}')
    if files is not None:
        (checkpoint / "sources" / "0").mkdir(parents=True, exist_ok=True)
        listed = [json.dumps({"path": path, "timestamp": 1, "batchId": 0}) for path in files]
        older = [json.dumps({"path": "old", "timestamp": 1, "batchId": -1})] if name != "0" else []
        (checkpoint / "sources" / "0" / name).write_text("\n".join(["v1", *older, *listed]))
    return input_of(checkpoint, 7)


def test_the_same_range_is_the_same_whenever_it_was_planned(tmp_path: Path) -> None:
    topic = {"topic": {"0": 12, "1": 9}}
    assert written(tmp_path / "a", topic) == written(tmp_path / "b", topic, at=2000) is not None
    assert written(tmp_path / "a", topic) != written(tmp_path / "b", {"topic": {"0": 13, "1": 9}})


def test_a_source_of_files_is_told_by_its_files_and_not_by_how_often_it_was_listed(tmp_path: Path) -> None:
    first = written(tmp_path / "a", {"logOffset": 0}, ["one"])
    assert first == written(tmp_path / "b", {"logOffset": 0}, ["one"], at=2000)
    assert first == written(tmp_path / "c", {"logOffset": 0}, ["one"], name="0.compact")
    assert first != written(tmp_path / "d", {"logOffset": 0}, ["one", "two"])


def test_an_offset_in_a_form_of_its_own_counts_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "7").write_text("v1\n{}\n-")
    one = input_of(tmp_path, 7)
    (tmp_path / "offsets" / "7").write_text("v1\n{}\nat 12")
    assert None is not one != input_of(tmp_path, 7)


def test_a_log_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    assert input_of(tmp_path, 3) is None
    assert written(tmp_path, {"logOffset": 5}) is None

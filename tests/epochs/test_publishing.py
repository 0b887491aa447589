"""What is committed is published, whatever is in the way for a while: a full disk, a folder that is away, a database, the store."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.local import Local, Script

import meander as md
from meander.clock import FakeClock
from meander.connect.sink import Sink
from meander.epochs.patience import Patience
from meander.state.stores.contract import DirStore

COLUMNS = {"k": pl.Int64(), "v": pl.Int64()}
SCRIPT = tuple(((0, tuple((key, 10 * epoch + key) for key in range(3))),) for epoch in range(4))
VALUES = [10 * epoch + key for epoch in range(4) for key in range(3)]


class Waiting(FakeClock):
    """Time passes at once, and something happens meanwhile."""

    def __init__(self, meanwhile: Callable[[int], None] = lambda waited: None) -> None:
        super().__init__(start=1.0e9)
        self.waited, self._meanwhile = 0, meanwhile

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.waited += 1
        self._meanwhile(self.waited)


def start(folder: Path, sink: Sink, **options: Any) -> Local:
    flow = md.Flow("held")
    flow.source("events", Script(COLUMNS, SCRIPT)).sink("out", sink)
    return Local(flow, folder / "state", **options)


def published(folder: Path) -> list[int]:
    return sorted(value for file in folder.rglob("*.parquet") for value in pl.read_parquet(file)["v"])


@pytest.mark.parametrize("by", [None, "k"])
@pytest.mark.parametrize("replica", [None, "a"])
def test_a_full_disk_holds_the_flow_up_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, by: str | None, replica: str | None
) -> None:
    link, out = os.link, tmp_path / "out"
    clock = Waiting()

    def full(source: Any, target: Any, **rest: Any) -> None:
        if out in Path(target).parents and "part-0000000002" in str(target) and clock.waited < 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        link(source, target, **rest)

    monkeypatch.setattr(os, "link", full)
    local = start(tmp_path, md.parquet(out, partition_by=by), clock=clock, replica=replica)
    with caplog.at_level(logging.WARNING, "meander"):
        local.run()
    assert clock.waited >= 5
    assert published(out) == VALUES
    assert [done.epoch for done in local.done] == [1, 2, 3, 4]
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2, "once when it begins, and once when it is over"
    who = "flow 'held'" if replica is None else "replica 'a'"
    assert told[0].startswith(f"{who} holds, and tries again: epoch 2 is committed, and sink 'out' (parquet ")
    assert "No space left on device" in told[0]


@pytest.mark.parametrize("by", [None, "k"])
def test_an_output_folder_that_is_away_is_waited_for_and_not_made_anew(tmp_path: Path, by: str | None) -> None:
    def brought_back(waited: int) -> None:
        assert waited > 3 or not (tmp_path / "out").exists()
        if waited == 3:
            shutil.move(tmp_path / "away", tmp_path / "out")

    clock = Waiting(brought_back)
    local = start(tmp_path, md.parquet(tmp_path / "out", partition_by=by), clock=clock)
    local.step()
    shutil.move(tmp_path / "out", tmp_path / "away")
    local.run()
    assert clock.waited >= 3
    assert published(tmp_path / "out") == VALUES


def test_a_run_that_is_stopped_while_it_waits_says_what_is_left_to_do_and_the_next_start_does_it(tmp_path: Path) -> None:
    clock = Waiting(lambda waited: waited >= 2 and local.loop.patience.leave())
    local = start(tmp_path, md.parquet(tmp_path / "out"), clock=clock)
    local.step()
    shutil.move(tmp_path / "out", tmp_path / "away")
    with pytest.raises(md.Retryable, match=r"epoch 2 is committed, .* the output folder is not there.*by the next start"):
        local.step()
    assert clock.waited == 2
    shutil.move(tmp_path / "away", tmp_path / "out")
    start(tmp_path, md.parquet(tmp_path / "out")).run()
    assert published(tmp_path / "out") == VALUES


def test_patience_ends_and_a_run_that_was_replaced_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Waiting()
    local = start(tmp_path, md.parquet(tmp_path / "out"), clock=clock)
    local.loop.publisher.patience = Patience(clock, "flow 'held'", limit=600.0)
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(md.Retryable, match="is not there"):
        local.step()
    assert 600.0 <= clock.monotonic() < 660.0
    clock = Waiting(lambda waited: start(tmp_path, md.parquet(tmp_path / "elsewhere")) and None)
    local = start(tmp_path, md.parquet(tmp_path / "out"), clock=clock)
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(md.Fenced):
        local.step()


def test_a_function_that_cannot_reach_its_database_is_called_again_and_one_that_is_wrong_ends_the_run(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []

    def save(frame: pl.DataFrame, epoch: int) -> None:
        calls.append((epoch, frame.height))
        if epoch == 2 and calls.count((2, 3)) < 3:
            raise ConnectionRefusedError("the database is away")
        if epoch == 3 and calls.count((3, 3)) < 2:
            raise md.Retryable("it says itself that it should be asked again")
        if epoch == 4:
            raise ZeroDivisionError

    clock = Waiting()
    local = start(tmp_path, md.foreach_batch(save), clock=clock)
    with pytest.raises(ZeroDivisionError):
        local.run()
    assert calls == [(1, 3), (2, 3), (2, 3), (2, 3), (3, 3), (3, 3), (4, 3)]


def test_a_store_that_does_not_give_staged_files_is_asked_again(tmp_path: Path) -> None:
    class Away(DirStore):
        def get(self, name: str) -> bytes | None:
            if name.startswith("staged/") and clock.waited < 4:
                raise md.Retryable("the store is away")
            return super().get(name)

    clock = Waiting()
    start(tmp_path, md.parquet(tmp_path / "out", partition_by="k"), clock=clock, store=Away(tmp_path / "state")).run()
    assert clock.waited >= 4
    assert published(tmp_path / "out") == VALUES

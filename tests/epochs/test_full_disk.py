"""A disk that is full for a while: nothing that failed stays on it, and the flow goes on when there is room again."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.local import Local, Script

import meander as md
from meander.clock import FakeClock
from meander.errors import Unavailable
from meander.state.stores import contract as store_module
from meander.state.stores.contract import DirStore, sweep_temporary

COLUMNS = {"k": pl.Int64(), "v": pl.Int64()}
SCRIPT = tuple(((0, tuple((key, epoch) for key in range(8))),) for epoch in range(5))


class Disk:
    """Takes so many more writes, then half of one and none after it, until it has room again."""

    def __init__(self, write: Callable[[int, Any], None]) -> None:
        self._write, self.left, self.refused = write, 1 << 30, 0

    def write(self, fd: int, data: Any) -> None:
        self.left -= 1
        if self.left < 0:
            self.refused += 1
            os.write(fd, memoryview(data)[: memoryview(data).nbytes // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._write(fd, data)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    full = Disk(store_module.write)
    monkeypatch.setattr(store_module, "write", full.write)
    return full


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("verb", ["put", "put_if_absent"])
def test_a_put_for_which_there_is_no_room_leaves_nothing(tmp_path: Path, disk: Disk, verb: str) -> None:
    store = DirStore(tmp_path)
    disk.left = 0
    for _ in range(3):
        with pytest.raises(Unavailable, match="No space left"):
            getattr(store, verb)("log/1", b"x" * 100)
    assert not files(tmp_path)
    disk.left = 1
    getattr(store, verb)("log/1", b"x" * 100)
    assert store.get("log/1") == b"x" * 100


@pytest.mark.many
@pytest.mark.parametrize("writes", range(14))
def test_a_disk_that_is_full_gets_no_fuller_and_the_flow_goes_on(tmp_path: Path, disk: Disk, writes: int) -> None:
    clock, out = FakeClock(1000.0), md.memory()
    flow = md.Flow("full")
    totals = flow.source("events", Script(COLUMNS, SCRIPT)).key_by("k").aggregate(md.sum("v").alias("total"), name="totals")
    totals.sink("out", out)
    local = Local(flow, tmp_path / "state", clock=clock, store=DirStore(tmp_path / "state", clock))
    local.step()
    disk.left = writes
    there: list[int] = []
    mend = local.loop.siblings.mend

    def watched() -> None:
        mend()
        there.append(len(files(tmp_path / "state")))
        if len(there) == 6:
            disk.left = 1 << 30

    local.loop.siblings.mend = watched  # type: ignore[method-assign]
    while local.loop.siblings.persevere(local.loop.step, everything=True):
        pass
    assert disk.refused
    assert len(there) == 6
    assert len(set(there)) == 1, "each try leaves what was there before it"
    assert sorted(out.frame()["total"].to_list()) == sorted(sum(range(epoch + 1)) for epoch in range(5) for _ in range(8))
    named = local.manifest.segment_names() | {file["name"] for staged in local.manifest.staged.values() for file in staged}
    left = {str(path.relative_to(tmp_path / "state")) for folder in ("segments", "staged") for path in files(tmp_path / "state" / folder)}
    assert {name for name in left - named if int(name.rsplit("/", 1)[1].split("-")[1]) > local.manifest.epoch} == set()


def test_output_for_which_there_is_no_room_is_waited_for(tmp_path: Path) -> None:
    clock, out = FakeClock(1000.0), md.memory()
    flow, failures = md.Flow("full"), iter([True] * 3)
    flow.source("events", Script(COLUMNS, SCRIPT)).sink("out", out)
    local = Local(flow, tmp_path, clock=clock)
    publish = out.publish

    def full(*arguments: Any) -> None:
        if next(failures, False):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        publish(*arguments)

    object.__setattr__(out, "publish", full)
    while local.loop.siblings.persevere(local.loop.step, everything=True):
        pass
    assert out.frame().height == 8 * 5


def test_what_a_killed_replica_left_beside_its_decisions_is_swept_at_the_start(tmp_path: Path) -> None:
    flow = md.Flow("killed")
    flow.source("events", Script(COLUMNS, SCRIPT)).sink("out", md.memory())
    Local(flow, tmp_path, replica="a").step()
    for folder in ("decide/00000001", "diverged/00000001", "log/00000001"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / ".000000000002.0123456789abcdef").write_bytes(b"{")
    Local(flow, tmp_path, replica="a")
    assert not [path for path in files(tmp_path) if path.name.startswith(".")]
    sweep_temporary(DirStore(tmp_path), "decide/")  # nothing is left to do


def test_a_run_holds_after_the_first_job_that_found_no_room(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock(1000.0)
    flow = md.Flow("full")
    flow.source("events", Script(COLUMNS, SCRIPT)).key_by("k").aggregate(md.sum("v").alias("total"), name="totals").sink("out", md.memory())
    local = Local(flow, tmp_path / "state", clock=clock, store=DirStore(tmp_path / "state", clock))
    local.step()
    jobs: list[int] = []
    begin = local.loop.attempts.runner.begin

    def counted(decision: Any, *rest: Any) -> Any:
        jobs.append(decision.epoch)
        return begin(decision, *rest)

    monkeypatch.setattr(local.loop.attempts.runner, "begin", counted)
    disk.left = 0
    local.loop.patience.leave()  # as a stop does
    with pytest.raises(Unavailable, match="No space left"):
        local.loop.siblings.persevere(local.loop.step, everything=False)
    assert jobs == [2]

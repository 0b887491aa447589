"""What is done between two epochs can wait: where the store does not answer to it, the epochs go on."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from tests.local import Local, Script, constants

import meander as md
from meander.state import log as log_module
from meander.state.log import read_manifest, snapshots
from meander.state.stores.contract import DirStore

COLUMNS = {"k": pl.Int64(), "v": pl.Int64()}
SCRIPT = tuple(((0, ((1, epoch),)),) for epoch in range(12))


class Forgetful(DirStore):
    """Does not answer to some puts; ``arrives``: they have an effect all the same."""

    deaf = 0
    arrives = False
    folder = "manifest/"

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if name.startswith(self.folder) and self.deaf:
            self.deaf -= 1
            if self.arrives:
                super().put_if_absent(name, data)
            raise md.Retryable("no answer")
        return super().put_if_absent(name, data)


@pytest.mark.parametrize("arrives", [False, True])
@pytest.mark.parametrize("calls", [1, 3])
def test_a_snapshot_that_is_not_answered_ends_no_run_and_is_taken_later(tmp_path: Path, calls: int, arrives: bool) -> None:
    store = Forgetful(tmp_path / "state")
    store.deaf, store.arrives = calls, arrives
    flow, out = md.Flow("x"), md.memory()
    flow.source("events", Script(COLUMNS, SCRIPT)).key_by("k").aggregate(md.sum("v").alias("total"), name="totals").sink("out", out)
    with constants(SNAPSHOT_EVERY=(log_module, 3)):
        Local(flow, tmp_path / "state", store=store).run()
        assert store.deaf == 0
        manifest = read_manifest(store)
        assert manifest.epoch == len(SCRIPT)
        assert snapshots(store)[-1][0] > 6
        assert manifest.tables == Local(flow, tmp_path / "state").manifest.tables
    assert out.frame().height == len(SCRIPT)


def test_names_that_cannot_be_put_away_stay_in_the_log(tmp_path: Path) -> None:
    class Deaf(DirStore):
        deaf = True

        def put(self, name: str, data: bytes) -> None:  # type: ignore[override]
            if name.startswith("seen/") and self.deaf:
                raise md.Retryable("no answer")
            super().put(name, data)

    (tmp_path / "in").mkdir()
    for number in range(6):
        (tmp_path / "in" / f"{number}.csv").write_text(f"k\n{number}\n")
    flow, out = md.Flow("x"), md.memory()
    flow.source("events", md.files(tmp_path / "in", "csv", {"k": "long"}, max_files_per_epoch=1)).sink("out", out)
    store = Deaf(tmp_path / "state")
    with constants(SNAPSHOT_EVERY=(log_module, 2)):
        local = Local(flow, tmp_path / "state", store=store)
        local.loop.input.look()
        local.step(), local.step(), local.step()
        assert len(local.manifest.recent["events"]) == 3
        store.deaf = False
        local.run()
        assert local.manifest.seen["events"]
    local.loop.close()
    assert sorted(out.frame()["k"].to_list()) == list(range(6))

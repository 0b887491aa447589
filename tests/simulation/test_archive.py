"""Real files under drivers that die at every step: a file is put away only when its epoch is committed and published, and then for sure."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.simulation.disk import Crash, Disk, Faults, Ledger, View
from tests.simulation.parts import SINK, SimulatedCompactor, World, WorldSink

from meander.clock import FakeClock
from meander.connect.file_splits import ARCHIVE
from meander.connect.files import FilesSource, files
from meander.epochs.decision import Decision, Outcome
from meander.epochs.loop import Loop
from meander.epochs.options import LoopOptions, Tenure
from meander.epochs.parts import Parts
from meander.state.log import Log
from meander.state.manifest import Manifest

NAMES = [f"{number}.json" for number in range(5)]
SOURCE = "named"  # the ledger keeps the names of this one


class ReadingRunner:
    """Reads the files and stages their rows."""

    def __init__(self, source: FilesSource, view: View, clock: FakeClock) -> None:
        self.source, self.view, self.clock = source, view, clock

    def prepare(self, decision: Decision, routing: dict[str, list[int]]) -> Any:
        self._read(decision)  # ahead of time: before the epoch before it is committed

    def begin(self, decision: Decision, manifest: Manifest, routing: dict[str, list[int]], prepared: Any) -> Callable[[], Outcome]:
        def run() -> Outcome:
            rows = self._read(decision).rows()
            name = f"staged/{SINK}/{manifest.generation:08d}-{decision.epoch:010d}-{self.clock.new_id()}"
            self.view.put(name, json.dumps(rows).encode())
            return Outcome({}, {SINK: [{"name": name, "slot": 0, "rows": len(rows)}]}, {}, {})

        return run

    def settle(self) -> None:
        pass

    def recover(self) -> None:
        pass

    def _read(self, decision: Decision) -> pl.DataFrame:
        return pl.concat(self.source.read(split.payload).frame for _, split in decision.splits)


class Folder:
    """An input folder, a disk and a world that outlive their drivers."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.ledger = Ledger(retain=2)
        self.disk = Disk(self.ledger)
        self.world = World(self.ledger)
        self.clock = FakeClock(2_000_000_000.0, seed)
        self.rng = random.Random(seed)
        for number, name in enumerate(NAMES):
            (folder / name).write_text(f'{{"a":{number}}}\n')
            os.utime(folder / name, (number, number))

    def live(self, faults: Faults) -> int:
        """One driver over all that is there; how many operations it made."""
        view = View(self.disk, faults, self.rng)
        source = files(self.folder, format="json", schema={"a": "long"}, max_files_per_epoch=2, after="archive")
        try:
            log = Log.take_over(view, self.clock, key_groups=4)
            plan = {"flow": "f", "version": 1, "digest": "d"}
            parts = Parts(plan, {}, {SOURCE: source}, {SINK: WorldSink(self.world, view)}, {})
            compactor = SimulatedCompactor(view, self.clock, log.manifest, self.rng)
            loop = Loop(
                Tenure(view, self.clock, log), parts, ReadingRunner(source, view, self.clock), compactor=compactor, options=LoopOptions(1)
            )
            loop.recover()
            loop.input.look()
            while loop.step(everything=True):
                self.check()
            loop.close()
        except Crash:
            pass
        self.check()
        return view.count

    def check(self) -> None:
        committed = self.ledger.names[max(self.world.published, default=0)]
        missing = {name for name in NAMES if not (self.folder / name).exists()}
        assert missing <= committed, f"{missing - committed} put away before their epoch was published"
        assert {path.name for path in (self.folder / ARCHIVE).glob("*")} == missing, "what is not in the folder is in the archive"


@pytest.mark.many
@pytest.mark.parametrize("seed", range(3))  # what the dying operation still does
def test_a_file_is_archived_after_its_epoch_is_published_whenever_the_driver_dies(tmp_path: Path, seed: int) -> None:
    def world(name: str) -> Folder:
        (tmp_path / name).mkdir()
        return Folder(tmp_path / name, seed)

    steps = world("undisturbed").live(Faults())
    assert steps > 20
    for step in range(1, steps + 1):
        one = world(f"{step}")
        one.live(Faults(crash_at=step))
        one.live(Faults())
        assert one.world.published == {1: [[0], [1]], 2: [[2], [3]], 3: [[4]]}
        assert sorted(path.name for path in (one.folder / ARCHIVE).iterdir()) == NAMES


def test_a_file_that_is_taken_in_part_stays(tmp_path: Path) -> None:
    frame = pl.DataFrame({"a": range(100)})
    frame.write_parquet(tmp_path / "a.parquet", row_group_size=10)
    cursor = files(tmp_path, max_rows_per_epoch=30, after="archive").cursor({}, set())
    cursor.look()
    left = []
    while (choice := cursor.choose(2e9, True)) is not None:
        cursor.release(choice.seen)
        left.append((tmp_path / "a.parquet").exists())
    assert left == [True, True, True, False]
    assert pl.read_parquet(tmp_path / ARCHIVE / "a.parquet").equals(frame)

"""The substitute for a memory sink when the flow runs in other processes: a folder with one Arrow
file per epoch.

Every replica publishes every epoch into it. The first file counts; the bytes are the same. The
memory sink in the process that started the replicas reads the folder. A file appears whole, with
all rows of its epoch.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from meander.clock import SystemClock
from meander.connect import arrow_ipc
from meander.connect.sink import Staged
from meander.durable import appear
from meander.errors import ConfigError
from meander.stored import stored

_NAME = re.compile(r"epoch-(\d+)\.arrow")


@stored("spool")
@dataclass(frozen=True)
class SpoolSink:
    """Counts as the memory sink that it stands in for: a run without replicas goes on with the same plan."""

    path: str
    stands_for: str = "memory"
    """The description of the sink that it replaces."""
    shows_table: bool = False

    @property
    def table_key(self) -> tuple[str, ...] | None:
        return None

    def encode(self, frame: pl.DataFrame) -> bytes:
        return arrow_ipc.encode(frame)

    def open(self) -> None:
        try:
            Path(self.path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"the rows of a memory sink cannot be put into {self.path} ({error.strerror})") from error

    def publish(self, epoch: int, files: list[Staged]) -> None:
        target = Path(self.path) / f"epoch-{epoch:010d}.arrow"
        if target.exists():
            return
        frame = arrow_ipc.gather(files)
        if frame is None:
            return
        appear(target, arrow_ipc.encode(frame), Path(self.path) / ".meander", SystemClock())

    def describe(self) -> str:
        return self.stands_for

    def canonical(self) -> str:
        return self.describe()

    def place(self) -> str:
        return self.describe()


def read_spool(folder: Path, known: set[int]) -> dict[int, pl.DataFrame]:
    """The epochs in a folder beside those that are known."""
    found = {}
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            match = _NAME.fullmatch(entry.name)
            if match is not None and int(match.group(1)) not in known:
                found[int(match.group(1))] = arrow_ipc.decode(Path(entry.path).read_bytes())
    return found


def empty_spool(folder: Path) -> None:
    """Forget what an earlier run has left."""
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            if entry.is_file():
                os.unlink(entry.path)

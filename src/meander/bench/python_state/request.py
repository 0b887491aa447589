"""The request to a measuring process in the benchmark of Python state, and the input that all
systems read."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from meander.bench.harness.statistics import Json

PARTS = 2
"""Files of a batch. All rows of a key are in the same one, so that every system meets them in the same order."""
_FIRST_MTIME = 1_704_067_200


@dataclass(frozen=True)
class PythonStateRequest:
    """One system over the first files of a folder."""

    work: ClassVar[str] = "python-state"
    system: str
    input: str
    files_per_epoch: int
    epochs: int
    folder: str
    master: str
    parallelism: int
    memory: str
    settings: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def from_json(fields: Json) -> PythonStateRequest:
        return PythonStateRequest(**fields)


def write_events(folder: Path, files: int, events: int, keys: int, seed: int) -> None:
    """``files`` files of ``events`` events: keys all alike, values between 0 and 1. Modification times are a second apart."""
    folder.mkdir(parents=True)
    for number in range(files):
        draw = np.random.default_rng([seed, number])
        key = draw.integers(0, max(1, keys // PARTS), events) * PARTS + number % PARTS
        path = folder / f"{number:06d}.parquet"
        pq.write_table(pa.table({"key": key.astype(np.int64), "value": draw.random(events)}), path)
        os.utime(path, (_FIRST_MTIME + number, _FIRST_MTIME + number))

"""The request to a measuring process in the benchmark of long spans, the input that all systems
read, and the record of epochs.

The input is made of *visits*: four rows of one key within four seconds, inside one piece of ten seconds. An epoch has as many visits
whatever it spans, each of a key of its own, at random places of the span and in random order. So the touched keys, the windows, the
sessions, the pairs and the timers of an epoch are as many for a minute as for a year, and so are the rows that come out.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from meander.bench.harness.statistics import Json

SPANS = {"minute": 60, "hour": 3_600, "day": 86_400, "30d": 30 * 86_400, "year": 365 * 86_400}
"""How much event time the rows of one epoch span, in seconds."""
OPERATORS = ("tumbling", "sliding", "session", "join", "as-of", "deduplicate", "timers")
TWO_SIDES = ("join", "as-of")
"""Operators whose input is two streams: the first and third row of a visit on the left, the others on the right."""
WITHOUT_PEER = ("as-of",)
"""Operators over two streams that Spark does not have."""

WINDOW, SLIDE, GAP, WITHIN, GRACE = 10, 5, 30, 5, 10
"""Seconds: of a window, between sliding windows, that end a session, between the rows of a pair, and of being out of order."""
ROWS_PER_VISIT = 4
CLOSING_EPOCHS = 2
"""Epochs of one row each that move the watermark past all that is measured. Their keys are below 0 and are not compared."""
_POPULATIONS = 3
"""A key comes back so many epochs later: also where an epoch spans a minute, what it left behind is over by then."""
_START = 1_704_067_200
_SECOND = 1_000_000

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BackfillRequest:
    """One operator of one system over input of one span."""

    work: ClassVar[str] = "backfill"
    system: str
    operator: str
    input: str
    epochs: int
    """Epochs with visits; the closing ones come on top."""
    folder: str
    master: str
    parallelism: int
    memory: str
    settings: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def from_json(fields: Json) -> BackfillRequest:
        return BackfillRequest(**fields)

    @property
    def sides(self) -> list[str]:
        """The folders of input, one per source."""
        return [str(Path(self.input) / side) for side in (("left", "right") if self.operator in TWO_SIDES else ("all",))]

    @property
    def output(self) -> str:
        return str(Path(self.folder) / "out")


class Record:
    """The record of epochs, on disk as soon as they end: it shows how far a run came when its time
    was over."""

    def __init__(self, folder: str | Path) -> None:
        self._path = Path(folder) / "epochs.jsonl"

    def begin(self) -> None:
        """Begin the record: the system is up, and its work follows."""
        self._path.write_text(json.dumps({"began": time.time()}) + "\n")

    def add(self, epoch: Json) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(epoch) + "\n")

    def read(self) -> tuple[float | None, list[Json]]:
        """When work began (None: it did not) and the epochs that ended. A line that was cut short by the end is none."""
        lines = self._path.read_text().split("\n")[:-1] if self._path.exists() else []
        if not lines:
            return None, []
        return json.loads(lines[0])["began"], [json.loads(line) for line in lines[1:]]


def write_visits(folder: Path, span: int, epochs: int, rows: int, seed: int) -> None:
    """Every row in ``all``, and the same rows divided into ``left`` and ``right``: a file per epoch in each."""
    for side in ("all", "left", "right"):
        (folder / side).mkdir(parents=True)
    for number in range(epochs):
        draw = np.random.default_rng([seed, span, number])
        visits = rows // ROWS_PER_VISIT
        visit = np.repeat(np.arange(visits), ROWS_PER_VISIT)
        nth = np.tile(np.arange(ROWS_PER_VISIT), visits)
        first = _START + number * span + draw.integers(0, span // WINDOW, visits) * WINDOW
        order = draw.permutation(rows)
        _write(
            folder,
            number,
            key=(visit + visits * (number % _POPULATIONS))[order],
            id=(visit + visits * number)[order],
            seq=(np.arange(rows) + rows * number)[order],
            nth=nth[order],
            seconds=(first[visit] + nth)[order],
            value=(draw.integers(0, 4_000, rows) * 0.25).astype(np.float64),  # exact in binary: sums are equal in any order
        )
    for closing in range(1, CLOSING_EPOCHS + 1):
        _write(
            folder,
            epochs + closing - 1,
            key=np.array([-2 * closing, -2 * closing - 1]),
            id=np.array([-2 * closing, -2 * closing - 1]),
            seq=np.array([-2 * closing, -2 * closing - 1]),
            nth=np.array([0, 1]),
            seconds=np.full(2, _START + epochs * span + closing * 86_400),
            value=np.zeros(2),
        )


def _write(
    folder: Path, number: int, *, key: Longs, id: Longs, seq: Longs, nth: Longs, seconds: Longs, value: npt.NDArray[np.float64]
) -> None:
    table = pa.table(
        {
            "key": key.astype(np.int64),
            "id": id.astype(np.int64),
            "seq": seq.astype(np.int64),
            "value": value,
            "ts": pa.array(seconds.astype(np.int64) * _SECOND, pa.timestamp("us")),
        }
    )
    for side, mine in (("all", nth >= 0), ("left", nth % 2 == 0), ("right", nth % 2 == 1)):
        path = folder / side / f"{number:06d}.parquet"
        pq.write_table(table.filter(pa.array(mine)), path)
        os.utime(path, (_START + number, _START + number))

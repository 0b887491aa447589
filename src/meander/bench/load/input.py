"""The benchmarks' input: Parquet files of (key int64, value float64), written once and read by every system.

Deterministic by seed. A system takes ``files_per_epoch`` files per epoch, in the order of their modification times, which are set
one second apart and in the past: so Meander and Spark take the same events in the same epochs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

_FIRST_MTIME = 1_704_067_200  # 2024-01-01

Keys = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Phase:
    """A stretch of epochs of one size: ``events`` in all, over ``keys`` keys.

    Keys are all alike (``skew`` 0), follow Zipf's law, or with ``once`` each come exactly once, in a random order.
    """

    epochs: int
    events: int
    keys: int
    skew: float = 0.0
    once: bool = False


@dataclass(frozen=True)
class Input:
    """A folder of input, with the right count and sum over it."""

    folder: str
    epochs: int
    files_per_epoch: int
    events: int
    keys: int
    total: float


def write_input(folder: Path, phases: Sequence[Phase], files_per_epoch: int = 2, seed: int = 0) -> Input:
    """Write the files of all phases, one after the other."""
    folder.mkdir(parents=True)
    seen = np.zeros(max(phase.keys for phase in phases), np.bool_)
    number, events, total = 0, 0, 0.0
    for which, phase in enumerate(phases):
        shuffled = np.random.default_rng([seed, which]).permutation(phase.keys) if phase.once else None
        steps = zipf_steps(phase.keys, phase.skew) if phase.skew else None
        files = phase.epochs * files_per_epoch
        for file in range(files):
            begin, end = (phase.events * i // files for i in (file, file + 1))
            draw = np.random.default_rng([seed, which, file])
            if shuffled is not None:
                keys = shuffled[begin:end]
            elif steps is not None:
                keys = np.searchsorted(steps, draw.random(end - begin), side="right").astype(np.int64)
            else:
                keys = draw.integers(0, phase.keys, end - begin)
            values = draw.random(end - begin)
            _write(folder / f"{number:06d}.parquet", keys, values, _FIRST_MTIME + number)
            seen[keys] = True
            number, events, total = number + 1, events + len(keys), total + float(values.sum())
    return Input(str(folder), sum(phase.epochs for phase in phases), files_per_epoch, events, int(seen.sum()), total)


def zipf_steps(keys: int, skew: float) -> npt.NDArray[np.float64]:
    """Zipf's law as a distribution function: key k comes up where a uniform number falls below step k.

    >>> zipf_steps(2, 1.0).round(3).tolist()
    [0.667, 1.0]
    """
    weights = np.arange(1, keys + 1, dtype=np.float64) ** -skew
    steps = np.cumsum(weights)
    steps /= steps[-1]
    return steps


def _write(path: Path, keys: Keys, values: npt.NDArray[np.float64], mtime: int) -> None:
    pq.write_table(pa.table({"key": keys, "value": values}), path)
    os.utime(path, (mtime, mtime))

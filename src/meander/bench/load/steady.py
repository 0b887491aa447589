"""A steady input for any system that reads files, and a record of the moments at which its output
appears; disturbances are measured with both.

Events are written in small Parquet files that appear by renaming, ``EVERY`` seconds of them in
each; an event's ``born`` is the moment at which it was due. A system counts events per key, and
gives out for every key that has changed its count ``n`` and its newest ``born``, in files with
numbers in their names. So the output alone shows when it appeared, which events it has, and whether
any are missing or doubled.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from meander.bench.harness.latency import Published
from meander.bench.harness.statistics import Json

EVERY = 0.1
SCHEMA = {"key": "bigint", "born": "double"}
_POLL = 0.002


class Feed:
    """Writes events at a steady rate until it is stopped."""

    def __init__(self, folder: Path, rate: float, keys: int, seed: int = 0, text: bool = False) -> None:
        """``text``: with a column of that name, which is empty."""
        self._text = text
        self.folder, self._rate, self._keys, self._seed = folder, rate, keys, seed
        self.counts = np.zeros(keys, np.int64)
        """How many events there were of each key."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write, name="feed", daemon=True)
        folder.mkdir(parents=True)

    @property
    def events(self) -> int:
        return int(self.counts.sum())

    def start(self) -> Feed:
        self._began = time.time()
        self._thread.start()
        return self

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _write(self) -> None:
        number, per_file = 0, max(1, round(self._rate * EVERY))
        while not self._over.is_set():
            due = self._began + (number + 1) * EVERY
            if self._over.wait(max(0.0, due - time.time())):
                return
            key = np.random.default_rng([self._seed, number]).integers(0, self._keys, per_file)
            born = due - EVERY + np.arange(1, per_file + 1) * (EVERY / per_file)
            hidden = self.folder / f".{number:08d}.tmp"
            pq.write_table(pa.table({"key": key, "born": born, **({"text": [""] * per_file} if self._text else {})}), hidden)
            np.add.at(self.counts, key, 1)
            os.replace(hidden, self.folder / f"{number:08d}.parquet")
            number += 1


def meander_names(slots: int) -> Callable[[int], list[str]]:
    """The files of one epoch, of which some are there."""
    return lambda epoch: [f"part-{epoch:010d}-{slot:04d}.parquet" for slot in range(slots)]


def batch_name(number: int) -> str:
    return f"batch-{number:010d}.parquet"


def saver(folder: Path) -> Callable[[Any, int], None]:
    """The function for a peer's ``foreachBatch``: it writes a batch whole or not at all, and under
    the same name after a restart."""
    folder.mkdir(parents=True, exist_ok=True)

    def save(batch: Any, number: int) -> None:
        rows = batch.toArrow()  # also of one that is there: Spark's state must hear of it, or its query fails
        if not (folder / batch_name(number)).exists():
            hidden = folder / f".{batch_name(number)}"
            pq.write_table(rows, hidden)
            os.replace(hidden, folder / batch_name(number))

    return save


class Sight:
    """Watches a folder for the next epoch's files: when each epoch appeared. Looks for names, so that it costs the same for ever."""

    def __init__(self, folder: Path, names: Callable[[int], list[str]], first: int) -> None:
        self._folder, self._names, self._next = folder, names, first
        self.seen: dict[int, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sight", daemon=True)

    def start(self) -> Sight:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        self._look()

    def last(self) -> float:
        """When something appeared last; 0 where nothing has."""
        return self.seen[self._next - 1] if self.seen else 0.0

    def _watch(self) -> None:
        while not self._over.wait(_POLL):
            self._look()

    def _look(self) -> None:
        while self._there(self._next) or self._there(self._next + 1):
            self.seen[self._next] = time.time()
            self._next += 1

    def _there(self, epoch: int) -> bool:
        return any((self._folder / name).exists() for name in self._names(epoch))

    def published(self) -> list[Published]:
        """The files that appeared, in order, with the events in them. Raises if a file was not seen
        when it appeared, since its moment is then unknown."""
        found = []
        names = {name for epoch in self.seen for name in self._names(epoch)}
        unseen = [file.name for file in visible(self._folder) if file.name not in names]
        if unseen:
            raise RuntimeError(f"{len(unseen)} files of the output were not seen when they appeared, such as {unseen[0]}")
        for epoch, at in sorted(self.seen.items()):
            frames = [pl.read_parquet(self._folder / name, columns=["born"]) for name in self._files(epoch)]
            born = pl.concat(frames).get_column("born") if frames else pl.Series("born", [], pl.Float64)
            if len(born):
                first, last = born.min(), born.max()
                assert isinstance(first, float)
                assert isinstance(last, float)
                found.append(Published(at, len(born), first, last))
        return found

    def _files(self, epoch: int) -> list[str]:
        return [name for name in self._names(epoch) if (self._folder / name).exists()]


def drained(sight: Sight, feed: Feed, folder: Path, patience: float) -> Json:
    """Wait until the output has all events: the numbers of missing events and of doubled ones."""
    deadline = time.monotonic() + patience
    while True:
        found = account(visible(folder), feed.counts)
        if not found["lost"] or time.monotonic() > deadline:
            return found
        time.sleep(0.5)


def visible(folder: Path) -> list[Path]:
    """The finished output files in a folder."""
    return sorted(file for file in folder.glob("*.parquet") if not file.name.startswith("."))


def account(files: Sequence[Path], counts: np.ndarray) -> Json:
    """Check the output against the events: each key's counts must run from 1 to the number of its
    events, without repetition."""
    frames = []
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            frames.append(pl.read_parquet(file, columns=["key", "n"]))
    rows = pl.concat(frames) if frames else pl.DataFrame(schema={"key": pl.Int64, "n": pl.Int64})
    reached = np.zeros(len(counts), np.int64)
    last = rows.group_by("key").agg(pl.col("n").max())
    reached[last.get_column("key").to_numpy()] = last.get_column("n").to_numpy()
    twice = rows.height - rows.unique().height
    return {"lost": int(np.maximum(counts - reached, 0).sum()), "doubled": int(np.maximum(reached - counts, 0).sum()) + twice}


def timeline(epochs: Sequence[Published]) -> list[list[float]]:
    """Per output: when, and how old its oldest and newest events were.

    >>> timeline([Published(10.0, 2, 9.0, 9.5), Published(11.0, 2, 9.5, 10.0)])
    [[0.0, 1.0, 0.5], [1.0, 1.5, 1.0]]
    """
    return [[round(e.end - epochs[0].end, 3), round(e.end - e.first, 3), round(e.end - e.last, 3)] for e in epochs]

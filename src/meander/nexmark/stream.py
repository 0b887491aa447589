"""The Nexmark stream as a Meander source, and as Parquet files.

Sources of one stream stay together: limits, rate and offsets count the events of the whole stream, whichever entity a source gives.
So a flow with a source of auctions and one of bids takes the same stretch of the stream from both in every epoch.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from meander.connect.generator import SPLIT_ROWS, GeneratorCursor, Piece, cut_evenly
from meander.connect.source import Batch
from meander.errors import ConfigError
from meander.flow import Stream
from meander.nexmark.arrival import Arrival
from meander.nexmark.entities import COLUMNS, EVENT_COLUMNS, Rows
from meander.nexmark.workload import ENTITIES, Workload
from meander.stored import stored

_DEFAULT_ROWS_PER_EPOCH = 1_000_000
_FIRST_MTIME = 1_704_067_200  # 2024-01-01: files are taken in the order of their times, which are in the past and a second apart


@stored("nexmark")
@dataclass(frozen=True)
class NexmarkSource:
    """The rows of one entity, or all events (``entity`` None), of the first ``events`` events of a stream."""

    entity: str | None
    events: int | None
    rate: float | None
    partitions: int
    seed: int
    max_rows_per_epoch: int
    workload: Workload
    split_rows: int = SPLIT_ROWS

    def schema(self) -> pl.Schema:
        return pl.Schema(EVENT_COLUMNS if self.entity is None else COLUMNS[self.entity])

    def cursor(self, offset: dict[str, Any], seen: set[str], throttle: float = 1.0) -> GeneratorCursor:
        return GeneratorCursor(self, offset.get("t0"), offset.get("taken", 0), throttle)

    def cut(self, partition: int, first: int, last: int) -> list[Piece]:
        arrival, width = self._arrival(partition), self._row_bytes()
        pieces = []
        for start, stop in cut_evenly(arrival.rows_before(first), arrival.rows_before(last), self.split_rows):
            due = (arrival.due(start), arrival.due(stop - 1))
            pieces.append(Piece(partition, start, stop - start, (stop - start) * width, due))
        return pieces

    def read(self, payload: dict[str, Any]) -> Batch:
        number = self._arrival(payload["partition"]).numbers(payload["start"], payload["count"])
        return Batch(Rows(self.seed, self.workload).of(self.entity, number))

    def describe(self) -> str:
        count = "endless" if self.events is None else f"{self.events} events"
        rate = "" if self.rate is None else f", {self.rate:g}/s"
        own = self.workload.describe()
        return f"nexmark {self.entity or 'events'}, {count}{rate}, seed {self.seed}, partitions {self.partitions}{', ' if own else ''}{own}"

    def canonical(self) -> str:
        return self.describe()

    def _arrival(self, partition: int) -> Arrival:
        return Arrival(self.workload, self.seed, self.entity, self.partitions, partition, self.events)

    def _row_bytes(self) -> int:
        load = self.workload
        sizes = {"person": load.person_bytes, "auction": load.auction_bytes, "bid": load.bid_bytes}
        if self.entity is not None:
            return max(1, sizes[self.entity])
        return max(1, (load.persons * load.person_bytes + load.auctions * load.auction_bytes + load.bids * load.bid_bytes) // load.cycle)


def source(
    entity: str | None = None,
    events: int | None = None,
    rate: float | None = None,
    partitions: int = 1,
    seed: int = 0,
    max_rows_per_epoch: int | None = None,
    workload: Workload | None = None,
) -> NexmarkSource:
    """Nexmark's events as a source: those of one ``entity`` ("person", "auction" or "bid"), or all of them in one table.

    ``events`` is how many the whole stream has (None: without end), ``rate`` how many of them become available per second (None: all at
    once), ``max_rows_per_epoch`` how many of them an epoch takes at most; all three count events of the whole stream, of which 92 in 100
    are bids. Event time does not depend on ``rate``: it is the workload's. Sources of one stream differ in their entity alone.

    >>> source("bid", events=1000).describe()
    'nexmark bid, 1000 events, seed 0, partitions 1'
    """
    if entity is not None and entity not in ENTITIES:
        raise ConfigError(f"nexmark.source({entity!r}): there are {', '.join(ENTITIES)}, and None for all events in one table")
    limit = _DEFAULT_ROWS_PER_EPOCH if max_rows_per_epoch is None else max_rows_per_epoch
    for name, value, least in (("events", events, 0), ("partitions", partitions, 1), ("max_rows_per_epoch", limit, 1)):
        if value is not None and value < least:
            raise ConfigError(f"nexmark.source({name}={value}): must be at least {least}")
    if rate is not None and not (rate > 0 and math.isfinite(rate)):
        raise ConfigError(f"nexmark.source(rate={rate}): must be a number of events per second above 0, or None for no limit")
    return NexmarkSource(entity, events, None if rate is None else float(rate), partitions, seed, limit, workload or Workload())


def sources(entities: Sequence[str] = ENTITIES, **options: Any) -> dict[str, NexmarkSource]:
    """One source per entity of the same stream; options are those of ``source``."""
    return {entity: source(entity, **options) for entity in entities}


def only(events: Stream, entity: str, name: str | None = None) -> Stream:
    """The rows of one entity out of a stream of all events, with that entity's columns."""
    if entity not in ENTITIES:
        raise ConfigError(f"nexmark.only({entity!r}): there are {', '.join(ENTITIES)}")
    chosen = events.filter(pl.col("event_type") == ENTITIES.index(entity), name=f"{name or entity}_events")
    return chosen.select(*(pl.col(entity).struct.field(column) for column in COLUMNS[entity]), name=name or entity)


def write_files(
    folder: str | os.PathLike[str], events: int, events_per_file: int = 1_000_000, seed: int = 0, workload: Workload | None = None
) -> dict[str, Path]:
    """The stream as Parquet files, in one folder per entity; returns the folders.

    The n-th file of each folder holds the same stretch of the stream, in order of arrival: with ``max_files_per_epoch`` set alike,
    ``md.files`` over the three folders takes the same events in the same epochs as ``source`` with ``max_rows_per_epoch``.
    """
    folders = {entity: Path(folder) / entity for entity in ENTITIES}
    if events < 1 or events_per_file < 1:
        raise ConfigError(f"write_files(events={events}, events_per_file={events_per_file}): must be at least 1")
    for entity, place in folders.items():
        place.mkdir(parents=True, exist_ok=True)
        if any(place.glob("*.parquet")):
            raise ConfigError(f"write_files({os.fspath(folder)!r}): there are files in {place} already; give an empty folder")
        stream = source(entity, events, seed=seed, max_rows_per_epoch=events_per_file, workload=workload)
        cursor = stream.cursor({}, set())
        number = 0
        while (choice := cursor.choose(0.0, True)) is not None:
            frames = [stream.read(split.payload).frame for split in choice.splits]
            target = place / f"{number:05d}.parquet"
            # Under a name that readers ignore until it is whole.
            hidden = target.with_name(f".{target.name}")
            (pl.concat(frames) if frames else stream.schema().to_frame()).write_parquet(hidden)
            os.utime(hidden, (_FIRST_MTIME + number, _FIRST_MTIME + number))
            hidden.rename(target)
            number += 1
    return folders

"""The flow of a simulation: scripted sources, a sink into a world that remembers, a runner and a compactor without processes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from tests.simulation.disk import Ledger, View

from meander import aggregates
from meander.clock import Clock
from meander.connect.sink import Staged
from meander.connect.source import Batch, Choice, Split
from meander.coordinate.routing import groups_of, slots_of
from meander.epochs.compaction import apart, due_merges, finished_merge
from meander.epochs.decision import Decision, Outcome
from meander.errors import Corrupted, Retryable
from meander.state.compaction import Merge, run_merge
from meander.state.grouping import fold_rows, group_rows
from meander.state.hashing import hash_keys, key_groups_of
from meander.state.manifest import Json, Manifest
from meander.state.segment import Segment, SegmentRef, encode_segment, ends_of
from meander.state.table import upsert

OPERATOR, SINK = "totals", "out"
KEYS = 7
SCHEMA = pl.Schema({"key": pl.Int64(), "value": pl.Int64()})
STATES = {f"{agg.name}.{part}": spec for agg in (aggregates.count(), aggregates.sum("value")) for part, spec in agg.parts(SCHEMA).items()}
FILE_ROWS = 2


def row(source: str, index: int) -> tuple[int, int]:
    """A source's row number ``index``: the same for ever."""
    word = (index * 2654435761 + len(source) * 40503) % 65536
    return word % KEYS, word // KEYS


def rows_of(source: str, payload: Json) -> list[tuple[int, int]]:
    return [row(source, index) for index in range(payload["start"], payload["end"])]


class Counted:
    """A source with an offset, like a generator or a Kafka partition."""

    def __init__(self, name: str, size: int, rng: random.Random, flaky: float) -> None:
        self.name, self.size, self.rng, self.flaky = name, size, rng, flaky

    def schema(self) -> pl.Schema:
        return SCHEMA

    def cursor(self, offset: Json, seen: set[str], throttle: float = 1.0) -> CountedCursor:
        return CountedCursor(self, offset.get("next", 0))

    def read(self, payload: Json) -> Batch:
        return Batch(pl.DataFrame(rows_of(self.name, payload), SCHEMA, orient="row"))

    def describe(self) -> str:
        return self.name

    def canonical(self) -> str:
        return self.describe()


class CountedCursor:
    def __init__(self, source: Counted, place: int) -> None:
        self.source, self.place = source, place

    def choose(self, now: float, everything: bool) -> Choice | None:
        source = self.source
        if source.rng.random() < source.flaky:
            raise Retryable(f"simulated: source {source.name} does not answer")
        sizes = [source.rng.randrange(1, 4) for _ in range(source.rng.choice((0, 1, 2, 2)))]
        splits = []
        for size in sizes:
            end = min(self.place + size, source.size)
            if end > self.place:
                splits.append(Split({"start": self.place, "end": end}, end - self.place, 0))
                self.place = end
        return Choice(tuple(splits), {"next": self.place}) if splits else None

    def finished(self) -> bool:
        return self.place >= self.source.size

    def waiting(self, now: float) -> int:
        return 0

    def slow_down(self, share: float) -> None:
        pass

    def look(self) -> None:
        pass

    def release(self, names: Sequence[str]) -> None:
        pass

    def close(self) -> None:
        pass

    def backlog(self, now: float) -> bool:
        return not self.finished()


class Named(Counted):
    """A source that remembers names, and puts away what they name when nobody needs it any more, like files."""

    def __init__(self, name: str, size: int, rng: random.Random, flaky: float, world: World, view: View) -> None:
        super().__init__(name, size, rng, flaky)
        self.world, self.view = world, view

    def cursor(self, offset: Json, seen: set[str], throttle: float = 1.0) -> NamedCursor:  # type: ignore[override]
        return NamedCursor(self, set(seen))


class NamedCursor:
    def __init__(self, source: Named, seen: set[str]) -> None:
        self.source, self.seen = source, seen

    def _new(self) -> list[int]:
        return [number for number in range(self.source.size // FILE_ROWS) if f"file-{number}" not in self.seen]

    def choose(self, now: float, everything: bool) -> Choice | None:
        source = self.source
        if source.rng.random() < source.flaky:
            raise Retryable(f"simulated: source {source.name} does not answer")
        taken = self._new()[: source.rng.randrange(0, 3)]
        names = tuple(f"file-{number}" for number in taken)
        self.seen.update(names)
        splits = tuple(Split({"start": n * FILE_ROWS, "end": (n + 1) * FILE_ROWS}, FILE_ROWS, 0) for n in taken)
        return Choice(splits, {}, names) if splits else None

    def finished(self) -> bool:
        return not self._new()

    def waiting(self, now: float) -> int:
        return 0

    def slow_down(self, share: float) -> None:
        pass

    def look(self) -> None:
        pass

    def release(self, names: Sequence[str]) -> None:
        self.source.view.act(lambda: self.source.world.release(names))

    def close(self) -> None:
        pass

    def backlog(self, now: float) -> bool:
        return not self.finished()


class World:
    """What the outside has seen, whoever dies. An epoch once published never changes, and none is published out of turn."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.published: dict[int, list[list[int]]] = {}
        self.released: set[str] = set()

    def release(self, names: Sequence[str]) -> None:
        newest = max(self.published, default=0)
        early = set(names) - self.ledger.names[newest]
        assert not early, f"{sorted(early)} put away before their epoch was published; the last published is {newest}"
        self.released.update(names)

    def publish(self, epoch: int, rows: list[list[int]]) -> None:
        if epoch in self.published:
            assert self.published[epoch] == rows, f"epoch {epoch} was published again with other rows"
            return
        newest = max(self.published, default=0)
        assert epoch == newest + 1, f"epoch {epoch} published after epoch {newest}"
        assert epoch <= self.ledger.manifest.epoch, f"epoch {epoch} published before its commit"
        self.published[epoch] = rows
        self.ledger.published.add(epoch)


class WorldSink:
    """One driver's way to the world; it can fail and die there as with the store."""

    def __init__(self, world: World, view: View) -> None:
        self.world, self.view = world, view

    def encode(self, frame: pl.DataFrame) -> bytes:
        return json.dumps(frame.rows()).encode()

    def open(self) -> None:
        pass

    def publish(self, epoch: int, files: list[Staged]) -> None:
        rows = sorted(row for file in files for row in json.loads(file.get()))
        self.view.act(lambda: self.world.publish(epoch, rows))

    def describe(self) -> str:
        return "world"

    def canonical(self) -> str:
        return self.describe()


class SimulatedRunner:
    """Epochs computed in place, by the real state layer. Attempts fail half-way and leave their files behind."""

    def __init__(self, view: View, clock: Clock, generation: int, rng: random.Random, flaky: float) -> None:
        self.view, self.clock, self.generation, self.rng, self.flaky = view, clock, generation, rng, flaky

    def prepare(self, decision: Decision, routing: dict[str, list[int]]) -> Any:
        self._maybe_fail("prepare")
        return decision.epoch

    def begin(self, decision: Decision, manifest: Manifest, routing: dict[str, list[int]], prepared: Any) -> Callable[[], Outcome]:
        assert prepared in (None, decision.epoch), "work begun for another epoch"
        assert decision.epoch == manifest.epoch + 1, "an epoch begins on the state of the one before it"
        self._maybe_fail("begin")
        return lambda: self._run(decision, manifest, routing[OPERATOR])

    def settle(self) -> None:
        pass

    def recover(self) -> None:
        pass

    def discard(self, prepared: Any) -> None:
        pass

    def _open(self, ref: SegmentRef, _: Any) -> Segment:
        return open_segment(self.view, ref.name)

    def _maybe_fail(self, where: str) -> None:
        if self.flaky and self.rng.random() < self.flaky:
            raise Retryable(f"simulated: {where} failed")

    def _run(self, decision: Decision, manifest: Manifest, routing: list[int]) -> Outcome:
        rows = [r for source, split in decision.splits for r in rows_of(source, split.payload)]
        frame = pl.DataFrame(rows, SCHEMA, orient="row")
        hashes = hash_keys(frame.get_column("key").to_frame())
        slot_of_row = np.array(routing)[key_groups_of(hashes, manifest.key_groups)]
        segments, staged = [], []
        for slot in range(slots_of(routing)):
            mine = np.flatnonzero(slot_of_row == slot)
            if len(mine) == 0:
                continue
            self._maybe_fail(f"slot {slot}")
            mask = groups_of(routing, slot)
            part = frame if len(mine) == len(rows) else frame[mine]
            keys = part.get_column("key").to_frame()
            groups = group_rows(keys, hashes[mine])
            states = fold_rows(part, groups, STATES)
            alive = manifest.tables[OPERATOR].alive_for(mask) if OPERATOR in manifest.tables else ()
            table = upsert(
                alive,
                self._open,
                keys[groups.heads],
                groups.hashes,
                states,
                STATES,
                manifest.key_groups,
            )
            stem = f"{self.generation:08d}-{decision.epoch:010d}-{slot:04d}-{self.clock.new_id()}"
            data = encode_segment(table)
            self.view.put(f"segments/{OPERATOR}/{stem}.arrow", data)
            segments.append(SegmentRef(f"segments/{OPERATOR}/{stem}.arrow", table.height, data.size, decision.epoch, mask).to_json())
            changed = list(zip(*(table.get_column(name) for name in ("key", *STATES)), strict=True))
            self.view.put(f"staged/{SINK}/{stem}", json.dumps(changed).encode())
            staged.append({"name": f"staged/{SINK}/{stem}", "slot": slot, "rows": table.height})
        self._maybe_fail("the last task")
        return Outcome({OPERATOR: segments}, {SINK: staged}, {"rows_in": len(rows)}, {})


class SimulatedCompactor:
    """Real choices and real merges, done some time after they were chosen."""

    def __init__(self, view: View, clock: Clock, manifest: Manifest, rng: random.Random) -> None:
        self.view, self.clock, self.rng = view, clock, rng
        self.generation, self.key_groups = manifest.generation, manifest.key_groups
        self.under_way: list[tuple[Merge, str]] = []

    def consider(self, manifest: Manifest, routing: Mapping[str, list[int]], slots: Mapping[str, int]) -> None:
        busy = [ref.name for other, _ in self.under_way for ref in other.inputs]
        for merge, _, _ in apart(due_merges(manifest, routing, slots), busy):
            stem = f"{self.generation:08d}-{manifest.epoch:010d}-merge-{self.clock.new_id()}"
            self.under_way.append((merge, f"segments/{merge.table}/{stem}.arrow"))

    def collect(self) -> Json | None:
        if not self.under_way or self.rng.random() < 0.4:
            return None
        merge, name = self.under_way.pop(self.rng.randrange(len(self.under_way)))
        try:
            data, rows = run_merge(merge, lambda wanted: open_segment(self.view, wanted.name), self.key_groups)
            self.view.put(name, data)
        except Retryable:
            return None  # as the helper process: the merge is chosen again
        return finished_merge(merge, name, rows, data.size, ends_of(data))

    def close(self) -> None:
        pass


def open_segment(view: View, name: str) -> Segment:
    data = view.map(name)
    if data is None:
        raise Corrupted(f"segment '{name}' is not in the store")
    return Segment(name, data)

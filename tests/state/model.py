"""An upsert table beside a plain dict: the same operations on both, and what is compared."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl
from tests.entries import epoch_entry
from tests.memory_store import MemoryStore

from meander import aggregates
from meander.coordinate.routing import groups_of, rebalance, slots_of, spread
from meander.epochs.compaction import finished_merge, merge_entry
from meander.state.compaction import Merge, choose_merge, run_merge
from meander.state.grouping import fold_rows, group_rows
from meander.state.hashing import Hashes, hash_keys, key_groups_of
from meander.state.manifest import Json, Manifest
from meander.state.reading import read_rows
from meander.state.segment import DELETED, HASH, Segment, SegmentRef, encode_batch, encode_segment, rows_of_hashes
from meander.state.table import find, upsert

KEY_GROUPS = 8
NAN = float("nan")
VALUES = pl.Schema({"value": pl.Float64(), "tag": pl.String()})
AGGREGATES = (aggregates.count(), aggregates.sum("value"), aggregates.max("value"), aggregates.last("tag"))
PARTS = {f"{agg.name}.{part}": spec for agg in AGGREGATES for part, spec in agg.parts(VALUES).items()}

KEY_POOLS: dict[str, tuple[pl.Schema, list[tuple[Any, ...]]]] = {
    "integers": (pl.Schema({"k": pl.Int64()}), [(0,), (1,), (-1,), (2**63 - 1,), (-(2**63),), (None,), (7,), (8,), (9,)]),
    "strings": (pl.Schema({"k": pl.String()}), [("",), ("a",), ("a\0",), ("żółw",), ("🦀" * 9,), ("x" * 300,), (None,), ("12345678",)]),
    "floats": (pl.Schema({"k": pl.Float64()}), [(0.0,), (-0.0,), (NAN,), (-NAN,), (1.5,), (-1.5,), (math.inf,), (None,)]),
    "several": (
        pl.Schema({"k": pl.Float64(), "name": pl.String(), "flag": pl.Boolean()}),
        [(f, n, b) for f in (0.0, -0.0, NAN, None) for n in ("", "b", None) for b in (True, None)],
    ),
}

Key = tuple[Any, ...]
Row = tuple[Key, float | None, str | None]


def canonical(key: Sequence[Any]) -> Key:
    """Keys that are one key look one way: NaN equals NaN, and 0.0 equals -0.0."""
    return tuple("NaN" if isinstance(v, float) and math.isnan(v) else v + 0.0 if isinstance(v, float) else v for v in key)


class Modelled:
    """One table under test. ``mask`` thins hashes out, so that many keys share one."""

    def __init__(self, keys: pl.Schema, mask: int = (1 << 64) - 1, block_rows: int = 2) -> None:
        self.keys, self.mask, self.block_rows = keys, np.uint64(mask), block_rows
        self.store = MemoryStore()
        self.manifest = Manifest(key_groups=KEY_GROUPS)
        self.routing = spread(KEY_GROUPS, 2)
        self.expected: dict[Key, tuple[int, float | None, float | None, str | None]] = {}
        self._written = self._opened = 0

    # -- operations -----------------------------------------------------------------------------------------------

    def upsert(self, rows: Sequence[Row]) -> None:
        """One epoch of rows."""
        frame = pl.DataFrame([(*key, value, tag) for key, value, tag in rows], {**self.keys, **VALUES}, orient="row")
        hashes = self.hash(frame.select(self.keys.names()))
        segments = []
        for slot, mine in self._slots(hashes):
            part, part_hashes = frame[mine], hashes[mine]
            keys = part.select(self.keys.names())
            groups = group_rows(keys, part_hashes)
            states = fold_rows(part, groups, PARTS)
            table = upsert(self._alive(slot), self.open_for, keys[groups.heads], groups.hashes, states, PARTS, KEY_GROUPS)
            segments.append(self._write(table, slot))
        self._append_epoch(segments)
        for key, value, tag in rows:
            self._fold(canonical(key), value, tag)

    def delete(self, keys: Iterable[Key]) -> None:
        """One epoch that deletes keys, as expiry will: a row that says so."""
        frame = pl.DataFrame(list(dict.fromkeys(map(canonical_for_frame, keys))), self.keys, orient="row")
        hashes = self.hash(frame)
        segments = []
        for slot, mine in self._slots(hashes):
            groups = group_rows(frame[mine], hashes[mine])
            rows = frame[mine][groups.heads]
            nothing = [pl.Series(name, [None] * rows.height, dtype=part.dtype) for name, part in PARTS.items()]
            gone = pl.Series(DELETED, [True] * rows.height)
            segments.append(self._write(pl.DataFrame([pl.Series(HASH, groups.hashes), *rows.get_columns(), *nothing, gone]), slot))
        self._append_epoch(segments)
        for key in frame.rows():
            self.expected.pop(canonical(key), None)

    def compact(self, slot: int, begin: int, count: int) -> None:
        """Merge any stretch of a slot's runs; segments of one sequence are one run."""
        groups = groups_of(self.routing, slot % slots_of(self.routing))
        alive = sorted(self._alive(slot % slots_of(self.routing)), key=lambda s: s.sequence)
        sequences = sorted({s.sequence for s in alive})
        begin %= max(1, len(sequences))
        inputs = tuple(s for s in alive if s.sequence in sequences[begin : begin + count])
        if inputs:
            self._merge(Merge("t", tuple(self.keys), inputs, groups, begin == 0))

    def compact_as_chosen(self) -> None:
        for slot in range(slots_of(self.routing)):
            merge = choose_merge("t", tuple(self.keys), self._alive(slot), groups_of(self.routing, slot))
            if merge is not None:
                self._merge(merge)

    def rescale(self, slots: int) -> None:
        self.routing = rebalance(self.routing, slots)

    def reopen(self) -> None:
        """A new process: all it knows is the manifest's JSON."""
        self.manifest = Manifest.from_json(json.loads(json.dumps(self.manifest.to_json())))

    # -- comparison -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """A full read and a lookup of every key of the pool both equal the dict."""
        if "t" not in self.manifest.tables:
            assert not self.expected
            return
        rows = read_rows(self.store, self.manifest.tables["t"], KEY_GROUPS).rows() if self.manifest.tables["t"].segments else []
        width = len(self.keys)
        found = {canonical(row[:width]): row[width:] for row in rows}
        assert len(found) == len(rows), "a key has two rows"
        assert found == self.expected

    def check_lookup(self, keys: Sequence[Key]) -> None:
        frame = pl.DataFrame(list(dict.fromkeys(map(canonical_for_frame, keys))), self.keys, orient="row")
        hashes = self.hash(frame)
        for slot, mine in self._slots(hashes):
            groups = group_rows(frame[mine], hashes[mine])
            wanted = frame[mine][groups.heads]
            which, columns = find(self._alive(slot), self.open_for, wanted, groups.hashes, KEY_GROUPS, list(PARTS))
            stored = list(zip(*(columns[name].to_list() for name in PARTS), strict=True)) if len(which) else []
            found = {canonical(wanted.row(int(i))): row for i, row in zip(which, stored, strict=True)}
            asked = {canonical(key) for key in wanted.rows()}
            assert found == {key: value for key, value in self.expected.items() if key in asked}

    # -- pieces ---------------------------------------------------------------------------------------------------

    def hash(self, keys: pl.DataFrame) -> Hashes:
        return hash_keys(keys) & self.mask

    def open(self, ref: SegmentRef) -> Segment:
        data = self.store.map(ref.name)
        assert data is not None
        return Segment(ref.name, data)

    def open_for(self, ref: SegmentRef, hashes: Hashes) -> Segment:
        """What a lookup may be given: the segment, or only its rows of the hashes that are asked for."""
        whole = self.open(ref)
        self._opened += 1
        if self._opened % 2:
            return whole
        rows = rows_of_hashes(whole, hashes)
        return Segment(ref.name, encode_segment(whole.frame()[:0]) if rows is None else encode_batch(rows))

    def _slots(self, hashes: Hashes) -> list[tuple[int, Any]]:
        owner = np.array(self.routing)[key_groups_of(hashes, KEY_GROUPS)]
        return [(slot, np.flatnonzero(owner == slot)) for slot in range(slots_of(self.routing)) if (owner == slot).any()]

    def _alive(self, slot: int) -> tuple[SegmentRef, ...]:
        table = self.manifest.tables.get("t")
        return table.alive_for(groups_of(self.routing, slot)) if table is not None else ()

    def _write(self, table: pl.DataFrame, slot: int) -> SegmentRef:
        self._written += 1
        data = encode_segment(table, self.block_rows)
        self.store.put(f"segments/t/{self._written}", data)
        groups = groups_of(self.routing, slot)
        return SegmentRef(f"segments/t/{self._written}", table.height, data.size, self.manifest.epoch + 1, groups)

    def _merge(self, merge: Merge) -> None:
        data, rows = run_merge(merge, self.open, KEY_GROUPS)
        self._written += 1
        self.store.put(f"segments/t/{self._written}", data)
        self._apply(merge_entry([finished_merge(merge, f"segments/t/{self._written}", rows, data.size)]))
        for name in set(self.store.objects) - self.manifest.segment_names():
            self.store.delete(name)  # nothing may need what the manifest does not name

    def _append_epoch(self, segments: list[SegmentRef]) -> None:
        tables = {"t": {"keys": tuple(self.keys), "segments": [s.to_json() for s in segments]}}
        self._apply(epoch_entry(self.manifest.epoch + 1, tables=tables, routing={"t": self.routing}))

    def _apply(self, entry: Json) -> None:
        self.manifest = self.manifest.apply({**entry, "generation": 1, "position": self.manifest.position + 1})

    def _fold(self, key: Key, value: float | None, tag: str | None) -> None:
        count, total, most, last = self.expected.get(key, (0, None, None, None))
        if value is not None:
            total, most = (total or 0.0) + value, value if most is None else max(most, value)
        self.expected[key] = (count + 1, total, most, last if tag is None else tag)


def canonical_for_frame(key: Key) -> Key:
    """Like canonical, but a value that a frame can hold; one NaN object, so that it is found in a dict."""
    return tuple(NAN if v == "NaN" else v for v in canonical(key))

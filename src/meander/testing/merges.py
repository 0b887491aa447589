"""Compaction without a helper: every merge that is due is done between two epochs."""

from __future__ import annotations

from typing import Any

from meander.epochs.compaction import due_merges, finished_merge
from meander.state.compaction import run_merge
from meander.state.manifest import Manifest
from meander.state.segment import Segment, SegmentRef, ends_of
from meander.state.stores.contract import Store


class MergeAtOnce:
    """Implements ``epochs.compaction.Compactor``."""

    def __init__(self, store: Store, key_groups: int) -> None:
        self._store, self._key_groups = store, key_groups
        self._done: list[Any] = []
        self._number = 0

    def consider(self, manifest: Manifest, routing: Any, slots: Any) -> None:
        merge = next((merge for merge, _, _ in due_merges(manifest, routing, slots)), None)
        if merge is None or self._done:
            return
        data, rows = run_merge(merge, self._open, self._key_groups)
        self._number += 1
        name = f"segments/{merge.table}/{manifest.generation:08d}-{manifest.epoch:010d}-merge-{self._number}x{manifest.position}.arrow"
        if rows:
            self._store.put(name, data)
        self._done.append(finished_merge(merge, name, rows, data.size, ends_of(data)))

    def collect(self) -> Any:
        return self._done.pop() if self._done else None

    @property
    def busy(self) -> bool:
        return bool(self._done)

    def close(self) -> None: ...

    def _open(self, ref: SegmentRef) -> Segment:
        data = self._store.map(ref.name)
        assert data is not None
        return Segment(ref.name, data)

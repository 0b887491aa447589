"""Compaction that lags: a merge is chosen after one epoch and is done many epochs later, whatever happened to the state meanwhile."""

from __future__ import annotations

import random
from typing import Any

from meander.epochs.compaction import apart, due_merges, finished_merge
from meander.state.compaction import run_merge
from meander.state.segment import Segment, SegmentRef, ends_of


class LaggingMerges:
    """What a helper process does, with a delay that is counted in looks at it."""

    def __init__(self, store: Any, key_groups: int, rng: random.Random, lag: int) -> None:
        self._store, self._key_groups, self._rng, self._lag = store, key_groups, rng, lag
        self._waiting: list[tuple[int, Any, int, int]] = []
        self._looks = self._number = 0

    @property
    def busy(self) -> bool:
        return bool(self._waiting)

    def consider(self, manifest: Any, routing: Any, slots: Any) -> None:
        taken = [ref.name for _, merge, _, _ in self._waiting for ref in merge.inputs]
        for merge, _, _ in apart(due_merges(manifest, routing, slots), taken):
            due = self._looks + self._rng.choice((self._lag, self._rng.randint(0, self._lag)))
            self._waiting.append((due, merge, manifest.generation, manifest.epoch))

    def collect(self) -> Any:
        self._looks += 1
        for number, (due, merge, generation, epoch) in enumerate(self._waiting):
            if due <= self._looks:
                del self._waiting[number]
                found = self._run(merge, generation, epoch)
                if found is not None:
                    return found
                return self.collect()
        return None

    def close(self) -> None: ...

    def _run(self, merge: Any, generation: int, epoch: int) -> Any:
        segments = {ref.name: self._store.shelf.map(ref.name) for ref in merge.inputs}
        if any(data is None for data in segments.values()):
            return None  # collected meanwhile: a helper would answer that it failed

        def opened(ref: SegmentRef) -> Segment:
            return Segment(ref.name, segments[ref.name])

        data, rows = run_merge(merge, opened, self._key_groups)
        self._number += 1
        actor = self._store.actor
        name = f"segments/{merge.table}/{generation:08d}-{epoch:010d}-merge-{actor.name}{actor.lives}x{self._number}.arrow"
        if rows:
            self._store.shelf.put(name, data)
        return finished_merge(merge, name, rows, data.size, ends_of(data))

"""Compaction where the segments are: each executor's steward merges those of its slots, out of its own cache and into it.

For stores that are no folder of the driver's machine: there a helper of the driver would read every segment back over the line. Where there
is no steward at all, the driver's helper merges as elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

from meander.clock import Clock
from meander.engine.compaction import ProcessCompactor, due_merges, merge_entry
from meander.engine.epoch import SparkRunner
from meander.engine.peers import Peer, Unreachable
from meander.state.compaction import Merge
from meander.state.manifest import Json, Manifest


class StewardCompactor:
    """One merge at a time per steward. An epoch does not wait for their answers: a steward that merges is slow to speak."""

    def __init__(
        self, runner: SparkRunner, otherwise: ProcessCompactor, clock: Clock, generation: int, calls: Executor | None = None
    ) -> None:
        self._runner, self._otherwise, self._clock, self._generation = runner, otherwise, clock, generation
        self._calls = calls or ThreadPoolExecutor(2, thread_name_prefix="meander-merges")
        self._asked: dict[str, Future[Any]] = {}
        """Per steward, what it has not answered yet, or what it has and nobody has looked at."""
        self._under_way: dict[str, tuple[Merge, str]] = {}
        """Per steward, its merge and the name that it writes."""
        self._finished: deque[Json] = deque()

    def consider(self, manifest: Manifest, routing: Mapping[str, list[int]], slots: Mapping[str, int]) -> None:
        if not self._runner.stewards:
            self._otherwise.consider(manifest, routing, slots)
        if self._otherwise.busy:
            return
        for merge, operator, slot in due_merges(manifest, routing, slots):
            # Two merges of one segment could overlap in key groups after a rescale, and give a row twice.
            busy = {ref.name for other, _ in self._under_way.values() for ref in other.inputs}
            busy |= {name for entry in self._finished for name in entry["inputs"]}
            address = self._runner.steward_of(operator, slot)
            if address is not None and address not in self._under_way and not busy & {ref.name for ref in merge.inputs}:
                self._begin(address, merge, manifest.epoch)

    def collect(self) -> Json | None:
        for address in list(self._under_way):
            try:
                done = self._heard(address)
            except Unreachable:  # gone, and its merge with it: chosen again
                del self._under_way[address]
                continue
            for _table, inputs, answer in done:
                self._take(address, inputs, answer)
        return self._finished.popleft() if self._finished else self._otherwise.collect()

    def _take(self, address: str, inputs: list[str], answer: Any) -> None:
        """A steward that could not be reached for a while may tell of a merge that was given up: that is not the present one."""
        merge, name = self._under_way.get(address, (None, ""))
        if merge is None or (answer[0] != name if answer is not None else inputs != [ref.name for ref in merge.inputs]):
            return
        del self._under_way[address]
        if answer is not None:
            self._runner.holds(name, address)
            self._finished.append(merge_entry(merge, *answer))

    @property
    def busy(self) -> bool:
        return bool(self._under_way or self._finished) or self._otherwise.busy

    def close(self) -> None:
        self._calls.shutdown(wait=False, cancel_futures=True)
        self._otherwise.close()

    def _heard(self, address: str) -> list[Any]:
        """The merges that a steward has told of by now. Asks it again once it has answered."""
        asked = self._asked.get(address)
        if asked is not None and not asked.done():
            return []
        self._asked.pop(address, None)
        heard = list((asked.result() if asked is not None else None) or [])
        if not heard:
            self._asked[address] = self._calls.submit(Peer.at(address, self._runner.secret).merged)
        return heard

    def _begin(self, address: str, merge: Merge, epoch: int) -> None:
        name = f"segments/{merge.table}/{self._generation:08d}-{epoch:010d}-merge-{self._clock.new_id()}.arrow"
        order = {
            "table": merge.table,
            "keys": merge.keys,
            "inputs": [ref.to_json() for ref in merge.inputs],
            "groups": f"{merge.groups:x}",
            "bottom": merge.bottom,
            "name": name,
            "holders": self._runner.holders(ref.name for ref in merge.inputs),
        }
        self._under_way[address] = (merge, name)
        self._asked[address] = self._calls.submit(lambda: Peer.at(address, self._runner.secret).merge(order))

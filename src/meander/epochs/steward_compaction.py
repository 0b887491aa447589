"""Compaction where the segments are: each executor's steward merges those of its slots, out of its own cache and into it.

For stores that are no folder of the driver's machine: there a helper of the driver would read every segment back over the line. Where there
is no steward at all, the driver's helper merges as elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from meander.cache.client import GENTLY, Peer, Unreachable
from meander.clock import Clock
from meander.coordinate.routing import groups_of
from meander.epochs.compaction import AT_ONCE, ProcessCompactor, apart, due_merges, finished_merge
from meander.epochs.runner import Cluster
from meander.state.compaction import Merge
from meander.state.manifest import Json, Manifest


@dataclass(frozen=True)
class _Ordered:
    """A merge that a steward does, and of which operator's state."""

    merge: Merge
    operator: str


class StewardCompactor:
    """A few merges at a time per steward. An epoch does not wait for their answers: a steward that merges is slow to speak."""

    def __init__(self, runner: Cluster, otherwise: ProcessCompactor, clock: Clock, generation: int, calls: Executor | None = None) -> None:
        self._runner, self._otherwise, self._clock, self._generation = runner, otherwise, clock, generation
        self._calls = calls or ThreadPoolExecutor(2, thread_name_prefix="meander-merges")
        self._asked: dict[str, Future[Any]] = {}
        """Per steward, its pending request, or an answer that was not read yet."""
        self._orders: dict[str, list[Json]] = {}
        """Per steward, the orders for the next request."""
        self._under_way: dict[str, dict[str, _Ordered]] = {}
        """Per steward, its merges by the name that each writes."""
        self._finished: deque[Json] = deque()
        self._made: list[tuple[_Ordered, str, int, str]] = []
        """Merged lately, with the name, size and steward of each result: their owners are seen to with the next routing."""

    def consider(self, manifest: Manifest, routing: Mapping[str, list[int]], slots: Mapping[str, int]) -> None:
        made, self._made = self._made, []
        for ordered, name, size, holder in made:
            self._bring_to_owners(routing.get(ordered.operator, []), ordered, name, size, holder)
        if not self._runner.stewards:
            self._otherwise.consider(manifest, routing, slots)
        if self._otherwise.busy:
            return
        busy = {ref.name for merges in self._under_way.values() for ordered in merges.values() for ref in ordered.merge.inputs}
        busy |= {name for entry in self._finished for name in entry["inputs"]}
        for merge, operator, slot in apart(due_merges(manifest, routing, slots), busy):
            address = self._runner.steward_of(operator, slot)
            if address is not None and len(self._under_way.get(address, ())) < AT_ONCE:
                self._begin(address, _Ordered(merge, operator), manifest.epoch)
        for address in list(self._orders):
            self._speak(address)

    def collect(self) -> Json | None:
        for address in list(self._under_way):
            try:
                done = self._heard(address)
            except Unreachable:  # gone, and its merges with it: chosen again
                self._forget(address)
                continue
            for _table, inputs, answer in done:
                self._take(address, inputs, answer)
            if not self._under_way[address]:
                self._forget(address)
            else:
                self._speak(address)
        return self._finished.popleft() if self._finished else self._otherwise.collect()

    def _take(self, address: str, inputs: list[str], answer: Any) -> None:
        """A steward that could not be reached for a while may tell of a merge that was given up: that is not one of the present ones."""
        merges = self._under_way[address]
        if answer is None:  # it could not
            for name in [name for name, ordered in merges.items() if [ref.name for ref in ordered.merge.inputs] == inputs]:
                del merges[name]
            return
        ordered = merges.pop(answer[0], None)
        if ordered is None:
            return
        self._runner.holds(answer[0], address)
        self._finished.append(finished_merge(ordered.merge, *answer))
        if answer[1]:
            self._made.append((ordered, answer[0], answer[2], address))

    def _bring_to_owners(self, table: list[int], ordered: _Ordered, name: str, size: int, holder: str) -> None:
        """Key groups may have moved during the merge: have the result fetched by the stewards of
        their new owners.

        Uses the routing after the result entered the log: a later change of the routing sees the
        result in the log and has it fetched itself.
        """
        for slot in {table[group] for group in range(len(table)) if ordered.merge.groups >> group & 1}:
            owner = self._runner.steward_of(ordered.operator, slot)
            if owner is not None and owner != holder:
                items: list[list[Any]] = [[name, size, f"{groups_of(table, slot) & ordered.merge.groups:x}", holder]]
                self._calls.submit(Peer.at(owner, self._runner.secret).fetch, items, GENTLY)

    @property
    def busy(self) -> bool:
        return bool(self._under_way or self._finished) or self._otherwise.busy

    def close(self) -> None:
        self._calls.shutdown(wait=False, cancel_futures=True)
        self._otherwise.close()

    def _forget(self, address: str) -> None:
        for of_stewards in (self._under_way, self._orders, self._asked):
            of_stewards.pop(address, None)

    def _heard(self, address: str) -> list[Any]:
        """The merges that a steward has told of by now."""
        asked = self._asked.get(address)
        if asked is None or not asked.done():
            return []
        del self._asked[address]
        return list(asked.result() or [])

    def _speak(self, address: str) -> None:
        """Send a steward its orders, and ask for finished merges; one question at a time."""
        if address in self._asked:
            return
        orders = self._orders.pop(address, [])

        def call() -> Any:
            peer = Peer.at(address, self._runner.secret)
            for order in orders:
                peer.merge(order)
            return peer.merged()

        self._asked[address] = self._calls.submit(call)

    def _begin(self, address: str, ordered: _Ordered, epoch: int) -> None:
        merge = ordered.merge
        name = f"segments/{merge.table}/{self._generation:08d}-{epoch:010d}-merge-{self._clock.new_id()}.arrow"
        order = {
            "table": merge.table,
            "keys": merge.keys,
            "inputs": [ref.to_json() for ref in merge.inputs],
            "groups": f"{merge.groups:x}",
            "bottom": merge.bottom,
            "time": merge.time,
            "floor": merge.floor,
            "name": name,
            "holders": self._runner.holders(ref.name for ref in merge.inputs),
        }
        self._under_way.setdefault(address, {})[name] = ordered
        self._orders.setdefault(address, []).append(order)

"""In which order the events of one partition arrive.

Most events arrive when they happen. A share of them, chosen by their numbers, arrives up to ``max_delay`` later, among events that
happened later. Delays change the order of a stream and nothing in its events, so a query by event time has the same answer with and
without them. No delay is longer than the bound, so a row's place in the order is found from the events that happened within the bound
around it: any range of rows can be read by itself.

Cycles are dealt to partitions in turn, so that every partition has people, auctions and bids, at all times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meander.connect.generator import Draws
from meander.nexmark.texts import below
from meander.nexmark.workload import Workload

I64 = npt.NDArray[np.int64]

_DELAY_STREAM = 1  # rows are made from stream 0


@dataclass(frozen=True)
class Arrival:
    """The rows of one entity (None: all events) in one of several partitions, in order of arrival."""

    workload: Workload
    seed: int
    entity: str | None
    partitions: int
    partition: int
    events: int | None

    def rows_before(self, number: int) -> int:
        """How many of the partition's events have a number below this one."""
        places = self.workload.places(self.entity)
        cycles, rest = divmod(number, self.workload.cycle)
        mine, turn = divmod(cycles + self.partitions - self.partition - 1, self.partitions)
        begun = int(np.searchsorted(places, rest)) if turn == self.partitions - 1 else 0
        return mine * len(places) + begun

    def number_of(self, row: I64) -> I64:
        """The event that is the partition's ``row``-th to happen."""
        places = self.workload.places(self.entity)
        mine, place = np.divmod(row, len(places))
        number: I64 = (mine * self.partitions + self.partition) * self.workload.cycle + places[place]
        return number

    def due(self, row: int) -> int:
        """The event that a row is due with: the one that would be there if none were late."""
        return int(self.number_of(np.array([row], np.int64))[0])

    def numbers(self, start: int, count: int) -> I64:
        """The events that are the partition's rows [start, start + count) in order of arrival."""
        load, stop = self.workload, start + count
        if load.longest_delay == 0:
            return self.number_of(np.arange(start, stop, dtype=np.int64))
        # Rows further apart than this cannot change places.
        reach = (load.longest_delay // (self.partitions * load.cycle) + 1) * len(load.places(self.entity))
        low, high = max(0, start - reach), stop + reach
        if self.events is not None:
            high = min(high, self.rows_before(self.events))
        number = self.number_of(np.arange(low, high, dtype=np.int64))
        delay = self._delays(number)
        begin = number[start - low]
        early = number + delay < begin
        arrived_before = low + int(early.sum())
        waiting, late = number[~early], delay[~early]
        skip = start - arrived_before
        return _merge(waiting, late)[skip : skip + count]

    def _delays(self, number: I64) -> I64:
        """By how many events each arrives late; 0 for most."""
        bits = Draws(self.seed, _DELAY_STREAM, number).bits(0)
        chosen = (bits & np.uint64(0xFFFFFFFF)) < np.uint64(round(self.workload.delayed * (1 << 32)))
        return np.where(chosen, 1 + below(bits, self.workload.longest_delay), 0)


def _merge(number: I64, delay: I64) -> I64:
    """Numbers (ascending) by number + delay, then by number: the few that are late are put among the others."""
    late = delay > 0
    on_time, delayed = number[~late], number[late]
    arrives = delayed + delay[late]
    order = np.argsort(arrives, kind="stable")
    # An event that is late comes before one that happens at that moment: its number is the lower one.
    place = np.searchsorted(on_time, arrives[order]) + np.arange(len(order))
    merged = np.empty(len(number), np.int64)
    taken = np.zeros(len(number), np.bool_)
    taken[place] = True
    merged[place] = delayed[order]
    merged[~taken] = on_time
    return merged

"""The parameters of a Nexmark stream, and the arithmetic of its event numbers.

Events are numbered from 0 and come in cycles: ``persons`` new people, then ``auctions`` new
auctions, then ``bids`` bids. The kind of an event, its id, the ids that exist by then and its time
follow from its number alone, so any range of events can be made by itself. The defaults are those
of the Nexmark suite.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime

import numpy as np
import numpy.typing as npt

from meander.errors import ConfigError
from meander.stored import stored

I64 = npt.NDArray[np.int64]

ENTITIES = ("person", "auction", "bid")
FIRST_ID = 1000
"""The first person's and the first auction's id, as in the suite: queries that name ids find some in small inputs."""
ID_LEAD = 10
"""So many people and auctions that do not exist yet may be named already: to a query it looks as if events had changed places."""
HOT_EVERY = 100
"""One auction and one person in so many is hot."""
_FASTEST = 1_000_000


@stored("nexmark_workload")
@dataclass(frozen=True)
class Workload:
    """The parameters of a Nexmark stream; the defaults are the suite's."""

    persons: int = 1
    auctions: int = 3
    bids: int = 46
    hot_auctions: int = 2
    """All but one in so many bids are for the hot auction."""
    hot_bidders: int = 4
    """All but one in so many bids are by the hot bidder."""
    hot_sellers: int = 4
    """All but one in so many auctions are by the hot seller."""
    auctions_in_flight: int = 100
    active_people: int = 1000
    event_rate: int = 10_000
    """Events per second of event time, at most 1,000,000: so no two events have the same time."""
    base_time: datetime = datetime(2015, 7, 15)
    """When event 0 happens."""
    delayed: float = 0.1
    """The share of events that arrive late."""
    max_delay: float = 3.0
    """The longest delay, in seconds of event time. No event arrives after one that happened more than this later."""
    person_bytes: int = 200
    auction_bytes: int = 500
    bid_bytes: int = 100
    """The average sizes, reached by text in ``extra``."""

    def __post_init__(self) -> None:
        for name in ("persons", "auctions", "bids", "hot_auctions", "hot_bidders", "hot_sellers", "auctions_in_flight", "active_people"):
            self._check(name, 1, 1_000_000)
        for name in ("person_bytes", "auction_bytes", "bid_bytes"):
            self._check(name, 0, 50_000)
        if not 1 <= self.event_rate <= _FASTEST:
            raise ConfigError(f"Workload(event_rate={self.event_rate}): must be from 1 to {_FASTEST:,}, or events would share their times")
        if not 0 <= self.delayed <= 1:
            raise ConfigError(f"Workload(delayed={self.delayed}): it is a share, from 0 to 1")
        if not 0 <= self.max_delay <= 3600:
            raise ConfigError(f"Workload(max_delay={self.max_delay}): must be from 0 to 3600 seconds")
        if self.base_time.tzinfo is not None:
            raise ConfigError(f"Workload(base_time={self.base_time}): give a time without a time zone; times in the stream are UTC")
        if self.longest_auction_us >= 1 << 32:
            raise ConfigError(
                f"Workload(auctions_in_flight={self.auctions_in_flight}, event_rate={self.event_rate}): auctions would last over an hour; "
                "take fewer in flight or a higher rate"
            )

    def _check(self, name: str, least: int, most: int) -> None:
        if not least <= getattr(self, name) <= most:
            raise ConfigError(f"Workload({name}={getattr(self, name)}): must be from {least} to {most:,}")

    @property
    def cycle(self) -> int:
        """Events per cycle."""
        return self.persons + self.auctions + self.bids

    @property
    def longest_auction_us(self) -> int:
        """Twice the time in which ``auctions_in_flight`` auctions begin, in microseconds: auctions last half of it on average."""
        return 2 * (self.auctions_in_flight * self.cycle // self.auctions * 1_000_000 // self.event_rate)

    @property
    def longest_delay(self) -> int:
        """``max_delay`` in events."""
        return int(self.max_delay * self.event_rate) if self.delayed else 0

    def places(self, entity: str | None) -> I64:
        """Where in a cycle the events of one entity stand; all places without one."""
        begin, end = {
            None: (0, self.cycle),
            "person": (0, self.persons),
            "auction": (self.persons, self.persons + self.auctions),
            "bid": (self.persons + self.auctions, self.cycle),
        }[entity]
        return np.arange(begin, end, dtype=np.int64)

    def times_us(self, number: I64) -> I64:
        """When events happen, in microseconds since 1970."""
        origin = (self.base_time - datetime(1970, 1, 1)) // _MICROSECOND
        return np.int64(origin) + number * 1_000_000 // self.event_rate

    def last_person(self, number: I64) -> I64:
        """The newest person when event ``number`` happens, itself included; counted from 0."""
        cycle, place = np.divmod(number, self.cycle)
        return cycle * self.persons + np.minimum(place, self.persons - 1)

    def last_auction(self, number: I64) -> I64:
        """The newest auction when event ``number`` happens, itself included; counted from 0. -1 where there is none yet."""
        cycle, place = np.divmod(number, self.cycle)
        last: I64 = cycle * self.auctions + np.clip(place - self.persons, -1, self.auctions - 1)
        return last

    def describe(self) -> str:
        """The parameters that differ from the suite's defaults."""
        own = [f"{f.name} {getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name) != f.default]
        return ", ".join(own)


_MICROSECOND = datetime(1970, 1, 1, microsecond=1) - datetime(1970, 1, 1)

"""People, auctions and bids: the rows of given event numbers, one column shape each.

A row depends on the seed, the workload and its event's number and on nothing else. Random numbers come from counters, and every
step from bits to values is in integers or in products of constants: floating-point functions differ between machines in the last bit.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import polars as pl

from meander.connect.generator import Draws
from meander.nexmark import texts
from meander.nexmark.texts import below
from meander.nexmark.workload import ENTITIES, FIRST_ID, HOT_EVERY, ID_LEAD, Workload

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
F64 = npt.NDArray[np.float64]

TIME = pl.Datetime("us")
FIRST_CATEGORY = 10
CATEGORIES = 5

COLUMNS: dict[str, dict[str, pl.DataType]] = {
    "person": {
        "id": pl.Int64(),
        "name": pl.String(),
        "email_address": pl.String(),
        "credit_card": pl.String(),
        "city": pl.String(),
        "state": pl.String(),
        "date_time": TIME,
        "extra": pl.String(),
    },
    "auction": {
        "id": pl.Int64(),
        "item_name": pl.String(),
        "description": pl.String(),
        "initial_bid": pl.Int64(),
        "reserve": pl.Int64(),
        "date_time": TIME,
        "expires": TIME,
        "seller": pl.Int64(),
        "category": pl.Int64(),
        "extra": pl.String(),
    },
    "bid": {
        "auction": pl.Int64(),
        "bidder": pl.Int64(),
        "price": pl.Int64(),
        "channel": pl.String(),
        "url": pl.String(),
        "date_time": TIME,
        "extra": pl.String(),
    },
}
EVENT_COLUMNS: dict[str, pl.DataType] = {
    "event_type": pl.Int32(),
    **{entity: pl.Struct(COLUMNS[entity]) for entity in ENTITIES},
    "date_time": TIME,
}
"""All events in one table: what a row is (0 a person, 1 an auction, 2 a bid), its fields (those of the other two are null), its time."""


class Rows:
    """The rows of a seed and a workload."""

    def __init__(self, seed: int, workload: Workload) -> None:
        self._seed = seed
        self._load = workload

    def of(self, entity: str | None, number: I64) -> pl.DataFrame:
        """The rows of these events, in this order; all of them must be of the entity. Without one, the table of all events."""
        if entity is None:
            return self._events(number)
        make = {"person": self._persons, "auction": self._auctions, "bid": self._bids}[entity]
        return pl.DataFrame(make(number), schema=COLUMNS[entity])

    def _events(self, number: I64) -> pl.DataFrame:
        place = number % self._load.cycle
        kind = (place >= self._load.persons).astype(np.int32) + (place >= self._load.persons + self._load.auctions)
        columns = {"event_type": pl.Series(kind, dtype=pl.Int32)}
        for which, entity in enumerate(ENTITIES):
            mine = kind == which
            structs = self.of(entity, number[mine]).to_struct(entity)
            # Each event takes its own entity's next row, or none.
            index = pl.Series(np.cumsum(mine) - 1, dtype=pl.Int64).set(pl.Series(~mine), None)
            columns[entity] = structs.gather(index)
        columns["date_time"] = self._times(self._load.times_us(number))
        return pl.DataFrame(columns)

    def _persons(self, number: I64) -> dict[str, pl.Series | I64]:
        draws = Draws(self._seed, 0, number)
        who, card, mail = draws.bits(0), draws.bits(1), draws.bits(2)
        mailbox = texts.letters().cut(draws.bits(3), 3 + _pick(mail, 0, 4))
        host = texts.letters().cut(draws.bits(4), 3 + _pick(mail, 16, 2))
        digits = [texts.four_digits().gather(_pick(card, shift, 10_000)) for shift in (0, 16, 32, 48)]
        made = pl.DataFrame({"mailbox": mailbox, "host": host, **{f"d{i}": part for i, part in enumerate(digits)}}).select(
            pl.concat_str("mailbox", pl.lit("@"), "host", pl.lit(".com")).alias("email_address"),
            pl.concat_str("d0", "d1", "d2", "d3", separator=" ").alias("credit_card"),
        )
        columns: dict[str, pl.Series | I64] = {
            "id": FIRST_ID + self._load.last_person(number),
            "name": texts.NAMES.gather(_pick(who, 0, len(texts.NAMES))),
            "email_address": made["email_address"],
            "credit_card": made["credit_card"],
            "city": texts.CITIES.gather(_pick(who, 16, len(texts.CITIES))),
            "state": texts.STATES.gather(_pick(who, 32, len(texts.STATES))),
            "date_time": self._times(self._load.times_us(number)),
        }
        size = 8 + _bytes(columns, "name", "email_address", "credit_card", "city", "state")
        return columns | {"extra": _extra(draws.bits(5), self._load.person_bytes - size)}

    def _auctions(self, number: I64) -> dict[str, pl.Series | I64]:
        load, draws = self._load, Draws(self._seed, 0, number)
        who, what, lasting, sizes = draws.bits(0), draws.bits(1), draws.bits(2), draws.bits(3)
        initial = _prices(what)
        begins = load.times_us(number)
        columns: dict[str, pl.Series | I64] = {
            "id": FIRST_ID + load.last_auction(number),
            "item_name": texts.words().cut(draws.bits(4), 3 + _pick(sizes, 0, 17)).str.strip_chars(" "),
            "description": texts.words().cut(draws.bits(5), 3 + _pick(sizes, 16, 97)).str.strip_chars(" "),
            "initial_bid": initial,
            "reserve": initial + _prices(draws.bits(6)),
            "date_time": self._times(begins),
            "expires": self._times(begins + 1 + below(lasting, load.longest_auction_us)),
            "seller": FIRST_ID + self._people(number, who, load.hot_sellers, 0),
            "category": FIRST_CATEGORY + _pick(what, 32, CATEGORIES),
        }
        size = 48 + _bytes(columns, "item_name", "description")
        return columns | {"extra": _extra(draws.bits(7), load.auction_bytes - size)}

    def _bids(self, number: I64) -> dict[str, pl.Series | I64]:
        load, draws = self._load, Draws(self._seed, 0, number)
        which, who, what = draws.bits(0), draws.bits(1), draws.bits(2)
        # Half of the bids come through a hot channel.
        spread = _pick(what, 33, texts.CHANNELS)
        channel = np.where((what >> np.uint64(32)) & np.uint64(1), spread % len(texts.HOT_CHANNELS), len(texts.HOT_CHANNELS) + spread)
        names, urls = texts.channels_and_urls()
        return {
            "auction": FIRST_ID + self._open_auctions(number, which),
            "bidder": FIRST_ID + self._people(number, who, load.hot_bidders, 1),
            "price": _prices(what),
            "channel": names.gather(channel),
            "url": urls.gather(channel),
            "date_time": self._times(load.times_us(number)),
            "extra": _extra(draws.bits(3), np.full(len(number), load.bid_bytes - 32, np.int64)),
        }

    def _people(self, number: I64, bits: U64, hot_ratio: int, hot_place: int) -> I64:
        """The acting person: the hot one of the last hundred people, or an active one, or one whose
        event is still to come."""
        last = self._load.last_person(number)
        active = np.minimum(last + 1, self._load.active_people)
        anyone = last + 1 - active + below(bits, (active + ID_LEAD).astype(np.uint64))
        return np.where(_pick(bits, 0, hot_ratio) > 0, last // HOT_EVERY * HOT_EVERY + hot_place, anyone)

    def _open_auctions(self, number: I64, bits: U64) -> I64:
        """The auction of a bid: the hot one of the last hundred auctions, or an open one, or one
        whose event is still to come."""
        last = self._load.last_auction(number)
        oldest = np.maximum(last - self._load.auctions_in_flight, 0)
        any_one = oldest + below(bits, (last - oldest + 1 + ID_LEAD).astype(np.uint64))
        return np.where(_pick(bits, 0, self._load.hot_auctions) > 0, last // HOT_EVERY * HOT_EVERY, any_one)

    def _times(self, micros: I64) -> pl.Series:
        return pl.Series(micros).cast(TIME)


def _pick(bits: U64, shift: int, count: int) -> I64:
    """Numbers from 0 to count - 1 from 16 of the bits. Disjoint bits of one draw are independent, and a draw costs more than a shift."""
    return ((((bits >> np.uint64(shift)) & np.uint64(0xFFFF)) * np.uint64(count)) >> np.uint64(16)).astype(np.int64)


def _prices(bits: U64) -> I64:
    """Prices from 1.00 to 1,000,000.00, in cents: as many in every decade. Taken from the lowest 30 bits."""
    product: F64 = np.full(len(bits), 100.0)
    for place, table in enumerate(_powers()):
        product *= table[((bits >> np.uint64(10 * place)) & np.uint64(1023)).astype(np.int64)]
    return np.rint(product).astype(np.int64)


@lru_cache(maxsize=1)
def _powers() -> tuple[F64, F64, F64]:
    """10 to the power of six times a fraction of 30 bits is the product of one number of each table."""
    with localcontext() as context:
        context.prec = 30
        return (
            np.array([float(Decimal(10) ** (Decimal(6 * step) / (1 << 10))) for step in range(1024)]),
            np.array([float(Decimal(10) ** (Decimal(6 * step) / (1 << 20))) for step in range(1024)]),
            np.array([float(Decimal(10) ** (Decimal(6 * step) / (1 << 30))) for step in range(1024)]),
        )


def _extra(bits: U64, room: I64) -> pl.Series:
    """Text that fills ``room`` bytes on average, a fifth more or less; none where there is no room."""
    room = np.maximum(room, 0)
    spread = (room + 2) // 5
    length = room - spread + (((bits & np.uint64(0xFFFF)) * (2 * spread).astype(np.uint64)) >> np.uint64(16)).astype(np.int64)
    return texts.letters().cut(bits, length)


def _bytes(columns: dict[str, pl.Series | I64], *names: str) -> I64:
    total = pl.DataFrame({name: columns[name] for name in names}).select(pl.sum_horizontal(pl.col(names).str.len_bytes()))
    return total.to_series().to_numpy().astype(np.int64)

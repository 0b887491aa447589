"""The oracle's answers over inputs small enough to work out by hand, and that every query has one over generated events."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from meander import nexmark
from meander.errors import ConfigError
from meander.nexmark.answers import ANSWERS
from meander.nexmark.entities import COLUMNS
from meander.nexmark.oracle import QUERIES, with_processing_time

MIDNIGHT = datetime(2015, 7, 15)


def at(seconds: float) -> datetime:
    return MIDNIGHT + timedelta(seconds=seconds)


def table(entity: str, rows: Iterable[dict[str, Any]]) -> pl.DataFrame:
    """Rows with what matters; the other columns are 0, empty or midnight."""
    empty = {pl.Int64(): 0, pl.String(): "", pl.Datetime("us"): MIDNIGHT}
    defaults = {name: empty[dtype] for name, dtype in COLUMNS[entity].items()}
    return pl.DataFrame([defaults | row for row in rows], schema=COLUMNS[entity])


def bid(auction: int, bidder: int, price: int, seconds: float, **more: Any) -> dict[str, Any]:
    return {"auction": auction, "bidder": bidder, "price": price, "date_time": at(seconds), **more}


def auction(id: int, begins: float, expires: float, **more: Any) -> dict[str, Any]:
    return {"id": id, "date_time": at(begins), "expires": at(expires), **more}


def person(id: int, name: str, seconds: float, **more: Any) -> dict[str, Any]:
    return {"id": id, "name": name, "date_time": at(seconds), **more}


def rows(query: str, **tables: Iterable[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The answer, sorted."""
    given = {entity: table(entity, found) for entity, found in tables.items()}
    return sorted(pl.DataFrame(pl.from_arrow(nexmark.answer(query, given))).rows())


def test_q4_averages_the_highest_bids_made_while_auctions_were_open() -> None:
    found = rows(
        "q4",
        auction=[
            auction(1, 10, 20, category=10),
            auction(2, 10, 20, category=10),
            auction(3, 10, 20, category=11),
            auction(4, 10, 20, category=12),
        ],
        bid=[
            bid(1, 7, 999, 9.999999),  # before it opens
            bid(1, 7, 100, 10),  # at the moment it opens
            bid(1, 7, 301, 20),  # at the moment it ends
            bid(1, 7, 999, 20.000001),  # after it ended
            bid(2, 7, 400, 15),
            bid(3, 7, 5, 15),
            bid(3, 8, 5, 16),
            bid(99, 8, 5, 16),  # of no auction
        ],
    )
    assert found == [(10, 350.5), (11, 5.0)]  # category 12 has no bid, and so no row


def test_q5_gives_the_auctions_with_most_bids_in_every_sliding_window_all_that_are_equal() -> None:
    found = rows("q5", bid=[bid(1, 7, 1, 10.0), bid(1, 7, 1, 11.9), bid(2, 7, 1, 12.0), bid(2, 7, 1, 13.0), bid(3, 7, 1, 25.0)])
    # Windows that begin at 2 to 10 hold 10.0 and 11.9, those from 4 on also 12.0 and 13.0, the one that begins at 12 only those two.
    # 25.0 is in the windows that begin at 16, 18, 20, 22, 24.
    assert found == sorted([(1, 2)] + [(1, 2), (2, 2)] * 4 + [(2, 2)] + [(3, 1)] * 5)


def test_q6_averages_the_last_ten_winning_prices_of_a_seller() -> None:
    auctions = [auction(n, n, n + 0.5, seller=7) for n in range(1, 13)] + [auction(50, 1, 2, seller=8)]
    bids = [bid(n, 1, 100 * n, n + 0.1) for n in range(1, 13)] + [bid(50, 1, 5, 1.5), bid(50, 1, 4, 1.6)]
    # The two oldest of seller 7, with 100 and 200, do not count any more: 300 to 1200 are on average 750.
    assert rows("q6", auction=auctions, bid=bids) == [(7, 750.0), (8, 5.0)]


def test_q7_gives_the_highest_bids_of_every_window_all_that_are_equal() -> None:
    found = rows(
        "q7",
        bid=[
            bid(1, 7, 50, 1),
            bid(2, 8, 80, 2),
            bid(3, 9, 80, 9.9),
            bid(4, 9, 70, 10),
            bid(5, 9, 60, 15),
            bid(6, 9, 70, 20),  # the last moment of the window before counts as its own: the suite's bounds include both ends
        ],
    )
    assert [row[:3] for row in found] == [(2, 8, 80), (3, 9, 80), (4, 9, 70), (6, 9, 70), (6, 9, 70)]


def test_q8_gives_people_who_came_and_sold_in_the_same_window_once() -> None:
    found = rows(
        "q8",
        person=[person(1, "Ann", 1), person(2, "Bob", 9.9), person(3, "Cid", 10), person(4, "Dee", 11)],
        auction=[
            auction(100, 0, 1, seller=1),  # before she came, in the same window
            auction(101, 5, 6, seller=1),
            auction(102, 10, 11, seller=2),  # one window later
            auction(103, 19.9, 30, seller=3),
        ],
    )
    assert found == [(1, "Ann", at(0)), (3, "Cid", at(10))]


def test_q9_gives_the_highest_bid_made_in_time_the_earlier_of_equals() -> None:
    found = nexmark.answer(
        "q9",
        {
            "auction": table("auction", [auction(1, 10, 20, seller=5, item_name="lamp"), auction(2, 10, 20), auction(3, 10, 20)]),
            "bid": table(
                "bid",
                [
                    bid(1, 7, 300, 12, extra="second"),
                    bid(1, 8, 300, 11, extra="first"),
                    bid(1, 9, 200, 10.5),
                    bid(1, 9, 900, 20.1),  # too late
                    bid(2, 9, 100, 20, extra="last moment"),
                    bid(3, 9, 100, 9),  # too early, and there is no other
                ],
            ),
        },
    ).to_pylist()
    chosen = [(row["id"], row["bidder"], row["price"], row["bid_extra"], row["item_name"]) for row in found]
    assert sorted(chosen) == [(1, 8, 300, "first", "lamp"), (2, 9, 100, "last moment", "")]
    assert list(found[0]) == [*COLUMNS["auction"], "auction", "bidder", "price", "bid_date_time", "bid_extra"]


def test_q11_ends_a_session_after_a_pause_longer_than_ten_seconds() -> None:
    found = rows(
        "q11",
        bid=[
            bid(1, 7, 1, 0),
            bid(2, 7, 1, 10),  # ten seconds are no pause
            bid(2, 7, 1, 15),
            bid(2, 7, 1, 25.000001),
            bid(2, 8, 1, 3),
        ],
    )
    assert found == [(7, 1, at(25.000001), at(35.000001)), (7, 3, at(0), at(25)), (8, 1, at(3), at(13))]


def test_q12_windows_by_the_time_at_which_the_run_took_the_rows() -> None:
    bids = table("bid", [bid(1, 7, 1, 0), bid(1, 7, 1, 100), bid(1, 8, 1, 0), bid(1, 7, 1, 0)])
    taken = bids.with_columns(pl.Series("p_time", [at(5000), at(5009.9), at(5000), at(5010)]))
    found = pl.DataFrame(pl.from_arrow(nexmark.answer("q12", {"bid": taken})))
    assert sorted(found.rows()) == [
        (7, 1, at(5010), at(5020)),
        (7, 2, at(5000), at(5010)),
        (8, 1, at(5000), at(5010)),
    ]
    with pytest.raises(ConfigError, match="p_time"):
        nexmark.answer("q12", {"bid": bids})


def test_q12_gets_its_times_from_the_decisions_of_the_run() -> None:
    source = nexmark.source("bid", events=500, partitions=2, max_rows_per_epoch=200)
    cursor = source.cursor({}, set())
    decisions = []
    while (choice := cursor.choose(0.0, True)) is not None:
        decisions.append((1_436_918_400.0 + 9 * len(decisions), [split.payload for split in choice.splits]))
    taken = with_processing_time(source, decisions)
    assert taken.group_by("p_time").len().sort("p_time").rows() == [(at(0), 184), (at(9), 184), (at(18), 92)]
    found = pl.DataFrame(pl.from_arrow(nexmark.answer("q12", {"bid": taken})))
    counts = found.group_by("starttime").agg(pl.col("bid_count").sum()).sort("starttime")
    assert counts.rows() == [(at(0), 368), (at(10), 92)]


def test_q13_joins_the_suites_side_input_or_one_that_is_given() -> None:
    bids = [bid(10_005, 7, 1, 0), bid(20_000, 7, 2, 0)]
    assert rows("q13", bid=bids) == [(10_005, 7, 1, at(0), "5"), (20_000, 7, 2, at(0), "0")]
    own = pl.DataFrame({"key": [5], "value": ["five"]})
    assert nexmark.answer("q13", {"bid": table("bid", bids), "side_input": own}).to_pylist() == [
        {"auction": 10_005, "bidder": 7, "price": 1, "date_time": at(0), "value": "five"}
    ]


def test_q14_names_the_time_of_day_and_counts_a_letter() -> None:
    found = rows(
        "q14",
        bid=[
            bid(1, 7, 2_000_000, 8 * 3600, extra="cabcc"),
            bid(2, 7, 2_000_000, 19 * 3600),
            bid(3, 7, 2_000_000, 20 * 3600),
            bid(4, 7, 1_101_321, 0),  # 999,999.468: too little
            bid(5, 7, 1_101_322, 7 * 3600),
            bid(6, 7, 55_066_080, 0),  # 50,000,000.64: too much
        ],
    )
    assert [(row[0], row[2], row[3], row[6]) for row in found] == [
        (1, 1_816_000.0, "dayTime", 3),
        (2, 1_816_000.0, "otherTime", 0),
        (3, 1_816_000.0, "nightTime", 0),
        (5, pytest.approx(1_000_000.376), "otherTime", 0),
    ]


def test_q15_to_q17_report_by_day() -> None:
    bids = [
        bid(1, 7, 9999, 0, channel="a"),
        bid(1, 7, 10_000, 60, channel="a"),
        bid(2, 8, 999_999, 120, channel="b"),
        bid(1, 8, 1_000_000, 180, channel="a"),
        bid(1, 8, 5, 86_400, channel="a"),
    ]
    first, second = "2015-07-15", "2015-07-16"
    assert rows("q15", bid=bids) == [(first, 4, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1), (second, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0)]
    assert rows("q16", bid=bids) == [
        ("a", first, "00:03", 3, 1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1),
        ("a", second, "00:00", 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0),
        ("b", first, "00:02", 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0),
    ]
    assert rows("q17", bid=bids) == [
        (1, first, 3, 1, 1, 1, 9999, 1_000_000, 1_019_999 / 3, 1_019_999),
        (1, second, 1, 1, 0, 0, 5, 5, 5.0, 5),
        (2, first, 1, 0, 1, 0, 999_999, 999_999, 999_999.0, 999_999),
    ]


def test_q18_gives_the_last_bid_of_every_bidder_for_every_auction() -> None:
    found = rows("q18", bid=[bid(1, 7, 10, 5), bid(1, 7, 30, 3), bid(1, 8, 20, 4), bid(2, 7, 40, 1)])
    assert [row[:3] for row in found] == [(1, 7, 10), (1, 8, 20), (2, 7, 40)]


def test_q19_ranks_the_ten_highest_bids_of_every_auction_the_earlier_of_equals_first() -> None:
    bids = [bid(1, n, 100 + n, n) for n in range(1, 13)] + [bid(1, 99, 112, 11.5), bid(2, 5, 1, 1)]
    found = rows("q19", bid=bids)
    ranks = sorted((row[7], row[1], row[2]) for row in found if row[0] == 1)
    assert ranks[:3] == [(1, 99, 112), (2, 12, 112), (3, 11, 111)]
    assert [rank for rank, _, _ in ranks] == list(range(1, 11))
    assert ranks[-1] == (10, 4, 104)
    assert [(row[1], row[7]) for row in found if row[0] == 2] == [(5, 1)]


def test_q3_and_q20_join_without_a_bound_in_time() -> None:
    people = [person(1, "Ann", 500, state="OR", city="Bend"), person(2, "Bob", 0, state="WA"), person(3, "Cid", 0, state="ID")]
    auctions = [
        auction(10, 0, 1, seller=1, category=10),
        auction(11, 0, 1, seller=2, category=10),
        auction(12, 0, 1, seller=3, category=11),
    ]
    assert rows("q3", person=people, auction=auctions) == [("Ann", "Bend", "OR", 10)]
    found = rows("q20", auction=auctions, bid=[bid(10, 7, 1, 9999), bid(12, 7, 1, 0), bid(13, 7, 1, 0)])
    assert [(row[0], row[5], row[13]) for row in found] == [(10, at(9999), 1)]


def test_q21_and_q22_take_addresses_apart() -> None:
    url = "https://www.nexmark.com/abc/de_/fgh/item.htm?query=1"
    bids = [
        bid(1, 7, 1, 0, channel="Apple", url=url),
        bid(2, 7, 1, 0, channel="channel-3", url=f"{url}&channel_id=77"),
        bid(3, 7, 1, 0, channel="channel-4", url=url),  # neither: no row in q21
        bid(4, 7, 1, 0, channel="Baidu", url="short"),
    ]
    assert rows("q21", bid=bids) == [(1, 7, 1, "Apple", "0"), (2, 7, 1, "channel-3", "77"), (4, 7, 1, "Baidu", "3")]
    assert [row[4:] for row in rows("q22", bid=bids)] == [("abc", "de_", "fgh")] * 3 + [(None, None, None)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("nexmark")
    nexmark.write_files(place, events=40_000, events_per_file=15_000)
    return place


@pytest.mark.many
@pytest.mark.parametrize("query", QUERIES)
def test_every_query_has_an_answer_from_files_and_the_same_from_tables(query: str, folder: Path) -> None:
    tables: dict[str, Any] = {entity: pl.read_parquet(folder / entity / "*.parquet") for entity in nexmark.ENTITIES}
    given: Any = folder
    if query == "q12":
        tables["bid"] = tables["bid"].with_columns(pl.col("date_time").dt.offset_by("1h").alias("p_time"))
        given = tables
    answer = nexmark.answer(query, given)
    assert answer.num_rows > 0
    shuffled = {name: frame.sample(fraction=1.0, shuffle=True, seed=1) for name, frame in tables.items()}
    assert nexmark.compare(nexmark.answer(query, shuffled), answer) is None, "the order of the input decides something"
    assert set(ANSWERS[query].key) <= set(answer.column_names)
    if ANSWERS[query].key:
        frame = pl.DataFrame(pl.from_arrow(answer))
        assert nexmark.latest(frame, ANSWERS[query].key).height == frame.height


def test_there_are_23_queries_and_a_wrong_call_is_told_what_there_is() -> None:
    assert tuple(f"q{number}" for number in range(23)) == QUERIES
    with pytest.raises(ConfigError, match="q22"):
        nexmark.answer("q23", {})
    with pytest.raises(ConfigError, match="'bid', and there are only auction"):
        nexmark.answer("q4", {"auction": table("auction", [])})
    with pytest.raises(ConfigError, match="no Parquet file"):
        nexmark.answer("q0", {"bid": "nowhere.parquet"})

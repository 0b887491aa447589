"""Nexmark's events: the same by seed and number, however they are read; in the suite's proportions; late by no more than the bound."""

from __future__ import annotations

import json
import pickle
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from meander import Flow, memory, nexmark
from meander.connect.files import files
from meander.errors import ConfigError
from meander.nexmark.arrival import Arrival
from meander.nexmark.entities import COLUMNS, Rows
from meander.nexmark.stream import NexmarkSource
from meander.nexmark.texts import channels_and_urls

GOLDEN = Path(__file__).parent.parent / "golden"
ENTITIES = [None, *nexmark.ENTITIES]


def read_all(source: NexmarkSource) -> pl.DataFrame:
    """Every row of a finite stream, epoch by epoch, partition by partition."""
    cursor = source.cursor({}, set())
    frames = [source.schema().to_frame()]
    while (choice := cursor.choose(0.0, True)) is not None:
        frames += [source.read(split.payload).frame for split in choice.splits]
        # A cursor rebuilt from the offset after every epoch goes on exactly there.
        cursor = source.cursor(json.loads(json.dumps(choice.offset)), set())
    assert cursor.finished()
    return pl.concat(frames)


@pytest.fixture(scope="module")
def bids() -> pl.DataFrame:
    return read_all(nexmark.source("bid", events=250_000, seed=3))


@pytest.fixture(scope="module")
def auctions() -> pl.DataFrame:
    return read_all(nexmark.source("auction", events=500_000, seed=3))


@pytest.fixture(scope="module")
def persons() -> pl.DataFrame:
    return read_all(nexmark.source("person", events=500_000, seed=3))


@pytest.mark.parametrize("entity", nexmark.ENTITIES)
def test_the_first_rows_of_a_seed_never_change(entity: str) -> None:
    source = nexmark.source(entity, seed=7)
    frames = [source.read({"partition": 0, "start": start, "count": 3}).frame for start in (0, 1_000_000_000)]
    assert pl.concat(frames).write_ndjson() == (GOLDEN / f"nexmark_{entity}.jsonl").read_text()


@settings(max_examples=40)
@given(
    entity=st.sampled_from(ENTITIES),
    start=st.integers(0, 10**10),
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=5),
    partitions=st.integers(1, 4),
    data=st.data(),
)
def test_a_row_is_the_same_whatever_range_it_is_read_in(
    entity: str | None, start: int, sizes: list[int], partitions: int, data: st.DataObject
) -> None:
    source = nexmark.source(entity, seed=5, partitions=partitions)
    partition = data.draw(st.integers(0, partitions - 1))
    whole = source.read({"partition": partition, "start": start, "count": sum(sizes)}).frame
    edges = np.cumsum([0, *sizes])
    ranges = [(start + int(edge), size) for edge, size in zip(edges, sizes, strict=False)]
    parts = {begin: source.read({"partition": partition, "start": begin, "count": size}).frame for begin, size in reversed(ranges)}
    assert_frame_equal(pl.concat(parts[begin] for begin, _ in ranges), whole)


@pytest.mark.parametrize("entity", ENTITIES)
def test_partitions_epochs_and_delays_change_the_order_and_no_row(entity: str | None) -> None:
    one = read_all(nexmark.source(entity, events=20_000, seed=1)).sort("date_time")
    calm = nexmark.Workload(delayed=0.0)
    for options in ({"partitions": 3}, {"max_rows_per_epoch": 777}, {"partitions": 2, "max_rows_per_epoch": 5000}, {"workload": calm}):
        other = read_all(nexmark.source(entity, events=20_000, seed=1, **options))
        assert_frame_equal(other.sort("date_time"), one)
    assert read_all(nexmark.source(entity, events=20_000, seed=1, workload=calm))["date_time"].is_sorted()
    assert not read_all(nexmark.source(entity, events=20_000, seed=2)).sort("date_time").equals(one)


@settings(max_examples=60)
@given(
    entity=st.sampled_from(ENTITIES),
    events=st.integers(1, 3000),
    partitions=st.integers(1, 5),
    delay=st.sampled_from([0.0, 0.0001, 0.03, 0.1]),
    sizes=st.lists(st.integers(1, 500), min_size=1, max_size=10),
)
def test_the_order_of_arrival_is_that_of_a_plain_sort(
    entity: str | None, events: int, partitions: int, delay: float, sizes: list[int]
) -> None:
    load = nexmark.Workload(max_delay=delay, delayed=0.3)
    for partition in range(partitions):
        arrival = Arrival(load, 9, entity, partitions, partition, events)
        places = set(load.places(entity).tolist())
        mine = [n for n in range(events) if n % 50 in places and n // 50 % partitions == partition]
        assert arrival.rows_before(events) == len(mine)
        assert arrival.number_of(np.arange(len(mine))).tolist() == mine
        delays = arrival._delays(np.array(mine, np.int64)) if load.longest_delay else np.zeros(len(mine), np.int64)
        expected = [number for _, number in sorted((number + late, number) for number, late in zip(mine, delays.tolist(), strict=True))]
        found: list[int] = []
        for size in (*sizes, len(mine)):
            count = min(size, len(mine) - len(found))
            if count:
                found += arrival.numbers(len(found), count).tolist()
        assert found == expected


def test_kinds_come_one_to_three_to_forty_six() -> None:
    kinds = read_all(nexmark.source(events=100_000))["event_type"].value_counts().sort("event_type")
    assert kinds["count"].to_list() == [2000, 6000, 92_000]


def test_the_table_of_all_events_holds_the_rows_of_the_three() -> None:
    everything = read_all(nexmark.source(events=30_000, seed=4))
    for kind, entity in enumerate(nexmark.ENTITIES):
        rows = everything.filter(event_type=kind)
        assert rows.select(pl.exclude("event_type", entity, "date_time").is_null().all()).row(0) == (True, True)
        assert_frame_equal(rows.select(entity).unnest(entity), read_all(nexmark.source(entity, events=30_000, seed=4)))
        assert rows["date_time"].equals(rows[entity].struct.field("date_time"))


def test_no_event_arrives_after_one_that_happened_more_than_the_bound_later() -> None:
    for partitions in (1, 3):
        source = nexmark.source("bid", events=400_000, partitions=partitions)
        for partition in range(partitions):
            rows = Arrival(source.workload, 0, "bid", partitions, partition, source.events).rows_before(400_000)
            times = source.read({"partition": partition, "start": 0, "count": rows}).frame["date_time"]
            behind = times.cum_max() - times
            assert timedelta(seconds=2.9) < behind.max() <= timedelta(seconds=3)  # type: ignore[operator]
            assert 0.09 < (behind > timedelta(0)).mean() < 0.11  # type: ignore[operator]


def test_ids_times_and_lifetimes_are_consistent(persons: pl.DataFrame, auctions: pl.DataFrame, bids: pl.DataFrame) -> None:
    assert persons["id"].sort().to_list() == list(range(1000, 1000 + 10_000))
    assert auctions["id"].sort().to_list() == list(range(1000, 1000 + 30_000))
    assert persons["date_time"].min() == datetime(2015, 7, 15)
    times = pl.concat([persons["date_time"], auctions["date_time"], bids["date_time"]])
    assert times.len() == persons.height + auctions.height + bids.height
    assert bids["date_time"].is_unique().all()
    lasting = (auctions["expires"] - auctions["date_time"]).dt.total_microseconds()
    assert lasting.min() > 0
    assert lasting.max() <= 333_300  # twice the time of 100 auctions
    assert lasting.mean() == pytest.approx(166_650, rel=0.02)


def test_half_of_the_bids_are_for_the_hot_auction_and_three_quarters_by_the_hot_bidder(bids: pl.DataFrame) -> None:
    assert ((bids["auction"] - 1000) % 100 == 0).mean() == pytest.approx(0.5 + 0.5 / 100, abs=0.01)
    assert ((bids["bidder"] - 1000) % 100 == 1).mean() == pytest.approx(0.75 + 0.25 / 100, abs=0.01)


def test_bids_name_auctions_and_people_that_are_about_at_the_time() -> None:
    rows = read_all(nexmark.source("bid", events=250_000, seed=3, workload=nexmark.Workload(delayed=0.0)))
    number = np.arange(250_000)
    number = number[number % 50 >= 4]
    newest = rows["auction"] - 1000 - (number // 50 * 3 + 2)
    assert (newest.min(), newest.max()) == (-100, 10)
    people = rows["bidder"] - 1000 - number // 50
    assert (people.min(), people.max()) == (-999, 10)


def test_what_a_join_must_reach_over_is_bounded_as_the_documentation_says() -> None:
    number = np.arange(1_000_000, dtype=np.int64)
    rows = Rows(0, nexmark.Workload())
    bid = number[number % 50 >= 4]
    auction = rows.of("bid", bid)["auction"].to_numpy() - 1000
    behind = bid - (auction // 3 * 50 + 1 + auction % 3)
    assert (behind.min(), behind.max()) == (-197, 1697)
    opened = number[(number % 50 >= 1) & (number % 50 <= 3)]
    seller = rows.of("auction", opened)["seller"].to_numpy() - 1000
    assert (opened - seller * 50).min() == -499
    assert 49_000 < (opened - seller * 50).max() <= 49_953


def test_three_quarters_of_the_auctions_are_by_the_hot_seller_in_five_categories(auctions: pl.DataFrame) -> None:
    assert ((auctions["seller"] - 1000) % 100 == 0).mean() == pytest.approx(0.75, abs=0.02)
    categories = auctions["category"].value_counts().sort("category")
    assert categories["category"].to_list() == [10, 11, 12, 13, 14]
    assert categories["count"].min() > 0.9 * 6000
    assert (auctions["reserve"] > auctions["initial_bid"]).all()


def test_prices_are_spread_evenly_over_six_decades(bids: pl.DataFrame) -> None:
    assert bids["price"].min() >= 100
    assert bids["price"].max() <= 100_000_000
    decades = bids["price"].log10().floor().value_counts().sort("price")
    assert decades["price"].to_list() == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert decades["count"].min() > 0.97 * bids.height / 6


def test_half_of_the_bids_come_through_hot_channels_whose_addresses_have_no_id(bids: pl.DataFrame) -> None:
    hot = bids["channel"].is_in(["Google", "Facebook", "Baidu", "Apple"])
    assert hot.mean() == pytest.approx(0.5, abs=0.01)
    named = bids["url"].str.contains("&channel_id=")
    assert not (hot & named).any()
    assert named.filter(~hot).mean() == pytest.approx(0.9, abs=0.02)
    assert (
        bids["url"]
        .str.contains(r"^https://www\.nexmark\.com/[a-z_]{3,4}/[a-z_]{3,4}/[a-z_]{3,4}/item\.htm\?query=1(&channel_id=\d+)?$")
        .all()
    )
    names, urls = channels_and_urls()
    assert len(names) == len(urls) == names.n_unique() == 10_004
    assert bids.select("channel", "url").unique().height == bids["channel"].n_unique()


def test_rows_have_the_suites_average_sizes(persons: pl.DataFrame, auctions: pl.DataFrame, bids: pl.DataFrame) -> None:
    def size(frame: pl.DataFrame, *texts: str) -> float:
        return frame.select(pl.sum_horizontal(pl.col(texts).str.len_bytes()).mean()).item()

    assert 8 + size(persons, "name", "email_address", "credit_card", "city", "state", "extra") == pytest.approx(200, rel=0.01)
    assert 48 + size(auctions, "item_name", "description", "extra") == pytest.approx(500, rel=0.01)
    assert 32 + size(bids, "extra") == pytest.approx(100, rel=0.01)
    assert (bids["extra"].str.len_bytes().min(), bids["extra"].str.len_bytes().max()) == (54, 81)


def test_people_have_names_places_and_cards(persons: pl.DataFrame) -> None:
    assert persons["state"].unique().sort().to_list() == ["AZ", "CA", "ID", "OR", "WA", "WY"]
    assert persons["city"].n_unique() == 10
    assert persons["name"].n_unique() == 99
    assert persons["credit_card"].str.contains(r"^\d{4} \d{4} \d{4} \d{4}$").all()
    assert persons["email_address"].str.contains(r"^[a-z]{3,6}@[a-z]{3,4}\.com$").all()


@pytest.mark.parametrize("entity", ENTITIES)
def test_rows_have_the_described_schema(entity: str | None) -> None:
    source = nexmark.source(entity)
    assert source.read({"partition": 0, "start": 0, "count": 60}).frame.schema == source.schema()
    assert Rows(0, nexmark.Workload()).of(entity, np.zeros(0, np.int64)).schema == source.schema()


def test_sources_of_one_stream_take_the_same_stretch_in_every_epoch() -> None:
    cursors = {e: s.cursor({}, set()) for e, s in nexmark.sources(events=2500, max_rows_per_epoch=1000).items()}
    taken: dict[str, list[int]] = {entity: [] for entity in cursors}
    for _ in range(3):
        for entity, cursor in cursors.items():
            choice = cursor.choose(0.0, True)
            assert choice is not None
            taken[entity].append(sum(split.rows for split in choice.splits))
    assert taken == {"person": [20, 20, 10], "auction": [60, 60, 30], "bid": [920, 920, 460]}
    assert all(cursor.finished() for cursor in cursors.values())


def test_with_a_rate_rows_are_born_when_their_events_are_due() -> None:
    source = nexmark.source("bid", rate=100, partitions=2)
    cursor = source.cursor({}, set())
    assert cursor.choose(1000.0, True) is None
    choice = cursor.choose(1001.0, True)
    assert choice is not None
    assert [(split.rows, split.born) for split in choice.splits] == [(46, (1000.04, 1000.49)), (46, (1000.54, 1000.99))]
    assert choice.offset == {"taken": 100, "t0": 1000.0}


def test_files_hold_the_stream_in_order_of_arrival(tmp_path: Path) -> None:
    folders = nexmark.write_files(tmp_path / "in", events=10_000, events_per_file=4000, seed=2)
    for entity, folder in folders.items():
        assert [path.name for path in sorted(folder.iterdir())] == ["00000.parquet", "00001.parquet", "00002.parquet"]
        assert_frame_equal(pl.read_parquet(folder / "*.parquet"), read_all(nexmark.source(entity, events=10_000, seed=2)))
        assert files(folder).schema() == pl.Schema(COLUMNS[entity])
        heights = [pl.read_parquet(path).height for path in sorted(folder.iterdir())]
        assert heights == [len(range(0, 4000, 50)) * len(nexmark.Workload().places(entity))] * 2 + [heights[0] // 2]
    with pytest.raises(ConfigError, match=r"files in .* already"):
        nexmark.write_files(tmp_path / "in", events=10)


def test_one_entity_can_be_taken_out_of_the_stream_of_all_events() -> None:
    flow = Flow("views")
    events = flow.source("events", nexmark.source(events=10))
    for entity in nexmark.ENTITIES:
        rows = nexmark.only(events, entity)
        assert rows.schema == pl.Schema(COLUMNS[entity])
        rows.sink(f"{entity}_out", memory())
    assert "bid_events" in flow.explain()


def test_the_description_travels_and_compares() -> None:
    source = nexmark.source("bid", events=5, rate=2, workload=nexmark.Workload(bids=6))
    assert pickle.loads(pickle.dumps(source)) == source
    assert source.canonical() == "nexmark bid, 5 events, 2/s, seed 0, partitions 1, bids 6"


@pytest.mark.parametrize("wrong", [{"entity": "seller"}, {"events": -1}, {"partitions": 0}, {"rate": 0}, {"max_rows_per_epoch": 0}])
def test_a_source_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"nexmark\.source"):
        nexmark.source(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"persons": 0},
        {"hot_bidders": 0},
        {"event_rate": 2_000_000},
        {"delayed": 1.5},
        {"max_delay": -1},
        {"bid_bytes": 10**6},
        {"event_rate": 1, "auctions_in_flight": 10_000},
        {"base_time": datetime.fromisoformat("2015-07-15T00:00:00+00:00")},
    ],
)
def test_a_workload_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Workload"):
        nexmark.Workload(**wrong)

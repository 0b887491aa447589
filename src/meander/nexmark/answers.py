"""The answer of each Nexmark query over a finite input, in DuckDB's SQL.

Constants for ``oracle``. A query over windows is answered with all of its windows closed, one that updates with the last value of every
key. ``window_of(t, seconds)`` is the beginning of the tumbling window that holds ``t``; windows begin at multiples of their size since
1970. Where the suite leaves the order of equal rows open, the text here decides: ``docs/nexmark.md`` says how.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """One query: its input, its answer, and the conversion of a stream of results into the
    answer."""

    sql: str
    tables: tuple[str, ...] = ("bid",)
    key: tuple[str, ...] = ()
    """The key by which a later result replaces an earlier one; empty where results are only added."""


MACROS = "CREATE MACRO window_of(t, seconds) AS make_timestamp(epoch_us(t) - epoch_us(t) % (seconds * 1000000))"

_BOTH = ("auction", "bid")

# Bids while their auction is open, first to last moment.
_OPEN_BIDS = "auction AS a JOIN bid AS b ON b.auction = a.id AND b.date_time BETWEEN a.date_time AND a.expires"

_RANKED = """
    count(*) AS total_bids,
    count(*) FILTER (price < 10000) AS rank1_bids,
    count(*) FILTER (price >= 10000 AND price < 1000000) AS rank2_bids,
    count(*) FILTER (price >= 1000000) AS rank3_bids"""

_DISTINCT = ",\n".join(
    f"""
    count(DISTINCT {column}) AS total_{column}s,
    count(DISTINCT {column}) FILTER (price < 10000) AS rank1_{column}s,
    count(DISTINCT {column}) FILTER (price >= 10000 AND price < 1000000) AS rank2_{column}s,
    count(DISTINCT {column}) FILTER (price >= 1000000) AS rank3_{column}s"""
    for column in ("bidder", "auction")
)

_CHANNEL_ID = r"'(&|^)channel_id=([^&]*)'"

ANSWERS: dict[str, Answer] = {
    "q0": Answer("SELECT auction, bidder, price, date_time, extra FROM bid"),
    "q1": Answer("SELECT auction, bidder, price * 908 / 1000 AS price, date_time, extra FROM bid"),
    "q2": Answer("SELECT auction, price FROM bid WHERE auction % 123 = 0"),
    "q3": Answer(
        """
        SELECT p.name, p.city, p.state, a.id
        FROM auction AS a JOIN person AS p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
        ("person", "auction"),
    ),
    "q4": Answer(
        f"""
        SELECT category AS id, avg(final) AS final
        FROM (SELECT a.id, a.category, max(b.price) AS final FROM {_OPEN_BIDS} GROUP BY a.id, a.category)
        GROUP BY category""",
        _BOTH,
        ("id",),
    ),
    "q5": Answer(
        """
        WITH counted AS (
            SELECT auction, window_of(date_time, 2) - to_seconds(2 * back) AS starttime, count(*) AS num
            FROM bid CROSS JOIN range(5) AS panes(back)
            GROUP BY ALL
        )
        SELECT auction, num FROM counted
        QUALIFY num = max(num) OVER (PARTITION BY starttime)"""
    ),
    "q6": Answer(
        f"""
        WITH winners AS (
            SELECT a.id, a.seller, b.price, b.date_time FROM {_OPEN_BIDS}
            QUALIFY row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.date_time, b.bidder) = 1
        ), newest AS (
            SELECT * FROM winners
            QUALIFY row_number() OVER (PARTITION BY seller ORDER BY date_time DESC, price DESC, id DESC) <= 10
        )
        SELECT seller, avg(price) AS avg_price FROM newest GROUP BY seller""",
        _BOTH,
        ("seller",),
    ),
    "q7": Answer(
        """
        WITH highest AS (
            SELECT max(price) AS price, window_of(date_time, 10) + INTERVAL 10 SECOND AS endtime FROM bid GROUP BY endtime
        )
        SELECT b.auction, b.bidder, b.price, b.date_time, b.extra
        FROM bid AS b JOIN highest AS h
            ON b.price = h.price AND b.date_time BETWEEN h.endtime - INTERVAL 10 SECOND AND h.endtime"""
    ),
    "q8": Answer(
        """
        SELECT p.id, p.name, p.stime
        FROM (SELECT DISTINCT id, name, window_of(date_time, 10) AS stime FROM person) AS p
        JOIN (SELECT DISTINCT seller, window_of(date_time, 10) AS stime FROM auction) AS a
            ON p.id = a.seller AND p.stime = a.stime""",
        ("person", "auction"),
    ),
    "q9": Answer(
        f"""
        SELECT a.id, a.item_name, a.description, a.initial_bid, a.reserve, a.date_time, a.expires, a.seller, a.category, a.extra,
            b.auction, b.bidder, b.price, b.date_time AS bid_date_time, b.extra AS bid_extra
        FROM {_OPEN_BIDS}
        QUALIFY row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.date_time, b.bidder) = 1""",
        _BOTH,
        ("id",),
    ),
    "q10": Answer(
        """
        SELECT auction, bidder, price, date_time, extra, strftime(date_time, '%Y-%m-%d') AS dt, strftime(date_time, '%H:%M') AS hm
        FROM bid"""
    ),
    "q11": Answer(
        """
        WITH marked AS (
            SELECT bidder, date_time,
                CASE WHEN date_time - lag(date_time) OVER bids <= INTERVAL 10 SECOND THEN 0 ELSE 1 END AS begins
            FROM bid WINDOW bids AS (PARTITION BY bidder ORDER BY date_time)
        ), numbered AS (
            SELECT bidder, date_time, sum(begins) OVER (PARTITION BY bidder ORDER BY date_time ROWS UNBOUNDED PRECEDING) AS session
            FROM marked
        )
        SELECT bidder, count(*) AS bid_count, min(date_time) AS starttime, max(date_time) + INTERVAL 10 SECOND AS endtime
        FROM numbered GROUP BY bidder, session"""
    ),
    "q12": Answer(
        """
        SELECT bidder, count(*) AS bid_count, window_of(p_time, 10) AS starttime, window_of(p_time, 10) + INTERVAL 10 SECOND AS endtime
        FROM bid GROUP BY bidder, starttime"""
    ),
    "q13": Answer(
        """
        SELECT b.auction, b.bidder, b.price, b.date_time, s.value
        FROM bid AS b JOIN side_input AS s ON b.auction % 10000 = s.key""",
        ("bid", "side_input"),
    ),
    "q14": Answer(
        """
        SELECT auction, bidder, price * 908 / 1000 AS price,
            CASE
                WHEN hour(date_time) BETWEEN 8 AND 18 THEN 'dayTime'
                WHEN hour(date_time) <= 6 OR hour(date_time) >= 20 THEN 'nightTime'
                ELSE 'otherTime'
            END AS bid_time_type,
            date_time, extra,
            length(extra) - length(replace(extra, 'c', '')) AS c_counts
        FROM bid WHERE price * 908 > 1000000000 AND price * 908 < 50000000000"""
    ),
    "q15": Answer(
        f"SELECT strftime(date_time, '%Y-%m-%d') AS day, {_RANKED}, {_DISTINCT} FROM bid GROUP BY day",
        key=("day",),
    ),
    "q16": Answer(
        f"""
        SELECT channel, strftime(date_time, '%Y-%m-%d') AS day, max(strftime(date_time, '%H:%M')) AS minute, {_RANKED}, {_DISTINCT}
        FROM bid GROUP BY channel, day""",
        key=("channel", "day"),
    ),
    "q17": Answer(
        f"""
        SELECT auction, strftime(date_time, '%Y-%m-%d') AS day, {_RANKED},
            min(price) AS min_price, max(price) AS max_price, avg(price) AS avg_price, CAST(sum(price) AS BIGINT) AS sum_price
        FROM bid GROUP BY auction, day""",
        key=("auction", "day"),
    ),
    "q18": Answer(
        """
        SELECT auction, bidder, price, channel, url, date_time, extra FROM bid
        QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC, price DESC) = 1""",
        key=("bidder", "auction"),
    ),
    "q19": Answer(
        """
        SELECT auction, bidder, price, channel, url, date_time, extra,
            row_number() OVER (PARTITION BY auction ORDER BY price DESC, date_time, bidder) AS rank_number
        FROM bid QUALIFY rank_number <= 10""",
        key=("auction", "rank_number"),
    ),
    "q20": Answer(
        """
        SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.date_time AS bid_date_time, b.extra AS bid_extra,
            a.item_name, a.description, a.initial_bid, a.reserve, a.date_time AS auction_date_time, a.expires, a.seller, a.category,
            a.extra AS auction_extra
        FROM bid AS b JOIN auction AS a ON b.auction = a.id
        WHERE a.category = 10""",
        _BOTH,
    ),
    "q21": Answer(
        f"""
        SELECT auction, bidder, price, channel,
            CASE lower(channel)
                WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
                ELSE regexp_extract(url, {_CHANNEL_ID}, 2)
            END AS channel_id
        FROM bid
        WHERE regexp_matches(url, {_CHANNEL_ID}) OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')"""
    ),
    "q22": Answer(
        """
        SELECT auction, bidder, price, channel, parts[4] AS dir1, parts[5] AS dir2, parts[6] AS dir3
        FROM (SELECT *, string_split(url, '/') AS parts FROM bid)"""
    ),
}

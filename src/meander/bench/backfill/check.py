"""The right output of an operator over the benchmark's input, by DuckDB, and the comparison, row by
row."""

from __future__ import annotations

from pathlib import Path

import duckdb

import meander as md
from meander.bench.backfill.request import GAP, SLIDE, WINDOW, WITHIN, BackfillRequest
from meander.bench.harness.statistics import Json

_US = 1_000_000
_MINE = "SELECT *, epoch_us(ts) AS us FROM read_parquet('{folder}/*.parquet') WHERE key >= 0"
_NEW = f"us - lag(us) OVER (PARTITION BY key ORDER BY us) > {GAP * _US}"

EXPECTED = {
    "tumbling": f"SELECT key, us // {WINDOW * _US} * {WINDOW * _US} AS began, count(*) AS n, sum(value) AS total FROM events GROUP BY ALL",
    "sliding": f"""
        SELECT key, began, count(*) AS n, sum(value) AS total FROM (
            SELECT key, value, unnest([(us // {SLIDE * _US} - nth) * {SLIDE * _US} FOR nth IN range({WINDOW // SLIDE})]) AS began
            FROM events)
        GROUP BY ALL""",
    "session": f"""
        SELECT key, min(us) AS began, max(us) + {GAP * _US} AS ended, count(*) AS n, sum(value) AS total FROM (
            SELECT *, sum(CASE WHEN new THEN 1 ELSE 0 END) OVER (PARTITION BY key ORDER BY us ROWS UNBOUNDED PRECEDING) AS session
            FROM (SELECT *, {_NEW} AS new FROM events))
        GROUP BY key, session""",
    "join": f"""
        SELECT l.key, l.seq, r.seq AS seq_right FROM events_left AS l JOIN events_right AS r
        ON l.key = r.key AND abs(l.us - r.us) <= {WITHIN * _US}""",
    "as-of": """
        SELECT l.key, l.seq, r.seq AS seq_right FROM events_left AS l ASOF LEFT JOIN events_right AS r
        ON l.key = r.key AND l.us >= r.us""",
    "deduplicate": "SELECT DISTINCT key, id FROM events",
    "timers": f"""
        SELECT key, us // {WINDOW * _US} * {WINDOW * _US} + {WINDOW * _US} AS fired, count(*) AS n, sum(value) AS total
        FROM events GROUP BY ALL""",
}
_COLUMNS = {
    "tumbling": "key, began, n, total",
    "sliding": "key, began, n, total",
    "session": "key, began, ended, n, total",
    "join": "key, seq, seq_right",
    "as-of": "key, seq, seq_right",
    "deduplicate": "key, id",
    "timers": "key, fired, n, total",
}
_AS_MICROS = {"window_start": "began", "window_end": "ended", "fired": "fired"}


def compare(request: BackfillRequest) -> Json:
    """How many rows came out; Corrupted where they are not those that DuckDB finds in the same files."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for side in ("all", "left", "right"):
            name = "events" if side == "all" else f"events_{side}"
            connection.execute(f"CREATE VIEW {name} AS {_MINE.format(folder=Path(request.input) / side)}")
        columns = _COLUMNS[request.operator]
        connection.execute(f"CREATE TABLE expected AS SELECT {columns} FROM ({EXPECTED[request.operator]})")
        connection.execute(f"CREATE VIEW output AS SELECT * FROM read_parquet('{request.output}/*.parquet') WHERE key >= 0")
        types = dict(connection.execute("SELECT column_name, column_type FROM (DESCRIBE output)").fetchall())
        times = [f"epoch_us({name}) AS {plain}" for name, plain in _AS_MICROS.items() if str(types.get(name, "")).startswith("TIMESTAMP")]
        left_over = [name for name in types if name not in _AS_MICROS or not str(types[name]).startswith("TIMESTAMP")]
        connection.execute(f"CREATE TABLE found AS SELECT {columns} FROM (SELECT {', '.join([*left_over, *times])} FROM output)")
        wanted, came = (connection.table(name).count("*").fetchall()[0][0] for name in ("expected", "found"))
        missing = connection.execute("SELECT * FROM (FROM expected EXCEPT ALL FROM found) LIMIT 3").fetchall()
        extra = connection.execute("SELECT * FROM (FROM found EXCEPT ALL FROM expected) LIMIT 3").fetchall()
    if missing or extra or wanted != came:
        raise md.Corrupted(
            f"{request.system}, {request.operator}: {came} rows came out, DuckDB finds {wanted}; "
            f"of ({columns}) {missing} are missing, and {extra} should not be there"
        )
    return {"rows_out": came}

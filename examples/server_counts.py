"""The demo's flow as a flow file: Wikipedia-style edits → parse → only people → count per server → Parquet.

Run it:

    meander run examples/server_counts.py --store server-counts/state

Expect a line of progress until Ctrl-C (2,000 edits a second come in, for ever). The same command goes on where it was, also
after kill -9. Beside it, in another terminal:

    meander status server-counts/state
    meander state server-counts/state counts --sql "SELECT * FROM state ORDER BY edits DESC LIMIT 5"

The output is in server-counts/out: plain Parquet files, one row per server and epoch that touched it.
"""

import polars as pl

import meander as md

EDIT = pl.Struct({"server_name": pl.String, "bot": pl.Boolean, "length_old": pl.Int64, "length_new": pl.Int64})

flow = md.Flow("server_counts")
edit = pl.col("edit").struct.field
(
    flow.source("lines", md.generator("wikipedia", rate=2000, seed=1, raw=True))
    .select(pl.col("line").str.json_decode(EDIT).alias("edit"), name="parse")
    .filter(~edit("bot"), name="people")
    .select(edit("server_name"), (edit("length_new") - edit("length_old")).abs().alias("changed"), name="change")
    .key_by("server_name")
    .aggregate(md.count().alias("edits"), md.sum("changed").alias("bytes_changed"), name="counts")
    .sink("out", md.parquet("server-counts/out"))
)

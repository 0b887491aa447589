"""Count edits per server, with five operators: source → parse → filter → count per server → sink. For several task managers.

Run it, each in a terminal of its own:

    meander control-plane examples/wikipedia.py --store wikipedia/state
    meander task-manager
    meander task-manager --port 8028

Expect a line of progress per second as soon as the first task manager is there. Then give the stage that counts another slot, and see
that the second task manager has it:

    curl 'http://localhost:9008/scale?stage=2'
    meander status

Ctrl-C in the first task manager's terminal moves its slots to the second, and the flow goes on. `meander run examples/wikipedia.py`
runs the same flow on a local Spark.
"""

import polars as pl

import meander as md

EDIT = pl.Struct({"server_name": pl.String, "bot": pl.Boolean})

edit = pl.col("line").str.json_decode(EDIT).struct.field

flow = md.Flow("wikipedia")
(
    flow.source("edits", md.generator("wikipedia", rate=1000, seed=1, raw=True))
    .select(edit("server_name"), edit("bot"), name="parse")
    .filter(~pl.col("bot"), name="people")
    .key_by("server_name")
    .aggregate(md.count().alias("edits"), name="counts")
    .sink("out", md.parquet("wikipedia/out"))
)

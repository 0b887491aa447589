"""The simulated workload's flow: events → burn CPU → count, sum and bytes per key → Parquet.

Make events first, then run it:

    meander workgen workload/in --live --duration 10m --interval 9ms --cpu 5ms --keys 10000 --junk 1000 &
    meander run examples/workload.py --store workload/state --http

Expect a line of progress until Ctrl-C. Each event says what it costs: `cpu_us` microseconds of computing, and `junk` bytes that its
key holds in the state. While it runs, in another terminal:

    meander rescale counts 4
    meander state workload/state counts --sql "SELECT count(*) AS keys, sum(n) AS events FROM state"

The benchmarks `meander bench rescale` and `meander bench scaling` run this very flow.
"""

import os

import meander as md
from meander.bench.load.workload import SCHEMA, build_flow

os.makedirs("workload/in", exist_ok=True)
flow = build_flow(md.files("workload/in", schema=dict(SCHEMA)), md.parquet("workload/out"))

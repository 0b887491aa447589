"""The demo's flow, and an independent recount of its input: edits per server, without bots.

The recount shares the input with the flow and nothing else: lines are parsed by Python's own json module and counted in a dict.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import polars as pl

import meander as md
from meander.connect.generator import GeneratorSource

FLOW, OPERATOR = "server_counts", "counts"
_ROWS_PER_EPOCH = 100_000
EDIT = pl.Struct({"server_name": pl.String, "bot": pl.Boolean, "length_old": pl.Int64, "length_new": pl.Int64})

Counts = dict[str, tuple[int, int]]
"""Per server: edits, and bytes changed."""


@dataclass(frozen=True)
class Workload:
    """The demo's input; the same numbers give the same edits on every machine."""

    events: int
    rate: float
    """Edits per second; 0 for as fast as it goes."""
    seed: int = 1

    def source(self, paced: bool = True) -> GeneratorSource:
        rate = self.rate if paced and self.rate else None
        return md.generator(
            "wikipedia", events=self.events, rate=rate, partitions=2, seed=self.seed, raw=True, max_rows_per_epoch=_ROWS_PER_EPOCH
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Workload:
        return Workload(**json.loads(text))


def build_flow(workload: Workload, output: Path) -> md.Flow:
    """Lines of JSON → parse → edits of people → count and bytes per server → Parquet."""
    flow = md.Flow(FLOW)
    edit = pl.col("edit").struct.field
    (
        flow.source("lines", workload.source())
        .select(pl.col("line").str.json_decode(EDIT).alias("edit"), name="parse")
        .filter(~edit("bot"), name="people")
        .select(edit("server_name"), (edit("length_new") - edit("length_old")).abs().alias("changed"), name="change")
        .key_by("server_name")
        .aggregate(md.count().alias("edits"), md.sum("changed").alias("bytes_changed"), name=OPERATOR)
        .sink("out", md.parquet(output))
    )
    return flow


def recount(workload: Workload, progress: Callable[[int], None] = lambda rows: None) -> Counts:
    """The counts that the flow should have."""
    source = workload.source(paced=False)
    edits: Counter[str] = Counter()
    changed: Counter[str] = Counter()
    cursor = source.cursor({}, set())
    while (choice := cursor.choose(0.0, True)) is not None:
        for split in choice.splits:
            for line in source.read(split.payload).frame.get_column("line"):
                edit = json.loads(line)
                if not edit["bot"]:
                    edits[edit["server_name"]] += 1
                    changed[edit["server_name"]] += abs(edit["length_new"] - edit["length_old"])
            progress(split.rows)
    return {server: (number, changed[server]) for server, number in edits.items()}


def counts_in_state(store: Path) -> Counts:
    """The counts in the flow's state."""
    return _counts(pl.DataFrame(md.read_state(store, OPERATOR)))


def counts_in_output(output: Path) -> Counts:
    """The counts in the published files: the last row of each server, in the order of epochs."""
    files = sorted(output.glob("*.parquet"))  # names begin with the epoch
    if not files:
        return {}
    return _counts(pl.concat([pl.read_parquet(file) for file in files]).unique("server_name", keep="last", maintain_order=True))


def _counts(frame: pl.DataFrame) -> Counts:
    return {server: (edits, changed) for server, edits, changed in frame.select("server_name", "edits", "bytes_changed").iter_rows()}


def differences(found: Counts, expected: Counts) -> list[str]:
    """The servers on which the two disagree."""
    return sorted(server for server in found.keys() | expected.keys() if found.get(server) != expected.get(server))

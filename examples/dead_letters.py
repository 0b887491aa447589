"""Bad input: rows that cannot be read or computed go to the dead letters, all others go on; strict mode stops instead.

Run it (about ten seconds, most of them Spark's start):

    python examples/dead_letters.py

Expect the totals of the good rows, the bad rows with operator, reason and content, and then the error with which
``strict=True`` stops at the same input, having changed nothing.
"""

import tempfile
from pathlib import Path

import polars as pl

import meander as md

LINES = """\
{"sensor": "a", "celsius": "21.5"}
{"sensor": "a", "celsius": "22.0"}
{"sensor": "b", "celsius": "n/a"}
{"sensor": "b", "celsius": "19.0"
{"sensor": 7, "celsius": "18.0"}
{"sensor": "b", "celsius": "18.5"}
"""


def to_number(rows: pl.DataFrame) -> pl.DataFrame:
    """Raises on text that is not a number: only those rows are put aside, not the batch."""
    return rows.with_columns(pl.col("celsius").cast(pl.Float64))


def build(folder: Path) -> md.Flow:
    flow = md.Flow("sensors")
    (
        flow.source("readings", md.files(folder / "in", format="json", schema={"sensor": "string", "celsius": "string"}))
        .map_batches(to_number, name="to_number", schema={"sensor": pl.String, "celsius": pl.Float64})
        .key_by("sensor")
        .aggregate(md.count().alias("n"), md.mean("celsius").alias("mean"), name="sensors")
        .sink("out", md.parquet(folder / "out"))
    )
    return flow


def main() -> None:
    pl.Config.set_fmt_str_lengths(60).set_tbl_rows(20).set_tbl_width_chars(160)
    with tempfile.TemporaryDirectory(prefix="meander-dead-letters-") as name:
        folder = Path(name)
        (folder / "in").mkdir()
        (folder / "in" / "readings.json").write_text(LINES)
        flow = build(folder)
        with flow.start(store=folder / "state", trigger=None) as run:
            print(run.process_available())
        print(pl.DataFrame(md.read_state(folder / "state", "sensors")).sort("sensor"))
        print("dead letters:")
        for letter in md.read_dead_letters(folder / "state").to_pylist():
            print(f"  epoch {letter['epoch']}, {letter['operator']}, {letter['position']}: {letter['reason'].splitlines()[0]}")
            print(f"      {letter['content']}")
        try:
            with flow.start(store=folder / "strict-state", trigger=None, strict=True) as run:
                run.process_available()
        except md.BadInput as error:
            print(f"strict=True stops: {str(error).splitlines()[0]}")


if __name__ == "__main__":
    main()

"""An aggregate of your own, vectorised: the geometric mean and a weighted average, beside built-in ones.

Run it (about ten seconds, most of them Spark's start):

    python examples/custom_aggregate.py

Expect growth factors per fund after two waves of input; the last column is the same number computed at once by Polars. The code
runs over columns, never over single rows: state is a few columns per aggregate, made by ``init``, put together by ``merge``,
read by ``finish``. The same file works with the shell:

    meander run examples/custom_aggregate.py --store /tmp/funds --once
"""

import sys
import tempfile

import polars as pl

import meander as md

EVENTS, FUNDS = 200_000, 5


class GeometricMean(md.Aggregator):
    """The n-th root of the product, through sums of logarithms."""

    def init(self) -> dict[str, pl.Expr]:
        logs = pl.col(self.inputs[0]).log()
        return {"n": logs.count().cast(pl.Int64), "logs": logs.sum()}

    def merge(self) -> dict[str, pl.Expr]:
        return {"n": self.state("n").sum(), "logs": self.state("logs").sum()}

    def finish(self) -> pl.Expr:
        return (self.state("logs") / self.state("n")).exp()


class WeightedMean(md.Aggregator):
    """Two input columns: values and their weights."""

    def init(self) -> dict[str, pl.Expr]:
        value, weight = pl.col(self.inputs[0]), pl.col(self.inputs[1])
        return {"sum": (value * weight).sum(), "weight": weight.sum()}

    def merge(self) -> dict[str, pl.Expr]:
        return {"sum": self.state("sum").sum(), "weight": self.state("weight").sum()}

    def finish(self) -> pl.Expr:
        return self.state("sum") / self.state("weight")


GROWTH = [(0.95 + pl.col("value") * 0.1).alias("growth"), (pl.col("value") + 1).alias("weight")]

out = md.memory()
flow = md.Flow("funds")
(
    flow.source("days", md.generator("key_value", events=EVENTS, keys=FUNDS, seed=3, max_rows_per_epoch=EVENTS // 2))
    .with_columns(*GROWTH, name="growth")
    .key_by("key")
    .aggregate(
        md.count().alias("days"),
        GeometricMean("growth").alias("geometric"),
        WeightedMean("growth", "weight").alias("weighted"),
        md.quantile("growth", 0.5).alias("median"),
        name="funds",
    )
    .sink("out", out)
)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="meander-funds-") as store:
        with flow.start(store=store, trigger=None) as run:
            done = run.process_available()
        state = pl.DataFrame(md.read_state(store, "funds", run_code=True)).sort("key")
    print(f"{done.rows_in:,} rows in {done.epochs} epochs, {out.frame().height} rows out")
    rows = md.generator("key_value", events=EVENTS, keys=FUNDS, seed=3).read({"partition": 0, "start": 0, "count": EVENTS}).frame
    at_once = rows.with_columns(*GROWTH).group_by("key").agg(pl.col("growth").log().mean().exp().alias("at_once"))
    shown = state.join(at_once, on="key")
    print(shown)
    same = shown.select(((pl.col("geometric") - pl.col("at_once")).abs() < 1e-12).all()).item()
    print("equal to the geometric mean computed at once" if same else "DIFFERS from the geometric mean computed at once")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())

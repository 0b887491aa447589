"""Drawing what an epoch takes over longer and longer spans: a line per operator, Spark's dashed in the same colour."""

from __future__ import annotations

from typing import Any

from meander.bench.backfill.request import SPANS
from meander.bench.harness.report import Report


def draw_backfill(figure: Any, report: Report) -> None:
    """A run that was ended by its time is an arrow that points upwards, from what its epoch had taken by then."""
    axes = figure.subplots()
    operators: list[str] = report.config["operators"]
    spans: list[str] = report.config["spans"]
    for system, style in zip(report.systems, ("-", "--"), strict=False):
        for number, operator in enumerate(operators):
            seen = report.systems[system].get(operator, {})
            points = [(SPANS[span], seen[span]) for span in spans if span in seen]
            done = [(at, numbers["epoch_seconds"]) for at, numbers in points if numbers["finished"]]
            axes.plot(
                *([list(values) for values in zip(*done, strict=True)] or [[], []]),
                style,
                marker=".",
                color=f"C{number}",
                label=operator if system == "meander" else None,
            )
            over = [(at, numbers["epoch_seconds_at_least"]) for at, numbers in points if numbers.get("epoch_seconds_at_least")]
            axes.plot([at for at, _ in over], [seconds for _, seconds in over], "^", color=f"C{number}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks([SPANS[span] for span in spans], spans)
    axes.minorticks_off()
    axes.set_xlabel("event time in an epoch")
    axes.set_ylabel("seconds per epoch")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"{report.config['rows']:,} rows per epoch; dashed: Spark", fontsize="medium")
    axes.legend(frameon=False, fontsize="small", ncols=2)

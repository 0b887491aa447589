"""Draws the effect of a disturbance: the age of events at their publication, over time, a panel per
system."""

from __future__ import annotations

from typing import Any

from meander.bench.harness.plot_elastic import MARK, OURS, PEER
from meander.bench.harness.report import Report

_LEAST = 0.05


def draw_disturbed(figure: Any, report: Report) -> None:
    """Where no line goes on there is no output: a gap is drawn as the climb that it is. One logarithmic axis for all."""
    panels = list(_panels(report))
    figure.set_size_inches(8, 1.6 * len(panels) + 0.8)
    drawn: Any = figure.subplots(len(panels), 1, squeeze=False, sharey=True)
    for (axes,), (name, numbers, ours) in zip(drawn, panels, strict=True):
        times: list[float] = []
        ages: list[float] = []
        for end, oldest, newest in numbers["timeline"]:
            times += [end, end]
            ages += [max(oldest, _LEAST), max(newest, _LEAST)]
        colour = OURS if ours else PEER
        axes.fill_between(times, ages, _LEAST, color=colour, alpha=0.15, linewidth=0)
        axes.plot(times, ages, color=colour, linewidth=0.8)
        for at, what in numbers["marks"]:
            axes.axvline(at, color=MARK, linewidth=0.8)
            axes.annotate(_label(what, numbers), (at, 1.0), xycoords=("data", "axes fraction"), fontsize=7, color=MARK, va="bottom")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_title(name, loc="left", fontsize=9, pad=12)
        axes.set_ylabel("latency, s", fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    drawn[0][0].set_ylim(bottom=_LEAST)
    drawn[-1][0].set_xlabel("seconds")


def _label(what: str, numbers: Any) -> str:
    """The disturbance and, where it was measured, the gap that it left in the output."""
    gap = numbers.get("faults", {}).get(what, {}).get("gap_at_fault")
    return what if gap is None else f"{what}: gap {gap:.2g} s"


def _panels(report: Report) -> list[tuple[str, Any, bool]]:
    if report.bench == "failover":
        return [(name, numbers, name != "spark") for name, numbers in report.systems.items()]
    return [
        (f"{system}, {scenario}", numbers, system == "meander")
        for system, scenarios in report.systems.items()
        for scenario, numbers in scenarios.items()
    ]

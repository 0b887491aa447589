"""Drawing a report. matplotlib is an optional dependency, looked for before anything is measured."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import meander as md
from meander.bench.backfill.plot import draw_backfill
from meander.bench.harness.plot_disturbed import draw_disturbed
from meander.bench.harness.plot_elastic import draw_rescale, draw_scaling
from meander.bench.harness.report import Report, short

_OURS, _PEER = "#0b7285", "#adb5bd"
_SHOWN = ("meander", "leaderless", "leader")
"""The measured systems; the others are there for comparison."""


def check_can_plot(path: str) -> None:
    """An hour of measuring must not end in a missing library or folder."""
    if find_spec("matplotlib") is None:
        raise md.ConfigError("--plot needs matplotlib: pip install 'meander-streaming[bench]'")
    if not Path(path).absolute().parent.is_dir():
        raise md.ConfigError(f"--plot {path}: the folder {Path(path).absolute().parent} does not exist; create it first")


def plot(report: Report, path: str) -> None:
    """The report as a picture: lines over time, over sizes or over epochs, as the benchmark goes; bars for the others."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    if report.bench == "rescale":
        draw_rescale(figure, report)
    elif report.bench == "scaling":
        draw_scaling(figure, report)
    elif report.bench in ("failover", "modify"):
        draw_disturbed(figure, report)
    elif report.bench == "backfill":
        draw_backfill(figure, report)
    elif report.bench == "expiry":
        _draw_expiry(figure, report)
    else:
        axes: Any = figure.subplots()
        if report.bench == "growth":
            _draw_growth(axes, report)
        else:
            _draw_systems(axes, report)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def _draw_systems(axes: Any, report: Report) -> None:
    value, label, scale = ("events_per_second", "million events per second", 1e-6)
    if report.bench == "floor":
        value, label, scale = ("epoch_seconds", "milliseconds per epoch", 1e3)
    names = list(report.systems)
    heights = [report.systems[name][value] * scale for name in names]
    bars = axes.bar(names, heights, color=[_OURS if name in _SHOWN else _PEER for name in names])
    axes.bar_label(bars, [f"{height:,.3g}" for height in heights], label_type="center", color="white")
    for at, name in enumerate(names):
        dots = [one[value] * scale for one in report.systems[name].get("by_round", [])]
        axes.plot([at] * len(dots), dots, ".", color="black", markersize=4)
    axes.set_ylabel(label)
    axes.set_title(f"{report.bench}: " + ", ".join(f"{ratio:g}× {name}" for name, ratio in report.ratios.items()))


def _draw_growth(axes: Any, report: Report) -> None:
    sizes = list(report.systems["meander"].values())
    keys = [size["keys"] for size in sizes]
    for value, label, style in (
        ("epoch_seconds", "median", "o-"),
        ("epoch_seconds_p95", "95th percentile", ".--"),
        ("epoch_seconds_max", "longest", ".:"),
    ):
        axes.plot(keys, [size[value] * 1e3 for size in sizes], style, color=_OURS, label=label)
    axes.set_xscale("log")
    axes.set_xticks(keys, [short(count) for count in keys])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("keys in the state")
    axes.set_ylabel("milliseconds per epoch")
    axes.set_title(f"{short(report.config['epoch_events'])} events per epoch")
    axes.legend(frameon=False)


def _draw_expiry(figure: Any, report: Report) -> None:
    above, below = figure.subplots(2, 1, sharex=True)
    for number, (kind, numbers) in enumerate(report.systems["meander"].items()):
        above.plot([held / 1e6 for held in numbers["epochs_bytes"]], color=f"C{number}", label=kind)
        below.plot(numbers["epochs_ms"], color=f"C{number}", linewidth=0.8)
    for axes, label in ((above, "MB of state"), (below, "milliseconds per epoch")):
        axes.set_ylim(bottom=0)
        axes.set_ylabel(label)
        axes.spines[["top", "right"]].set_visible(False)
    below.set_xlabel("epoch")
    above.set_title(f"{report.config['windows']} windows of {short(report.config['events'])} events, two epochs each")
    above.legend(frameon=False, ncols=3)

"""Drawing what elasticity costs and brings: latency through a rescale, and speed by the number of slots."""

from __future__ import annotations

from typing import Any

from meander.bench.harness.report import Report

OURS, PEER, STEADY, MARK = "#0b7285", "#868e96", "#2b8a3e", "#e8590c"
_LEAST = 0.05


def draw_rescale(figure: Any, report: Report) -> None:
    """A row per strategy and one for the peer, a column per size: the oldest event of every epoch, when it was published.

    Where no line goes on there is no output: a gap is drawn as the climb that it is. Latency has the same logarithmic axis everywhere,
    since the peer needs another order of magnitude; it also needs more time, so that its seconds are its own.
    """
    sizes = list(report.systems["meander"])
    rows = [*report.config["strategies"], *(name for name in report.systems if name != "meander")]
    figure.set_size_inches(7.5 * len(sizes), 1.7 * len(rows) + 0.9)
    panels: Any = figure.subplots(len(rows), len(sizes), squeeze=False, sharey=True)
    for column, size in enumerate(sizes):
        longest = max(numbers["timeline"][-1][0] for numbers in report.systems["meander"][size].values())
        for row, name in enumerate(rows):
            ours = name in report.systems["meander"][size]
            numbers = report.systems["meander"][size][name] if ours else report.systems[name][size]
            axes = panels[row][column]
            _draw_latency(axes, numbers, OURS if ours else PEER)
            if ours:
                axes.set_xlim(0, longest)
            axes.set_title(f"{name}: {_summary(numbers)}", loc="left", fontsize=9)
            axes.spines[["top", "right"]].set_visible(False)
            if column == 0:
                axes.set_ylabel("latency, s", fontsize=8)
        panels[0][column].annotate(
            f"{size} of state, {report.config['rate']:,.0f} events/s",
            (0, 1.22),
            xycoords="axes fraction",
            fontsize=11,
            fontweight="bold",
        )
        panels[-1][column].set_xlabel("seconds")
    every = [numbers for sizes in report.systems.values() for found in sizes.values() for numbers in (found, *found.values())]
    worst = max(epoch[2] for numbers in every if isinstance(numbers, dict) for epoch in numbers.get("timeline", ()))
    panels[0][0].set_ylim(_LEAST, worst * 2)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=8)


def _draw_latency(axes: Any, numbers: dict[str, Any], colour: str) -> None:
    times: list[float] = []
    late: list[float] = []
    for end, _rows, worst, best in numbers["timeline"]:
        # From the creation of its first event on an epoch makes everybody wait; when it is published the newest event has waited least.
        times += [end, end]
        late += [max(worst, _LEAST), max(best, _LEAST)]
    axes.fill_between(times, late, _LEAST, color=colour, alpha=0.15, linewidth=0)
    axes.plot(times, late, color=colour, linewidth=0.8, label="latency, oldest to newest event of each epoch")
    rescales = list(numbers["rescales"].values())
    steady = rescales[0]["latency_seconds"]["before"]["p99"]
    axes.axhline(steady, color=STEADY, linewidth=0.8, linestyle="--", label="p99 before the first rescale")
    for nth, change in enumerate(numbers["changes"]):
        axes.axvspan(
            change["asked"],
            change["in_force"],
            color=MARK,
            alpha=0.15,
            linewidth=0,
            label="asked for, until in force" if nth == 0 else None,
        )
        axes.axvline(change["asked"], color=MARK, linewidth=1)
        text = f"gap {rescales[nth]['gap_seconds']['during']:.2g} s"
        axes.annotate(
            text,
            (change["asked"], 1),
            xycoords=("data", "axes fraction"),
            xytext=(3, -9),
            textcoords="offset points",
            fontsize=7.5,
            color=MARK,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.tick_params(labelsize=8)


def _summary(numbers: dict[str, Any]) -> str:
    parts = []
    for way, one in numbers["rescales"].items():
        late = one["latency_seconds"]
        parts.append(f"{way.replace('->', ' → ')} p99 {late['before']['p99']:.2g} → {late['during']['p99']:.2g} s")
    return ", ".join(parts)


def draw_scaling(figure: Any, report: Report) -> None:
    """Throughput and latency by the number of slots, a line per shape of flow."""
    figure.set_size_inches(10, 4)
    speed, late = figure.subplots(1, 2)
    slots = report.config["slots"]
    cores = report.config.get("machine", {}).get("cores")
    for (shape, by_slots), style, colour in zip(report.systems["meander"].items(), ("o-", "s-"), (OURS, MARK), strict=False):
        found = [by_slots[str(count)] for count in slots]
        rates = [numbers["events_per_second"] / 1000 for numbers in found]
        speed.plot(slots, rates, style, color=colour, label=f"source → {shape} → sink")
        ideal = [rates[0] * min(count, cores or count) / slots[0] for count in slots]
        speed.plot(slots, ideal, ":", color=colour, linewidth=1, label=f"{shape}, ideal" + (f" on {cores} cores" if cores else ""))
        for value, dash in (("p50", "-"), ("p99", "--")):
            label = f"{shape}, {value}, at {found[0]['rate']:,.0f} events/s"
            late.plot(slots, [n["latency_seconds"][value] * 1000 for n in found], style[0] + dash, color=colour, label=label)
    for axes, label in ((speed, "thousand events per second"), (late, "latency, milliseconds")):
        axes.set_xscale("log", base=2)
        axes.set_xticks(slots, [str(count) for count in slots])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set_xlabel("slots")
        axes.set_ylabel(label)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    speed.set_title(f"{report.config['cpu_us']} µs of computing per event")

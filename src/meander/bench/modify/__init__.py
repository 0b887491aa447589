"""Changes of a running flow: their effect on the output and their duration, beside stopping,
changing and starting again.

Under a steady load a function is replaced, a filter's condition is changed, an operator is inserted and removed; Spark's own way is to
stop the query and start the changed one from its checkpoint: in a new application, as a changed job is deployed (spark-restart), or in
the same session, for drivers that can load new code (spark-in-session). Then stateful operators are migrated from one executor to
another, many with little state and some with much (--state; the store is a folder behind a slow line); for comparison the flow is
stopped, and started again with other executors in the same JVM.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import meander as md
from meander.bench.harness.isolation import run_isolated
from meander.bench.harness.latency import AFTERMATH, Change, Published, describe_change
from meander.bench.harness.machine import machine_facts
from meander.bench.harness.report import Report, Table
from meander.bench.harness.rounds import OURS, add_common_arguments, say, work_folder
from meander.bench.harness.statistics import Json, median
from meander.bench.load.steady import timeline
from meander.bench.modify.request import ModifyRequest
from meander.bench.rescale import chosen_sizes

PEERS = ("spark-restart", "spark-in-session")
_ROW_BYTES = 200
"""Of one key's state in one operator, where there is much."""
CHANGES = ("replace", "filter", "insert", "remove")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", type=float, default=1000.0, help="events per second (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=20_000, help="distinct keys; more where much state needs them (default: %(default)s)")
    parser.add_argument("--trigger", type=float, default=0.1, help="seconds between two epochs or batches (default: %(default)s)")
    parser.add_argument("--warmup", type=float, default=10.0, help="seconds before anything is measured (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds between two changes (default: %(default)s)")
    parser.add_argument("--small-operators", type=int, default=34, help="operators with little state to migrate (default: %(default)s)")
    parser.add_argument("--large-operators", type=int, default=24, help="operators with much state to migrate (default: %(default)s)")
    parser.add_argument("--state", default="2.7GB", help="state of the large ones together (default: %(default)s)")
    parser.add_argument("--cluster", default="local-cluster[2,1,2048]", help="Spark's master for migrations (default: %(default)s)")
    parser.add_argument("--against", default=",".join(PEERS), help="peers, separated by commas, or empty for none (default: %(default)s)")
    add_common_arguments(parser, rounds=1)
    parser.set_defaults(parallelism=1, memory="2g")


def run(arguments: argparse.Namespace) -> Report:
    for name in ("rate", "keys", "trigger", "warmup", "seconds"):
        if not getattr(arguments, name) > 0:
            raise md.ConfigError(f"--{name} {getattr(arguments, name)}: must be above 0")
    peers = [peer for peer in arguments.against.split(",") if peer]
    for peer in peers:
        if peer not in PEERS:
            raise md.ConfigError(f"--against {peer}: there is no such peer; there are {', '.join(PEERS)}")
    state = next(iter(chosen_sizes(arguments.state).values()))
    facts = machine_facts()
    results: dict[str, Json] = {OURS: {}}
    with work_folder(arguments.folder) as folder:
        results[OURS]["changes"] = _measure(arguments, OURS, "changes", folder)
        failures = {}
        for peer in peers:
            try:
                results[peer] = {"changes": _measure(arguments, peer, "changes", folder)}
            except md.MeanderError as error:  # what was measured before it is not lost
                failures[peer] = f"{peer} failed: {error}"
                say(failures[peer])
        for scenario, operators, size in (("small", arguments.small_operators, 0), ("large", arguments.large_operators, state)):
            if operators:
                results[OURS][scenario] = _measure(arguments, OURS, scenario, folder, operators, size)
    names = (
        "rate",
        "keys",
        "trigger",
        "warmup",
        "seconds",
        "small_operators",
        "large_operators",
        "parallelism",
        "master",
        "cluster",
        "memory",
    )
    config = {**{name: getattr(arguments, name) for name in names}, "state_bytes": state, "machine": facts}
    ratios, tables = _ratios(results), [_table(results), _moves(results)]
    notes = [*_notes(results, ratios), *failures.values()]
    return Report("modify", config, arguments.rounds, results, ratios, [table for table in tables if table.rows], notes)


def _measure(arguments: argparse.Namespace, system: str, scenario: str, folder: Path, operators: int = 0, state: int = 0) -> Json:
    request = ModifyRequest(
        system,
        scenario,
        str(folder / f"{system}-{scenario}"),
        arguments.cluster if operators else arguments.master,
        arguments.parallelism,
        arguments.memory,
        arguments.rate,
        max(arguments.keys, state // (operators * _ROW_BYTES)) if operators else arguments.keys,
        arguments.trigger,
        arguments.warmup,
        arguments.seconds,
        operators,
        state,
    )
    Path(request.folder).mkdir(parents=True)
    say(f"{system}, {scenario}: ", end="")
    answer = run_isolated(request, arguments.timeout)
    say(f"{answer['events']:,} events, {answer['lost']} lost, {answer['doubled']} doubled")
    epochs = [Published(e["end"], e["rows"], e["first"], e["last"]) for e in answer["epochs"]]
    ends = [change["began"] for change in answer["changes"][1:]] + [epochs[-1].end]
    found: Json = {}
    for change, until in zip(answer["changes"], ends, strict=True):
        numbers = describe_change(epochs, Change(change["asked"], change["in_force"]), (change["began"], change["asked"]), until)
        found[change["change"]] = {**numbers, "seconds": round(change["in_force"] - change["asked"], 3), "epochs": change.get("epochs")}
        if "times" in answer:
            found[change["change"]] |= _epoch_times(answer["times"], change)
            found[change["change"]] |= {"bytes": change.get("bytes"), "moved": change.get("moved")}
            found[change["change"]]["warm_seconds"] = round(change.get("warm", change["in_force"]) - change["asked"], 3)
    marks = [[round(change["asked"] - epochs[0].end, 3), change["change"]] for change in answer["changes"]]
    facts = {name: answer.get(name) for name in ("events", "lost", "doubled", "state_bytes")}
    return {"by_change": found, **facts, "timeline": timeline(epochs), "marks": marks}


def _epoch_times(times: list[Json], change: Json) -> Json:
    """How long epochs took before a change, and the longest from its request until a while after it."""
    before = [e["seconds"] for e in times if change["began"] <= e["end"] < change["asked"]]
    over = float(change.get("warm") or change["in_force"]) + AFTERMATH
    during = [e["seconds"] for e in times if change["asked"] <= e["end"] < over]
    if not before or not during:
        return {}
    return {
        "epoch_median": round(median(before), 4),
        "epoch_longest": round(max(during), 4),
        "epoch_ratio": round(max(during) / median(before), 2),
    }


def _ratios(results: dict[str, Json]) -> dict[str, float]:
    """Spark's gap over ours, per change; a restart's gap over that of a migration."""
    ratios = {}
    ours = results[OURS]["changes"]["by_change"]
    for peer in (name for name in results if name != OURS):
        for name in CHANGES:
            gap = results[peer]["changes"]["by_change"][name]["gap_seconds"]["during"]
            ratios[f"{peer} {name}"] = round(gap / ours[name]["gap_seconds"]["during"], 1)
    for scenario in ("small", "large"):
        found = results[OURS].get(scenario, {}).get("by_change")
        if found:
            restart, migrate = found["restart"], found["migrate"]
            ratios[f"{scenario} restart, gap"] = round(restart["gap_seconds"]["during"] / migrate["gap_seconds"]["during"], 1)
            ratios[f"{scenario} restart, in force"] = round(restart["seconds"] / migrate["seconds"], 1)
    return ratios


def _table(results: dict[str, Json]) -> Table:
    rows = [
        (
            system,
            change,
            f"{numbers['seconds']:.2f}",
            "" if numbers["epochs"] is None else f"{numbers['epochs']}",
            *(f"{numbers['gap_seconds'][part]:.2f}" for part in ("before", "during")),
            *(f"{p99:.2f}" if (p99 := numbers["latency_seconds"][part]["p99"]) else "" for part in ("before", "during", "after")),
        )
        for system, scenarios in results.items()
        for change, numbers in scenarios["changes"]["by_change"].items()
    ]
    titles = ("in force s", "epochs", "gap before s", "during s", "p99 before s", "during s", "after s")
    return Table(("system", "change", *titles), tuple(rows))


def _moves(results: dict[str, Json]) -> Table:
    rows = [
        (
            scenario,
            change,
            f"{(found['state_bytes'] or 0) / 1e6:,.1f}",
            f"{numbers['seconds']:.2f}",
            f"{numbers['warm_seconds']:.1f}",
            *(f"{numbers['gap_seconds'][part]:.2f}" for part in ("before", "during")),
            *(f"{numbers.get(name, 0.0):.2f}" for name in ("epoch_median", "epoch_longest", "epoch_ratio")),
            f"{(numbers['bytes'] or 0) / 1e6:,.1f}",
        )
        for scenario, found in results[OURS].items()
        if scenario != "changes"
        for change, numbers in found["by_change"].items()
    ]
    titles = ("state MB", "in force s", "all near s", "gap before s", "during s", "epoch s", "longest", "×", "MB to fetch")
    return Table(("operators", "change", *titles), tuple(rows))


def _notes(results: dict[str, Json], ratios: dict[str, float]) -> list[str]:
    wrong = [f"{s} {c}" for s, found in results.items() for c, numbers in found.items() if numbers["lost"] or numbers["doubled"]]
    said = "Nothing was lost or doubled." if not wrong else f"LOST OR DOUBLED in {', '.join(wrong)}."
    longer = ", ".join(f"{name} {ratio:g}×" for name, ratio in ratios.items())
    return [f"{said} A gap is the longest time between two outputs that became visible. Theirs over ours: {longer}."]

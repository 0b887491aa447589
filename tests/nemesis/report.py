"""The report of a run: text for people, JSON for programs."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.nemesis.changes import Changes
from tests.nemesis.checker import Verdict
from tests.nemesis.faults import Faults
from tests.nemesis.feeder import Feeder
from tests.nemesis.watcher import Watcher


def make(
    arguments: dict[str, Any],
    seconds: float,
    faults: Faults,
    changes: Changes,
    feeder: Feeder,
    watcher: Watcher,
    verdict: Verdict,
    more: dict[str, Any],
) -> dict[str, Any]:
    kinds = Counter(one.kind for one in faults.done)
    return {
        **arguments,
        "seconds": round(seconds, 1),
        "good": not verdict.findings,
        "findings": verdict.findings,
        "faults": {"total": len(faults.done), "by kind": dict(sorted(kinds.items())), "not possible here": faults.missing},
        "changes": {"made": dict(changes.made), "refused": dict(changes.refused), "reasons": dict(changes.reasons.most_common(40))},
        "rows": {"events": feeder.written("events").height, "payments": feeder.written("payments").height},
        "sinks": verdict.sinks,
        "epochs": watcher.epoch,
        "files": watcher.files,
        "longest stall": round(verdict.longest_stall, 1),
        "left behind": verdict.left,
        **more,
    }


def write(report: dict[str, Any], folder: Path) -> str:
    """The text; both forms are in the run's folder, too."""
    (folder / "report.json").write_text(json.dumps(report, indent=2, default=str) + "\n")
    text = "\n".join(_lines(report)) + "\n"
    (folder / "report.txt").write_text(text)
    return text


def _lines(report: dict[str, Any]) -> list[str]:
    faults, changes = report["faults"], report["changes"]
    lines = [
        f"nemesis: seed {report['seed']}, {report['mode']}, {report['network']}, {report['seconds']:.0f} s",
        f"  rows      {report['rows']['events']:,} events, {report['rows']['payments']:,} payments",
        f"  progress  {report['epochs']:,} epochs, {report['files']:,} files; the longest stall was {report['longest stall']} s",
        f"  faults    {faults['total']}",
        *(f"              {number:4d}  {kind}" for kind, number in faults["by kind"].items()),
        *(f"              none of {missing}" for missing in faults["not possible here"]),
        f"  changes   {sum(changes['made'].values())} made, {sum(changes['refused'].values())} refused or not answered",
    ]
    for name, sink in report["sinks"].items():
        lines.append(f"  {name:<9} {sink['expected']:,} rows: {sink['lost']} lost, {sink['doubled']} doubled or wrong")
    left = {what: len(value) if isinstance(value, list) else value for what, value in report["left behind"].items()}
    lines.append(f"  left      {', '.join(f'{what}: {number}' for what, number in left.items())}")
    lines += [f"  ended     {number:4d}  {reason}" for reason, number in report["replicas ended"].items()]
    lines += ["", "good: nothing lost, nothing doubled, nothing torn" if report["good"] else f"{len(report['findings'])} findings:"]
    lines += [f"  - {finding}" for finding in report["findings"][:50]]
    return lines

"""Compares output and state with the oracle; looks for stalls that no fault explains, and for what is left behind."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import polars as pl
from tests.nemesis.faults import Done
from tests.nemesis.feeder import Feeder
from tests.nemesis.oracle import expected

from meander.epochs.compaction import is_overdue
from meander.state.log import history, read_manifest
from meander.state.stores.contract import open_store

PATIENCE = 30.0
"""Seconds that an epoch may take on a busy machine when nothing is wrong."""
RESTART = 30.0
"""Seconds that a process takes to be missed, started again and at work, on a busy machine."""
MOST_MERGED = 100
"""What a merge wrote for a replica that died stays for many epochs: some of it is no finding."""
HANGS = 35.0
"""Seconds that the store lets a call hang, also one that came as the fault ended."""
_RESTARTED = ("driver", "driver_jvm", "supervisor", "session")
_COLUMNS = {
    "counts": ["key", "n", "total"],
    "parts": ["seq", "key", "v", "kind", "shard", "ts"],
    "windows": ["shard", "window_start", "n", "total"],
    "late": ["seq", "key", "v", "kind", "shard", "ts"],
    "buckets": ["key", "bucket", "rows", "total"],
    "paid": ["seq", "paid", "at"],
}


@dataclass
class Verdict:
    """What was found. A run is good where ``findings`` is empty."""

    findings: list[str] = field(default_factory=list)
    sinks: dict[str, dict[str, int]] = field(default_factory=dict)
    left: dict[str, object] = field(default_factory=dict)
    longest_stall: float = 0.0


def check_output(verdict: Verdict, out: Path, calls: Path, feeder: Feeder) -> None:
    """Every sink against the oracle."""
    wanted = expected(feeder.written("events"), feeder.written("payments"))
    for name, rows in wanted.items():
        actual = applied_calls(verdict, calls) if name == "calls" else visible(verdict, out, name)
        lost, doubled = rows - actual, actual - rows
        verdict.sinks[name] = {"expected": rows.total(), "lost": lost.total(), "doubled": doubled.total()}
        for what, found in (("lost", lost), ("doubled or wrong", doubled)):
            if found:
                examples = "; ".join(str(row) for row in sorted(found, key=str)[:5])
                verdict.findings.append(f"{name}: {found.total():,} of {rows.total():,} rows {what}, such as {examples}")


def visible(verdict: Verdict, out: Path, name: str) -> Counter[tuple[object, ...]]:
    """The rows of one sink. Of an aggregate's updates the last of every key counts, and they must only grow."""
    frames = []
    for path in sorted(path for folder in (out / name, *out.glob(f"{name}.*")) for path in folder.rglob("part-*.parquet")):
        frame = pl.read_parquet(path, hive_partitioning=False)
        if name == "parts":
            value = unquote(path.parent.name.partition("=")[2])
            frame = frame.with_columns(shard=pl.lit(value))
        frames.append(frame.select(_COLUMNS[name]).with_columns(epoch=pl.lit(int(path.name.split("-")[1]))))
    if not frames:
        return Counter()
    rows = pl.concat(frames)
    if name == "counts":
        ordered = rows.sort("key", "epoch")
        shrunk = ordered.filter((pl.col("key") == pl.col("key").shift()) & (pl.col("n") <= pl.col("n").shift()))
        if shrunk.height:
            verdict.findings.append(f"counts: {shrunk.height} updates do not grow, such as {shrunk.row(0, named=True)}")
        rows = ordered.group_by("key", maintain_order=True).last()
    return Counter(rows.select(_COLUMNS[name]).iter_rows())


def applied_calls(verdict: Verdict, path: Path) -> Counter[tuple[object, ...]]:
    """What a function that ignores epochs that are not above the last one has stored. Calls with one epoch must have one content."""
    stored: Counter[tuple[object, ...]] = Counter()
    last, contents = 0, {}
    for line in path.read_text().splitlines() if path.exists() else ():
        call = json.loads(line)
        rows = sorted(tuple(row) for row in call["rows"])
        if contents.setdefault(call["epoch"], rows) != rows:
            verdict.findings.append(f"calls: epoch {call['epoch']} was delivered with other rows than before")
        if call["epoch"] > last:
            last = call["epoch"]
            stored.update(rows)
    return stored


def check_state(verdict: Verdict, store: Path, feeder: Feeder) -> None:
    """The aggregate's state in the store against the oracle."""
    import meander as md

    state = md.read_state(str(store), "counts")
    frame = pl.DataFrame(state) if not isinstance(state, pl.DataFrame) else state
    actual = Counter(frame.select(_COLUMNS["counts"]).iter_rows())
    wanted = expected(feeder.written("events"), feeder.written("payments"))["counts"]
    if actual != wanted:
        examples = "; ".join(str(row) for row in sorted((actual - wanted) + (wanted - actual), key=str)[:5])
        verdict.findings.append(f"state of counts: {((actual - wanted) + (wanted - actual)).total()} rows differ, such as {examples}")

    open_still = {"windows": "shard", "buckets": "key", "paid": "seq"}
    for name, column in open_still.items():  # the feeder's last rows, and nothing else
        left = pl.DataFrame(md.read_state(str(store), name))
        if left.height != 1 or left[column][0] not in ("a", -1):
            verdict.findings.append(f"state of {name}: {left.height} rows are there where all but 1 are over, such as {left.rows()[:3]}")


def check_dead_letters(verdict: Verdict, folder: Path) -> None:
    """No row of the feeder's is bad."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    if files:
        verdict.findings.append(f"{len(files)} files of dead letters, such as {files[0]}: {files[0].read_bytes()[:300]!r}")


def check_stalls(verdict: Verdict, epochs: list[tuple[float, int]], faults: list[Done], until: float) -> None:
    """The time between two new epochs, against the faults that overlap it."""
    moments = [at for at, _ in epochs] + [until]
    for before, after in pairwise(moments):
        gap = after - before
        verdict.longest_stall = max(verdict.longest_stall, gap)
        allowed = PATIENCE + explained(before, after, faults)
        if gap > allowed:
            verdict.findings.append(f"no new epoch for {gap:.0f} s; faults of that time explain {allowed:.0f} s")


def explained(began: float, ended: float, faults: Iterable[Done]) -> float:
    """Seconds: the time that faults overlapped, and a restart where they ended something."""
    overlapping = [one for one in faults if one.began < ended and one.began + one.seconds > began - RESTART]
    ends, lasting = began, 0.0
    for one in sorted(overlapping, key=lambda one: one.began):  # two at a time explain no more than one
        over = one.began + one.seconds + (HANGS if one.kind == "store hang" else 0.0)
        lasting += max(0.0, min(over, ended) - max(one.began, ends))
        ends = max(ends, over)
    return lasting + (RESTART if any(one.kind.split()[-1] in _RESTARTED for one in overlapping) else 0.0)


def check_left_behind(verdict: Verdict, out: Path, store: Path, processes: list[str]) -> None:
    """Processes, temporary files, and objects in the store that no retained epoch names."""
    verdict.left["processes"] = processes
    verdict.findings += [f"a process is left behind: {one}" for one in processes]
    hidden = [str(path.relative_to(out)) for path in out.rglob(".*") if path.name != ".ballast"]
    verdict.left["temporary files"] = len(hidden)
    if hidden:
        verdict.findings.append(f"{len(hidden)} temporary files are left in the output, such as {hidden[0]}")
    local = [path for folder in ("local1", "local2") for path in (out.parent.parent / folder).glob("meander-*")]
    verdict.left["caches of executors"] = len(local)
    unnamed = unnamed_objects(store)
    merged = [name for name in unnamed if "-merge-" in name]  # by one that died: another start removes them, many epochs later
    verdict.left["objects that no retained epoch names"] = len(unnamed) - len(merged)
    verdict.left["of merges that were broken off"] = len(merged)
    if len(unnamed) > len(merged):
        example = next(name for name in unnamed if name not in merged)
        verdict.findings.append(f"{len(unnamed) - len(merged)} objects that no retained epoch names, after a start, such as {example}")
    if len(merged) > MOST_MERGED:
        verdict.findings.append(f"{len(merged)} objects of merges that no retained epoch names, after a start, such as {merged[0]}")
    if overdue := [name for name in merged if is_overdue(name, read_manifest(open_store(str(store))))]:
        verdict.findings.append(f"{len(overdue)} objects of overdue merges are left after a start, such as {overdue[0]}")


def unnamed_objects(store: Path) -> list[str]:
    """What nobody will ever read."""
    opened = open_store(str(store))
    manifest = read_manifest(opened)
    needed = manifest.object_names()
    for state in history(opened, manifest.position):
        needed |= state.object_names()
    return [name for folder in ("segments/", "staged/", "seen/") for name in opened.list(folder) if name not in needed]

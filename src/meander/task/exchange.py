"""The messages between two stages.

A task sends one blob to every task of the next level: the tokens of all attempts it descends from, and what is meant for that
task or must pass through it. Even an empty message is sent, since the tokens are how the driver learns that all consumers saw
the same attempts.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from meander.state.hashing import key_group_bounds
from meander.state.segment import HASH, to_arrow
from meander.task.messages import Common, Report, Seen, Task
from meander.task.operators.contract import Partial
from meander.task.physical import Compiled
from meander.task.rows import Rows
from meander.task.stage import Carried, Outbox


@dataclass
class Received:
    """The rows that a task gets from the level before it."""

    partials: list[Partial] = field(default_factory=list)
    carried: list[Carried] = field(default_factory=list)
    passing: Outbox = field(default_factory=Outbox)
    """What is meant for later levels."""
    seen: Seen = field(default_factory=lambda: Seen(frozenset(), ()))


def send(compiled: Compiled, common: Common, report: Report, *, box: Outbox, seen: Seen) -> Iterator[bytes]:
    """Address what is in the outbox: slot numbers and blobs by turns. The report travels with the blob for slot 0, the tokens with all."""
    level, index = report.task
    slots = common.slots[level + 1]
    tokens = seen.tokens | {(report.task, report.nonce)}
    items: list[list[Any]] = [[] for _ in range(slots)]
    for partial in box.partials:
        target = compiled.keyed[partial.operator].level
        for slot, frame in _cut(partial.frame, common.routing[partial.operator], common.key_groups):
            items[slot % slots].append(("partial", partial.operator, target, slot, partial.unit, _pack(frame), partial.side))
    for item in box.carried:
        rows = item.rows
        slot = (index if rows.unit is None else rows.unit) % common.slots[item.level]
        units = None if rows.units is None else rows.units.tobytes()
        items[slot % slots].append(("rows", item.node, item.level, slot, rows.unit, _pack(rows.frame), units, rows.place, rows.sign))
    for slot in range(slots):
        reports = (*seen.reports, report) if slot == 0 else ()
        yield slot.to_bytes(8, "big")
        yield pickle.dumps((Seen(tokens, reports, seen.error), items[slot]), protocol=5)


def receive(blobs: Iterable[bytes], level: int) -> Received:
    """Take up all that was sent to a task of this level."""
    found = Received()
    tokens: set[tuple[Task, str]] = set()
    reports: list[Report] = []
    failure: tuple[str, str] | None = None
    for raw in blobs:
        seen, items = pickle.loads(raw)
        tokens |= seen.tokens
        reports.extend(seen.reports)
        failure = failure or seen.error
        for item in items:
            _unpack_item(item, level, found)
    found.seen = Seen(frozenset(tokens), tuple(reports), failure)
    return found


def _unpack_item(item: Any, level: int, found: Received) -> None:
    kind, name, target, _slot, unit, data, *rest = item
    if kind == "partial":
        (side,) = rest
        partial = Partial(name, unit, _unpack(data), side)
        (found.partials if target == level else found.passing.partials).append(partial)
        return
    units, place, sign = rest
    rows = Rows(_unpack(data), unit, None if units is None else np.frombuffer(units, np.uint64), None, place, sign=sign)
    (found.carried if target == level else found.passing.carried).append(Carried(name, target, rows))


def _cut(frame: pl.DataFrame, routing: list[int], key_groups: int) -> Iterator[tuple[int, pl.DataFrame]]:
    """Partial states by slot. They are sorted by hash, so that a key group is one run of rows."""
    edges = [0, *np.searchsorted(frame.get_column(HASH).to_numpy(), key_group_bounds(key_groups)).tolist(), frame.height]
    runs: dict[int, list[tuple[int, int]]] = {}
    for group, slot in enumerate(routing):
        begin, end = edges[group], edges[group + 1]
        if begin == end:
            continue
        mine = runs.setdefault(slot, [])
        if mine and mine[-1][1] == begin:
            mine[-1] = (mine[-1][0], end)
        else:
            mine.append((begin, end))
    for slot, pieces in runs.items():
        parts = [frame[a:b] for a, b in pieces]
        yield slot, parts[0] if len(parts) == 1 else pl.concat(parts)


def _pack(frame: pl.DataFrame) -> bytes:
    table = to_arrow(frame)
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    packed: bytes = out.getvalue().to_pybytes()
    return packed


def _unpack(data: bytes) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(pa.ipc.open_stream(data).read_all()))

"""One stage's work in one task: rows in, state merged, rows out. Spark-free: tests call it without a session.

The order of work: read sources or merge state, run the stateless operators in the plan's order, stage what sinks get, and fold
what later stateful operators need into partial states, within units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import polars as pl
import pyarrow as pa

from meander.clock import Clock
from meander.connect.parquet import encode_parquet
from meander.coordinate.routing import groups_of
from meander.engine.compiled import Compiled, Keyed
from meander.engine.evaluate import DeadLetter, evaluate
from meander.engine.messages import Control, Report
from meander.engine.rows import Rows, Units, source_unit, state_unit
from meander.errors import BadInput
from meander.plan.operators import Union
from meander.state.grouping import fold_rows, fold_states, group_rows
from meander.state.hashing import Hashes, hash_keys, in_groups, key_groups_of
from meander.state.segment import HASH, Segment, SegmentRef, encode_segment
from meander.state.store import Store
from meander.state.table import Open, upsert
from meander.state.values import lengths, new_members, numbered, whole_lists

UNIT = "__unit"
DEAD_LETTERS = "__dead_letters"


@dataclass(frozen=True)
class Partial:
    """Partial states on their way to a stateful operator, ascending by hash. ``unit`` is None where they have a unit column."""

    operator: str
    unit: int | None
    frame: pl.DataFrame


@dataclass(frozen=True)
class Carried:
    """Rows on their way to a stateless operator of a later stage (a union with what comes out of one)."""

    node: str
    level: int
    rows: Rows


@dataclass
class Outbox:
    """What a stage's task hands on."""

    partials: list[Partial] = field(default_factory=list)
    carried: list[Carried] = field(default_factory=list)


class Segments(Protocol):
    """How a task comes by segments, and where it leaves those it writes."""

    def open(self, ref: SegmentRef, hashes: Hashes) -> Segment: ...

    def expect(self, refs: Sequence[SegmentRef], hashes: Hashes) -> None: ...

    def wrote(self, name: str, data: pa.Buffer) -> None: ...


FindSegments = Callable[[Report], Segments]


class StageTask:
    """One attempt of one task."""

    def __init__(self, compiled: Compiled, control: Control, store: Store, find_segments: FindSegments, clock: Clock) -> None:
        self.compiled = compiled
        self.control = control
        self.store = store
        self.clock = clock
        self.report = Report((control.level, control.index), clock.new_id())
        self._segments = find_segments(self.report)
        self._dead: list[DeadLetter] = []
        self._collected: dict[str, list[pl.DataFrame]] = {}

    # -- the two ways a stage begins ------------------------------------------------------------------------------

    def run_sources(self, box: Outbox, only_groups: dict[str, int] | None = None) -> None:
        """Level 0: read this task's splits and run the first stage on each of them.

        With ``only_groups`` this is a small epoch without an exchange: every slot reads every split and keeps its own key
        groups; all else that comes of a split is the business of one designated slot.
        """
        for split in self.control.splits:
            mine = only_groups is None or split.unit % self.control.common.slots[1] == self.control.index
            began = self.clock.monotonic()
            batch = self.compiled.sources[split.source].source.read(split.payload)
            self._spend("read", began)
            if batch.bad and self.control.common.strict:
                first = batch.bad[0]
                raise BadInput(f"source '{split.source}', epoch {self.control.common.epoch}, {first.position}: {first.reason}")
            if mine:
                self.report.units[split.unit] = batch.frame.height + len(batch.bad)
                self.report.count("rows_in", self.report.units[split.unit])
                self._dead.extend(DeadLetter(split.source, bad.position, bad.reason, bad.content) for bad in batch.bad)
            place = str(split.payload.get("path", f"{split.source}/{split.unit}"))
            if "start" in split.payload and "path" not in split.payload:
                place = f"{split.source}[{split.payload.get('partition', 0)}]+{split.payload['start']}"
            rows = Rows(batch.frame, source_unit(split.unit), place=place, locate=batch.position)
            self._run_level(0, {split.source: [rows]}, box, only_groups, mine)

    def run_state(self, partials: Iterable[Partial], carried: Iterable[Carried], box: Outbox) -> None:
        """Level 1 and up: merge partial states with the stored ones, and go on with what changed."""
        level = self.control.level
        values: dict[str, list[Rows]] = {}
        arrived = list(partials)
        for name in self.compiled.levels[level].keyed:
            changed = self._merge(self.compiled.keyed[name], [p for p in arrived if p.operator == name])
            values[name] = [] if changed is None else [changed]
        for item in carried:
            values.setdefault(item.node, []).append(item.rows)
        self._run_level(level, values, box, None, True)

    # -- what both have in common ---------------------------------------------------------------------------------

    def _run_level(self, number: int, values: dict[str, list[Rows]], box: Outbox, only_groups: dict[str, int] | None, mine: bool) -> None:
        level = self.compiled.levels[number]
        began = self.clock.monotonic()
        for node in level.stateless:
            inputs = [rows for name in node.inputs for rows in values.get(name, [])]
            if isinstance(node.op, Union):
                columns = list(self.compiled.plan.schema(node.name))
                values[node.name] = [rows.with_frame(rows.frame.select(columns)) for rows in inputs]
                continue
            dead: list[DeadLetter] = []
            values[node.name] = [evaluate(node, rows, dead, self.control.common.epoch, self.control.common.strict) for rows in inputs]
            if mine:
                self._dead.extend(dead)
        self._spend("compute", began)
        if mine:
            for sink in level.sinks:
                rows_out = values.get(sink.inputs[0], [])
                self._collect(sink.name, rows_out)
                self.report.handed_on(number, sum(rows.frame.height for rows in rows_out))
            for name, later in level.carries:
                box.carried.extend(Carried(name, later, rows) for rows in values.get(name, []))
                self.report.handed_on(number, sum(rows.frame.height for rows in values.get(name, [])))
        began = self.clock.monotonic()
        for name, operator in level.feeds:
            keyed = self.compiled.keyed[operator]
            keep = None if only_groups is None or keyed.level != 1 else only_groups[operator]
            if mine or keep is not None:
                folded = [self._fold(keyed, rows, keep) for rows in values.get(name, []) if rows.frame.height]
                box.partials.extend(folded)
                self.report.handed_on(number, sum(partial.frame.height for partial in folded))
        self._spend("fold", began)

    def _fold(self, keyed: Keyed, rows: Rows, keep: int | None) -> Partial:
        """Rows to partial states, one per key and unit."""
        hashes = hash_keys(rows.frame.select(keyed.keys))
        if keep is not None:
            mask = in_groups(hashes, keep, self.control.common.key_groups)
            if not mask.all():
                rows, hashes = rows.filter(pl.Series(mask)), hashes[mask]
        keys = rows.frame.select(keyed.keys)
        groups = group_rows(keys, hashes, rows.units)
        states = fold_rows(rows.frame, groups, keyed.parts)
        columns = [pl.Series(HASH, groups.hashes), *keys[groups.heads].get_columns(), *states.values()]
        if rows.units is not None:
            columns.append(pl.Series(UNIT, rows.units[groups.heads]))
        return Partial(keyed.name, rows.unit, pl.DataFrame(columns))

    def _merge(self, keyed: Keyed, partials: list[Partial]) -> Rows | None:
        """Fold partial states in unit order, merge them with the stored ones, and write what changed as a segment."""
        common = self.control.common
        began = self.clock.monotonic()
        partials = [p for p in partials if p.frame.height]
        if not partials:
            return None
        frame, hashes, units = _stack(partials)
        self.report.groups[keyed.name] = np.bincount(key_groups_of(hashes, common.key_groups), minlength=common.key_groups)
        keys = frame.select(keyed.keys)
        if len(partials) > 1 or units is not None:
            if units is not None:
                order = np.argsort(units, kind="stable")
                frame, hashes, keys = frame[order], hashes[order], keys[order]
            groups = group_rows(keys, hashes)
            states = fold_states(frame, groups, keyed.parts)
            keys, hashes = keys[groups.heads], groups.hashes
        else:
            states = {name: frame.get_column(name) for name in keyed.parts}
        self._spend("fold", began)
        began = self.clock.monotonic()
        written: dict[str, pl.DataFrame] = {}
        for values in keyed.values:
            lists = states[values.values]
            counts = lengths(lists)
            if not values.is_list:
                counts, written[values.name] = new_members(values, *self._stored(values.name), keys, hashes, lists, common.key_groups)
            states[values.count] = pl.Series(values.count, counts)
        self._segments.expect(self._stored(keyed.name)[0], hashes)
        table = upsert(*self._stored(keyed.name), keys, hashes, states, keyed.stored, common.key_groups)
        whole: list[pl.Series] = []
        for values in keyed.values:
            if values.is_list:
                lists, totals = states[values.values], table.get_column(values.count).to_numpy()
                written[values.name] = numbered(values, keys, hashes, lists, totals)
                whole.append(whole_lists(values, *self._stored(values.name), keys, hashes, lists, totals, common.key_groups))
        self._spend("state read", began)
        began = self.clock.monotonic()
        mask = groups_of(common.routing[keyed.name], self.control.index)
        for name, rows in {keyed.name: table, **written}.items():
            if rows.height:
                self._write_segment(name, rows, mask)
        self._spend("state write", began)
        emitted = table.with_columns(whole).select(keyed.output)
        groups_of_rows = key_groups_of(hashes, common.key_groups)
        units_out: Units = groups_of_rows.astype(np.uint64) + np.uint64(state_unit(keyed.number, 0))
        return Rows(emitted, None, units_out, place=keyed.name)

    def _stored(self, table: str) -> tuple[tuple[SegmentRef, ...], Open]:
        return self.control.segments.get(table, ()), self._segments.open

    def _write_segment(self, table: str, rows: pl.DataFrame, groups: int) -> None:
        common = self.control.common
        name = f"segments/{table}/{common.generation:08d}-{common.epoch:010d}-{self.control.index:04d}-{self.report.nonce}.arrow"
        data = encode_segment(rows)
        self.store.put(name, data)
        self._segments.wrote(name, data)
        self.report.segments[table] = SegmentRef(name, rows.height, data.size, common.epoch, groups)

    # -- sinks and dead letters -----------------------------------------------------------------------------------

    def _collect(self, sink: str, rows: list[Rows]) -> None:
        self._collected.setdefault(sink, []).extend(r.frame for r in rows if r.frame.height)

    def finish(self) -> Report:
        """Stage what sinks and dead letters got. After this the attempt's report is complete."""
        began = self.clock.monotonic()
        for sink, frames in self._collected.items():
            if frames:
                whole = pl.concat(frames)
                self.report.count("rows_out", whole.height)
                self._stage(sink, whole, self.compiled.sinks[sink].sink.encode)
        if self._dead:
            self.report.count("dead_letters", len(self._dead))
            self._stage(DEAD_LETTERS, dead_letter_frame(self.control.common.epoch, self._dead), encode_parquet)
        self._spend("stage", began)
        return self.report

    def _stage(self, sink: str, frame: pl.DataFrame, encode: Callable[[pl.DataFrame], bytes]) -> None:
        data = encode(frame)
        if not data:
            return
        common, (level, index) = self.control.common, self.report.task
        name = f"staged/{sink}/{common.generation:08d}-{common.epoch:010d}-{level}-{index:04d}-{self.report.nonce}"
        self.store.put(name, data)
        slot = index + sum(common.slots[:level]) if sink == DEAD_LETTERS else index
        self.report.staged[sink] = {"name": name, "slot": slot, "rows": frame.height}

    def _spend(self, part: str, began: float) -> None:
        self.report.seconds[part] = self.report.seconds.get(part, 0.0) + self.clock.monotonic() - began


def _stack(partials: list[Partial]) -> tuple[pl.DataFrame, Hashes, Units | None]:
    """All partial states in the order of their units."""
    if all(p.unit is not None for p in partials):
        frames = [p.frame for p in sorted(partials, key=lambda p: p.unit or 0)]
        frame = frames[0] if len(frames) == 1 else pl.concat(frames)
        return frame, frame.get_column(HASH).to_numpy(), None
    frames = [
        p.frame if p.unit is None else p.frame.with_columns(pl.Series(UNIT, np.full(p.frame.height, p.unit, np.uint64))) for p in partials
    ]
    frame = pl.concat(frames)
    return frame, frame.get_column(HASH).to_numpy(), frame.get_column(UNIT).to_numpy()


def dead_letter_frame(epoch: int, letters: list[DeadLetter]) -> pl.DataFrame:
    rows = [(epoch, d.operator, d.position, d.reason, d.content) for d in letters]
    schema = {"epoch": pl.Int64, "operator": pl.String, "position": pl.String, "reason": pl.String, "content": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")

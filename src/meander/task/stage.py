"""One stage's work in one task: rows in, state merged, rows out. Tests call it without a session.

The order of work: read sources or run stateful operators, run the stateless operators in the plan's
order, stage the rows for sinks, and prepare the frames for later stateful operators. Stateful
operators have one contract: see ``task.operators.contract``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import polars as pl
import pyarrow as pa

from meander.clock import Clock
from meander.connect.net import net, signed
from meander.connect.parquet import encode_parquet
from meander.connect.sink import RefusesRows
from meander.coordinate.marks import micros_of, reached
from meander.coordinate.routing import groups_of
from meander.errors import BadInput, Corrupted, Retryable
from meander.metrics import late_count
from meander.plan.changes import Changelog
from meander.plan.eventtime import Late, Watermark
from meander.plan.graph import Node
from meander.plan.operators import MapBatches, Union
from meander.plan.processing import Side
from meander.plan.sessions import GAP
from meander.plan.windows import FOREVER, NEVER, show_duration
from meander.state import formats
from meander.state.hashing import Hashes, key_groups_of
from meander.state.manifest import operator_of
from meander.state.segment import HASH, SOONEST, Segment, SegmentRef, encode_segment, ends_of
from meander.state.stores.contract import Store
from meander.state.table import Kept, conform
from meander.task.evaluate import DeadLetter, content_of, evaluate
from meander.task.messages import Control, Lookup, Report
from meander.task.operators.contract import Emitted, Intake, Partial, Stateful
from meander.task.operators.folding import one_zero
from meander.task.operators.workspace import Workspace
from meander.task.physical import Compiled
from meander.task.row_digest import digest_of
from meander.task.rows import Rows, Units, source_unit, state_unit, together

DEAD_LETTERS = "__dead_letters"
_SMALL_SPLIT = 4096
"""Rows of a split that is folded with others."""
_FOLDED_AT_ONCE = 65_536
"""About how many rows of them are gathered, over all operators."""


@dataclass(frozen=True)
class Carried:
    """Rows on their way to a stateless operator of a later stage (a union with that stage's
    output)."""

    node: str
    level: int
    rows: Rows


@dataclass
class Outbox:
    """The frames and reports that a stage's task hands on."""

    partials: list[Partial] = field(default_factory=list)
    carried: list[Carried] = field(default_factory=list)


class Segments(Protocol):
    """How a task comes by segments, and where it leaves those it writes."""

    def open(self, ref: SegmentRef, hashes: Hashes) -> Segment: ...

    def announce(self, lookups: Sequence[Lookup]) -> None: ...

    def expect(self, refs: Sequence[SegmentRef], hashes: Hashes) -> None: ...

    def scan(self, ref: SegmentRef) -> Segment: ...

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
        self._written: list[str] = []
        self._segments = find_segments(self.report)
        self._dead: list[DeadLetter] = []
        self._collected: dict[str, list[pl.DataFrame]] = {}
        self._small: dict[tuple[str, int], list[Rows]] = {}
        """By operator and input, the rows of small splits: they are folded together, since a call costs more than the rows of one."""
        self._gathered = 0

    # -- the two ways a stage begins ------------------------------------------------------------------------------

    def run_sources(self, box: Outbox, only_groups: dict[str, int] | None = None) -> None:
        """Level 0: read this task's splits and run the first stage on each of them.

        With ``only_groups`` this is a small epoch without an exchange: every slot reads every split and keeps its own key
        groups; all else that comes of a split is the business of one designated slot.
        """
        for split in self.control.splits:
            mine = only_groups is None or split.unit % self.control.common.slots[1] == self.control.index
            began = self.clock.monotonic()
            source = self.compiled.sources[split.source]
            batch = source.read(split.payload)
            self._spend("read", began)
            if batch.bad and self.control.common.strict:
                first = batch.bad[0]
                raise BadInput(f"source '{split.source}', epoch {self.control.common.epoch}, {first.position}: {first.reason}")
            if split.source in self.control.common.watched:
                if (fault := source.newly_bad(split.payload, batch)) is not None:
                    raise BadInput(
                        f"source '{split.source}', epoch {self.control.common.epoch}, {fault}; with its columns before it could be read"
                    )
                self.report.tried |= {split.source} if batch.frame.height else set()
            if mine:
                self.report.units[split.unit] = batch.frame.height + len(batch.bad)
                self.report.count("rows_in", self.report.units[split.unit])
                self._dead.extend(DeadLetter(split.source, bad.position, bad.reason, bad.content) for bad in batch.bad)
            place = str(split.payload.get("path", f"{split.source}/{split.unit}"))
            if "start" in split.payload and "path" not in split.payload:
                place = f"{split.source}[{split.payload.get('partition', 0)}]+{split.payload['start']}"
            partition = f"{split.source}/{split.payload.get('partition', 0)}"
            rows = Rows(batch.frame, source_unit(split.unit), place=place, locate=batch.position, partition=partition)
            self._run_level(0, {split.source: [rows]}, box, only_groups, mine)
            if self._gathered > _FOLDED_AT_ONCE:
                self._fold_small(box, only_groups)
        self._fold_small(box, only_groups)

    def run_state(self, partials: Iterable[Partial], carried: Iterable[Carried], box: Outbox) -> None:
        """Level 1 and up: merge partial states with the stored ones, and go on with the changed
        rows."""
        level = self.control.level
        values: dict[str, list[Rows]] = {}
        arrived: dict[str, list[Partial]] = {name: [] for name in self.compiled.levels[level].keyed}
        for partial in partials:
            if partial.frame.height:
                arrived[partial.operator].append(partial)
        self._segments.announce([self._lookup(name, came) for name, came in arrived.items() if came and self.compiled.keyed[name].finds])
        for name, came in arrived.items():
            values[name] = self._work(self.compiled.keyed[name], came, values)
        for item in carried:
            values.setdefault(item.node, []).append(item.rows)
        self._run_level(level, values, box, None, True)

    # -- what both have in common ---------------------------------------------------------------------------------

    def _run_level(self, number: int, values: dict[str, list[Rows]], box: Outbox, only_groups: dict[str, int] | None, mine: bool) -> None:
        level = self.compiled.levels[number]
        began = self.clock.monotonic()
        for node in level.stateless:
            if isinstance(node.op, Side):  # it was given its rows by its processor
                continue
            inputs = [rows for name in node.inputs for rows in values.get(name, [])]
            if isinstance(node.op, Union):
                columns = list(self.compiled.plan.schema(node.name))
                values[node.name] = [rows.with_frame(rows.frame.select(columns)) for rows in inputs]
                continue
            if isinstance(node.op, Watermark | Late):
                values[node.name] = [self._timed(node, rows, mine) for rows in inputs if rows.frame.height]
                continue
            if isinstance(node.op, Changelog):
                values[node.name] = [rows.with_sign(node.op.column) for rows in inputs if rows.sign]
                continue
            dead: list[DeadLetter] = []
            gone: list[DeadLetter] = []  # of rows that were dead letters when they came
            common, watched = self.control.common, node.name in self.control.common.watched
            values[node.name] = [
                evaluate(node, rows, gone if rows.sign < 0 else dead, common.epoch, common.strict, watched) for rows in inputs
            ]
            if mine:
                self._dead.extend(dead)
                if isinstance(node.op, MapBatches):
                    self._digest(node.name, (rows.frame for rows in values[node.name]))
        self._spend("compute", began)
        if self.control.common.watched:
            new = [node for node in (*level.stateless, *level.sinks) if node.name in self.control.common.watched]
            came = {name for name, some in values.items() if any(rows.frame.height for rows in some)}
            self.report.tried |= {node.name for node in new if not came.isdisjoint(node.inputs)}
        if mine:
            for sink in level.sinks:
                rows_out = self._for_sink(sink, values.get(sink.inputs[0], []))
                self._digest(sink.name, (rows.frame for rows in rows_out))
                self._collect(sink.name, rows_out)
                self.report.handed_on(number, sum(rows.frame.height for rows in rows_out))
            for name, later in level.carries:
                box.carried.extend(Carried(name, later, rows) for rows in values.get(name, []))
                self.report.handed_on(number, sum(rows.frame.height for rows in values.get(name, [])))
        began = self.clock.monotonic()
        for name, operator, side in level.feeds:
            keyed = self.compiled.keyed[operator]
            keep = self._kept(keyed, only_groups)
            if mine or keep is not None:
                wanted = [some for some in values.get(name, []) if (some.sign != 0 if keyed.takes_changes else some.sign >= 0)]
                if operator in self.compiled.gauges:
                    wanted = [self._gauged(keyed, side, some, mine) for some in wanted if some.frame.height]
                in_time = [self._in_time(keyed, side, some, mine) for some in wanted if some.frame.height]
                if operator in self.compiled.computes:
                    in_time = [self._computed(operator, some, mine) for some in in_time]
                if number == 0 and keyed.folds and all(some.frame.height <= _SMALL_SPLIT for some in in_time):
                    self._small.setdefault((operator, side), []).extend(in_time)
                    self._gathered += sum(some.frame.height for some in in_time)
                else:
                    self._before(number, keyed, side, in_time, keep, box)
        self._spend("fold", began)

    def _kept(self, keyed: Stateful, only_groups: dict[str, int] | None) -> int | None:
        """The key groups of an operator that this task is to send; None: all."""
        return None if only_groups is None or keyed.level != 1 else only_groups[keyed.name]

    def _before(self, level: int, keyed: Stateful, side: int, rows: Sequence[Rows], keep: int | None, box: Outbox) -> None:
        """The frame that one input of a stateful operator sends through the exchange."""
        common = self.control.common
        intake = Intake(common.key_groups, keep, micros_of(common.now))
        for some in rows:
            if some.frame.height:
                same = some.with_frame(one_zero(some.frame, keyed.found_by(side)))
                partial = Partial(keyed.name, some.unit, keyed.before(same, side, intake), side)
                box.partials.append(partial)
                self.report.handed_on(level, partial.frame.height)

    def _fold_small(self, box: Outbox, only_groups: dict[str, int] | None) -> None:
        """The frames of small splits: the same partial states, one per key and unit, from one call
        for many splits."""
        began = self.clock.monotonic()
        small, self._small, self._gathered = self._small, {}, 0
        for (operator, side), rows in small.items():
            keyed = self.compiled.keyed[operator]
            self._before(0, keyed, side, together(rows), self._kept(keyed, only_groups), box)
        self._spend("fold", began)

    def _lookup(self, name: str, arrived: Sequence[Partial]) -> Lookup:
        """Announce the keys that an operator is going to look up in its table."""
        hashes = [partial.frame.get_column(HASH).to_numpy() for partial in arrived]
        return self.control.segments.get(name, ()), lambda: np.unique(np.concatenate(hashes))

    def _work(self, keyed: Stateful, arrived: list[Partial], values: dict[str, list[Rows]]) -> list[Rows]:
        """A stateful operator's part of the epoch: merge arrived rows with stored ones, and write
        the changed rows.

        Rows of its side outputs go to ``values``, under the names of the operators that read them.
        """
        common, name = self.control.common, keyed.name
        began = self.clock.monotonic()
        if arrived:
            self.report.tried |= {name} & common.watched
            groups = (key_groups_of(p.frame.get_column(HASH).to_numpy(), common.key_groups) for p in arrived)
            self.report.groups[name] = np.sum([np.bincount(of, minlength=common.key_groups) for of in groups], axis=0)

        def lap(part: str) -> None:
            nonlocal began
            began = self._spend(part, began)

        mask = groups_of(common.routing[name], self.control.index)
        segments = {table: refs for table, refs in self.control.segments.items() if operator_of(table) == name}
        late, evict = common.marks.late.get(name, NEVER), common.marks.evict.get(name, NEVER)
        found = (self._segments.open, self._segments.scan, self._segments.expect)
        now = micros_of(common.now)
        strict = common.strict or name in common.watched
        kept = keyed.tables()
        workspace = Workspace(
            name, late, evict, now, mask, common.key_groups, kept, segments, common.marks.floors, *found, lap, common.epoch, strict
        )
        workspace.quiet = common.marks.quiet
        emitted = keyed.work(workspace, arrived)
        lap("state read")
        for table, rows in workspace.written.items():
            self._write_segment(table, kept[table], self._lasting(keyed, table, kept[table], rows, evict), mask)
        lap("state write")
        if emitted is not None:
            values.update(self._sides(keyed, emitted))
            emitted = Emitted(_as_planned(keyed, emitted.frame), emitted.hashes, emitted.signs)
        self._digest(name, [*workspace.written.values(), *([] if emitted is None else [emitted.frame])])
        self._dead.extend(workspace.dead)
        self.report.next_ends.update(workspace.next_ends)
        if workspace.closed > NEVER:
            self.report.closed[name] = workspace.closed
        return [] if emitted is None or emitted.frame.height == 0 else self._placed(keyed, emitted)

    def _lasting(self, keyed: Stateful, table: str, kept: Kept, rows: pl.DataFrame, evict: int) -> pl.DataFrame:
        """The rows that are not over with this epoch.

        Before a change is proven nothing is left out: the plan before it may keep longer what is over under this one.
        """
        if kept.time is None:
            return rows
        common, times = self.control.common, rows.get_column(kept.time).to_numpy()
        floor = common.marks.floors.get(table, SOONEST)
        if int(times.min()) <= floor:
            raise Corrupted(
                f"operator '{keyed.name}' writes rows of table '{table}' that end at {int(times.min())}, where it is over up to {floor}"
            )
        over = keyed.over(table, reached(keyed, table, evict, common.now, common.epoch))
        if common.watched or over is None or over < int(times.min()):
            return rows
        return rows.filter(pl.Series(times > over))

    def _digest(self, name: str, frames: Iterable[pl.DataFrame]) -> None:
        if self.control.common.digests:
            found = sum(digest_of(frame) for frame in frames)
            self.report.digests[name] = (self.report.digests.get(name, 0) + found) % (1 << 64)

    def _placed(self, keyed: Stateful, emitted: Emitted) -> list[Rows]:
        groups = key_groups_of(emitted.hashes, self.control.common.key_groups)
        units: Units = groups.astype(np.uint64) + np.uint64(state_unit(keyed.number, 0))
        if emitted.signs is None:
            return [Rows(emitted.frame, None, units, place=keyed.name)]
        found = []
        for sign in np.unique(emitted.signs).tolist():
            here = emitted.signs == sign
            found.append(Rows(emitted.frame.filter(pl.Series(here)), None, units[here], place=keyed.name, sign=sign))
        return found

    def _sides(self, keyed: Stateful, emitted: Emitted) -> dict[str, list[Rows]]:
        """The readers of an operator's side outputs, and their rows."""
        found = {}
        for node in self.compiled.levels[self.control.level].stateless:
            if isinstance(node.op, Side) and keyed.name in node.inputs and node.op.output in emitted.sides:
                frame, hashes = emitted.sides[node.op.output]
                frame = conform(frame, self.compiled.plan.schema(node.name))
                self._digest(node.name, [frame])
                found[node.name] = self._placed(keyed, Emitted(frame, hashes))
        return found

    # -- time -----------------------------------------------------------------------------------------------------

    def _timed(self, node: Node, rows: Rows, mine: bool) -> Rows:
        if isinstance(node.op, Late):
            keyed = self.compiled.keyed[node.op.operator]
            columns = rows.frame.columns
            if keyed.name in self.compiled.gauges:
                rows = self._gauged(keyed, node.op.side, rows, mine=False)
            late = keyed.refuses(rows.frame, node.op.side, self.control.common.marks.late[keyed.name])
            rows = rows.filter(pl.Series(np.zeros(rows.frame.height, np.bool_) if late is None else late))
            return rows.with_frame(rows.frame.select(columns))
        assert isinstance(node.op, Watermark)
        known = rows.frame.get_column(node.op.column).is_not_null()
        if not known.all():
            self._refuse(node.name, rows.filter(~known), f"the event time {node.op.column} is null", mine and rows.sign >= 0, bad=True)
            rows = rows.filter(known)
        if node.op.max_ahead is not None:
            rows = self._not_ahead(node.name, node.op.column, node.op.max_ahead, rows, mine)
        counted = rows.frame.get_column(node.op.column).dt.epoch("us").is_between(NEVER, FOREVER, closed="none").fill_null(value=False)
        if not counted.all():  # beyond that are the ends of time
            reason = f"the event time {node.op.column} is more than {FOREVER} microseconds away from 1970"
            self._refuse(node.name, rows.filter(~counted), reason, mine and rows.sign >= 0, bad=True)
            rows = rows.filter(counted)
        if rows.frame.height:
            largest = rows.frame.get_column(node.op.column).dt.epoch("us").max()
            assert isinstance(largest, int)
            heard = self.report.heard.setdefault(node.name, {})
            heard[rows.partition] = max(largest, heard.get(rows.partition, NEVER))
        return rows

    def _not_ahead(self, name: str, column: str, most: int, rows: Rows, mine: bool) -> Rows:
        """Without the rows that are too far ahead of the decision's time: the mark would follow them, and all others would be late."""
        ahead = (rows.frame.get_column(column).dt.epoch("us") > micros_of(self.control.common.now) + most).fill_null(value=False)
        if not ahead.any():
            return rows
        # Not bad on probation: it is no failure of the change that it finds what it is for.
        reason = f"the event time {column} is more than {show_duration(most)} ahead of the clock"
        self._refuse(name, rows.filter(ahead), reason, mine, bad=self.control.common.strict)
        return rows.filter(~ahead)

    def _in_time(self, keyed: Stateful, side: int, rows: Rows, mine: bool) -> Rows:
        """Without the rows that an operator refuses because they come too late: these are counted, and kept elsewhere."""
        late = self.control.common.marks.late.get(keyed.name, NEVER)
        refused = keyed.refuses(rows.frame, side, late)
        if refused is None or not refused.any():
            if mine and keyed.parted(rows.frame, side, late):
                self.report.late.add(keyed.name)
            return rows
        too_late = rows.filter(pl.Series(refused))
        if mine:
            self.report.count("late_rows", too_late.frame.height)
            self.report.count(late_count(keyed.name), too_late.frame.height)
            self.report.late.add(keyed.name)
        if side not in keyed.keeps_late:
            bare = too_late.with_frame(too_late.frame.drop(GAP, strict=False))
            self._refuse(keyed.name, bare, keyed.why_late(), mine)
        return rows.filter(pl.Series(~refused))

    def _gauged(self, keyed: Stateful, side: int, rows: Rows, mine: bool) -> Rows:
        """With the column that an operator measures its rows by; without the rows for which there is none that it could take."""
        dead: list[DeadLetter] = []
        common, columns = self.control.common, rows.frame.columns
        mine = mine and rows.sign >= 0
        rows = evaluate(self.compiled.gauges[keyed.name], rows, dead, common.epoch, common.strict, keyed.name in common.watched)
        if mine:
            self._dead.extend(dead)
        reasons = keyed.unfit(rows.frame, side, micros_of(common.now))
        if reasons is None:
            return rows
        for reason in reasons.drop_nulls().unique(maintain_order=True):
            unfit = rows.filter((reasons == reason).fill_null(value=False))
            self._refuse(keyed.name, unfit.with_frame(unfit.frame.select(columns)), reason, mine, bad=True)
        return rows.filter(reasons.is_null())

    def _computed(self, operator: str, rows: Rows, mine: bool) -> Rows:
        """With the columns that an operator's aggregates are of; without the rows for which they cannot be computed."""
        dead: list[DeadLetter] = []
        common = self.control.common
        rows = evaluate(self.compiled.computes[operator], rows, dead, common.epoch, common.strict, operator in common.watched)
        if mine and rows.sign >= 0:  # a row that is gone was there before, and is in the dead letters already
            self._dead.extend(dead)
        return rows

    def _refuse(self, operator: str, rows: Rows, reason: str, mine: bool, bad: bool = False) -> None:
        """Send rows to the dead letters. Bad rows, but not late ones, stop a strict flow, and fail
        a change of the operator on probation."""
        if bad and (self.control.common.strict or operator in self.control.common.watched):
            raise BadInput(f"operator '{operator}', epoch {self.control.common.epoch}, row {rows.position(0)}: {reason}")
        if mine:
            for row in range(rows.frame.height):
                self._dead.append(DeadLetter(operator, rows.position(row), reason, content_of(rows.frame, row)))

    def _write_segment(self, table: str, kept: Kept, rows: pl.DataFrame, groups: int) -> None:
        if rows.height == 0:
            return
        common = self.control.common
        name = f"segments/{table}/{common.generation:08d}-{common.epoch:010d}-{self.control.index:04d}-{self.report.nonce}.arrow"
        data = encode_segment(rows, time=kept.time)
        self._put(name, data)
        self._segments.wrote(name, data)
        self.report.segments[table] = SegmentRef(name, rows.height, data.size, common.epoch, groups, ends_of(data))

    # -- sinks and dead letters -----------------------------------------------------------------------------------

    def _for_sink(self, node: Node, rows: Sequence[Rows]) -> list[Rows]:
        """The rows for a sink: of changes the log or, if the sink shows the table, the added and
        removed rows."""
        if node.name not in self.compiled.tables:
            return [self._publishable(node, some) for some in rows if some.sign >= 0]
        with_sign = [self._publishable(node, some) for some in rows if some.sign]
        return [some.with_frame(signed(some.frame, some.sign)) for some in with_sign]

    def _publishable(self, node: Node, rows: Rows) -> Rows:
        """Without the rows that a sink could not publish once they are committed."""
        sink = self.compiled.sinks[node.name].sink
        reasons = sink.refused(rows.frame) if isinstance(sink, RefusesRows) and rows.frame.height else None
        if reasons is None:
            return rows
        said = rows.sign < 0  # when it came
        for reason in () if said else reasons.drop_nulls().unique(maintain_order=True):
            self._refuse(node.name, rows.filter((reasons == reason).fill_null(value=False)), reason, mine=True, bad=True)
        return rows.filter(reasons.is_null())

    def _collect(self, sink: str, rows: list[Rows]) -> None:
        self._collected.setdefault(sink, []).extend(r.frame for r in rows if r.frame.height)

    def finish(self) -> Report:
        """Stage what sinks and dead letters got. After this the attempt's report is complete."""
        began = self.clock.monotonic()
        for sink, frames in self._collected.items():
            if frames:
                whole = pl.concat(frames)
                if sink in self.compiled.tables and (whole := net(whole)).height == 0:
                    continue
                self.report.count("rows_out", whole.height)
                self._stage(sink, whole, self.compiled.sinks[sink].sink.encode)
        if self._dead:
            self.report.count("dead_letters", len(self._dead))
            self._stage(DEAD_LETTERS, dead_letter_frame(self.control.common.epoch, self._dead), encode_dead_letters)
        self._spend("stage", began)
        return self.report

    def _stage(self, sink: str, frame: pl.DataFrame, encode: Callable[[pl.DataFrame], bytes]) -> None:
        data = encode(frame)
        if not data:
            return
        common, (level, index) = self.control.common, self.report.task
        name = f"staged/{sink}/{common.generation:08d}-{common.epoch:010d}-{level}-{index:04d}-{self.report.nonce}"
        self._put(name, data)
        slot = index + sum(common.slots[:level]) if sink == DEAD_LETTERS else index
        self.report.staged[sink] = {"name": name, "slot": slot, "rows": frame.height}

    def _put(self, name: str, data: bytes | pa.Buffer) -> None:
        self._written.append(name)  # first: a put that is not answered may have an effect
        self.store.put(name, data)

    def discard(self) -> None:
        """The attempt has failed, and no entry will name its objects: remove them, since on a full
        disk every try would leave more."""
        with contextlib.suppress(Retryable):
            while self._written:
                self.store.delete(self._written.pop())

    def _spend(self, part: str, began: float) -> float:
        """The time since ``began`` was spent on this. Returns what it is now."""
        now = self.clock.monotonic()
        self.report.seconds[part] = self.report.seconds.get(part, 0.0) + now - began
        return now


def _as_planned(keyed: Stateful, frame: pl.DataFrame) -> pl.DataFrame:
    """The rows that leave an operator, with the types that the plan says. Slots whose types differ could be committed and not published."""
    assert frame.columns == keyed.schema.names(), f"'{keyed.name}' gives out {frame.columns}, and not {keyed.schema.names()}"
    return conform(frame, keyed.schema)


def encode_dead_letters(frame: pl.DataFrame) -> bytes:
    return encode_parquet(frame, formats.DEAD_LETTERS.metadata())


def dead_letter_frame(epoch: int, letters: list[DeadLetter]) -> pl.DataFrame:
    rows = [(epoch, d.operator, d.position, d.reason, d.content) for d in letters]
    schema = {"epoch": pl.Int64, "operator": pl.String, "position": pl.String, "reason": pl.String, "content": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")

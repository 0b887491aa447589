"""Stages without Spark: aggregates that keep any number of values per key, beside a plain dict, through epochs, merges and rescalings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.entries import epoch_entry
from tests.local import ReadOnly

import meander as md
from meander.clock import SystemClock
from meander.connect.source import Batch
from meander.coordinate.routing import groups_of, rebalance, slots_of, spread
from meander.epochs.compaction import due_merges, finished_merge, merge_entry
from meander.epochs.resumption import put_plan
from meander.state import compaction as compaction_module
from meander.state.compaction import run_merge
from meander.state.hashing import Hashes
from meander.state.log import Log
from meander.state.manifest import Manifest
from meander.state.segment import Segment, SegmentRef, ends_of
from meander.state.stores.contract import DirStore
from meander.task.exchange import _cut
from meander.task.messages import Common, Control, Report, SplitTask
from meander.task.operators.contract import Partial
from meander.task.physical import compile_plan
from meander.task.stage import Outbox, StageTask

KEY_GROUPS = 8
NAN = float("nan")
SCHEMA = pl.Schema({"k": pl.Float64(), "name": pl.String(), "value": pl.Float64(), "word": pl.String()})
Row = tuple[float | None, str | None, float | None, str | None]


@dataclass(frozen=True)
class Scripted(ReadOnly):
    """A source whose splits carry their rows."""

    def schema(self) -> pl.Schema:
        return SCHEMA

    def read(self, payload: dict[str, Any]) -> Batch:
        return Batch(pl.DataFrame(payload["rows"], SCHEMA, orient="row"))


@dataclass
class Slots:
    """All slots of one stateful operator, epoch by epoch, on a real store and log."""

    folder: Path
    out: Any = field(default_factory=md.memory)

    def __post_init__(self) -> None:
        flow = md.Flow("values")
        flow.source("rows", Scripted()).key_by("k", "name").aggregate(
            md.count().alias("rows"),
            md.collect("value").alias("all/values"),
            md.count_distinct("word").alias("words"),
            md.count_distinct("value").alias("numbers"),
            md.collect("word").alias("said"),
            name="op",
        ).sink("out", self.out)
        self.compiled = compile_plan(flow.plan())
        self.store = DirStore(self.folder)
        self.log = Log.take_over(self.store, SystemClock(), KEY_GROUPS)
        put_plan(self.store, self.compiled)
        self.routing = spread(KEY_GROUPS, 2)

    @property
    def manifest(self) -> Manifest:
        return self.log.manifest

    def epoch(self, splits: list[list[Row]]) -> pl.DataFrame:
        """One epoch of these splits: what it emits."""
        number, slots = self.manifest.epoch + 1, slots_of(self.routing)
        plan = {"flow": "values", "version": 1, "digest": self.compiled.digest}
        common = Common(number, 1, self.store.url, b"", KEY_GROUPS, {"op": self.routing}, (1, slots))
        tasks = tuple(SplitTask(unit, "rows", {"rows": rows}) for unit, rows in enumerate(splits))
        box = Outbox()
        StageTask(self.compiled, Control(common, 0, 0, tasks), self.store, lambda _: self, SystemClock()).run_sources(box)
        reports = [self._run_slot(common, slot, box) for slot in range(slots)]
        tables: dict[str, Any] = {}
        for report in reports:
            for name, ref in report.segments.items():
                known = tables.setdefault(name, {"keys": self.compiled.keyed["op"].tables()[name].keys, "segments": []})
                known["segments"].append(ref.to_json())
        self.log.append(epoch_entry(number, plan=plan, routing={"op": self.routing}, tables=tables))
        staged = [report.staged["out"]["name"] for report in reports if "out" in report.staged]
        frames = [pl.read_ipc(self.store.get(name) or b"") for name in staged]
        return pl.concat(frames) if frames else pl.DataFrame()

    def _run_slot(self, common: Common, slot: int, box: Outbox) -> Report:
        tables = self.compiled.keyed["op"].tables()
        mine = {n: self.manifest.tables[n].alive_for(groups_of(self.routing, slot)) for n in tables if n in self.manifest.tables}
        task = StageTask(self.compiled, Control(common, 1, slot, (), mine), self.store, lambda _: self, SystemClock())
        cut = [(p, s, frame) for p in box.partials for s, frame in _cut(p.frame, self.routing, KEY_GROUPS)]
        task.run_state([Partial("op", p.unit, frame) for p, s, frame in cut if s == slot], [], Outbox())
        return task.finish()

    def compact(self) -> bool:
        merge = next((merge for merge, _, _ in due_merges(self.manifest, {"op": self.routing}, {"op": slots_of(self.routing)})), None)
        if merge is None:
            return False
        data, rows = run_merge(merge, self.open, KEY_GROUPS)
        name = f"segments/{merge.table}/00000001-{self.manifest.epoch:010d}-merge-{self.manifest.position}.arrow"
        self.store.put(name, data)
        self.log.append(merge_entry([finished_merge(merge, name, rows, data.size, ends_of(data))]))
        return True

    def rescale(self, slots: int) -> None:
        self.routing = rebalance(self.routing, slots)

    def scan(self, ref: SegmentRef) -> Segment:
        return self.open(ref)

    def open(self, ref: SegmentRef, hashes: Hashes | None = None) -> Segment:
        data = self.store.map(ref.name)
        assert data is not None
        return Segment(ref.name, data)

    def announce(self, lookups: Any) -> None:
        pass

    def expect(self, refs: Any, hashes: Any) -> None:
        pass

    def wrote(self, name: str, data: Any) -> None:
        pass

    def state(self) -> pl.DataFrame:
        return pl.DataFrame(pl.from_arrow(md.read_state(self.folder, "op")))


def canonical(value: Any) -> Any:
    return "NaN" if isinstance(value, float) and math.isnan(value) else value + 0.0 if isinstance(value, float) else value


def as_dict(frame: pl.DataFrame) -> dict[Any, Any]:
    found = {}
    for k, name, *rest in frame.rows():
        assert (canonical(k), name) not in found, "a key has two rows"
        found[canonical(k), name] = tuple([canonical(v) for v in cell] if isinstance(cell, list) else cell for cell in rest)
    return found


class Model:
    def __init__(self) -> None:
        self.rows: dict[Any, list[tuple[float | None, str | None]]] = {}

    def add(self, rows: list[Row]) -> dict[Any, Any]:
        touched = {}
        for k, name, value, word in rows:
            self.rows.setdefault((canonical(k), name), []).append((value, word))
            touched[canonical(k), name] = None
        return {key: self.value(key) for key in touched}

    def value(self, key: Any) -> Any:
        values = [canonical(v) for v, _ in self.rows[key] if v is not None]
        words = [w for _, w in self.rows[key] if w is not None]
        return (len(self.rows[key]), values, len(set(words)), len(set(values)), words)

    def all(self) -> dict[Any, Any]:
        return {key: self.value(key) for key in self.rows}


row = st.tuples(
    st.sampled_from([0.0, -0.0, NAN, None, 1.5, 2.5]),
    st.sampled_from(["a", None]),
    st.sampled_from([None, 0.0, -0.0, NAN, 1.0, 2.0, 3.0]),
    st.sampled_from([None, "", "x", "y"]),
)
step = st.one_of(
    st.tuples(st.just("epoch"), st.lists(st.lists(row, max_size=6), min_size=1, max_size=3)),
    st.tuples(st.just("epoch"), st.lists(st.lists(row, max_size=6), min_size=1, max_size=3)),
    st.tuples(st.just("compact"), st.none()),
    st.tuples(st.just("rescale"), st.integers(1, 4)),
)


@pytest.mark.many
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(steps=st.lists(step, min_size=1, max_size=14))
def test_values_equal_a_plain_dict_whatever_is_done(steps: list[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction_module, "FEWEST", 2)
        patch.setattr(compaction_module, "BLOCK_ROWS", 3)
        slots, model = Slots(tmp_path_factory.mktemp("values")), Model()
        for verb, argument in steps:
            if verb == "epoch":
                expected = model.add([r for split in argument for r in split])
                emitted = slots.epoch(argument)
                assert as_dict(emitted) == expected
            elif verb == "compact":
                while slots.compact():
                    pass
            else:
                slots.rescale(argument)
        if model.rows:
            assert as_dict(slots.state()) == model.all()


def test_a_key_with_many_values_costs_what_is_added_to_it(tmp_path: Path) -> None:
    """What an epoch writes must not grow with the values that a key has already."""
    slots = Slots(tmp_path)
    slots.epoch([[(1.0, "a", float(i), f"w{i}") for i in range(20_000)]])
    first = sum(table.bytes for table in slots.manifest.tables.values())
    slots.epoch([[(1.0, "a", 7.0, "w7"), (1.0, "a", -1.0, "new")]])
    second = sum(table.bytes for table in slots.manifest.tables.values()) - first
    assert second < first / 50
    assert slots.manifest.tables["op.words"].rows == 20_001
    assert as_dict(slots.state())[1.0, "a"][2:4] == (20_001, 20_001)


def test_the_values_of_decimals_are_told_apart_exactly(tmp_path: Path) -> None:
    from decimal import Decimal

    flow = md.Flow("prices")
    frame = pl.DataFrame(
        {"k": [1, 1, 1], "price": [Decimal("1.10"), Decimal("1.1"), Decimal("1.11")]}, schema_overrides={"price": pl.Decimal(10, 2)}
    )

    @dataclass(frozen=True)
    class Prices(Scripted):
        def schema(self) -> pl.Schema:
            return frame.schema

        def read(self, payload: dict[str, Any]) -> Batch:
            return Batch(frame)

    flow.source("rows", Prices()).key_by("k").aggregate(md.count_distinct("price").alias("prices"), name="op").sink("out", md.memory())
    slots = Slots(tmp_path)
    slots.compiled = compile_plan(flow.plan())
    assert slots.epoch([[]]).rows() == [(1, 2)]
    assert slots.epoch([[]]).rows() == [(1, 2)]

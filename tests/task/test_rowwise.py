"""Operators that keep whole rows, against models in plain Python: random rows, disorder, epochs, parallelism, restarts and rescales."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.local import Local, Script, constants

import meander as md
from meander.coordinate.routing import rebalance
from meander.plan.windows import NEVER
from meander.state import compaction as compaction_module

COLUMNS = {"k": pl.Int64(), "v": pl.Int64(), "ts": pl.Datetime("us"), "id": pl.Int64()}
SECOND = 1_000_000
Row = tuple[int, int | None, int, int]
LIMITS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])

values = st.one_of(st.none(), st.integers(0, 4))
raw = st.lists(st.tuples(st.integers(0, 3), values, st.integers(0, 40 * SECOND)), max_size=8)
scripts = st.lists(st.lists(st.tuples(st.integers(0, 1), raw), min_size=1, max_size=3), min_size=1, max_size=6)


def numbered(script: Any) -> Any:
    """Every row with an id of its own: what tells apart rows that are equal otherwise."""
    count = iter(range(1_000_000))
    return tuple(tuple((p, tuple((*row, next(count)) for row in rows)) for p, rows in splits) for splits in script)


def rows_of(table: Any, *columns: str) -> list[tuple[Any, ...]]:
    frame = pl.DataFrame(pl.from_arrow(table))
    if frame.height == 0:
        return []
    return frame.with_columns(pl.col("ts").dt.epoch("us")).select(*columns or COLUMNS).rows()


def by_epochs(
    data: st.DataObject,
    folder: Path,
    flow: md.Flow,
    out: Any,
    script: Any,
    model: Callable[[Any], list[tuple[Any, ...]]],
    columns: tuple[str, ...] = (),
    operator: str = "op",
) -> Local:
    """Run a flow epoch by epoch beside its model, with rescales, merges and a driver that dies now and then."""
    small, expected = data.draw(st.booleans()), []
    with constants(FEWEST=(compaction_module, 2)):
        local = Local(flow, folder, data.draw(st.sampled_from([1, 2, 4])), small, ahead=data.draw(st.booleans()))
        for splits in script:
            assert local.step()
            expected += model(splits)
            assert sorted(rows_of(out.table(), *columns), key=repr) == sorted(expected, key=repr)
            if data.draw(st.booleans()):
                local.loop.reroute(operator, rebalance(local.loop.routing[operator], data.draw(st.integers(1, 4))))
            if data.draw(st.integers(0, 3)) == 0:
                local = Local(flow, folder, 2, small)
        local.run(flush=True)
    assert sorted(rows_of(out.table(), *columns), key=repr) == sorted(expected, key=repr)
    return local


@pytest.mark.many
@LIMITS
@given(st.data())
def test_deduplication_for_good_keeps_the_first_row_of_every_key(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    script = numbered(data.draw(scripts))
    flow, out = md.Flow("dedup"), md.memory()
    flow.source("events", Script(COLUMNS, script)).deduplicate("k", "v", name="op").sink("out", out)
    known: set[Any] = set()

    def model(splits: Any) -> list[Row]:
        kept = []
        for _, rows in splits:
            for row in rows:
                if row[:2] not in known:
                    known.add(row[:2])
                    kept.append(row)
        return kept

    local = by_epochs(data, tmp_path_factory.mktemp("dedup"), flow, out, script, model)
    if local.manifest.tables:
        state = pl.DataFrame(pl.from_arrow(md.read_state(local.folder, "op")))
        assert sorted(state.rows(), key=repr) == sorted(known, key=repr)


@pytest.mark.many
@LIMITS
@given(st.data())
def test_deduplication_with_a_time_to_live_equals_the_model(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    script = numbered(data.draw(scripts))
    ttl, grace = data.draw(st.sampled_from([1, 5, 20])) * SECOND, data.draw(st.sampled_from([0, 3])) * SECOND
    flow, out, late = md.Flow("dedup"), md.memory(), md.memory()
    events = flow.source("events", Script(COLUMNS, script)).watermark("ts", grace=grace / SECOND)
    kept = events.key_by("k").deduplicate(ttl=ttl / SECOND, name="op")
    kept.sink("out", out)
    kept.late().sink("late", late)
    guards: dict[int, int] = {}
    heard: dict[int, int] = {}
    marks = [NEVER, NEVER]
    refused: list[Row] = []

    def model(splits: Any) -> list[Row]:
        found = []
        for partition, rows in splits:
            for row in rows:
                heard[partition] = max(heard.get(partition, NEVER), row[2])
                if row[2] < marks[-2]:
                    refused.append(row)
                elif row[2] >= guards.get(row[0], NEVER):
                    guards[row[0]] = row[2] + ttl
                    found.append(row)
        marks.append(max(marks[-1], min(heard.values(), default=NEVER) - grace) if heard else NEVER)
        return found

    local = by_epochs(data, tmp_path_factory.mktemp("dedup"), flow, out, script, model)
    assert sorted(rows_of(late.table()), key=repr) == sorted(refused, key=repr)
    if local.stored:
        until = pl.DataFrame(pl.from_arrow(md.read_state(local.folder, "op"))).get_column("until").dt.epoch("us")
        assert until.to_numpy().min() > marks[-2], "what is forgotten is gone"


def test_the_newest_guard_of_a_key_counts_although_the_mark_is_behind_older_ones(tmp_path: Path) -> None:
    """Merged segments have several guards of a key, in several chapters, and later merges put them into one."""
    first = [tuple((key, 0, (10 * epoch + 5) * SECOND, epoch) for key in range(40 - 28 * epoch)) for epoch in range(2)]
    later = [tuple((key, 0, 1000 * SECOND, epoch) for key in range(100 * epoch, 100 * epoch + 50)) for epoch in range(2, 8)]
    again = tuple((key, -1, 20 * SECOND, 8) for key in range(12))
    script = [((0, rows),) for rows in (*first, *later, again)]
    flow, out = md.Flow("dedup"), md.memory()
    events = flow.source("events", Script(COLUMNS, tuple(script))).watermark("ts", grace="1h")
    events.deduplicate("k", ttl="10s", name="op").sink("out", out)
    with constants(FEWEST=(compaction_module, 2), MOST_CHAPTERS=(compaction_module, 2), CHAPTER_ROWS=(compaction_module, 3)):
        Local(flow, tmp_path).run()
    assert [row for row in rows_of(out.table()) if row[1] < 0] == []
    assert len(rows_of(out.table())) == 40 + 12 + 6 * 50


@pytest.mark.many
@LIMITS
@given(st.data())
def test_latest_keeps_the_row_with_the_largest_order_and_of_equals_the_last(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    script = numbered(data.draw(scripts))
    order = data.draw(st.sampled_from([(), ("v",), ("v", "ts")]))
    flow, out = md.Flow("latest"), md.memory()
    flow.source("events", Script(COLUMNS, script)).key_by("k").latest(order=order, name="op").sink("out", out)
    newest: dict[int, Row] = {}

    def worth(row: Row) -> tuple[Any, ...]:
        named = dict(zip(COLUMNS, row, strict=True))
        return tuple(-1 if named[column] is None else named[column] for column in order)

    def model(splits: Any) -> list[Row]:
        changed = set()
        for _, rows in splits:
            for row in rows:
                if row[0] not in newest or worth(row) >= worth(newest[row[0]]):
                    newest[row[0]] = row
                    changed.add(row[0])
        return [newest[key] for key in changed]

    local = by_epochs(data, tmp_path_factory.mktemp("latest"), flow, out, script, model)
    if newest:
        assert sorted(rows_of(md.read_state(local.folder, "op")), key=repr) == sorted(newest.values(), key=repr)


@pytest.mark.many
@LIMITS
@given(st.data())
def test_top_is_the_sorted_list_of_every_key_and_says_what_changed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    script = numbered(data.draw(scripts))
    n, down, ties = data.draw(st.integers(1, 4)), data.draw(st.booleans()), data.draw(st.sampled_from(["first", "last"]))
    flow, out = md.Flow("top"), md.memory()
    stream = flow.source("events", Script(COLUMNS, script)).key_by("k")
    stream.top(n, by=("v", "ts"), descending=(down, False), ties=ties, name="op").sink("out", out)
    everything: dict[int, list[Row]] = {}
    lists: dict[int, list[Row]] = {}

    def worth(row: Row) -> tuple[Any, ...]:
        _, v, ts, number = row
        rank = 99 if v is None else -v if down else v
        return rank, ts, number if ties == "first" else -number

    def model(splits: Any) -> list[tuple[Any, ...]]:
        for _, rows in splits:
            for row in rows:
                everything.setdefault(row[0], []).append(row)
        found = []
        for key, rows in everything.items():
            best = sorted(rows, key=worth)[:n]
            before = lists.get(key, [])
            if best != before:
                old = dict(enumerate(before))
                found += [(*row, rank + 1, old.get(rank) != row) for rank, row in enumerate(best)]
            lists[key] = best
        return found

    local = by_epochs(data, tmp_path_factory.mktemp("top"), flow, out, script, model, (*COLUMNS, "rank", "changed"))
    if lists:
        state = rows_of(md.read_state(local.folder, "op"), *COLUMNS, "rank")
        assert state == [(*row, rank) for key in sorted(lists) for rank, row in enumerate(lists[key], 1)]


@pytest.mark.parametrize("parallelism", [1, 2, 4])
@pytest.mark.parametrize("small", [True, False])
def test_pieces_of_one_split_that_meet_again_keep_one_order(tmp_path: Path, parallelism: int, small: bool) -> None:
    """A stream that is divided and united has two pieces of every split: the first of the union's inputs comes first."""
    script = ((((0, tuple((k, k % 2, 0, k) for k in range(20)))), (1, ((3, 0, 0, 99),))),)
    flow, out = md.Flow("pieces"), md.memory()
    events = flow.source("events", Script(COLUMNS, script))
    odd, even = events.filter("v = 1").with_columns("0 as k"), events.filter("v = 0").with_columns("0 as k")
    odd.union(even).with_columns(pl.col("k").cast(pl.Int64)).key_by("k").deduplicate(name="op").sink("out", out)
    Local(flow, tmp_path, parallelism, small).run()
    assert rows_of(out.table(), "id") == [(1,)]


def test_arguments_that_make_no_sense_are_refused_when_the_flow_is_written() -> None:
    stream = md.Flow("wrong").source("events", Script({**COLUMNS, "tags": pl.List(pl.String)}, ()))
    keyed = stream.key_by("k")
    for call, says in [
        (lambda: stream.deduplicate(), "say by which columns"),
        (lambda: stream.deduplicate("nope"), "nope"),
        (lambda: stream.deduplicate("k", ttl="1h"), "no event time"),
        (lambda: stream.watermark("ts").deduplicate("k", ttl="long"), "is not a duration"),
        (lambda: keyed.latest(order="nope"), "nope"),
        (lambda: keyed.latest(order="tags"), "has no order"),
        (lambda: keyed.latest(order=[1]), "not a column's name"),
        (lambda: keyed.top(0, by="v"), "n=0"),
        (lambda: keyed.top(3, by=()), "by which column"),
        (lambda: keyed.top(3, by="v", descending=(True, False)), "one for each of v"),
        (lambda: keyed.top(3, by="v", ties="random"), "'first' and 'last'"),
        (lambda: stream.with_columns("v as rank").key_by("k").top(3, by="v"), "rename it first"),
        (lambda: keyed.deduplicate().late(), "only what closes windows or expires"),
        (lambda: keyed.window(md.tumbling("1s", time="wall")), "'event'"),
        (lambda: keyed.window(md.tumbling("1s", time="processing")).aggregate(md.count(), lateness="1s"), "no row is late"),
        (lambda: keyed.window("10s"), "md.session"),
    ]:
        with pytest.raises(md.FlowError, match=says):
            call()


@pytest.mark.many
@LIMITS
@given(st.data())
def test_the_best_rows_of_windows_come_out_once_when_they_close(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    script = numbered(data.draw(scripts))
    window = data.draw(st.sampled_from([md.tumbling("10s"), md.sliding("9s", "3s", offset="1s"), md.tumbling("500ms")]))
    n, keyed, ties = data.draw(st.integers(1, 3)), data.draw(st.booleans()), data.draw(st.sampled_from(["first", "last", "all"]))
    flow, out = md.Flow("tops"), md.memory()
    events = flow.source("events", Script(COLUMNS, script)).watermark("ts", grace="3s")
    (events.key_by("k") if keyed else events).window(window).top(n, by="v", ties=ties, name="op").sink("out", out)
    everything: dict[tuple[Any, int], list[Row]] = {}
    heard: dict[int, int] = {}
    marks = [NEVER, NEVER]

    def model(splits: Any, flush: bool = False) -> list[tuple[Any, ...]]:
        late, evict = marks[-2], 1 << 62 if flush else marks[-1]
        for partition, rows in splits:
            for row in rows:
                heard[partition] = max(heard.get(partition, NEVER), row[2])
                last = (row[2] - window.offset) // window.step * window.step + window.offset
                for start in range(last, last - window.size, -window.step):
                    everything.setdefault((row[0] if keyed else None, start), []).append(row)
        found = []
        for (_, start), rows in everything.items():
            if late < start + window.size <= evict:
                found += [(*row, rank, start) for rank, row in ranked(rows)]
        marks.append(max(marks[-1], min(heard.values()) - 3 * SECOND) if heard else NEVER)
        return found

    def ranked(rows: list[Row]) -> list[tuple[int, Row]]:
        def value(row: Row) -> int:
            return 99 if row[1] is None else -row[1]

        ordered = sorted(rows, key=lambda row: (value(row), -row[3] if ties == "last" else row[3]))
        if ties != "all":
            return list(enumerate(ordered, 1))[:n]
        ranks = [(1 + sum(value(other) < value(row) for other in rows), row) for row in ordered]
        return [(rank, row) for rank, row in ranks if rank <= n]

    def emitted() -> list[str]:
        frame = pl.DataFrame(pl.from_arrow(out.table()))
        if frame.height == 0:
            return []
        frame = frame.with_columns(pl.col("ts", "window_start").dt.epoch("us"))
        return sorted(map(repr, frame.select(*COLUMNS, "rank", "window_start").rows()))

    small, expected = data.draw(st.booleans()), []
    folder = tmp_path_factory.mktemp("tops")
    with constants(FEWEST=(compaction_module, 2)):
        local = Local(flow, folder, data.draw(st.sampled_from([1, 2, 4])), small, ahead=data.draw(st.booleans()))
        for splits in script:
            assert local.step()
            expected += model(splits)
            assert emitted() == sorted(map(repr, expected))
            if data.draw(st.integers(0, 3)) == 0:
                local = Local(flow, folder, 2, small)
        while local.step():
            expected += model(())
        while local.step(flush=True):
            expected += model((), flush=True)
    assert emitted() == sorted(map(repr, expected))
    assert not local.stored

"""Flow, Stream and KeyedStream: what a user writes.

A flow is named operators from sources to sinks. Every call checks itself against the columns it gets and
raises FlowError on the line that is wrong; nothing runs before ``start``. Texts are SQL expressions
(``"amount > 0"``, ``"price * 100 as cents"``); Polars expressions do the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import polars as pl

from meander.aggregates import Agg, Aggregator, as_agg
from meander.connect.sink import Sink
from meander.connect.source import Source
from meander.errors import FlowError
from meander.familiar.names import CONNECTED, FLOW, KEYED, STREAM, WINDOWED, NoTable
from meander.familiar.values import no_column_name, no_sink, no_source, no_stream
from meander.plan.change_joins import no_bound, plan_change_join
from meander.plan.changes import Changelog, check_changes, find_changes
from meander.plan.computed import resolved
from meander.plan.counts import CountAggregate, CountWindow, only_full
from meander.plan.eventtime import HasLate, Late, SessionAggregate, Time, WindowAggregate, no_time, time_of
from meander.plan.explain import explain
from meander.plan.expressions import Expression, flat, parse, parse_all, sql_of, text_of
from meander.plan.graph import Node, Plan, check_name
from meander.plan.joins import Columns, Input, Matching, as_matching, plan_join, plan_join_latest, read_bounds
from meander.plan.operators import Aggregate, BatchFunction, Filter, Operator, Select, SinkOp, SourceOp, Union, WithColumns
from meander.plan.processing import Process, Side, as_processor, check_connected, columns_of
from meander.plan.reshape import plan_drop, plan_explode, plan_rename
from meander.plan.rowwise import Deduplicate, Latest, Top, WindowTop, names_of, ranked
from meander.plan.schemas import KEY_TYPES, is_key_type, missing_column, show_schema
from meander.plan.tables import Table, join_static
from meander.plan.unplaced import map_batches, watermark
from meander.plan.windows import Session, Window, micros
from meander.processor import Processor
from meander.starting import Startable


class Flow(Startable):
    """A dataflow under construction. Its name is part of what it stores: keep it.

    Example: ``flow = md.Flow("orders")``.
    """

    _instead = FLOW

    def __init__(self, name: str) -> None:
        check_name("flow", name)
        self.name = name
        self._nodes: dict[str, Node] = {}
        self._schemas: dict[str, pl.Schema] = {}

    def source(self, name: str, source: Source) -> Stream:
        """The rows of a source, under a name: ``flow.source("orders", md.files("in/"))``."""
        check_name("source", name)
        if not hasattr(source, "cursor"):
            raise FlowError(f"source {name!r}: {no_source(source)}")
        return self._add(SourceOp(source), name)

    def plan(self) -> Plan:
        """The flow as it is now, validated as a whole, as version 1: ``flow.plan().nodes``."""
        return Plan(1, self.name, tuple(self._nodes.values()))

    def explain(self) -> str:
        """The plan as text: stages, operators, columns.

        Example: ``print(flow.explain())``.
        """
        return explain(self.plan())

    def __repr__(self) -> str:
        if not self._nodes:
            return f"<Flow '{self.name}', empty: begin with flow.source(name, ...)>"
        try:
            return self.explain()
        except FlowError as error:
            return f"<Flow '{self.name}', not complete: {', '.join(self._nodes)}; {error}>"

    def _add(self, op: Operator, name: str | None, *inputs: Stream) -> Stream:
        name = self._free_name(op.kind) if name is None else name
        check_name(op.kind, name)
        if name in self._nodes:
            raise FlowError(
                f"{op.kind} {name!r}: there is already a {self._nodes[name].op.kind} of that name; give one of them another, "
                "or make a new md.Flow(...) if you ran this cell again"
            )
        for stream in inputs:
            if not isinstance(stream, Stream):
                raise FlowError(f"{op.kind} {name!r}: {no_stream(stream)}")
            if stream.flow is not self:
                raise FlowError(f"{op.kind} {name!r}: its input {stream.name!r} belongs to another flow ({stream.flow.name!r})")
        node = Node(name, op, tuple(stream.name for stream in inputs))
        check_changes(node, find_changes(self._nodes.values(), self._schemas), self._schemas)
        self._schemas[name] = columns_of(node, self._nodes, self._schemas)
        self._nodes[name] = node
        return Stream(self, name)

    def _free_name(self, kind: str) -> str:
        """``filter_1``, ``filter_2``, ...: the same flow, written again, gets the same names."""
        number = 1
        while f"{kind}_{number}" in self._nodes:
            number += 1
        return f"{kind}_{number}"


class Stream(NoTable):
    """The rows that leave one operator. Streams can be used more than once: each use gets all rows.

    Example: ``orders = flow.source("orders", md.files("in/"))`` is a ``md.Stream``.
    """

    _instead = STREAM

    def __init__(self, flow: Flow, name: str) -> None:
        self.flow = flow
        self.name = name

    @property
    def schema(self) -> pl.Schema:
        return self.flow._schemas[self.name]

    def __repr__(self) -> str:
        return f"<Stream '{self.name}' of flow '{self.flow.name}': {show_schema(self.schema)}>"

    def filter(self, predicate: Expression, name: str | None = None) -> Stream:
        """Only the rows where the predicate is true: ``orders.filter("amount > 0")``, ``orders.filter(pl.col("amount") > 0)``."""
        return self.flow._add(Filter(parse(predicate, self.schema), text_of((predicate,), {})), name, self)

    def where(self, predicate: Expression, name: str | None = None) -> Stream:
        """The same as ``filter``, under the name that it has in SQL and PySpark.

        Example: ``orders.where("amount > 0")``.
        """
        return self.filter(predicate, name)

    def with_columns(self, *exprs: Expression | Sequence[Expression], name: str | None = None, **named: Expression) -> Stream:
        """New columns beside the old; a column of the same name is replaced: ``orders.with_columns(cents="amount * 100")``."""
        return self.flow._add(WithColumns(parse_all(exprs, named, self.schema), text_of(exprs, named), sql_of(exprs, named)), name, self)

    def select(self, *exprs: Expression | Sequence[Expression], name: str | None = None) -> Stream:
        """These columns only: ``orders.select("customer", "amount * 100 as cents")``."""
        return self.flow._add(Select(parse_all(exprs, {}, self.schema), text_of(exprs, {}), sql_of(exprs, {})), name, self)

    def drop(self, *columns: str | Sequence[str], name: str | None = None) -> Stream:
        """All columns but these: ``orders.drop("note", "internal")``."""
        return self.flow._add(plan_drop(tuple(flat(columns)), self.schema, f"drop after {self.name!r}"), name, self)

    def rename(self, names: Mapping[str, str], name: str | None = None) -> Stream:
        """All columns, some of them under other names: ``orders.rename({"amount": "total"})``.

        A column that is the rows' time is it under its new name, too.
        """
        return self.flow._add(plan_rename(names, self.schema, f"rename after {self.name!r}"), name, self)

    def explode(self, *columns: str, keep_empty: bool = False, name: str | None = None) -> Stream:
        """A row for every item of a list: ``posts.explode("tags")``. All other columns are repeated.

        Several columns are taken apart together; their lists must have equal lengths, or the row is a dead letter. A row whose
        lists are empty or null is dropped; with ``keep_empty=True`` it stays, with a null.
        """
        op = plan_explode(tuple(flat(columns)), keep_empty, f"explode after {self.name!r}")
        return self.flow._add(op, name, self)

    def map_batches(
        self,
        fn: BatchFunction,
        name: str | None = None,
        schema: Mapping[str, Any] | None = None,
        row_local: bool = True,
        deterministic: bool = False,
    ) -> Stream:
        """A Python function over frames of rows.

        The function must treat every row for itself (unless ``row_local=False``): how rows are cut into frames
        is not defined. Its output columns are ``schema``, or learned by calling it on a frame without rows.

        Example: ``orders.map_batches(lambda frame: frame.drop_nulls())``.
        """
        return self.flow._add(map_batches(fn, schema, row_local, deterministic), name, self)

    def watermark(
        self,
        column: str,
        grace: float | str = 0,
        idle: float | str | None = None,
        name: str | None = None,
        max_ahead: float | str | None = None,
    ) -> Stream:
        """Say which column is the time of a row. ``grace`` is how much later than the newest row an older one can come and still count.

        Windows close by it. A partition of the source from which nothing comes for ``idle`` does not hold the others back, and neither
        does the whole source hold back the other inputs of a union or a join.

        One row with a time in 2099 makes all others late. With ``max_ahead="1h"`` a row whose time is more than an hour ahead of the clock
        at which it is taken in is a dead letter, and does not count for the watermark. Not for clocks that are simulated.

        Example: ``orders.watermark("ts", grace="5s")``.
        """
        return self.flow._add(watermark(column, grace, idle, max_ahead), name, self)

    def window(self, window: Window | Session | CountWindow) -> WindowedStream:
        """Windows over all rows, without a key: ``stream.window(md.tumbling("10s")).aggregate(md.count())``."""
        return WindowedStream(self, (), window)

    def late(self, name: str | None = None, side: int = 0) -> Stream:
        """The rows that came too late for this operator, with the columns of its input. Without it they go to the dead letters.

        Too late is what was for something that had closed before the row's epoch: behind the watermark of before the last epoch.

        An operator with two inputs has late rows of each: ``side`` is 0 or 1.

        Example: ``per_window.late().sink("late", md.parquet("late/"))``.
        """
        node = self.flow._nodes[self.name]
        if not isinstance(node.op, HasLate) or not node.op.has_late:
            raise FlowError(f"late of {self.name!r}: it is a {node.op.kind}, and only what closes windows or expires has late rows")
        if side not in range(len(node.inputs)):
            raise FlowError(f"late of {self.name!r}: side={side!r}; it has {len(node.inputs)} input(s), counted from 0")
        return self.flow._add(Late(self.name, side), name, Stream(self.flow, node.inputs[side]))

    def side(self, output: str, name: str | None = None) -> Stream:
        """A side output of the processor whose rows these are: the key's columns, and those of ``side_outputs[output]``.

        It is a stream like any other: ``visits.side("late").sink("late_out", md.parquet("late/"))``.
        A side output that nobody reads is not kept.
        """
        return self.flow._add(Side(output), name, self)

    def deduplicate(self, *columns: str, ttl: float | str | None = None, name: str | None = None) -> Stream:
        """The first of the rows that are equal in these columns: ``clicks.deduplicate("user", "page", ttl="1h")``; see ``KeyedStream``."""
        if not columns:
            raise FlowError(f"deduplicate after {self.name!r}: say by which columns, as in deduplicate('id', ttl='1h')")
        return self.key_by(*columns).deduplicate(ttl, name)

    def changes(self, column: str = "change", name: str | None = None) -> Stream:
        """A stream of changes as rows of their own: 1 in ``column`` for an added row, -1 for a removed one.

        A row that is gone equals, in every other column, one that had come. So the table that the stream stands for is, whatever the order,
        ``SELECT * EXCLUDE change FROM log GROUP BY ALL HAVING sum(change) > 0``. How many rows there are on the way depends on how the
        input is cut into epochs: only operators without state, and sinks, may follow.

        Example: ``totals.changes().sink("log", md.parquet("log/"))``.
        """
        return self.flow._add(Changelog(column), name, self)

    def _columns(self) -> list[str]:
        return list(self.schema) if "flow" in vars(self) else []

    def _time(self, what: str) -> Time:
        """The time of its rows, or FlowError where they have none."""
        time = time_of(tuple(self.flow._nodes.values()), self.flow._schemas, self.name)
        if time is None:
            raise no_time(what, self.name, self.schema)
        return time

    def union(self, *others: Stream, name: str | None = None) -> Stream:
        """The rows of all; all must have the same columns: ``orders.union(returns)``."""
        return self.flow._add(Union(), name, self, *others)

    def join(
        self,
        other: Stream,
        on: Columns | None = None,
        *,
        left_on: Columns | None = None,
        right_on: Columns | None = None,
        within: float | str | tuple[float | str, float | str] | None = None,
        how: str = "inner",
        where: Expression | None = None,
        nulls_equal: bool = False,
        suffix: str = "_right",
        time: str | None = None,
        name: str | None = None,
    ) -> Stream:
        """Rows of two streams with equal keys: ``orders.join(payments, on="order", within="10s")``.

        ``within`` is how much the times of two rows may differ, or how much later than the left row the right one may be, at least and
        at most: ``within=("-5s", "1h")``. Both streams need a watermark, which tells what can be forgotten, and rows behind it (as it was
        before the last epoch) are late: see ``late(side=...)``. A bound that a row itself has is a condition, below the largest that there
        can be: ``within=("0s", "1h"), where="ts_right <= expires"``. Without ``within`` all rows are kept for good.

        ``how`` is inner, left, right, full, semi or anti. In an outer join a row that finds no partner comes out with nulls, when none can
        come any more. A semi join gives out every left row that has a partner, once, when its first one is there; an anti join those that
        have none, when none can come any more. Both have the columns of the left alone.

        A null key equals no other, unless ``nulls_equal``. ``where`` is a condition on the joined row: a pair for which it fails is a dead
        letter, and no pair. Key columns come out once, under the left's names; other columns of the right that have a name of the left
        get the ``suffix``.

        The result's time is the left's (in a right join the right's); with ``time="column"`` it is the later of both, in a column of its
        own, which a full join or one without ``within`` needs if windows are to follow.
        """
        matching = self._matching(other, on, left_on, right_on, suffix, "join", nulls_equal)
        if self._has_changes(other):
            return self.flow._add(plan_change_join(self._input(), other._input(), matching, how, within, where, time), name, self, other)
        bounds = None if within is None else read_bounds(within, f"join after {self.name!r}")
        return self.flow._add(plan_join(self._input(), other._input(), matching, how, bounds, None, where, time), name, self, other)

    def join_latest(
        self,
        other: Stream,
        on: Columns | None = None,
        *,
        left_on: Columns | None = None,
        right_on: Columns | None = None,
        how: str = "inner",
        as_of: bool = False,
        tolerance: float | str | None = None,
        nulls_equal: bool = False,
        suffix: str = "_right",
        name: str | None = None,
    ) -> Stream:
        """Every row, with the newest row of its key on the other side: ``orders.join_latest(prices, on="product", how="left")``.

        Newest is what arrived last. Rows of the other side that are in the same epoch count as earlier; a row that was given out does not
        come again when the other side changes. With ``as_of=True`` it is the row with the largest time that is not above the left row's,
        whatever the order of arrival: both streams need a watermark, and a row comes out when the watermark has passed it (and the second
        it is in). With ``tolerance="1h"`` a row that is older than the left row by more than that does not count. ``how`` is inner or left.
        """
        matching = self._matching(other, on, left_on, right_on, suffix, "join_latest", nulls_equal)
        return self.flow._add(plan_join_latest(self._input(), other._input(), matching, how, as_of, tolerance), name, self, other)

    def join_static(
        self,
        table: Table,
        on: Columns | None = None,
        *,
        left_on: Columns | None = None,
        right_on: Columns | None = None,
        how: str = "inner",
        nulls_equal: bool = False,
        suffix: str = "_right",
        name: str | None = None,
    ) -> Stream:
        """Rows with those of a table that have an equal key: ``bids.join_static(pl.read_csv("cities.csv"), on="city", how="left")``.

        The table is a DataFrame, a function that returns one, or the path of a Parquet or CSV file. A small frame travels with the plan;
        one beyond 16 MB is written into the store once, and looked up there. A file is read once by every worker, and must not change
        while the flow runs. ``how`` is inner, left, semi or anti.
        """
        what = f"join_static after {self.name!r}"
        return self.flow._add(join_static(table, as_matching(on, left_on, right_on, suffix, what, nulls_equal), how, what), name, self)

    def _matching(
        self,
        other: object,
        on: Columns | None,
        left_on: Columns | None,
        right_on: Columns | None,
        suffix: str,
        kind: str,
        nulls_equal: bool,
    ) -> Matching:
        what = f"{kind} after {self.name!r}"
        if not isinstance(other, Stream):
            raise FlowError(f"{what}: {no_stream(other)}")
        if other.flow is not self.flow:
            raise FlowError(f"{what}: the stream {other.name!r} belongs to another flow ({other.flow.name!r})")
        return as_matching(on, left_on, right_on, suffix, what, nulls_equal)

    def _has_changes(self, other: Stream) -> bool:
        """Whether this or the other is a stream of changes."""
        found = find_changes(self.flow._nodes.values(), self.flow._schemas)
        return self.name in found or other.name in found

    def _input(self) -> Input:
        return Input(self.name, self.schema, time_of(tuple(self.flow._nodes.values()), self.flow._schemas, self.name))

    def key_by(self, *columns: str | pl.Expr | Sequence[str | pl.Expr]) -> KeyedStream:
        """The key of what comes next: one or more columns, by name.

        Example: ``orders.key_by("customer")``.
        """
        names: list[str] = []
        for given in columns:
            names.extend(self._key(one) for one in (given if isinstance(given, list | tuple) else (given,)))
        for column in names:
            if column not in self.schema:
                raise FlowError(f"key_by after {self.name!r}: {missing_column(column, self.schema)}")
            if not is_key_type(self.schema[column]):
                raise FlowError(
                    f"key_by after {self.name!r}: column {column!r} is {self.schema[column]}; keys can be {KEY_TYPES}: cast it first"
                )
        if not names:
            raise FlowError(f"key_by after {self.name!r}: no column is given")
        return KeyedStream(self, tuple(names))

    def _key(self, given: object) -> str:
        if isinstance(given, pl.Expr):
            if not given.meta.is_column():
                raise FlowError(
                    f"key_by after {self.name!r}: {given} is not a plain column; compute it first, with with_columns(...), and name it here"
                )
            return given.meta.output_name()
        if not isinstance(given, str):
            raise FlowError(f"key_by after {self.name!r}: {no_column_name(given)}; columns are {show_schema(self.schema)}")
        return given

    def aggregate(self, *aggs: Agg | Aggregator, name: str | None = None) -> Stream:
        """One row for all rows of the stream, with the new values, in every epoch that has some: ``stream.aggregate(md.count())``.

        ``key_by(...).aggregate(...)`` has one per key. One slot keeps the row; what is folded is folded before that.
        """
        return self._aggregate((), aggs, name)

    def _aggregate(self, keys: tuple[str, ...], aggs: Sequence[Agg | Aggregator], name: str | None) -> Stream:
        return self.flow._add(Aggregate(keys, self._aggs(aggs, "aggregate")), name, self)

    def _aggs(self, given: Sequence[Agg | Aggregator], what: str) -> tuple[Agg, ...]:
        try:
            return resolved([as_agg(agg) for agg in given], self.schema)
        except FlowError as error:
            raise FlowError(f"{what} after {self.name!r}: {error}") from error

    def process(self, *_: Any, **__: Any) -> NoReturn:
        """Only a stream with a key can be processed: ``key_by(...).process(...)``."""
        raise FlowError(f"process after {self.name!r}: the stream has no key; write key_by(...) first, as in key_by('k').process(Visits)")

    def connect(self, *_: Any, **__: Any) -> NoReturn:
        """Only streams with a key can be connected: ``key_by(...).connect(...)``."""
        raise FlowError(
            f"connect after {self.name!r}: the stream has no key; write key_by(...) first, as in a.key_by('k').connect(b.key_by('k'))"
        )

    def sink(self, name: str, sink: Sink) -> Flow:
        """Ends the stream; returns the flow: ``totals.sink("out", md.parquet("out/"))``."""
        check_name("sink", name)
        if not hasattr(sink, "publish"):
            raise FlowError(f"sink {name!r}: {no_sink(sink)}")
        self.flow._add(SinkOp(sink), name, self)
        return self.flow


class KeyedStream(NoTable):
    """A stream with a key: what comes next keeps state per key.

    Example: ``orders.key_by("customer")`` is a ``md.KeyedStream``.
    """

    _instead = KEYED

    def __init__(self, stream: Stream, keys: tuple[str, ...]) -> None:
        self.stream = stream
        self.keys = keys

    def __repr__(self) -> str:
        return f"<KeyedStream by {', '.join(self.keys)} of {self.stream!r}>"

    def aggregate(self, *aggs: Agg | Aggregator, name: str | None = None) -> Stream:
        """One row per key touched and epoch: the key columns and the new values.

        Example: ``orders.key_by("customer").aggregate(md.count(), md.sum("amount").alias("total"))``.
        """
        return self.stream._aggregate(self.keys, aggs, name)

    def process(self, processor: Processor | type[Processor], name: str | None = None) -> Stream:
        """Python code with state per key: a subclass of ``md.Processor``, or an object of one.

        The rows that leave it have the key columns and the columns of the processor's ``output``.

        Example: ``orders.key_by("customer").process(Visits)``.
        """
        return self.stream.flow._add(Process(self.keys, as_processor(processor)), name, self.stream)

    def connect(self, other: KeyedStream) -> ConnectedStreams:
        """This stream and another one, for a processor that has one state for the rows of both.

        The keys of both have equal types; their names may differ. All other columns may.

        Example: ``orders.key_by("id").connect(payments.key_by("order")).process(Match)``.
        """
        return ConnectedStreams(self, other)

    def window(self, window: Window | Session | CountWindow) -> WindowedStream:
        """Windows per key: ``orders.key_by("customer").window(md.tumbling("10s"))``; also ``md.sliding``, ``md.cumulating``,
        ``md.session`` and ``md.count_window``."""
        return WindowedStream(self.stream, self.keys, window)

    def deduplicate(self, ttl: float | str | None = None, name: str | None = None) -> Stream:
        """The first row of every key: ``orders.key_by("id").deduplicate(ttl="1h")``. The others are dropped.

        First is what arrives first, by split and place within it. Without ``ttl`` a key that was seen is known for good. With it, a
        row is a duplicate unless its time is at least ``ttl`` later than that of the last one that was kept; the stream needs a
        watermark, which tells when a key can be forgotten, and rows behind it (as it was before the last epoch) are
        late: see ``late``.
        """
        if ttl is None:
            return self.stream.flow._add(Deduplicate(self.keys), name, self.stream)
        time = self.stream._time("deduplicate(ttl=...)")
        op = Deduplicate(self.keys, micros(ttl, "deduplicate ttl"), time.column, time.shift)
        return self.stream.flow._add(op, name, self.stream)

    def latest(self, order: str | Sequence[str] | None = None, name: str | None = None) -> Stream:
        """The newest row of every key: makes a table of a stream of changes. ``bids.key_by("bidder").latest(order="ts")``.

        Newest is the row with the largest ``order`` (a column, or several, the first counting most; null is smallest) and of equals the one
        that arrived last; without ``order``, the one that arrived last. A row that takes its key's place is emitted once per epoch; what
        comes out later of a key replaces what came out before.
        """
        columns = names_of(order, f"latest after {self.stream.name!r}: order")
        return self.stream.flow._add(Latest(self.keys, columns), name, self.stream)

    def top(
        self, n: int, by: str | Sequence[str], descending: bool | Sequence[bool] = True, ties: str = "first", name: str | None = None
    ) -> Stream:
        """The ``n`` best rows of every key, whole: ``bids.key_by("auction").top(10, by="price")``.

        Best is what has the largest ``by``, or the smallest with ``descending=False``; several columns can be given, with a direction each.
        A null is worse than anything. Of equal rows the one that arrived first is better, or with ``ties="last"`` the one that did last.

        A key whose list has changed in an epoch gives out its whole new list, best first: the columns of the rows, ``rank`` (from 1) and
        ``changed``, which is false where the rank has the row that it had before. The new list replaces the one before: a list only
        grows, so the last row of every key and rank is the list.
        """
        columns, downs = ranked(self.stream.name, n, by, descending, ties, ("first", "last"))
        return self.stream.flow._add(Top(self.keys, n, columns, downs, ties), name, self.stream)


class ConnectedStreams(NoTable):
    """Two keyed streams: ``orders.key_by("id").connect(payments.key_by("order"))`` is a ``md.ConnectedStreams``."""

    _instead = CONNECTED

    def __init__(self, left: KeyedStream, right: KeyedStream) -> None:
        what = f"connect after {left.stream.name!r}"
        given: object = right
        if isinstance(given, Stream):
            raise FlowError(f"{what}: the other stream, {given.name!r}, has no key; write {given.name}.key_by(...)")
        if not isinstance(given, KeyedStream):
            raise FlowError(f"{what}: {no_stream(given)}")
        check_connected(left.keys, right.keys, left.stream.schema, right.stream.schema, what)
        self.left, self.right = left, right

    def __repr__(self) -> str:
        return f"<ConnectedStreams of {self.left!r} and {self.right!r}>"

    def process(self, processor: Processor | type[Processor], name: str | None = None) -> Stream:
        """Python code with one state per key for the rows of both: a processor with ``on_events`` and ``on_other_events``.

        In an epoch a key's due timers come first, then its rows of the left, then those of the
        other. The output is as for every processor; the key's columns have the names of the left.

        Example: ``orders.key_by("id").connect(payments.key_by("order")).process(Match, name="matched")``.
        """
        left, right = self.left, self.right
        return left.stream.flow._add(Process(left.keys, as_processor(processor), right.keys), name, left.stream, right.stream)


class WindowedStream(NoTable):
    """A stream cut into windows of time: ``orders.key_by("customer").window(md.tumbling("10s"))`` is a ``md.WindowedStream``."""

    _instead = WINDOWED

    def __init__(self, stream: Stream, keys: tuple[str, ...], window: Window | Session | CountWindow) -> None:
        if not isinstance(window, Window | Session | CountWindow):
            raise FlowError(
                f"window after {stream.name!r}: {window!r} is no window; use md.tumbling('10s'), md.sliding('10s', '2s'), "
                "md.cumulating('1d', '1h'), md.session('30s') or md.count_window(100)"
            )
        self.stream, self.keys, self.spec = stream, keys, window

    def aggregate(self, *aggs: Agg | Aggregator, emit: str = "closed", lateness: float | str = 0, name: str | None = None) -> Stream:
        """One row per key and window: the key, ``window_start``, ``window_end`` and the values. Of windows of a number of rows it is
        ``window_number``, from 1, in place of the two times.

        ``emit="closed"`` gives it once, when the watermark passes the window's end; ``"update"`` whenever it has changed in an epoch.
        ``lateness`` keeps windows that long after they close: a late row within it makes them come again, changed.

        Sessions can grow and become one: what comes out of a key later replaces what came out before and begins within it.

        A window that comes again replaces its former rows: aggregates, ``top`` and ``changes()``
        behind it get the removals. Example: ``orders.window(md.tumbling("10s")).aggregate(md.count())``.
        """
        if isinstance(self.spec, CountWindow):
            only_full(emit, lateness, f"window after {self.stream.name!r}")
            return self.stream.flow._add(CountAggregate(self.keys, self.stream._aggs(aggs, "window"), self.spec), name, self.stream)
        if emit not in ("closed", "update"):
            raise FlowError(f"window after {self.stream.name!r}: emit={emit!r}; there are 'closed' and 'update'")
        slack = micros(lateness, "lateness", least=0)
        column: str | None = None
        shift = 0
        if self.spec.clock == "event":
            time = self.stream._time("window")
            column, shift = time.column, time.shift
        elif slack:
            raise FlowError(f"window after {self.stream.name!r}: lateness={lateness!r}; by processing time no row is late: leave it out")
        parts = self.stream._aggs(aggs, "window")
        kind = SessionAggregate if isinstance(self.spec, Session) else WindowAggregate
        return self.stream.flow._add(kind(self.keys, parts, self.spec, column, shift, emit, slack), name, self.stream)

    def top(
        self, n: int, by: str | Sequence[str], descending: bool | Sequence[bool] = True, ties: str = "first", name: str | None = None
    ) -> Stream:
        """The ``n`` best rows of every key and window, when the window closes: ``bids.window(md.tumbling("10s")).top(1, by="price")``.

        As ``key_by(...).top``, with ``window_start`` and ``window_end`` before the columns of the rows, and without ``changed``. With
        ``ties="all"`` equal rows have one rank and count together: ``top(1, by="price", ties="all")`` is all rows with the highest price.
        """
        if not isinstance(self.spec, Window):
            of = "session" if isinstance(self.spec, Session) else "window of a number of rows"
            raise FlowError(f"top after {self.stream.name!r}: there is none per {of}; use a tumbling, sliding or cumulating window")
        columns, downs = ranked(self.stream.name, n, by, descending, ties, ("first", "last", "all"))
        time = self.stream._time("window") if self.spec.clock == "event" else None
        column, shift = (None, 0) if time is None else (time.column, time.shift)
        return self.stream.flow._add(WindowTop(self.keys, n, columns, downs, ties, self.spec, column, shift), name, self.stream)

    def join(
        self,
        other: Stream,
        on: Columns | None = None,
        *,
        left_on: Columns | None = None,
        right_on: Columns | None = None,
        how: str = "inner",
        where: Expression | None = None,
        nulls_equal: bool = False,
        suffix: str = "_right",
        name: str | None = None,
    ) -> Stream:
        """Rows of two streams with equal keys in the same window: ``people.window(md.tumbling("10s")).join(auctions, ...)``.

        As ``Stream.join``, with ``window_start`` and ``window_end`` beside the columns of both sides (in the place of such columns of the
        left). After ``key_by`` its columns are the key, if no other is given.

        Windows go by event time, and are tumbling, sliding, cumulating or sessions. In windows that overlap a pair comes out once for each
        that both rows are in and that is open; a row that is alone in one comes out when it closes. Sessions are formed by the rows of
        both sides together, and all that is in one comes out when it closes.
        """
        if on is None and left_on is None:
            left_on = self.keys or None
            right_on = left_on if right_on is None else right_on
        left = self.stream
        matching = left._matching(other, on, left_on, right_on, suffix, "join of windows", nulls_equal)
        if left._has_changes(other):
            raise no_bound(f"join of windows after {left.name!r}", f"windows of {self.spec.describe()}")
        op = plan_join(left._input(), other._input(), matching, how, (0, 0), self.spec, where, None)
        return left.flow._add(op, name, left, other)

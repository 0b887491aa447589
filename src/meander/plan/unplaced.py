"""Operators that are described before their place in a plan is known: they get their keys, time and
columns when they are placed.

The public functions for ``run.replace`` and ``run.insert`` are here, too: ``md.aggregate``,
``md.filter`` and so on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl

from meander.aggregates import Agg, Aggregator, as_agg
from meander.errors import FlowError
from meander.plan.computed import resolved
from meander.plan.counts import CountAggregate, CountWindow, only_full
from meander.plan.eventtime import SessionAggregate, Time, Watermark, WindowAggregate, no_time
from meander.plan.expressions import Expression, parse, parse_all, sql_of, text_of
from meander.plan.operators import Aggregate, BatchFunction, Filter, MapBatches, Operator, Select, WithColumns
from meander.plan.processing import Process, Side, as_processor
from meander.plan.windows import Session, Window, micros
from meander.processor import Processor


class Unplaced(ABC):
    """A description that needs a place to become an operator."""

    kind: ClassVar[str]

    @abstractmethod
    def placed(self, name: str, inputs: Sequence[str], former: Operator | None, schema: pl.Schema, time: Time | None) -> Operator:
        """The operator, given its name, its inputs, the operator that it replaces, and the columns
        and the time of its input."""


@dataclass(frozen=True, eq=False)
class UnplacedAggregate(Unplaced):
    """Options that are not given are those of the aggregate that it replaces."""

    kind: ClassVar[str] = "aggregate"
    aggs: tuple[Agg, ...]
    by: tuple[str, ...] | None = None
    window: Window | Session | CountWindow | None = None
    emit: str | None = None
    lateness: int | None = None

    def placed(self, name: str, inputs: Sequence[str], former: Operator | None, schema: pl.Schema, time: Time | None) -> Operator:
        was = former if isinstance(former, Aggregate | WindowAggregate | CountAggregate) else None
        windowed = was if isinstance(was, WindowAggregate) else None
        aggs = resolved(self.aggs, schema)
        window = self.window or (was.window if isinstance(was, WindowAggregate | CountAggregate) else None)
        by = self.by if self.by is not None else was.keys if was else None
        if window is None:
            if by is None:
                raise FlowError(
                    f"aggregate {name!r}: it has no key; say by='column', as in md.aggregate(md.count(), by='customer'), or by=[]"
                )
            if self.emit is not None or self.lateness is not None:
                raise FlowError(f"aggregate {name!r}: emit and lateness are for windows; give window=md.tumbling('10s'), too")
            return Aggregate(by, aggs)
        if isinstance(window, CountWindow):
            only_full(self.emit, self.lateness, f"window {name!r}")
            return CountAggregate(by or (), aggs, window)
        by_event = window.clock == "event"
        if by_event and time is None:
            raise no_time("window", inputs[0], schema)
        emit = self.emit or (windowed.emit if windowed else "closed")
        lateness = self.lateness if self.lateness is not None else windowed.lateness if windowed and by_event else 0
        if lateness and not by_event:
            raise FlowError(f"window {name!r}: by processing time no row is late: leave lateness out")
        column, shift = (time.column, time.shift) if by_event and time is not None else (None, 0)
        kind = SessionAggregate if isinstance(window, Session) else WindowAggregate
        return kind(by or (), aggs, window, column, shift, emit, lateness)


@dataclass(frozen=True, eq=False)
class UnplacedProcess(Unplaced):
    """A processor; its key is as it was in the operator whose place it takes, where none is given. So is that of a second stream."""

    kind: ClassVar[str] = "process"
    processor: Processor
    by: tuple[str, ...] | None = None

    def placed(self, name: str, inputs: Sequence[str], former: Operator | None, schema: pl.Schema, time: Time | None) -> Operator:
        by = self.by if self.by is not None else getattr(former, "keys", None)
        if not by:
            raise FlowError(f"process {name!r}: it has no key; say by='column', as in md.process(Visits, by='user')")
        return Process(tuple(by), self.processor, former.other_keys if isinstance(former, Process) else None)


def aggregate(
    *aggs: Agg | Aggregator,
    by: str | Sequence[str] | None = None,
    window: Window | Session | CountWindow | None = None,
    emit: str | None = None,
    lateness: float | str | None = None,
) -> UnplacedAggregate:
    """An aggregate without a place, for ``run.replace`` and ``run.insert``. Options that are not
    given are those of the aggregate that it replaces.

    >>> import meander as md
    >>> aggregate(md.count(), md.sum("amount"), by="customer").by
    ('customer',)
    """
    if emit not in (None, "closed", "update"):
        raise FlowError(f"aggregate: emit={emit!r}; there are 'closed' and 'update'")
    if window is not None and not isinstance(window, Window | Session | CountWindow):
        raise FlowError(
            f"aggregate: {window!r} is no window; use md.tumbling('10s'), md.sliding('10s', '2s'), md.cumulating('1d', '1h'), "
            "md.session('30s') or md.count_window(100)"
        )
    slack = None if lateness is None else micros(lateness, "lateness", least=0)
    return UnplacedAggregate(tuple(as_agg(agg) for agg in aggs), _names(by), window, emit, slack)


def process(processor: Processor | type[Processor], by: str | Sequence[str] | None = None) -> UnplacedProcess:
    """A processor without a place, for ``run.replace`` and ``run.insert``. Without ``by`` it has
    the key of the operator that it replaces.

    Example: ``md.process(Visits, by="customer")``.
    """
    return UnplacedProcess(as_processor(processor), _names(by))


def watermark(column: str, grace: float | str = 0, idle: float | str | None = None, max_ahead: float | str | None = None) -> Watermark:
    """A watermark without a place, for ``run.replace`` and ``run.insert``; see ``Stream.watermark``.

    Example: ``md.watermark("ts", grace="10s")``.
    """
    limit = None if idle is None else micros(idle, "watermark idle")
    furthest = None if max_ahead is None else micros(max_ahead, "watermark max_ahead", least=0)
    return Watermark(column, micros(grace, "watermark grace", least=0), limit, furthest)


def side(output: str) -> Side:
    """A side output of a processor, for ``run.insert``: ``run.modify([md.Insert("late", md.side("late"), after="visits"), ...])``."""
    return Side(output)


def _names(given: str | Sequence[str] | None) -> tuple[str, ...] | None:
    return None if given is None else (given,) if isinstance(given, str) else tuple(given)


def filter(predicate: Expression) -> Filter:
    """A filter without a place, for ``run.replace`` and ``run.insert``.

    Example: ``md.filter("amount > 10")``.
    """
    return Filter(parse(predicate), text_of((predicate,), {}))


def with_columns(*exprs: Expression, **named: Expression) -> WithColumns:
    """New columns without a place, for ``run.replace`` and ``run.insert``.

    Example: ``md.with_columns(cents="amount * 100")``.
    """
    return WithColumns(parse_all(exprs, named), text_of(exprs, named), sql_of(exprs, named))


def select(*exprs: Expression) -> Select:
    """A choice of columns without a place, for ``run.replace`` and ``run.insert``.

    Example: ``md.select("customer", "amount")``.
    """
    return Select(parse_all(exprs, {}), text_of(exprs, {}), sql_of(exprs, {}))


def map_batches(
    fn: BatchFunction, schema: Mapping[str, Any] | None = None, row_local: bool = True, deterministic: bool = False
) -> MapBatches:
    """A Python function without a place, for ``run.replace`` and ``run.insert``; see ``Stream.map_batches``.

    Example: ``md.map_batches(fix)``.
    """
    if not callable(fn):
        raise FlowError(f"map_batches: {fn!r} is not a function from polars DataFrame to polars DataFrame")
    try:
        declared = None if schema is None else pl.Schema(schema)
    except TypeError as error:
        raise FlowError(f"map_batches: schema={schema!r}: {error}; give Polars types, as in {{'amount': pl.Float64}}") from error
    return MapBatches(fn, declared, row_local, deterministic)

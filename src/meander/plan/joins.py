"""Joins of two streams, and of a stream with a table: the operators, their output columns, and the
time of their rows.

Their work on rows is in ``task.operators.joins``, except for the join with a table, which has no
state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import polars as pl

from meander.errors import FlowError
from meander.plan.code import NO_CODE, Code
from meander.plan.counts import CountWindow
from meander.plan.eventtime import END, START, Time, no_time
from meander.plan.expressions import Expression, parse, text_of
from meander.plan.operators import Filter, expect_inputs
from meander.plan.schemas import KEY_TYPES, is_key_type, missing_column
from meander.plan.sessions import RowSession
from meander.plan.windows import Session, Window, micros, show_duration, signed_micros
from meander.stored import stored

HOWS = ("inner", "left", "right", "full")
FILTERING = ("semi", "anti")
"""Rows of the left that have, or have not, a partner on the right, without its columns."""
Columns = str | Sequence[str]


@stored("matching")
@dataclass(frozen=True)
class Matching:
    """The columns of two sides that must be equal, and the names of a join's output columns.

    Output has each key once, under its name on the left. Other columns of the right get the suffix
    if the left has a column of their name.
    """

    left_on: tuple[str, ...]
    right_on: tuple[str, ...]
    suffix: str = "_right"
    reserved: tuple[str, ...] = ()
    """Names of the join's own columns: those of the left give way to them, those of the right get the suffix."""
    nulls_equal: bool = field(default=False, repr=False)
    """Whether a null key equals a null key."""

    def check(self, left: pl.Schema, right: pl.Schema, what: str) -> None:
        """FlowError where these columns cannot be keys of a join."""
        if not self.left_on or len(self.left_on) != len(self.right_on):
            raise FlowError(f"{what}: it needs as many key columns on the left as on the right, and at least one, as in on='k'")
        for side, keys, schema in (("left", self.left_on, left), ("right", self.right_on, right)):
            for key in keys:
                if key not in schema:
                    raise FlowError(f"{what}: {side} side: {missing_column(key, schema)}")
                if not is_key_type(schema[key]):
                    raise FlowError(f"{what}: {side} key {key!r} is {schema[key]}; keys can be {KEY_TYPES}: cast it first")
            if len(set(keys)) < len(keys):
                raise FlowError(f"{what}: a key column of the {side} side is given twice: {', '.join(keys)}")
        for mine, other in zip(self.left_on, self.right_on, strict=True):
            if left[mine] != right[other]:
                raise FlowError(
                    f"{what}: {mine!r} is {left[mine]} on the left, {other!r} is {right[other]} on the right: cast one of them first"
                )

    def names(self, left: Sequence[str], right: Sequence[str]) -> dict[str, str]:
        """The right side's columns, each with its name in the output."""
        keys = dict(zip(self.right_on, self.left_on, strict=True))
        taken = {*left, *self.reserved}
        return {column: keys.get(column) or (f"{column}{self.suffix}" if column in taken else column) for column in right}

    def schema(self, left: pl.Schema, right: pl.Schema, what: str) -> pl.Schema:
        """The columns of both sides together."""
        output = dict(left)
        for column, name in self.names(list(left), list(right)).items():
            if column in self.right_on:
                continue
            if name in output:
                raise FlowError(
                    f"{what}: two columns would be named {name!r} (the right side's {column!r} is one); "
                    "rename one with select, or give another suffix="
                )
            output[name] = right[column]
        return pl.Schema(output)

    def describe(self) -> str:
        keys = ", ".join(a if a == b else f"{a} = {b}" for a, b in zip(self.left_on, self.right_on, strict=True))
        return f"{keys}, nulls equal" if self.nulls_equal else keys

    def canonical(self) -> str:
        return f"{self}, nulls equal" if self.nulls_equal else f"{self}"


@stored("side_time")
@dataclass(frozen=True)
class SideTime:
    """The time of one side's rows."""

    column: str
    shift: int

    def check(self, schema: pl.Schema, what: str) -> None:
        if self.column not in schema:
            raise FlowError(f"{what}: the time of its input: {missing_column(self.column, schema)}")


@stored("join")
@dataclass(frozen=True, eq=False)
class Join:
    """Rows of two streams with equal keys: within a bound of time, in the same window, or whenever they come."""

    kind: ClassVar[str] = "join"
    stateful: ClassVar[bool] = True
    matching: Matching
    how: str
    times: tuple[SideTime, SideTime] | None = None
    """None where there is no bound in time, and no ``time`` either."""
    bounds: tuple[int, int] | None = None
    """The right row's time less the left row's, at least and at most, in microseconds. None: whatever it is."""
    window: Window | Session | None = None
    where: Filter | None = None
    time: str | None = None
    """A column for the later of both times."""
    right_time: str | None = None
    """The name of the right side's time in the output."""

    @property
    def has_late(self) -> bool:
        return self.bounds is not None

    @property
    def by_event_time(self) -> bool:
        return self.times is not None

    def retimed(self, times: Sequence[Time], schemas: Sequence[pl.Schema]) -> Self:
        right = self.matching.names(list(schemas[0]), list(schemas[1])).get(times[1].column)
        return replace(self, times=_side_times(times), right_time=right)

    @property
    def outer(self) -> tuple[bool, bool]:
        """Whether rows of the left, and of the right, are emitted also without a partner."""
        return self.how in ("left", "full", "anti"), self.how in ("right", "full")

    @property
    def filters(self) -> bool:
        """Whether rows of the left are emitted unchanged, once, and the right side only selects
        them."""
        return self.how in FILTERING

    def output_schema(self, inputs: list[pl.Schema], name: str) -> pl.Schema:
        left, right = expect_inputs(self.kind, name, inputs, 2)
        what = f"join {name!r}"
        self.matching.check(left, right, what)
        output = dict(left if self.filters and self.where is None else self.matching.schema(left, right, what))
        if self.times is not None:
            for time, schema in zip(self.times, (left, right), strict=True):
                time.check(schema, what)
            first, second = (schema[time.column] for time, schema in zip(self.times, (left, right), strict=True))
            made = [*([START, END] if self.window is not None else []), *([self.time] if self.time is not None else [])]
            if made and (first != second or (self.time is not None and self.times[0].shift != self.times[1].shift)):
                raise FlowError(
                    f"{what}: the times of both sides become one column, {made[-1]!r}, but that of the left ({self.times[0].column!r}) is "
                    f"{first}, that of the right ({self.times[1].column!r}) {second}"
                    + (": cast one of them first" if first != second else ", and only one is the end of a window: leave time= out")
                )
            for column in made:
                if column in output and column not in self.matching.reserved:
                    raise FlowError(f"{what}: a column is named {column!r}, which is the join's own; rename it first")
                output[column] = first
        schema = pl.Schema(output)
        if self.where is not None:
            try:
                self.where.output_schema([schema], name)
            except FlowError as error:
                raise FlowError(f"{what}: where: {error}") from error
        own = () if self.window is None else (START, END)
        return pl.Schema({name: schema[name] for name in dict.fromkeys((*left, *own))}) if self.filters else schema

    def time_after(self, inputs: Sequence[Time | None]) -> Time | None:
        """The time lags behind the marks by the greatest age of a stored row that an arriving row
        can meet."""
        first, second = inputs
        if first is None or second is None or self.times is None:
            return None
        marks, delay = first.marks | second.marks, max(first.delay, second.delay)
        if self.window is not None:
            # A session closes when the mark is above its end, and not yet when it is there.
            return Time(END, 0 if isinstance(self.window, Session) else -1, marks, delay)
        if self.bounds is None:
            return None if self.time is None else Time(self.time, first.shift, marks, delay)
        low, high = self.bounds
        waits = (max(0, high) if self.outer[0] else 0, max(0, -low) if self.outer[1] else 0)
        if self.time is not None:
            return Time(self.time, first.shift, marks, delay + max(waits))
        if self.how in ("inner", "left", *FILTERING):
            return Time(first.column, first.shift, marks, delay + max(waits[0], high, 0))
        if self.how == "right":
            return Time(self.right_time or self.times[1].column, second.shift, marks, delay + max(waits[1], -low, 0))
        return None

    def describe(self) -> str:
        bound = "whenever they come"
        if self.window is not None:
            bound = f"in the same {self.window.describe()}"
        elif self.bounds is not None:
            low, high = self.bounds
            bound = f"within {show_duration(high)}" if low == -high else f"from {show_signed(low)} to {show_signed(high)}"
        also = f", where {self.where.describe()}" if self.where is not None else ""
        return f"{self.how} on {self.matching.describe()}, {bound}{also}"

    def canonical(self) -> str:
        where = "" if self.where is None else self.where.canonical()
        return f"{self.matching.canonical()} {self.how} {self.times} {self.bounds} {self.window} {self.time} {where}"

    def code(self) -> Code:
        return NO_CODE


@stored("join_latest")
@dataclass(frozen=True, eq=False)
class JoinLatest:
    """Rows of the left, each with the right side's newest row of its key: the last that has arrived, or the last by event time."""

    kind: ClassVar[str] = "join_latest"
    stateful: ClassVar[bool] = True
    matching: Matching
    how: str
    times: tuple[SideTime, SideTime] | None = None
    """Where it goes by event time."""
    tolerance: int | None = None
    """How much older than the left row the right one may be, in microseconds. None: whatever it is."""

    @property
    def has_late(self) -> bool:
        return self.times is not None

    @property
    def by_event_time(self) -> bool:
        return self.times is not None

    def retimed(self, times: Sequence[Time], schemas: Sequence[pl.Schema]) -> Self:
        return replace(self, times=_side_times(times))

    def output_schema(self, inputs: list[pl.Schema], name: str) -> pl.Schema:
        left, right = expect_inputs(self.kind, name, inputs, 2)
        what = f"join_latest {name!r}"
        self.matching.check(left, right, what)
        for time, schema in zip(self.times or (), (left, right), strict=False):
            time.check(schema, what)
        return self.matching.schema(left, right, what)

    def time_after(self, inputs: Sequence[Time | None]) -> Time | None:
        first, second = inputs
        if self.times is None or first is None or second is None:
            return first
        marks, delay = first.marks | second.marks, max(first.delay, second.delay)
        return Time(first.column, first.shift, marks, delay)

    def describe(self) -> str:
        by = "the last to arrive" if self.times is None else f"the last up to {self.times[0].column}, by {self.times[1].column}"
        within = "" if self.tolerance is None else f", at most {show_duration(self.tolerance)} older"
        return f"{self.how} on {self.matching.describe()}, {by}{within}"

    def canonical(self) -> str:
        within = "" if self.tolerance is None else f" {self.tolerance}"
        return f"{self.matching.canonical()} {self.how} {self.times}{within}"

    def code(self) -> Code:
        return NO_CODE


def _side_times(times: Sequence[Time]) -> tuple[SideTime, SideTime]:
    left, right = (SideTime(time.column, time.shift) for time in times)
    return left, right


@dataclass(frozen=True)
class Input:
    """A stream that is to be joined."""

    name: str
    schema: pl.Schema
    time: Time | None

    def timed(self, what: str) -> SideTime:
        if self.time is None:
            raise no_time(what, self.name, self.schema)
        return SideTime(self.time.column, self.time.shift)


def plan_join(
    left: Input,
    right: Input,
    matching: Matching,
    how: str,
    bounds: tuple[int, int] | None,
    window: Window | Session | CountWindow | None,
    where: Expression | None,
    time: str | None,
) -> Join:
    """The operator for the requested join; FlowError with the reason if there is none."""
    what = f"join after {left.name!r}" if window is None else f"join of windows after {left.name!r}"
    if how not in (*HOWS, *FILTERING):
        raise FlowError(f"{what}: how={how!r}; there are {', '.join((*HOWS, *FILTERING))}")
    if how in FILTERING and time is not None:
        raise FlowError(f"{what}: time={time!r} is the later of the times of a pair, and a {how} join emits no pairs: leave it out")
    cut = _joined_in(window, what)
    if bounds is None and how not in ("inner", "semi"):
        raise FlowError(f"{what}: how={how!r} needs within=...: without it a partner can always come, and no row would ever come out alone")
    if window is not None:
        matching = replace(matching, reserved=(START, END))
    matching.check(left.schema, right.schema, what)
    schema = dict(left.schema if how in FILTERING and where is None else matching.schema(left.schema, right.schema, what))
    times, right_time = None, None
    if bounds is not None or time is not None:
        times = (left.timed(what), right.timed(what))
        right_time = matching.names(list(left.schema), list(right.schema))[times[1].column]
        added = [*([START, END] if window is not None else []), *([time] if time is not None else [])]
        schema.update(dict.fromkeys(added, left.schema[times[0].column]))
    condition = None if where is None else Filter(parse(where, pl.Schema(schema)), text_of((where,), {}))
    return Join(matching, how, times, bounds, cut, condition, time, right_time)


def _joined_in(window: Window | Session | CountWindow | None, what: str) -> Window | Session | None:
    """The windows of a join; FlowError where there is none in such windows."""
    instead = "use md.tumbling('10s'), md.sliding('10s', '2s'), md.cumulating('1d', '1h') or md.session('30s')"
    if isinstance(window, CountWindow):
        raise FlowError(f"{what}: {window.describe()} counts the rows of one stream, so that two streams share no such windows; {instead}")
    if window is not None and window.clock != "event":
        raise FlowError(f"{what}: {window.describe()} says when rows were taken in, and a join needs windows of event time; {instead}")
    if isinstance(window, RowSession):
        raise FlowError(
            f"{what}: {window.describe()} has a gap per row, and a join needs one for all rows of both sides: md.session('30s')"
        )
    return window


def plan_join_latest(
    left: Input, right: Input, matching: Matching, how: str, as_of: bool, tolerance: float | str | None = None
) -> JoinLatest:
    what = f"join_latest after {left.name!r}"
    if how not in HOWS[:2]:
        raise FlowError(f"{what}: how={how!r}; there are inner and left: the other side only supplies the newest row")
    if tolerance is not None and not as_of:
        raise FlowError(f"{what}: tolerance={tolerance!r} is between times, and by arrival there are none: give as_of=True, too")
    most = None if tolerance is None else micros(tolerance, f"{what}: tolerance", least=0)
    return JoinLatest(matching, how, (left.timed(what), right.timed(what)) if as_of else None, most)


def as_matching(
    on: Columns | None, left_on: Columns | None, right_on: Columns | None, suffix: str, what: str, nulls_equal: bool = False
) -> Matching:
    """Key columns as they were given: ``on`` for both sides, or one list for each."""
    if (on is None) == (left_on is None) or (left_on is None) != (right_on is None):
        raise FlowError(f"{what}: say which columns must be equal: on='k', on=['a', 'b'], or both left_on= and right_on=")
    given: list[tuple[str, ...]] = []
    for columns in (on, on) if on is not None else (left_on, right_on):
        names = (columns,) if isinstance(columns, str) else tuple(columns or ())
        if not all(isinstance(column, str) for column in names):
            raise FlowError(f"{what}: {columns!r} are no names of columns; compute a key first, with with_columns(...), and name it here")
        given.append(names)
    return Matching(given[0], given[1], suffix, nulls_equal=bool(nulls_equal))


def read_bounds(within: object, what: str) -> tuple[int, int]:
    """
    >>> read_bounds("10s", "join"), read_bounds(("-5s", 10), "join")
    ((-10000000, 10000000), (-5000000, 10000000))
    """
    if isinstance(within, tuple | list):
        if len(within) != 2:
            raise FlowError(f"{what}: within={within!r}; give one duration, or two: ('-5s', '10s')")
        low, high = (signed_micros(bound, f"{what}: within") for bound in within)
        if low > high:
            raise FlowError(f"{what}: within={within!r}: the first bound is above the second, so that nothing can match")
        return low, high
    if not isinstance(within, str | int | float) or isinstance(within, bool):
        raise FlowError(f"{what}: within={within!r}; give a duration ('10s'), or two: ('-5s', '10s')")
    length = micros(within, f"{what}: within", least=0)
    return -length, length


def show_signed(length: int) -> str:
    return f"-{show_duration(-length)}" if length < 0 else show_duration(length)

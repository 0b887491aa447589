"""Sessions as users write them: with one gap for all rows, or with a gap that each row has itself. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

from meander.errors import FlowError, MeanderError
from meander.plan.expressions import Expression, parse, text_of
from meander.plan.rowlocal import batch_dependence
from meander.plan.schemas import missing_column, show_schema
from meander.plan.windows import Session, check_clock, micros
from meander.settings import seconds
from meander.stored import stored

GAP = "__gap"
"""The column of the rows' gaps, in microseconds."""
_LONGEST = float(1 << 62)
"""Longer than any that can be taken."""


@stored("row_session_window", called={"expr": "expression"}, sql="text")
@dataclass(frozen=True, repr=False)
class RowSession(Session):
    """Sessions to which each row adds a stretch of its own: from its time to its time and its gap. ``gap`` is 0, since the rows have it.

    Stretches that meet, if only at one moment, are of one session.
    """

    expr: pl.Expr = field(default_factory=lambda: pl.lit(None), compare=False)
    text: str = ""
    """The gap as the user wrote it."""

    def describe(self) -> str:
        return f"session(gap {self.text}{'' if self.clock == 'event' else ', processing time'})"

    def __repr__(self) -> str:
        return f"RowSession({self.text!r}, {self.clock!r})"

    def canonical(self) -> str:
        return self.expr.meta.serialize(format="json")

    def check(self, schema: pl.Schema, name: str) -> pl.DataType:
        """The type of the gaps; FlowError where rows of these columns have none."""
        about = f"session {name!r}: its gap"
        for column in self.expr.meta.root_names():
            if column not in schema:
                raise FlowError(f"{about}: {missing_column(column, schema)}; one gap for all rows is written as '30s'")
        if (found := batch_dependence(self.expr, schema)) is not None:
            raise FlowError(f"{about}, {self.text}, contains {found}, which is not row-local; a row's gap follows from its own columns")
        try:
            (dtype,) = schema.to_frame().select(self.expr).dtypes
        except Exception as error:
            reason = str(error).split("\n", 1)[0].strip().rstrip(".;")
            raise FlowError(f"{about}, {self.text}: {reason}; columns are {show_schema(schema)}") from error
        if not isinstance(dtype, pl.Duration) and not dtype.is_numeric():
            raise FlowError(f"{about}, {self.text}, is {dtype}; it must be a Duration or a number of seconds")
        return dtype

    def gaps(self, schema: pl.Schema, name: str) -> pl.Expr:
        """The gaps of rows in whole microseconds; null where there is none, or none that can be counted."""
        dtype = self.check(schema, name)
        if isinstance(dtype, pl.Duration):
            micros = self.expr.dt.total_microseconds()
            if dtype.time_unit == "ms":  # a thousand times as much may be more than 64 bits hold
                most = int(_LONGEST) // 1000
                micros = self.expr.dt.total_milliseconds().clip(-most, most) * 1000
            return micros.alias(GAP)
        return (self.expr.cast(pl.Float64) * 1_000_000).clip(-_LONGEST, _LONGEST).round().cast(pl.Int64, strict=False).alias(GAP)


def session(gap: float | Expression, time: str = "event") -> Session:
    """Per key, rows that follow each other with pauses of at most ``gap``. A row that comes late can make one session of two.

    A session's ``window_start`` is the time of its first row, its ``window_end`` that of its last plus the gap.

    The gap may be the row's own: a column, SQL text or a Polars expression that yields a Duration or a number of seconds. Each row then
    extends its session to its own time plus its own gap, and ``window_end`` is the largest of these. A row whose gap is null or not above
    zero, or for which the expression fails, is a dead letter.

    >>> session("30s").describe(), session("timeout").describe()
    ('session(30s)', 'session(gap timeout)')
    >>> session("CASE WHEN device = 'tv' THEN interval '1 hour' ELSE interval '5 minutes' END").gap
    0
    """
    clock = check_clock("session", time)
    if not isinstance(gap, pl.Expr) and (not isinstance(gap, str) or _is_duration(gap)):
        return Session(micros(gap, "session"), clock)
    try:
        expr = parse(gap)
    except FlowError as error:
        raise FlowError(f"session: {gap!r} is not a duration such as '30s', and as an expression: {error}") from error
    if not expr.meta.root_names():
        raise FlowError(
            f"session: {str(gap)!r} is not a duration, and no expression of the rows' columns; write '30s' or a number of seconds for one "
            "gap for all rows, and 'timeout' or \"timeout * interval '1 second'\" for the row's own"
        )
    return RowSession(0, clock, expr, text_of((gap,), {}))


def _is_duration(text: str) -> bool:
    try:
        return seconds(text) is not None
    except MeanderError:
        return False

"""The operators of a plan: immutable descriptions that know their schema before anything runs.

Owned here: what each operator demands of its input (``output_schema`` raises FlowError that names the
operator and what is there instead) and what the stateless ones do to a frame (``apply``). The engine
calls ``apply`` in a task; nothing here does I/O, and no operator changes the frame it is given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import polars as pl

from meander.aggregates import Agg
from meander.connect.sink import ChecksColumns, Sink
from meander.connect.source import Batch, ChangesColumns, Source
from meander.errors import FlowError
from meander.plan.code import NO_CODE, Code, read_code, together
from meander.plan.computed import check_row_local
from meander.plan.expressions import one_space, parse
from meander.plan.rowlocal import batch_dependence
from meander.plan.schemas import KEY_TYPES, is_key_type, missing_column, show_schema
from meander.plan.serial import functions_of, text_of_expression
from meander.stored import stored

BatchFunction = Callable[[pl.DataFrame], pl.DataFrame]


class Operator(Protocol):
    """The protocol of a plan's operators."""

    kind: ClassVar[str]
    stateful: ClassVar[bool]

    def output_schema(self, inputs: list[pl.Schema], name: str) -> pl.Schema:
        """The columns that leave the operator; FlowError if it cannot run on these inputs."""

    def describe(self) -> str:
        """One line for a person."""

    def canonical(self) -> str:
        """Everything but its code and its columns that decides what the operator does: equal text, same results. For digests."""

    def code(self) -> Code:
        """The Python code that it calls, as it is now. ``Node.code`` keeps it."""


@stored("source")
@dataclass(frozen=True, eq=False)
class SourceOp:
    kind: ClassVar[str] = "source"
    stateful: ClassVar[bool] = False
    source: Source
    gained: frozenset[str] = frozenset()
    """Columns that came while the flow ran: input from before lacks them, and they are null there. No part of the digest."""
    before: SourceOp | None = None
    """The same source with the columns that it had before they changed: what that could read is to be no dead letter by the change."""

    def read(self, payload: dict[str, Any]) -> Batch:
        """The rows of one split."""
        source = self.source
        if self.gained and isinstance(source, ChangesColumns):
            source = source.absent_as_null(self.gained)
        return source.read(payload)

    def newly_bad(self, payload: dict[str, Any], batch: Batch) -> str | None:
        """Where a split has a row that could be read before the columns changed, and cannot be now, and why; None where it has none."""
        if self.before is None or not batch.bad:
            return None
        known = {bad.position for bad in self.before.read(payload).bad}
        return next((f"{bad.position}: {bad.reason}" for bad in batch.bad if bad.position not in known), None)

    def gone_on(self, stored: SourceOp) -> SourceOp:
        """This one, started anew where the stored one has come to."""
        return dataclasses.replace(self, gained=stored.gained, before=stored.before) if stored.gained or stored.before else self

    def output_schema(self, inputs: list[pl.Schema], name: str) -> pl.Schema:
        expect_inputs(self.kind, name, inputs, 0)
        schema = pl.Schema(self.source.schema())
        if not schema:
            raise FlowError(f"source {name!r}: it has no columns; give it a schema")
        return schema

    def describe(self) -> str:
        return self.source.describe()

    def canonical(self) -> str:
        return self.source.canonical()

    def code(self) -> Code:
        return NO_CODE


@stored("filter", sql="text")
@dataclass(frozen=True, eq=False)
class Filter:
    """Keeps the rows where the predicate is true; false and null rows go."""

    kind: ClassVar[str] = "filter"
    stateful: ClassVar[bool] = False
    predicate: pl.Expr
    text: str | None = None
    """What the user wrote, for people; the predicate decides."""

    def output_schema(self, inputs: list[pl.Schema], name: str) -> pl.Schema:
        (schema,) = expect_inputs(self.kind, name, inputs, 1)
        result = _check((self.predicate,), schema, self.kind, name, select=True)
        if len(result) != 1 or result.dtypes()[0] != pl.Boolean:
            raise FlowError(
                f"filter {name!r}: the predicate {self.predicate} is {show_schema(result)}, not one Boolean; compare it with something"
            )
        return schema

    def apply(self, frame: pl.DataFrame) -> pl.DataFrame:
        return frame.filter(self.mask(frame))

    def mask(self, frame: pl.DataFrame) -> pl.Series:
        """One true or false per row, also where the predicate is a constant; null counts as false."""
        # Selected from an expression that has the frame's height: a constant alone would give one row.
        keep = pl.when(self.predicate).then(True).otherwise(False)
        return frame.with_columns(keep.alias("keep")).get_column("keep")

    def describe(self) -> str:
        return self.text or str(self.predicate)

    def canonical(self) -> str:
        return _serial((self.predicate,))

    def code(self) -> Code:
        return _code((self.predicate,))


@stored("with_columns", called={"exprs": "expressions"}, sql="sql")
@dataclass(frozen=True, eq=False)
class WithColumns:
    """Adds columns, or replaces those of the same name."""

    kind: ClassVar[str] = "with_columns"
    stateful: ClassVar[bool] = False
    exprs: tuple[pl.Expr, ...]
    text: str | None = None
    sql: tuple[str | None, ...] = ()
    """Per expression, the SQL text that the user wrote, where it was SQL: what is stored."""

    def output_schema(self, inputs: list[pl.Schema], name: str) -> pl.Schema:
        (schema,) = expect_inputs(self.kind, name, inputs, 1)
        return _check(self.exprs, schema, self.kind, name, select=False)

    def apply(self, frame: pl.DataFrame) -> pl.DataFrame:
        return frame.with_columns(*self.exprs)

    def describe(self) -> str:
        return self.text or ", ".join(map(str, self.exprs))

    def canonical(self) -> str:
        return _serial(self.exprs)

    def code(self) -> Code:
        return _code(self.exprs)


@stored("select", called={"exprs": "expressions"}, sql="sql")
@dataclass(frozen=True, eq=False)
class Select:
    """Keeps exactly the given columns."""

    kind: ClassVar[str] = "select"
    stateful: ClassVar[bool] = False
    exprs: tuple[pl.Expr, ...]
    text: str | None = None
    sql: tuple[str | None, ...] = ()
    """Per expression, the SQL text that the user wrote, where it was SQL: what is stored."""

    def output_schema(self, inputs: list[pl.Schema], name: str) -> pl.Schema:
        (schema,) = expect_inputs(self.kind, name, inputs, 1)
        return _check(self.exprs, schema, self.kind, name, select=True)

    def name_of(self, column: str) -> str | None:
        """The name of an input column in the output; None if the output does not have it. Under its
        old name there may be another one."""
        plain = [expr for expr in self.exprs if expr.meta.root_names() == [column] and expr.meta.undo_aliases().meta.is_column()]
        names = [expr.meta.output_name() for expr in plain]
        return column if column in names else next(iter(names), None)

    def apply(self, frame: pl.DataFrame) -> pl.DataFrame:
        # A literal alone selects to one row whatever the frame: with_columns keeps the height, then the columns are chosen.
        width = frame.clear().select(*self.exprs).columns
        return frame.with_columns(*self.exprs).select(width)

    def describe(self) -> str:
        return self.text or ", ".join(map(str, self.exprs))

    def canonical(self) -> str:
        return _serial(self.exprs)

    def code(self) -> Code:
        return _code(self.exprs)


@stored("map_batches", called={"fn": "function", "written": "code"})
@dataclass(frozen=True, eq=False)
class MapBatches:
    """A Python function from frame to frame.

    ``row_local`` is the user's word that the rows it returns depend on their own input rows only;
    ``deterministic`` that the same frame always gives the same rows. The engine may run it on any cut
    of the input in the first case, and more than once in the second.
    """

    kind: ClassVar[str] = "map_batches"
    stateful: ClassVar[bool] = False
    fn: BatchFunction
    schema: pl.Schema | None = None
    row_local: bool = True
    deterministic: bool = False
    carries: ClassVar[bool] = False
    """Whether it takes any other columns along, row by row: an operator of ours, that may give a row none or several."""
    learned: bool = False
    """Whether the schema is what the function did to a frame without rows: where its input changes, it is learned again."""
    written: Code | None = None
    """The function's code as it was read where it was written; None there."""

    def output_schema(self, inputs: list[pl.Schema], name: str) -> pl.Schema:
        (schema,) = expect_inputs(self.kind, name, inputs, 1)
        if self.schema is not None and not self.learned:
            return self.schema
        try:
            result = self.fn(schema.to_frame())
        except Exception as error:
            raise FlowError(
                f"map_batches {name!r}: calling it on an empty frame to learn its columns failed with {type(error).__name__}: {error}; "
                f"pass schema={{...}} to say what it returns. Its input columns are {show_schema(schema)}"
            ) from error
        if not isinstance(result, pl.DataFrame):
            raise FlowError(f"map_batches {name!r}: {_no_frame(result)}")
        untyped = [column for column, dtype in result.schema.items() if dtype == pl.Null]
        if untyped:
            raise FlowError(
                f"map_batches {name!r}: on an empty frame its columns {', '.join(untyped)} have no type; "
                "pass schema={...} to say what it returns"
            )
        return result.schema

    def with_schema(self, schema: pl.Schema) -> MapBatches:
        """The same with its columns declared, so that what ``apply`` returns is always what was planned."""
        return dataclasses.replace(self, schema=schema, learned=self.learned or self.schema is None)

    def apply(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The function's result for a frame; FlowError if it has other columns than planned: no row
        is to blame for that."""
        # A shallow copy, so that a function that assigns columns in place does not change the caller's frame.
        result = self.fn(frame.clone())
        if not isinstance(result, pl.DataFrame):
            raise FlowError(_no_frame(result))
        return result if self.schema is None else conform(result, self.schema)

    def describe(self) -> str:
        return getattr(self.fn, "__qualname__", type(self.fn).__qualname__).replace("<locals>.", "")

    def canonical(self) -> str:
        return f"{self.row_local} {self.deterministic}"

    def code(self) -> Code:
        return self.written or read_code(self.fn)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "written": self.code()}


@stored("union")
@dataclass(frozen=True, eq=False)
class Union:
    """All rows of all inputs; columns are in the order of the first."""

    kind: ClassVar[str] = "union"
    stateful: ClassVar[bool] = False

    def output_schema(self, inputs: list[pl.Schema], name: str) -> pl.Schema:
        if len(inputs) < 2:
            raise FlowError(f"union {name!r}: it has {len(inputs)} input; a union needs at least two")
        first = inputs[0]
        for number, other in enumerate(inputs[1:], 2):
            if dict(other) != dict(first):
                differs = [c for c in {**first, **other} if first.get(c) != other.get(c)]
                raise FlowError(
                    f"union {name!r}: input {number} differs in {', '.join(differs)}: it has {show_schema(other)}, "
                    f"the first has {show_schema(first)}; make them equal with select"
                )
        return first

    def describe(self) -> str:
        return "all rows of all inputs"

    def canonical(self) -> str:
        return "union"

    def code(self) -> Code:
        return NO_CODE


@stored("aggregate", called={"aggs": "aggregates"})
@dataclass(frozen=True, eq=False)
class Aggregate:
    """One state row per key; emits the key and the new values of every key touched in an epoch. Without a key, one row of all."""

    kind: ClassVar[str] = "aggregate"
    stateful: ClassVar[bool] = True
    keys: tuple[str, ...]
    aggs: tuple[Agg, ...]

    def output_schema(self, inputs: list[pl.Schema], name: str) -> pl.Schema:
        (schema,) = expect_inputs(self.kind, name, inputs, 1)
        if not self.aggs:
            raise FlowError(f"aggregate {name!r}: it needs at least one aggregate, as in key_by('k').aggregate(count())")
        if not self.keys and "__all" in schema:
            raise FlowError(f"aggregate {name!r}: a column is named '__all', which is its own where it has no key; rename it first")
        return aggregated(self.keys, self.aggs, schema, name)

    def describe(self) -> str:
        by = f"by {', '.join(self.keys)}: " if self.keys else "of all rows: "
        return by + ", ".join(agg.describe() for agg in self.aggs)

    def canonical(self) -> str:
        return f"{list(self.keys)} {[agg.describe() for agg in self.aggs]}"

    def code(self) -> Code:
        return together([agg.code() for agg in self.aggs])


@stored("sink")
@dataclass(frozen=True, eq=False)
class SinkOp:
    kind: ClassVar[str] = "sink"
    stateful: ClassVar[bool] = False
    sink: Sink

    def output_schema(self, inputs: list[pl.Schema], name: str) -> pl.Schema:
        (schema,) = expect_inputs(self.kind, name, inputs, 1)
        if isinstance(self.sink, ChecksColumns):
            self.sink.check(schema, name)
        return schema

    def describe(self) -> str:
        return self.sink.describe()

    def canonical(self) -> str:
        return self.sink.canonical()

    def code(self) -> Code:
        return NO_CODE


def aggregated(keys: tuple[str, ...], aggs: tuple[Agg, ...], schema: pl.Schema, name: str) -> pl.Schema:
    """The columns of an aggregation: the keys and the values; FlowError where it cannot run on these columns."""
    output: dict[str, pl.DataType] = {}
    for key in keys:
        if key not in schema:
            raise FlowError(f"aggregate {name!r}: key_by: {missing_column(key, schema)}")
        if not is_key_type(schema[key]):
            raise FlowError(f"aggregate {name!r}: key column {key!r} is {schema[key]}; keys can be {KEY_TYPES}: cast it first")
        if key in output:
            raise FlowError(f"aggregate {name!r}: key column {key!r} is given twice")
        output[key] = schema[key]
    for agg in aggs:
        for column in agg.inputs():
            if column not in schema:
                raise FlowError(f"aggregate {name!r}: {agg.call()}: {missing_column(column, schema)}")
        if agg.name in output:
            raise FlowError(f"aggregate {name!r}: two columns would be named {agg.name!r}; rename one with .alias(...)")
        try:
            check_row_local(agg, schema)
            # State columns live beside the keys, so their names must not meet.
            met = [column for column in agg.state_columns(schema) if column in keys]
            if met:
                raise FlowError(f"{agg.call()}: its state column {met[0]!r} has the name of a key; rename it with .alias(...)")
            output[agg.name] = agg.output(schema)
        except FlowError as error:
            raise FlowError(f"aggregate {name!r}: {error}") from error
    return pl.Schema(output)


def expect_inputs(kind: str, name: str, inputs: list[pl.Schema], count: int) -> list[pl.Schema]:
    if len(inputs) != count:
        raise FlowError(f"{kind} {name!r}: it has {len(inputs)} inputs and takes {count}")
    return inputs


def _check(exprs: tuple[pl.Expr, ...], schema: pl.Schema, kind: str, name: str, *, select: bool) -> pl.Schema:
    """The columns the expressions make of ``schema``, or FlowError.

    Evaluated on a frame without rows: Polars finds some type errors (string > int) only there.
    """
    if not exprs:
        raise FlowError(f"{kind} {name!r}: no expression is given")
    for expr in exprs:
        if (found := batch_dependence(expr, schema)) is not None:
            raise FlowError(
                f"{kind} {name!r}: {expr} contains {found}, which is not row-local: its result would depend on how rows are cut into "
                f"batches; use key_by(...).aggregate(...) for what spans rows, map_batches for Python code"
            )
    frame = schema.to_frame()
    try:
        return (frame.select(*exprs) if select else frame.with_columns(*exprs)).schema
    except pl.exceptions.ColumnNotFoundError as error:
        for expr in exprs:
            for column in expr.meta.root_names():
                if column not in schema:
                    raise FlowError(f"{kind} {name!r}: {missing_column(column, schema)}") from error
        raise FlowError(f"{kind} {name!r}: {_first_line(error)}; columns are {show_schema(schema)}") from error
    except Exception as error:
        said = _first_line(error)
        if "'date/datetime/time' to a string" in said:
            said = "a time is compared with text; write TIMESTAMP '2024-01-31 12:00:00' in SQL, or pl.datetime(2024, 1, 31, 12)"
        raise FlowError(f"{kind} {name!r}: {said}; columns are {show_schema(schema)}") from error


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0].strip().rstrip(".;")


def sql_text(op: Operator) -> str | None:
    """The SQL of all its expressions, with their names; None where some of them were not written so.

    It stays when another version of Polars makes other expressions of it.
    """
    if isinstance(op, Filter):
        try:
            is_sql = op.text is not None and _serial((parse(op.text),)) == _serial((op.predicate,))
        except FlowError:
            is_sql = False
        return one_space(op.text) if op.text is not None and is_sql else None
    if not isinstance(op, Select | WithColumns) or len(op.sql) != len(op.exprs):
        return None
    texts = [one_space(text) for text in op.sql if text is not None]
    names = [expr.meta.output_name() for expr in op.exprs]
    return ", ".join(f"{text} as {name}" for text, name in zip(texts, names, strict=True)) if len(texts) == len(names) else None


def _serial(exprs: tuple[pl.Expr, ...]) -> str:
    return "\n".join(map(text_of_expression, exprs))


def _code(exprs: tuple[pl.Expr, ...]) -> Code:
    """The code of the Python functions in expressions."""
    found = [one for expr in exprs for one in functions_of(expr)]
    return read_code(found) if found else NO_CODE


def _no_frame(result: object) -> str:
    kind = type(result)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__.split('.')[0]}.{kind.__qualname__}"
    hints = {
        "NoneType": "does it lack a `return`?",
        "pandas.DataFrame": "wrap it in pl.from_pandas(...)",
        "polars.LazyFrame": "end it with .collect()",
        "polars.Series": "end it with .to_frame()",
    }
    hint = f"; {hints[name]}" if name in hints else ""
    return f"the function returned {'None' if result is None else name}; it must return a polars DataFrame{hint}"


def conform(frame: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    """The frame with the declared columns, in order; FlowError where that would lose something.

    Casts only what cannot change a value silently: nulls, integers (overflow raises), integers to floats, float widths.
    """
    columns = []
    for name, dtype in schema.items():
        if name not in frame.columns:
            raise FlowError(
                f"the function returned no column {name!r}, which was declared (or learned on an empty frame); it returned "
                f"{show_schema(frame.schema)}: add it or change schema="
            )
        found = frame.schema[name]
        harmless = found == pl.Null or (found.is_integer() and dtype.is_numeric()) or (found.is_float() and dtype.is_float())
        if found != dtype and not harmless:
            raise FlowError(
                f"the function returned {name!r} as {found}, and {dtype} was declared (or learned on an empty frame): "
                "cast it or change schema="
            )
        columns.append(pl.col(name).cast(dtype))
    return frame.select(columns)

"""Append-only streams and streams of changes, in which rows replace earlier rows. Pure.

A stream is *append-only* or a *stream of changes*. This follows from the nodes of a plan alone: an
operator that emits a key's new values whenever they have changed makes a stream of changes,
operators without state pass it on, and rows that are never replaced make an append-only stream. The
number of replacements depends on how input is cut into epochs. An operator that took them for new
rows would have a result that depends on it. So an operator that cannot process changes refuses
them, when the flow is written and when it is modified.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import polars as pl

from meander.aggregates.changing import over_changes
from meander.connect.sink import ShowsTable, shows_table
from meander.errors import FlowError
from meander.plan.change_joins import ChangeJoin
from meander.plan.code import NO_CODE, Code
from meander.plan.computed import with_computed
from meander.plan.eventtime import END, START, SessionAggregate, Watermark, WindowAggregate
from meander.plan.joins import JoinLatest
from meander.plan.operators import Aggregate, Filter, MapBatches, Operator, Select, SinkOp, Union, WithColumns, expect_inputs
from meander.plan.rowwise import RANK, Latest, Top
from meander.plan.tables import JoinStatic
from meander.stored import stored

if TYPE_CHECKING:
    from meander.plan.graph import Node


@dataclass(frozen=True)
class Changes:
    """The origin and the key of a stream of changes."""

    origin: str
    """The operator that makes it one."""
    why: str
    """What the operator does, in words."""
    key: tuple[str, ...] | None
    """The columns by which a new row replaces an old one; None where they are not in the stream any more."""
    instead: str
    """The way to an append-only stream, in words."""
    vanishes: bool = False
    """Whether a row can go without another in its place."""
    unsaid: str = ""
    """Why it cannot be said which rows are gone; empty where it can."""

    def describe(self) -> str:
        return "changes" if self.key is None else f"changes by {', '.join(self.key)}" if self.key else "changes of one row"


@stored("changes")
@dataclass(frozen=True, eq=False)
class Changelog:
    """Makes of changes rows of their own: those that have come and those that are gone, with a column that says which."""

    kind: ClassVar[str] = "changes"
    stateful: ClassVar[bool] = False
    column: str

    def output_schema(self, inputs: list[pl.Schema], name: str) -> pl.Schema:
        (schema,) = expect_inputs(self.kind, name, inputs, 1)
        if self.column in schema:
            raise FlowError(f"changes {name!r}: there is a column {self.column!r} already; give another name, as in changes('change')")
        return pl.Schema({**schema, self.column: pl.Int8()})

    def describe(self) -> str:
        return f"{self.column} is 1 for an added row, and -1 for a removed row"

    def canonical(self) -> str:
        return self.column

    def code(self) -> Code:
        return NO_CODE


def find_changes(nodes: Iterable[Node], schemas: Mapping[str, pl.Schema]) -> dict[str, Changes]:
    """The streams of changes among the outputs of nodes (in topological order). All others are append-only."""
    found: dict[str, Changes] = {}
    for node in nodes:
        changes: Changes | None
        if isinstance(node.op, ChangeJoin):
            changes = _joined(node, node.op, found, schemas)
        elif node.op.stateful:
            changes = _made(node, over=any(name in found for name in node.inputs))
        else:
            given = [(found.get(name), schemas[name]) for name in node.inputs]
            changes = _passed_on(node.name, node.op, [one for one, _ in given], [schema for _, schema in given])
        if changes is not None:
            found[node.name] = changes
    return found


def check_changes(node: Node, found: Mapping[str, Changes], schemas: Mapping[str, pl.Schema]) -> None:
    """FlowError where an operator is given changes that it cannot take."""
    for side, name in enumerate(node.inputs):
        changes = found.get(name)
        if changes is not None and isinstance(node.op, SinkOp) and shows_table(node.op.sink):
            _check_table(node, node.op.sink, changes)
        if changes is None or not (node.op.stateful or isinstance(node.op, Changelog)) or _looks_up(node.op, side, changes):
            continue
        opening = (
            f"{node.op.kind} {node.name!r}: its input {name!r} is a stream of changes: {changes.origin!r} {changes.why}, and a new row "
            f"replaces the old one{_by(changes)}"
        )
        if not needs_signs(node.op) or isinstance(node.op, JoinLatest):
            raise FlowError(
                f"{opening}. {node.op.kind} would take them all for rows of their own, and its result would "
                f"depend on how the input is cut into epochs; {changes.instead}, or end the stream in a sink, which gets the log of changes"
            )
        if changes.unsaid:
            raise FlowError(f"{opening}. {node.op.kind} needs removals, but {changes.unsaid}")
        if isinstance(node.op, Top):
            _check_top(node.op, opening, schemas[name])
        if isinstance(node.op, ChangeJoin):
            for one in node.inputs:
                _check_columns(node.op.kind, opening, schemas[one])
        if isinstance(node.op, Aggregate):
            _check_aggregate(node.op, opening, with_computed(schemas[name], node.op.aggs))


def _check_table(node: Node, sink: ShowsTable, changes: Changes) -> None:
    """A sink that shows a table finds the row that a change is about: by all its columns, or by a key that no two rows have."""
    key = sink.table_key
    opening = f"sink {node.name!r}: its input {node.inputs[0]!r} is a stream of changes: {changes.origin!r} {changes.why}"
    if key is None:
        if changes.unsaid:
            raise FlowError(f"{opening}. A table of them needs removals, but {changes.unsaid}")
        return
    if changes.key is None or not set(changes.key) <= set(key):
        why, hint = "the key of a new row is not known here", "keep the key's columns as they are up to the sink"
        if changes.key is not None:
            why, hint = f"a new row replaces the old one{_by(changes)}", f"give key={list(changes.key)!r}"
        raise FlowError(f"{opening}, and {why}. Two rows of the table could have the same {', '.join(key)}; {hint}")
    if changes.unsaid and (changes.vanishes or set(changes.key) != set(key)):
        raise FlowError(f"{opening}. Rows of them can go without another in their place, and {changes.unsaid}")


def _check_top(op: Top, opening: str, schema: pl.Schema) -> None:
    """Over changes rows are identified, and ranked, by all of their columns."""
    if op.ties == "last":
        raise FlowError(
            f"{opening}. It has no order of arrival that does not depend on the epochs: leave ties='last' out, and rank by a column"
        )
    _check_columns("top", opening, schema)


def _check_columns(kind: str, opening: str, schema: pl.Schema) -> None:
    for column, dtype in schema.items():
        if dtype.is_nested() or isinstance(dtype, pl.Object):
            raise FlowError(
                f"{opening}. {kind} tells its rows apart by all columns, and {column!r} is {dtype}: leave it out with select first"
            )


def _check_aggregate(op: Aggregate, opening: str, schema: pl.Schema) -> None:
    for agg in op.aggs:
        if agg.keeps and not op.keys:
            raise FlowError(f"{opening}. {agg.call()} keeps values by key, and there is none: key_by a column that is the same in all rows")
        try:
            over_changes(agg, schema)
        except FlowError as error:
            raise FlowError(f"{opening}. {error}") from error


def needs_signs(op: Operator) -> bool:
    """Whether an operator must be told which rows are gone, where it is given changes."""
    if isinstance(op, SinkOp):
        return shows_table(op.sink)
    return isinstance(op, Aggregate | Top | Changelog | ChangeJoin) or (isinstance(op, JoinLatest) and op.times is None)


def find_retracting(nodes: Sequence[Node], changes: Collection[str]) -> frozenset[str]:
    """The operators that must emit removals, since a reader of theirs needs them. Nodes in
    topological order."""
    wanted: set[str] = set()
    for node in reversed(nodes):
        if needs_signs(node.op) or (node.name in wanted and not node.op.stateful):
            wanted.update(name for name in node.inputs if name in changes)
    return frozenset(wanted)


def _by(changes: Changes) -> str:
    return f" of its {', '.join(changes.key)}" if changes.key else ""


def _looks_up(op: Operator, side: int, changes: Changes) -> bool:
    """Whether an operator looks changes up by their key, where a new row takes the place of the old: that is what a change says.

    A row that goes without another in its place, and one that came and on which an expression fails, are gone if that is said.
    """
    if isinstance(op, JoinLatest) and op.times is None and side == 1:
        known = changes.key is not None and set(changes.key) == set(op.matching.right_on)
        return known and not (changes.vanishes and changes.unsaid)
    return False


def _made(node: Node, over: bool) -> Changes | None:
    """The changes that an operator with state emits; None where its rows are final."""
    op, name = node.op, node.name
    final = "aggregate windows, whose rows are final: key_by(...).window(...).aggregate(...)"
    if isinstance(op, Aggregate):
        return Changes(name, "emits the new values of every key that got rows", op.keys, final, vanishes=over)
    if isinstance(op, WindowAggregate) and (op.emit == "update" or op.lateness):
        session = isinstance(op, SessionAggregate)
        why = "emits a window whenever it has changed" if op.emit == "update" else "emits a window again for late rows"
        instead = "give it emit='closed' and no lateness: then every window comes once"
        # A session can begin earlier than it did, and two can become one.
        return Changes(name, why, op.keys if session else (*op.keys, START, END), instead, session)
    if isinstance(op, Latest):
        return Changes(name, "emits a key's row when it has been replaced", op.keys, "leave it out, or take deduplicate")
    if isinstance(op, Top):
        return Changes(name, "emits a key's whole list when it has changed", (*op.keys, RANK), "take the best rows of windows", over)
    return None


def _joined(node: Node, op: ChangeJoin, found: Mapping[str, Changes], schemas: Mapping[str, pl.Schema]) -> Changes:
    """The changes that a join emits; a pair is removed as soon as one of its two rows is."""
    left, right = (None if one is None else one.key for one in map(found.get, node.inputs))
    columns = (schemas[node.inputs[0]].names(), schemas[node.inputs[1]].names())
    key = op.key_after(left, right, columns)
    why = "emits changes of its pairs when rows of one side are added or removed"
    return Changes(node.name, why, key, "join append-only streams, whose pairs are final", vanishes=True)


def _passed_on(name: str, op: Operator, inputs: Sequence[Changes | None], schemas: Sequence[pl.Schema]) -> Changes | None:
    """The output of an operator without state, given its inputs."""
    found = [changes for changes in inputs if changes is not None]
    if not found:
        return None
    changes = found[0]
    if isinstance(op, Changelog):
        instead = f"put it in front of {name!r}"
        return Changes(name, "emits every change as a row of its own", None, instead, unsaid=f"there is nothing else to read; {instead}")
    if isinstance(op, Union):  # the keys of one input can meet those of another
        unsaid = next((one.unsaid for one in found if one.unsaid), "")
        return replace(changes, key=None, vanishes=any(one.vanishes for one in found), unsaid=unsaid)
    if isinstance(op, MapBatches):
        wants = "say deterministic=True if it does not" if op.row_local else "it must be row_local and deterministic"
        unsaid = f"{name!r} is a function that may give another result for the same row next time; {wants}"
        repeatable = op.deterministic and op.row_local
        if isinstance(op, JoinStatic) and not op.is_of_the_flow:
            repeatable = False
            unsaid = (
                f"the table of {name!r} comes from a file or a function when the flow starts, and may have other rows at the next start; "
                "give it a DataFrame, as in join_static(pl.read_parquet(path))"
            )
        return replace(changes, key=None, vanishes=True, unsaid=changes.unsaid or ("" if repeatable else unsaid))
    if isinstance(op, Filter):
        return replace(changes, vanishes=True)
    if isinstance(op, Watermark):  # rows without a time do not pass
        unsaid = f"{name!r} goes by the clock (max_ahead), and may let a row that is gone pass that it refused when it came"
        return replace(changes, vanishes=True, unsaid=changes.unsaid or ("" if op.max_ahead is None else unsaid))
    if isinstance(op, Select | WithColumns) and changes.key is not None and not _keeps(op, changes.key, schemas[0]):
        return replace(changes, key=None)
    return changes


def _keeps(op: Select | WithColumns, key: Collection[str], before: pl.Schema) -> bool:
    """Whether these columns leave it as they came."""
    frame = before.to_frame()
    same = {name for expr in op.exprs if expr.meta.is_column_selection() for name in frame.select(expr).columns}
    made = {name for expr in op.exprs if not expr.meta.is_column_selection() for name in frame.select(expr).columns}
    return made.isdisjoint(key) and (isinstance(op, WithColumns) or same.issuperset(key))

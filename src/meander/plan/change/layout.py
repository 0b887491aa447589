"""The layout of stored state: it decides whether the next version of an operator can continue the
state. Pure.

A *layout* is an operator's keys, its state columns with a type and a meaning, and named facts for
everything else. State cannot be continued if one of these facts differs. Options that only affect
the output rows are not part of the layout.

- aggregates, windows and processors have columns, which may come, go and become wider
- joins keep the rows of their inputs: the condition on a pair (``where``) and the names of output
  columns may change
- other operators that keep whole rows (sessions, latest, top, ...) can be continued only by an
  equal operator on equal input
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import polars as pl

from meander.aggregates import Agg
from meander.aggregates.changing import over_changes
from meander.plan.change_joins import ChangeJoin
from meander.plan.computed import with_computed
from meander.plan.counts import BESIDE, CountAggregate
from meander.plan.eventtime import Time, WindowAggregate, time_of
from meander.plan.graph import Plan
from meander.plan.joins import Join, JoinLatest, SideTime
from meander.plan.operators import Aggregate
from meander.plan.processing import Process
from meander.plan.schemas import show_schema, show_type
from meander.plan.windows import Cumulating, Window, show_duration

UNTOLD = "__untold"
"""A mark among an operator's retired columns: its older rows have not been emitted."""
ROWS = "__rows"
"""The number of rows in a key's group, where an aggregate is over changes."""
_DEFAULT = "a value with the default"


@dataclass(frozen=True)
class Layout:
    """The layout of one operator."""

    kind: str
    keys: Mapping[str, pl.DataType] = field(default_factory=dict)
    columns: Mapping[str, tuple[pl.DataType, str]] = field(default_factory=dict)
    """Of the row of a key: type and meaning."""
    values: Mapping[str, tuple[pl.DataType, str]] = field(default_factory=dict)
    """Per aggregate that keeps values in a table of their own: their type, and whether they are a set or a list."""
    rest: Mapping[str, str] = field(default_factory=dict)
    """Everything else that must be equal, by name."""
    window: Window | None = None
    lateness: int = 0
    emit: str = ""
    """Of windows: when they are emitted."""
    beside: Mapping[str, pl.DataType] = field(default_factory=dict)
    """Columns of a state row that are the operator's own."""

    def schema(self) -> pl.Schema:
        """The columns of a state row, as an ``upgrade`` is given them."""
        pane = {} if self.window is None else {"__pane": pl.Int64()}
        return pl.Schema({**self.keys, **pane, **self.beside, **{name: dtype for name, (dtype, _) in self.columns.items()}})


@dataclass(frozen=True)
class Comparison:
    """How one layout can go on with the state of another."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    """Why it cannot, in words."""
    only_columns: bool = True
    """Whether the problems are those that rewriting rows can solve."""
    untold: bool = False
    """Whether stored rows have not been emitted, and would be only if they changed."""
    wants: tuple[str, ...] = ()
    """New columns that keys from before must be given a value of: null is one that they could have."""

    @property
    def same(self) -> bool:
        return not (self.added or self.removed or self.widened or self.problems or self.wants)


def layout_of(plan: Plan, name: str) -> Layout:
    """The layout of a stateful operator in a plan."""
    node = plan.node(name)
    inputs = [plan.schema(one) for one in node.inputs]
    if isinstance(node.op, Aggregate) and node.inputs[0] in plan.changes:
        schema = with_computed(inputs[0], node.op.aggs)
        over = [over_changes(agg, schema) for agg in node.op.aggs]
        meanings = {
            # The values of a bag are told apart as they are stored: a wider type is another one.
            f"{agg.name}.{part}": (spec.dtype, f"{agg.memory()}, {show_type(spec.dtype)}" if agg.bag else agg.memory())
            for agg in over
            for part, spec in agg.parts(schema).items()
        }
        keys = {key: inputs[0][key] for key in node.op.keys}
        return Layout("aggregate over changes", keys, {ROWS: (pl.Int64(), "rows"), **meanings})
    if isinstance(node.op, Aggregate):
        columns, kept = _columns(node.op.aggs, inputs[0], apart=True), [agg for agg in node.op.aggs if agg.keeps]
        values = {agg.name: (agg.parts(inputs[0])["values"].dtype, str(agg.keeps)) for agg in kept}
        return Layout("aggregate", {key: inputs[0][key] for key in node.op.keys}, columns, values)
    if isinstance(node.op, WindowAggregate) and isinstance(node.op.window, Window):
        op, time = node.op, time_of(plan.nodes, plan.schemas, node.inputs[0])
        marks = sorted(time.marks) if time is not None else []
        columns = _columns(op.aggs, inputs[0], apart=False)
        rest = {"time": "the clock" if op.time is None else _show_time(SideTime(op.time, op.shift), frozenset(marks), time)}
        return Layout("window", {key: inputs[0][key] for key in op.keys}, columns, {}, rest, node.op.window, op.lateness, op.emit)
    if isinstance(node.op, CountAggregate):
        keys = {key: inputs[0][key] for key in node.op.keys}
        rest = {"size": f"{node.op.window.size} rows, step {node.op.window.step},"}
        return Layout("count_window", keys, _columns(node.op.aggs, inputs[0], apart=False), rest=rest, beside=BESIDE)
    times = [time_of(plan.nodes, plan.schemas, name) for name in node.inputs]
    follows = {"time": "; ".join(_show_time(SideTime(t.column, t.shift), t.marks, t) for t in times if t is not None) or "none"}
    if isinstance(node.op, Process):
        return _process(node.op, inputs[0], follows if None not in times else {"time": "none"})  # of both streams, or of none
    came = {"input": "; ".join(show_schema(schema) for schema in inputs)}
    if isinstance(node.op, Join):
        join = node.op
        bounds = "; ".join(map(str, (join.bounds, join.window, join.times)))
        if join.times is None:
            follows = {}
        if join.how == "semi" and join.bounds is None:  # without a condition the first row of a key tells as much as all
            came["kept of the right"] = "the first row of each key" if join.where is None else "all rows"
        return Layout("join", rest={"key": join.matching.describe(), "how": join.how, "bounds": bounds, **follows, **came})
    if isinstance(node.op, ChangeJoin):
        sides = [side for side, name in zip(("left", "right"), node.inputs, strict=True) if name in plan.changes]
        does = {"key": node.op.matching.describe(), "how": node.op.how, "where": node.op.where.describe() if node.op.where else "none"}
        return Layout("join of changes", rest={**does, "changes": " and ".join(sides) or "none", **came})
    if isinstance(node.op, JoinLatest):
        if node.op.times is None:  # what it keeps of the right has no time, and of the left nothing is kept
            changing = {"rows": "changes"} if node.inputs[1] in plan.changes else {}
            rest = {"key": node.op.matching.describe(), "by": "arrival", "input": show_schema(inputs[1]), **changing}
            return Layout("join_latest", rest=rest)
        return Layout("join_latest", rest={"key": node.op.matching.describe(), "by": str(node.op.times), **follows, **came})
    if node.inputs[0] in plan.changes:
        came["rows"] = "changes"
    return Layout(node.op.kind, rest={"description": f"{node.op.canonical()} {node.code.digest}", **follows, **came})


def _process(op: Process, schema: pl.Schema, follows: Mapping[str, str]) -> Layout:
    """A variable's layout is its name, its kind and its default: a key's row is not stored where
    all have their defaults."""
    declared = op.declared
    columns: dict[str, tuple[pl.DataType, str]] = {}
    for name, variable in declared.variables.items():
        meaning = f"a {variable.kind}" if variable.default is None else f"{_DEFAULT} {variable.default!r}"
        columns.update((column, (dtype, meaning)) for column, dtype in variable.stored(name).items())
    columns.update((column, (dtype, "the engine's own")) for column, dtype in declared.beside().items())
    time = dict(follows) if declared.has_timers or declared.has_ttl else {}
    clock = str(declared.ttl_clock) if declared.has_ttl else "nothing is"
    rest = {"timers": "yes" if declared.has_timers else "no", "forgetting": f"by {clock}" if declared.has_ttl else clock, **time}
    return Layout("process", {key: schema[key] for key in op.keys}, columns, {}, rest)


def _show_time(side: SideTime, marks: frozenset[str], time: Time | None) -> str:
    delay = 0 if time is None else time.delay
    shift = f" {side.shift:+}" if side.shift else ""
    return f"{side.column}{shift} of {', '.join(sorted(marks))}" + (f", up to {show_duration(delay)} behind" if delay else "")


def _columns(aggs: Iterable[Agg], schema: pl.Schema, apart: bool) -> dict[str, tuple[pl.DataType, str]]:
    """``apart``: values that may be many are in a table of their own, and the key's row has only their number."""
    found: dict[str, tuple[pl.DataType, str]] = {}
    for agg in aggs:
        for part, spec in agg.parts(schema).items():
            if apart and agg.keeps and part == "values":
                found[f"{agg.name}.n"] = (pl.Int64(), agg.memory())
            else:
                found[f"{agg.name}.{part}"] = (spec.dtype, agg.memory())
    return found


def compare(before: Layout, after: Layout, retired: Iterable[str] = ()) -> Comparison:
    """Whether an operator can continue the state of its predecessor. ``retired`` are columns that
    old segments may still have."""
    if before.kind != after.kind:
        return Comparison(problems=(f"it was {_a(before.kind)} and is {_a(after.kind)}",), only_columns=False)
    hard = [*_key_problems(before, after), *_window_problems(before, after)]
    for fact in {**before.rest, **after.rest}:
        was_so, is_so = before.rest.get(fact, "none"), after.rest.get(fact, "none")
        if was_so != is_so:
            hard.append(
                f"its {fact} was {was_so} and would be {is_so}" if fact != "description" else "its stored rows may have another meaning"
            )
    widened = [] if hard else [key for key, dtype in after.keys.items() if dtype != before.keys[key]]
    added = tuple(name for name in after.columns if name not in before.columns)
    removed = tuple(name for name in before.columns if name not in after.columns)
    again = "was removed from it before, and old segments still have it: choose another alias"
    soft = [f"state column '{name}' {again}" for name in added if name in retired]
    wants = tuple(name for name in added if after.kind == "process" and after.columns[name][1].startswith(_DEFAULT))
    for name, (dtype, meaning) in after.columns.items():
        if name not in before.columns:
            continue
        was, meant = before.columns[name]
        if meaning != meant:
            words = (meant, meaning) if _word(meant) == _word(meaning) else (_word(meant), _word(meaning))
            soft.append(f"state column '{name}' held {words[0]} and would hold {words[1]}: choose another alias")
        elif dtype != was and is_wider(was, dtype):
            widened.append(name)
        elif dtype != was:
            soft.append(f"state column '{name}' is {show_type(was)} and would be {show_type(dtype)}")
    for name, (dtype, kept) in after.values.items():
        was, _ = before.values.get(name, (dtype, kept))
        if dtype == was:
            continue
        if is_wider(was, dtype) and (kept == "list" or not _floats(dtype)):  # the values of a set are found by their hash
            widened.append(f"{name}.value")
        else:
            hard.append(f"the values of '{name}' are {show_type(was)} and would be {show_type(dtype)}")
    untold = after.emit == "update" and (before.emit == "closed" or before.window != after.window)
    return Comparison(added, removed, tuple(widened), (*hard, *soft), not hard, untold, wants)


def untold(before: Plan, after: Plan) -> set[str]:
    """The operators of ``after`` that owe rows which ``before`` has stored and not emitted: they
    would emit them only if they changed."""
    both = [node.name for node in after.nodes if node.op.stateful and node.name in before.schemas and before.node(node.name).op.stateful]
    return {name for name in both if compare(layout_of(before, name), layout_of(after, name)).untold}


def owing(plan: Plan, names: Iterable[str]) -> Plan:
    """The plan, with operators that owe the windows of older rows that were not emitted."""
    new = [name for name in names if UNTOLD not in plan.retired.get(name, ())]
    if not new:
        return plan
    return plan.with_retired({**plan.retired, **{name: (*plan.retired.get(name, ()), UNTOLD) for name in new}})


def is_wider(before: pl.DataType, after: pl.DataType) -> bool:
    """Whether every value of the one type is one of the other.

    >>> is_wider(pl.Int32(), pl.Int64()), is_wider(pl.Int64(), pl.Float64()), is_wider(pl.List(pl.Float32()), pl.List(pl.Float64()))
    (True, False, True)
    """
    if isinstance(before, pl.List) and isinstance(after, pl.List):
        inner, outer = (pl.Schema({"x": dtype.inner})["x"] for dtype in (before, after))
        return inner == outer or is_wider(inner, outer)
    bits, more = _bits(before), _bits(after)
    if bits is None or more is None or (before.is_float() and not after.is_float()):
        return False
    if before.is_integer() and after.is_float():
        return bits < (53 if more == 64 else 24)
    if before.is_float():
        return bits < more
    if before.is_unsigned_integer() and after.is_signed_integer():
        return bits < more
    return before.is_signed_integer() == after.is_signed_integer() and bits < more


def _floats(dtype: pl.DataType) -> bool:
    return isinstance(dtype, pl.List) and pl.Schema({"x": dtype.inner})["x"].is_float()


def _bits(dtype: pl.DataType) -> int | None:
    sizes = {"8": 8, "16": 16, "32": 32, "64": 64}
    name = str(dtype)
    return next((size for digits, size in sizes.items() if name in (f"Int{digits}", f"UInt{digits}", f"Float{digits}")), None)


def _key_problems(before: Layout, after: Layout) -> list[str]:
    if list(before.keys) != list(after.keys):
        return [f"it was keyed by {', '.join(before.keys) or 'nothing'} and would be by {', '.join(after.keys) or 'nothing'}"]
    return [
        f"key column '{name}' is {show_type(before.keys[name])} and would be {show_type(dtype)}"
        for name, dtype in after.keys.items()
        if dtype != before.keys[name] and not (dtype.is_integer() and is_wider(before.keys[name], dtype))  # floats hash otherwise
    ]


def _window_problems(before: Layout, after: Layout) -> list[str]:
    was, now = before.window, after.window
    if was is None or now is None:
        return []
    found = []
    if was != now and (isinstance(was, Cumulating) or isinstance(now, Cumulating)):
        found.append(f"its windows were {was.describe()} and would be {now.describe()}: what these need may have been dropped")
    elif (was.pane, was.offset) != (now.pane, now.offset):
        found.append(f"its windows were {was.describe()} and would be {now.describe()}, which are not made of the same pieces")
    elif now.size > was.size:
        found.append(f"its windows would grow from {show_duration(was.size)} to {show_duration(now.size)}: what they need was dropped")
    elif not before.keys and was.shares_panes != now.shares_panes:
        found.append(
            f"its windows were {was.describe()} and would be {now.describe()}: without a key, pieces of windows that overlap are in one "
            "slot, and those of windows side by side in all of them"
        )
    if after.lateness > before.lateness:
        found.append(
            f"lateness would grow from {show_duration(before.lateness)} to {show_duration(after.lateness)}: windows that late rows would "
            "come to again were dropped"
        )
    return found


def _word(meaning: str) -> str:
    return meaning.split(") ", 1)[0] + ")" if ") " in meaning else meaning


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"

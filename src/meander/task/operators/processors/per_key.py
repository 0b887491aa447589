"""A processor's code called once per key: columns to Python objects once, the calls, and back once.

A call that raises counts as not made: its rows become dead letters with the reason, and the key's
state, timers and output are as before it. A timer whose call raises has fired. The values of all
calls are made columns at once; if a value does not fit, the calls of its key are repeated with a
check after each.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from meander.errors import BadInput, FlowError
from meander.plan.windows import FOREVER, NEVER
from meander.processor import Context, Rows, Variable
from meander.processor.context import EpochTimes, moment_of
from meander.processor.declare import KEY, TIMERS, VALUE
from meander.processor.view import Decoded
from meander.state.grouping import Index
from meander.state.hashing import Hashes
from meander.task.evaluate import DeadLetter
from meander.task.operators.processors.calls import CallInput, CallOutput, InputColumns
from meander.task.operators.processors.maps import listed
from meander.task.operators.workspace import Workspace
from meander.task.shown import as_numbers, beyond, to_python

if TYPE_CHECKING:
    from meander.task.operators.processors.operator import Processing

_CONTENT_LIMIT = 10_000
Place = tuple[str, int]
"""A clock, and the number of a key: where timers are."""
Moments = set[int]


class State:
    """The state of one key: one attribute per variable."""

    __slots__ = ()

    def clear(self) -> None:
        """Forget everything: all variables have their defaults again."""
        for name, variable in self._variables.items():  # type: ignore[attr-defined]
            setattr(self, name, variable.fresh())


def state_kind(variables: Mapping[str, Variable]) -> type[Any]:
    """A class with these attributes and no others, so that a mistyped name is an error."""
    return type("State", (_with_slots(tuple(variables)),), {"__slots__": (), "_variables": dict(variables)})


@functools.cache
def _with_slots(names: tuple[str, ...]) -> type[Any]:
    return dataclasses.make_dataclass("State", names, bases=(State,), slots=True, eq=False)


class Pending:
    """The timers of all keys that are called, and the changes that the calls have made."""

    def __init__(self, columns: Mapping[str, list[list[int]]]) -> None:
        self._columns = columns
        self._now: dict[Place, Moments] = {}
        """Of the keys that calls have set or deleted timers of: those that are set now."""
        self.changed: dict[Place, None] = {}
        """The keys whose timers may have changed."""
        self.added: dict[tuple[str, int, int], None] = {}
        self._undo: list[tuple[Place, int]] = []
        """The timers that the call under way has set or deleted."""
        self._changed: list[Place] = []
        self._added: list[tuple[str, int, int]] = []
        self.key = 0

    def begin(self, key: int) -> None:
        self.key = key
        self._undo, self._changed, self._added = [], [], []

    def roll_back(self) -> None:
        for place, at in reversed(self._undo):
            self._now[place] ^= {at}
        for place in self._changed:
            self.changed.pop(place, None)
        for timer in self._added:
            self.added.pop(timer, None)

    def forget(self, keys: Container[int]) -> None:
        """Nothing has been done to the timers of these keys."""
        self._now = {place: timers for place, timers in self._now.items() if place[1] not in keys}
        self.changed = {place: None for place in self.changed if place[1] not in keys}
        self.added = {timer: None for timer in self.added if timer[1] not in keys}

    def of(self, clock: str, key: int) -> Collection[int]:
        """The timers of a key, in no order."""
        now = self._now.get((clock, key))
        return self._columns[clock][key] if now is None else now

    def fire(self, clock: str, key: int, at: int) -> bool:
        """Whether this timer is still set; from now on it is not."""
        there = self._at_hand((clock, key))
        if at not in there:
            return False
        there.remove(at)
        self.changed[clock, key] = None
        return True

    def set(self, clock: str, at: int) -> None:
        if at not in self._at_hand((clock, self.key)):
            self._toggle((clock, self.key), at)
            if (clock, self.key, at) not in self.added:
                self.added[clock, self.key, at] = None
                self._added.append((clock, self.key, at))

    def delete(self, clock: str, at: int) -> None:
        if at in self._at_hand((clock, self.key)):
            self._toggle((clock, self.key), at)

    def _at_hand(self, place: Place) -> Moments:
        """A key's timers as a set, made once: a call may ask as often as the key has timers."""
        if (there := self._now.get(place)) is None:
            there = self._now[place] = {*self._columns[place[0]][place[1]]}
        return there

    def _toggle(self, place: Place, at: int) -> None:
        self._now[place] ^= {at}
        self._undo.append((place, at))
        if place not in self.changed:
            self.changed[place] = None
            self._changed.append(place)


class Output:
    """The rows that have left by one output, and whose they are. The main output has no name."""

    def __init__(self, schema: pl.Schema, name: str = "") -> None:
        self.schema, self.name = schema, name
        self.rows: list[Any] = []
        self.counts: list[tuple[int, int]] = []
        """Keys with rows, in the order of calls, and how many each has."""
        self.seen = 0
        """Rows of calls that are over."""

    def count(self, i: int) -> None:
        """A call for a key is over."""
        if len(self.rows) != self.seen:
            self.counts.append((i, len(self.rows) - self.seen))
            self.seen = len(self.rows)

    def take_back(self) -> None:
        """A call has not happened."""
        del self.rows[self.seen :]

    def drop(self, keys: Container[int]) -> None:
        """Nothing of these keys has happened."""
        kept: list[Any] = []
        begin = 0
        for owner, count in self.counts:
            if owner not in keys:
                kept.extend(self.rows[begin : begin + count])
            begin += count
        self.rows[:] = kept
        self.counts, self.seen = [(owner, count) for owner, count in self.counts if owner not in keys], len(kept)

    def owners(self) -> Index:
        return np.repeat(np.array([i for i, _ in self.counts], np.intp), [count for _, count in self.counts])

    @property
    def what(self) -> str:
        return f"side_outputs[{self.name!r}]" if self.name else "output"


class EachKey:
    """The calls of one turn."""

    def __init__(self, operator: Processing, workspace: Workspace, given: CallInput) -> None:
        self.operator, self.workspace, self.given = operator, workspace, given
        declared = operator.declared
        self.variables = declared.variables
        self.names = tuple(declared.variables)
        self.keys: list[Any] = _key_list(given.keys)
        self.columns = [decode(given.state[name], variable) for name, variable in declared.variables.items()]
        self.pending: Pending | None = None
        if declared.has_timers:
            self.pending = Pending({clock: given.state[column].to_list() for clock, column in TIMERS.items()})
        self.nothing: Any = () if declared.output else None
        """The result of a call without rows. If a row has no columns but the key, an empty tuple is
        a row."""
        self.out = Output(declared.output)
        self.sides = {name: Output(schema, name) for name, schema in operator.sides.items()}
        self.outputs = (self.out, *self.sides.values())
        self.changed: dict[int, tuple[Any, ...]] = {}
        self.refused: list[dict[int, None]] = [{} for _ in given.came]
        self.side = 0
        """The input of the current rows."""
        self.dead: list[tuple[int, DeadLetter]] = []
        """The number of the key, and the dead letter."""
        self.again: frozenset[int] = frozenset()
        """Keys that are called a second time, since something that their calls gave does not fit: now each call's answer is checked."""
        self.at = 0
        self.firing: int | None = None

    def run(self) -> CallOutput:
        self._call()
        calls = self._result()
        self.workspace.dead.extend(letter for _, letter in self.dead)
        return calls

    def _call(self) -> None:
        """All keys, or those whose turn it is again."""
        for side, hook in enumerate(self.operator.declared.hooks):
            self.side = side
            ctx = context_of(self.operator, self.workspace, side, time=self._time, timers=self.pending, emit=self._emit, seed=self._seed)
            if side == 0 and self.pending is not None and len(self.given.hashes):
                self._timers(ctx)
            self._events(ctx, getattr(self.operator.processor, hook))

    def _call_again(self, keys: frozenset[int]) -> None:
        """Keys of which some call gave what does not fit: from the beginning, so that this call alone has not happened."""
        for output in self.outputs:
            output.drop(keys)
        for i in keys:
            self.changed.pop(i, None)
            for refused in self.refused:
                refused.pop(i, None)
        if self.pending is not None:
            self.pending.forget(keys)
        self.dead = [(i, letter) for i, letter in self.dead if i not in keys]
        self.again = keys
        self._call()

    def _emit(self, row: Any, side: str | None = None) -> None:
        if side is None:
            self.out.rows.append(row)
        elif side in self.sides:
            self.sides[side].rows.append(row)
        elif side not in self.operator.declared.sides:
            there = ", ".join(self.operator.declared.sides) or "none"
            raise TypeError(f"it gave a row to the side output {side!r}; in side_outputs there are {there}")

    def _time(self) -> int:
        return int(self.given.came[self.side].times[self.at]) if self.firing is None else self.firing

    def _seed(self) -> str:
        """The seed of the random numbers for a key's call. Two inputs have two seeds, or both would
        get the same ids."""
        return f"{self.operator.name}/{self.workspace.epoch}/{self.given.hashes[self.at]}{'/right' if self.side else ''}"

    # -- calls ----------------------------------------------------------------------------------------------------

    def _events(self, ctx: Context, on_events: Callable[..., Any]) -> None:
        """All keys with rows of an input. This loop is what a processor costs beside its own code: keep it short."""
        given, came, names, changed, pending = self.given, self.given.came[self.side], self.names, self.changed, self.pending
        main, out, counts, sides = self.out, self.out.rows, self.out.counts, tuple(self.sides.values())
        decoded = Decoded(came.rows)
        make = state_kind(self.variables)
        get, single, nothing = _getter(names), (tuple, dict), self.nothing
        copied = [at for at, variable in enumerate(self.variables.values()) if variable.kind != "value"]
        has_rows, again = came.whose(), self.again
        if again:
            has_rows = np.array([i for i in has_rows.tolist() if i in again], np.intp)
        spans = zip(has_rows.tolist(), came.begins[has_rows].tolist(), came.ends[has_rows].tolist(), strict=True)
        whole = len(has_rows) == len(given.hashes) and not changed
        olds = zip(*self.columns, strict=True) if self.columns else iter([()] * len(given.hashes))
        stored = olds if whole else iter([changed.get(i) or old for i, old in enumerate(olds)])
        position = -1
        old: tuple[Any, ...] = ()
        for i, begin, end in spans:
            while position < i:
                old = next(stored)
                position += 1
            self.at = i
            if pending is not None:
                pending.begin(i)
            state = make(*old) if not copied else make(*[copy_of(v) if at in copied else v for at, v in enumerate(old)])
            before = len(out)
            try:
                result = on_events(self.keys[i], Rows(decoded, begin, end), state, ctx)
                if result is not None:
                    out.extend((result,) if type(result) in single and result != nothing else result)
                new = get(state)
                if again:
                    main.seen = before
                    self._check(new)
            except Exception as error:  # a user's code may raise anything
                del out[before:]
                for side in sides:
                    side.take_back()
                self._refuse(i, error)
                continue
            if new != old:
                changed[i] = new
            if len(out) != before:
                counts.append((i, len(out) - before))
            for side in sides:
                side.count(i)
        main.seen = len(out)

    def _timers(self, ctx: Context) -> None:
        """The due timers, key by key: by event time first, each clock in its order."""
        given, pending = self.given, self.pending
        assert pending is not None
        on_timer = self.operator.processor.on_timer  # type: ignore[attr-defined]
        make, get = state_kind(self.variables), _getter(self.names)
        for clock, column in TIMERS.items():
            first = given.state[column].list.min()
            for i in np.flatnonzero((first <= given.marks[clock]).fill_null(False).to_numpy()).tolist():
                if self.again and i not in self.again:
                    continue
                self.at = i
                for at in sorted(at for at in pending.of(clock, i) if at <= given.marks[clock]):
                    if not pending.fire(clock, i, at):  # deleted by another timer's call
                        continue
                    pending.begin(i)
                    old = self.changed.get(i) or tuple(column[i] for column in self.columns)
                    state = make(*map(copy_of, old))
                    self.firing = at
                    try:
                        result = on_timer(self.keys[i], ctx.moment(at), state, ctx)
                        if result is not None:
                            self.out.rows.extend((result,) if type(result) in (tuple, dict) and result != self.nothing else result)
                        new = get(state)
                        if self.again:
                            self._check(new)
                    except Exception as error:  # a user's code may raise anything
                        for output in self.outputs:
                            output.take_back()
                        self._refuse(i, error, (clock, at))
                        continue
                    finally:
                        self.firing = None
                    if new != old:
                        self.changed[i] = new
                    for output in self.outputs:
                        output.count(i)

    def _check(self, new: tuple[Any, ...]) -> None:
        """TypeError where something that a call gave does not fit what is declared."""
        for output in self.outputs:
            for row in output.rows[output.seen :]:
                _fits(_as_tuple(row, output), output)
        for (name, variable), one in zip(self.variables.items(), new, strict=True):
            if (reason := _misfit(name, one, variable)) is not None:
                raise reason

    def _refuse(self, i: int, error: Exception, timer: tuple[str, int] | None = None) -> None:
        """A call that failed has not happened."""
        if isinstance(error, FlowError):  # what no other rows would mend
            raise FlowError(f"process '{self.operator.name}': {error}") from error
        if self.pending is not None:
            self.pending.roll_back()
        came, words = self.given.came[self.side], self.operator.incoming[self.side].words
        if self.workspace.strict:
            what = "its timer" if timer is not None else f"its rows{words}"
            raise BadInput(
                f"operator '{self.operator.name}', epoch {self.workspace.epoch}, key {self.keys[i]!r}, {what}: "
                f"{type(error).__name__}: {error}"
            ) from error
        reason = f"{type(error).__name__}: {error}"
        if timer is not None:
            clock, at = timer
            key = as_numbers(self.given.keys[i : i + 1]).row(0, named=True)
            content = {**key, "timer": str(moment_of(at, self.operator.incoming[0].zone)), "clock": clock}
            self.dead.append((i, letter(self.operator.name, self.keys[i], 0, reason, content)))
            return
        self.refused[self.side][i] = None
        begin, end = int(came.begins[i]), int(came.ends[i])
        for number, row in enumerate(came.rows[begin:end].iter_rows(named=True)):
            self.dead.append((i, letter(self.operator.name, self.keys[i], number, reason, row, words)))

    # -- back to columns ------------------------------------------------------------------------------------------

    def _result(self) -> CallOutput:
        while True:
            wrong: set[int] = set()
            made = [self._output(output, wrong) for output in self.outputs]
            changed = np.array(sorted({*self.changed, *(key for _, key in (self.pending.changed if self.pending else ()))}), np.intp)
            state = self._variables(changed, wrong)
            if not wrong:
                break
            self._call_again(frozenset(wrong))
        (rows, owners), *others = made
        sides = {name: one for name, one in zip(self.sides, others, strict=True) if one[0].height}
        added: dict[str, tuple[Index, Any]] = {}
        if self.pending is not None:
            pending = self.pending
            for clock, column in TIMERS.items():
                state[column] = pl.Series(column, [sorted(pending.of(clock, i)) for i in changed.tolist()], dtype=pl.List(pl.Int64()))
                mine = sorted((key, at) for of, key, at in pending.added if of == clock and at in pending.of(clock, key))
                if mine:
                    added[clock] = (np.array([key for key, _ in mine], np.intp), np.array([at for _, at in mine], np.int64))
        return CallOutput(changed, state, added, rows, owners, sides, [np.array(sorted(refused), np.intp) for refused in self.refused])

    def _output(self, output: Output, wrong: set[int]) -> tuple[pl.DataFrame, Index]:
        """The rows of an output and whose they are. Adds the keys of those that do not fit: then the rest says nothing."""
        schema, owners = output.schema, output.owners()
        rows: Sequence[Any] = output.rows
        if not rows:
            return schema.to_frame(), owners
        if set(map(type, rows)) != {tuple} or set(map(len, rows)) != {len(schema)}:
            rows = self._each(lambda row: _as_tuple(row, output), rows, owners, wrong)
            if len(rows) < len(owners):
                return schema.to_frame(), owners[:0]
        order = np.argsort(owners, kind="stable")  # timers of all keys came before the rows of all keys
        if (order[1:] < order[:-1]).any():
            rows, owners = [rows[at] for at in order.tolist()], owners[order]
        if not schema:
            return pl.DataFrame({"": np.zeros(len(rows))}).drop(""), owners
        try:
            columns = zip(schema.items(), zip(*rows, strict=True), strict=True)
            return pl.DataFrame([_series(name, column, dtype) for (name, dtype), column in columns]), owners
        except TypeError:
            if len(self._each(lambda row: _fits(row, output), rows, owners, wrong)) == len(rows):
                raise
            return schema.to_frame(), owners[:0]

    def _each(self, check: Callable[[Any], Any], rows: Sequence[Any], owners: Index, wrong: set[int]) -> list[Any]:
        """Convert row by row, if some rows are bad: the converted values of the good ones."""
        found: list[Any] = []
        for row, owner in zip(rows, owners.tolist(), strict=True):
            try:
                found.append(check(row))
            except TypeError:
                wrong.add(owner)
        return found

    def _variables(self, changed: Index, wrong: set[int]) -> dict[str, pl.Series]:
        """The variables of the changed keys as columns. Adds the keys whose values do not fit: then the rest says nothing."""
        made = {}
        for nth, (name, variable) in enumerate(self.variables.items()):
            column = self.columns[nth]
            values = [self.changed[i][nth] if i in self.changed else column[i] for i in changed.tolist()]
            try:
                made[name] = encode(name, values, variable)
            except Exception:  # a user's object may raise anything
                bad = {i for i, one in zip(changed.tolist(), values, strict=True) if _misfit(name, one, variable) is not None}
                if not bad:
                    raise
                wrong |= bad
        return made


def context_of(
    operator: Processing,
    workspace: Workspace,
    side: int,
    *,
    time: Callable[[], int],
    timers: Pending | None,
    emit: Callable[..., None],
    seed: Callable[[], str] | None = None,
) -> Context:
    mark = workspace.late if workspace.evict == FOREVER else workspace.evict
    watermark = mark if operator.by_event_time and mark != NEVER else None
    times = EpochTimes(watermark, workspace.now, operator.by_event_time, operator.incoming[side].zone)
    return Context(times, time, timers, emit=emit, seed=seed)


def call_for_each_key(operator: Processing, workspace: Workspace, given: CallInput) -> CallOutput:
    return EachKey(operator, workspace, given).run()


def letter(operator: str, key: Any, number: int, reason: str, content: dict[str, Any], words: str = "") -> DeadLetter:
    position = f"{operator} key {key!r} row {number + 1}{words}"
    return DeadLetter(operator, position, reason, json.dumps(content, default=str)[:_CONTENT_LIMIT])


def shown(
    operator: Processing, incoming: InputColumns, workspace: Workspace, rows: pl.DataFrame, hashes: Hashes
) -> tuple[pl.DataFrame, Hashes]:
    """Rows (by key) without those that Python cannot be shown, as it lacks their years: these go to the dead letters, times as numbers."""
    bad: npt.NDArray[np.bool_] | None = None
    for name in incoming.columns:
        if (here := beyond(rows.get_column(name))) is None:
            continue
        new = here if bad is None else here & ~bad
        reason = f"{name} is of a year that Python's datetime lacks"
        for at in np.flatnonzero(new).tolist():
            row = as_numbers(rows[at : at + 1].select(incoming.columns))
            parts = row.select(incoming.keys).row(0)
            key = parts[0] if len(parts) == 1 else parts
            number = at - int(np.searchsorted(hashes, hashes[at]))
            if workspace.strict:
                raise BadInput(
                    f"operator '{operator.name}', epoch {workspace.epoch}, key {key!r}, row {number + 1}{incoming.words}: {reason}"
                )
            workspace.dead.append(letter(operator.name, key, number, reason, row.row(0, named=True), incoming.words))
        bad = here if bad is None else bad | here
    return (rows, hashes) if bad is None else (rows.filter(pl.Series(~bad)), hashes[~bad])


def copy_of(value: Any) -> Any:
    return value.copy() if type(value) in (list, dict) else value


def decode(series: pl.Series, variable: Variable) -> list[Any]:
    """A column as Python objects."""
    if variable.kind != "map":
        return to_python(series)
    ends = series.list.len().cum_sum().to_list()
    entries = series.filter(series.list.len() > 0).explode()
    keys, values = to_python(entries.struct.field(KEY)), to_python(entries.struct.field(VALUE))
    return [dict(zip(keys[begin:end], values[begin:end], strict=True)) for begin, end in zip([0, *ends], ends, strict=False)]


def encode(name: str, values: list[Any], variable: Variable) -> pl.Series:
    """Python objects as a column."""
    if variable.kind == "value":
        return _series(name, values, variable.dtype)
    if variable.kind == "list":
        flat = _series("", [item for one in values for item in one], variable.types[0])
    else:
        keys = _series(KEY, [key for one in values for key in one.keys()], variable.types[0])  # noqa: SIM118  a list has none
        held = _series(VALUE, [item for one in values for item in one.values()], variable.types[1])
        flat = pl.DataFrame([keys, held]).to_struct("")
    return listed(name, flat, np.array([len(one) for one in values], np.int64), variable.dtype)


def _series(name: str, values: Sequence[Any], dtype: pl.DataType) -> pl.Series:
    """A column of values that all fit the type; TypeError if one does not. The other values in the
    column must not matter."""
    if isinstance(dtype, pl.Datetime) and dtype.time_zone is None and any(getattr(one, "tzinfo", None) is not None for one in values):
        raise TypeError(f"a time with a zone where {dtype} is declared")  # Polars takes it behind one without
    try:
        made = pl.Series(name, values, dtype=dtype, strict=True)
    except (TypeError, ValueError, OverflowError, pa.ArrowException, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        if len(values) < 2:
            raise TypeError(str(error)) from error
        # Polars infers the type from the first value, so that an int beside a Decimal is an error,
        # and either alone is none.
        return pl.concat([_series(name, [one], dtype) for one in values])
    if made.dtype != dtype:  # Polars takes a zone over from the values
        raise TypeError(f"{made.dtype} where {dtype} is declared")
    return made


def _misfit(name: str, value: Any, variable: Variable) -> TypeError | None:
    """The fault of a variable's value, in words."""
    try:
        encode(name, [value], variable)
    except Exception as error:  # a user's object may raise anything
        return TypeError(f"state.{name} = {value!r} is no {variable.dtype}: {error}")
    return None


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    if not names:
        return lambda state: ()
    (name,) = names
    return lambda state: (getattr(state, name),)


def _key_list(keys: pl.DataFrame) -> list[Any]:
    """One column's values as they are, several as tuples."""
    columns = [to_python(column) for column in keys.get_columns()]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def _as_tuple(row: Any, output: Output) -> tuple[Any, ...]:
    names = ", ".join(output.schema)
    if isinstance(row, dict):
        if not row.keys() <= output.schema.keys():
            extra = ", ".join(map(repr, row.keys() - output.schema.keys()))
            raise TypeError(f"it gave a row with {extra}, which is not in {output.what} ({names})")
        return tuple(row.get(name) for name in output.schema)
    if isinstance(row, tuple | list) and len(row) == len(output.schema):
        return tuple(row)
    to = f" to the side output {output.name!r}" if output.name else ""
    raise TypeError(f"it gave {row!r}{to}; a row is a tuple or a dict of {names}, without the key")


def _fits(row: tuple[Any, ...], output: Output) -> tuple[Any, ...]:
    for (name, dtype), one in zip(output.schema.items(), row, strict=True):
        try:
            _series(name, [one], dtype)
        except Exception as error:
            raise TypeError(f"it gave {name} = {one!r}{f' in {output.what}' if output.name else ''}, which is no {dtype}") from error
    return row

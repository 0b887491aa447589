"""A processor's code called once for all keys of a slot, on Polars frames.

The result for a key must depend on that key's rows and state alone: it is not defined which keys
share a call. So a call that raises is repeated for halves of the keys, and so on, until the keys
that fail are alone: their rows become dead letters with the reason, and their state stays as it
was.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from meander.errors import BadInput, FlowError
from meander.plan.operators import conform
from meander.plan.schemas import show_schema
from meander.plan.windows import Times
from meander.processor.context import MOST
from meander.processor.declare import TIMERS
from meander.state.grouping import Index
from meander.task.operators.processors.calls import CallInput, CallOutput
from meander.task.operators.processors.per_key import context_of, letter
from meander.task.operators.workspace import Workspace
from meander.task.shown import as_numbers

if TYPE_CHECKING:
    from meander.task.operators.processors.operator import Processing

_OWNER = "__owner"
_TIME, _CLOCK = "time", "clock"


@dataclass
class Returned:
    """The results of the calls, key by key: rows and timers with their keys, and new values of
    variables."""

    rows: list[pl.DataFrame] = field(default_factory=list)
    owners: list[Index] = field(default_factory=list)
    states: list[pl.DataFrame] = field(default_factory=list)
    holders: list[Index] = field(default_factory=list)
    sides: dict[str, tuple[list[pl.DataFrame], list[Index]]] = field(default_factory=dict)
    """By side output, rows and whose they are."""
    timers: list[pl.DataFrame] = field(default_factory=list)
    setters: list[Index] = field(default_factory=list)


class AllKeys:
    """The calls of one turn."""

    def __init__(self, operator: Processing, workspace: Workspace, given: CallInput) -> None:
        self.operator, self.workspace, self.given = operator, workspace, given
        self.names = list(operator.declared.variables)
        self.variables = pl.Schema({name: variable.dtype for name, variable in operator.declared.variables.items()})
        self.key_schema = given.keys.schema
        self.state = given.keys.with_columns([given.state[name] for name in self.names])
        self.emitted: list[tuple[str, pl.DataFrame]] = []
        """The rows that the current call has emitted to side outputs."""
        self.refused: list[list[int]] = [[] for _ in given.came]
        self.fired = np.zeros(len(given.hashes), np.bool_)
        self.returned = Returned()

    def run(self) -> CallOutput:
        if self.operator.declared.has_timers:
            due = self._due()
            if due is not None:
                owners = due.get_column(_OWNER).to_numpy()
                self.fired[owners] = True
                edges = np.flatnonzero(np.append(True, owners[1:] != owners[:-1]))
                self._call("on_timers", due.drop(_OWNER), owners[edges], edges, np.append(edges[1:], len(owners)))
                self._settle()
        for side, (hook, came) in enumerate(zip(self.operator.declared.hooks, self.given.came, strict=True)):
            if side:
                self._settle()
            whose = came.whose()
            if len(whose):
                self._call(hook, came.rows, whose, came.begins[whose], came.ends[whose], side)
        return self._result()

    # -- calls ----------------------------------------------------------------------------------------------------

    def _call(self, hook: str, rows: pl.DataFrame, owners: Index, begins: Index, ends: Index, side: int | None = None) -> None:
        """Call it for these keys, whose rows stand one after the other. ``side`` is the input that
        the rows came by; None for timers."""
        function = getattr(self.operator.processor, hook)
        ctx = context_of(self.operator, self.workspace, side or 0, time=lambda: self.workspace.now, timers=None, emit=self._emit)
        pending = [(0, len(owners))]
        while pending:
            first, last = pending.pop()
            some = owners[first:last]
            part = rows[int(begins[first]) : int(ends[last - 1])]
            state = self.state if len(some) == self.state.height else self.state[some]
            self.emitted.clear()
            try:
                answer = function(part.clone(), state.clone(), ctx)
                self._take(answer, some, state)
            except FlowError as error:
                raise FlowError(f"process '{self.operator.name}': {error}") from error
            except (Exception, pl.exceptions.PanicException) as error:  # a user's code may raise anything, and Polars panic
                if last - first > 1:
                    middle = (first + last) // 2
                    pending += [(middle, last), (first, middle)]
                else:
                    self._refuse(int(some[0]), part, error, side)

    def _refuse(self, owner: int, rows: pl.DataFrame, error: BaseException, side: int | None) -> None:
        words = "" if side is None else self.operator.incoming[side].words
        reason = f"{type(error).__name__}: {error}"
        parts = as_numbers(self.given.keys[owner : owner + 1]).row(0)
        key = parts[0] if len(parts) == 1 else parts
        if self.workspace.strict:
            what = "its timer" if side is None else f"its rows{words}"
            raise BadInput(f"operator '{self.operator.name}', epoch {self.workspace.epoch}, key {key!r}, {what}: {reason}") from error
        if side is not None:
            self.refused[side].append(owner)
        for number, row in enumerate(as_numbers(rows).iter_rows(named=True)):
            self.workspace.dead.append(letter(self.operator.name, key, number, reason, row, words))

    def _take(self, answer: Any, some: Index, state: pl.DataFrame) -> None:
        """Check what a call returned, all of it before any of it counts."""
        if not isinstance(answer, tuple) or len(answer) not in (2, 3):
            raise FlowError("it must return (output, state), or (output, state, timers); each a polars DataFrame, or None for nothing")
        output, new, timers = (*answer, None)[:3]
        for frame in (output, new, timers):
            if frame is not None and not isinstance(frame, pl.DataFrame):
                raise FlowError(f"it returned a {type(frame).__name__}; write polars DataFrames, and None for nothing")
        found = self.returned
        made: list[tuple[list[pl.DataFrame], list[Index], pl.DataFrame, Index]] = []
        if output is not None and output.height:
            rows = conform(output, pl.Schema({**self.key_schema, **self.operator.declared.output}))
            made.append((found.rows, found.owners, rows.drop(self.key_schema.names()), self._owners(rows, some, state)))
        for side, given in self.emitted:
            rows = conform(given, pl.Schema({**self.key_schema, **self.operator.sides[side]}))
            frames, whose = found.sides.setdefault(side, ([], []))
            made.append((frames, whose, rows.drop(self.key_schema.names()), self._owners(rows, some, state)))
        if new is not None and new.height:
            rows = conform(new, pl.Schema({**self.key_schema, **self.variables}))
            holders = self._owners(rows, some, state)
            if len(np.unique(holders)) != len(holders):
                raise FlowError("it returned more than one row of state for a key")
            made.append((found.states, found.holders, rows.select(self.names), holders))
        if timers is not None and timers.height:
            rows = self._timer_rows(timers)
            made.append((found.timers, found.setters, rows.select(_TIME, _CLOCK), self._owners(rows, some, state)))
        for frames, whose, frame, owners in made:
            frames.append(frame)
            whose.append(owners)

    def _emit(self, rows: Any, side: str | None = None) -> None:
        sides = self.operator.declared.sides
        if side is None:
            raise FlowError("on_batch returns its rows; ctx.emit(rows, 'name') is for its side outputs")
        if side not in sides:
            raise FlowError(f"it gave rows to the side output {side!r}; in side_outputs there are {', '.join(sides) or 'none'}")
        if not isinstance(rows, pl.DataFrame):
            raise FlowError(f"it gave a {type(rows).__name__} to the side output {side!r}; write a polars DataFrame")
        if side in self.operator.sides and rows.height:
            self.emitted.append((side, rows))

    def _timer_rows(self, timers: pl.DataFrame) -> pl.DataFrame:
        if not self.operator.declared.has_timers:
            raise FlowError("it returned timers; timers need a method: write on_timers(self, due, state, ctx)")
        missing = [name for name in (*self.key_schema, _TIME) if name not in timers.columns]
        if missing or not isinstance(timers.schema[_TIME], pl.Datetime):
            raise FlowError(f"it returned timers with {show_schema(timers.schema)}; they need the key's columns and a Datetime 'time'")
        if _CLOCK not in timers.columns:
            timers = timers.with_columns(pl.lit("event" if self.operator.by_event_time else "processing").alias(_CLOCK))
        clocks = set(timers.get_column(_CLOCK).to_list())
        if not clocks <= TIMERS.keys() or (not self.operator.by_event_time and "event" in clocks):
            there = "'event' and 'processing'" if self.operator.by_event_time else "'processing', and no event time"
            raise FlowError(f"it returned timers with the clocks {sorted(map(str, clocks))}; there are {there}")
        timers = timers.with_columns(pl.col(_TIME).dt.epoch("us"))
        if not timers.get_column(_TIME).is_between(-MOST, MOST, closed="none").fill_null(value=False).all():
            raise OverflowError("it returned a timer without a time, or with one that is beyond all times")
        return timers

    def _owners(self, rows: pl.DataFrame, some: Index, state: pl.DataFrame) -> Index:
        """The number of each row's key."""
        names = self.key_schema.names()
        keys = rows.select(names)
        if keys.height == state.height and keys.equals(state.select(names)):
            return some
        known = state.select(names).with_columns(pl.Series(_OWNER, some))
        found = keys.join(known, on=names, how="left", nulls_equal=True, maintain_order="left").get_column(_OWNER)
        if found.null_count():
            stranger = as_numbers(keys.filter(found.is_null())[:1]).row(0)
            raise FlowError(f"it returned a row of the key {stranger}, which it was not given")
        return found.to_numpy().astype(np.intp)

    # -- timers ---------------------------------------------------------------------------------------------------

    def _due(self) -> pl.DataFrame | None:
        """The timers that fire: owner, key, time and clock, by key; a key's by time."""
        frames = []
        for clock, column in TIMERS.items():
            lists = pl.DataFrame([self.given.state[column].alias(_TIME), pl.Series(_OWNER, np.arange(len(self.given.hashes)))])
            rows = lists.filter(pl.col(_TIME).list.min() <= self.given.marks[clock]).explode(_TIME)
            frames.append(rows.filter(pl.col(_TIME) <= self.given.marks[clock]).with_columns(pl.lit(clock).alias(_CLOCK)))
        due = pl.concat(frames).sort(_OWNER, _TIME, _CLOCK)
        if due.height == 0:
            return None
        keys = self.given.keys[due.get_column(_OWNER).to_numpy()]
        time = pl.col(_TIME).cast(pl.Datetime("us", self.operator.incoming[0].zone))
        return pl.DataFrame([due.get_column(_OWNER), *keys.get_columns(), *due.select(time, _CLOCK).get_columns()])

    def _settle(self) -> None:
        """Make what calls returned the state that the next ones meet."""
        if self.returned.states:
            columns = self._merged()
            self.state = self.given.keys.with_columns(columns)

    # -- what has become of it ------------------------------------------------------------------------------------

    def _merged(self) -> list[pl.Series]:
        """The variables of all keys, as they are now."""
        source = np.arange(len(self.given.hashes))
        holders = np.concatenate(self.returned.holders)
        source[holders] = len(source) + np.arange(len(holders))  # of several rows of a key, the last
        everything = pl.concat([self.state.select(self.names), *self.returned.states])
        return [everything.get_column(name).gather(source) for name in self.names]

    def _result(self) -> CallOutput:
        given, found = self.given, self.returned
        state = dict(given.state)
        changed = self.fired.copy()
        if found.states and self.names:
            for series in self._merged():
                changed |= _differs(state[series.name], series)
                state[series.name] = series
        added: dict[str, tuple[Index, Times]] = {}
        if self.operator.declared.has_timers:
            added = self._timers(state, changed)
        which = np.flatnonzero(changed)
        rows, owners = _by_owner(found.rows, found.owners) if found.rows else (None, np.zeros(0, np.intp))
        sides = {side: _by_owner(*given) for side, given in found.sides.items() if given[0]}
        mine = {name: series.gather(which) for name, series in state.items() if name in self.operator.state_schema}
        return CallOutput(which, mine, added, rows, owners, sides, [np.array(sorted(refused), np.intp) for refused in self.refused])

    def _timers(self, state: dict[str, pl.Series], changed: Any) -> dict[str, tuple[Index, Times]]:
        """Take what has fired out of the keys' timers, and put what was set in."""
        added: dict[str, tuple[Index, Times]] = {}
        timers = pl.concat(self.returned.timers) if self.returned.timers else None
        setters = np.concatenate(self.returned.setters) if self.returned.setters else np.zeros(0, np.intp)
        for clock, column in TIMERS.items():
            mark = self.given.marks[clock]
            state[column] = state[column].to_frame().select(pl.col(column).list.filter(pl.element() > mark)).to_series()
            if timers is None:
                continue
            mine = (timers.get_column(_CLOCK) == clock).to_numpy()
            owners, ats = setters[mine], timers.get_column(_TIME).to_numpy()[mine]
            if len(owners):
                new = pl.DataFrame({_OWNER: owners, _TIME: ats}).unique().sort(_OWNER, _TIME)
                lists = new.group_by(_OWNER, maintain_order=True).agg(pl.col(_TIME))
                at = lists.get_column(_OWNER).to_numpy()
                grown = np.zeros(len(changed), np.intp)
                grown[at] = 1 + np.arange(len(at))
                more = pl.concat([pl.Series(_TIME, [[]], dtype=pl.List(pl.Int64())), lists.get_column(_TIME)]).gather(grown)
                state[column] = pl.select(pl.concat_list(state[column], more).list.unique().list.sort().alias(column)).to_series()
                changed[at] = True
                added[clock] = (new.get_column(_OWNER).to_numpy().astype(np.intp), new.get_column(_TIME).to_numpy())
        return added


def call_for_all_keys(operator: Processing, workspace: Workspace, given: CallInput) -> CallOutput:
    return AllKeys(operator, workspace, given).run()


def _differs(old: pl.Series, new: pl.Series) -> Any:
    if old.dtype.is_numeric() and old.null_count() == new.null_count() == 0:
        return old.to_numpy() != new.to_numpy()
    return old.ne_missing(new).to_numpy()


def _by_owner(frames: list[pl.DataFrame], whose: list[Index]) -> tuple[pl.DataFrame, Index]:
    rows, owners = pl.concat(frames), np.concatenate(whose)
    if (owners[1:] < owners[:-1]).any():
        order = np.argsort(owners, kind="stable")
        rows, owners = rows[order], owners[order]
    return rows, owners

"""Runs processors: their state is one row per key, read and written in columns.

One epoch of one slot: rows by key, the keys that are to be looked at because of a timer or an
expiry, one lookup for all of them, the user's code (``per_key`` or ``whole``), one write of what
has changed. A row has a column for each variable; a list is a list column, a map two of them. Where
the processor uses them, it also has the key's timers that are not due yet, the time of its last
rows, and the time of the next check for expired variables. A row in which everything has its
default is deleted.

Lists and maps are part of the row, and not tables of their own: reading them is one lookup for all
variables, and a processor's lists are short. Long collections belong into keys of their own
(``key_by("user", "item")``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from meander.coordinate.timing import Clock, Timing
from meander.plan.eventtime import Time, no_time
from meander.plan.processing import Process, Side
from meander.plan.windows import FOREVER, Times
from meander.processor import Declaration, Processor, Variable
from meander.processor.declare import CHECK, TIMERS, TOUCHED
from meander.state.grouping import Index, group_rows
from meander.state.hashing import Hashes
from meander.state.segment import DELETED, HASH
from meander.state.table import Kept, conform
from meander.stored import stored
from meander.task.operators.contract import Emitted, Intake, Partial, Stateful
from meander.task.operators.place import Place
from meander.task.operators.processors.calls import CallInput, CallOutput, InputColumns, InputRows, default_of, is_default
from meander.task.operators.processors.maps import from_stored, never_null, to_stored
from meander.task.operators.processors.per_key import call_for_each_key, shown
from meander.task.operators.processors.wakeups import AT, WakeUps
from meander.task.operators.processors.whole import call_for_all_keys
from meander.task.operators.wholerows import in_order, send_whole
from meander.task.operators.workspace import Workspace
from meander.task.rows import Rows


@dataclass(frozen=True)
class ByKey:
    """The rows of one input, those of a key together, and the keys, under the names that leave."""

    rows: pl.DataFrame
    keys: pl.DataFrame
    hashes: Hashes
    begins: Index
    ends: Index


@dataclass(frozen=True)
class Processing(Stateful):
    """A processor, ready to run."""

    processor: Processor
    declared: Declaration
    incoming: tuple[InputColumns, ...]
    """One input, or two that are connected."""
    follows: Timing
    wakeups: WakeUps
    sides: Mapping[str, pl.Schema]
    """The columns, without the key's, of the side outputs that have readers."""

    @property
    def timing(self) -> Timing:
        return self.follows

    def tables(self) -> dict[str, Kept]:
        return {self.name: Kept(self.keys), **self.wakeups.tables()}

    @property
    def state_schema(self) -> pl.Schema:
        """All columns of a row beside its key."""
        return pl.Schema({**{name: variable.dtype for name, variable in self.declared.variables.items()}, **self.declared.beside()})

    @property
    def by_event_time(self) -> bool:
        return self.incoming[0].time is not None

    @property
    def ttl_clock(self) -> str:
        return self.declared.ttl_clock or ("event" if self.by_event_time else "processing")

    def before(self, rows: Rows, side: int, intake: Intake) -> pl.DataFrame:
        return send_whole(rows, self.incoming[side].keys, intake)

    def clock_of(self, table: str) -> Clock:
        return self.wakeups.clock_of(table)

    def over(self, table: str, evict: int) -> int | None:
        return self.wakeups.over(table, evict)

    def due(self, table: str, late: int, evict: int) -> tuple[int, int] | None:
        return self.wakeups.due(table, late, evict)

    def reader(self) -> StateReader:
        return StateReader(self.name, pl.Schema({key: self.schema[key] for key in self.keys}), self.declared.variables)

    # -- one epoch ------------------------------------------------------------------------------------------------

    def work(self, workspace: Workspace, arrived: Sequence[Partial]) -> Emitted | None:
        given = self._call_input(workspace, arrived, self.wakeups.woken(workspace))
        if given is None:
            return None
        workspace.lap("state read")
        expired = self._forget(workspace, given) if self.declared.has_ttl else np.zeros(len(given.hashes), np.bool_)
        calls = (call_for_each_key if self.declared.form == "events" else call_for_all_keys)(self, workspace, given)
        workspace.lap("compute")
        self.wakeups.write(workspace, self._write(workspace, given, calls, expired))
        sides = {name: self._keyed(given, rows, owners) for name, (rows, owners) in calls.sides.items()}
        if calls.rows is None or calls.rows.height == 0:
            return Emitted(self.schema.to_frame(), given.hashes[:0], sides=sides) if sides else None
        frame, hashes = self._keyed(given, calls.rows, calls.owners)
        return Emitted(frame, hashes, sides=sides)

    def _keyed(self, given: CallInput, rows: pl.DataFrame, owners: Index) -> tuple[pl.DataFrame, Hashes]:
        """Rows with the columns of their keys in front, and the keys' hashes."""
        keys = [given.keys.get_column(key).gather(owners) for key in self.keys]
        return pl.DataFrame([*keys, *rows.get_columns()]), given.hashes[owners]

    def _call_input(self, workspace: Workspace, arrived: Sequence[Partial], woken: Sequence[pl.DataFrame]) -> CallInput | None:
        found = [self._by_key(workspace, arrived, side) for side in range(len(self.incoming))]
        some = [(one.keys, one.hashes) for one in found if one is not None]
        some += [(frame.select(self.keys), frame.get_column(HASH).to_numpy()) for frame in woken]
        if not some:
            return None
        keys, hashes = some[0]
        owners = [np.arange(len(hashes), dtype=np.intp)]
        if len(some) > 1 or woken:
            both, all_hashes = pl.concat([one for one, _ in some]), np.concatenate([one for _, one in some])
            groups = group_rows(both, all_hashes)
            owner = np.empty(len(all_hashes), np.intp)
            owner[groups.order] = groups.ids().to_numpy()
            keys, hashes = both[groups.heads], groups.hashes
            owners = np.split(owner, np.cumsum([len(one) for _, one in some]))
        whose = iter(owners)
        came = tuple(
            self._came(workspace, incoming, one, None if one is None else next(whose), len(hashes))
            for incoming, one in zip(self.incoming, found, strict=True)
        )
        workspace.lap("fold")
        present, state = self._stored(workspace, keys, hashes)
        return CallInput(keys, hashes, came, present, state, {"event": workspace.evict, "processing": workspace.now})

    def _by_key(self, workspace: Workspace, arrived: Sequence[Partial], side: int) -> ByKey | None:
        """The rows that have come of an input, by key."""
        incoming, found = self.incoming[side], in_order(arrived, side)
        if found is not None and self.declared.form == "events":
            found = shown(self, incoming, workspace, *found)
        if found is None or found[0].height == 0:
            return None
        rows, hashes = found
        groups = group_rows(rows.select(incoming.keys), hashes)
        if (groups.order[1:] < groups.order[:-1]).any():  # two keys share a hash, and their rows are mixed
            rows = rows[groups.order]
        rows = rows.select(incoming.columns)
        keys = rows.select(pl.col(mine).alias(name) for mine, name in zip(incoming.keys, self.keys, strict=True))[groups.starts]
        return ByKey(rows, keys, groups.hashes, groups.starts, np.append(groups.starts[1:], groups.rows))

    def _came(self, workspace: Workspace, incoming: InputColumns, found: ByKey | None, owners: Index | None, count: int) -> InputRows:
        """The rows of an input among ``count`` keys, given which of these they are of."""
        begins, ends = np.zeros(count, np.intp), np.zeros(count, np.intp)
        rows = pl.DataFrame()
        if found is not None:
            begins[owners], ends[owners], rows = found.begins, found.ends, found.rows
        return InputRows(rows, begins, ends, self._times(workspace, incoming, rows, begins, ends))

    def _stored(self, workspace: Workspace, keys: pl.DataFrame, hashes: Hashes) -> tuple[npt.NDArray[np.bool_], dict[str, pl.Series]]:
        variables, schema = self.declared.variables, self.state_schema
        which, found = workspace.find(self.name, keys, hashes, stored_schema(self.declared))
        found = {name: never_null(series) for name, series in found.items()}
        stored = {}
        if len(which):
            stored = {name: from_stored(name, found, variables[name]) if name in variables else found[name] for name in schema}
        at = np.full(len(hashes), len(which))
        at[which] = np.arange(len(which))
        state = {}
        for name, dtype in schema.items():
            default = default_of(variables.get(name), name, dtype)
            state[name] = (pl.concat([stored[name].cast(dtype), default]) if len(which) else default).gather(at)
        return at < len(which), state

    def _times(self, workspace: Workspace, incoming: InputColumns, rows: pl.DataFrame, begins: Index, ends: Index) -> Times:
        """A key's time in this epoch: that of its newest row, or the mark if that is later."""
        if incoming.time is None:
            return np.full(len(begins), workspace.now, np.int64)
        mark = workspace.late if workspace.evict == FOREVER else workspace.evict
        times = np.full(len(begins), mark, np.int64)
        has = np.flatnonzero(ends > begins)
        if len(has):
            moments = rows.get_column(incoming.time).dt.epoch("us").fill_null(mark).to_numpy() + incoming.shift
            times[has] = np.maximum(np.maximum.reduceat(moments, begins[has]), mark)
        return times

    # -- variables that are forgotten -----------------------------------------------------------------------------

    def _ttl_now(self, workspace: Workspace) -> int:
        """A flush closes things; variables do not expire by it."""
        if self.ttl_clock == "processing":
            return workspace.now
        return workspace.late if workspace.evict == FOREVER else workspace.evict

    def _forget(self, workspace: Workspace, given: CallInput) -> npt.NDArray[np.bool_]:
        """Set expired variables to their defaults. Returns the keys whose rows change."""
        now, touched = self._ttl_now(workspace), given.state[TOUCHED]
        expired = np.zeros(len(given.hashes), np.bool_)
        for name, variable in self.declared.variables.items():
            if variable.ttl is not None:
                over = (touched + variable.ttl <= now).fill_null(False)
                if over.any():
                    default = default_of(variable, name, variable.dtype)
                    given.state[name] = given.state[name].zip_with(~over, default.gather(np.zeros(len(over), np.intp)))
                    expired |= over.to_numpy()
        return expired

    def _next_check(
        self, workspace: Workspace, given: CallInput, changed: Index, state: dict[str, pl.Series], calls: CallOutput
    ) -> pl.Series:
        """Set the columns with each row's last touch and its next check. Returns the keys that need
        a wake-up."""
        has_rows, base = given.taken(calls.refused)
        if self.ttl_clock == "processing":
            base = np.full(len(given.hashes), workspace.now, np.int64)
        touched = pl.Series(TOUCHED, base).zip_with(pl.Series(has_rows), given.state[TOUCHED]).gather(changed)
        soonest: list[pl.Expr] = []
        frame = pl.DataFrame([touched, given.state[CHECK].gather(changed)])
        for name, variable in self.declared.variables.items():
            if variable.ttl is not None:
                frame = frame.with_columns((~is_default(state[name], variable)).alias(f"kept {name}"))
                soonest.append(pl.when(pl.col(f"kept {name}")).then(pl.col(TOUCHED) + variable.ttl))
        now, reached = self._ttl_now(workspace), given.marks[self.ttl_clock]
        wanted = frame.select(
            pl.min_horizontal([pl.when(at > now).then(at) for at in soonest]).alias("at"),
            pl.when(pl.col(CHECK) > reached).then(pl.col(CHECK)).alias("there"),
        )
        new = (pl.col("at").is_not_null()) & (pl.col("there").is_null() | (pl.col("at") < pl.col("there")))
        state[TOUCHED] = touched
        state[CHECK] = wanted.select(pl.when(new).then("at").otherwise("there").alias(CHECK)).to_series()
        return wanted.select(new.alias("new")).to_series()

    # -- what is written ------------------------------------------------------------------------------------------

    def _write(
        self, workspace: Workspace, given: CallInput, calls: CallOutput, expired: npt.NDArray[np.bool_]
    ) -> list[tuple[bool, pl.DataFrame]]:
        """The rows that have changed, deletions included. Returns the wake-ups that this takes."""
        wakeups: list[tuple[bool, pl.DataFrame]] = []
        for clock, (owners, ats) in calls.added.items():
            wakeups.append((clock == "processing", self._wakeups(given, owners, pl.Series(AT, ats, pl.Int64))))
        also = expired
        if self.declared.has_ttl:
            consumed = (given.state[CHECK] <= given.marks[self.ttl_clock]).fill_null(False).to_numpy()
            also = also | consumed | given.taken(calls.refused)[0]
        also[calls.changed] = False
        rest = np.flatnonzero(also)
        changed = np.concatenate([calls.changed, rest]).astype(np.intp)
        state = {name: pl.concat([series, given.state[name].gather(rest)]) if len(rest) else series for name, series in calls.state.items()}
        if len(changed) == 0:
            return wakeups
        if self.declared.has_ttl:
            new = self._next_check(workspace, given, changed, state, calls)
            if new.any():
                owners = changed[new.to_numpy()]
                wakeups.append((self.ttl_clock == "processing", self._wakeups(given, owners, state[CHECK].filter(new).alias(AT))))
        empty = pl.Series(np.ones(len(changed), np.bool_))
        for name, series in state.items():
            if name in self.declared.variables:
                empty &= is_default(series, self.declared.variables[name])
            elif name in TIMERS.values():
                empty &= series.list.len() == 0
        columns: list[pl.Series] = []
        for name in self.state_schema:
            variable = self.declared.variables.get(name)
            columns += [state[name].alias(name)] if variable is None else to_stored(state[name], name, variable)
        rows = pl.DataFrame(
            [pl.Series(HASH, given.hashes[changed]), *(given.keys.get_column(k).gather(changed) for k in self.keys), *columns]
        )
        rows = rows.with_columns(empty.alias(DELETED)).filter(~empty | pl.Series(given.present[changed]))
        rows = rows.sort(HASH, maintain_order=True) if len(rest) else rows
        workspace.write(self.name, rows if rows.get_column(DELETED).any() else rows.drop(DELETED))
        return wakeups

    def _wakeups(self, given: CallInput, owners: Index, ats: pl.Series) -> pl.DataFrame:
        return pl.DataFrame([pl.Series(HASH, given.hashes[owners]), *(given.keys.get_column(k).gather(owners) for k in self.keys), ats])


def stored_schema(declared: Declaration) -> dict[str, pl.DataType]:
    """The stored columns of a key, without the key itself."""
    variables = {column: dtype for name, variable in declared.variables.items() for column, dtype in variable.stored(name).items()}
    return {**variables, **declared.beside()}


@stored("process_state")
@dataclass(frozen=True)
class StateReader:
    """Shows keys and their variables."""

    operator: str
    key_schema: pl.Schema
    variables: Mapping[str, Variable]

    def show(self, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
        rows = tables.get(self.operator)
        if rows is None or not rows.width:
            return pl.DataFrame(schema={**self.key_schema, **{name: variable.dtype for name, variable in self.variables.items()}})
        wanted = {column: dtype for name, variable in self.variables.items() for column, dtype in variable.stored(name).items()}
        rows = conform(rows, {**self.key_schema, **wanted})  # what is stored may be of an older plan
        columns = {column.name: never_null(column) for column in rows.get_columns()}
        shown = [from_stored(name, columns, variable) for name, variable in self.variables.items()]
        return pl.DataFrame([*(columns[key] for key in self.key_schema), *shown])


def make_processing(place: Place, op: Process) -> Processing:
    times = [place.time(side) for side in range(len(place.node.inputs))]
    without = next((side for side, time in enumerate(times) if time is None), None)
    if op.declared.ttl_clock == "event" and without is not None:
        raise no_time(f"processor {op.declared.name}: ttl_clock='event'", place.node.inputs[without], place.schema(without))
    known = [] if without is not None else [time for time in times if time is not None]  # of all inputs, or of none
    keys = (op.keys,) if op.other_keys is None else (op.keys, op.other_keys)
    words = ("",) if op.other_keys is None else (" of the left", " of the right")
    incoming = tuple(
        _incoming(place.schema(side), keys[side], known[side] if known else None, words[side]) for side in range(len(place.node.inputs))
    )
    marks, delay = frozenset[str]().union(*(time.marks for time in known)), max((time.delay for time in known), default=0)
    read = {node.op.output for node in place.plan.nodes if isinstance(node.op, Side) and place.node.name in node.inputs}
    return Processing(
        **place.common(op.keys),
        processor=op.processor,
        declared=op.declared,
        incoming=incoming,
        follows=Timing(marks, delay) if known else Timing(by_clock=True, flushes=False),
        wakeups=WakeUps(place.node.name, {key: place.schema()[key] for key in op.keys}),
        sides={name: columns for name, columns in op.declared.sides.items() if name in read},
    )


def _incoming(schema: pl.Schema, keys: tuple[str, ...], time: Time | None, words: str) -> InputColumns:
    if time is None:
        return InputColumns(keys, tuple(schema), None, 0, None, words)
    dtype = schema[time.column]
    return InputColumns(keys, tuple(schema), time.column, time.shift, dtype.time_zone if isinstance(dtype, pl.Datetime) else None, words)

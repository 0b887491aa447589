"""Keeps the facts and tables that the former plan needs while a change is on probation, so that
taking the change back leaves no trace. Pure.

A plan on probation closes windows by its own rules. The former plan may need rows for longer, and
may have other marks. So the log entries of the change keep, in ``unproven``: ``times``, the event
time by the former plan's watermarks; ``flushed``, the time up to which flushes would have closed
everything under it; ``floors``, the times up to which its rows would be over (rows that end later
stay in the store); and ``aside``, tables that a flush has emptied under the new plan but not under
the former one. Tables in ``aside`` are removed when the change is proven, and come back when it is
taken back. If the former plan is on probation itself, its ``unproven`` has the same fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from meander.coordinate import marks
from meander.coordinate.marks import evictions
from meander.coordinate.watermarks import heard_from
from meander.epochs.decision import Decision, Outcome
from meander.epochs.parts import Parts
from meander.plan.windows import NEVER
from meander.state.manifest import Json, Manifest, Table, tables_in, tables_to_json
from meander.state.segment import SOONEST


def set_aside(
    unproven: Json,
    formers: Sequence[Parts],
    before: Manifest,
    after: Mapping[str, Table],
    emptied: Mapping[str, Table],
    decision: Decision,
    outcome: Outcome,
    going_on: Mapping[str, int | None],
) -> Json:
    """``unproven`` after an epoch that has these tables ``after`` it, and has emptied some.

    ``before`` is the manifest that it began with; ``going_on`` are the sources, which are the same under all these plans.
    """
    former, earlier = formers[0], formers[1:]
    times, plan = heard_from(unproven["times"], going_on), unproven["plan"]
    was = replace(before, times=times, flushed=unproven["flushed"])
    evict = evictions(former.timed, was, decision.now, decision.flush)
    kept, floors = {}, {}
    for name, table in after.items():
        if name not in former.tables() or table.time is None:
            continue
        known = replace(table, floor=unproven["floors"].get(name, SOONEST))
        if former_closes := bool(marks.emptied(former.timed, [name], evict)):
            over = SOONEST if name in emptied else max([known.floor, *(s.last_end for s in table.segments if s.groups)])
            known = replace(known, floor=over)
        moved = {} if former_closes else marks.floors(former.timed, {name: known}, evict, decision.now, decision.epoch)
        floors[name] = moved.get(name, known.floor)
        if name in emptied and not former_closes:
            kept[name] = emptied[name]
    if earlier:
        rest = {name: table for name, table in emptied.items() if name not in kept}
        plan = {**plan, "unproven": set_aside(plan["unproven"], earlier, before, after, rest, decision, outcome, going_on)}
    times = former.times_after(before, times, outcome.heard, decision.now)
    return {
        **unproven,
        "plan": plan,
        "times": times,
        "flushed": marks.flushed(former.timed, was, times, outcome.closed),
        "floors": floors,
        "aside": tables_to_json(both(tables_in(unproven["aside"]), kept)),
    }


def not_closed(times: Mapping[str, Json], change: Mapping[str, Json]) -> dict[str, Json]:
    """The event time of a plan that is back, given that of the change.

    Windows that its marks have passed, and those of the change have not, were never closed: the
    next epoch takes rows for them, and closes them.

    >>> not_closed({"w": {"late": 9, "mark": 12}}, {"w": {"late": 4, "mark": 7}})
    {'w': {'late': 4, 'mark': 12}}
    """
    found = {}
    for name, value in times.items():
        late = value.get("late", NEVER)
        found[name] = {**value, "late": min(late, change.get(name, {}).get("late", late))}
    return found


def both(some: Mapping[str, Table], others: Mapping[str, Table]) -> dict[str, Table]:
    """Tables, and others that may be parts of the same: a table can be emptied, written and emptied again."""
    found = dict(some)
    for name, table in others.items():
        segments = (*found[name].segments, *table.segments) if name in found else table.segments
        unique = {s.name: s for s in segments if s.groups} or {s.name: s for s in segments[:1]}  # one stays, for the table's columns
        found[name] = replace(found.get(name, table), segments=tuple(sorted(unique.values(), key=lambda s: s.sequence)), quiet=SOONEST)
    return found


def former_tables(manifest: Manifest, unproven: Json) -> dict[str, Table]:
    """The tables as the former plan would have them: with the tables set aside, and with its own
    floors.

    Windows that it would have closed, and the change has not, were never closed: their rows are not
    over.
    """
    tables = both(manifest.tables, tables_in(unproven["aside"]))
    floors = unproven["floors"]
    found = {}
    for name, table in tables.items():
        floor = table.floor if table.time is None else min(table.floor, floors.get(name, SOONEST))
        found[name] = table if floor == table.floor else replace(table, floor=floor, quiet=SOONEST)
    return found

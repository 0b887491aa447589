"""What a change on probation would lose for the plan before it: kept, so that taking the change back leaves no trace. Pure.

A plan that is in force and not proven closes and drops by its own rules. The plan before it may need longer what is dropped, and may
have other marks. All that is in the log entries of the change, in ``unproven``: ``aside`` has the tables, ``times`` the event time as the
former plan's watermarks would have it, ``flushed`` up to where flushes would have closed everything under it. They go when the change is
proven, and come back when it is taken back. A former plan may be on probation itself, and has the same in its own ``unproven``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from meander.coordinate.watermarks import heard_from
from meander.engine.epoch import Decision, Outcome
from meander.engine.marks import evictions, flushed, over
from meander.engine.parts import Parts
from meander.state.manifest import Json, Manifest, Table, operator_of, tables_in, tables_to_json, whole_table


def set_aside(
    unproven: Json,
    formers: Sequence[Parts],
    before: Manifest,
    dropped: Mapping[str, Table],
    decision: Decision,
    outcome: Outcome,
    going_on: Mapping[str, int | None],
) -> Json:
    """``unproven`` after an epoch that drops these tables.

    ``before`` is the manifest that it began with; ``going_on`` are the sources, which are the same under all these plans.
    """
    former, earlier = formers[0], formers[1:]
    times, plan = heard_from(unproven["times"], going_on), unproven["plan"]
    was = replace(before, times=times, flushed=unproven["flushed"])
    kept = {name: table for name, table in dropped.items() if _needs(former, was, name, decision)}
    if earlier:
        rest = {name: table for name, table in dropped.items() if name not in kept}
        plan = {**plan, "unproven": set_aside(plan["unproven"], earlier, before, rest, decision, outcome, going_on)}
    times = former.times_after(before, times, outcome.heard, decision.now)
    return {
        **unproven,
        "plan": plan,
        "times": times,
        "flushed": flushed(former.timed, was, times, outcome.closed),
        "aside": tables_to_json(both(tables_in(unproven["aside"]), kept)),
    }


def both(some: Mapping[str, Table], others: Mapping[str, Table]) -> dict[str, Table]:
    """Tables, and others that may be parts of the same: a table can be dropped, written and dropped again, by joins in every epoch."""
    found = dict(some)
    for name, table in others.items():
        segments = (*found[name].segments, *table.segments) if name in found else table.segments
        found[name] = replace(table, segments=tuple(sorted(segments, key=lambda s: s.sequence)))
    return found


def _needs(parts: Parts, manifest: Manifest, table: str, decision: Decision) -> bool:
    """Whether a plan would still have a table after this epoch."""
    if whole_table(table) not in parts.tables():
        return False
    if operator_of(table) not in parts.timed:
        return True
    evict = evictions(parts.timed, manifest, decision.now, decision.flush)
    return not over(parts.timed, [table], evict, decision.now)

"""Sources and sinks that modifications have put in force: at a start, either these or those of the
flow's file are used. Pure.

A plan's digest does not contain places, so that folders may move between two runs. A source or a
sink from a modification stays in force nevertheless: a file with the former one would read the same
input again, or write to the old folder. So the log keeps for each of them (``Brought``, as plain
data):

- ``place``: the place in force
- ``left``: the former places: a file with one of these is older than the modification
- ``agreed``: whether the file that was started last has the place in force. Then the file counts
  again, and its folder may move.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any

from meander.connect.sink import HasPlace
from meander.plan.code import code_of
from meander.plan.graph import Plan
from meander.plan.operators import Operator, SinkOp, SourceOp
from meander.stored.kinds import kind_of
from meander.stored.values import Writer

Brought = dict[str, Any]
_LEFT = 8


@dataclass(frozen=True)
class Settled:
    """The sources and sinks with which a start continues."""

    ends: Mapping[str, Operator]
    """Sources and sinks that are not the file's."""
    brought: dict[str, Brought]
    notices: tuple[str, ...]
    """The places in the file that differ from those in force, in words."""


def place_of(op: SourceOp | SinkOp) -> str:
    """All that tells one source or sink from another: where it is, its limits, its function."""
    end: object = op.source if isinstance(op, SourceOp) else op.sink
    if isinstance(end, HasPlace):
        return end.place()
    if kind_of(end) is not None:  # by what is stored of it, which says nothing of our classes
        settings = code_of(json.dumps(Writer().write(end)))
    else:
        settings = code_of(end) if is_dataclass(end) else ""
    return f"{op.describe()} {settings}".strip()


def bring(brought: Mapping[str, Brought], before: Plan, after: Plan, given: Plan) -> dict[str, Brought]:
    """The records after a modification. ``given`` is the flow as it was started."""
    old, mine = _ends(before), _ends(given)
    found: dict[str, Brought] = {}
    for name, op in _ends(after).items():
        if op is old.get(name):
            if name in brought:
                found[name] = brought[name]
            continue
        place = place_of(op)
        left = [*brought.get(name, {}).get("left", ()), *([place_of(old[name])] if name in old else [])]
        left = [one for one in dict.fromkeys(left) if one != place][-_LEFT:]
        found[name] = {"place": place, "left": left, "agreed": name in mine and place_of(mine[name]) == place}
    return found


def settle(brought: Mapping[str, Brought], modified: Plan, given: Plan) -> Settled:
    """Decide which sources and sinks continue. ``modified`` is the stored plan, ``given`` the flow
    that is started."""
    stored, mine = _ends(modified), _ends(given)
    does, says = modified.record()["operators"], given.record()["operators"]
    ends: dict[str, Operator] = {}
    now, notices = dict(brought), []
    for name, one in brought.items():
        if name not in mine or name not in stored or not is_alike(does[name], says[name]):
            continue  # the file is older than it, and the stored plan has it
        said = place_of(mine[name])
        if said == one["place"] or (one["agreed"] and said not in one["left"]):
            now[name] = {**one, "place": said, "agreed": True}
            continue
        ends[name], now[name] = stored[name], {**one, "agreed": False}
        notices.append(_words(name, stored[name], mine[name]))
    return Settled(ends, now, tuple(notices))


def elsewhere(stored: Plan, given: Plan) -> dict[str, Operator]:
    """Sources and sinks of a stored plan that are not where an edited file has them: they are others, and have not moved."""
    mine = _ends(given)
    found: dict[str, Operator] = {}
    for name, op in _ends(stored).items():
        other = mine.get(name)
        if isinstance(op, SourceOp) or getattr(op.sink, "function", op) is None:  # of a function that was left behind the name is known
            same = other is not None and other.describe() == op.describe()
        else:
            same = isinstance(other, SinkOp) and place_of(other) == place_of(op)
        if not same:
            found[name] = op
    return found


def is_alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two operators' records say the same of all but places. Of a source the columns are its own."""
    parts = ("kind", "does", "code", *(("columns",) if one["kind"] == "source" else ()))
    return all(one[part] == other[part] for part in parts)


def _ends(plan: Plan) -> dict[str, SourceOp | SinkOp]:
    return {node.name: node.op for node in plan.nodes if isinstance(node.op, SourceOp | SinkOp)}


def _words(name: str, stored: SourceOp | SinkOp, mine: SourceOp | SinkOp) -> str:
    is_so, says = stored.describe(), mine.describe()
    source = isinstance(stored, SourceOp)
    if says == is_so:  # what `apply` compares is the same
        says, back = "the same with other settings or code", f"run.replace('{name}', ...{', resume=True' if source else ''})"
    else:
        back = (
            "`meander apply FLOW.py --restart` or run.apply(flow, resume=False)" if source else "`meander apply FLOW.py` or run.apply(flow)"
        )
    return (
        f"{stored.kind} '{name}' was changed while the flow ran and goes on so: in force is {is_so}, the file says {says}. "
        f"To keep it, write it into the file; to go back to the file's, while the flow runs: {back}"
    )

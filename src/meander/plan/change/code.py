"""Changes with code, as bytes: the shell packs them, and the process of the running flow unpacks
them.

Unpickling runs code: bytes are looked at only for callers who may run some in the flow's process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from meander.errors import ConfigError, FlowError
from meander.plan.change.become import Become
from meander.plan.change.modify import Change, Insert, Replace, StateFunction
from meander.plan.pickling import leave_behind, pickled, ship_user_modules, unpickle


@dataclass(frozen=True)
class WithCode:
    """Changes, and the functions that go with them."""

    changes: tuple[Change, ...]
    upgrade: Mapping[str, StateFunction] = field(default_factory=dict)
    guard: Any = None


def pack_changes(changes: Sequence[Change], upgrade: Mapping[str, StateFunction] | None = None, guard: Any = None) -> bytes:
    """FlowError where something cannot travel."""
    sent: list[Change] = []
    for change in changes:
        if isinstance(change, Become):
            ship_user_modules([node.op for node in change.plan.nodes])
            # A sink that the flow has already stays the one that runs: its function is not needed there.
            change = replace(change, plan=leave_behind(change.plan, change.plan.schemas))
        elif isinstance(change, Replace | Insert):
            ship_user_modules([change.op])
        sent.append(change)
    made = WithCode(tuple(sent), dict(upgrade or {}), guard)
    try:
        return pickled(made)
    except Exception as error:
        raise FlowError(
            f"the change cannot be sent ({type(error).__name__}: {error}); a lock, a connection or an open file that a function refers to "
            "stays where it is: make it inside the function, on first use"
        ) from error


def unpack_changes(packed: bytes) -> WithCode:
    """Runs code."""
    try:
        found = unpickle(packed)
    except Exception as error:
        raise ConfigError(
            f"the code of the change cannot be read here ({type(error).__name__}: {error}); send it with the flow's versions of Python, "
            "Meander and Polars, and from functions whose imports are there, too"
        ) from error
    if not isinstance(found, WithCode):
        raise ConfigError(f"the code of the change is of type {type(found).__name__}; send what meander itself packs")
    return found

"""The number of executors that the slots need, and which to request or release. Pure; called by
``epochs.crew``.

Stages take turns, so executors need room for the slots of the largest stage. Executors are drained
before release; until an executor is gone it can still be kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Staffing:
    """The executors to request, to keep and to release."""

    wanted: int
    """So many should be there."""
    keep: tuple[str, ...] = ()
    """Leaving executors that are needed after all."""
    leave: tuple[str, ...] = ()
    """Executors to drain and release."""


def executors_for(slots: int, slots_per_executor: int) -> int:
    """
    >>> [executors_for(slots, 2) for slots in (1, 2, 3, 8)]
    [1, 1, 2, 4]
    """
    return max(1, -(-slots // slots_per_executor))


def staff(slots: int, slots_per_executor: int, staying: Mapping[str, int], leaving: Iterable[str] = ()) -> Staffing:
    """``slots`` are those of the largest stage, ``staying`` the executors with the slots that each has.

    Those with the fewest slots leave first, since the state of the others' is in their caches; among equals the youngest.

    >>> staff(3, 1, {"0": 1}, leaving=["1"])
    Staffing(wanted=3, keep=('1',), leave=())
    >>> staff(2, 1, {"0": 1, "1": 0, "2": 0, "10": 1}).leave
    ('2', '1')
    """
    wanted = executors_for(slots, slots_per_executor)
    missing = wanted - len(staying)
    if missing >= 0:
        return Staffing(wanted, keep=tuple(sorted(leaving, key=_age)[:missing]))
    by_use = sorted(staying, key=lambda name: (staying[name], -_age(name)[0], name))
    return Staffing(wanted, leave=tuple(by_use[:-missing]))


def _age(name: str) -> tuple[int, str]:
    """Spark numbers executors in the order they come."""
    return (int(name) if name.isdigit() else 0, name)

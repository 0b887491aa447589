"""Migration: how the state of moved key groups reaches the caches of their new owners. Pure.

State is in the store, and a new owner can work from there at once. A strategy chooses when the
owner's cache is filled, and whether epochs wait for it:

| strategy | what happens |
| --- | --- |
| ``eager`` | switch, and let epochs wait until everything that moved is in the new owners' caches |
| ``lazy`` | switch at once; a new owner fetches what its keys need, key by key |
| ``prefetch`` | fill the new owners' caches while the old ones go on; switch when they are warm |
| ``hybrid`` | switch the hot key groups at once, prefetch the others and switch them when they are warm |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from meander.coordinate.routing import groups_of, slots_of
from meander.errors import ConfigError
from meander.settings import STRATEGIES, Strategy

_HOT = 0.5


def check_strategy(name: str) -> Strategy:
    for known in STRATEGIES:
        if name == known:
            return known
    raise ConfigError(f"strategy '{name}': there are {', '.join(STRATEGIES)}")


@dataclass(frozen=True)
class Bringing:
    """When caches are filled around a switch."""

    before: Literal["nothing", "small segments", "everything"] = "nothing"
    wait_after: bool = False
    """Epochs wait until everything is there."""
    rest_after: bool = False
    """The rest is fetched little by little, beside the epochs."""
    hot_first: bool = False
    """A rescaling has two switches: the hot key groups at once, the others when their caches are filled."""


BRINGING: Mapping[Strategy, Bringing] = {
    "eager": Bringing(wait_after=True),
    "lazy": Bringing(),
    "prefetch": Bringing("everything"),
    # A question about a small segment costs as much as one about a large one, so that small ones are brought before.
    "hybrid": Bringing("small segments", rest_after=True, hot_first=True),
}
"""All that a strategy is: nothing else asks which strategy it is."""


def plan_bringing(strategy: Strategy) -> Bringing:
    """How whole operators, or chosen key groups, come to an executor: one switch for all of them.

    >>> plan_bringing("hybrid")
    Bringing(before='small segments', wait_after=False, rest_after=True, hot_first=True)
    """
    return BRINGING[check_strategy(strategy)]


@dataclass(frozen=True)
class Step:
    """One switch of a rescaling, and how caches are filled around it."""

    table: list[int]
    how: Bringing


def plan_migration(before: Sequence[int], after: Sequence[int], strategy: Strategy, load: Sequence[float] | None = None) -> list[Step]:
    """The tables to go through, in order.

    >>> [step.table for step in plan_migration([0, 0, 0, 0], [0, 0, 1, 1], "hybrid", [1, 1, 9, 1])]
    [[0, 0, 1, 0], [0, 0, 1, 1]]
    """
    how, final = plan_bringing(strategy), list(after)
    if not how.hot_first:
        return [Step(final, how)]
    hot = hot_groups([group for group, (a, b) in enumerate(zip(before, after, strict=True)) if a != b], load)
    first = [after[group] if group in hot else slot for group, slot in enumerate(before)]
    # A slot in the middle of a table must not be left without key groups; and a shrinking stage is
    # switched as a whole.
    if first == final or slots_of(final) < slots_of(before) or set(first) != set(range(slots_of(first))):
        return [Step(final, BRINGING["prefetch" if slots_of(final) < slots_of(before) else "lazy"])]
    return [Step(first, BRINGING["lazy"]), Step(final, BRINGING["prefetch"])]


def hot_groups(moved: Sequence[int], load: Sequence[float] | None) -> set[int]:
    """The fewest of the moved key groups that are at least half of their load; without a load, half of them.

    >>> sorted(hot_groups([3, 4, 5], [0, 0, 0, 1.0, 8.0, 1.0]))
    [4]
    """
    weight = {group: load[group] if load is not None else 1.0 for group in moved}
    total, covered, hot = sum(weight.values()), 0.0, set()
    for group in sorted(moved, key=lambda g: (-weight[g], g)):
        if covered >= _HOT * total:
            break
        hot.add(group)
        covered += weight[group]
    return hot


@dataclass(frozen=True)
class Fetch:
    """A part of a segment that a slot's new owner will read: its key groups (some may be in its
    cache already), and the executors that may have the others."""

    name: str
    bytes: int
    groups: int
    holder: str | None


def plan_fetches(
    before: Sequence[int], after: Sequence[int], segments: Iterable[tuple[str, int, int]], holders: Mapping[str, str]
) -> dict[int, list[Fetch]]:
    """For each slot that gains key groups, all segments that it will read, each with all key groups
    of the slot: a lookup wants them in one piece, and key groups that it owned before and never
    fetched are as far away as the new ones. ``segments`` are (name, bytes, key groups it is alive
    for), newest first is best."""
    gaining = sorted({b for a, b in zip(before, after, strict=True) if a != b})
    found: dict[int, list[Fetch]] = {}
    owned = {slot: groups_of(after, slot) for slot in gaining}
    for name, size, alive in segments:
        for slot, groups in owned.items():
            if groups & alive:
                found.setdefault(slot, []).append(Fetch(name, size, groups & alive, holders.get(name)))
    return found

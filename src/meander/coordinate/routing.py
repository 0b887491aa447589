"""Routing tables: which slot owns which key group, and which executor has which slot. Pure.

A table is a list with one slot number per key group. Key groups move, keys never do: a key's group follows from
its hash for ever, so a routing table is all there is to say about who works on what. Where a slot runs is a second
list, one executor per slot; it is a hint to the scheduler, and nothing but speed depends on it.

Everything here is a function of its arguments alone: the same facts give the same table on every driver.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

from meander.errors import ConfigError
from meander.plan.schemas import did_you_mean

KEY_GROUPS = 128

SLACK = 1.1
"""A slot may have a tenth more than the average load before a key group moves: below that, moving
costs more than it saves."""
_QUIET = 0.01
"""A key group that did nothing weighs this share of an average one, so that quiet ones do not all pile up in one slot."""
_TIGHTER = 16
"""Steps in which slots are asked to let more key groups go, until the rest can be placed."""


def spread(key_groups: int, slots: int) -> list[int]:
    """A first table: contiguous ranges, as equal as can be.

    >>> spread(8, 3)
    [0, 0, 0, 1, 1, 1, 2, 2]
    """
    return [group * slots // key_groups for group in range(key_groups)]


def rebalance(table: Sequence[int], slots: int, load: Sequence[float] | None = None) -> list[int]:
    """The table for another number of slots (or the same) that moves the fewest key groups.

    >>> rebalance([0, 0, 0, 0, 1, 1, 1, 1], 4)
    [0, 0, 2, 2, 1, 1, 3, 3]

    Without ``load`` all key groups count the same. With it (each key group's rows or milliseconds, measured), two
    objectives, the first before the second:

    1. The largest slot's load is at most 10% above the average, or what dealing all key groups out afresh, heaviest
       first, would give, whichever is more. The latter is at most 4/3 of the least possible. A key group that is heavier
       than that alone has a slot with at most a tenth of its weight beside it; for the other slots among themselves the
       same holds again. So no such hot key group stands beside another.
    2. Of the ways to get there, one that moves few: a slot within the bound keeps all it has, one above it gives away the
       fewest that bring it below. Only where these cannot be placed within the bound are slots asked for more.

    Every slot has a key group where there are enough of them. A table that is within the bound comes back as it was.

    >>> rebalance([0, 0, 0, 0, 1, 1, 1, 1], 2, load=[9, 9, 1, 1, 1, 1, 1, 1])
    [1, 0, 0, 0, 1, 1, 1, 1]
    >>> rebalance([0, 0, 0, 0, 1, 1, 1, 1], 3, load=[20, 1, 1, 1, 1, 1, 1, 1])
    [0, 2, 0, 0, 1, 1, 1, 1]
    """
    if load is not None and any(map(_sound, load)):
        return _by_load(table, slots, _weights(table, load))
    return _by_number(table, slots)


def check_slots(routing: Mapping[str, Sequence[int]], operator: str, slots: int) -> None:
    """ConfigError where an operator cannot have so many slots."""
    if operator not in routing:
        there = f"there are: {', '.join(sorted(routing)) or 'none'}{did_you_mean(operator, routing)}"
        raise ConfigError(f"there is no stateful operator '{operator}' to rescale; {there}")
    most = len(routing[operator])
    if isinstance(slots, bool) or not 1 <= slots <= most:
        raise ConfigError(f"rescale '{operator}' to {slots!r}: it must be a number from 1 to {most}, the number of key groups")


def assign(slots: int, executors: Iterable[str], before: Sequence[str] = (), load: Sequence[float] | None = None) -> list[str]:
    """The executor of every slot: a slot stays where it is, unless that executor is not among the given ones.

    New slots and those of vanished executors go to the executors with the least load, heaviest
    first; others stay, so no slot moves to make room for another. To evacuate an executor, leave it
    out. ``load`` is each slot's (see ``slot_loads``); without it slots count the same.

    >>> assign(4, ["1", "2"])
    ['1', '2', '1', '2']
    >>> assign(4, ["1", "3"], before=["1", "2", "1", "2"])
    ['1', '3', '1', '3']
    >>> assign(3, ["1", "2"], before=["1", "2"], load=[50, 10, 20])
    ['1', '2', '2']
    """
    alive = sorted(set(executors))  # in whatever order the cluster names them
    if not alive:
        raise ConfigError("no executor is left to run slots on; keep at least one, or add one first")
    weight = [load[slot] if load is not None and slot < len(load) and _sound(load[slot]) else 0.0 for slot in range(slots)]
    places: list[str | None] = [before[slot] if slot < len(before) and before[slot] in alive else None for slot in range(slots)]
    # By load, then by number: slots that nothing is known about are dealt out evenly.
    lightest = [
        (sum(weight[slot] for slot in range(slots) if places[slot] == executor), places.count(executor), executor) for executor in alive
    ]
    heapq.heapify(lightest)
    for slot in sorted((s for s in range(slots) if places[s] is None), key=lambda s: (-weight[s], s)):
        loaded, number, executor = lightest[0]
        places[slot] = executor
        heapq.heapreplace(lightest, (loaded + weight[slot], number + 1, executor))
    return [place for place in places if place is not None]


def slot_loads(table: Sequence[int], load: Sequence[float], slots: int | None = None) -> list[float]:
    """The load of each slot: the sum over its key groups.

    >>> slot_loads([0, 0, 1], [5.0, 1.0, 2.0])
    [6.0, 2.0]
    """
    sums = [0.0] * (slots if slots is not None else slots_of(table))
    for group, slot in enumerate(table):
        if slot < len(sums):
            sums[slot] += load[group]
    return sums


# -- every key group counts the same ----------------------------------------------------------------------------------


def _by_number(table: Sequence[int], slots: int) -> list[int]:
    fair, larger = divmod(len(table), slots)
    owned = [[g for g, slot in enumerate(table) if slot == s] for s in range(slots)]
    # The slots that own most may keep one more where the groups do not divide evenly.
    by_size = sorted(range(slots), key=lambda s: (-len(owned[s]), s))
    quota = {s: fair + (rank < larger) for rank, s in enumerate(by_size)}
    result = list(table)
    homeless = [g for g, slot in enumerate(table) if slot >= slots]
    for s in range(slots):
        homeless.extend(owned[s][quota[s] :])
        owned[s] = owned[s][: quota[s]]
    homeless.sort()
    for s in range(slots):
        while len(owned[s]) < quota[s]:
            group = homeless.pop(0)
            owned[s].append(group)
            result[group] = s
    return result


def slots_of(table: Sequence[int]) -> int:
    """How many slots a table has."""
    return max(table) + 1


def groups_of(table: Sequence[int], slot: int) -> int:
    """The key groups of one slot, as a bit set."""
    return sum(1 << group for group, owner in enumerate(table) if owner == slot)


# -- key groups weigh what they cost ----------------------------------------------------------------------------------


def _sound(value: float) -> bool:
    """Whether a measurement says anything: a clock that went back or a division by zero does not."""
    return 0 < value < float("inf")


def _weights(table: Sequence[int], load: Sequence[float]) -> list[float]:
    measured = [float(value) if _sound(value) else 0.0 for _, value in zip(table, load, strict=True)]
    least = _QUIET * sum(measured) / len(measured)
    return [max(value, least) for value in measured]


def _by_load(table: Sequence[int], slots: int, weight: Sequence[float]) -> list[int]:
    heaviest = sorted(range(len(table)), key=lambda g: (-weight[g], g))
    hot = _hot(heaviest, slots, weight)
    rest = heaviest[len(hot) :]
    home = _place_hot(table, slots, hot)
    taken = set(home.values())
    others = [slot for slot in range(slots) if slot not in taken]
    # The bound follows from weights and number of slots alone: so a table that was within it still is when asked again.
    average = sum(weight[g] for g in rest) / len(others)
    afresh = _deal(rest, table, weight, dict.fromkeys(others, 0.0))
    bound = max(SLACK * average, max(_loads(afresh, weight).values(), default=0.0))
    spare = {slot: (SLACK - 1) * weight[group] for group, slot in home.items()}
    placed = afresh
    for keep in sorted({average, *(bound * step / _TIGHTER for step in range(1, _TIGHTER + 1))}, reverse=True):
        tried = _keep_and_deal(table, rest, dict.fromkeys(others, keep) | spare, others, weight)
        if all(load <= bound for slot, load in _loads(tried, weight).items() if slot not in taken):
            placed = tried
            break
    result = [home[group] if group in home else placed[group] for group in range(len(table))]
    _fill_empty(result, slots, weight)
    return result


def _hot(heaviest: Sequence[int], slots: int, weight: Sequence[float]) -> list[int]:
    """Key groups whose load is more than a slot's share of the load that remains beside the heavier
    ones."""
    remaining, free = sum(weight), slots
    hot: list[int] = []
    for group in heaviest:
        if free <= 1 or weight[group] <= SLACK * remaining / free:
            break
        hot.append(group)
        remaining -= weight[group]
        free -= 1
    return hot


def _place_hot(table: Sequence[int], slots: int, hot: Sequence[int]) -> dict[int, int]:
    """A slot for each hot key group: its own slot, or the one from which the fewest other key
    groups must move away."""
    home: dict[int, int] = {}
    owned = [sum(1 for owner in table if owner == slot) for slot in range(slots)]
    for group in hot:
        if table[group] < slots and table[group] not in home.values():
            home[group] = table[group]
    free = sorted(set(range(slots)) - set(home.values()), key=lambda s: (owned[s], s))
    home.update(zip((g for g in hot if g not in home), free, strict=False))
    return home


def _keep_and_deal(
    table: Sequence[int], rest: Sequence[int], keep: Mapping[int, float], others: Sequence[int], weight: Sequence[float]
) -> dict[int, int]:
    """Every slot keeps key groups up to a load; the others go to the slots with the least load."""
    owned: dict[int, list[int]] = {slot: [] for slot in keep}
    homeless: list[int] = []
    for group in rest:  # heaviest first, and so they stay
        owned.get(table[group], homeless).append(group)
    placed: dict[int, int] = {}
    for slot, groups in owned.items():
        leaving = _fewest_above(groups, weight, keep[slot])
        homeless.extend(leaving)
        placed.update((group, slot) for group in groups if group not in leaving)
    loads = _loads(placed, weight)
    homeless.sort(key=lambda g: (-weight[g], g))
    return placed | _deal(homeless, table, weight, {slot: loads.get(slot, 0.0) for slot in others})


def _fewest_above(groups: Sequence[int], weight: Sequence[float], keep: float) -> set[int]:
    """The fewest of a slot's key groups (heaviest first) without which it is within a load; the last to go is the lightest that will do."""
    above = sum(weight[g] for g in groups) - keep
    leaving: set[int] = set()
    for place, group in enumerate(groups):
        if above <= 0:
            break
        if weight[group] >= above:
            leaving.add(min((g for g in groups[place:] if weight[g] >= above), key=lambda g: (weight[g], g)))
            break
        leaving.add(group)
        above -= weight[group]
    return leaving


def _deal(groups: Iterable[int], table: Sequence[int], weight: Sequence[float], loads: Mapping[int, float]) -> dict[int, int]:
    """Each key group, heaviest first, to the slot with the least load; among equals to its own."""
    now = dict(loads)
    lightest = [(load, slot) for slot, load in now.items()]
    heapq.heapify(lightest)
    dealt: dict[int, int] = {}
    for group in groups:
        while lightest[0][0] != now[lightest[0][1]]:
            heapq.heappop(lightest)  # that slot has been given more since
        least, slot = lightest[0]
        if now.get(table[group]) == least:
            slot = table[group]
        dealt[group] = slot
        now[slot] += weight[group]
        heapq.heappush(lightest, (now[slot], slot))
    return dealt


def _loads(placed: Mapping[int, int], weight: Sequence[float]) -> dict[int, float]:
    loads: dict[int, float] = {}
    for group, slot in placed.items():
        loads[slot] = loads.get(slot, 0.0) + weight[group]
    return loads


def _fill_empty(result: list[int], slots: int, weight: Sequence[float]) -> None:
    """One key group for a slot without any, from the slot with most to do: the one that halves it best."""
    owned: list[list[int]] = [[] for _ in range(slots)]
    for group, slot in enumerate(result):
        owned[slot].append(group)
    for empty in range(slots):
        givers = {slot: sum(weight[g] for g in groups) for slot, groups in enumerate(owned) if len(groups) > 1}
        if owned[empty] or not givers:
            continue
        giver = max(givers, key=lambda slot: (givers[slot], -slot))
        group = min(owned[giver], key=lambda g: (max(weight[g], givers[giver] - weight[g]), weight[g], g))
        owned[giver].remove(group)
        owned[empty].append(group)
        result[group] = empty

"""Routing tables: which slot owns which key group. Pure.

A table is a list with one slot number per key group. Key groups move, keys never do: a key's group follows from
its hash for ever, so a routing table is all there is to say about who works on what.
"""

from __future__ import annotations

from collections.abc import Sequence

KEY_GROUPS = 128


def spread(key_groups: int, slots: int) -> list[int]:
    """A first table: contiguous ranges, as equal as can be.

    >>> spread(8, 3)
    [0, 0, 0, 1, 1, 1, 2, 2]
    """
    return [group * slots // key_groups for group in range(key_groups)]


def rebalance(table: Sequence[int], slots: int) -> list[int]:
    """The table for another number of slots that moves the fewest key groups.

    >>> rebalance([0, 0, 0, 0, 1, 1, 1, 1], 4)
    [0, 0, 2, 2, 1, 1, 3, 3]
    """
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

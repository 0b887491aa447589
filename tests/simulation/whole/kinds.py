"""Kinds of schedules. Most are about anything; some are about one thing that needs many ingredients to meet, which chance alone would bring
together too seldom.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

COMMANDS = ("step", "flush", "change", "rescale", "arrive", "read", "kill")


@dataclass(frozen=True)
class Kind:
    """What is drawn more often than otherwise, and what is left out."""

    name: str
    share: int
    """How many of a hundred schedules."""
    commands: tuple[int, ...] = (50, 7, 20, 8, 15, 6, 4)
    """How often each of COMMANDS is given."""
    pool: tuple[str, ...] = ()
    """Kinds of branches; none: all of them."""
    files: tuple[int, int] = (3, 8)
    """How many rounds of input there are, at least and at most."""
    length: tuple[int, int] = (4, 12)
    """How many commands."""
    arrives: int = 3
    """How many files come at once, at most."""
    processes: tuple[int, ...] = (1, 1, 2, 2, 3)
    ahead: float = 0.6
    """The chance that a process decides ahead."""
    steps: tuple[int, ...] = (0, 1, 3, 8)
    """Seconds of event time between rounds of input."""
    late: int = 6
    """By how many seconds a row may come late."""
    values: tuple[int, ...] = (0, 1, 2, 3, 9)


ANY = Kind("any", 53)
CHANGING = Kind("changing", 4, (50, 1, 15, 12, 40, 1, 6), ("brackets", "ladder", "matched"), (5, 10), (8, 16), 2)
"""Operators that are told which rows are gone, behind others that say it."""
RETOLD = Kind("retold", 4, (45, 5, 12, 12, 40, 1, 8), ("retold",), (5, 10), (8, 16), 2, late=8)
"""The same behind windows and sessions that come again."""
MEETING = Kind("meeting", 5, (50, 8, 12, 10, 30, 3, 8), ("overlapping", "cumulated", "visiting", "windowjoin"), (5, 10), (8, 16), 2, late=8)
"""Joins in windows of every kind, those of two streams: what comes out alone when windows close."""
CUT = Kind("cut", 5, (45, 5, 15, 12, 35, 1, 8), ("counted", "cumulating", "stretches"), (5, 10), (8, 16), 2)
"""Windows of a number of rows, windows that cumulate, and sessions whose rows have a gap of their own."""
MERGING = Kind("merging", 10, (40, 0, 0, 15, 30, 1, 1), files=(18, 26), length=(10, 16), arrives=1, processes=(1,))
"""Many epochs, rescales and merges: keys of one key group, and one of another, so that slots have much to store and little."""
FLUSHING = Kind("flushing", 6, (25, 40, 3, 3, 25, 4, 3), ("window", "session", "chain"), (5, 10), (8, 16), arrives=1, ahead=0.9)
"""Flushes beside input: what is closed by one gets rows that arrive while it runs, or after it."""
EMPTYING = Kind(
    "emptying",
    6,
    (50, 1, 10, 3, 40, 0, 1),
    ("session", "session", "process", "sided", "connected"),
    (10, 14),
    (14, 22),
    1,
    steps=(1, 2),
    values=(0, 0, 1),
)
"""State that moves on or goes back to its default, is merged to nothing, and is read after every command."""
SHRINKING = Kind(
    "shrinking", 6, (40, 3, 6, 3, 35, 2, 15), ("window", "process", "sided", "connected", "session"), (6, 10), (8, 16), 2, (1,), late=15
)
"""A source with fewer partitions after a start. One that is gone has said little, and long ago."""
PROBATION = Kind("probation", 6, (50, 1, 25, 1, 35, 1, 2), ("window",), (8, 12), (10, 18), 2, (1,), steps=(1, 1, 2), late=2)
"""A change on one stream together with code that fails on another one, on which rows are rare."""
KINDS = (ANY, MEETING, CUT, RETOLD, CHANGING, MERGING, FLUSHING, EMPTYING, SHRINKING, PROBATION)


def draw_kind(rng: random.Random) -> Kind:
    return rng.choices(KINDS, [kind.share for kind in KINDS])[0]

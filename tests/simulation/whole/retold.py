"""Windows that come again, and an aggregate that is told which of them are gone: the flow, and what it computes."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.whole.flows import Branch
from tests.simulation.whole.models import Model, Out, Sessions, Turn, Windows
from tests.simulation.whole.world import Row


@dataclass
class Retold(Model):
    """How many windows have so many rows, and what their values come to."""

    first: Any = None
    table: dict[Row, Row] = field(default_factory=dict)
    """By key and beginning, the windows that have been given out."""

    def turn(self, turn: Turn, branch: Branch) -> Out:
        if self.first is None:
            self.first = Sessions() if branch.inner == "session" else Windows()
        before = Counter(self.table.values())
        for row in self.first.turn(turn, branch):
            if branch.inner == "session":  # it has taken in what begins within it
                gone = [place for place, old in self.table.items() if old[0] == row[0] and row[1] <= old[1] <= row[2]]
                for place in gone:
                    del self.table[place]
            self.table[row[:2]] = row[:5]
        after = Counter(self.table.values())
        touched = {row[3] for row in (*(after - before), *(before - after))}
        groups: dict[int, Out] = defaultdict(list)
        for row in self.table.values():
            groups[row[3]].append(row)
        return [(n, len(groups[n]), sum(row[4] for row in groups[n])) for n in sorted(touched) if n in groups]

    def late_rows(self) -> int:
        return 0 if self.first is None else int(self.first.refused)

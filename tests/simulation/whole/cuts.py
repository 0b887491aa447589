"""Windows of a number of rows, windows that cumulate, and sessions whose rows have a gap of their own: what they compute."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.whole.flows import Branch
from tests.simulation.whole.models import FOREVER, NEVER, Model, Out, Turn, behind
from tests.simulation.whole.world import SECOND, Row


@dataclass
class Counted(Model):
    """Windows of so many rows of a key, in the order of arrival."""

    rows: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def turn(self, turn: Turn, branch: Branch) -> Out:
        out: Out = []
        for _, k, _, v, *_ in turn.rows:
            mine = self.rows[k]
            mine.append(v)
            full = len(mine) - branch.size
            if full >= 0 and full % branch.step == 0:
                out.append((k, full // branch.step + 1, branch.size, sum(mine[full:])))
        return out

    def forget(self, inner: bool = False) -> None:
        self.rows.clear()


@dataclass
class Cumulating(Model):
    exact = False
    rows: list[tuple[Row, int]] = field(default_factory=list)
    """Rows with the mark behind which their windows had closed when they came."""
    refused: int = 0
    floor: int = NEVER

    def turn(self, turn: Turn, branch: Branch) -> Out:
        turn = behind(turn, self.floor, branch)
        size, step, slack = branch.size * SECOND, branch.step * SECOND, branch.lateness * SECOND
        touched = set()
        for row in turn.rows:
            begin = row[4] // size * size
            if begin + size + slack <= turn.late:
                self.refused += 1
                continue
            self.rows.append((row, turn.late - slack))
            ends = range(begin + step, begin + size + 1, step)
            touched |= {(self._key(row, branch), begin, end) for end in ends if row[4] < end and end > turn.late - slack}
        evict = FOREVER if turn.flush else turn.evict
        out = []
        known = {(self._key(row, branch), row[4] // size * size) for row, _ in self.rows}
        windows = {(key, begin, end) for key, begin in known for end in range(begin + step, begin + size + 1, step)}
        for key, begin, end in sorted(windows, key=repr):
            if not (turn.late < end <= evict or ((key, begin, end) in touched and (branch.emit == "update" or end <= evict))):
                continue
            mine = [row for row, mark in self.rows if self._key(row, branch) == key and begin <= row[4] < end and end > mark]
            if mine:
                out.append((key, begin, end, len(mine), sum(row[3] for row in mine)))
        if turn.flush:
            self.floor = max(self.floor, *(row[4] // size * size + size + slack for row, _ in self.rows), NEVER)
        return out

    def _key(self, row: Row, branch: Branch) -> Any:
        return row[1] if branch.keyed else None

    def forget(self, inner: bool = False) -> None:
        self.rows.clear()
        self.floor = NEVER

    def late_rows(self) -> int:
        return self.refused


def gap_of(v: int) -> int:
    return (v % 3 + 2) * SECOND


@dataclass
class Stretches(Model):
    """Sessions of rows that each have a gap of their own."""

    exact = False
    open: list[list[Any]] = field(default_factory=list)
    """[key, first, end, n, s]"""
    refused: int = 0
    floor: int = NEVER

    def turn(self, turn: Turn, branch: Branch) -> Out:
        turn = behind(turn, self.floor, branch)
        changed: list[list[Any]] = []
        for row in turn.rows:
            one = [row[1], row[4], row[4] + gap_of(row[3]), 1, row[3]]
            if one[2] < turn.late:
                self.refused += 1
                continue
            for other in [o for o in self.open if o[0] == one[0] and o[1] <= one[2] and one[1] <= o[2]]:
                self.open.remove(other)
                changed = [old for old in changed if old is not other]
                one = [one[0], min(one[1], other[1]), max(one[2], other[2]), one[3] + other[3], one[4] + other[4]]
            self.open.append(one)
            changed.append(one)
        closing = [one for one in self.open if turn.flush or one[2] < turn.evict]
        self.open = [one for one in self.open if one not in closing]
        if turn.flush:
            self.floor = max(self.floor, *(one[2] + 1 for one in closing), NEVER)
        return [tuple(one) for one in (changed if branch.emit == "update" else closing)]

    def forget(self, inner: bool = False) -> None:
        self.open.clear()
        self.floor = NEVER

    def late_rows(self) -> int:
        return self.refused


CUTS: dict[str, Any] = {"counted": Counted, "cumulating": Cumulating, "stretches": Stretches}

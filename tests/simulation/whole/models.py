"""What branches compute, in plain Python: a fold over the decisions, one epoch after the other, row by row.

A model knows nothing of segments, slots, splits or restarts. It is told the rows of an epoch, the two marks of event time that the
epoch goes by (what is behind ``late`` has closed before; what ends by ``evict`` closes now), and what the branch is like in that epoch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.whole.flows import Branch
from tests.simulation.whole.world import SECOND, Row

NEVER, FOREVER = -(1 << 62), 1 << 62
Out = list[Row]


@dataclass
class Turn:
    """One epoch, as a model sees it."""

    epoch: int
    rows: Out
    """(id, k, g, v, ts)"""
    late: int
    evict: int
    flush: bool


class Model:
    """Of one branch."""

    exact = True
    """Whether what comes out is known epoch by epoch; else only what it comes to in the end."""

    def turn(self, turn: Turn, branch: Branch) -> Out:
        """What comes out of an epoch."""
        raise NotImplementedError

    def forget(self, inner: bool = False) -> None:
        """State was dropped; ``inner``: of the first of two operators."""

    def backfill(self, values: dict[str, int]) -> None:
        """Keys from before have a value for what is new."""

    def late_rows(self) -> int:
        return 0


class TwoSided(Model):
    """Of a branch with two sources."""

    def both(self, turn: Turn, others: Out, branch: Branch) -> Out:
        """What comes out of an epoch, given the rows of the second source, too. The marks are the smaller ones of both."""
        raise NotImplementedError


def behind(turn: Turn, floor: int, branch: Branch) -> Turn:
    """The epoch as it is to an operator that a flush has closed up to there. What gives updates has nothing to close."""
    flush = turn.flush and branch.emit == "closed"
    return Turn(turn.epoch, turn.rows, max(turn.late, floor), max(turn.evict, floor), flush)


class Plain(Model):
    def turn(self, turn: Turn, branch: Branch) -> Out:
        return [row for row in turn.rows if row[3] >= 0]


class Tap(Model):
    def turn(self, turn: Turn, branch: Branch) -> Out:
        return turn.rows


def fold(kind: str, old: int | None, value: int) -> int:
    if kind == "n":
        return (old or 0) + 1
    if kind == "s":
        return (old or 0) + value
    return value if old is None else max(old, value)


@dataclass
class Totals(Model):
    values: dict[Row, dict[str, int]] = field(default_factory=dict)

    def turn(self, turn: Turn, branch: Branch) -> Out:
        if turn.rows:
            for known in self.values.values():
                for alias in known.keys() - set(branch.aggs):
                    del known[alias]
        for _, k, _, v, *_ in turn.rows:
            known = self.values.setdefault(self._key(k, branch), {})
            for alias in branch.aggs:
                known[alias] = fold(alias[0], known.get(alias), v)
        touched = sorted({self._key(row[1], branch) for row in turn.rows})
        return [(*key, *(self.values[key][alias] for alias in branch.aggs)) for key in touched]

    def _key(self, k: int, branch: Branch) -> Row:
        return (k,) if branch.keyed else ()

    def state(self, branch: Branch) -> dict[Row, Row]:
        """By key, which is empty where there is none."""
        return {key: (*key, *(known.get(alias) for alias in branch.aggs)) for key, known in self.values.items()}

    def forget(self, inner: bool = False) -> None:
        self.values.clear()

    def backfill(self, values: dict[str, int]) -> None:
        for known in self.values.values():
            known.update(values)


@dataclass
class Brackets(Model):
    """What counts come to per bracket of a sum, or the best of them: rows go from one bracket to another."""

    first: dict[int, tuple[int, int]] = field(default_factory=dict)

    def turn(self, turn: Turn, branch: Branch) -> Out:
        before = dict(self.first)
        for _, k, _, v, *_ in turn.rows:
            n, s = self.first.get(k, (0, 0))
            self.first[k] = (n + 1, s + v)
        if branch.kind == "ladder":
            was, now = Counter(self.ladder(before)), Counter(self.ladder(self.first))
            return [(*row, 1) for row in (now - was).elements()] + [(*row, -1) for row in (was - now).elements()]
        keys = {row[1] for row in turn.rows}
        touched = {some[k][1] // 4 for some in (before, self.first) for k in keys if k in some and some[k][1] % 3 != 1}
        return [row for row in self.counted() if row[0] in touched]

    def counted(self) -> Out:
        inside: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for n, s in self.first.values():
            if s % 3 != 1:
                inside[s // 4].append((n, s))
        return [(b, len(rows), sum(n for n, _ in rows), max(s for _, s in rows), len({n for n, _ in rows})) for b, rows in inside.items()]

    def ladder(self, known: dict[int, tuple[int, int]]) -> Out:
        inside: dict[int, Out] = defaultdict(list)
        for k, (n, s) in known.items():
            if s % 3 != 1:
                inside[s // 4].append((-s, -n, k))
        return [(b, k, -n, -s, rank) for b, rows in inside.items() for rank, (s, n, k) in enumerate(sorted(rows)[:2], 1)]


@dataclass
class Matched(Model):
    """Sums by their bracket beside the counts of the values of that number: a full join of two aggregates, and what changes in it."""

    first: Brackets = field(default_factory=Brackets)
    counts: Counter[int] = field(default_factory=Counter)

    def turn(self, turn: Turn, branch: Branch) -> Out:
        before = Counter(self.joined())
        self.first.turn(turn, branch)
        self.counts.update(row[3] for row in turn.rows)
        after = Counter(self.joined())
        return [(*row, 1) for row in (after - before).elements()] + [(*row, -1) for row in (before - after).elements()]

    def joined(self) -> Out:
        sums = [(s // 4, k, n, s) for k, (n, s) in self.first.first.items() if s % 3 != 1]
        alone = [(v, None, None, None, c) for v, c in self.counts.items() if v not in {row[0] for row in sums}]
        return [(*row, self.counts.get(row[0])) for row in sums] + alone


@dataclass
class Dedup(Model):
    seen: set[Any] = field(default_factory=set)

    def turn(self, turn: Turn, branch: Branch) -> Out:
        out = []
        for row in turn.rows:
            if (row[1], row[2]) not in self.seen:
                self.seen.add((row[1], row[2]))
                out.append(row)
        return out


@dataclass
class Process(Model):
    n: dict[int, int] = field(default_factory=dict)
    timers: set[tuple[int, int]] = field(default_factory=set)

    def turn(self, turn: Turn, branch: Branch) -> Out:
        out: Out = []
        due = sorted((at, k) for k, at in self.timers if turn.flush or at <= turn.evict)
        for at, k in due:
            self.timers.discard((k, at))
            out.append((k, -1 - self.n.get(k, 0)))
        for k in sorted({row[1] for row in turn.rows}):
            mine = [row for row in turn.rows if row[1] == k]
            for row in mine:
                self.n[k] = 0 if row[3] == 0 else self.n.get(k, 0) + 1
                if row[3] == 9:
                    self.timers.add((k, max(turn.evict, *(r[4] for r in mine)) + 8 * SECOND))
            out.append((k, self.n[k]))
        return out


@dataclass
class Connected(Process, TwoSided):
    """The same with rows of a second source, after those of the first."""

    def both(self, turn: Turn, others: Out, branch: Branch) -> Out:
        out = self.turn(turn, branch)
        for k in sorted({row[1] for row in others}):
            mine = [row for row in others if row[1] == k]
            for row in mine:
                self.n[k] = 0 if row[3] == 0 else 2 * self.n.get(k, 0) % 97
                if row[3] == 9:
                    self.timers.add((k, max(turn.evict, *(r[4] for r in mine)) + 8 * SECOND))
            out.append((k, 100 + self.n[k]))
        return out


@dataclass
class Windows(Model):
    """Rows that were taken, and which windows have closed. What windows there are is a question of the branch as it is now."""

    exact = False
    rows: list[tuple[Row, int]] = field(default_factory=list)
    """Rows with the mark behind which their windows had closed when they came."""
    weighed: bool = False
    """Whether rows count for as many as their first column says."""
    refused: int = 0
    floor: int = NEVER
    """Up to where a flush has closed everything, for good."""

    def turn(self, turn: Turn, branch: Branch) -> Out:
        turn = behind(turn, self.floor, branch)
        size, step, slack = branch.size * SECOND, branch.step * SECOND, branch.lateness * SECOND
        touched = set()
        for row in turn.rows:
            last = row[4] // step * step
            if last + size + slack <= turn.late:
                self.refused += 1
                continue
            self.rows.append((row, turn.late - slack))
            key = row[1] if branch.keyed else None
            for start in range(last, last - size, -step):
                if start <= row[4] < start + size and start + size > turn.late - slack:
                    touched.add((key, start))
        evict = FOREVER if turn.flush else turn.evict
        closing = {
            (row[1] if branch.keyed else None, start)
            for row, _ in self.rows
            for start in range(row[4] // step * step, row[4] // step * step - size, -step)
            if turn.late < start + size <= evict and start <= row[4] < start + size
        }
        # What is open and was not given out yet comes out when it closes, whatever ``emit`` was before.
        out = []
        for key, start in sorted(closing | touched, key=repr):
            if branch.emit == "closed" and start + size > evict:
                continue
            mine = [
                row
                for row, behind in self.rows
                if (row[1] if branch.keyed else None) == key and start <= row[4] < start + size and start + size > behind
            ]
            count = sum(row[0] for row in mine) if self.weighed else len(mine)
            out.append((key, start, start + size, count, sum(row[3] for row in mine)))
        if turn.flush:
            self.floor = max(self.floor, *(row[4] // step * step + size + slack for row, _ in self.rows), NEVER)
        return out

    def forget(self, inner: bool = False) -> None:
        self.rows.clear()
        self.floor = NEVER

    def late_rows(self) -> int:
        return self.refused


@dataclass
class Sessions(Model):
    exact = False
    open: list[list[Any]] = field(default_factory=list)
    """[key, first, last, n, s, the first row's (time, when it arrived, value), that of the last]"""
    arrived: int = 0
    refused: int = 0
    floor: int = NEVER

    def turn(self, turn: Turn, branch: Branch) -> Out:
        turn = behind(turn, self.floor, branch)
        gap = branch.size * SECOND
        changed = []
        for row in turn.rows:
            if row[4] + gap < turn.late:
                self.refused += 1
                continue
            self.arrived += 1
            end = (row[4], self.arrived, row[3])
            one = [row[1], row[4], row[4], 1, row[3], end, end]
            for other in [o for o in self.open if o[0] == one[0] and o[1] - gap <= one[2] and one[1] <= o[2] + gap]:
                self.open.remove(other)
                if other in changed:
                    changed.remove(other)
                ends = min(one[5], other[5]), max(one[6], other[6])
                one = [one[0], min(one[1], other[1]), max(one[2], other[2]), one[3] + other[3], one[4] + other[4], *ends]
            self.open.append(one)
            changed.append(one)
        closing = [one for one in self.open if turn.flush or one[2] + gap < turn.evict]
        self.open = [one for one in self.open if one not in closing]
        if turn.flush:  # a row up to a session's end would have been part of it
            self.floor = max(self.floor, *(one[2] + 2 * gap + 1 for one in closing), NEVER)
        given = changed if branch.emit == "update" else closing
        return [(one[0], one[1], one[2] + gap, one[3], one[4], one[5][2], one[6][2]) for one in given]

    def forget(self, inner: bool = False) -> None:
        self.open.clear()
        self.floor = NEVER

    def late_rows(self) -> int:
        return self.refused


@dataclass
class Chain(Model):
    """A window behind a window: what the first gives out is the second's input."""

    exact = False
    first: Any = None
    second: Windows = field(default_factory=lambda: Windows(weighed=True))
    inner: str = ""

    def turn(self, turn: Turn, branch: Branch) -> Out:
        if self.first is None or self.inner != branch.inner:
            refused = 0 if self.first is None else self.first.refused
            self.first, self.inner = (Windows() if branch.inner == "tumbling" else Sessions()), branch.inner
            self.first.refused = refused
        inner = Branch("", "window" if branch.inner == "tumbling" else "session", size=5, step=5)
        back = 1 if branch.inner == "tumbling" else 0
        given = self.first.turn(turn, inner)
        rows = [(n, k, "", s, end - back) for k, _, end, n, s, *_ in given]
        return self.second.turn(Turn(turn.epoch, rows, turn.late, turn.evict, turn.flush), branch)

    def forget(self, inner: bool = False) -> None:
        if inner:
            self.first = None
        else:
            self.second.forget()

    def late_rows(self) -> int:
        return (self.first.refused if self.first else 0) + self.second.refused


@dataclass
class Join(TwoSided):
    """Pairs of (left id, right id), with their window if they have one, each in the epoch in which its second row arrives."""

    sides: tuple[Out, Out] = field(default_factory=lambda: ([], []))
    refused: int = 0

    def pair(self, left: Row, right: Row, kind: str) -> bool:
        if kind == "windowjoin":
            return bool(left[4] // (10 * SECOND) == right[4] // (10 * SECOND))
        return bool(abs(left[4] - right[4]) <= 4 * SECOND)

    def both(self, turn: Turn, others: Out, branch: Branch) -> Out:
        if branch.kind == "latest":
            self.sides[1].extend(others)
            latest = {row[1]: row[0] for row in self.sides[1]}
            return [(row[0], latest.get(row[1])) for row in turn.rows]
        new: list[Out] = []
        for rows in (turn.rows, others):
            kept = []
            for row in rows:
                end = row[4] // (10 * SECOND) * 10 * SECOND + 10 * SECOND - 1 if branch.kind == "windowjoin" else row[4]
                if end < turn.late:
                    self.refused += 1
                else:
                    kept.append(row)
            new.append(kept)
        left, right = self.sides
        pairs = [(x, y) for x in new[0] for y in (*right, *new[1])] + [(x, y) for x in left for y in new[1]]
        left.extend(new[0])
        right.extend(new[1])
        return [(x[0], y[0], *self.span(x, branch)) for x, y in pairs if x[1] == y[1] and self.pair(x, y, branch.kind)]

    def span(self, row: Row, branch: Branch) -> Row:
        start = row[4] // (10 * SECOND) * 10 * SECOND
        return (start, start + 10 * SECOND) if branch.kind == "windowjoin" else ()

    def late_rows(self) -> int:
        return self.refused


@dataclass
class SemiJoin(Join):
    """Rows of the left with a partner from 4 s before them to 2 s after, or without one, each once."""

    floor: int = NEVER

    def both(self, turn: Turn, others: Out, branch: Branch) -> Out:
        anti = branch.kind == "anti"
        late, evict = max(turn.late, self.floor), max(turn.evict, self.floor)
        evict = FOREVER if anti and turn.flush else evict
        left, right = self.sides
        kept = [[row for row in rows if row[4] >= late] for rows in (turn.rows, others)]
        self.refused += len(turn.rows) + len(others) - len(kept[0]) - len(kept[1])
        left += kept[0]
        right += kept[1]
        met = [x for x in left if any(x[1] == y[1] and -4 * SECOND <= y[4] - x[4] <= 2 * SECOND for y in right)]
        left[:] = [x for x in left if x not in met]
        if anti and turn.flush:
            closed = [row[4] + high * SECOND + 1 for rows, high in ((left, 2), (right, 4)) for row in rows]
            self.floor = max(self.floor, *closed, NEVER)
        over = [x for x in left if x[4] + 2 * SECOND < evict]
        left[:] = [x for x in left if x not in over]
        right[:] = [y for y in right if y[4] + 4 * SECOND >= evict]
        return over if anti else met


def spans_of(ts: int, kind: str) -> list[Row]:
    """The windows that overlap which a time is in."""
    last = ts // (4 * SECOND) * 4 * SECOND
    if kind == "overlapping":
        return [(start, start + 8 * SECOND) for start in (last, last - 4 * SECOND)]
    begin = ts // (12 * SECOND) * 12 * SECOND
    return [(begin, begin + length * SECOND) for length in (4, 8, 12) if begin + length * SECOND > ts]


@dataclass
class OverlappingJoin(Join):
    """Pairs once per window that they share, and rows that are alone in a window when it closes; of an anti join only those of the left."""

    exact = False
    waiting: tuple[list[Any], list[Any]] = field(default_factory=lambda: ([], []))
    """Of each side: the row, its windows that were open when it came, and in which it has met another."""
    floor: int = NEVER

    def both(self, turn: Turn, others: Out, branch: Branch) -> Out:
        late, evict = max(turn.late, self.floor), FOREVER if turn.flush else max(turn.evict, self.floor)
        out: Out = []
        new: tuple[list[Any], list[Any]] = ([], [])
        for side, rows in ((0, turn.rows), (1, others)):
            for row in rows:
                spans = [span for span in spans_of(row[4], branch.kind) if span[1] > late]
                self.refused += not spans
                new[side].extend([[row, spans, set()]] if spans else [])
        left, right = self.waiting
        for a, b in [(a, b) for a in new[0] for b in (*right, *new[1])] + [(a, b) for a in left for b in new[1]]:
            for span in set(a[1]) & set(b[1]) if a[0][1] == b[0][1] else ():
                if span[1] > late:
                    out.append((a[0][0], b[0][0], *span))
                    a[2].add(span)
                    b[2].add(span)
        for side in (0, 1):
            self.waiting[side].extend(new[side])
        anti = branch.kind == "cumulated"
        out = [] if anti else out
        for side in (0,) if anti else (0, 1):
            for row, spans, met in self.waiting[side]:
                alone = row if anti else (row[0], None) if side == 0 else (None, row[0])
                out += [(*alone, *span) for span in spans if late < span[1] <= evict and span not in met]
        if turn.flush:
            self.floor = max([self.floor, *(span[1] for rows in self.waiting for _, spans, _ in rows for span in spans)])
        for rows in self.waiting:
            rows[:] = [one for one in rows if any(span[1] > evict for span in one[1])]
        return out


@dataclass
class SessionJoin(Join):
    """Sessions of both sides: their pairs, and their rows that are alone, when they close."""

    exact = False
    visits: list[Any] = field(default_factory=list)
    """[key, first, last, rows of the left, rows of the right]"""
    floor: int = NEVER

    def both(self, turn: Turn, others: Out, branch: Branch) -> Out:
        gap, late, evict = 3 * SECOND, max(turn.late, self.floor), FOREVER if turn.flush else max(turn.evict, self.floor)
        for side, rows in ((3, turn.rows), (4, others)):
            for row in rows:
                if row[4] + gap < late:
                    self.refused += 1
                    continue
                mine = [v for v in self.visits if v[0] == row[1] and v[1] - gap <= row[4] <= v[2] + gap]
                self.visits = [v for v in self.visits if not any(v is other for other in mine)]
                times = [row[4], *(time for v in mine for time in v[1:3])]
                whole = [row[1], min(times), max(times), *([one for v in mine for one in v[n]] for n in (3, 4))]
                whole[side].append(row[0])
                self.visits.append(whole)
        closing = [v for v in self.visits if v[2] + gap < evict]
        self.visits = [v for v in self.visits if v[2] + gap >= evict]
        if turn.flush:
            self.floor = max([self.floor, *(v[2] + 2 * gap + 1 for v in closing)])
        return [(a, b, v[1], v[2] + gap) for v in closing for a in v[3] or [None] for b in v[4] or [None]]


MODELS: dict[str, Any] = {
    "plain": Plain,
    "totals": Totals,
    "window": Windows,
    "session": Sessions,
    "chain": Chain,
    "brackets": Brackets,
    "ladder": Brackets,
    "matched": Matched,
    "dedup": Dedup,
    "process": Process,
    "sided": Process,
    "connected": Connected,
    "join": Join,
    "windowjoin": Join,
    "overlapping": OverlappingJoin,
    "cumulated": OverlappingJoin,
    "visiting": SessionJoin,
    "semi": SemiJoin,
    "anti": SemiJoin,
    "latest": Join,
}

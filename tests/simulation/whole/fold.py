"""The fold of the decisions: models and marks of event time, one epoch after the other, under the version that each entry names.

A change on probation may be taken back, without a trace: so beside the version in force, those that it can go back to are folded
on as well, as if the change had not been. Only the rows that came meanwhile came through its filters and functions.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.whole.changes import Asked
from tests.simulation.whole.cuts import CUTS
from tests.simulation.whole.flows import Version
from tests.simulation.whole.models import MODELS, NEVER, Model, Out, Turn, TwoSided
from tests.simulation.whole.retold import Retold
from tests.simulation.whole.world import SECOND, extra_of

Entry = dict[str, Any]
Came = tuple[dict[str, Out], dict[str, dict[int, int]]]
"""Rows that come to the branches, and the largest time of each partition of them."""


@dataclass
class Fold:
    """What a version has come to."""

    marks: dict[str, dict[str, Any]] = field(default_factory=dict)
    models: dict[str, Model] = field(default_factory=dict)
    behind: bool = False
    """Whether rows of the last epoch were behind a mark: they can have been parted from what had closed."""

    def change(self, version: Version, asked: Asked) -> None:
        """A change comes into force: what it does to the state."""
        for branch in version.branches:
            model = self._model(branch.name, branch.kind)
            for operator in branch.operators():
                if operator in asked.rules.get("drop", ()):
                    model.forget(inner=operator != branch.name)
            model.backfill(asked.rules.get("backfill", {}).get(branch.name, {}))

    def epoch(
        self,
        entry: Entry,
        version: Version,
        came: Came,
        flushed: set[str],
        counted: dict[str, int],
        started: float,
        real: Fold | None = None,
    ) -> dict[str, Out]:
        """One epoch: what comes out of it, per sink. ``flushed``: the branches that it closes; ``counted``: sources' partitions.

        ``started``: since when it ran. ``real`` is what the epoch went by, where this is a version before it: what that one has not
        closed is open.
        """
        rows, heard = came
        found: dict[str, Out] = {}
        self.behind = False
        for branch in version.branches:
            late, evict = (self._mark(branch.source, which, real) for which in ("late", "mark"))
            turn = Turn(entry["epoch"], rows[branch.source], late, evict, branch.name in flushed)
            model = self._model(branch.name, branch.kind)
            self.behind |= is_behind(turn, turn.rows, model)
            if isinstance(model, TwoSided):
                both = ("a and b",) if "a and b" in self.marks else ("a", "b")
                turn.late, turn.evict = (min(self._mark(name, which, real) for name in both) for which in ("late", "mark"))
                self.behind |= is_behind(turn, rows["b"], model)
                found[f"{branch.name}_out"] = model.both(turn, rows["b"], branch)
            else:
                found[f"{branch.name}_out"] = model.turn(turn, branch)
        for name, _ in version.taps:
            found[name] = rows[name.split("_")[1]]
        for source, _ in version.sources:
            going_on = 0 if source in entry["restarts"] else counted.get(source)
            self._advance(source, heard.get(source, {}), version, going_on, entry["now"], started)
        if any(isinstance(self.models[branch.name], TwoSided) for branch in version.branches):
            self._advance_both(version, entry["now"], started)
        return found

    def back(self, gone: Fold) -> None:
        """A change is taken back: what its marks have not passed is open for one more epoch."""
        for source, mark in self.marks.items():
            mark["late"] = self._mark(source, "late", gone)

    def late(self) -> int:
        return sum(model.late_rows() for model in self.models.values())

    def _mark(self, source: str, which: str, other: Fold | None) -> int:
        return min((fold.marks[source][which] for fold in (self, other) if fold is not None and source in fold.marks), default=NEVER)

    def _model(self, name: str, kind: str) -> Model:
        if name not in self.models:
            self.models[name] = {**MODELS, **CUTS, "retold": Retold}[kind]()
        return self.models[name]

    def _advance(self, source: str, heard: dict[int, int], version: Version, going_on: int | None, now: float, started: float) -> None:
        """``going_on``: how many of the partitions that were heard of go on, where that is known."""
        before = self.marks.get(source, {"heard": {}, "mark": NEVER, "since": now})
        known = {part: value for part, value in before["heard"].items() if going_on is None or part < going_on}
        for part, largest in heard.items():
            known[part] = (max(largest, known.get(part, (NEVER, 0.0))[0]), now)
        mark = slowest([(largest, silent(version, at, now, started)) for largest, at in known.values()])
        mark = before["mark"] if mark is None else max(before["mark"], mark - version.grace * SECOND)
        self.marks[source] = {"heard": known, "late": before["mark"], "mark": mark, "since": now if heard else before["since"]}

    def _advance_both(self, version: Version, now: float, started: float) -> None:
        """The mark of who follows both sources."""
        sides = [self.marks["a"], self.marks["b"]]
        before = self.marks["a and b"]["mark"] if "a and b" in self.marks else min(side["late"] for side in sides)
        mark = slowest([(side["mark"], silent(version, side["since"], now, started)) for side in sides])
        assert mark is not None
        self.marks["a and b"] = {"late": before, "mark": max(before, mark)}


def is_behind(turn: Turn, rows: Out, model: Model) -> bool:
    return any(row[4] < max(turn.late, getattr(model, "floor", NEVER)) for row in rows)


def silent(version: Version, since: float, now: float, started: float) -> bool:
    return version.idle is not None and (now - max(since, started)) * 1e6 >= version.idle * SECOND


def slowest(marks: list[tuple[int, bool]]) -> int | None:
    """Whoever is silent holds nobody back."""
    speaking = [mark for mark, is_silent in marks if not is_silent]
    return min(speaking) if speaking else max((mark for mark, _ in marks), default=None)


class Folds:
    """The version in force, and those before it."""

    def __init__(self, first: Version) -> None:
        self._folds: dict[int, tuple[Version, Fold]] = {1: (first, Fold())}
        self._number = 1
        self._done: set[str | None] = set()
        """Changes that have come into force: going back to one does nothing to the state."""
        self.late = 0
        self.behind: set[int] = set()
        """Epochs with rows that were behind a mark."""

    @property
    def now(self) -> Fold:
        return self._folds[self._number][1]

    def epoch(
        self, entry: Entry, version: Version, asked: Asked | None, flush: bool, counted: dict[str, int], started: float
    ) -> dict[str, Out]:
        number, identity = entry["plan"]["version"], entry["plan"].get("modification")
        if number < self._number:
            gone, self._folds = self.now, {n: fold for n, fold in self._folds.items() if n <= number}
            self._folds[number][1].back(gone)
        elif number > self._number:
            self._folds[number] = (version, copy.deepcopy(self.now))
        self._number = number
        if asked is not None and identity not in self._done and self._folds[number][0] == version:
            self.now.change(version, asked)
        self._done.add(identity)
        came = arriving(entry, version)
        # What gives updates has nothing to close: then its windows stay open for the version before it, too.
        flushed = {branch.name for branch in version.branches if flush and branch.emit == "closed"}
        for n, (former, fold) in self._folds.items():
            if n != number:
                fold.epoch(entry, former, came, flushed, counted, started, self.now)
        before = self.now.late()
        out = self.now.epoch(entry, version, came, flushed, counted, started)
        self.late += self.now.late() - before
        self.behind |= {entry["epoch"]} if self.now.behind else set()
        return out


def arriving(entry: Entry, version: Version) -> Came:
    rows: dict[str, Out] = {source: [] for source, _ in version.sources}
    heard: dict[str, dict[int, int]] = defaultdict(dict)
    for source, payload in entry["splits"]:
        for i, k, g, v, ts in payload["rows"]:
            if source in version.booms or (source == "a" and v <= version.above):
                continue
            value = v + (version.shift or 0) if source == "a" else v
            more = (extra_of(i),) if source in version.extras else ()
            rows[source].append((i, k, g, value, ts, *more))
            part = payload["partition"]
            heard[source][part] = max(ts, heard[source].get(part, NEVER))
    return rows, heard

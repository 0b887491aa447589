"""The checker: what was published and stored, against a plain fold over the decisions and against what the log says.

- every input row of the folders that were read is in exactly one decision
- what each epoch has staged is what the models say of its input under the version that its entry names
- it was published once, in the place that was in force, whole, and nowhere else; functions were called epoch by epoch, in order
- late rows are counted
- the state of totals is the fold of the input
"""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import unquote

import polars as pl
from tests.simulation.whole.changes import Asked
from tests.simulation.whole.flows import Branch, Place, Version
from tests.simulation.whole.fold import Folds, arriving
from tests.simulation.whole.models import Brackets, Out, Totals
from tests.simulation.whole.world import FEEDS, Row, World, Wrong

from meander.connect.arrow_ipc import read_staged
from meander.epochs import compaction as merges_module
from meander.task.reading import read_operator

RETAINED = 4
"""Epochs that ``Local`` keeps readable."""
_EPOCH, _MICRO = datetime(1970, 1, 1), timedelta(microseconds=1)


class Verdict:
    """Of one world, at its end."""

    def __init__(self, world: World, first: Version, asked: dict[str, Asked]) -> None:
        self.world, self.first, self.asked = world, first, asked
        self.shelf = world.shelf
        self.versions: dict[int, Version] = {}
        self.folds = Folds(first)
        self.expected: dict[str, dict[int, Out]] = defaultdict(dict)

    def check(self) -> None:
        self.follow_versions()
        self._check_changes()
        self._check_input()
        self._fold()
        self._check_probation()
        self._check_staged()
        self._check_published()
        self._check_late()
        self._check_state()
        self._check_garbage()

    # -- what was decided -----------------------------------------------------------------------------------------

    def follow_versions(self) -> None:
        epochs = self.shelf.epochs
        if sorted(epochs) != list(range(1, len(epochs) + 1)):
            raise Wrong("epochs", f"committed {sorted(epochs)}")
        numbered = {1: self.first}
        last: tuple[int, str | None] = (1, None)
        for epoch in sorted(epochs):
            plan = epochs[epoch]["plan"]
            asked = self.asked.get(plan.get("modification", ""))
            if asked is not None and asked.id != last[1] and plan["version"] >= last[0]:
                numbered[plan["version"]] = asked.on(numbered[last[0]])
            last = plan["version"], plan.get("modification")
            # An edited file that was started, or a change that was taken back: the number tells which version it is.
            self.versions[epoch] = numbered[plan["version"]]

    def _check_changes(self) -> None:
        """A change is made of what is in force, and not of what was: replicas take nothing back, so versions only grow."""
        before: dict[str, Any] = {}
        for epoch, entry in sorted(self.shelf.epochs.items()) if self.world.actors[0].replica else ():
            plan = entry["plan"]
            if plan.get("modification") != before.get("modification", plan.get("modification")) and plan["version"] <= before["version"]:
                raise Wrong("lost change", f"epoch {epoch} is under {plan}, the one before it was under {before}")
            before = plan

    def _check_input(self) -> None:
        taken: Counter[tuple[str, str]] = Counter()
        wanted: set[tuple[str, str]] = set()
        for epoch, entry in sorted(self.shelf.epochs.items()):
            folders = dict(self.versions[epoch].sources)
            for source, payload in entry["splits"]:
                taken[payload["place"], payload["file"]] += 1
                if payload["place"] != folders[source]:
                    raise Wrong("wrong source", f"epoch {epoch} has read {payload['place']}, the source is {folders[source]}")
        for _, folder in self.versions[max(self.versions)].sources if self.versions else ():
            wanted |= {(folder, name) for name, _, _ in FEEDS[folder]}
        twice = {name: n for name, n in taken.items() if n > 1}
        if twice:
            raise Wrong("input twice", f"{twice}")
        if wanted - set(taken):
            raise Wrong("input lost", f"{sorted(wanted - set(taken))}")

    def _check_probation(self) -> None:
        """Code that fails on the first rows that come to it is taken back, unless something was stored that cannot be.

        Replicas take nothing back: a change is tried with an epoch that has rows, and is in force or not after that one.
        """
        if self.world.actors[0].replica:
            return
        unproven: dict[str, list[str]] = defaultdict(list)
        below: list[str] = []
        """Changes on probation before this epoch: one that comes on top of them is proven with them."""
        for epoch, entry in sorted(self.shelf.epochs.items()):
            version, identity = self.versions[epoch], entry["plan"].get("modification")
            rows, _ = arriving(entry, replace(version, booms=frozenset()))
            for source, _ in version.sources:
                if source not in version.booms:
                    unproven.pop(source, None)
                    continue
                if identity is not None and identity not in unproven[source]:
                    unproven[source] += [identity, *below]
                if rows[source] and not any(name == "late" or self.asked[name].lasting for name in unproven[source]):
                    raise Wrong("probation", f"epoch {epoch} has rows for code that fails, which {unproven[source]} brought")
            below = on_probation(entry["plan"])
            if epoch in self.folds.behind and "unproven" not in entry["plan"]:  # refused or parted under this version: no way back
                unproven = defaultdict(list, {source: ["late", *names] for source, names in unproven.items()})

    # -- what must come of it -------------------------------------------------------------------------------------

    def _fold(self) -> None:
        for epoch, entry in sorted(self.shelf.epochs.items()):
            version = self.versions[epoch]
            asked = self.asked.get(entry["plan"].get("modification", ""))
            shelf = self.shelf
            out = self.folds.epoch(entry, version, asked, shelf.flushed[epoch], shelf.counted[epoch], shelf.started[epoch])
            for sink, rows in out.items():
                self._expect(epoch, version, sink, rows)

    def _expect(self, epoch: int, version: Version, sink: str, rows: Out) -> None:
        place = version.place(sink)
        if place is not None and place.kind == "partitioned":  # what cannot be a folder's name is a dead letter
            rows = [row for row in rows if row[2] is None or len(row[2]) < 250]
        if rows:
            self.expected[sink][epoch] = rows

    # -- what came of it ------------------------------------------------------------------------------------------

    def _check_staged(self) -> None:
        """What was committed is what the models say."""
        for branch in self.versions[max(self.versions)].branches if self.versions else ():
            model = self.folds.now.models[branch.name]
            sink = f"{branch.name}_out"
            given = {epoch: self._decoded(epoch, sink) for epoch in self.shelf.epochs}
            given = {epoch: rows for epoch, rows in given.items() if rows}
            wanted = self.expected[sink]
            if model.exact:
                for epoch in sorted({*given, *wanted}):
                    same(f"{branch.kind} output", f"{sink} of epoch {epoch}", given.get(epoch, []), wanted.get(epoch, []))
                continue
            ours, theirs = final(branch, wanted), final(branch, given)
            same(f"{branch.kind} output", f"{sink} in the end ({branch})", theirs, ours)
        for name in {name for version in self.versions.values() for name, _ in version.taps}:
            for epoch, rows in self.expected[name].items():
                same("tap output", f"{name} of epoch {epoch}", self._decoded(epoch, name), rows)

    def _decoded(self, epoch: int, sink: str) -> Out:
        place = self.versions[epoch].place(sink)
        files = self.shelf.staged[epoch].get(sink, [])
        if place is None or not files:
            return []
        if place.kind == "partitioned":
            return self._published(place).get(epoch, [])
        read = pl.read_parquet if place.kind == "parquet" else None
        try:
            frames = [read(io.BytesIO(data)) if read else read_staged(data) for data in files]
        except Exception as error:
            raise Wrong("staged form", f"{sink} of epoch {epoch} is not for {place}, {self.shelf.epochs[epoch]['plan']}") from error
        return [row for frame in frames for row in plain(frame)]

    def _check_published(self) -> None:
        places: dict[Place, dict[int, str]] = defaultdict(dict)
        for epoch, version in self.versions.items():
            for sink, place in (*version.sinks, *version.taps):
                places[place][epoch] = sink
        for place, epochs in places.items():
            published = self._published(place)
            for epoch in sorted({*published, *epochs}):
                sink = epochs.get(epoch)
                wanted = [] if sink is None else self._decoded(epoch, sink)
                same(f"published {place.kind}", f"{place.name}, epoch {epoch}", published.get(epoch, []), wanted)
            if place.kind == "foreach":
                self._check_calls(place)

    def _check_calls(self, place: Place) -> None:
        last = 0
        for epoch, _ in self.world.calls[place.name]:
            if epoch < last:
                raise Wrong("foreach order", f"{place.name} was called with {[e for e, _ in self.world.calls[place.name]]}")
            last = epoch

    def _published(self, place: Place) -> dict[int, Out]:
        if place.kind == "memory":
            return {epoch: plain(frame) for epoch, frame in self.world.memories[place.name].epochs().items()}
        found: dict[int, Out] = defaultdict(list)
        if place.kind == "foreach":
            for epoch, frame in self.world.calls[place.name]:
                if epoch in found and Counter(found[epoch]) != Counter(plain(frame)):
                    raise Wrong("foreach repeat", f"{place.name} got epoch {epoch} twice, with other rows")
                found[epoch] = plain(frame)
            return found
        root = self.world.folder / place.name
        for file in sorted(root.rglob("*.parquet")):
            frame = pl.read_parquet(file, hive_partitioning=False)
            if place.kind == "partitioned":
                frame = frame.with_columns(g=pl.lit(hive(file.parent.name), pl.String())).select(
                    "id", "k", "g", "v", "ts", *(["w"] if "w" in frame.columns else [])
                )
            found[int(file.name.split("-")[1])] += plain(frame)
        return found

    def _check_late(self) -> None:
        wanted = self.folds.late
        counted = self.shelf.manifest.totals.get("late_rows", 0)
        if counted != wanted:
            raise Wrong("late", f"{counted} rows are counted as late, {wanted} were")

    def _check_state(self) -> None:
        for branch in self.versions[max(self.versions)].branches if self.versions else ():
            model = self.folds.now.models[branch.name]
            if isinstance(model, Brackets) and branch.kind == "brackets" and (wanted_rows := model.counted()):
                same("state", branch.name, plain(pl.DataFrame(pl.from_arrow(read_operator(self.shelf, branch.name)))), wanted_rows)
            if isinstance(model, Totals) and model.values:
                columns = [*(["k"] if branch.keyed else []), *branch.aggs]
                state = pl.DataFrame(pl.from_arrow(read_operator(self.shelf, branch.name))).select(columns)
                wanted, keys = model.state(branch), int(branch.keyed)
                # A key that a new aggregate has seen nothing of: null or zero.
                got = [
                    tuple(w if w is None and not v else v for v, w in zip(row, wanted.get(row[:keys], row), strict=True))
                    for row in plain(state)
                ]
                same("state", branch.name, got, list(wanted.values()))

    def _check_garbage(self) -> None:
        """After a clean start and a few steps nothing is left that no retained epoch names, and little of what replicas agreed on."""
        shelf, horizon = self.shelf, self.shelf.manifest.epoch - RETAINED - 1
        alive = {name for manifest in shelf.states if manifest.epoch >= horizon for name in manifest.segment_names()}
        staged = {file["name"] for files in shelf.manifest.staged.values() for file in files}
        for folder, wanted in (("segments/", alive), ("staged/", staged)):
            if left := {name for name in set(shelf.list(folder)) - wanted if not self._may_be_merging(name)}:
                raise Wrong("garbage", f"epoch {shelf.manifest.epoch} needs none of {sorted(left)}")
        agreed = [name for folder in ("decide/", "published/", "diverged/") for name in shelf.list(folder)]
        if len(agreed) > 8:
            raise Wrong("garbage", f"{sorted(agreed)}")

    def _may_be_merging(self, name: str) -> bool:
        """Whether a replica that nobody hears of may still put a merge's output into the log: for so many epochs nobody removes it."""
        manifest, parts = self.shelf.manifest, name.rsplit("/", 1)[1].split("-")
        return manifest.shared and parts[2] == "merge" and int(parts[1]) + merges_module.MOST_EPOCHS >= manifest.epoch - 1


def on_probation(plan: dict[str, Any]) -> list[str]:
    """The changes of a log entry's plan that may be taken back."""
    found = []
    while "unproven" in plan:
        found += [plan["modification"]]
        plan = plan["unproven"]["plan"]
    return found


def final(branch: Branch, epochs: dict[int, Out]) -> Out:
    """What windows come to: what comes later replaces what came before."""
    if branch.kind in ("overlapping", "cumulated", "visiting"):  # after a change is taken back, what it has closed comes again
        return sorted({row for rows in epochs.values() for row in rows}, key=repr)
    if branch.kind not in ("session", "stretches"):
        keys = 2 if not branch.keyed else 3
        found: dict[Row, Row] = {}
        for epoch in sorted(epochs):
            for row in epochs[epoch]:
                row = tuple(value for value in row if value is not None) if not branch.keyed else row
                found[row[:keys]] = row
        return sorted(found.values())
    rows: Out = []
    for epoch in sorted(epochs):
        for row in epochs[epoch]:
            if branch.emit == "update":
                rows = [old for old in rows if old[0] != row[0] or not row[1] <= old[1] <= row[2]]
            rows.append(row)
    return sorted(rows)


def plain(frame: pl.DataFrame) -> Out:
    """Rows as models have them: times in microseconds, and of a join's rows the two ids and the window."""
    if "id_right" in frame.columns:
        frame = frame.select("id", "id_right", *(name for name in ("window_start", "window_end") if name in frame.columns))
    return [tuple((v - _EPOCH) // _MICRO if isinstance(v, datetime) else v for v in row) for row in frame.rows()]


def hive(folder: str) -> str | None:
    value = folder.split("=", 1)[1]
    return None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value)


def same(kind: str, told: str, got: Out, wanted: Out) -> None:
    one, other = Counter(got), Counter(wanted)
    if one != other:
        more, less = sorted((one - other).elements(), key=repr), sorted((other - one).elements(), key=repr)
        raise Wrong(kind, f"{told}: too much {more}, missing {less}")

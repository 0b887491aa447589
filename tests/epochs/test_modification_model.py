"""A long life: hundreds of modifications, rescales, failing functions, idle times, crashes and restarts, against a plain model.

The model folds over the log: every epoch's input under the version of the plan that its entry names. One sequence from one seed, which a
failure prints; ``MEANDER_SEED`` runs another one.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
import pytest
from tests.epochs.test_modification_crashes import Crash, Mortal
from tests.local import Local, Script, ScriptCursor, constants

import meander as md
from meander.coordinate.routing import rebalance
from meander.errors import FlowError, Rejected
from meander.plan.change.become import Become
from meander.plan.change.modify import Insert, Remove, Replace
from meander.state import compaction as compaction_module
from meander.state import log as log_module
from meander.state.stores.contract import DirStore

COLUMNS: dict[str, Any] = {"k": pl.Int64(), "v": pl.Int64()}
MODIFICATIONS = 220
BAD = 6
"""A value on which a function fails that is right otherwise."""


class Gate:
    """Whether input comes at all."""

    is_open = True


@dataclass(frozen=True)
class Gated(Script):
    def cursor(self, offset: dict[str, Any], seen: set[str], throttle: float = 1.0) -> ScriptCursor:
        return GatedCursor(self, offset.get("next", 0))


class GatedCursor(ScriptCursor):
    def choose(self, now: float, everything: bool) -> Any:
        return super().choose(now, everything) if Gate.is_open else None


class Weigh(md.Processor):
    """Counts rows with a weight; with or without the values themselves."""

    output: ClassVar[Any] = {"weight": "int64", "values": pl.List(pl.Int64)}
    weight = md.value("int64", default=0)

    def __init__(self, each: int = 1) -> None:
        self.each = each

    def on_events(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        state.weight += self.each * len(rows)
        yield (state.weight, [])


def keeping(variable: str) -> type[Weigh]:
    """A class with a list of that name: a name that was removed cannot come back."""

    def on_events(self: Any, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        state.weight += self.each * len(rows)
        kept = getattr(state, variable)
        for row in rows:
            kept.append(row.v)
        yield (state.weight, list(kept))

    return type("Keep", (Weigh,), {variable: md.list_of("int64"), "on_events": on_events})


def failing(kind: type[Weigh]) -> Weigh:
    """The same variables, and a typo."""

    def on_events(self: Any, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        raise ZeroDivisionError("a typo")

    return type("Fails", (kind,), {"on_events": on_events})()


def fails(frame: pl.DataFrame) -> pl.DataFrame:
    if frame.height:
        raise ZeroDivisionError("a typo")
    return frame


def fails_sometimes(frame: pl.DataFrame) -> pl.DataFrame:
    if (frame.get_column("v") == BAD).any():
        raise ZeroDivisionError("a typo")
    return frame


def same(frame: pl.DataFrame) -> pl.DataFrame:
    return frame


@dataclass(frozen=True)
class Version:
    """A plan, as the model knows it."""

    above: int = -100
    without: int | None = None
    shift: int | None = None
    aggs: tuple[tuple[str, str], ...] = (("n", "count"), ("total", "sum"))
    each: int = 1
    kept: str | None = None
    picky: bool = False
    """Whether its function fails on some values: where it was tried without them, these are dead letters."""

    def above_op(self) -> Any:
        return md.filter(f"v > {self.above}")

    def without_op(self) -> Any:
        return md.filter(f"k <> {self.without}")

    def shift_op(self) -> Any:
        return md.with_columns(f"v + {self.shift} AS v")

    def processor(self) -> Weigh:
        return (Weigh if self.kept is None else keeping(self.kept))(self.each)

    def aggregates(self) -> list[Any]:
        made = {"count": md.count(), "sum": md.sum("v"), "max": md.max("v")}
        return [made[kind].alias(alias) for alias, kind in self.aggs]

    def flow(self, script: Script) -> tuple[md.Flow, Any, Any]:
        """As a file would say it."""
        flow, out, weights = md.Flow("living"), md.memory(), md.memory()
        rows = flow.source("events", script).filter(f"v > {self.above}", name="above")
        if self.without is not None:
            rows = rows.filter(f"k <> {self.without}", name="without")
        if self.shift is not None:
            rows = rows.with_columns(f"v + {self.shift} AS v", name="shift")
        rows = rows.map_batches(same, name="clean")
        rows.key_by("k").aggregate(*self.aggregates(), name="totals").sink("out", out)
        rows.key_by("k").process(self.processor(), name="weighed").sink("weights", weights)
        return flow, out, weights


@dataclass
class Model:
    """What must have been published and stored."""

    versions: dict[str | None, Version]
    totals: dict[int, dict[str, int]] = field(default_factory=dict)
    weights: dict[int, int] = field(default_factory=dict)
    kept: dict[int, list[int]] = field(default_factory=dict)
    kept_as: str | None = None
    rows: int = 0
    dead: int = 0

    def epoch(self, entry: dict[str, Any]) -> tuple[list[Any], list[Any]]:
        """One entry of the log: what it published."""
        version = self.versions[entry["plan"].get("modification")]
        if "totals" in entry["forgets"]:
            self.totals.clear()
        if any(name.startswith("weighed") for name in entry["forgets"]):
            self.weights.clear()
            self.kept.clear()
        aliases = [alias for alias, _ in version.aggs]
        taken = list(self._taken(entry, version))
        if taken:  # a change that nothing was stored under can be taken back, and what it took away is there again
            for values in self.totals.values():
                for alias in values.keys() - set(aliases):
                    del values[alias]
            if version.kept != self.kept_as:
                self.kept, self.kept_as = {}, version.kept
        for k, value in taken:
            values = self.totals.setdefault(k, {})
            for alias, kind in version.aggs:
                old = values.get(alias)
                values[alias] = {"count": (old or 0) + 1, "sum": (old or 0) + value, "max": max(value, value if old is None else old)}[kind]
            self.weights[k] = self.weights.get(k, 0) + version.each
            if version.kept is not None:
                self.kept.setdefault(k, []).append(value)
        touched = {k for k, _ in taken}
        rows = sorted((k, *(self.totals[k][alias] for alias in aliases)) for k in touched)
        return rows, sorted((k, self.weights[k], list(self.kept.get(k, []))) for k in touched)

    def _taken(self, entry: dict[str, Any], version: Version) -> Iterator[tuple[int, int]]:
        """The rows that come to the operators with state."""
        for _, payload in entry["splits"]:
            self.rows += len(payload["rows"])
            for k, v in payload["rows"]:
                value = v + (version.shift or 0)
                if v > version.above and k != version.without and version.picky and value == BAD:
                    self.dead += 1
                elif v > version.above and k != version.without:
                    yield k, value


class Life:
    """The flow under test, whatever befalls it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, random.Random(seed)
        ticks = [[(self.random.randint(0, 6), self.random.randint(-5, BAD)) for _ in range(self.random.randint(0, 6))] for _ in range(900)]
        self.script = Gated(COLUMNS, tuple(((0, tuple(rows[::2])), (1, tuple(rows[1::2]))) for rows in ticks))
        self.flow, self.out, self.weights = Version().flow(self.script)
        self.store = Mortal(folder)
        self.versions: dict[str | None, Version] = {None: Version()}
        self.entries: dict[int, dict[str, Any]] = {}
        self.told: Counter[str] = Counter()
        self.number = 0
        self.local = self.start()

    def start(self) -> Local:
        self.store.left = None
        self.told["starts"] += 1
        parallelism, small = self.random.choice([1, 2, 3]), self.random.random() < 0.7
        local = Local(self.flow, self.folder, parallelism, small, store=self.store, ahead=self.random.random() < 0.5)
        local.worker.stores[self.store.url] = self.store
        return local

    @property
    def now(self) -> Version:
        return self.versions[self.local.manifest.plan.get("modification")]

    def step(self, mortal: bool) -> None:
        """One epoch, in which the driver may die."""
        if mortal:
            self.store.left, self.store.after = self.random.randint(1, 40), self.random.random() < 0.5
        try:
            self.local.step()
            self.store.left = None
        except Crash:
            self.told["deaths"] += 1
            self.local = self.start()
        self.collect()

    def collect(self) -> None:
        store = DirStore(self.folder)
        for name in store.list("log/"):
            entry = json.loads(store.get(name) or b"{}")
            if entry.get("kind") == "epoch":
                self.entries[entry["epoch"]] = entry

    # -- changes --------------------------------------------------------------------------------------------------

    def change(self) -> None:
        self.number += 1
        now, draw = self.now, self.random
        kinds = [
            "above",
            "without",
            "shift",
            "add",
            "less",
            "drop",
            "each",
            "keep",
            "become",
            "typo",
            "half",
            "mend",
            "process",
            "guard",
            "refused",
        ]
        kind = draw.choice(kinds)
        changes, rules, version, guard = self.make(kind, now)
        identity = f"m{self.number}"
        self.told[kind] += 1
        if kind == "refused":
            with pytest.raises(FlowError):
                self.local.propose(*changes, request_id=identity, **rules)
            return
        self.versions[identity] = version
        trial = self.local.propose(*changes, request_id=identity, guard=guard, **rules)
        self.step(mortal=draw.random() < 0.25)
        if guard is not None and not trial.done.done():  # without input there is nothing to compare
            self.local.loop.trials.withdraw(trial)
        if trial.done.done() and trial.done.exception() is not None:
            assert isinstance(trial.done.exception(), Rejected)
            self.told["rejected"] += 1
        elif trial.done.done():
            self.told["accepted"] += 1
            if kind == "guard":
                raise AssertionError("a guard that says no was not heard")

    def make(self, kind: str, now: Version) -> tuple[list[Any], dict[str, Any], Version, Any]:
        draw = self.random
        if kind == "above":
            version = replace(now, above=draw.randint(-5, 3))
            return [Replace("above", version.above_op())], {}, version, None
        if kind == "without":
            if now.without is not None:
                return [Remove("without")], {}, replace(now, without=None), None
            version = replace(now, without=draw.randint(0, 6))
            return [Insert("without", version.without_op(), after="above")], {}, version, None
        if kind == "shift":
            if now.shift is not None:
                return [Remove("shift")], {}, replace(now, shift=None), None
            version = replace(now, shift=draw.randint(1, 9))
            return [Insert("shift", version.shift_op(), after="above" if now.without is None else "without")], {}, version, None
        if kind in ("add", "less", "drop"):
            aggs = now.aggs
            if kind == "add" and len(aggs) < 5:
                aggs = (*aggs, (f"a{self.number}", draw.choice(["count", "sum", "max"])))
            elif kind == "less" and len(aggs) > 1:
                aggs = aggs[1:]
            version = replace(now, aggs=aggs)
            rules = {"drop": ["totals"]} if kind == "drop" else {}
            return [Replace("totals", md.aggregate(*version.aggregates()))], rules, version, None
        if kind in ("each", "keep"):
            version = replace(now, each=draw.randint(1, 9))
            if kind == "keep":
                version = replace(version, kept=None if now.kept is not None else f"kept{self.number}")
            return [Replace("weighed", md.process(version.processor()))], {}, version, None
        if kind == "become":
            version = Version(
                draw.randint(-5, 3), draw.choice([None, 2, 3]), draw.choice([None, 4]), now.aggs, draw.randint(1, 9), now.kept
            )
            version = replace(version, aggs=(*now.aggs[-3:], (f"a{self.number}", "max")))
            return [Become(version.flow(self.script)[0].plan())], {}, version, None
        if kind == "guard":
            return [Replace("above", md.filter("v > 100"))], {}, now, lambda before, after: False
        if kind == "refused":
            wrong = [
                [Replace("above", md.filter("w > 1"))],
                [Remove("totals")],
                [Replace("totals", md.aggregate(md.count().alias("n"), by="v"))],
                [Insert("clean", md.filter("v > 1"), after="above")],
                [Insert("narrow", md.select("k"), after="above")],
            ]
            return draw.choice(wrong), {}, now, None
        if kind == "process":
            return [Replace("weighed", md.process(failing(type(now.processor()))))], {}, now, None
        function = {"typo": fails, "half": fails_sometimes, "mend": same}[kind]
        return [Replace("clean", md.map_batches(function))], {}, replace(now, picky=kind == "half"), None

    def rescale(self) -> None:
        self.told["rescales"] += 1
        operator = self.random.choice(["totals", "weighed"])
        self.local.loop.reroute(operator, rebalance(self.local.loop.routing[operator], self.random.randint(1, 4)))

    # -- the verdict ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        model = Model(self.versions)
        assert sorted(self.entries) == list(range(1, self.local.manifest.epoch + 1))
        wanted_out, wanted_weights = {}, {}
        for epoch in sorted(self.entries):
            rows, weights = model.epoch(self.entries[epoch])
            if rows:
                wanted_out[epoch], wanted_weights[epoch] = rows, weights
        published = {epoch: sorted(frame.rows()) for epoch, frame in self.out.epochs().items()}
        for epoch in sorted({*published, *wanted_out}):
            assert published.get(epoch) == wanted_out.get(epoch), f"epoch {epoch}: {self.entries[epoch]['plan']}"
        weighed = {epoch: sorted(frame.rows()) for epoch, frame in self.weights.epochs().items()}
        for epoch in sorted({*weighed, *wanted_weights}):
            assert weighed.get(epoch) == wanted_weights.get(epoch), f"epoch {epoch}: {self.entries[epoch]['plan']}"
        assert self.local.manifest.totals["rows_in"] == model.rows
        assert self.local.manifest.totals.get("dead_letters", 0) == model.dead
        stored = pl.DataFrame(pl.from_arrow(md.read_state(self.folder, "totals")))
        aliases = [alias for alias, _ in self.now.aggs]
        assert sorted(stored.rows()) == sorted((k, *(values.get(alias) for alias in aliases)) for k, values in model.totals.items())


def live(folder: Path, seed: int, modifications: int) -> Life:
    with constants(FEWEST=(compaction_module, 2), SNAPSHOT_EVERY=(log_module, 7)):
        life = Life(folder, seed)
        try:
            while life.number < modifications:
                Gate.is_open = life.random.random() < 0.8
                chance = life.random.random()
                if chance < 0.6:
                    life.change()
                elif chance < 0.72:
                    life.rescale()
                elif chance < 0.8:
                    life.local = life.start()
                else:
                    life.step(mortal=life.random.random() < 0.3)
            Gate.is_open = True
            for _ in range(3):
                life.step(mortal=False)
        finally:
            Gate.is_open = True
    return life


@pytest.mark.slow
def test_a_long_life_of_changes_is_what_the_plain_model_says(tmp_path: Path) -> None:
    seed = int(os.environ.get("MEANDER_SEED", "5"))
    life = live(tmp_path, seed, MODIFICATIONS)
    print(f"seed {seed}: {dict(life.told)}")
    life.check()
    assert life.told["accepted"] > 60
    assert life.told["rejected"] > 20
    assert min(life.told["deaths"], life.told["rescales"], life.told["starts"]) > 10


@pytest.mark.many
@pytest.mark.parametrize("seed", [1, 2])
def test_a_short_life_of_changes_is_what_the_plain_model_says(tmp_path: Path, seed: int) -> None:
    live(tmp_path, seed, 20).check()

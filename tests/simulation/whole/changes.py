"""Modifications of every kind, drawn by chance: what is asked for, and what the flow is like if it comes into force."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation.whole.flows import PROCESSORS, Branch, Version, boom, draw_place, make_sink, narrowing, same, write
from tests.simulation.whole.kinds import PROBATION, Kind
from tests.simulation.whole.world import World

import meander as md

Drawn = tuple[list[Any], Version] | None


@dataclass
class Asked:
    """A modification that somebody asks for."""

    id: str
    told: str
    changes: list[Any]
    after: Version
    rules: dict[str, Any] = field(default_factory=dict)
    lasting: bool = False
    """Whether it may be stored in a way that cannot be taken back."""
    before: Version | None = None
    """What it was made of; None where it says the whole."""

    def on(self, base: Version) -> Version:
        """The version that it comes to: a sibling's change may have come before it, so that it is made of another one than was thought."""
        old, new = self.before, self.after
        if old is None or old == base:
            return new
        plain = {name: getattr(new, name) for name in ("above", "wide", "grace", "shift") if getattr(new, name) != getattr(old, name)}
        return replace(
            base,
            branches=tuple(h if n == o else n for o, n, h in zip(old.branches, new.branches, base.branches, strict=True)),
            sinks=tuple(h if n == o else n for o, n, h in zip(old.sinks, new.sinks, base.sinks, strict=True)),
            sources=tuple(h if n == o else n for o, n, h in zip(old.sources, new.sources, base.sources, strict=True)),
            booms=(base.booms - (old.booms - new.booms)) | (new.booms - old.booms),
            extras=(base.extras - (old.extras - new.extras)) | (new.extras - old.extras),
            thins=(base.thins - (old.thins - new.thins)) | (new.thins - old.thins),
            taps=(*(t for t in base.taps if t not in old.taps or t in new.taps), *(t for t in new.taps if t not in old.taps)),
            **plain,
        )


class Changes:
    """Draws modifications of a version."""

    def __init__(self, world: World, about: Kind) -> None:
        self.world, self.rng, self.number, self.about = world, world.rng, 0, about

    def draw(self, now: Version, replicas: bool) -> Asked | None:
        """One change, two at once, or the whole as an edited file."""
        self.number += 1
        identity = f"m{self.number}"
        rules: dict[str, Any] = {}
        changes: list[Any] = []
        after = now
        told = []
        apart = self.about is PROBATION and not now.booms and self.rng.random() < 0.8
        for _ in range(2 if apart else self.rng.choice((1, 1, 2))):
            kind = self.rng.choice(tuple(self._kinds(replicas)))
            if apart:
                kind = "boom" if changes else self.rng.choice(("branch", "branch", "branch", "grace"))
            elif changes and self.rng.random() < 0.4:
                kind = "boom"
            elif not after.wide and self.rng.random() < 0.5:
                kind = "wide"
            elif self.rng.random() < 0.4:
                kind = "branch"
            elif self.rng.random() < 0.3:
                kind = "columns"
            found = self._kinds(replicas)[kind](after, rules)
            if found is not None and not any(c.name == d.name for c in found[0] for d in changes):
                changes += found[0]
                after = found[1]
                told.append(kind)
        if not changes:
            return None
        swaps = dict(now.sources) != dict(after.sources)
        if not swaps and after != now and self.rng.random() < 0.4:
            changes, told = [md.Become(write(after, self.world).plan())], [*told, "as a file"]
        stored = [(b.aggs, b.code, b.inner) for b in after.branches] != [(b.aggs, b.code, b.inner) for b in now.branches]
        lasting = bool(rules) or swaps or stored or after.wide != now.wide or after.thins != now.thins
        return Asked(identity, " + ".join(told), changes, after, rules, lasting, None if "as a file" in told else now)

    def _kinds(self, replicas: bool) -> dict[str, Callable[[Version, dict[str, Any]], Drawn]]:
        kinds: dict[str, Callable[[Version, dict[str, Any]], Drawn]] = {
            "filter": self._filter,
            "noop": self._noop,
            "shift": self._shift,
            "boom": self._boom,
            "wide": self._wide,
            "grace": self._grace,
            "sink": self._sink,
            "tap": self._tap,
            "branch": self._branch,
            "columns": self._columns,
        }
        if not replicas:
            kinds["source"] = self._source
        return kinds

    # -- what can be changed --------------------------------------------------------------------------------------

    def _filter(self, now: Version, rules: dict[str, Any]) -> Drawn:
        after = replace(now, above=self.rng.choice((-1, 0, 2)))
        return [md.Replace("above", md.filter(f"v > {after.above}"))], after

    def _noop(self, now: Version, rules: dict[str, Any]) -> Drawn:
        return [md.Replace("above", md.filter(f"v > {now.above}"))], now

    def _shift(self, now: Version, rules: dict[str, Any]) -> Drawn:
        if now.shift is not None:
            return [md.Remove("shift")], replace(now, shift=None)
        after = replace(now, shift=self.rng.choice((10, 20)))
        return [md.Insert("shift", md.with_columns(f"v + {after.shift} AS v"), after="above")], after

    def _boom(self, now: Version, rules: dict[str, Any]) -> Drawn:
        name = "b" if self.about is PROBATION else self.rng.choice(now.sources)[0]
        if name in now.booms:
            return [md.Replace(f"clean_{name}", md.map_batches(same))], replace(now, booms=now.booms - {name})
        return [md.Replace(f"clean_{name}", md.map_batches(boom))], replace(now, booms=now.booms | {name})

    def _wide(self, now: Version, rules: dict[str, Any]) -> Drawn:
        if now.wide:
            return None
        return [md.Replace("narrow", md.with_columns(narrowing(True)))], replace(now, wide=True)

    def _grace(self, now: Version, rules: dict[str, Any]) -> Drawn:
        after = replace(now, grace=self.rng.choice((0, 3, 5)))
        return [md.Replace(f"time_{name}", md.watermark("ts", *after.watermark())) for name, _ in now.sources], after

    def _sink(self, now: Version, rules: dict[str, Any]) -> Drawn:
        name, _ = self.rng.choice(now.sinks)
        place = draw_place(self.rng, now.branch(name[:-4]), self.number)
        after = replace(now, sinks=tuple((n, place if n == name else p) for n, p in now.sinks))
        return [md.Replace(name, make_sink(self.world, place))], after

    def _tap(self, now: Version, rules: dict[str, Any]) -> Drawn:
        if now.taps:
            return [md.Remove(now.taps[-1][0])], replace(now, taps=now.taps[:-1])
        name, _ = self.rng.choice(now.sources)
        place = draw_place(self.rng, None, self.number)
        after = replace(now, taps=(*now.taps, (f"tap{self.number}_{name}", place)))
        return [md.Insert(after.taps[-1][0], make_sink(self.world, place), after=f"time_{name}")], after

    def _source(self, now: Version, rules: dict[str, Any]) -> Drawn:
        name, folder = self.rng.choice(now.sources)
        if folder.endswith("2"):
            return None
        after = replace(now, sources=tuple((n, f"{f}2" if n == name else f) for n, f in now.sources))
        return [md.Replace(name, after.feed(name), resume=False)], after

    def _columns(self, now: Version, rules: dict[str, Any]) -> Drawn:
        """A source gains or loses a column, or has a wider one, and goes on where it is."""
        name, _ = self.rng.choice(now.sources)
        if name in now.thins and self.rng.random() < 0.5:
            after = replace(now, thins=now.thins - {name})
        else:
            after = replace(now, extras=now.extras ^ {name})
        return [md.Replace(name, after.feed(name), resume=self.rng.choice((None, True)))], after

    def _branch(self, now: Version, rules: dict[str, Any]) -> Drawn:
        known = {"totals": self._totals, "window": self._window, "chain": self._chain, **dict.fromkeys(PROCESSORS, self._process)}
        known |= {"counted": self._counted, "cumulating": self._cumulating}
        branches = [branch for branch in now.branches if branch.kind in known and (self.about is not PROBATION or branch.source == "a")]
        if not branches:
            return None
        branch = self.rng.choice(branches)
        after = known[branch.kind](branch, rules)
        return [self._replacement(after)], now.with_branch(after)

    def _replacement(self, branch: Branch) -> Any:
        if branch.kind in PROCESSORS:
            return md.Replace(branch.name, md.process(branch.processor()))
        if branch.kind == "chain":
            inner = md.tumbling("5s") if branch.inner == "tumbling" else md.session("5s")
            return md.Replace(f"{branch.name}1", md.aggregate(md.count().alias("n"), md.sum("v").alias("v"), window=inner))
        if branch.kind == "counted":
            return md.Replace(branch.name, md.aggregate(*branch.aggregates(), window=branch.window()))
        if branch.kind == "totals":
            return md.Replace(branch.name, md.aggregate(*branch.aggregates()))
        made = md.aggregate(*branch.aggregates(), window=branch.window(), emit=branch.emit, lateness=f"{branch.lateness}s")
        return md.Replace(branch.name, made)

    def _totals(self, branch: Branch, rules: dict[str, Any]) -> Branch:
        if self.rng.random() < 0.3:
            rules.setdefault("drop", []).append(branch.name)
        if len(branch.aggs) > 2 and self.rng.random() < 0.4:
            return replace(branch, aggs=branch.aggs[:-1])
        added = f"{self.rng.choice('nsm')}{self.number}"
        if self.rng.random() < 0.3 and added[0] != "m" and "drop" not in rules:
            rules.setdefault("backfill", {})[branch.name] = {added: 100}
        return replace(branch, aggs=(*branch.aggs, added))

    def _window(self, branch: Branch, rules: dict[str, Any]) -> Branch:
        shorter = list(range(branch.step, branch.size, branch.step))
        kinds = ["emit", "emit", "drop", *(["shorter"] * 4 if shorter else []), *(["lateness"] if branch.lateness else [])]
        if self.about is PROBATION:  # where state was dropped there is no way back
            kinds = ["emit", *(["shorter"] if shorter else [])]
        kind = self.rng.choice(kinds)
        if kind == "emit":
            return replace(branch, emit="update" if branch.emit == "closed" else "closed")
        if kind == "lateness":
            return replace(branch, lateness=0)
        if kind == "drop":
            rules.setdefault("drop", []).append(branch.name)
            size, step = self.rng.choice(((10, 10), (10, 5), (8, 2), (4, 4)))
            return replace(branch, size=size, step=step)
        return replace(branch, size=self.rng.choice((branch.step, self.rng.choice(shorter))))

    def _counted(self, branch: Branch, rules: dict[str, Any]) -> Branch:
        rules.setdefault("drop", []).append(branch.name)
        size, step = self.rng.choice(((2, 2), (4, 2), (6, 1)))
        return replace(branch, size=size, step=step)

    def _cumulating(self, branch: Branch, rules: dict[str, Any]) -> Branch:
        if self.rng.random() < 0.7:
            return replace(branch, emit="update" if branch.emit == "closed" else "closed")
        rules.setdefault("drop", []).append(branch.name)
        size, step = self.rng.choice(((10, 5), (8, 2), (12, 3)))
        return replace(branch, size=size, step=step)

    def _chain(self, branch: Branch, rules: dict[str, Any]) -> Branch:
        rules.setdefault("drop", []).extend(branch.operators()[: self.rng.choice((1, 2))])
        return replace(branch, inner="session" if branch.inner == "tumbling" else "tumbling")

    def _process(self, branch: Branch, rules: dict[str, Any]) -> Branch:
        if branch.code == "Counter":
            rules.setdefault("backfill", {})[branch.name] = {"seen": 5}
        return replace(branch, code="Doubting" if branch.code == "Counter" else "Counter")

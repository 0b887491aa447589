"""Carries a rescale out: switches tables between epochs, and has stewards fill caches before, after
or beside the switch.

Runs in the caller's thread; only the switch itself happens in the loop's thread, between two
epochs. If segments are mapped from a folder nothing has to move, and every strategy is a plain
switch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from meander.cache.client import GENTLY, Peer, Unreachable
from meander.clock import Clock
from meander.coordinate.migration import Bringing, plan_bringing, plan_fetches, plan_migration
from meander.coordinate.routing import rebalance, slots_of
from meander.epochs.loop import Loop
from meander.epochs.runner import Cluster
from meander.epochs.scaling import LoadMeter
from meander.errors import ConfigError
from meander.settings import Strategy
from meander.state.manifest import Manifest

_POLL = 0.05
_ROUNDS = 3
_BRISKLY = 0.3
_BRISK_ROUNDS = 2
_SMALL = 4 << 20


@dataclass
class Moved:
    """The result of a rescale."""

    groups: int = 0
    from_peers: int = 0
    from_store: int = 0
    ordered: int = 0
    """Bytes of the segments that were asked for."""
    failures: list[str] = field(default_factory=list)
    epoch: int = 0
    """The first epoch under the final table."""


@dataclass
class _Fetching:
    """The requests of one rescale: the steward, the segment, and the key groups."""

    moved: Moved
    deadline: float
    asked: set[tuple[str, str, int]] = field(default_factory=set)
    already: dict[str, dict[str, int]] = field(default_factory=dict)
    """Per steward, what it had fetched when that was counted last."""


class Migration:
    """Rescalings of one run, one at a time."""

    def __init__(self, loop: Loop, runner: Cluster, meter: LoadMeter, clock: Clock, needs_fetching: bool) -> None:
        self._loop, self._runner, self._meter, self._clock, self._needs_fetching = loop, runner, meter, clock, needs_fetching

    def rescale(self, operator: str, slots: int, strategy: Strategy, between: Callable[[Callable[[], int]], int], patience: float) -> Moved:
        """Change the number of slots. ``between`` has something done between two epochs and waits for it."""
        before = self._loop.routing[operator]
        load = self._meter.of(operator)
        after = rebalance(before, slots, load)
        moved = Moved(sum(a != b for a, b in zip(before, after, strict=True)))
        steps = plan_migration(before, after, strategy if self._needs_fetching else "lazy", load)
        fetching = _Fetching(moved, self._clock.monotonic() + patience)
        for step in steps:
            moved.epoch = self._switch({operator: step.table}, step.how, fetching, between)
        return moved

    def migrate(
        self,
        operators: Sequence[str],
        executor: str,
        groups: Sequence[int] | None,
        strategy: Strategy,
        between: Callable[[Callable[[], int]], int],
        patience: float,
    ) -> Moved:
        """Have an executor own key groups of some operators, or all of theirs: one switch for all, between two epochs."""
        before = {operator: self._loop.routing[operator] for operator in operators}
        tables = {operator: self._towards(operator, executor, groups) for operator in operators}
        moved = Moved(sum(a != b for name, table in tables.items() for a, b in zip(before[name], table, strict=True)))
        fetching = _Fetching(moved, self._clock.monotonic() + patience)
        moved.epoch = self._switch(tables, plan_bringing(strategy if self._needs_fetching else "lazy"), fetching, between)
        return moved

    def _switch(
        self, tables: Mapping[str, list[int]], how: Bringing, fetching: _Fetching, between: Callable[[Callable[[], int]], int]
    ) -> int:
        """Put tables in force, all between the same two epochs, with caches filled around it. The first epoch under them."""
        old = {name: self._loop.routing[name] for name in tables}
        if how.before == "everything":
            self._warm(tables, fetching, GENTLY, _ROUNDS)
        elif how.before == "small segments":
            self._warm(tables, fetching, _BRISKLY, _BRISK_ROUNDS, _SMALL)

        def switch() -> int:
            if how.wait_after:
                self._loop.housekeeping.finish_merges(fetching.deadline - self._clock.monotonic())
                self._warm(tables, fetching, 1.0, 1)
            for name, table in tables.items():
                self._loop.reroute(name, table)
            return self._loop.log.manifest.epoch + 1

        epoch = between(switch)
        if how.rest_after:
            for name, table in tables.items():
                self._order(name, old[name], table, fetching, GENTLY)
        return epoch

    def _towards(self, operator: str, executor: str, groups: Sequence[int] | None) -> list[int]:
        """An operator's table with some key groups, or all, in slots of an executor's; a slot more where it has none."""
        before = self._loop.routing[operator]
        level, slots = self._runner.level_of(operator), slots_of(before)
        there = self._runner.placement.executors()
        if executor not in there:
            raise ConfigError(f"there is no executor '{executor}'; there are {', '.join(sorted(there)) or 'none'}")
        places = self._runner.placement.plan(level, slots)
        own = [slot for slot, place in enumerate(places) if place == executor]
        if not own:
            places = self._runner.placement.plan(level, slots + 1)
            own = [slot for slot, place in enumerate(places) if place == executor]
        if not own:
            raise ConfigError(f"executor '{executor}' has no slot of '{operator}', and would not get the next one: rescale it first")
        wanted = set(range(len(before)) if groups is None else groups)
        if not wanted <= set(range(len(before))):
            raise ConfigError(f"key groups of '{operator}' are 0 to {len(before) - 1}; there is no {max(wanted)}")
        moving = [group for group in sorted(wanted) if before[group] not in own]
        table = list(before)
        for number, group in enumerate(moving):
            table[group] = own[number * len(own) // len(moving)]
        return table

    def _warm(self, tables: Mapping[str, list[int]], fetching: _Fetching, share: float, rounds: int, largest: int | None = None) -> None:
        """Have the new owners' stewards fetch the moving key groups, and wait. Then again for what
        epochs wrote meanwhile, which is less each time."""
        for _ in range(rounds):
            asked: set[str] = set()
            for operator, table in tables.items():
                asked |= self._order(operator, self._loop.routing[operator], table, fetching, share, largest)
            for address in sorted(asked):
                self._wait(address, fetching)
            if not asked:
                return

    def _order(
        self, operator: str, old: Sequence[int], table: Sequence[int], fetching: _Fetching, share: float, largest: int | None = None
    ) -> set[str]:
        """Have the stewards of new owners fetch what moves and was not asked for before: whom."""
        manifest: Manifest = self._loop.log.manifest
        segments = [
            (ref.name, ref.bytes, ref.groups)
            for state in manifest.tables_of(operator)
            for ref in sorted(state.segments, key=lambda s: s.sequence, reverse=True)
            if largest is None or ref.bytes <= largest
        ]
        wanted = plan_fetches(old, table, segments, self._runner.holders(name for name, _, _ in segments))
        level = self._runner.level_of(operator)
        places = self._runner.placement.plan(level, slots_of(table))
        asked: set[str] = set()
        for slot, fetches in wanted.items():
            address = self._runner.stewards.get(places[slot]) if slot < len(places) else None
            if address is None:  # nobody is there yet: its slot fetches what it needs itself
                continue
            fresh = [f for f in fetches if (address, f.name, f.groups) not in fetching.asked]
            if fresh:
                if address not in fetching.already:  # once: its failures are told once
                    fetching.already[address] = self._fetched(address)
                asked.add(address)
                self._ask(address, [[f.name, f.bytes, f"{f.groups:x}", f.holder] for f in fresh], fetching.moved, share)
                fetching.asked.update((address, f.name, f.groups) for f in fresh)
                fetching.moved.ordered += sum(f.bytes for f in fresh)
        return asked

    def _ask(self, address: str, items: list[list[object]], moved: Moved, share: float) -> None:
        try:
            Peer.at(address, self._runner.secret).fetch(items, share)
        except Unreachable as error:
            moved.failures.append(str(error))

    def _fetched(self, address: str) -> dict[str, int]:
        """The bytes that it has fetched so far."""
        try:
            answer = Peer.at(address, self._runner.secret).fetched()
        except Unreachable:
            return {"peer": 0, "store": 0}
        return {"peer": answer["peer"], "store": answer["store"]}

    def _wait(self, address: str, fetching: _Fetching) -> None:
        moved, before = fetching.moved, fetching.already[address]
        while self._clock.monotonic() < fetching.deadline:
            try:
                answer = Peer.at(address, self._runner.secret).fetched()
            except Unreachable as error:
                moved.failures.append(str(error))
                return
            moved.failures.extend(answer["failures"])
            if answer["pending"] == 0:
                moved.from_peers += answer["peer"] - before["peer"]
                moved.from_store += answer["store"] - before["store"]
                fetching.already[address] = {"peer": answer["peer"], "store": answer["store"]}
                return
            self._clock.sleep(_POLL)
        moved.failures.append(f"{address}: not warm in time")

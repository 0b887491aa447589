"""One schedule of the whole: a flow from the pool, processes that live and die, a store that fails, changes; then the verdict.

All that happens follows from the seed, and a failure tells it in order.
"""

from __future__ import annotations

import contextlib
import logging
import random
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl
from tests.local import constants
from tests.simulation.whole.actors import Actor, Crash
from tests.simulation.whole.changes import Asked, Changes
from tests.simulation.whole.faults import Faults
from tests.simulation.whole.flows import Version, draw, write
from tests.simulation.whole.kinds import COMMANDS, EMPTYING, MERGING, PROBATION, SHRINKING, draw_kind
from tests.simulation.whole.verdict import Verdict
from tests.simulation.whole.world import SECOND, Row, World, WorldClock, Wrong

from meander import worker
from meander.coordinate.routing import rebalance
from meander.epochs import compaction as merges_module
from meander.epochs import probation as trials_module
from meander.errors import ConfigError, FlowError, Retryable
from meander.state import compaction as compaction_module
from meander.state import log as log_module
from meander.state.hashing import hash_keys, key_groups_of
from meander.task.reading import read_operator

KEY_GROUPS = 4
_KEYS = pl.DataFrame({"k": range(40)})
_IN = key_groups_of(hash_keys(_KEYS), KEY_GROUPS).tolist()
COLD = _IN.index(KEY_GROUPS - 1)
HOT = tuple(key for key in range(40) if _IN[key] == 0)[:8]
"""Keys of one key group, and one of another: slots that have much to store and little."""
GROUPS = ("x", "x", "y", "z", None, "__HIVE_DEFAULT_PARTITION__", "p" * 300)


@dataclass(frozen=True)
class File:
    """What a process is started with."""

    version: Version
    edited: bool = False
    """Whether it is started as an edited file, to be applied."""
    rules: dict[str, Any] = field(default_factory=dict)


class Schedule:
    """From a seed to a verdict."""

    def __init__(self, seed: int, without: frozenset[str] = frozenset()) -> None:
        self.without = without
        """Commands, and ``faults``, that are left out: to see what a failure needs."""
        self.world = World(seed, linked=random.Random(seed).random() < 0.5)
        self.rng = self.world.rng
        self.kind = draw_kind(self.rng)
        self.merging = self.kind is MERGING
        self.changes = Changes(self.world, self.kind)
        first, apart = draw(self.rng, self.kind), random.Random(f"apart {seed}")  # apart: the other draws stay what they were
        idle = apart.choice((None, None, None, 3, 12))
        keyed = [b if b.kind != "totals" or self.merging else replace(b, keyed=apart.random() < 0.8) for b in first.branches]
        self.first = replace(first, idle=idle, branches=tuple(keyed))
        self.written = File(self.first)
        """As the flow was first written, and as the file that was started last says it."""
        self.asked: dict[str, Asked] = {}
        self.snapshots = self.rng.choice((2, 3, 6))
        self.fewest = self.rng.choice((2, 2, 3) if self.kind is EMPTYING else (2, 3, 3, 4))
        self.most = self.fewest + self.rng.choice((0, 1, 12))
        self.slowest = 3 if seed % 3 == 0 else 1000
        """Epochs that a merge may take among replicas."""
        self.world.lag = self.rng.choice((0, 3, 12)) if self.merging else self.rng.choice((0, 0, 3, 12))
        self._draw_input()
        count = self.rng.choice(self.kind.processes)
        often = self.rng.choice((0.0, 0.0, 0.004, 0.02))
        mortal = self.rng.choice((0.0, 0.1, 0.25))
        if "replicas" in without:
            count = 1
        if "faults" in without:
            often = mortal = 0.0
        if self.merging and self.rng.random() < 0.7:  # one merge takes the other's output, and nothing else, when that one is done
            self.fewest, self.most, self.world.lag = 3, 3, 2
            often = mortal = 0.0
        for number in range(count):
            faults = Faults(often, mortal, outages=self.rng.choice((0.0, 0.1)))
            skew = self.rng.choice((0.0, 0.0, 4.0, -30.0))
            actor = Actor(self.world, "abc"[number], faults, skew, replica=count > 1)
            actor.alone, actor.chance = count == 1, self.rng.choice((0.01, 0.1))
            self.world.actors.append(actor)
        self.world.say(f"{self.kind.name}: {count} process(es); {self.first}")

    # -- input ----------------------------------------------------------------------------------------------------

    def _draw_input(self) -> None:
        rng, time, number = self.rng, 0, 0
        hot = self.merging or rng.random() < 0.5
        files: list[tuple[str, tuple[str, int, list[Row]]]] = []
        groups = GROUPS if rng.random() < 0.3 else GROUPS[:4]
        shrinks = self.kind is SHRINKING
        partitions = 2 if shrinks else rng.choice((1, 1, 2))
        if shrinks:
            self.world.partitions = dict.fromkeys(dict(self.first.sources), partitions)
        skewed = HOT if self.merging and rng.random() < 0.9 else ()
        for file in range(rng.randint(*self.kind.files)):
            for source, place in self.first.sources:
                rows = []
                keys = [0 if hot and rng.random() < 0.6 else rng.randint(0, 5) for _ in range(rng.randint(0, 4))]
                if skewed:  # all of one key group, and one key of another
                    many = rng.sample(skewed, rng.randint(len(skewed) // 2, len(skewed)))
                    keys = rng.choice(([*many, COLD], [*many, COLD], [*many, COLD], many, many, many, [COLD], many[:1]))
                if self.kind is EMPTYING:
                    keys = keys[:1]
                if self.kind is PROBATION and source == "b" and rng.random() < 0.8:
                    keys = []
                for key in keys:
                    number += 1
                    at = max(0, time + rng.randint(-self.kind.late, 3)) * SECOND
                    rows.append((number, key, rng.choice(groups), rng.choice(self.kind.values), at))
                folder = f"{place}2" if rng.random() < 0.15 else place
                part = rng.randrange(partitions) if not shrinks else int(file == 0)
                files.append((folder, (f"f{file}{source}", part, rows)))
            time += rng.choice(self.kind.steps)
        self.world.coming = files

    # -- what happens ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        clock = WorldClock(self.world, 0.0, lambda: None)
        hurried = constants(
            SNAPSHOT_EVERY=(log_module, self.snapshots),
            FEWEST=(compaction_module, self.fewest),
            MOST=(compaction_module, self.most),
            MOST_EPOCHS=(merges_module, self.slowest),
            SystemClock=(worker, lambda: clock),
            _within=(trials_module, lambda seconds, work, abandon: work()),  # by real time nothing would be the same twice
        )
        with hurried, _quiet():
            self.world.arrive(self.rng.randint(0, 3))
            self.left = self.rng.randint(*self.kind.length)
            for _ in range(300):
                if self.left > 0:
                    self._turn()
            self._end()
            Verdict(self.world, self.first, self.asked).check()

    def _turn(self) -> None:
        actor = self.rng.choice(self.world.actors)
        self.world.time += self.rng.choice((0.0, 0.1, 1.0, 4.0))
        self.world.beats()
        if actor.frozen:
            actor.frozen = self.rng.random() < 0.9
        elif actor.busy:
            fate = self.rng.random()
            if fate < 0.02 and "kill" not in self.without:
                actor.kill()
            elif fate < 0.05:
                self.world.say(f"{actor.name} stands still")
                actor.frozen = True
            else:
                actor.go_on()
        elif not actor.alive:
            self._start(actor)
        else:
            self._command(actor)
        self._look(actor)
        if self.kind is EMPTYING:
            self._read()

    def _start(self, actor: Actor) -> None:
        """A process begins: with the file as it was started last, as it was first, as it would be written now, or changed by hand."""
        file, what = self.written, "as before"
        fate = self.rng.random()
        if fate < 0.3 and self.world.shelf.epochs:
            file, what = File(self._in_force()), "as edited"
        elif fate < 0.4:
            file, what = File(self.first), "as first written"
        elif fate < 0.6 and self.world.shelf.epochs and "change" not in self.without:
            file, what = self._edited(actor), "changed by hand"
        if file.edited and (self._has_moved(file) or not _memories(self._in_force()) <= _memories(file.version)):
            file, what = File(self._in_force()), "as it is in force"
        if self.world.partitions and actor.lives and self.rng.random() < 0.7:
            self.world.shrink(self.rng.choice(sorted(self.world.partitions)))
        self.world.say(f"{actor.name} starts, the file {what}")
        actor.faults.begin(self.rng)
        options = {
            "parallelism": self.rng.choice((1, 2, 3)),
            "small": self.rng.random() < 0.7,
            "ahead": self.rng.random() < self.kind.ahead,
        }

        def start() -> None:
            try:
                self._begin(actor, file, options)
                self.written = file
            except (FlowError, ConfigError) as error:
                if not file.edited:
                    raise
                self.world.say(f"  refused: {error}")
                self.written = File(self._in_force())
                self._begin(actor, self.written, options)

        actor.do(start)

    def _has_moved(self, file: File) -> bool:
        """Whether it says what was in force here, in other places than those in force: then its folders have moved, and nothing is applied.

        That counts also for places that a change has brought which was taken back: see decision 0022.
        """
        digest = write(file.version, self.world).plan().digest()
        known = digest == self.world.shelf.manifest.plan["digest"] or f"plan/{digest}.known" in self.world.shelf.objects
        now = self._in_force()
        there = dict((*now.sinks, *now.taps))
        return known and any(there.get(name, place) != place for name, place in (*file.version.sinks, *file.version.taps))

    def _begin(self, actor: Actor, file: File, options: dict[str, Any]) -> None:
        if not file.edited:
            actor.start(write(file.version, self.world), key_groups=KEY_GROUPS, **options)
            return
        self.changes.number += 1
        asked = Asked(f"m{self.changes.number}", "an edited file", [], file.version, file.rules, lasting=True)
        self.asked[asked.id] = asked
        self.world.say(f"  to be applied as {asked.id}, {file.rules or 'no rules'}: {file.version}")
        apply = {"drop_state": file.rules.get("drop", ()), "backfill": file.rules.get("backfill", {}), "timeout": 30}
        actor.start(write(file.version, self.world), key_groups=KEY_GROUPS, apply=apply, request_id=asked.id, **options)

    def _edited(self, actor: Actor) -> File:
        """The file with a change that nobody has asked for while it ran."""
        now = self._in_force()
        asked = self.changes.draw(now, actor.replica)
        if asked is None or asked.after == now or dict(asked.after.sources) != dict(now.sources):
            return File(now)
        return File(asked.after, True, asked.rules)

    def _in_force(self) -> Version:
        versions = self._versions()
        return versions[-1] if versions else self.written.version

    def _versions(self) -> list[Version]:
        """Those that were in force, epoch by epoch."""
        verdict = Verdict(self.world, self.first, self.asked)
        verdict.follow_versions()
        return [version for _, version in sorted(verdict.versions.items())]

    def _command(self, actor: Actor) -> None:
        rng, local = self.rng, actor.local
        self.left -= 1
        actor.faults.command(rng)
        kind = rng.choices(COMMANDS, self.kind.commands)[0]
        if kind in self.without:
            kind = "step"
        if kind == "step":
            self.world.say(f"{actor.name} steps")
            actor.do(actor.step)
        elif kind == "flush":
            self.world.say(f"{actor.name} flushes")
            actor.do(lambda: actor.step(flush=True))
        elif kind == "change":
            actor.do(lambda: self._change(actor))
        elif kind == "rescale" and local.loop.routing:
            actor.do(lambda: self._rescale(actor))
        elif kind == "arrive":
            self.world.arrive(rng.randint(1, self.kind.arrives))
        elif kind == "read":
            self._read()
        elif kind == "kill":
            actor.kill()

    def _rescale(self, actor: Actor) -> None:
        name = self.rng.choice(sorted(actor.local.loop.routing))
        if not self.merging or self.rng.random() < 0.1:
            self._reroute(actor, name, (1, 2, 3, 4))
            return
        # The key that is alone is written in a slot of its own; that slot goes, and then the many are written for a while.
        self._reroute(actor, name, (2, 3))
        for _ in range(self.rng.choice((self.fewest - 1, 1, 2, 3))):
            self._arrive_next(both=True)
            actor.step()
        self._reroute(actor, name, (1,))
        for _ in range(self.fewest + 1):
            actor.step()
            self._arrive_next(both=False)

    def _reroute(self, actor: Actor, name: str, slots: tuple[int, ...]) -> None:
        routing = actor.local.loop.routing
        table = rebalance(routing[name], self.rng.choice(slots))
        self.world.say(f"{actor.name} rescales {name} to {table}")
        actor.local.loop.reroute(name, table)

    def _arrive_next(self, both: bool) -> None:
        """The next file comes that has the key that is alone beside the many, or has it not."""
        for number, (_, (_, _, rows)) in enumerate(self.world.coming):
            if rows and (COLD in {row[1] for row in rows}) is both:
                self.world.coming.insert(0, self.world.coming.pop(number))
                self.world.arrive(1)
                return

    def _change(self, actor: Actor) -> None:
        asked = self.changes.draw(self._in_force(), actor.replica)
        if asked is None:
            return
        self.world.say(f"{actor.name} is asked for {asked.id}: {asked.told} {asked.rules or ''}")
        self.asked[asked.id] = asked
        try:
            trial = actor.local.propose(*asked.changes, request_id=asked.id, patience=30.0, **asked.rules)
        except FlowError as error:
            self.world.say(f"  refused: {error}")
            del self.asked[asked.id]
            return
        actor.step()
        if trial.done.done() and trial.done.exception() is None:
            self.world.say(f"  in force: {trial.done.result()[:3]}")
        elif trial.done.done():
            self.world.say(f"  {str(trial.done.exception()).splitlines()[0]}")

    def _read(self) -> None:
        """State can be read at any time."""
        for operator in sorted(self.world.shelf.manifest.routing):
            try:
                read_operator(self.world.shelf, operator)
            except ConfigError:
                continue  # there is none yet
            except Exception as error:
                raise Wrong("read_state", f"of {operator}: {type(error).__name__}: {error}") from error

    # -- how commands end -----------------------------------------------------------------------------------------

    def _look(self, actor: Actor) -> None:
        """A command may have ended, and badly."""
        error, actor.ended = actor.ended, None
        if actor.busy or error is None:
            return
        self.world.say(f"  {actor.name}: {type(error).__name__}: {str(error)[:300]}")
        if isinstance(error, Crash):
            actor.die()
        elif isinstance(error, Retryable) and actor.holds:
            raise Wrong("gives up", f"{actor.name} has ended although it was to hold: {error}") from error
        elif isinstance(error, Retryable | OSError) and "simulated" in str(error):
            actor.die()  # it gives up, and somebody starts it again
        elif isinstance(error, Wrong):
            raise error
        else:
            where = _where(error)
            raise Wrong(f"{type(error).__name__} {where}", f"{actor.name} has ended although nothing explains it: {error}") from error

    def _end(self) -> None:
        """No more faults, all input, one process to the end, and a clean start after that."""
        world = self.world
        world.say("the end begins")
        for actor in world.actors:
            actor.faults.quiet, actor.frozen = True, False
        for _ in range(5_000):
            for actor in world.actors:
                if actor.busy:
                    actor.go_on()
                    self._look(actor)
        if any(actor.busy for actor in world.actors):
            raise Wrong("stuck", f"a command does not come to an end: {_stacks()}")
        for act in world.late:
            act[1]()
        world.late = []
        world.arrive(len(world.coming))
        actor = self.rng.choice(world.actors)
        for other in world.actors:
            if other is not actor and other.alive:
                other.kill()
        for _ in range(2):
            actor.alone = True
            if not actor.alive:
                self._start(actor)
                actor.finish()
                self._look(actor)
            for _ in range(5):
                world.time += 1.0
                world.beats()
            cohort = actor.local and actor.local.cohort
            if cohort and not cohort.keeps_house():
                raise Wrong("alone", f"{actor.name} does not keep house, though {[one.name for one in cohort.siblings()]} are dead")
            for flush in (False, True):
                for _ in range(60):
                    world.time += 1.0
                    actor.do(lambda flush=flush: actor.step(flush=flush))
                    actor.finish()
                    self._look(actor)
                    if not actor.result:
                        break
                else:
                    raise Wrong("endless", "steps do not come to an end")
            self._read()
            actor.kill()


def _memories(version: Version) -> set[Any]:
    """Of a plan before an edited file nobody would have the objects that the file does not have."""
    return {(name, place) for name, place in (*version.sinks, *version.taps) if place.kind == "memory"}


def _stacks() -> str:
    """Where each thread of ours is: function by function, from the outside."""
    told = []
    for frame in sys._current_frames().values():
        names = [f"{f.name}:{f.lineno}" for f in traceback.extract_stack(frame) if "/src/meander/" in f.filename]
        if names:
            told.append(" > ".join(names))
    return " | ".join(told)


def _where(error: BaseException) -> str:
    """The innermost place of ours."""
    place, at = "", error.__traceback__
    while at is not None:
        code = at.tb_frame.f_code
        if "meander" in code.co_filename and "/tests/" not in code.co_filename:
            place = f"{code.co_filename.rsplit('/', 1)[1]}:{code.co_name}"
        at = at.tb_next
    return place


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("meander")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


def run_schedule(seed: int, without: frozenset[str] = frozenset()) -> Schedule:
    """Run one schedule; a failure says which, and all that happened."""
    schedule = Schedule(seed, without)
    try:
        schedule.run()
    except BaseException as error:
        told = "\n  ".join(schedule.world.history)
        error.add_note(f"seed {seed}: replay with python -m tests.simulation.hunt --seeds {seed}:{seed + 1}\n  {told}")
        raise
    finally:
        schedule.world.close()
    return schedule

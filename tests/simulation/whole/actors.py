"""Drivers as actors: one runs at a time, and whoever runs may be stopped, failed or killed at any call to the store.

An actor has a thread of its own and takes commands from the director. At a call to the store, at a call of a user's function, and
when it sleeps, it can be made to wait while others go on. All of it follows from the world's seed, since no two threads ever run
at once.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.local import Local
from tests.simulation.whole.faults import ROOM_AFTER, tears
from tests.simulation.whole.merges import LaggingMerges
from tests.simulation.whole.world import World, WorldClock, Wrong

from meander import errors
from meander.errors import Retryable
from meander.replicate.membership import AHEAD
from meander.state.signs import place_of

LONGEST = 20_000
"""So often nobody sleeps in a command: all that is simulated to be away comes back long before."""
_VIEWS = itertools.count()


class Crash(BaseException):
    """The process is gone. Not an Exception: no handler of ours may survive it."""


class View:
    """One process's connection to the store. Implements Store; every fault happens here."""

    def __init__(self, actor: Actor) -> None:
        self.actor, self.shelf = actor, actor.world.shelf
        self.url = f"memory://life/{next(_VIEWS)}"  # segments are kept open by their store's name
        self.dead = False

    def get(self, name: str) -> bytes | None:
        return self._act("get", name, lambda: self.shelf.get(name))

    def get_range(self, name: str, start: int, length: int) -> bytes | None:
        return self._act("get", name, lambda: self.shelf.get_range(name, start, length))

    def map(self, name: str) -> pa.Buffer | None:
        return self._act("get", name, lambda: self.shelf.map(name))

    def put(self, name: str, data: Any) -> None:
        torn = (lambda: self.shelf.put(name, b"")) if tears() else None
        self._act("put", name, lambda: self.shelf.put(name, data), torn=torn)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return bool(self._act("create", name, lambda: self.shelf.put_if_absent(name, data)))

    def list(self, prefix: str) -> list[str]:
        found = sorted(self._act("list", prefix, lambda: self.shelf.list(prefix)))
        self.actor.world.rng.shuffle(found)
        return found

    def delete(self, name: str) -> None:
        self._act("delete", name, lambda: self.shelf.delete(name))

    def delete_all(self, names: Sequence[str]) -> None:
        for name in names:  # a crash, or a failure, may come between any two
            self.delete(name)

    def local(self, name: str) -> Path | None:
        if name:
            self.actor.point()
        return self.shelf.local(name)

    def _act(self, verb: str, name: str, effect: Callable[[], Any], torn: Callable[[], None] | None = None) -> Any:
        actor, world = self.actor, self.actor.world
        if self.dead:
            raise Crash
        actor.point()
        world.operations += 1
        if world.late:
            due = [act for at, act in world.late if at <= world.operations]
            world.late = [(at, act) for at, act in world.late if at > world.operations]
            for act in due:
                act()
        fault = actor.faults.next(world.rng, verb, name)
        if fault is None:
            return effect()
        kind, dies = fault
        world.say(f"  {actor.name}: {'dies' if dies else 'fails'} {kind} {verb} {name}")
        result: Any = None
        if kind in ("after", "twice"):
            result = effect()
        elif kind == "late" and verb in ("put", "create"):
            world.late.append((world.operations + world.rng.randrange(1, 80), effect))
        elif kind in ("torn", "full") and torn is not None:
            torn()
        if kind == "full" and actor.faults.refused == ROOM_AFTER:
            self._check_room()
        if dies:
            actor.die()
            raise Crash
        if kind == "twice" and verb == "create":
            return False  # the connection asked again by itself, and met its own success
        if kind == "twice":
            return result
        error = getattr(errors, "Unavailable", Retryable)(f"simulated: no answer to {verb} {name}")
        error.refused = kind == "full"
        raise error

    def _check_room(self) -> None:
        """A disk has been full for many tries: a run alone takes away what it wrote for the epoch that failed.

        Not before it is certain that the epoch has failed: an entry that was not answered may name it.
        """
        actor, shelf = self.actor, self.shelf
        if actor.replica or actor.local is None or actor.faults.removed or actor.local.loop.log.is_in_doubt:
            return
        manifest = shelf.manifest
        left = []
        for name in (*shelf.list("segments/"), *shelf.list("staged/")):
            owner, epoch, number = (*name.rsplit("/", 1)[1].split("-"), "", "")[:3]
            if number.isdigit() and (int(owner), int(epoch)) == (manifest.generation, manifest.epoch + 1):
                left.append(name)
        if left:
            raise Wrong("full disk", f"{ROOM_AFTER} writes found no room, and of epoch {manifest.epoch + 1}, which failed, there is {left}")


class Actor:
    """A process of a name: it lives, dies, and comes back."""

    def __init__(self, world: World, name: str, faults: Any, skew: float = 0.0, replica: bool = False) -> None:
        self.world, self.name, self.faults, self.replica = world, name, faults, replica
        self.clock = WorldClock(world, skew, self._slept)
        self.command: Callable[[], Any] | None = None
        self.thread: threading.Thread | None = None
        self.begin = threading.Semaphore(0)
        self.director = threading.Semaphore(0)
        self.mine = threading.Semaphore(0)
        self.local: Local | None = None
        self.view: View | None = None
        self.lives = 0
        self.busy = False
        self.killed = False
        self.frozen = False
        """Stopped for a while, its signs of life as well."""
        self.beaten = -1.0
        self.alone = True
        """Whether nobody else could run meanwhile."""
        self.chance = 0.0
        """Of another one's turn, at each point."""
        self.sleeps = 0
        """How often it has slept in this command."""
        self.holds = False
        """Whether what it does is not given up because the store, or a sink, does not answer."""
        self.ended: BaseException | None = None
        self.result: Any = None

    @property
    def alive(self) -> bool:
        return self.local is not None

    # -- the director's side --------------------------------------------------------------------------------------

    def do(self, command: Callable[[], Any]) -> None:
        """Begin a command; returns when it is done or waits."""
        assert not self.busy
        self.busy, self.ended, self.result, self.holds, self.sleeps = True, None, None, False, 0
        self.world.running = self
        self.command = command
        if self.thread is None:
            self.thread = threading.Thread(target=self._perform, name=f"actor-{self.name}", daemon=True)
            self.thread.start()
        self.begin.release()
        self.director.acquire()

    def go_on(self) -> None:
        """Let a command that waits go on."""
        assert self.busy
        self.world.running = self
        self.mine.release()
        self.director.acquire()

    def finish(self) -> None:
        while self.busy:
            self.go_on()

    def kill(self) -> None:
        """The process ends wherever it is."""
        self.world.say(f"{self.name} is killed")
        if self.view is not None:
            self.view.dead = True
        self.killed = True
        self.finish()
        self.killed = False
        self.die()

    def die(self) -> None:
        if self.view is not None:
            self.view.dead = True
        cohort = None if self.local is None else self.local.cohort
        if cohort is not None and self.world.rng.random() < 0.3:  # it was just writing its sign of life
            self.world.shelf.put(place_of(cohort._generation, self.name), b"")
        self.local = None

    def close(self) -> None:
        """The world ends."""
        if self.busy:
            self.kill()
        if self.thread is not None:
            self.command = None
            self.begin.release()
            self.thread.join()

    def _perform(self) -> None:
        while True:
            self.begin.acquire()
            if self.command is None:
                return
            try:
                self.result = self.command()
            except BaseException as error:
                self.ended = error
            self.busy = False
            self.director.release()

    # -- the process's side ---------------------------------------------------------------------------------------

    def point(self) -> None:
        """Somebody else may go on here."""
        if self.killed or (self.view is not None and self.view.dead):
            raise Crash
        world = self.world
        if world.coming and world.rng.random() < 0.01:
            world.arrive(1)
        if not self.alone and world.rng.random() < self.chance:
            self._wait()

    def call(self, what: str) -> None:
        """A user's function is called, which may find its database away."""
        self.point()
        fault = self.faults.next(self.world.rng, "call", what)
        if fault is not None:
            self.world.say(f"  {self.name}: {'dies' if fault[1] else 'fails'} before {what}")
            if fault[1]:
                self.die()
                raise Crash
            raise OSError(f"simulated: no answer to {what}")

    def _wait(self) -> None:
        if not self.busy:
            return
        self.world.look_at_output()
        self.director.release()
        self.mine.acquire()
        if self.killed:
            raise Crash

    def _slept(self) -> None:
        if self.killed:
            raise Crash
        self.sleeps += 1
        held = None if self.local is None else self.local.loop.patience.held
        if held is not None and "create manifest/" in held.why:
            raise Wrong("holds", f"{self.name} waits for a snapshot, which says nothing that the log does not: {held.why}")
        if self.sleeps > LONGEST:
            raise Wrong("stuck", f"{self.name} waits in one command for the {self.sleeps}th time: {held}")
        self.world.beats()
        if not self.alone:
            self._wait()

    def start(self, flow: Any, **options: Any) -> None:
        """A new process on the store."""
        self.lives += 1
        self.view = View(self)
        self.faults.begin(self.world.rng)
        local = Local(
            flow,
            self.world.folder / "state",
            store=self.view,
            clock=self.clock,
            replica=self.name if self.replica else None,
            merges=lambda store, groups: LaggingMerges(store, groups, self.world.rng, self.world.lag),
            **options,
        )
        local.worker.stores[self.view.url] = self.view
        begin = local.loop.attempts.runner.begin

        def note(decision: Any, *rest: Any) -> Any:
            self.world.flushing[decision.epoch] = decision.flush
            self.world.counting[decision.epoch] = dict(self.world.partitions)
            if decision.flush and self.world.rng.random() < 0.5:
                self.world.arrive(1)  # while it runs
            return begin(decision, *rest)

        local.loop.attempts.runner.begin = note  # type: ignore[method-assign]
        if local.cohort is not None:
            local.loop.input._time = partial(self._decides_at, local.cohort, local.loop.input._time)
        self.local = local

    def _decides_at(self, cohort: Any, time: Callable[[], float]) -> float:
        """The time of a decision: not far ahead of the clocks of half of the others that it knows to live."""
        found, known = time(), {one.name for one in cohort.siblings() if one.sign.said is not None}
        clocks = sorted([self.clock.now(), *(other.clock.now() for other in self.world.actors if other.name in known)])
        if found > clocks[(len(clocks) - 1) // 2] + AHEAD + 1.0:
            raise Wrong("clock", f"{self.name} decides at {found}, the clocks of those that live are {clocks}")
        return found

    def beat(self) -> None:
        """What the thread beside the loop does every half second."""
        if self.local is None or self.local.cohort is None or self.killed or self.frozen:
            return
        cohort, view = self.local.cohort, self.view
        store, cohort._store = cohort._store, self.world.shelf
        try:
            if not (view is None or view.dead):
                cohort.beat()
                cohort.look()
        finally:
            cohort._store = store

    def step(self, flush: bool = False) -> bool:
        assert self.local is not None
        self.holds = True
        loop = self.local.loop
        loop.input.look()
        persevere = getattr(loop, "persevere", None) or (loop.siblings and loop.siblings.persevere)
        if persevere:
            return bool(persevere(loop.step, everything=True, flush=flush))
        return loop.step(everything=True, flush=flush)

"""The supervisor: starts replicas as processes of their own, watches them, brings back what dies, and changes their number while they run.

Two things are looked at: the processes (are they there?) and the signs of life in the store (do they get on?). ``step`` looks at the
processes and decides; ``observe`` talks to the store. They run in two threads, so that a store that does not answer holds up no restart.

Replicas need no supervisor to run: they agree among themselves. If it is killed they go on, and the next supervisor of the store adopts
those that run on its machine. If it is stopped it stops them.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meander.clock import Clock
from meander.errors import Busy, ConfigError, Fenced, MeanderError, Retryable
from meander.processes import ProcessId
from meander.replicate.member import Change, Member, Steps, names
from meander.replicate.priority import LowPriority
from meander.replicate.process import Adopted, Child, Ended, last_lines, replicas_here
from meander.replicate.requests import (
    SUPERVISOR,
    answer,
    asked,
    check_wish,
    claim_term,
    forget,
    live_supervisor,
    newest_term,
    raised,
    refusal,
    say,
)
from meander.replicate.restarts import Death, Patience, Restarts
from meander.state.log import newest_generation, read_manifest
from meander.state.signs import SILENT_AFTER, Sighting, Watch, parse
from meander.state.stores.contract import Store
from meander.state.stores.opening import put_format

OBSERVE_EVERY = 0.5
STEP_EVERY = 0.1

Command = Callable[[str, bool], Sequence[str]]
"""The command line of a replica, by its name; the second argument says whether it is its first start."""


@dataclass(frozen=True)
class Orders:
    """The replicas that are wanted."""

    command: Command
    count: int
    logs: Path
    """The folder of their output."""


class Supervisor:
    """The replicas of one store on this machine. ``start``, then ``step`` again and again until ``over``; or ``run`` in a thread."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        orders: Orders,
        *,
        patience: Patience | None = None,
        tell: Callable[[str], None] = lambda text: None,
        prepare: Callable[[bool], Callable[[], None]] = lambda adopting: lambda: None,
    ) -> None:
        """``prepare`` is called when this supervisor has the store, with whether replicas run
        already. The function that it returns is called when they have ended."""
        self._store, self._clock = store, clock
        self._command, self._count, self.logs = orders.command, orders.count, orders.logs
        self._patience = patience or Patience()
        self._tell, self._prepare = tell, prepare
        self._let_go: Callable[[], None] = lambda: None
        self._host = socket.gethostname()
        self._nonce = clock.new_id()
        self._number = 0
        self._watch = Watch(store, clock)
        self._sightings: dict[str, Sighting] = {}
        self._lock = threading.RLock()
        self._members: dict[str, Member] = {}
        self._changes: list[Change] = []
        self._taken_up: dict[str, Future[list[str]]] = {}
        self._first_alone = False
        self._stopping = False
        self._closed = False
        self._finished = False
        self.replaced = False
        """Whether another supervisor has taken the store: then the replicas are its own."""
        self._term = 0
        self._stepped = self._woke_up = clock.monotonic()
        """When we stepped last, and when we did so after a pause."""
        self._sure_at = self._woke_up
        """When we last knew that no other supervisor has replaced us. None is started by one that was paused since."""
        self._last_error = ""
        self._unwanted: list[str] = []
        """Signs of replicas that have left, to be removed."""
        self._halt = threading.Event()
        self._observer = threading.Thread(target=self._observe_again_and_again, name="meander-supervisor-store", daemon=True)

    # -- beginning --------------------------------------------------------------------------------------------------

    def start(self) -> Supervisor:
        """Adopt the replicas of this store that run on this machine, and start those that are missing. Busy beside another supervisor."""
        if self._count < 1:
            raise ConfigError(f"replicas={self._count}: at least 1")
        put_format(self._store, self._clock)
        last = newest_term(self._store)
        self._refuse_beside_another()
        self._term = last + 1
        if not claim_term(self._store, self._term, self._nonce):
            raise Busy(f"store {self._store.url}: another supervisor is started at the same time; nothing was touched")
        self._say()  # whoever comes now finds us
        forget(self._store)
        self.logs.mkdir(parents=True, exist_ok=True)
        self._sightings = self._watch.settle()
        self._take_up_those_that_run()
        adopted = list(self._members)
        at_work = any(member.came_up is not None for member in self._members.values())
        self._first_alone = not at_work and newest_generation(self._store) > 0 and not read_manifest(self._store).shared
        self._let_go = self._prepare(bool(adopted))
        try:
            for _ in range(self._count - len(adopted)):
                self._join(self._free_name())
            for name in adopted[self._count :]:
                self.drain(name)
            self.observe()
            if self.replaced:
                raise Busy(f"store {self._store.url}: another supervisor was started at the same time; it goes on, and nothing was touched")
            self._observer.start()
            self.step()
        except BaseException:
            self.stop()
            raise
        return self

    def _refuse_beside_another(self) -> None:
        last = ProcessId.from_json(parse(self._store.get(SUPERVISOR)) or {})
        if last is not None and last.is_here and not last.is_running:
            return  # it need not be watched to be known as dead
        live = live_supervisor(self._store, self._clock)
        if live is not None:
            raise Busy(
                f"store {self._store.url} has a supervisor at work (process {live['process']} on {live['host']}); nothing was touched. "
                "Change the number of its replicas with `meander replicas add` and `drain`, or stop it first"
            )

    def _take_up_those_that_run(self) -> None:
        """Adopt every replica of this store that runs here: at work, hung, or without a sign of life yet. None is to run twice."""
        here = replicas_here(self._store.url)
        for name, seen in sorted(self._sightings.items()):
            process = seen.sign.process
            if process is not None and process.is_running and (seen.alive or (name, process) in here):
                self._adopt(name, process, self._clock.monotonic())
            elif not seen.alive:
                self._store.delete(seen.sign.place)  # of a process that could not say goodbye
        for name, process in here:
            if name not in self._members and not (name in self._sightings and self._sightings[name].alive):
                self._adopt(name, process, None)
            elif name not in self._members or self._members[name].process_id != process:
                self._tell(f"replica {name} runs twice: process {process.pid} is killed")
                Adopted(process, self._log(name), self._ended(name)).kill()

    def _adopt(self, name: str, found: ProcessId, came_up: float | None) -> None:
        """``came_up`` is None where it may be just starting."""
        now = self._clock.monotonic()
        process, state = Adopted(found, self._log(name), self._ended(name)), "starting" if came_up is None else "running"
        self._members[name] = Member(name, Restarts(self._patience), state, process, now, came_up=came_up, adopted=True)
        self._members[name].priority = LowPriority.overdue(found.pid)
        self._tell(f"replica {name} runs already (process {found.pid}): adopted")

    def _join(self, name: str) -> Member:
        self._members[name] = member = Member(name, Restarts(self._patience), next_start=self._clock.monotonic())
        return member

    def _free_name(self) -> str:
        taken = {name for name, member in self._members.items() if member.state != "left"}
        taken |= {name for name, seen in self._sightings.items() if seen.alive}
        return next(name for name in names() if name not in taken)

    # -- what is asked of it ----------------------------------------------------------------------------------------

    def add(self, count: int = 1) -> Future[list[str]]:
        """So many more replicas. Done when they are at work."""
        with self._lock:
            self._refuse_at_the_end()
            if not 1 <= count <= 16:
                raise ConfigError(f"add {count} replicas: a number from 1 to 16 is needed")
            added = [self._join(self._free_name()) for _ in range(count)]
            return self._begin(self._until_caught_up(added), [member.name for member in added])

    def drain(self, name: str) -> Future[list[str]]:
        """Let a replica finish its epoch and leave for good. Done when it has."""
        with self._lock:
            self._refuse_at_the_end()
            member = self._member(name)
            others = [one for one in self._members.values() if one is not member and not one.is_over]
            if not others:
                raise ConfigError(f"replica {name} is the only one: without it the flow stands still; add another first, or stop the run")
            return self._begin(self._letting_go(member), [name])

    def restart(self, name: str | None = None) -> Future[list[str]]:
        """One replica after the other ends and begins anew; the next when that one has caught up. Done when all have."""
        with self._lock:
            self._refuse_at_the_end()
            chosen = sorted(self._members) if name is None else [self._member(name).name]
            return self._begin(self._one_after_the_other(chosen), chosen)

    def stop(self) -> None:
        """Let all replicas finish their epochs; kill those that do not within the grace: nothing is lost or doubled by that, either."""
        with self._lock:
            if self._closed:
                return
            if not self._stopping and not self.replaced:
                self._stopping = True
                for change in self._changes:
                    change.steps.close()
                    change.done.set_exception(ConfigError("the supervisor was stopped before this was done"))
                self._changes = []
                for member in self._members.values():
                    self._send_off(member)
        try:
            while not self.replaced and any(member.process is not None for member in self._members.values()):
                self.step()
                self._clock.sleep(STEP_EVERY / 2)
        finally:
            self.close()
            if not self.replaced:
                self._let_go()

    def kill(self) -> None:
        """End all replicas now."""
        there = [member.process for member in self._members.values() if member.process is not None]
        for process in there:
            process.kill()
        until = self._clock.monotonic() + SILENT_AFTER
        while any(process.ended() is None for process in there) and self._clock.monotonic() < until:
            self._clock.sleep(STEP_EVERY / 2)

    def close(self) -> None:
        """Stop watching; replicas that run go on."""
        self._closed = True
        self._halt.set()
        if self._observer.is_alive():
            self._observer.join(5.0)
        with contextlib.suppress(MeanderError):
            if not self.replaced and self._number:
                for identity, future in list(self._taken_up.items()):
                    if future.done():
                        self._answer(identity, future)
                self._store.delete(SUPERVISOR)

    # -- what it sees -----------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether there is nothing to watch any more: the input has ended, or no replica is left."""
        with self._lock:
            return self.replaced or (not self._changes and all(member.is_over for member in self._members.values()))

    @property
    def at_work(self) -> bool:
        """Whether a replica has shown that it gets on, now or before it finished."""
        return any(member.state in ("running", "finished") for member in self._members.values())

    @property
    def outcome(self) -> str:
        """finished, stopped, failed, or running."""
        if not self.over:
            return "running"
        if any(member.state == "finished" for member in self._members.values()):
            return "finished"
        return "stopped" if self._stopping else "failed"

    def failure(self) -> MeanderError | None:
        """The reason that no replica is left, as the kind of error that the last one ended with;
        None where that is not so."""
        if self.replaced:
            return Fenced(f"store {self._store.url}: another supervisor has taken its replicas over; this one has let go of them")
        if self.outcome != "failed":
            return None
        member = next(one for one in reversed(self._members.values()) if one.state == "given up")
        said = f"no replica is left; {member.name} was given up: {member.error} (its output: {self._log(member.name)})"
        return raised({"error": said, "kind": member.kind})

    def replicas(self) -> list[dict[str, Any]]:
        """The record of each replica, as plain data."""
        with self._lock:
            newest = self.epoch
            return [
                {
                    "name": member.name,
                    "state": member.state,
                    "epoch": member.epoch,
                    "lag": None if member.epoch is None or member.process is None else max(0, newest - member.epoch),
                    "restarts": member.restarts,
                    "process": None if member.process_id is None else member.process_id.pid,
                    "host": self._host,
                    "url": member.url if member.process is not None else None,
                    "error": member.error,
                    "log": str(self._log(member.name)),
                }
                for _, member in sorted(self._members.items())
            ]

    @property
    def epoch(self) -> int:
        """The newest epoch that any replica has reached."""
        return max((seen.sign.epoch for seen in self._sightings.values()), default=0)

    def last_lines(self, name: str) -> list[str]:
        """The last lines of a replica's output before it was given up."""
        return self._members[name].last_lines

    # -- one look at the processes ----------------------------------------------------------------------------------

    def step(self) -> None:
        """Look at the processes, do what is due. Takes no time."""
        with self._lock:
            now = self._clock.monotonic()
            if now - self._stepped > SILENT_AFTER:  # we were paused, and taken for dead perhaps
                self._woke_up = now
            self._stepped = now
            for member in list(self._members.values()):
                self._tend(member, now)
            for change in list(self._changes):
                self._resume(change)

    def run(self, until: threading.Event) -> None:
        """Step until there is nothing to do any more."""
        while not until.is_set() and not self.over:
            self.step()
            until.wait(STEP_EVERY)

    def _tend(self, member: Member, now: float) -> None:
        if member.process is None:
            if member.state == "waiting" and now >= member.next_start and self._sure_at >= self._woke_up and not self._must_wait(member):
                self._launch(member, now)
            return
        ended = member.process.ended()
        if ended is not None:
            self._bury(member, ended, now)
            return
        seen = self._sightings.get(member.name)
        if seen is not None and seen.sign.process != member.process.id:
            seen = None
        if seen is not None:
            self._hear(member, seen, now)
        member.mind_others(self._members.values(), now)
        if member.asked_to_end is not None:
            member.state = "stopping"
            if now - member.asked_to_end > self._patience.grace:
                self._tell(f"replica {member.name} has not ended within {self._patience.grace:g} s: killed")
                member.process.kill()
                member.asked_to_end = now
            return
        if self._finished and member.came_up is None:
            member.process.kill()  # what it would do is done
            return
        state = "starting" if member.came_up is None else "running" if seen is not None and seen.silence < SILENT_AFTER else "silent"
        if state != member.state:
            if state == "silent" or member.state == "silent":
                self._tell(f"replica {member.name} is {state}")
            member.state = state
        trouble = self._trouble(member, seen, now)
        if trouble is not None and member.trouble is None:
            self._tell(f"replica {member.name} {trouble}: killed")
            member.trouble = trouble
            member.process.kill()

    def _hear(self, member: Member, seen: Sighting, now: float) -> None:
        if member.came_up is None:
            member.came_up, member.epoch_since = now, now
            self._first_alone = False
            self._tell(f"replica {member.name} is at work, after {now - member.launched:.1f} s")
        if seen.sign.epoch != member.epoch:
            member.epoch, member.epoch_since = seen.sign.epoch, now
        member.url = None if seen.sign.said is None else seen.sign.said.url

    def _trouble(self, member: Member, seen: Sighting | None, now: float) -> str | None:
        """Why a process that is there should not go on."""
        patience = self._patience
        if member.came_up is None:
            return f"gave no sign of life within {patience.start:g} s" if now - member.launched > patience.start else None
        if seen is not None and seen.silence > patience.hang:
            return f"has been silent for {patience.hang:g} s"
        lag = self.epoch - (member.epoch or 0)
        if lag >= patience.stuck_lag and now - member.epoch_since > patience.stuck:
            return f"has not got on for {patience.stuck:g} s and is {lag} epochs behind"
        return None

    def _must_wait(self, member: Member) -> bool:
        """The first replica takes the store over from a run that was alone; the others join it there."""
        return self._first_alone and any(one is not member and one.process is not None for one in self._members.values())

    def _launch(self, member: Member, now: float) -> None:
        try:
            member.process = self._start_process(member)
        except OSError as error:  # the disk is full, say, or there are too many processes: that passes
            member.error, delay = f"it cannot be started: {error}", member.record.after(Death(0.0, by_itself=False)) or STEP_EVERY
            member.next_start = now + delay
            self._tell(f"replica {member.name}: {member.error}; it is tried again in {delay:g} s")
            return
        member.priority = LowPriority.begin(member.process.id.pid, now) if member.is_beside(self._members.values()) else None
        member.launches += 1
        member.state, member.launched, member.came_up, member.asked_to_end, member.epoch = "starting", now, None, None, None
        self._tell(f"replica {member.name} is started (process {member.process.id.pid})")

    def _start_process(self, member: Member) -> Child:
        name = member.name
        return Child(self._command(name, member.launches == 0), self._log(name), self._ended(name), self._store.url, name)

    def _bury(self, member: Member, ended: Ended, now: float) -> None:
        """A process has ended: find out whether that was intended, and decide on a restart."""
        assert member.process is not None
        member.process.kill()  # what it has left behind
        meant, lived = member.asked_to_end is not None, None if member.came_up is None else now - member.came_up
        member.process, member.url, member.asked_to_end = None, None, None
        if meant:
            member.state = "stopped" if self._stopping else "left"
            return
        if ended.outcome == "finished":
            member.state, self._finished = "finished", True
            self._tell(f"replica {member.name} has finished: its input has ended")
            return
        if self._finished:  # what it would come back for is done
            member.state = "finished"
            return
        member.kind = ended.kind
        member.error, member.trouble = member.trouble or ended.text or ended.outcome, None
        delay = member.record.after(Death(lived, ended.outcome == "failed", ended.kind, known=bool(self._sightings)))
        if delay is None:
            member.state = "given up"
            member.last_lines = last_lines(self._log(member.name))
            self._tell(f"replica {member.name} is given up: {member.error}")
            return
        member.state, member.next_start = "waiting", now + delay
        self._tell(f"replica {member.name} has died: {member.error}; it is started again {'at once' if not delay else f'in {delay:g} s'}")

    # -- changes ----------------------------------------------------------------------------------------------------

    def _begin(self, steps: Steps, names: list[str]) -> Future[list[str]]:
        change = Change(steps, names, Future())
        self._changes.append(change)
        return change.done

    def _resume(self, change: Change) -> None:
        try:
            next(change.steps)
            return
        except StopIteration:
            change.done.set_result(change.names)
        except MeanderError as error:
            change.done.set_exception(error)
        self._changes.remove(change)

    def _until_caught_up(self, members: list[Member]) -> Steps:
        for member in members:
            while not self._has_caught_up(member):
                if member.state == "given up":
                    raise raised({"error": f"replica {member.name} was given up: {member.error}", "kind": member.kind})
                yield

    def _has_caught_up(self, member: Member) -> bool:
        return member.state == "finished" or (member.state == "running" and self.epoch - (member.epoch or 0) <= 1)

    def _letting_go(self, member: Member) -> Steps:
        self._send_off(member)
        while member.process is not None:
            yield
        if self._members.get(member.name) is member:
            del self._members[member.name]
        seen = self._sightings.get(member.name)
        if seen is not None and seen.sign.process is not None and seen.sign.process.is_here:
            self._unwanted.append(seen.sign.place)
            self._sightings = {name: one for name, one in self._sightings.items() if name != member.name}
        self._tell(f"replica {member.name} has left")

    def _one_after_the_other(self, chosen: list[str]) -> Steps:
        for name in chosen:
            member = self._members.get(name)
            if member is None or member.state == "finished":
                continue
            self._send_off(member)
            while member.process is not None:
                yield
            member.record, member.error, member.kind = Restarts(self._patience), None, None
            member.state, member.next_start = "waiting", self._clock.monotonic()
            yield from self._until_caught_up([member])
            self._tell(f"replica {name} is back and has caught up")

    def _send_off(self, member: Member) -> None:
        if member.process is not None:
            member.asked_to_end = self._clock.monotonic()
            member.process.terminate()
        elif not member.is_over:
            member.state = "stopped" if self._stopping else "left"

    def _member(self, name: str) -> Member:
        member = self._members.get(name)
        if member is None:
            raise ConfigError(f"there is no replica '{name}' here; there are: {', '.join(sorted(self._members))}")
        return member

    def _refuse_at_the_end(self) -> None:
        if self._stopping or self._closed or self._finished:
            raise ConfigError("the replicas are about to end: nothing is changed any more")

    # -- the store --------------------------------------------------------------------------------------------------

    def observe(self) -> None:
        """Look at the signs of life, take up what is asked, say that we are there. Retryable where the store does not answer."""
        began = self._clock.monotonic()
        before = (parse(self._store.get(SUPERVISOR)) or {}).get("term")
        if isinstance(before, int) and before > self._term:  # one before us may write once more when it wakes up: that is no matter
            self.replaced = True
            return
        while self._unwanted:
            self._store.delete(self._unwanted[0])
            del self._unwanted[0]
        self._sightings = self._watch.look()
        for identity, wish in asked(self._store).items():
            if identity not in self._taken_up:
                self._taken_up[identity] = self._take_up(wish)
        for identity, future in list(self._taken_up.items()):
            if future.done():
                self._answer(identity, future)
        self._say()
        self._sure_at = began

    def _say(self) -> None:
        """Write the supervisor's sign of life, with its records."""
        self._number += 1
        say(self._store, self._term, self._number, ProcessId.mine(), self._clock.now(), self.replicas())

    def _take_up(self, wish: dict[str, Any]) -> Future[list[str]]:
        try:
            check_wish(wish)
            match wish:
                case {"do": "add", "count": int(count)}:
                    return self.add(count)
                case {"do": "drain", "name": str(name)}:
                    return self.drain(name)
                case {"do": "restart", "name": str(name) | (None as name)}:
                    return self.restart(name)
            raise ConfigError(f"the supervisor does not understand {json.dumps(wish)}; it may be of another version")
        except MeanderError as error:
            refused: Future[list[str]] = Future()
            refused.set_exception(error)
            return refused

    def _answer(self, identity: str, future: Future[list[str]]) -> None:
        error = future.exception()
        answer(self._store, identity, refusal(error) if error is not None else {"names": future.result(), "replicas": self.replicas()})
        self._taken_up.pop(identity, None)

    def _observe_again_and_again(self) -> None:
        while not self._halt.wait(OBSERVE_EVERY):
            try:
                self.observe()
            except Retryable:
                continue  # the store is away: the replicas wait for it, too
            except Exception as error:  # whatever it is: a supervisor that says nothing any more is taken for dead, and answers nobody
                if str(error) != self._last_error:
                    self._last_error = str(error)
                    self._tell(f"the supervisor cannot look after the store: {type(error).__name__}: {error}; it tries again")

    def _log(self, name: str) -> Path:
        return self.logs / f"replica-{name}.log"

    def _ended(self, name: str) -> Path:
        return self.logs / f"replica-{name}.ended"

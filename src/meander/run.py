"""Run: the handle of a running flow."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from meander.clock import Clock, SystemClock
from meander.coordinate.migration import check_strategy, plan_bringing
from meander.coordinate.routing import check_slots, slots_of
from meander.errors import ConfigError, Rejected, Retryable
from meander.familiar.names import RUN
from meander.modifying import Modifiable, Planned, Wish
from meander.outcomes import Migrated, Progress, Rescaled
from meander.plan.change.as_json import changes_from_json
from meander.plan.change.effects import Effects
from meander.plan.change.modify import StateRules
from meander.plan.schemas import did_you_mean
from meander.settings import Settings, Strategy, seconds
from meander.status import show_epoch, show_executors, show_holding, show_operators, show_scaling, show_stages

if TYPE_CHECKING:
    from meander.control.push import Pusher
    from meander.control.server import Server
    from meander.epochs.decision import EpochDone
    from meander.epochs.modification import Modified
    from meander.epochs.probation import Trial
    from meander.on_spark.opening import Opened
    from meander.plan.graph import Plan

Result = TypeVar("Result")
_FAILURES = logging.getLogger("meander.failure")
"""What ended a run; a command silences it, because its last line says the same. Where a program has not set logging up, Python writes
what is said here to standard error."""


_PLAIN = ("dry_run", "request_id", "author", "drop_state", "backfill", "timeout")


class Run(Modifiable):
    """A running flow: ask it, change it, stop it.

    The flow runs in a thread of its own (unless ``trigger=None``: then only in ``process_available``). A failure stops it, is said on
    standard error at once, and is raised by the next call that waits for it, ``stop`` and the end of a ``with`` block included.

    Example: ``with flow.start("state/") as run: print(run.status())``, where ``run`` is a ``md.Run``.
    """

    _instead = RUN

    def __init__(self, name: str, opened: Opened, settings: Settings, clock: Clock) -> None:
        self.name = name
        self._modifier = opened.modifier
        self._server: Server | None = None
        self._pusher: Pusher | None = None
        self._driver = opened.driver
        self._loop = loop = opened.driver.loop
        self._settings = settings
        self._clock = clock
        self._on_close = opened.close
        self._listeners = opened.listeners
        self._placement = opened.placement
        self._migration = opened.migration
        self._autoscaler = opened.autoscaler
        self._application = opened.application
        self._cohort = opened.cohort
        self._listeners.append(lambda done: self._recent.append(done))
        self.spark: Any = opened.session
        """The embedded Spark session, where this run made one."""
        self._stepping = threading.RLock()
        self._changing = threading.Lock()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._failure: BaseException | None = None
        self._failure_raised = False
        """Whether the failure was raised where a caller could see it."""
        self._recent: deque[EpochDone] = deque(maxlen=50)
        self._reported: dict[str, int] = dict(loop.log.manifest.totals)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"meander-{name}", daemon=True)
        if settings.trigger is not None:
            self._thread.start()

    # -- what users call ------------------------------------------------------------------------------------------

    def process_available(self, flush: bool = False) -> Progress:
        """Process all input there is, then return what was processed since the last such call (or the start).

        Input that comes during the call may be left for the next one. ``flush`` closes what is
        still open in event time; a flow without event time has nothing open. Rows that come later
        for what it has closed are late.

        Example: ``print(run.process_available().rows_in)``.
        """
        self._alone(self._driver.look)
        while self._alone(lambda: self._driver.step(everything=True)):
            pass
        while flush and self._alone(lambda: self._driver.step(everything=True, flush=True)):
            pass
        totals = self._loop.log.manifest.totals
        done = {name: value - self._reported.get(name, 0) for name, value in totals.items()}
        self._reported = dict(totals)
        return Progress(done.get("epochs", 0), done.get("rows_in", 0), done.get("rows_out", 0), done.get("dead_letters", 0))

    def await_termination(self, timeout: float | str | None = None) -> bool:
        """Wait until the flow has ended (its sources are exhausted, or it was stopped). False where the timeout came first.

        Example: ``run.await_termination(timeout="1h")``.
        """
        if self._settings.trigger is None:
            raise ConfigError("this run has trigger=None: it runs only in process_available(), there is nothing to wait for")
        self._thread.join(seconds(timeout))
        self._check()
        return not self._thread.is_alive()

    def rescale(self, operator: str, parallelism: int, strategy: Strategy = "hybrid", timeout: float | str | None = "60s") -> Rescaled:
        """Give a stateful operator another number of slots while the flow runs. In force from the next epoch on; nothing is stopped.

        Returns when it is in force. ``strategy`` says how the new owners get the state that moves: ``"eager"``, ``"lazy"``,
        ``"prefetch"`` or ``"hybrid"``.

        Example: ``run.rescale("totals", 4)``.
        """
        routing = self._loop.routing
        check_slots(routing, operator, parallelism)
        check_strategy(strategy)
        before = slots_of(routing[operator])
        with self._changing:
            moved = self._migration.rescale(
                operator, parallelism, strategy, lambda switch: self._between_epochs(switch, timeout), seconds(timeout) or 3600.0
            )
        fetched = moved.from_peers + moved.from_store
        return Rescaled(
            operator, before, parallelism, moved.groups, strategy, moved.epoch, fetched, tuple(moved.failures), moved.from_store
        )

    def _modify(self, wish: Wish) -> Modified | Effects:
        rules = StateRules(wish.drop_state, wish.upgrade, wish.backfill)
        modifier = self._modifier
        assert modifier is not None
        if wish.dry_run:
            return modifier.dry_run(wish.changes, rules)
        self._check()
        identity, limit = wish.request_id or self._clock.new_id(), seconds(wish.timeout)
        with self._changing:
            known = modifier.known(identity)
            if known is not None:
                return known
            modifier.dry_run(wish.changes, rules)  # what cannot be is refused before an epoch waits for it
            request = modifier.request(identity, wish.changes, rules, wish.author, wish.guard, limit or 3600.0)
            trial = self._between_epochs(lambda: modifier.propose(request), wish.timeout)
            return self._await(trial, limit)

    def modify_as_data(self, data: Mapping[str, Any], code: bytes | None = None) -> dict[str, Any]:
        """The same for changes as plain data (see ``plan.change.as_json``), or as ``code``; the answer is plain data, too.

        ``code`` is what ``plan.change.code`` packs. It is run: only for callers who may. The HTTP API calls ``run.modify_as_data(data)``.
        """
        from meander.plan.change.code import WithCode, unpack_changes

        unpacked = WithCode(changes_from_json(data.get("changes") or ())) if code is None else unpack_changes(code)
        options = {name: data[name] for name in _PLAIN if data.get(name) is not None}
        done = self.modify(unpacked.changes, upgrade=unpacked.upgrade, guard=unpacked.guard, **options)
        found: dict[str, Any] = done.to_json() if isinstance(done, Effects) else done._asdict()
        return found

    def modifications(self) -> list[dict[str, Any]]:
        """All modifications that were ever asked for, the oldest first: by whom, what, with which code, and what has become of them.

        Example: ``run.modifications()[-1]``.
        """
        assert self._modifier is not None
        return self._modifier.history()

    def migrate(
        self,
        operators: str | Sequence[str],
        executor: str,
        key_groups: Sequence[int] | None = None,
        strategy: Strategy = "hybrid",
        timeout: float | str | None = "60s",
    ) -> Migrated:
        """Have an executor own stateful operators, or some key groups of them. In force from the next epoch on; nothing is stopped.

        Other operators stay where they are. ``strategy`` as in ``rescale``: with ``"prefetch"`` the executor's cache is filled first; with
        ``"hybrid"`` small segments are brought first and the others after it, while keys that are needed earlier come one by one.

        Example: ``run.migrate("totals", "1")``.
        """
        names = [operators] if isinstance(operators, str) else list(operators)
        routing = self._loop.routing
        for name in names:
            if name not in routing:
                there = f"there are: {', '.join(sorted(routing)) or 'none'}{did_you_mean(name, routing)}"
                raise ConfigError(f"there is no stateful operator '{name}' to migrate; {there}")
        check_strategy(strategy)
        began = self._clock.monotonic()
        with self._changing:
            moved = self._migration.migrate(
                names, str(executor), key_groups, strategy, lambda switch: self._between_epochs(switch, timeout), seconds(timeout) or 3600.0
            )
        fetched = moved.ordered if plan_bringing(strategy).rest_after else moved.from_peers + moved.from_store
        return Migrated(
            tuple(names), str(executor), moved.groups, moved.epoch, self._clock.monotonic() - began, fetched, tuple(moved.failures)
        )

    def evacuate(self, executor: str, timeout: float | str | None = "60s") -> None:
        """Move all slots away from an executor, before its machine goes. In force from the next epoch on: ``run.evacuate("1")``."""
        self._between_epochs(lambda: self._placement.evacuate(str(executor)), timeout)

    def status(self) -> dict[str, Any]:
        """The status of the flow, as plain data. From any thread.

        ``stages`` are numbered from 1, with their operators, slots and recent rates; ``operators`` are the stateful ones, with their
        state and their key-group map (``routing``: the slot of every key group); ``executors`` say how many slots each has.
        ``waiting`` is about how many rows the sources have to give; ``autoscaler`` its newest decision, and why. ``holding`` is None, or
        says since when the flow waits for a store that does not answer, for how many seconds, and to which call.

        Example: ``run.status()["epoch"]``.
        """
        manifest, plan = self._loop.log.manifest, self._plan
        recent = list(self._recent)
        spent = [sum(done.seconds.values()) for done in recent]
        rows = sum(done.outcome.counts.get("rows_in", 0) for done in recent)
        over = self._settings.trigger is not None and not self._thread.is_alive()
        state = "failed" if self._failure else "stopped" if self._closed else "finished" if over else "running"
        return {
            "flow": self.name,
            "state": state,
            "error": str(self._failure) if self._failure else None,
            "holding": show_holding(self._loop.patience.held, self._clock.now()),
            "epoch": manifest.epoch,
            "plan": manifest.plan.get("version", 1),
            "generation": manifest.generation,
            "rows_in": manifest.totals.get("rows_in", 0),
            "rows_out": manifest.totals.get("rows_out", 0),
            "dead_letters": manifest.totals.get("dead_letters", 0),
            "late_rows": manifest.totals.get("late_rows", 0),
            "waiting": 0 if self._closed else self._loop.input.waiting(),
            "rows_per_second": rows / sum(spent) if spent and sum(spent) else 0.0,
            "epoch_seconds": sorted(spent)[len(spent) // 2] if spent else 0.0,
            "operators": show_operators(manifest, self._loop.routing),
            "stages": [] if plan is None else show_stages(plan, self._placement, self._loop.routing, recent),
            "application": self._application,
            "executors": {} if plan is None else show_executors(self._placement, self._closed),
            "autoscaler": None if self._autoscaler is None else show_scaling(self._autoscaler.last, self._autoscaler.executors),
            "last_epoch": show_epoch(recent[-1]) if recent else {},
        }

    def serve(
        self,
        host: str = "127.0.0.1",
        port: int = 9008,
        token: str | None = None,
        on_stop: Callable[[], object] | None = None,
        code_token: str | None = None,
    ) -> Server:
        """Let the flow be asked and changed over HTTP until it is stopped: ``/status``, ``/scale``, ``/metrics``; ``/docs`` lists all.

        On another host than loopback changes need ``token``, sent as a bearer token; without one
        that is refused. ``port=0`` takes a free one; the result's ``url`` says which. ``on_stop``
        is what ``POST /stop`` does instead of ``stop()``. Requests with ``code_token`` may change
        the flow, and send Python code that it runs; without a code token no request can send code.

        Example: ``run.serve(port=9008).url``.
        """
        from meander.control.server import Server  # the web framework, which a flow without a server need not wait for

        if self._server is not None:
            raise ConfigError(f"flow '{self.name}' is served at {self._server.url} already")
        if self._closed:
            raise ConfigError(f"flow '{self.name}' is stopped; start it again with flow.start(...)")
        self._server = Server(self, host, port, token, self._clock, on_stop, code_token)
        if self._cohort is not None:
            self._cohort.url = self._server.url
        return self._server

    def push_metrics(self, gateway: str, every: float | str = "10s") -> None:
        """Push the metrics of ``/metrics`` to a Prometheus Pushgateway while the flow runs, and once more when it has stopped.

        Example: ``run.push_metrics("http://127.0.0.1:9091")``.
        """
        from meander.control.push import push_run

        if self._pusher is not None:
            raise ConfigError(f"the metrics of flow '{self.name}' are pushed to {self._pusher.gateway} already")
        interval = seconds(every)
        if not interval:
            raise ConfigError(f"push_metrics(every={every!r}): a duration is needed, such as '10s'")
        self._pusher = push_run(self, gateway, interval, self._clock, self._settings.replica)

    def on_epoch(self, listener: Callable[[EpochDone], None]) -> None:
        """Call a function after every epoch, in the flow's thread. For progress displays and measurements.

        Example: ``run.on_epoch(lambda done: print(done.epoch))``.
        """
        self._listeners.append(listener)

    def stop(self) -> None:
        """Finish the epoch that is running, then end. The store can be started again at once.

        Raises what the flow failed with, unless another call has done so: nobody should take a failed run for a finished one.

        Example: ``run.stop()``.
        """
        self._end()
        if not self._failure_raised:
            self._check()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.stop()
        else:  # what the body raised is what the caller must see; the flow's own failure was said on standard error
            self._end()

    def __repr__(self) -> str:
        status = self.status()
        rows = f"{status['rows_in']:,} rows in, {status['rows_out']:,} out, {status['dead_letters']:,} to the dead letters"
        error = f": {_in_one_line(self._failure)}" if self._failure is not None else ""
        return f"<Run of flow '{self.name}': {status['state']}, epoch {status['epoch']}, {rows}{error}>"

    def _end(self) -> None:
        self._stop.set()
        self._wake.set()
        self._driver.leave()
        if self._cohort is not None:
            self._cohort.leave()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        with self._stepping:  # a process_available() in another thread finishes its epoch first
            self._close()
        pusher, self._pusher = self._pusher, None
        if pusher is not None:
            pusher.close()
        server, self._server = self._server, None
        if server is not None:
            server.close()

    @property
    def _plan(self) -> Plan | None:
        return None if self._modifier is None else self._modifier.plan

    def _between_epochs(self, change: Callable[[], Result], timeout: float | str | None) -> Result:
        self._check()
        if self._closed:
            raise ConfigError(f"flow '{self.name}' is stopped; start it again with flow.start(...)")
        done = self._loop.requests.put(change)
        self._wake.set()
        limit = seconds(timeout)
        deadline = None if limit is None else self._clock.monotonic() + limit
        while not done.done():
            self._check()
            if deadline is not None and self._clock.monotonic() > deadline and done.cancel():
                raise Retryable(f"flow '{self.name}': the running epoch has not ended within {timeout}; nothing was changed")
            if self._stepping.acquire(timeout=0.02):  # nobody steps: between two epochs is now
                try:
                    self._loop.requests.perform()
                finally:
                    self._stepping.release()
        return done.result()

    def _await(self, trial: Trial, limit: float | None) -> Modified:
        """Until the trial is decided. Where nobody runs epochs, run the one that it needs."""
        deadline = self._clock.monotonic() + 2 * (limit or 3600.0)
        while not trial.done.done():
            self._check()
            if self._clock.monotonic() > deadline and self._loop.trials.withdraw(trial):
                raise Retryable(f"flow '{self.name}': no epoch has come to try the modification in; nothing was changed")
            if self._settings.trigger is None or not self._thread.is_alive():
                self._alone(self._driver.look)
                self._alone(lambda: self._driver.step(everything=True))
            self._wake.set()
            self._clock.sleep(0.005)
        result: Modified = trial.done.result()
        return result

    def _begin(self, trial: Trial, limit: float) -> None:
        """The edited file that was started is in force, or this run is none."""
        try:
            self._await(trial, limit)
        except BaseException as error:
            self._end()
            if isinstance(error, Rejected):
                raise Rejected(f"flow '{self.name}' was not started with the edited file. {error}") from error
            raise

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        interval = self._settings.trigger or 0.0
        began_after = self._loop.log.manifest.epoch
        while not self._stop.is_set() and self._failure is None:
            began, began_after = self._clock.monotonic(), self._loop.log.manifest.epoch
            try:
                with self._stepping:
                    worked = not self._stop.is_set() and self._guarded(lambda: self._driver.step(everything=False))
                    over = not worked and self._driver.finished()
                    while over and not self._stop.is_set() and self._guarded(lambda: self._driver.step(everything=False, flush=True)):
                        pass  # nothing can come any more: what is open closes
            except BaseException:  # kept in _failure, raised where someone waits
                break
            if over:
                break
            pause = interval - (self._clock.monotonic() - began) if worked else max(self._settings.idle_poll, 0.01)
            if pause > 0:
                self._wake.wait(pause)
                self._wake.clear()  # who wants the next pause cut short says so again; who wants the end has said that first
        if self._failure is not None:
            if not self._failure_raised:
                _FAILURES.error(_last_words(self.name, self._failure, began_after, self._loop.log.manifest.epoch))
            self._close()

    def _alone(self, work: Callable[[], Result]) -> Result:
        """One piece of work in the caller's thread, when no other is at work."""
        self._check()
        with self._stepping:
            self._check()
            if self._stop.is_set():
                raise ConfigError(f"flow '{self.name}' was stopped; start it again with flow.start(...)")
            try:
                return self._guarded(work)
            except BaseException:
                self._failure_raised = True
                raise

    def _guarded(self, work: Callable[[], Result]) -> Result:
        if self._closed:
            raise ConfigError(f"flow '{self.name}' is stopped; start it again with flow.start(...)")
        try:
            return work()
        except BaseException as error:
            if not (self._stop.is_set() and isinstance(error, Retryable)):  # stopped while it held: that is no failure
                self._failure = error
            raise

    def _check(self) -> None:
        if self._failure is not None:
            self._failure_raised = True
            self._close()
            raise self._failure

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with contextlib.ExitStack() as rest:  # in their order, and all of them, whatever one raises
            for close in reversed(self._on_close):
                rest.callback(close)
            self._driver.stop()


def _last_words(name: str, failure: BaseException, before: int, after: int) -> str:
    """What a run says when it dies and nobody may be waiting for it."""
    if after > before:  # committed, and then something failed: publishing is what recovery begins with
        return f"flow '{name}' failed after epoch {after} was committed: {_in_one_line(failure)}; starting it again publishes that epoch"
    return f"flow '{name}' failed at epoch {after + 1}: {_in_one_line(failure)}; nothing of this epoch was committed"


def _in_one_line(failure: BaseException) -> str:
    lines = [line.strip() for line in str(failure).splitlines() if line.strip()] or [type(failure).__name__]
    return lines[0] if len(lines) == 1 else f"{lines[0]} … {lines[-1]}"


def start(
    flow: Planned,
    store: str | Path,
    spark: Any = None,
    clock: Clock | None = None,
    apply: bool | Mapping[str, Any] = False,
    **options: Any,
) -> Run:
    """Start a flow, as ``Flow.start`` documents."""
    known = set(Settings.__dataclass_fields__)
    unknown = sorted(set(options) - known)
    if unknown:
        raise ConfigError(f"unknown option '{unknown[0]}'; options are {', '.join(sorted(known))}, apply, spark")
    for name in ("trigger", "idle_poll", "leader_timeout", "patience"):
        if name in options:
            options[name] = seconds(options[name])
    from meander.epochs.modification import at_start
    from meander.on_spark.opening import open_flow

    settings, clock, plan = Settings(**options), clock or SystemClock(), flow.plan()
    edited = at_start(apply, plan, clock.new_id())
    opened = open_flow(plan, str(store), spark, clock, settings, edited)
    run = Run(flow.name, opened, settings, clock)
    if edited is not None and opened.trial is not None and settings.replica is None:  # replicas try it with the first rows that come
        run._begin(opened.trial, edited.patience)
    return run

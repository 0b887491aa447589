"""Replicas: the handle of a flow that several processes run together. Made by ``flow.start(store, replicas=2)``."""

from __future__ import annotations

import atexit
import logging
import os
import pickle
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meander.clock import Clock, SystemClock
from meander.connect.memory import MemorySink
from meander.connect.sink import shows_table
from meander.connect.spool import SpoolSink, empty_spool
from meander.coordinate.migration import check_strategy
from meander.errors import ConfigError, Retryable
from meander.familiar.names import RUN
from meander.modifying import Modifiable, Planned, Wish
from meander.outcomes import Migrated, Rescaled
from meander.plan.change.code import pack_changes
from meander.plan.change.effects import Effects
from meander.plan.graph import Plan
from meander.plan.operators import SinkOp
from meander.plan.tables import carrying_tables
from meander.replicate.ballot import find_zookeeper
from meander.replicate.reach import Reach, Tokens
from meander.replicate.served import Served
from meander.replicate.signals import UNTIL_SIGNALLED
from meander.replicate.supervisor import Orders, Supervisor
from meander.settings import Settings, Strategy, seconds
from meander.state.log import read_manifest
from meander.state.stores.contract import Store
from meander.state.stores.opening import checked_store

if TYPE_CHECKING:
    from meander.control.push import Pusher
    from meander.control.server import Server
    from meander.epochs.modification import Modified

_LOG = logging.getLogger("meander")
_LOOK_EVERY = 0.05


class Replicas(Modifiable):
    """Several processes that run one flow, each on a Spark of its own: ask them, change them, change their number, stop them.

    Changes of the flow (``rescale``, ``modify``, ``apply`` and so on) are sent to one replica, and
    are in force for all.

    This process has no Spark; a thread of it watches the replicas and brings back what dies. They end with it, also where it is told to end
    (SIGTERM, a closed terminal), unless it is killed: then they go on, and the next ``flow.start`` on the store takes them up.

    Example: ``with flow.start("state/", replicas=2) as replicas: replicas.await_termination()`` is how one gets ``md.Replicas``.
    """

    _instead = RUN

    def __init__(
        self, name: str, store: Store, supervisor: Supervisor, clock: Clock, tokens: Tokens, at_end: Callable[[], None] = lambda: None
    ) -> None:
        self.name = name
        self._reach = Reach(name, supervisor.replicas, tokens, clock)
        self._served = Served(name, self._reach, self.status, self.stop)
        self._server: Server | None = None
        self._pusher: Pusher | None = None
        self._store, self._supervisor, self._clock, self._at_end = store, supervisor, clock, at_end
        self._halt = threading.Event()
        self._failure_raised = False
        self._thread = threading.Thread(target=supervisor.run, args=(self._halt,), name=f"meander-replicas-{name}", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    @property
    def replicas(self) -> list[dict[str, Any]]:
        """Of each: name, state, epoch, how many epochs it is behind (``lag``), restarts, process, url, error, log."""
        return self._supervisor.replicas()

    def status(self) -> dict[str, Any]:
        """The status of the flow, as plain data: ``replicas.status()["epoch"]``."""
        manifest = read_manifest(self._store)
        return {
            "flow": self.name,
            "state": self._supervisor.outcome,
            "epoch": manifest.epoch,
            "generation": manifest.generation,
            **{name: manifest.totals.get(name, 0) for name in ("rows_in", "rows_out", "dead_letters", "late_rows")},
            "replicas": self.replicas,
        }

    def add(self, count: int = 1, timeout: float | str | None = "5min") -> list[str]:
        """More replicas. Returns their names when they are at work: ``replicas.add(1)``."""
        return self._wait(self._supervisor.add(count), timeout)

    def drain(self, name: str, timeout: float | str | None = "5min") -> None:
        """Let a replica finish its epoch and leave for good: ``replicas.drain("b")``."""
        self._wait(self._supervisor.drain(name), timeout)

    def restart(self, name: str | None = None, timeout: float | str | None = None) -> None:
        """Restart one replica, or all, one after the other, each when the one before has caught up: ``replicas.restart("b")``."""
        self._wait(self._supervisor.restart(name), timeout)

    def rescale(self, operator: str, parallelism: int, strategy: Strategy = "hybrid") -> Rescaled:
        """Give a stateful operator another number of slots, as ``Run.rescale`` does: ``replicas.rescale("totals", 4)``."""
        check_strategy(strategy)
        return self._asked().rescale(operator, parallelism, strategy)

    def migrate(
        self,
        operators: str | Sequence[str],
        executor: str,
        key_groups: Sequence[int] | None = None,
        strategy: Strategy = "hybrid",
        *,
        replica: str | None = None,
    ) -> Migrated:
        """Have an executor own stateful operators, or some key groups of them, as ``Run.migrate`` does.

        Each replica has executors of its own: ``replica`` says whose is meant.

        Example: ``replicas.migrate("totals", "1", replica="b")``.
        """
        check_strategy(strategy)
        return self._asked().migrate(names_of(operators), str(executor), key_groups, strategy, replica)

    def evacuate(self, executor: str, *, replica: str | None = None) -> None:
        """Move all slots away from an executor of a replica, before its machine goes: ``replicas.evacuate("1", replica="b")``."""
        self._asked().evacuate(str(executor), replica)

    def modifications(self) -> list[dict[str, Any]]:
        """All modifications that were ever asked for, the oldest first: ``replicas.modifications()[-1]``."""
        return self._asked().modifications()

    def _modify(self, wish: Wish) -> Modified | Effects:
        from meander.epochs.modification import Modified  # much that writing a flow does not need

        code = pack_changes(wish.changes, wish.upgrade, wish.guard)
        drops = wish.drop_state if isinstance(wish.drop_state, bool) else names_of(wish.drop_state)
        data = {
            "dry_run": wish.dry_run,
            "request_id": wish.request_id or self._clock.new_id(),
            "author": wish.author,
            "drop_state": drops,
            "backfill": {name: dict(values) for name, values in wish.backfill.items()},
            "timeout": seconds(wish.timeout) or 3600.0,
        }
        done = self._asked().modify_as_data(data, code)
        return Effects.from_json(done) if wish.dry_run else Modified(**done)

    def serve(
        self,
        host: str = "127.0.0.1",
        port: int = 9008,
        token: str | None = None,
        on_stop: Callable[[], object] | None = None,
        code_token: str | None = None,
    ) -> Server:
        """Let the replicas be asked and changed over HTTP, at one address for all, until they are stopped. As ``Run.serve``.

        ``/metrics`` has the numbers of all replicas, each with its name.

        Example: ``replicas.serve(port=9008).url``.
        """
        from meander.control.server import Server  # the web framework, which a flow without a server need not wait for

        if self._server is not None:
            raise ConfigError(f"flow '{self.name}' is served at {self._server.url} already")
        self._refuse_when_over()
        self._server = Server(self._served, host, port, token, self._clock, on_stop, code_token, self._served.metrics)
        return self._server

    def push_metrics(self, gateway: str, every: float | str = "10s") -> None:
        """Push the metrics of all replicas to a Prometheus Pushgateway while they run, each in a group of its own.

        Example: ``replicas.push_metrics("http://127.0.0.1:9091")``.
        """
        from meander.control.push import Pusher

        if self._pusher is not None:
            raise ConfigError(f"the metrics of flow '{self.name}' are pushed to {self._pusher.gateway} already")
        interval = seconds(every)
        if not interval:
            raise ConfigError(f"push_metrics(every={every!r}): a duration is needed, such as '10s'")
        self._refuse_when_over()
        self._pusher = Pusher(self.name, gateway, interval, self._served.registries)

    def await_termination(self, timeout: float | str | None = None) -> bool:
        """Wait until the flow has ended: its sources are exhausted. False where the timeout came first. Raises where no replica is left.

        Example: ``replicas.await_termination()``.
        """
        self._thread.join(seconds(timeout))
        self._check()
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Let every replica finish its epoch and end; a replica that does not end within half a
        minute is killed, which loses and doubles nothing.

        Raises what the flow failed with, unless another call has done so.

        Example: ``replicas.stop()``.
        """
        self._end()
        if not self._failure_raised:
            self._check()

    def __enter__(self) -> Replicas:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.stop()
        else:
            self._end()

    def __repr__(self) -> str:
        shown = ", ".join(f"{one['name']} {one['state']}" for one in self.replicas)
        return f"<Replicas of flow '{self.name}': {shown}>"

    def await_start(self) -> None:
        """Until the first replica is at work; raises where none can be: ``replicas.await_start()``."""
        while not self._supervisor.at_work:
            if self._supervisor.over or not self._thread.is_alive():
                self._end()
                self._check()
                return
            self._clock.sleep(_LOOK_EVERY)

    def _asked(self) -> Served:
        """Whom to ask. Raises what the flow failed with, and where it has ended."""
        self._check()
        self._refuse_when_over()
        return self._served

    def _refuse_when_over(self) -> None:
        if self._halt.is_set() or self._supervisor.over:
            raise ConfigError(f"the replicas of flow '{self.name}' have ended; start them again with flow.start(..., replicas=n)")

    def _end(self) -> None:
        pusher, self._pusher = self._pusher, None
        if pusher is not None:
            pusher.close()
        self._halt.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        self._supervisor.stop()
        atexit.unregister(self._end)
        server, self._server = self._server, None
        if server is not None:
            server.close()
        self._at_end()

    def _check(self) -> None:
        failure = self._supervisor.failure()
        if failure is not None:
            self._failure_raised = True
            self._end()
            raise failure

    def _wait(self, future: Future[list[str]], timeout: float | str | None) -> list[str]:
        try:
            return future.result(seconds(timeout))
        except TimeoutError:
            raise Retryable(f"flow '{self.name}': not done within {timeout}; it goes on, and status() shows how far it is") from None


def names_of(given: str | Sequence[str]) -> list[str]:
    """
    >>> names_of("totals"), names_of(["totals", "best"])
    (['totals'], ['totals', 'best'])
    """
    return [given] if isinstance(given, str) else list(given)


def start_replicas(
    flow: Planned, store: str | Path, replicas: Any, spark: Any = None, clock: Clock | None = None, **options: Any
) -> Replicas:
    """Start replicas, as ``Flow.start(..., replicas=n)`` documents. ``spark`` is the master of each
    replica's own Spark, or its settings."""
    from meander.plan.pickling import pack_whole  # knows how functions travel

    if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 1:
        raise ConfigError(f"replicas={replicas!r}: a whole number from 1 up is needed")
    session, settings = _session(spark), _settings(options)
    _check_apply(settings, flow.plan())
    place, timekeeper = checked_store(store), clock or SystemClock()
    plan, memories = _spooled(flow.plan(), place)
    logs = place.local("logs") or Path("meander-logs") / flow.name
    with carrying_tables():
        packed, plan_bytes = logs.absolute() / f"{flow.name}.flow", pack_whole(plan, "sent to replicas")

    tokens = logs.absolute() / f"{flow.name}.tokens"

    def prepare(adopting: bool) -> Callable[[], None]:
        chosen, let_go = find_zookeeper(settings.get("replication", ""), settings.get("zookeeper"), logs)
        passed = settings if chosen is None else {**settings, "zookeeper": chosen}
        content = {
            "flow": flow.name,
            "store": place.url,
            "plan": plan_bytes,
            "options": passed,
            "spark": session,
            "path": _path(),
        }
        content["tokens"] = str(tokens)
        packed.write_bytes(pickle.dumps(content))
        for sink, folder in memories:
            if not adopting:
                empty_spool(folder)
            sink.follow(folder)
        return let_go

    command = _command(packed, bool(options.get("takeover")))
    restore = UNTIL_SIGNALLED.begin()
    try:
        supervisor = Supervisor(place, timekeeper, Orders(command, replicas, logs), tell=_LOG.info, prepare=prepare).start()
    except BaseException:
        restore()
        raise
    handle = Replicas(flow.name, place, supervisor, timekeeper, Tokens.kept_in(tokens, timekeeper), restore)
    try:
        handle.await_start()
    except BaseException:
        handle._end()
        raise
    return handle


def _command(packed: Path, takeover: bool) -> Callable[[str, bool], list[str]]:
    def command(name: str, first: bool) -> list[str]:
        words = [sys.executable, "-m", "meander.cli.replica", str(packed), "--name", name]
        return [*words, "--takeover"] if takeover and first else words

    return command


def _session(spark: object) -> dict[str, str]:
    """How every replica makes its Spark."""
    if spark is None:
        return {}
    if isinstance(spark, str):
        return {"master": spark}
    if isinstance(spark, Mapping) and all(isinstance(key, str) for key in spark):
        return dict(spark)
    raise ConfigError(
        "with replicas=n every replica starts a Spark of its own: give spark='local[2]', a master, or a dict of the arguments of md.spark, "
        "and no session"
    )


def _settings(options: dict[str, Any]) -> dict[str, Any]:
    """The options as the replicas get them; what is wrong with them is said here."""
    if "replica" in options:
        raise ConfigError("replicas=n gives every replica its name: leave replica= out")
    known = {*Settings.__dataclass_fields__, "apply"} - {"replica"}
    passed = {name: value for name, value in options.items() if not (name == "replication" and value == "leaderless")}
    for name in passed:
        if name not in known:
            raise ConfigError(f"unknown option '{name}'; options are {', '.join(sorted(known | {'spark', 'replicas'}))}")
    for name in ("trigger", "idle_poll"):
        if name in passed:
            passed[name] = seconds(passed[name])
    if passed.get("trigger", 0.0) is None:
        raise ConfigError("trigger=None: replicas run by themselves, there is nobody to ask them for an epoch; leave it out")
    if passed.get("autoscale") is not None:
        raise ConfigError("a replicated flow cannot have an autoscaler: its replicas would each have an opinion; rescale it by hand")
    Settings(**{name: value for name, value in passed.items() if name != "apply"})
    for name in ("dead_letters", "latency_file"):
        if passed.get(name) is not None:
            passed[name] = os.path.abspath(passed[name])
    return {name: value for name, value in passed.items() if name != "takeover"}


def _check_apply(settings: dict[str, Any], plan: Plan) -> None:
    """Each replica that starts brings the edited file: the first one to try it puts it in force for all."""
    from meander.epochs.modification import at_start

    edited = at_start(settings.get("apply", False), plan, "unused")
    if edited is not None and (edited.rules.upgrade or edited.guard is not None):
        raise ConfigError("apply: upgrade= and guard= do not travel to replicas; start the flow once without replicas, with them")


def _spooled(plan: Plan, store: Store) -> tuple[Plan, list[tuple[MemorySink, Path]]]:
    """The plan with folders in the place of memory sinks, whose rows would stay in the replicas' memories."""
    nodes, found = [], []
    for node in plan.nodes:
        if isinstance(node.op, SinkOp) and isinstance(node.op.sink, MemorySink):
            folder = store.local(f"spool/{node.name}")
            if folder is None:
                raise ConfigError(
                    f"sink '{node.name}': md.memory() of a replicated flow needs a store that is a folder, through which rows come back; "
                    f"{store.url} is none: use md.parquet(...) instead"
                )
            found.append((node.op.sink, folder))
            sink = node.op.sink
            node = replace(node, op=SinkOp(SpoolSink(str(folder), sink.describe(), shows_table(sink))))
        nodes.append(node)
    return replace(plan, nodes=tuple(nodes)), found


def _path() -> list[str]:
    """Where the flow's modules are found."""
    return [os.path.abspath(place) for place in sys.path]

"""``Flow.start``: the options of a run, each with its name and its type, so that editors and type checkers know them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, overload

from meander.clock import Clock
from meander.errors import ConfigError
from meander.familiar.names import Suggests
from meander.plan.change.options import Guard
from meander.plan.graph import Plan
from meander.plan.schemas import did_you_mean
from meander.settings import Autoscale, StateMode

if TYPE_CHECKING:
    from meander.plan.change.modify import StateFunction
    from meander.replicate.handle import Replicas
    from meander.run import Run


class SparkSession(Protocol):
    """A Spark session, recognised by its context alone, so that writing a flow does not import
    Spark."""

    @property
    def sparkContext(self) -> Any: ...  # Spark's own name


class Apply(TypedDict, total=False):
    """The options for the start of an edited flow; ``Run.modify`` documents each."""

    resume: bool | None
    drop_state: bool | str | Sequence[str]
    upgrade: Mapping[str, StateFunction]
    backfill: Mapping[str, Mapping[str, Any]]
    guard: Guard
    author: str
    timeout: float | str | None


class Startable(Suggests):
    """The part of ``Flow`` that starts it."""

    name: str

    def plan(self) -> Plan:
        raise NotImplementedError

    @overload
    def start(
        self,
        store: str | Path,
        *,
        replicas: None = None,
        spark: SparkSession | str | Mapping[str, str] | None = None,
        trigger: float | str | None = 0.0,
        parallelism: int = 2,
        strict: bool = False,
        dead_letters: str | Path | None = None,
        apply: bool | Apply = False,
        same_code: bool | Sequence[str] = False,
        takeover: bool = False,
        retain_epochs: int = 64,
        key_groups: int = 128,
        latency_file: str | Path | None = None,
        idle_poll: float | str = 0.2,
        small_epochs: bool = True,
        work_ahead: bool = True,
        patience: float | str | None = None,
        autoscale: Autoscale | None = None,
        state_mode: StateMode = "hybrid",
        clock: Clock | None = None,
        replica: str | None = None,
        replication: Literal["leaderless", "leader"] = "leaderless",
        zookeeper: str | None = None,
        leader_timeout: float | str = 4.0,
    ) -> Run: ...

    @overload
    def start(
        self,
        store: str | Path,
        *,
        replicas: int,
        spark: str | Mapping[str, str] | None = None,
        trigger: float | str = 0.0,
        parallelism: int = 2,
        strict: bool = False,
        dead_letters: str | Path | None = None,
        apply: bool | Apply = False,
        same_code: bool | Sequence[str] = False,
        takeover: bool = False,
        retain_epochs: int = 64,
        key_groups: int = 128,
        latency_file: str | Path | None = None,
        idle_poll: float | str = 0.2,
        small_epochs: bool = True,
        work_ahead: bool = True,
        patience: float | str | None = None,
        state_mode: StateMode = "hybrid",
        clock: Clock | None = None,
        replication: Literal["leaderless", "leader"] = "leaderless",
        zookeeper: str | None = None,
        leader_timeout: float | str = 4.0,
    ) -> Replicas: ...

    def start(
        self,
        store: str | Path | None = None,
        *,
        replicas: int | None = None,
        spark: SparkSession | str | Mapping[str, str] | None = None,
        trigger: float | str | None = 0.0,
        parallelism: int = 2,
        strict: bool = False,
        dead_letters: str | Path | None = None,
        apply: bool | Apply = False,
        same_code: bool | Sequence[str] = False,
        takeover: bool = False,
        retain_epochs: int = 64,
        key_groups: int = 128,
        latency_file: str | Path | None = None,
        idle_poll: float | str = 0.2,
        small_epochs: bool = True,
        work_ahead: bool = True,
        patience: float | str | None = None,
        autoscale: Autoscale | None = None,
        state_mode: StateMode = "hybrid",
        clock: Clock | None = None,
        replica: str | None = None,
        replication: Literal["leaderless", "leader"] = "leaderless",
        zookeeper: str | None = None,
        leader_timeout: float | str = 4.0,
        **unknown: Any,
    ) -> Run | Replicas:
        """Run the flow with its state in ``store``: a new store, or the one of this flow's last
        run, which it then continues.

        Returns at once, with a ``Run``: ``flow.start("state/", parallelism=4, trigger="1s")``. Options, all of them by name:

        - ``spark``: the session to run on, or its master, such as ``"local[4]"``, or a dict of the
          arguments of ``md.spark``; by default a local session on all cores is started. A session
          that is started for the run is ``run.spark``.
        - ``trigger`` (0): the time between the starts of two epochs, as ``"5 seconds"``,
          ``"500ms"`` or in seconds; with 0 epochs follow each other at once; with None epochs run
          only in calls of ``run.process_available()``.
        - ``parallelism`` (2): the slots of every stateful operator. May differ from that of the last run; results do not depend on it.
        - ``strict`` (False): stop at the first bad row instead of writing it to the dead letters.
        - ``dead_letters``: the folder of the dead letters; by default inside the store, where ``md.read_dead_letters`` looks.
        - ``apply`` (False): if this flow is an edited version of the one in the store, change that
          one into it, as ``run.apply`` does: with the first epoch, on probation. If that fails,
          Rejected is raised and the store keeps the flow as it was. A dict has the options of
          ``run.apply``: ``apply={"drop_state": ["totals"]}``. A flow that was in force in this
          store before starts as without this option.
        - ``same_code`` (False): names of operators whose Python code was changed and does what it did before, or True for all of them.
          The flow then goes on with its state as it is; the store notes it, and later starts need not say it. Any other difference
          is refused.
        - ``takeover`` (False): take the store from a run that still looks alive. That run is fenced: it can commit nothing more.
        - ``retain_epochs`` (64): how many past epochs ``md.read_state(..., epoch=n)`` can read.
        - ``key_groups`` (128): the number of parts into which keys are divided, a power of two. It
          is the upper limit of the parallelism, and is fixed when a store is made.
        - ``latency_file``: write one line per event there: when it came in and how long it took, in milliseconds.
        - ``idle_poll`` (0.2): the seconds between two looks at sources without new input.
        - ``small_epochs`` (True): let an epoch with little input do without the exchange. Results are the same either way.
        - ``work_ahead`` (True): begin the next epoch's first stage while an epoch runs, where input for it is waiting.
        - ``patience`` (None): how long the run waits for a store that does not answer, such as
          "10min"; then the run ends with the error. With None it waits until the store answers or
          the run is stopped.
        - ``autoscale``: let the number of slots follow the load, as ``md.autoscale(target_utilisation=0.7, min=1, max=8)`` says.
        - ``state_mode`` ("hybrid"): where tasks read state: the executor's cache, then its peers,
          then the store; "local" reads own copies only, "remote" the store only. All modes store
          the same durable state.
        - ``clock``: where time and ids come from, for tests.
        - ``replicas``: the number of processes that run the flow together, each on a Spark of its
          own (``spark``: its master, or a dict of the arguments of ``md.spark``), so that the
          output goes on if one dies. Returns ``Replicas``, which watches them.
        - ``replication`` ("leaderless"): how replicas agree: the first replica to reach an epoch
          decides it, or, with "leader", the replica that ZooKeeper elects.
        - ``zookeeper``: its address, as ``"host:port"``; with ``replicas`` and without an address
          one is started.
        - ``leader_timeout`` (4): a leader is replaced after so many seconds without a sign of life.
        - ``replica``: the name of this run among replicas that are started separately.
        """
        given = dict(locals())
        if unknown:
            raise ConfigError(_unknown(next(iter(unknown))))
        if store is None:
            raise ConfigError(f"flow {self.name!r}: say where its state goes, a folder that is its own, as in flow.start('state/')")
        options = {name: given[name] for name, default in defaults().items() if name != "replicas" and given[name] is not default}
        for name in ("dead_letters", "latency_file"):
            if isinstance(options.get(name), Path):
                options[name] = str(options[name])
        if replicas is not None:
            from meander.replicate.handle import start_replicas

            return start_replicas(self, store, replicas, **options)
        from meander.run import start  # much that writing a flow does not need

        return start(self, store, **options)


def defaults() -> dict[str, Any]:
    """The options of ``start`` with their default values."""
    parameters = inspect.signature(Startable.start).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}


def _unknown(name: str) -> str:
    known = sorted(defaults())
    return f"unknown option {name!r}{did_you_mean(name, known)}; options are {', '.join(known)}"

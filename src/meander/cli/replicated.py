"""``meander run --replicas N``: the supervisor in the foreground, with the health of its replicas."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meander.cli import wording
from meander.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from meander.flow import Flow
    from meander.replicate.supervisor import Supervisor
    from meander.state.stores.contract import Store

_LINE_EVERY = 10.0


def command(arguments: argparse.Namespace) -> int:
    """Supervise the replicas of a flow file until its input ends or somebody stops it."""
    from meander.cli.flow_file import load_flow
    from meander.cli.interruption import Stop
    from meander.cli.progress import make_console
    from meander.cli.run import start_options
    from meander.clock import SystemClock
    from meander.replicate.ballot import find_zookeeper
    from meander.replicate.supervisor import Orders, Supervisor
    from meander.state.stores.opening import checked_store

    check(arguments)
    flow = load_flow(arguments.file)
    flow.plan()  # what is wrong with it is said before a process is started
    start_options(arguments)
    url = arguments.store or f"meander-state/{flow.name}"
    store = checked_store(url)
    if not arguments.takeover:
        _refuse_a_run_of_its_own(store, url)
    console, stop, clock = make_console(arguments.json, arguments.no_color), Stop(), SystemClock()
    logs = logs_of(store, flow.name)

    def prepare(adopting: bool) -> Callable[[], None]:
        if adopting and arguments.apply:
            again = f"`meander replicas restart --store {url}` starts them with {arguments.file}, one after the other, which applies it"
            console.print(f"replicas that run already go on with the file that they were started with; {again}", soft_wrap=True)
        arguments.zookeeper, let_go = find_zookeeper(arguments.replication, arguments.zookeeper, logs)
        return let_go

    restore = stop.on_signals(hangup=True)
    supervisor = Supervisor(
        store,
        clock,
        Orders(lambda name, first: child(arguments, url, name, first), arguments.replicas, logs),
        tell=lambda text: console.print(wording.as_options(text), soft_wrap=True, markup=False),
        prepare=prepare,
    )
    before, began = _totals(store), time.monotonic()
    try:
        console.print(f"flow '{flow.name}' on {url}: {wording.plural(arguments.replicas, 'replica')}, {arguments.replication}")
        console.print(f"their output: {supervisor.logs}; Ctrl-C stops them all", soft_wrap=True)
        supervisor.start()
        _watch(supervisor, console, stop)
        if stop.wanted.is_set() and not supervisor.over:
            console.print("stopping: each replica finishes its epoch …")
        supervisor.stop()
    except KeyboardInterrupt:
        supervisor.kill()
        raise
    finally:
        supervisor.stop()
        restore()
    return _report(console, arguments, flow, store, url, supervisor, before, time.monotonic() - began)


def check(arguments: argparse.Namespace) -> None:
    """Raises for options that contradict each other, before a process is started."""
    if arguments.replicas < 1:
        raise ConfigError(f"--replicas {arguments.replicas}: at least 1")
    if arguments.autoscale is not None:
        raise ConfigError("--replicas and --autoscale: replicas would each have an opinion; rescale by hand, with `meander rescale`")
    if arguments.http is not None and arguments.http and arguments.http + arguments.replicas > 65536:
        raise ConfigError(f"--http {arguments.http}: every replica has a port of its own, from this one on; take a smaller one")
    if arguments.http is not None:
        from meander.control.guard import policy

        for option, variable in (("token", "MEANDER_TOKEN"), ("code_token", "MEANDER_CODE_TOKEN")):
            value = getattr(arguments, option) or os.environ.get(variable)
            setattr(arguments, option, value)
            if value is not None:
                os.environ[variable] = value  # so that replicas have it, and no list of processes shows it
        policy(arguments.host, arguments.token, arguments.code_token)


def child(arguments: argparse.Namespace, store: str, name: str, first: bool) -> Sequence[str]:
    """The command line of one replica."""
    words = [sys.executable, "-m", "meander.cli.main", "run", arguments.file, "--replica", name, "--store", store]
    words += ["--replication", arguments.replication]
    for option in ("master", "dead_letters", "parallelism", "trigger", "pushgateway", "zookeeper"):
        value = getattr(arguments, option)
        if value is not None:
            words += [f"--{option.replace('_', '-')}", str(value)]
    if arguments.latency_file is not None:
        words += ["--latency-file", f"{arguments.latency_file}.{name}"]
    if arguments.http is not None:
        words += ["--http", str(arguments.http and arguments.http + place_of(name)), "--host", arguments.host]
    words += [f"--{flag}" for flag in ("strict", "once", "apply") if getattr(arguments, flag)]
    words += [f"--same-code={name}" if name is not True else "--same-code" for name in arguments.same_code or ()]
    words += [f"--drop-state={name}" if name is not True else "--drop-state" for name in arguments.drop_state or ()]
    words += {None: [], True: ["--resume"], False: ["--restart"]}[arguments.resume]
    if arguments.takeover and first:  # a replica that comes back must not take the store from a run that has replaced it
        words.append("--takeover")
    return words


def place_of(name: str) -> int:
    """
    >>> place_of("a"), place_of("c"), place_of("aa")
    (0, 2, 26)
    """
    number = 0
    for letter in name:
        number = number * 26 + ord(letter) - ord("a") + 1
    return number - 1


def logs_of(store: Store, flow: str) -> Path:
    """Where replicas print: inside the store where that is a folder."""
    return store.local("logs") or Path("meander-logs") / flow


def _refuse_a_run_of_its_own(store: Store, url: str) -> None:
    from meander.cli.store_view import refuse_busy
    from meander.state.log import read_manifest

    if not read_manifest(store).shared:
        refuse_busy(url)


def _watch(supervisor: Supervisor, console: Console, stop: Any) -> None:
    """Step, and show: a table that is written over on a terminal; elsewhere a line now and then beside what happens."""
    from rich.live import Live

    from meander.cli.replicas import table_of
    from meander.replicate.supervisor import STEP_EVERY

    if console.is_terminal:
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            while not stop.wanted.is_set() and not supervisor.over:
                supervisor.step()
                live.update(table_of(supervisor.replicas()))
                stop.wanted.wait(STEP_EVERY)
        return
    shown = time.monotonic()
    while not stop.wanted.is_set() and not supervisor.over:
        supervisor.step()
        if time.monotonic() - shown > _LINE_EVERY:
            shown = time.monotonic()
            console.print(line(supervisor), soft_wrap=True, markup=False)
        stop.wanted.wait(STEP_EVERY)


def line(supervisor: Supervisor) -> str:
    """The health of all replicas in one line."""
    parts = [f"epoch {supervisor.epoch}"]
    for one in supervisor.replicas():
        lag = f", {one['lag']} behind" if one["lag"] else ""
        again = f", {wording.plural(one['restarts'], 'restart')}" if one["restarts"] else ""
        parts.append(f"{one['name']} {one['state']}{lag}{again}")
    return " · ".join(parts)


def _totals(store: Store) -> dict[str, int]:
    from meander.state.log import read_manifest

    return {"epoch": (manifest := read_manifest(store)).epoch, **manifest.totals}


def _report(
    console: Console,
    arguments: argparse.Namespace,
    flow: Flow,
    store: Store,
    url: str,
    supervisor: Supervisor,
    before: dict[str, int],
    seconds: float,
) -> int:
    totals, outcome = _totals(store), supervisor.outcome
    done = {name: totals.get(name, 0) - before.get(name, 0) for name in ("epochs", "rows_in", "rows_out", "dead_letters")}
    rows = f"{wording.plural(done['rows_in'], 'row')} in, {wording.plural(done['rows_out'], 'row')} out"
    console.print(f"{outcome} after epoch {totals['epoch']}: {wording.plural(done['epochs'], 'epoch')}, {rows}", soft_wrap=True)
    for one in supervisor.replicas():
        if one["state"] == "given up":
            console.print(f"the end of what replica {one['name']} printed ({one['log']}):", soft_wrap=True, markup=False)
            for text in supervisor.last_lines(one["name"]):
                console.print(f"  {text}", soft_wrap=True, markup=False)
    if arguments.json:
        summary = {"flow": flow.name, "outcome": outcome, "store": url, "epoch": totals["epoch"], **done, "seconds": round(seconds, 3)}
        print(json.dumps({**summary, "replicas": supervisor.replicas()}), flush=True)
    failure = supervisor.failure()
    if failure is not None:
        raise failure
    return 0

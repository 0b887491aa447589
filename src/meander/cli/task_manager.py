"""``meander task-manager``: a Spark worker that joins a control plane, and leaves without a stall: drained first, stopped then."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from meander.cli import wording
from meander.cli.change import add_address
from meander.cli.parser import Commands
from meander.errors import ConfigError, MeanderError
from meander.settings import seconds

if TYPE_CHECKING:
    from meander.control.client import Client
    from meander.on_spark.standalone import Worker

_EXAMPLES = """examples:
  meander task-manager                             one core for the control plane of this machine
  meander task-manager --port 8028                 another one beside it
  meander task-manager --cores 4 --memory 4g --master spark://127.0.0.1:7078 --url http://127.0.0.1:9010

An executor that joined gets slots with the next rescaling: meander rescale OPERATOR N. It runs them once its Python has started."""
_DRAIN = 60.0
_SETTLE = 3.0


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "task-manager",
        help="bring cores to a control plane",
        description="Join a control plane's Spark with some cores. Ctrl-C or SIGTERM drains first: slots move to other task managers, "
        "and then it stops; a second Ctrl-C stops at once.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--port", type=int, default=8018, metavar="N", help="where the Spark worker listens (default: 8018)")
    parser.add_argument("--cores", type=int, default=1, metavar="N", help="tasks at a time (default: 1)")
    parser.add_argument(
        "--memory", default="1g", metavar="M", help="memory for executors, at least the control plane's --executor-memory (1g)"
    )
    parser.add_argument(
        "--master", default="spark://127.0.0.1:7077", metavar="M", help="the control plane's Spark master (default: %(default)s)"
    )
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="H", help="this machine's address, as the others know it (default: 127.0.0.1)"
    )
    add_address(parser)
    parser.add_argument("--logs", metavar="DIR", help="where Spark's logs go (default: meander-logs/task-manager-<port>)")
    parser.add_argument("--patience", default="60s", metavar="T", help="end when the master is not there for so long (default: 60s)")
    parser.set_defaults(command=command)


def command(arguments: argparse.Namespace) -> int:
    from meander.cli.interruption import Stop
    from meander.clock import SystemClock
    from meander.control.client import Client
    from meander.on_spark.standalone import Worker

    master = urlsplit(arguments.master)
    if master.scheme != "spark" or master.hostname is None or master.port is None:
        raise ConfigError(f"--master {arguments.master}: a task manager joins a Spark master: write spark://host:port")
    if arguments.cores < 1:
        raise ConfigError(f"--cores {arguments.cores}: at least 1")
    client, patience = Client(arguments.url, arguments.token), seconds(arguments.patience) or 0.0
    logs = Path(arguments.logs or f"meander-logs/task-manager-{arguments.port}")
    stop = Stop()
    restore = stop.on_signals()
    worker = Worker(arguments.master, arguments.host, arguments.port, arguments.cores, arguments.memory, logs, SystemClock())
    try:
        cores = wording.plural(arguments.cores, "core")
        _say(f"task manager on port {arguments.port}: {cores}, {arguments.memory}, joins {arguments.master}; Spark's logs: {logs}/")
        if _watch(worker, (master.hostname, master.port), patience, stop.wanted.wait):
            drain(client, worker)
        else:
            _say(f"no Spark master answers at {arguments.master} any more: stopping")
    finally:
        worker.stop()
        restore()
    _say("stopped")
    return 0


def _watch(worker: Worker, master: tuple[str, int], patience: float, wanted: Callable[[float], bool]) -> bool:
    """Until somebody wants to stop: True; or until the master was not there for longer than patience allows: False."""
    from meander.on_spark.standalone import listens

    known: list[str] = []
    answered = time.monotonic()
    while not wanted(0.5):
        worker.check()
        if listens(*master):
            answered = time.monotonic()
        elif time.monotonic() - answered > patience:
            return False
        executors = worker.executors()
        for executor in executors:
            if executor not in known:
                _say(f"executor {executor} runs here; Ctrl-C drains it and stops")
        known = executors
    return True


def drain(client: Client, worker: Worker) -> None:
    """Have the flow's slots moved away from this worker's executors, and wait for it. Prints a line
    if they cannot be drained."""
    from meander.control.client import NothingListens

    try:
        mine = worker.executors(client.status()["application"])
        for executor in mine:
            _say(f"draining executor {executor} …")
            client.evacuate(executor)
        if mine:
            _wait_until_empty(client, mine)
    except NothingListens:
        _say(f"no control plane answers at {client.url}: nothing to drain")
    except MeanderError as error:
        _say(f"not drained: {error}. It stops all the same; the flow goes on when another task manager is there")


def _wait_until_empty(client: Client, mine: list[str]) -> None:
    """Wait until no slot is here, and until work begun here ahead of time is over or has had time
    to end."""
    deadline, settled, began = time.monotonic() + _DRAIN, time.monotonic() + _SETTLE, None
    while time.monotonic() < deadline:
        status: dict[str, Any] = client.status()
        began = status["epoch"] if began is None else began
        slots = sum(status["executors"].get(executor, {"slots": 0})["slots"] for executor in mine)
        if slots == 0 and (status["epoch"] >= began + 2 or time.monotonic() > settled):
            _say(f"drained: no slot is here after epoch {status['epoch']}")
            return
        time.sleep(0.2)
    _say(f"slots are still here after {_DRAIN:.0f} s: stopping all the same; epochs that fail for it run again")


def _say(what: str) -> None:
    print(what, flush=True)

"""``meander control-plane``: a Spark master, the driver of a flow, and its HTTP API, in one command. Task managers bring the cores."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from meander.cli.interruption import interrupted_by_sigterm
from meander.cli.parser import Commands
from meander.cli.run import add_flow_options, add_server_options, check_server, run_flow

_EXAMPLES = """examples:
  meander control-plane examples/wikipedia.py --store state/
  meander task-manager                             in another terminal: brings a core; the flow starts when the first one is there
  meander task-manager --port 8028                 another one
  curl 'http://localhost:9008/scale?stage=2'       one slot more for the second stage: the new task manager takes it
  meander control-plane my_flow.py --master k8s://https://my-cluster:6443"""


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "control-plane",
        help="run a flow on task managers, and change it over HTTP",
        description="Start a Spark master on this machine, wait for the first task manager, and run the flow there, with the HTTP API on. "
        "Ctrl-C finishes the epoch that runs and ends all of it.",
        epilog=_EXAMPLES,
    )
    add_flow_options(parser)
    parser.add_argument("--port", type=int, default=9008, metavar="N", help="where HTTP listens (default: 9008)")
    add_server_options(parser)
    parser.add_argument("--spark-port", type=int, default=7077, metavar="N", help="where the Spark master listens (default: 7077)")
    parser.add_argument("--master", metavar="M", help="another master instead of one of its own: spark://…, k8s://… or yarn")
    parser.add_argument("--executor-memory", default="1g", metavar="M", help="memory of every executor's JVM (default: 1g)")
    parser.add_argument("--logs", metavar="DIR", help="where Spark's logs go (default: meander-logs/<flow's name>)")
    parser.set_defaults(command=command, once=False)


def command(arguments: argparse.Namespace) -> int:
    from meander.cli.flow_file import load_flow

    check_server(arguments, arguments.port)
    flow = load_flow(arguments.file)
    logs = Path(arguments.logs or f"meander-logs/{flow.name}")
    cluster = _Cluster(arguments, flow.name, logs)
    with interrupted_by_sigterm():
        try:
            return run_flow(arguments, flow, arguments.port, cluster.connect)
        finally:
            cluster.stop()


class _Cluster:
    """The master, where it is ours, and the session on it."""

    def __init__(self, arguments: argparse.Namespace, flow: str, logs: Path) -> None:
        self._arguments, self._flow, self._logs = arguments, flow, logs
        self._master: Any = None

    def connect(self, console: Any) -> Any:
        """The driver's session, when the first executor is there."""
        import meander as md
        from meander.clock import SystemClock
        from meander.on_spark.standalone import Master, import_paths, wait_for_executors

        self._logs.mkdir(parents=True, exist_ok=True)
        console.print(f"Spark's logs: {self._logs}/", soft_wrap=True)
        url, clock = self._arguments.master, SystemClock()
        if url is None:
            self._master = Master("127.0.0.1", self._arguments.spark_port, self._logs, clock)
            url = self._master.url
        folder = Path(self._arguments.file).resolve().parent
        with _standard_error_to(self._logs / "driver.log"):
            session = md.spark(
                master=url,
                app_name=f"meander {self._flow}",
                spark_executorEnv_PYTHONPATH=import_paths(folder),
                spark_executor_memory=self._arguments.executor_memory,
            )
        try:
            if self._master is not None:
                default = "" if self._arguments.spark_port == 7077 else f" --master {url}"
                console.print(f"Spark master at {url}; waiting for a task manager: meander task-manager{default}", soft_wrap=True)
            wait_for_executors(session.sparkContext, clock, (lambda: None) if self._master is None else self._master.check)
        except BaseException:
            session.stop()
            raise
        return session

    def stop(self) -> None:
        if self._master is not None:
            self._master.stop()


@contextmanager
def _standard_error_to(log: Path) -> Iterator[None]:
    """Processes started meanwhile inherit the file: the driver's JVM writes its messages there."""
    sys.stderr.flush()
    terminal = os.dup(2)
    with log.open("ab") as out:
        os.dup2(out.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(terminal, 2)
        os.close(terminal)

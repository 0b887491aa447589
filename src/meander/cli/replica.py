"""One replica's process: a flow on a Spark of its own, beside other replicas on the same store,
until its input ends or it is stopped.

A supervisor starts it: by ``meander run FLOW.py --replica a``, or, for a flow that was started from
Python, by ``python -m meander.cli.replica PACKED --name a``. It shows no progress: the supervisor
does. It writes the reason of its end into a file for the supervisor.
"""

from __future__ import annotations

import argparse
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meander.cli.interruption import Stop
from meander.cli.parser import Parser
from meander.cli.run import available
from meander.clock import SystemClock
from meander.replicate.process import recorded
from meander.replicate.reach import Tokens

if TYPE_CHECKING:
    from meander.modifying import Planned
    from meander.plan.graph import Plan
    from meander.run import Run


@dataclass
class Packed:
    """A flow that came as a file."""

    name: str
    made: Plan

    def plan(self) -> Plan:
        return self.made


def be_replica(
    said: dict[str, str],
    flow: Planned,
    store: str,
    name: str,
    options: dict[str, Any],
    make_session: Callable[[], Any],
    once: bool = False,
    prepare: Callable[[Run, Stop], None] = lambda run, stop: None,
) -> int:
    """Run a flow as one replica until its input ends or a signal says stop: then the epoch that runs is finished first.

    ``said`` is what is written down of its end.
    """
    from meander.run import start
    from meander.state.stores.opening import checked_store

    checked_store(store)
    stop, session = Stop(), make_session()
    try:
        run = start(flow, store, spark=session, replica=name, **options)
    except BaseException:
        session.stop()
        raise
    restore = stop.on_signals()
    try:
        prepare(run, stop)
        print(f"replica {name} of flow '{flow.name}' runs on {store}, after epoch {run.status()['epoch']}", flush=True)
        ended = available(run, stop) if once else run.await_termination
        while not stop.wanted.is_set() and not ended(0.2):
            pass
        if stop.wanted.is_set():
            said["outcome"] = "stopped"
            if once:  # stop() would not wait for an epoch in a thread that is not its own
                ended(0.0)
        run.stop()
        print(f"{said['outcome']} after epoch {run.status()['epoch']}", flush=True)
    finally:
        run.stop()
        restore()
        session.stop()
    return 0


def command(arguments: argparse.Namespace) -> int:
    """The replica of a flow that was packed by ``flow.start(..., replicas=n)``."""
    import meander as md

    with recorded() as said:
        with Path(arguments.packed).open("rb") as file:
            packed = pickle.load(file)
        sys.path.extend(place for place in packed["path"] if place not in sys.path)
        flow = Packed(packed["flow"], pickle.loads(packed["plan"]))
        spark = {"app_name": f"meander {flow.name} {arguments.name}", **packed["spark"]}
        options = {**packed["options"], "takeover": arguments.takeover}
        if options.get("latency_file") is not None:
            options["latency_file"] = f"{options['latency_file']}.{arguments.name}"

        def serve(run: Run, stop: Stop) -> None:
            """For the handle, which changes the flow by way of any replica."""
            tokens = Tokens.kept_in(Path(packed["tokens"]), SystemClock())
            run.serve(port=0, token=tokens.changes, on_stop=stop.wanted.set, code_token=tokens.code)

        return be_replica(said, flow, packed["store"], arguments.name, options, lambda: md.spark(**spark), prepare=serve)


def main() -> int:
    from meander.cli.main import guarded

    parser = Parser(prog="meander.cli.replica", description="One replica of a flow that was started from Python.")
    parser.add_argument("packed", metavar="PACKED")
    parser.add_argument("--name", required=True)
    parser.add_argument("--takeover", action="store_true")
    arguments = parser.parse_args()
    return guarded(lambda: command(arguments))


if __name__ == "__main__":
    sys.exit(main())

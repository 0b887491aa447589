"""``meander run``: a flow file until its input ends or somebody stops it."""

from __future__ import annotations

import argparse
import json
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from meander.cli import wording
from meander.cli.interruption import Stop
from meander.cli.modify import add_drop_state, add_resume, drop_state, user
from meander.cli.parser import Commands, Parser
from meander.errors import Busy, ConfigError

if TYPE_CHECKING:
    from meander.cli.progress import Display, Meter
    from meander.control.server import Server
    from meander.epochs.decision import EpochDone
    from meander.flow import Flow
    from meander.run import Run
    from meander.settings import Autoscale

_EXAMPLES = """a flow file defines `flow`, or a function flow() that returns one:

  import meander as md
  flow = md.Flow("counts")
  (flow.source("edits", md.generator("wikipedia", rate=1000))
       .key_by("server_name").aggregate(md.count().alias("n"), name="counts")
       .sink("out", md.parquet("out/")))

examples:
  meander run my_flow.py                            until Ctrl-C; state goes to meander-state/<flow's name>
  meander run my_flow.py --store state/ --once      all input there is, then end
  meander run my_flow.py --trigger 1s --json        an epoch per second; a summary as JSON at the end
  meander run my_flow.py --master 'local-cluster[2,1,1024]' --parallelism 4
  meander run my_flow.py --http                     rescale it while it runs: meander rescale counts 4
  meander run my_flow.py --replicas 2               two Sparks run it together; kill one, and the output goes on without a gap
  meander run edited.py --store state/ --apply      the flow that the store holds becomes this one, with the first epoch, on probation

After Ctrl-C, a kill or a crash the same command goes on where the flow was."""


def register(commands: Commands) -> None:
    parser = commands.add_parser(
        "run",
        help="run a flow file",
        description="Run a flow until its input ends, or until Ctrl-C or SIGTERM: then the epoch that runs is finished first.",
        epilog=_EXAMPLES,
    )
    add_flow_options(parser)
    parser.add_argument("--master", metavar="M", help="Spark's master (default: a local Spark on all cores)")
    parser.add_argument("--once", action="store_true", help="process all input there is, then end")
    parser.add_argument(
        "--http", type=int, nargs="?", const=9008, metavar="PORT", help="let it be asked and changed over HTTP while it runs (9008)"
    )
    add_server_options(parser)
    add_replica_options(parser)
    parser.set_defaults(command=command)


def add_flow_options(parser: Parser) -> None:
    """The options of every command that runs a flow."""
    parser.add_argument("file", metavar="FLOW.py", help="a Python file that defines `flow`, or a function flow()")
    parser.add_argument(
        "--store", metavar="URL", help="where state and log are: a folder, s3://… or redis://… (default: meander-state/<flow's name>)"
    )
    parser.add_argument(
        "--dead-letters", metavar="DIR", help="the folder of the dead letters (default: inside the store, where that is a folder)"
    )
    parser.add_argument("--parallelism", type=int, metavar="N", help="slots of every stateful operator (default: 2)")
    parser.add_argument("--autoscale", metavar="MIN-MAX", help="let the number of slots follow the load, within bounds such as 1-8")
    parser.add_argument("--trigger", metavar="T", help="time between the starts of two epochs, such as 500ms (default: none)")
    parser.add_argument("--strict", action="store_true", help="stop at the first bad row instead of writing it to the dead letters")
    parser.add_argument("--takeover", action="store_true", help="take the store from a run that still looks alive")
    edited = parser.add_argument_group("an edited file (see also: meander diff, meander apply)")
    edited.add_argument(
        "--apply", action="store_true", help="where the store holds an older version of the flow, change it into this one, on probation"
    )
    edited.add_argument(
        "--same-code",
        metavar="OPERATOR",
        nargs="?",
        const=True,
        action="append",
        help="the changed code of this operator does what it did; may be repeated; without a name: that of all operators",
    )
    add_drop_state(edited)
    add_resume(edited)
    parser.add_argument("--latency-file", metavar="F", help="write ingestion time and latency of every event there, in milliseconds")
    parser.add_argument("--pushgateway", metavar="URL", help="push metrics to a Prometheus Pushgateway, every 10 s and at the end")
    parser.add_argument("--json", action="store_true", help="print a summary as JSON on standard output; progress goes to standard error")
    parser.add_argument("--no-color", action="store_true", help="plain text")


def add_replica_options(parser: Parser) -> None:
    """Several that run one flow."""
    parser.add_argument(
        "--replicas",
        type=int,
        metavar="N",
        help="run so many replicas, each a Spark of its own, and bring back what dies; with --http each has a port, from PORT on (0: any)",
    )
    parser.add_argument(
        "--replication",
        choices=("leaderless", "leader"),
        default="leaderless",
        help="how replicas agree: the first one decides (leaderless, the default), or a leader that ZooKeeper elects",
    )
    parser.add_argument("--zookeeper", metavar="HOST:PORT", help="where a leader is elected (default with --replicas: one of its own)")
    parser.add_argument(
        "--replica", metavar="NAME", help="run as one replica beside others on the same store, without a supervisor: for another machine"
    )


def add_server_options(parser: Parser) -> None:
    """The options for access to the HTTP API."""
    parser.add_argument("--host", default="127.0.0.1", metavar="H", help="where HTTP listens; another than 127.0.0.1 needs a token")
    parser.add_argument("--token", metavar="T", help="what changes over HTTP must bring (default: MEANDER_TOKEN)")
    parser.add_argument(
        "--code-token",
        metavar="T",
        help="what changes must bring that have Python code (default: MEANDER_CODE_TOKEN; without one: refused)",
    )


def command(arguments: argparse.Namespace) -> int:
    import meander as md
    from meander.cli.flow_file import load_flow

    if arguments.replicas is not None:
        if arguments.replica is not None:
            raise ConfigError("--replicas starts several, --replica is one of them: leave one out")
        from meander.cli.replicated import command as supervise

        return supervise(arguments)
    if arguments.replica is not None:
        return _run_replica(arguments)
    check_server(arguments, arguments.http)
    flow = load_flow(arguments.file)
    return run_flow(arguments, flow, arguments.http, lambda console: md.spark(master=arguments.master, app_name=f"meander {flow.name}"))


def _run_replica(arguments: argparse.Namespace) -> int:
    """One replica, as a supervisor starts it."""
    import meander as md
    from meander.cli.flow_file import load_flow
    from meander.cli.replica import be_replica
    from meander.replicate.process import recorded

    def prepare(run: Run, stop: Stop) -> None:
        if arguments.pushgateway is not None:
            run.push_metrics(arguments.pushgateway)
        if arguments.http is not None:
            server = serve(run, arguments, arguments.http, stop)
            print(f"control plane: {server.url}", flush=True)

    with recorded() as said:
        check_server(arguments, arguments.http)
        flow = load_flow(arguments.file)
        flow.plan()
        options, name, store = start_options(arguments), arguments.replica, arguments.store or f"meander-state/{flow.name}"
        if arguments.replication != "leaderless":
            options.update(replication=arguments.replication, zookeeper=arguments.zookeeper)
        spark = {"master": arguments.master, "app_name": f"meander {flow.name} {name}"}
        return be_replica(said, flow, store, name, options, lambda: md.spark(**spark), arguments.once, prepare)


def check_server(arguments: argparse.Namespace, port: int | None) -> None:
    """Raises for an address that cannot be served, before Spark is started."""
    if port is None:
        return
    from meander.control.guard import policy
    from meander.control.server import listen

    arguments.token = arguments.token or os.environ.get("MEANDER_TOKEN")
    arguments.code_token = arguments.code_token or os.environ.get("MEANDER_CODE_TOKEN")
    policy(arguments.host, arguments.token, arguments.code_token)
    listen(arguments.host, port).close()


def serve(run: Run, arguments: argparse.Namespace, port: int, stop: Stop) -> Server:
    """The control plane of a run, or of a replica, with all rights that the command line gives."""
    return run.serve(arguments.host, port, arguments.token, stop.wanted.set, arguments.code_token)


def run_flow(arguments: argparse.Namespace, flow: Flow, port: int | None, make_session: Callable[[Any], Any]) -> int:
    """Run a flow until its end or a signal, on the session that is made for it; served on a port where one is given."""
    from meander.cli.progress import Lines, Meter, StatusLine, make_console, waiting, watch
    from meander.cli.store_view import refuse_busy
    from meander.state.stores.opening import checked_store

    options = start_options(arguments)
    flow.plan()  # what is wrong with it is said before Spark is waited for
    store = arguments.store or f"meander-state/{flow.name}"
    checked_store(store)
    if not arguments.takeover:
        refuse_busy(store)
    console = make_console(arguments.json, arguments.no_color)
    with waiting(console, f"starting Spark for flow '{flow.name}' …"):
        session = make_session(console)
        try:
            run = flow.start(store, spark=session, **options)
        except BaseException as error:
            session.stop()
            if isinstance(error, Busy):  # somebody was faster while Spark started
                refuse_busy(store)
            raise
    meter, stop = Meter(keep_latencies=True), Stop()
    run.on_epoch(meter)
    restore = stop.on_signals()
    try:
        began = run.status()["epoch"]
        if arguments.pushgateway is not None:
            run.push_metrics(arguments.pushgateway)
        if port is not None:
            server = serve(run, arguments, port, stop)
            console.print(f"control plane: {server.url} (/status, /metrics, /scale; /docs lists all)", soft_wrap=True)
        console.print(f"flow '{flow.name}' runs on {store}, after epoch {began}; Ctrl-C stops it", soft_wrap=True)
        display: Display = StatusLine(console) if console.is_terminal else Lines(console)
        ended = available(run, stop) if arguments.once else run.await_termination
        watch(ended, meter, display, stop.wanted)
        if stop.wanted.is_set():
            console.print("stopping after this epoch …")
            if arguments.once:  # stop() would not wait for an epoch in a thread that is not its own
                ended(0.0)
        run.stop()
        _report(console, arguments, run, meter, store, "stopped" if stop.wanted.is_set() else "finished")
    finally:
        run.stop()
        restore()
        session.stop()
    return 0


def start_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of ``flow.start`` that the arguments say."""
    if arguments.once and arguments.trigger is not None:
        raise ConfigError("--once and --trigger contradict each other: leave one out")
    options: dict[str, Any] = {"strict": arguments.strict, "takeover": arguments.takeover, **_applied(arguments)}
    if arguments.same_code:
        options["same_code"] = True in arguments.same_code or arguments.same_code
    if arguments.parallelism is not None:
        options["parallelism"] = arguments.parallelism
    if arguments.autoscale is not None:
        options["autoscale"] = bounds(arguments.autoscale)
    if arguments.dead_letters is not None:
        options["dead_letters"] = arguments.dead_letters
    if arguments.latency_file is not None:
        options["latency_file"] = arguments.latency_file
    if arguments.once:
        options["trigger"] = None
    elif arguments.trigger is not None:
        options["trigger"] = arguments.trigger
    return options


def _applied(arguments: argparse.Namespace) -> dict[str, Any]:
    """The option ``apply`` of ``flow.start``, from the command line."""
    dropped = drop_state(arguments)
    if not arguments.apply:
        for option, given in (("--drop-state", dropped), ("--resume", arguments.resume), ("--restart", arguments.resume is False)):
            if given:
                raise ConfigError(f"{option} says what becomes of a flow that is changed by an edited file: add --apply")
        return {}
    return {"apply": {"resume": arguments.resume, "drop_state": dropped, "author": user()}}


def bounds(text: str) -> Autoscale:
    """
    >>> bounds("2-8").max
    8
    """
    from meander.settings import autoscale

    least, dash, most = text.partition("-")
    if not dash or not least.strip().isdecimal() or not most.strip().isdecimal():
        raise ConfigError(f"--autoscale {text}: write the least and the largest number of slots, such as 1-8")
    return autoscale(min=int(least), max=int(most))


class _Stopped(BaseException):
    """Ends process_available between two epochs."""


def available(run: Run, stop: Stop) -> Callable[[float], bool]:
    """``process_available`` in a thread of its own, so that signals are heard; the result waits for it like await_termination."""
    failure: list[BaseException] = []

    def between_epochs(done: EpochDone) -> None:
        # Listeners come last in an epoch: all of it is committed and published.
        if stop.wanted.is_set():
            raise _Stopped

    def work() -> None:
        try:
            run.process_available()
        except _Stopped:
            pass
        except BaseException as error:
            failure.append(error)

    def ended(timeout: float) -> bool:
        thread.join(None if stop.wanted.is_set() else timeout)
        if failure:
            raise failure[0]
        return not thread.is_alive()

    run.on_epoch(between_epochs)
    thread = threading.Thread(target=work, name="process-available")
    thread.start()
    return ended


def _report(console: Any, arguments: argparse.Namespace, run: Run, meter: Meter, store: str, outcome: str) -> None:
    status, reading = run.status(), meter.read()
    p50, p99 = meter.latency(50, 99)
    rows, epochs = (reading.rows_in, reading.epochs) if reading else (0, 0)
    rate = rows / meter.seconds if meter.seconds else 0.0
    console.print(
        f"{outcome} after epoch {status['epoch']}: {wording.plural(epochs, 'epoch')}, {wording.plural(rows, 'row')} in, "
        f"{wording.plural(reading.rows_out if reading else 0, 'row')} out, {wording.count(rate)} rows/s, "
        f"latency p50 {wording.duration(p50)}, p99 {wording.duration(p99)}",
        soft_wrap=True,
    )
    if status["dead_letters"]:
        letters = wording.plural(status["dead_letters"], "dead letter")
        where = arguments.dead_letters or f"meander dead-letters {store}"
        console.print(f"{letters} in all: {where}", soft_wrap=True)
    for operator in status["operators"]:
        console.print(f"state of '{operator}': meander state {store} {operator}", soft_wrap=True)
    if arguments.json:
        summary = {
            "flow": run.name,
            "outcome": outcome,
            "store": store,
            "epoch": status["epoch"],
            "epochs": epochs,
            "rows_in": rows,
            "rows_out": reading.rows_out if reading else 0,
            "dead_letters": reading.dead_letters if reading else 0,
            "seconds": round(meter.seconds, 3),
            "rows_per_second": round(rate, 1),
            "latency_ms": {"p50": round(p50 * 1000, 1), "p99": round(p99 * 1000, 1)},
        }
        print(json.dumps(summary), flush=True)

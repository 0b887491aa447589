"""``meander nexmark verify``: queries that are killed and rescaled on the way, each compared with the oracle."""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meander.cli import wording
from meander.cli.parser import Commands
from meander.errors import ConfigError

if TYPE_CHECKING:
    from meander.nexmark.verify import Verdict

_EXAMPLES = """examples:
  meander nexmark verify                                   all 23, a million events, with 1, 2 and 4 slots: over half an hour
  meander nexmark verify q5 q9 --parallelism 2             two of them, killed at two slots, going on with one
  meander nexmark verify q18 --events 100000 --events-per-epoch 5000 --no-kill --json"""


def register(own: Commands) -> None:
    parser = own.add_parser(
        "verify",
        help="kill and rescale queries on the way, and check their results",
        description="Run queries in a process that is killed (kill -9) in the middle, go on in another one, change the number of slots of "
        "every stateful operator while it runs, and compare the result row by row with DuckDB's.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("queries", metavar="QUERY", nargs="*", help="which of them (default: all)")
    parser.add_argument("--events", type=int, default=1_000_000, metavar="N", help="events of the whole stream (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="another seed, other events (default: %(default)s)")
    parser.add_argument(
        "--parallelism", default="1,2,4", metavar="N,…", help="slots at first; later it is the next of them (default: %(default)s)"
    )
    parser.add_argument(
        "--events-per-epoch", type=int, default=50_000, metavar="N", help="events that an epoch takes at most (default: %(default)s)"
    )
    parser.add_argument("--no-kill", action="store_true", help="without the kill: one process from start to end")
    parser.add_argument("--no-rescale", action="store_true", help="with the same number of slots throughout")
    parser.add_argument("--master", metavar="M", help="Spark's master, of the second process (default: a local Spark on all cores)")
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON on standard output, progress on standard error")
    parser.add_argument("--no-color", action="store_true", help="plain text")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    import meander as md
    from meander import nexmark
    from meander.cli.progress import make_console, waiting
    from meander.nexmark.queries import FLOWS
    from meander.nexmark.verify import Trial, check_trial, verify

    slots = _slots(arguments.parallelism)
    if arguments.events < 1 or arguments.events_per_epoch < 1:
        raise ConfigError(f"--events {arguments.events}, --events-per-epoch {arguments.events_per_epoch}: must be at least 1")
    others = slots[1:] + slots[:1] if len(slots) > 1 else [1 if slots[0] > 1 else 2]
    trials = [
        Trial(
            query,
            parallelism,
            None if arguments.no_rescale else other,
            not arguments.no_kill,
            arguments.events,
            arguments.events_per_epoch,
            arguments.seed,
        )
        for query in arguments.queries or FLOWS
        for parallelism, other in zip(slots, others, strict=True)
    ]
    for trial in trials:
        check_trial(trial)
    console = make_console(arguments.json, arguments.no_color)
    verdicts: list[Verdict] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="meander-nexmark-") as folder:
        with waiting(console, "starting Spark …"):
            session = md.spark(master=arguments.master, app_name="meander nexmark verify")
        try:
            known: dict[str, Any] = dict(nexmark.write_files(Path(folder) / "events", arguments.events, seed=arguments.seed))
            for trial in trials:
                doing = waiting(console, f"{trial.query} with {wording.plural(trial.parallelism, 'slot')} …")
                with doing, tempfile.TemporaryDirectory(prefix=f"{trial.query}-", dir=folder) as place:
                    verdict = verify(trial, session, Path(place), known)
                verdicts.append(verdict)
                console.print(words_of(verdict), soft_wrap=True, style=None if verdict.difference is None else "bold red")
        finally:
            session.stop()
    wrong = [verdict for verdict in verdicts if verdict.difference is not None]
    took = wording.duration(time.monotonic() - began)
    console.print(f"{len(verdicts) - len(wrong)} of {wording.plural(len(verdicts), 'run')} equal to DuckDB's result, in {took}")
    if arguments.json:
        print(json.dumps([dataclasses.asdict(verdict) for verdict in verdicts]), flush=True)
    return 1 if wrong else 0


def words_of(verdict: Verdict) -> str:
    """A verdict in a line."""
    trial = verdict.trial
    on_the_way = [
        *([] if verdict.killed_at is None else [f"killed after epoch {verdict.killed_at}"]),
        *([] if verdict.rescaled_at is None else [f"{wording.plural(trial.rescaled_to or 0, 'slot')} from epoch {verdict.rescaled_at} on"]),
    ]
    outcome = f"{wording.plural(verdict.rows, 'row')} equal" if verdict.difference is None else f"DIFFERENT. {verdict.difference}"
    begin = f"{trial.query:<4} {wording.plural(trial.parallelism, 'slot')}"
    return f"{', '.join([begin, *on_the_way])}, {wording.plural(verdict.epochs, 'epoch')} in all: {outcome} ({verdict.seconds:.0f} s)"


def _slots(text: str) -> list[int]:
    try:
        slots = [int(word) for word in text.split(",")]
    except ValueError:
        slots = []
    if not slots or min(slots) < 1 or len(set(slots)) < len(slots):
        raise ConfigError(f"--parallelism {text}: give one or more different numbers above 0, such as 1,2,4")
    return slots

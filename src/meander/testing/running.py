"""A run whose epochs the test runs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import polars as pl

from meander.connect.memory import MemorySink
from meander.connect.sink import Sink
from meander.connect.source import Source
from meander.coordinate.migration import check_strategy
from meander.coordinate.routing import check_slots
from meander.epochs.folders import check_folders
from meander.epochs.loop import Loop
from meander.epochs.migration import Migration
from meander.epochs.scaling import LoadMeter
from meander.errors import ConfigError
from meander.metrics import late_count
from meander.plan.change.become import HasPlan
from meander.plan.graph import Plan
from meander.plan.operators import SinkOp
from meander.plan.pickling import pack_plan, ship_user_modules
from meander.settings import Settings, Strategy
from meander.state.manifest import operator_of
from meander.state.reading import read_dead_letters
from meander.state.stores.contract import DirStore
from meander.task.physical import Compiled
from meander.task.reading import read_operator
from meander.testing.clock import START, Clock
from meander.testing.ends import with_ends
from meander.testing.opening import Opened, open_flow
from meander.testing.rows import Epochs


def run(
    flow: HasPlan,
    folder: str | Path,
    *,
    sources: Mapping[str, Source | Epochs] | None = None,
    sinks: Mapping[str, Sink] | None = None,
    clock: Clock | str | datetime = START,
    parallelism: int = 2,
    strict: bool = False,
    key_groups: int = 128,
) -> LocalRun:
    """Run a flow in this process, without Spark: nothing happens before ``step`` or ``run`` is called.

    ``folder`` becomes the store, for pytest's ``tmp_path``; a folder with the store of this flow goes on with it.
    ``sources`` and ``sinks`` take the places of the flow's own, by name; where rows alone are given, epoch by epoch, the flow's schema
    holds. Files and generators work as they are.
    ``clock`` is a ``Clock``, or when one begins. ``parallelism``, ``strict`` and ``key_groups`` are as of ``flow.start``.

    >>> import tempfile
    >>> import meander as md
    >>> from meander import testing
    >>> out, flow = md.memory(), md.Flow("counts")
    >>> words = flow.source("words", testing.source("word string", [[("to",), ("be",)], [("to",)]]))
    >>> counts = words.key_by("word").aggregate(md.count().alias("n"), name="counts").sink("out", out)
    >>> with tempfile.TemporaryDirectory() as folder, testing.run(flow, folder) as run:
    ...     run.step(), out.rows()
    ...     run.step(), out.rows()
    ...     run.step(), run.state("counts").rows()
    (True, [('be', 1), ('to', 1)])
    (True, [('be', 1), ('to', 1), ('to', 2)])
    (False, [('be', 1), ('to', 2)])
    """
    if not hasattr(flow, "plan"):
        raise ConfigError(f"testing.run: the flow comes first, and {type(flow).__name__} is none: give an md.Flow")
    moved = clock if isinstance(clock, Clock) else Clock(clock)
    settings = Settings(parallelism=parallelism, strict=strict, key_groups=key_groups, work_ahead=False)
    return LocalRun(_Swapped(with_ends(flow.plan(), sources or {}, sinks or {})), Path(folder), moved, settings)


class LocalRun:
    """A flow that runs in this process, epoch by epoch. ``testing.run`` makes one; it is closed at the end of a ``with`` block."""

    def __init__(self, flow: HasPlan, folder: Path, clock: Clock, settings: Settings) -> None:
        self.clock = clock
        """The clock of its decisions: ``run.clock.advance("10m")``."""
        self.folder = folder
        """Its store, as ``md.read_state`` takes it."""
        self._flow, self._settings = flow, settings
        self._closed = False
        self._opened = self._open()
        if self.epoch == 0:
            try:
                _check_unused(flow.plan())
            except ConfigError:
                self.close()
                raise

    @property
    def epoch(self) -> int:
        """The number of the last epoch; 0 before the first."""
        return self._opened.loop.log.manifest.epoch

    @property
    def counts(self) -> dict[str, int]:
        """The counters so far, as in ``run.status``: ``rows_in``, ``rows_out``, ``dead_letters``,
        ``late_rows``."""
        totals = self._opened.loop.log.manifest.totals
        return {name: totals.get(name, 0) for name in ("rows_in", "rows_out", "dead_letters", "late_rows")}

    @property
    def operators(self) -> list[str]:
        """The stateful operators: what can be rescaled, and has state."""
        return sorted(self._opened.loop.routing)

    def step(self, flush: bool = False) -> bool:
        """Run one epoch. False where there was nothing to do: no input, and nothing due by event time or by the clock.

        A source gives the rows of its next epoch, and a folder of files what is in it now. ``flush`` closes what is open where there is
        no input, as the end of all input does.
        """
        loop = self._loop()
        loop.input.look()
        return loop.step(everything=True, flush=flush)

    def run(self, flush: bool = False, epochs: int | None = None) -> int:
        """Run epochs until there is nothing to do, or so many; how many there were. ``flush``: then close what is open."""
        before, most = self.epoch, float("inf") if epochs is None else self.epoch + epochs
        while self.epoch < most and self.step():
            pass
        while flush and self.epoch < most and self.step(flush=True):
            pass
        return self.epoch - before

    def rescale(self, operator: str, parallelism: int, strategy: Strategy = "hybrid") -> None:
        """Give a stateful operator another number of slots, from the next epoch on: results must not depend on it.

        Here nobody has a cache, so ``strategy`` decides about the steps alone in which key groups move.
        """
        loop = self._loop()
        check_slots(loop.routing, operator, parallelism)
        migration = Migration(loop, self._opened.runner, LoadMeter(), self.clock, needs_fetching=True)
        migration.rescale(operator, parallelism, check_strategy(strategy), lambda switch: switch(), patience=0.0)

    def restart(self) -> None:
        """Start the flow again on its folder, as after a kill between two epochs: what was not stored is forgotten.

        The clock goes on. Sinks stay what they are; ``md.memory()`` keeps its rows.
        """
        self._loop()
        self._opened.close()
        self._opened = self._open()

    def state(self, operator: str) -> pl.DataFrame:
        """An operator's state, as ``md.read_state`` shows it, sorted by all columns; without columns where there was never any."""
        tables = {operator_of(name) for name in self._opened.loop.log.manifest.tables}
        if operator in self.operators and operator not in tables:
            return pl.DataFrame()
        frame = pl.DataFrame(pl.from_arrow(read_operator(DirStore(self.folder), operator, run_code=True)))
        return frame.sort(pl.all(), nulls_last=False) if frame.height else frame

    def late(self, operator: str) -> int:
        """How many rows came too late for an operator."""
        if operator not in self.operators:
            raise ConfigError(f"there is no stateful operator '{operator}'; there are: {', '.join(self.operators) or 'none'}")
        return self._opened.loop.log.manifest.totals.get(late_count(operator), 0)

    def dead_letters(self) -> pl.DataFrame:
        """The rows that could not be processed, as ``md.read_dead_letters`` has them: epoch, operator, position, reason and content."""
        return pl.DataFrame(pl.from_arrow(read_dead_letters(self.folder))).sort("epoch", "operator", "position")

    def close(self) -> None:
        """The run ends. Its state and counters can still be read, and the folder can be run
        again."""
        if not self._closed:
            self._closed = True
            self._opened.close()

    def __enter__(self) -> LocalRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<LocalRun of flow '{self._flow.plan().flow}': epoch {self.epoch}, {self.clock.time.isoformat(sep=' ')}>"

    def _loop(self) -> Loop:
        if self._closed:
            raise ConfigError(f"{self!r} is closed; testing.run(flow, folder) goes on with its folder")
        return self._opened.loop

    def _open(self) -> Opened:
        letters = str((self.folder / "dead_letters").absolute())

        def check(compiled: Compiled) -> None:
            check_folders(compiled, letters)
            ship_user_modules([node.op for node in compiled.plan.nodes])
            pack_plan(compiled.plan)  # a function that cannot travel is named here

        return open_flow(self._flow, DirStore(self.folder), self.clock, self._settings, dead_letters=letters, check=check)


def _check_unused(plan: Plan) -> None:
    """A sink in memory takes the epochs of a second store for repetitions of the first one's, and would leave them out."""
    for node in plan.nodes:
        if isinstance(node.op, SinkOp) and isinstance(node.op.sink, MemorySink) and node.op.sink.frame().width:
            raise ConfigError(
                f"sink '{node.name}' has the rows of another run, and this folder is new: make an md.memory() for every folder, "
                f"as in sinks={{'{node.name}': md.memory()}}"
            )


class _Swapped:
    """A flow whose sources and sinks are chosen."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def plan(self) -> Plan:
        return self._plan

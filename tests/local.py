"""A whole flow without Spark, as ``meander.testing`` runs it, with all that tests of Meander itself look at and replace.

What Spark itself does (placement, retries, lost executors) is tested on Spark.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import meander as md
from meander.clock import SystemClock
from meander.epochs.decision import EpochDone
from meander.epochs.probation import Trial
from meander.plan.change.modify import StateRules
from meander.replicate.membership import Cohort
from meander.settings import Settings
from meander.state.log import Log
from meander.state.stores.contract import DirStore
from meander.testing.merges import MergeAtOnce
from meander.testing.opening import open_flow
from meander.testing.script import Script, ScriptCursor
from meander.worker import Worker

__all__ = ["Local", "ReadOnly", "Script", "ScriptCursor", "constants"]


class ReadOnly:
    """A source for who runs stages alone: its splits are given, and nobody asks it for more."""

    def cursor(self, offset: dict[str, Any], seen: set[str], throttle: float = 1.0) -> Any:
        raise AssertionError("a stage does not decide")

    def describe(self) -> str:
        return type(self).__name__

    def canonical(self) -> str:
        return type(self).__name__


@dataclass
class Local:
    """A flow on a folder. Make another one on the same folder to have it restarted."""

    flow: md.Flow
    folder: Path
    parallelism: int = 2
    small: bool = True
    key_groups: int = 8
    ahead: bool = True
    done: list[EpochDone] = field(default_factory=list)
    clock: Any = field(default_factory=SystemClock)
    strict: bool = False
    store: Any = None
    replica: str | None = None
    election: Any = None
    merges: Any = None
    """A function of store and key groups, where merges are not to be done at once."""
    apply: Any = False
    """As of ``flow.start``; what is asked for is tried with the first step."""
    request_id: str = ""
    """Of that."""
    same_code: Any = False
    """As of ``flow.start``."""
    trial: Trial | None = None
    worker: Worker = field(default_factory=Worker)
    """Where its tasks run."""

    def __post_init__(self) -> None:
        self.store = self.store or DirStore(self.folder)
        settings = Settings(
            parallelism=self.parallelism,
            strict=self.strict,
            key_groups=self.key_groups,
            small_epochs=self.small,
            work_ahead=self.ahead,
            retain_epochs=4,
            same_code=self.same_code,
        )
        opened = open_flow(
            self.flow,
            self.store,
            self.clock,
            settings,
            dead_letters=str(self.folder / "dead_letters"),
            merges=self.merges or MergeAtOnce,
            listener=self.done.append,
            join=None if self.replica is None else self._join,
            apply=self.apply,
            request_id=self.request_id,
            worker=self.worker,
        )
        self.loop, self.modifier, self.cohort, self.trial = opened.loop, opened.modifier, opened.cohort, opened.trial

    def _join(self, log: Log) -> Cohort:
        cohort = Cohort(self.store, self.clock, str(self.replica), log.manifest.generation, self.election)
        cohort.beat()
        return cohort

    @property
    def manifest(self) -> Any:
        return self.loop.log.manifest

    @property
    def stored(self) -> set[str]:
        """The tables that have rows which are not over."""
        return {name for name, table in self.manifest.tables.items() if table.rows}

    def step(self, flush: bool = False) -> bool:
        return self.loop.step(everything=True, flush=flush)

    def propose(self, *changes: Any, request_id: str = "", guard: Any = None, patience: float = 60.0, **rules: Any) -> Trial:
        """Ask for a modification, to be tried with the next step."""
        identity = request_id or self.clock.new_id()
        return self.modifier.propose(self.modifier.request(identity, changes, StateRules(**rules), "somebody", guard, patience))

    def flush(self) -> Iterator[bool]:
        """Steps of a flush while nobody has input, whatever the scripts have left: each says whether it was the flush itself."""
        cursors = self.loop.input.cursors.values()
        whole = [cursor.script for cursor in cursors]
        for cursor in cursors:
            cursor.script = replace(cursor.script, epochs=cursor.script.epochs[: cursor.next])
        try:
            while self.step(flush=True):
                yield self.done[-1].decision.flush
        finally:
            for cursor, script in zip(cursors, whole, strict=True):
                cursor.script = script

    def run(self, flush: bool = False) -> None:
        while self.step():
            pass
        while flush and self.step(flush=True):
            pass


@contextlib.contextmanager
def constants(**values: tuple[Any, Any]) -> Iterator[None]:
    """Other values for modules' constants: ``constants(FEWEST=(module, 2))``."""
    with contextlib.ExitStack() as stack:
        for name, (module, value) in values.items():
            stack.enter_context(mock.patch.object(module, name, value))
        yield

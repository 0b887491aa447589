"""The setup that epochs are run with, and the plan of the last committed epoch. Both change between two epochs only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from meander.connect.sink import Sink
from meander.coordinate.marks import Marks, evictions, lates
from meander.coordinate.routing import spread
from meander.epochs.ahead import Ahead
from meander.epochs.decision import Decision
from meander.epochs.entry import Basis
from meander.epochs.former import former_tables, not_closed
from meander.epochs.input import Input
from meander.epochs.parts import Parts, route
from meander.epochs.runner import Runner
from meander.epochs.setup import Once, Rewritten, Setup
from meander.state.log import Log
from meander.state.manifest import Json, Manifest


class InForce:
    """One loop's. In its thread."""

    def __init__(self, log: Log, parts: Parts, parallelism: int, *, input: Input, ahead: Ahead, runner: Runner) -> None:
        self._log, self._input, self._ahead, self._runner = log, input, ahead, runner
        self._parallelism = parallelism
        self.parts = parts
        self.routing = {name: route(log.manifest, name, parallelism) for name in parts.keyed}
        self._once = Once()
        self._formers: tuple[Parts, ...] = ()
        self._committed = parts
        """Of the plan that the last committed epoch ran under: its output is for these sinks, also while another plan is tried."""

    # -- for an epoch ---------------------------------------------------------------------------------------------

    def basis(self) -> Basis:
        """The ground of the next epoch."""
        manifest = self._log.manifest
        rewritten = self._once.rewritten(manifest)
        return Basis(self.parts, self.routing, self._parallelism, manifest, rewritten, self._once.restarts, self._formers)

    def marked(self, decision: Decision) -> Decision:
        """The decision of the next epoch with its marks, by the plan in force."""
        manifest = self._once.rewritten(self._log.manifest).view(self._log.manifest)
        return replace(decision, marks=Marks.of(self.parts.timed, manifest, decision.epoch, decision.now, decision.flush))

    def marked_ahead(self, decision: Decision) -> Decision:
        """A decision that is agreed on, or begun, with the marks that are known before its turn."""
        manifest = self._once.rewritten(self._log.manifest).view(self._log.manifest)
        return replace(decision, marks=Marks(lates(self.parts.timed, manifest, decision.epoch)))

    def committed(self, entry: Json) -> None:
        """An epoch has been committed under what is in force here, with what is set aside now."""
        self._committed = self.parts
        self.parts = replace(self.parts, plan=entry["plan"])

    @property
    def plan(self) -> Json:
        """Version and digest of what is in force."""
        return self.parts.plan

    @property
    def sinks(self) -> Mapping[str, Sink]:
        """Those of the last committed epoch."""
        return self._committed.sinks

    # -- routing --------------------------------------------------------------------------------------------------

    def route(self, operator: str, table: list[int]) -> None:
        """Another routing table for an operator."""
        self.routing = {**self.routing, operator: table}
        self._ahead.unprepare()

    def route_anew(self, manifest: Manifest) -> None:
        """The routing tables of a manifest that this loop has not come to by itself."""
        self.routing = {name: route(manifest, name, self._parallelism) for name in self.parts.keyed}

    def route_new(self) -> list[int]:
        """A routing table for an operator that is new."""
        return spread(self._log.manifest.key_groups, self._parallelism)

    # -- setups ---------------------------------------------------------------------------------------------------

    def install(self, setup: Setup, watched: frozenset[str], formers: tuple[Parts, ...] = ()) -> Setup:
        """Run epochs with this from now on. Returns what it was before. ``formers``: see ``mark_plan``."""
        self._ahead.unprepare()
        program = self._runner.adopt(setup.program, watched)
        before = Setup(self.parts, program, self.routing, self._input.cursors)
        self.parts, self.routing, self._input.cursors = setup.parts, setup.routing, setup.cursors
        self._formers, self._once = formers, setup.once
        return before

    def setup_of(self, parts: Parts, program: Any) -> Setup:
        """A setup for another plan with the same sources."""
        tables = {name: self.routing.get(name) or route(self._log.manifest, name, self._parallelism) for name in parts.keyed}
        return Setup(parts, program, tables, self._input.cursors)

    def settle(self) -> None:
        """The first epoch of a setup is committed: what was once is done."""
        self._once, self._committed = Once(), self.parts

    # -- probation ------------------------------------------------------------------------------------------------

    def watch(self, operators: frozenset[str]) -> None:
        """Which operators are watched from now on."""
        self._runner.watch(operators)

    def mark_plan(self, unproven: Json | None, formers: tuple[Parts, ...]) -> None:
        """Log entries say from now on what to go back to should the plan fail on the first rows; None: it has not.

        ``formers`` are the plans that may be gone back to, the last first: what they still need is set aside, and not dropped.
        """
        self._formers = formers
        plan = {name: value for name, value in self.parts.plan.items() if name != "unproven"}
        self.parts = replace(self.parts, plan=plan if unproven is None else {**plan, "unproven": unproven})

    def mark_packed(self, name: str) -> None:
        """The plan in force is in the store."""
        self.parts = replace(self.parts, plan={**self.parts.plan, "packed": name})

    def adopt_probation(self, unproven: Json) -> None:
        """A sibling has committed an epoch of the plan on probation: what it has set aside is so for our next one."""
        self.parts = replace(self.parts, plan={**self.parts.plan, "unproven": unproven})

    def reached(self, manifest: Manifest, now: float) -> dict[str, int]:
        """Per operator in force that follows watermarks, the mark up to which things close next."""
        timed = {name: keyed for name, keyed in self.parts.timed.items() if keyed.timing is not None and not keyed.timing.by_clock}
        return evictions(timed, manifest, now)

    def as_if_never(self, unproven: Json, parts: Parts) -> Callable[[Manifest], Rewritten]:
        """The tables, times and floors of a plan when the change on top of it is taken back: nothing was dropped for that one."""
        so_far, known = self._once.rewritten, parts.tables()

        def rewritten(now: Manifest) -> Rewritten:
            manifest = so_far(now).view(now)
            tables = {name: table for name, table in former_tables(manifest, unproven).items() if name in known}
            other = {name: table for name, table in tables.items() if now.tables.get(name) != table}
            forgets = tuple(name for name in now.tables if name not in tables or name in other)
            return Rewritten(forgets, other, not_closed(unproven["times"], now.times), unproven["flushed"])

        return rewritten

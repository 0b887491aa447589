"""Between two epochs: merges, snapshots, removing what no retained epoch needs, and less input where merges cannot keep up.

Among replicas it is one's work; the others only remember what there is to do.
"""

from __future__ import annotations

from meander.coordinate.routing import groups_of, slots_of
from meander.epochs.compaction import Compactor, merge_entry, still_holds
from meander.epochs.in_force import InForce
from meander.epochs.input import Input
from meander.epochs.options import Tenure
from meander.epochs.parts import COMFORTABLE_RUNS, share_of_input
from meander.epochs.siblings import Siblings
from meander.epochs.tables import leftovers
from meander.epochs.tidy import Tidy
from meander.errors import Retryable
from meander.state.log import Taken
from meander.state.manifest import Json, operator_of
from meander.state.seen import flush_seen


class Housekeeping:
    """One loop's. In its thread."""

    def __init__(self, tenure: Tenure, in_force: InForce, input: Input, *, siblings: Siblings, compactor: Compactor, tidy: Tidy) -> None:
        self._store, self._clock, self._log = tenure.store, tenure.clock, tenure.log
        self._in_force, self._input, self._siblings = in_force, input, siblings
        self.compactor, self._tidy = compactor, tidy
        self._is_mine = not siblings.replicated
        self._share = 1.0
        self._finished: list[Json] = []
        """Merges that are done and not in the log yet."""
        self.written: set[str] = set()
        """Pieces of tables that this process has written, and that the log does not name yet."""

    def close(self) -> None:
        self.compactor.close()

    def do(self, idle: bool = False) -> None:
        """Do all housekeeping that is due. ``idle``: there was no epoch before it."""
        log = self._log
        self._take_merges()
        self._relieve()
        self._drop_unnamed_tables()
        if not self._siblings.keeps_house():
            self._is_mine = False
            self._tidy.leave(log.manifest)
            return
        if not self._is_mine:
            self._is_mine = True
            self._tidy.restock(log.manifest)
        routing = self._in_force.routing
        self.compactor.consider(log.manifest, routing, {name: slots_of(table) for name, table in routing.items()})
        if log.due_for_snapshot() and not idle:
            self._take_snapshot()
        self._tidy.collect(log.manifest)

    def undo(self) -> None:
        """An epoch has failed for now, and the log says what is in force."""
        self._drop_unnamed_tables()
        self._tidy.undo(self._log.manifest)

    def _drop_unnamed_tables(self) -> None:
        if self.written:
            self._tidy.unwanted(*leftovers(self.written, self._log.manifest, self._in_force.plan))

    def _take_snapshot(self) -> None:
        """Where something is in the way, the next time will do. What an entry's fate is, though, must be known before the next one."""
        log = self._log
        before = log.manifest
        try:
            names = flush_seen(self._store, self._clock, before)
        except Retryable:
            return
        try:
            is_written = log.snapshot(names)
        except Taken as taken:
            if taken.certain:
                self._tidy.unwanted(*(file for source, files in names.items() for file in files if file not in before.seen.get(source, ())))
            self._siblings.keep_up(taken.certain)
            return
        self._tidy.dropped(before, log.manifest)
        if is_written:
            self._tidy.snapshotted(log.manifest)

    def finish_merges(self, timeout: float) -> None:
        """Let no merge be under way: what one gives out stands where it was made, and whoever takes over would not have it."""
        deadline = self._clock.monotonic() + timeout
        while self.compactor.busy and self._clock.monotonic() < deadline:
            self._take_merges()
            self._clock.sleep(0.01)

    def _take_merges(self) -> None:
        """What was merged meanwhile counts from now on: one entry for all of it, since an entry takes the store a while."""
        log = self._log
        while (merge := self.compactor.collect()) is not None:
            self._finished.append(merge)
        while self._finished:
            # Should nobody be able to say whether the entry is in the log, its merges are forgotten: what they wrote may be state.
            now, self._finished = self._hold(self._finished)
            before = log.manifest
            try:
                if now:
                    self._tidy.dropped(before, log.append(merge_entry(now)))
            except Taken as taken:
                if taken.certain:
                    self._finished = now + self._finished
                self._siblings.keep_up(taken.certain)

    def _hold(self, finished: list[Json]) -> tuple[list[Json], list[Json]]:
        """The merges that still hold, in two parts: those of the first have no input in common. What the others wrote is garbage."""
        now: list[Json] = []
        later: list[Json] = []
        read: set[str] = set()
        for merge in finished:
            if not still_holds(merge, self._log.manifest):  # its time is over, its state was dropped, or somebody else merged it
                self._tidy.unwanted(merge["output"][0])
            elif read.isdisjoint(merge["inputs"]):
                read.update(merge["inputs"])
                now.append(merge)
            else:
                later.append(merge)
        return now, later

    def _relieve(self) -> None:
        runs = 0
        for name, table in self._log.manifest.tables.items():
            if len(table.segments) > COMFORTABLE_RUNS:
                routing = self._in_force.routing[operator_of(name)]
                runs = max(runs, *(len(table.alive_for(groups_of(routing, slot))) for slot in range(slots_of(routing))))
        share = share_of_input(runs)
        if share != self._share:
            self._share = share
            self._input.slow_down(share)

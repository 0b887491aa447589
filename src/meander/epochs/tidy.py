"""Removing what no retained epoch needs.

Objects are recorded as garbage when they become garbage (a compaction's inputs, a published epoch's
staged files, a snapshot's predecessors). So the cost of tidying is that of the removals; the store
is never listed. Objects that only a dead generation knew, such as the segments of an epoch that was
never committed, are found once, at the start, by listing, and only among names of older
generations. So are the temporary files of processes that died inside a put.

Nothing waits for a deletion: a failed deletion is tried again with the next epoch.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from itertools import pairwise

from meander.epochs.compaction import is_overdue
from meander.errors import Retryable
from meander.state.log import entry_name, history, read_snapshot, snapshot_name, snapshots
from meander.state.manifest import Manifest
from meander.state.stores.contract import Store, sweep_temporary

_WRITTEN = (
    *("log/", "manifest/", "plan/", "probe/", "modifications/", "segments/", "staged/", "seen/", "tables/"),
    *("decide/", "diverged/", "published/", "replicas/"),
)
"""Every folder in which a process may have died inside a put."""
_LOT = 500
"""Names that another machine is asked to remove with one message."""


class Tidy:
    """The garbage of one generation's work, and when it may go."""

    def __init__(
        self,
        store: Store,
        manifest: Manifest,
        retain: int,
        removed: Callable[[list[str]], None] = lambda segments: None,
        beside: Executor | None = None,
    ) -> None:
        """``removed`` is called with the names of removed segments, so that caches drop them.
        ``beside`` is where deletions run, if an epoch should not wait for them: where every call to
        the store is a message to another machine, and a snapshot sets many entries free."""
        self._removed = removed
        self._beside = beside
        self._removing: Future[list[str]] | None = None
        self._store = store
        self._retain = retain
        self._start = manifest
        self._garbage: deque[tuple[int, str]] = deque()
        self._snapshots: deque[tuple[int, int, int]] = deque()
        """(epoch, generation, position), oldest first."""
        self._old_entries: deque[tuple[int, int]] = deque()
        """(position, generation) of retained entries of older generations, without their seals, oldest first."""
        self._oldest_own = manifest.position + 1
        self._due: deque[str] = deque()
        """Garbage that is not removed yet."""
        self._closing = False

    def close(self) -> None:
        """Begin no other lot of deletions: the next start sweeps what is left."""
        self._closing = True

    def published(self, before: Manifest) -> None:
        """An epoch is committed and published: the staged files of the one before it are not needed any more."""
        self._due.extend(file["name"] for files in before.staged.values() for file in files)

    def dropped(self, before: Manifest, after: Manifest) -> None:
        """Segments or name files were replaced: they go when no retained epoch reads them."""
        for name in sorted(_lasting(before) - _lasting(after)):
            self._garbage.append((after.epoch, name))

    def unwanted(self, *names: str) -> None:
        """Written, and never named by the log."""
        self._due.extend(names)

    def snapshotted(self, manifest: Manifest) -> None:
        self._snapshots.append((manifest.epoch, manifest.generation, manifest.position))

    def restock(self, manifest: Manifest) -> None:
        """From now on this replica removes what all have left behind: find out what is there. Lists what is retained, and no segments."""
        self._snapshots.clear()
        for position, generation in snapshots(self._store):
            found = read_snapshot(self._store, generation, position)
            if found is not None:
                self.snapshotted(found)
        prefix = entry_name(manifest.generation, 0).rsplit("/", 1)[0] + "/"
        positions = [int(name.rsplit("/", 1)[1]) for name in self._store.list(prefix)]
        self._oldest_own = min(positions, default=manifest.position + 1)

    def leave(self, manifest: Manifest) -> None:
        """Another replica removes objects that have left retention. They are remembered here for a
        while, since it may die before it removes them."""
        while self._garbage and self._garbage[0][0] < manifest.epoch - 2 * self._retain:
            self._garbage.popleft()
        self._remove()

    def collect(self, manifest: Manifest) -> None:
        """Remove what has left retention."""
        horizon = manifest.epoch - self._retain
        while self._garbage and self._garbage[0][0] < horizon:
            self._due.append(self._garbage.popleft()[1])
        # The newest snapshot at or before the horizon is the base of everything retained; older
        # ones are not needed.
        while len(self._snapshots) > 1 and self._snapshots[1][0] <= horizon:
            _, generation, position = self._snapshots.popleft()
            self._due.append(snapshot_name(generation, position))
            self._drop_entries_up_to(self._snapshots[0][2])
        self._remove()

    def _drop_entries_up_to(self, last: int) -> None:
        """Entries up to a snapshot say nothing that it does not."""
        while self._old_entries and self._old_entries[0][0] <= last:
            position, generation = self._old_entries.popleft()
            self._due.append(entry_name(generation, position))
        self._due.extend(entry_name(self._start.generation, position) for position in range(self._oldest_own, last + 1))
        self._oldest_own = max(self._oldest_own, last + 1)

    def _remove(self) -> None:
        """Remove what is due, here or beside the epochs, one lot at a time."""
        if self._removing is not None:
            if not self._removing.done():
                return
            self._due.extend(self._removing.result())
            self._removing = None
        if not self._due:
            return
        names = list(self._due)
        self._due.clear()
        if self._beside is None:
            self._due.extend(self._delete(names))
        else:
            self._removing = self._beside.submit(self._delete, names)

    def _delete(self, names: list[str]) -> list[str]:
        """Remove objects and report the removed segments at once, since there may be no next epoch
        to do so. Returns the objects that are still there.

        Stops when the store does not answer, so that nobody waits for every other name, too.
        """
        at_once = 1 if self._beside is None else _LOT
        left: list[str] = []
        for start in range(0, len(names), at_once):
            lot, rest = names[start : start + at_once], names[start + at_once :]
            if self._closing:
                names, left = names[:start], lot + rest
                break
            try:
                self._store.delete_all(lot)
            except Retryable:
                names, left = names[:start], [*rest, *lot[1:], lot[0]]  # last: it may never be removable
                break
        segments = [name for name in names if name.startswith(("segments/", "tables/"))]
        if segments:
            self._removed(segments)
        return left

    def undo(self, manifest: Manifest) -> None:
        """An epoch has failed for now, and none of its tasks runs: objects that tasks have written
        since this manifest are garbage.

        Lists the store, which is allowed only after a failure: a full disk has room again when the
        failed output is gone. Only for a run without replicas, since their objects look the same.
        """
        with contextlib.suppress(Retryable):
            for folder in ("segments/", "staged/"):
                self._due.extend(name for name in self._store.list(folder) if self._is_uncommitted(name, manifest))
        self._remove()

    def _is_uncommitted(self, name: str, manifest: Manifest) -> bool:
        owner, epoch, number = (*name.rsplit("/", 1)[1].split("-"), "", "")[:3]
        by_a_task = owner.isdigit() and epoch.isdigit() and number.isdigit()
        return by_a_task and int(owner) == manifest.generation and int(epoch) > manifest.epoch

    def sweep(self) -> None:
        """Once, at the start: list the retained objects, and remove those that dead generations
        left behind."""
        states = self._retained_states()
        if not states:
            return  # collected while it was read: another generation owns the store, and our next append says so
        needed = self._start.object_names() | _lasting(states[0])  # of staged files only the last epoch's: all others are published
        for before, after in pairwise(states):
            needed |= _lasting(after)
            self.dropped(before, after)
        self._take_stock_of_entries()
        for folder in ("decide/", "published/"):
            for name in self._store.list(folder):
                _, owner, epoch = name.split("/")
                if (int(owner), int(epoch)) < (self._start.generation, self._start.epoch):
                    self._due.append(name)
        for folder in ("segments/", "staged/", "seen/", "tables/"):
            for name in self._store.list(folder):
                if name not in needed and self._is_left_behind(name):
                    self._due.append(name)
        self._remove()
        for folder in ("", *_WRITTEN):
            sweep_temporary(self._store, folder)

    def _is_left_behind(self, name: str) -> bool:
        """Whether an object that no retained state needs was written by a process that cannot use
        it any more.

        True for all objects of an older generation. A generation shared by replicas lives on while
        replicas die; in it True for: output of tasks for an epoch that is committed already; state
        rewritten by a change for such an epoch; a table written for an epoch that was committed
        without it; output of a merge begun so long ago that its entry can no longer be appended;
        and files of names written for a position of the log that another entry has.
        """
        owner, epoch, writer = (*name.rsplit("/", 1)[1].split("-"), "", "")[:3]
        if not owner.isdigit() or int(owner) < self._start.generation:
            return owner.isdigit()
        if not epoch.isdigit():
            return False
        if name.startswith("seen/"):
            return self._start.shared and int(owner) == self._start.generation and int(epoch) < self._start.position
        if name.startswith("tables/"):
            return self._start.shared and int(owner) == self._start.generation and int(epoch) <= self._start.epoch
        if writer == "merge":
            return int(owner) == self._start.generation and is_overdue(name, self._start)
        if not (writer.isdigit() or writer == "upgrade"):
            return False
        wanted_by = int(epoch) + (writer == "upgrade")
        return self._start.shared and int(owner) == self._start.generation and wanted_by <= self._start.epoch

    def _retained_states(self) -> list[Manifest]:
        """Every state from the oldest that can still be read to the newest. Snapshots from which the log cannot be followed go."""
        states = history(self._store, self._start.position)
        for position, generation in snapshots(self._store) if states else []:
            manifest = read_snapshot(self._store, generation, position)
            if manifest is not None and position >= states[0].position:
                self.snapshotted(manifest)
            else:
                self._due.append(snapshot_name(generation, position))
        return states

    def _take_stock_of_entries(self) -> None:
        by_generation: dict[int, list[int]] = {}
        for name in self._store.list("log/"):
            _, owner, position = name.split("/")
            by_generation.setdefault(int(owner), []).append(int(position))
        for generation, positions in by_generation.items():
            if generation < self._start.generation:
                seal = max(positions)  # kept for ever: it is what a writer of that generation meets when it wakes up
                self._old_entries.extend((p, generation) for p in positions if p != seal)
        self._old_entries = deque(sorted(self._old_entries))


def _lasting(manifest: Manifest) -> set[str]:
    return manifest.segment_names() | manifest.stored_tables() | {name for files in manifest.seen.values() for name in files}

"""A flow's position in its sources, and the input of the next epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from meander.connect.source import Choice, Cursor, Source, Split
from meander.epochs.decision import Decision
from meander.state.log import Log
from meander.state.manifest import Json
from meander.state.seen import load_seen
from meander.state.stores.contract import Store


class Input:
    """The cursors of a flow's sources. Not shared between threads."""

    def __init__(self, store: Store, time: Callable[[], float], log: Log, sources: Mapping[str, Source]) -> None:
        self._store, self._time, self._log = store, time, log
        self._decided = 0.0
        self._looked = False
        self._chosen: dict[str, tuple[Cursor, Choice | None]] = {}
        """Choices of cursors for a decision that is not made yet. The cursors have moved past them,
        so they must be kept."""
        self.cursors: dict[str, Cursor] = {name: self.open(name, source) for name, source in sources.items()}

    def open(self, name: str, source: Source, anew: bool = False) -> Cursor:
        """A source's cursor, where the log has come to; ``anew``: at the beginning."""
        manifest = self._log.manifest
        return source.cursor({}, set()) if anew else source.cursor(manifest.offsets.get(name, {}), load_seen(self._store, manifest, name))

    def reopen(self, sources: Mapping[str, Source]) -> None:
        """Move all cursors to the log's position, or none of them if the store does not answer.

        If all input was looked for, it is looked for again: new cursors have not found anything
        yet, and a caller that wants all input would seem to have it.
        """
        opened: dict[str, Cursor] = {}
        try:
            for name, source in sources.items():
                opened[name] = self.open(name, source)
                if self._looked:
                    opened[name].look()
        except BaseException:
            for cursor in opened.values():
                cursor.close()
            raise
        self.close()
        self.cursors, self._chosen = opened, {}

    def close(self) -> None:
        for cursor in self.cursors.values():
            cursor.close()

    def look(self) -> None:
        self._looked = True
        for cursor in self.cursors.values():
            cursor.look()

    def now(self) -> float:
        """The decision's clock: never behind the last decision, also one of another replica, or one
        that is not committed yet."""
        self._decided = max(self._time(), self._log.manifest.now, self._decided)
        return self._decided

    def waiting(self) -> int:
        return sum(cursor.waiting(self.now()) for cursor in self.cursors.values())

    def backlog(self) -> bool:
        return any(cursor.backlog(self.now()) for cursor in self.cursors.values())

    def finished(self) -> bool:
        return all(cursor.finished() for cursor in self.cursors.values())

    @property
    def half_chosen(self) -> bool:
        """Whether some sources have given something for a decision that is not made."""
        return bool(self._chosen)

    def choose(self, epoch: int, everything: bool) -> Decision | None:
        """The next epoch's input, where there is any."""
        now = self.now()
        splits: list[tuple[str, Split]] = []
        offsets: dict[str, Json] = {}
        seen: dict[str, list[str]] = {}
        for name, cursor in self.cursors.items():
            if name not in self._chosen or self._chosen[name][0] is not cursor:  # a source that was tried gave it, and is not in force
                self._chosen[name] = (cursor, cursor.choose(now, everything))
        chosen, self._chosen = {name: self._chosen[name][1] for name in self.cursors}, {}
        for name, choice in chosen.items():
            if choice is None:
                continue
            splits.extend((name, split) for split in choice.splits)
            offsets[name] = choice.offset
            if choice.seen:
                seen[name] = list(choice.seen)
        return Decision(epoch, now, tuple(splits), offsets, seen) if splits else None

    def follow(self, given: Mapping[str, Choice], agreed: Mapping[str, Choice], now: float = 0.0) -> None:
        """Be behind what is agreed on, and not behind what was given; time has gone on to there."""
        for name, cursor in self.cursors.items():
            cursor.follow(given.get(name), agreed.get(name))
        self._decided = max(self._decided, now)

    def release(self, taken: Mapping[str, list[str]]) -> None:
        """Never before the commit: until then a crash means that the epoch reads its input again."""
        for source, cursor in self.cursors.items():
            if source in taken:
                cursor.release(taken[source])

    def slow_down(self, share: float) -> None:
        for cursor in self.cursors.values():
            cursor.slow_down(share)

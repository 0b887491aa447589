"""Where slots run: which executors there are, and which of them each slot of each level is pinned to.

A hint to Spark and nothing more: correctness never depends on it, and an epoch whose executor died runs anywhere. Slots stay where they
are as long as that executor lives, since its cache knows their state; an executor that joined gets slots only with the next
rescaling, one that vanished or is being evacuated loses them with the next epoch. Until an executor is introduced (see
``on_spark.introduction``) its slots run on others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from meander.clock import Clock
from meander.coordinate.routing import assign
from meander.errors import ConfigError

_LOOK_EVERY = 1.0


class Executor(NamedTuple):
    """Where one is, as Spark takes hints, and how many tasks it runs at a time."""

    hint: str
    cores: int = 1


class Placement:
    """The executors of one run. Changed by its epoch thread only, but for ``introduced``; ``plan``, ``where`` and ``there`` may be
    asked from any."""

    def __init__(self, look: Callable[[], dict[str, Executor]], clock: Clock) -> None:
        self._look = look
        self._clock = clock
        self._known: dict[str, Executor] = {}
        self._looked: float | None = None
        self._leaving: set[str] = set()
        self._introduced: frozenset[str] | None = None
        """None if executors are not introduced: then all count as introduced."""
        self._slots: dict[int, list[str]] = {}
        """Per level, the executor of every slot."""
        self._now: dict[int, list[str]] = {}
        """The same at this moment: another one where that executor is not introduced yet."""

    def forget(self) -> None:
        """Something failed: look again before the next epoch."""
        self._looked = None

    def executors(self) -> dict[str, Executor]:
        """The executors that may have slots, by id."""
        self._refresh()
        staying = {name: executor for name, executor in self._known.items() if name not in self._leaving}
        return staying or self._known

    def ready(self) -> dict[str, Executor]:
        """Those of them that may run something now: introduced, or at work already. Where there is none, all."""
        there = self.executors()
        if self._introduced is None:
            return there
        at_work = {name for slots in self._now.values() for name in slots}
        return {name: executor for name, executor in there.items() if name in self._introduced or name in at_work} or there

    def introduced(self, executors: Iterable[str]) -> None:
        """All that have been introduced by now: from the first call on others wait, where there are such. From any thread."""
        self._introduced = frozenset(executors)

    def is_introduced(self, executor: str) -> bool:
        return self._introduced is None or executor in self._introduced

    def anywhere(self) -> list[str]:
        """Hints for tasks that need no cache: all executors that may get work; empty where that is everyone, and Spark may choose."""
        ready = self.ready()
        return [] if len(ready) == len(self._known) else [executor.hint for executor in ready.values()]

    def cores(self) -> int:
        """How many tasks the executors that may run something run at a time."""
        return sum(executor.cores for executor in self.ready().values())

    def evacuate(self, executor: str) -> None:
        """Give an executor nothing more that is pinned. It may still get what Spark places by itself."""
        self._looked = None
        self._refresh()
        if executor not in self._known:
            raise ConfigError(f"there is no executor '{executor}'; there are {', '.join(sorted(self._known)) or 'none'}")
        if len(set(self._known) - self._leaving - {executor}) == 0:
            raise ConfigError(f"executor '{executor}' is the last one: add another before it goes")
        self._leaving.add(executor)
        # At once, not with the next epoch: a flow without input must let its executors go, too.
        self._place({level: len(slots) for level, slots in self._slots.items()})

    def keep(self, executor: str) -> None:
        """It is not to go after all."""
        self._leaving.discard(executor)

    def pin(self, slots: Mapping[int, int]) -> dict[int, list[str]]:
        """The location hint of every slot of every level; empty lists where there is no choice to make."""
        if any(len(self._slots.get(level, ())) != count for level, count in slots.items()):
            self.forget()  # a rescale: executors that have just joined shall get slots, too
        self._place(slots)  # also with one executor: an executor that joins later leaves slots where they are
        if len(self._known) < 2:
            return {level: [] for level in slots}
        return {level: [self._known[executor].hint for executor in self._now[level]] for level in slots}

    def only(self, levels: Collection[int]) -> None:
        """Another plan has other levels: slots of those that are gone are nowhere."""
        self._slots = {level: slots for level, slots in self._slots.items() if level in levels}
        self._now = {level: slots for level, slots in self._now.items() if level in levels}

    def plan(self, level: int, slots: int) -> list[str]:
        """The executors that so many slots of a level would be pinned to. Changes nothing."""
        there = self.executors()
        return assign(slots, there, self._slots.get(level, ())) if there else []

    def where(self) -> dict[int, list[str]]:
        """Per level, the executor each slot was last pinned to. From any thread."""
        return {level: list(slots) for level, slots in dict(self._now).items()}

    def look(self) -> dict[str, Executor]:
        """The executors at this moment. From any thread; raises where Spark does not answer."""
        return self._look()

    def there(self) -> list[str]:
        """The executors that are there at this moment, those that are leaving included. From any thread: looks for itself."""
        try:
            return list(self._look())
        except Exception:  # Spark is stopping: use the last known value
            return list(self._known)

    @property
    def leaving(self) -> set[str]:
        return set(self._leaving)

    def _place(self, slots: Mapping[int, int]) -> None:
        there, ready = self.executors(), self.ready()
        if not there:
            return
        for level, count in slots.items():
            wanted = self._slots[level] = assign(count, there, self._slots.get(level, ()))
            now = self._now.get(level, [])[:count]
            before = [*now, *wanted[len(now) :]]
            held = [own if own in ready else other for own, other in zip(wanted, before, strict=True)]
            self._now[level] = assign(count, ready, held)

    def _refresh(self) -> None:
        now = self._clock.monotonic()
        if self._looked is None or now - self._looked >= _LOOK_EVERY:
            self._known, self._looked = self._look(), now
            self._leaving &= set(self._known)

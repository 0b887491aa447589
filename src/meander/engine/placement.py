"""Where slots run: which executors there are, and which of them each slot of each level is pinned to.

A hint to Spark and nothing more: correctness never depends on it, and an epoch whose executor died runs anywhere. Slots stay where they
are as long as that executor lives, since its cache knows their state; an executor that joined gets slots only with the next
rescaling, one that vanished or is being evacuated loses them with the next epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from meander.clock import Clock
from meander.coordinate.routing import assign
from meander.errors import ConfigError

_LOOK_EVERY = 1.0


class Placement:
    """The executors of one run. Changed by its epoch thread only; ``plan``, ``where`` and ``there`` may be asked from any."""

    def __init__(self, look: Callable[[], dict[str, str]], clock: Clock) -> None:
        self._look = look
        self._clock = clock
        self._known: dict[str, str] = {}
        self._looked: float | None = None
        self._leaving: set[str] = set()
        self._slots: dict[int, list[str]] = {}
        """Per level, the executor of every slot."""

    def forget(self) -> None:
        """Something failed: look again before the next epoch."""
        self._looked = None

    def executors(self) -> dict[str, str]:
        """The executors that may get work, by id: their location hints."""
        self._refresh()
        staying = {name: hint for name, hint in self._known.items() if name not in self._leaving}
        return staying or self._known

    def evacuate(self, executor: str) -> None:
        """Give an executor nothing more that is pinned. It may still get what Spark places by itself."""
        self._looked = None
        self._refresh()
        if executor not in self._known:
            raise ConfigError(f"there is no executor '{executor}'; there are {', '.join(sorted(self._known)) or 'none'}")
        if len(set(self._known) - self._leaving - {executor}) == 0:
            raise ConfigError(f"executor '{executor}' is the last one: add another before it goes")
        self._leaving.add(executor)
        there = self.executors()  # at once, not with the next epoch: a flow without input must let its executors go, too
        self._slots = {level: assign(len(slots), there, slots) for level, slots in self._slots.items()}

    def pin(self, slots: Mapping[int, int]) -> dict[int, list[str]]:
        """The location hint of every slot of every level; empty lists where there is no choice to make."""
        there = self.executors()
        if there:  # also where there is one: who joins later finds the slots where they are
            for level, count in slots.items():
                self._slots[level] = assign(count, there, self._slots.get(level, ()))
        if len(there) < 2 and not self._leaving:
            return {level: [] for level in slots}
        return {level: [there[executor] for executor in self._slots[level]] for level in slots}

    def plan(self, level: int, slots: int) -> list[str]:
        """The executors that so many slots of a level would be pinned to. Changes nothing."""
        there = self.executors()
        return assign(slots, there, self._slots.get(level, ())) if there else []

    def where(self) -> dict[int, list[str]]:
        """Per level, the executor each slot was last pinned to. From any thread."""
        return {level: list(slots) for level, slots in dict(self._slots).items()}

    def there(self) -> list[str]:
        """The executors that are there at this moment, those that are leaving included. From any thread: looks for itself."""
        try:
            return list(self._look())
        except Exception:  # Spark is stopping: what was known last
            return list(self._known)

    @property
    def leaving(self) -> set[str]:
        return set(self._leaving)

    def _refresh(self) -> None:
        now = self._clock.monotonic()
        if self._looked is None or now - self._looked >= _LOOK_EVERY:
            self._known, self._looked = self._look(), now
            self._leaving &= set(self._known)

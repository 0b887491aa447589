"""A worker's memory of segments from task to task: the open ones, and those that it has asked for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from meander.errors import Corrupted
from meander.state.segment import Segment

_KEPT = 256
_UNUSED = 4096
_OFTEN = 64


class Opened:
    """Segments that stay open as long as they are looked at in turn, however many they are.

    Segments not used recently are closed: they were merged or dropped, and take room on the disk while they are mapped.
    """

    def __init__(self, unused: int) -> None:
        self._unused, self._looks = unused, 0
        self._segments: OrderedDict[str, tuple[Segment, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._segments)

    def get(self, key: str) -> Segment | None:
        self._looks += 1
        if key not in self._segments:
            return None
        segment, _ = self._segments.pop(key)
        return self.put(key, segment)

    def put(self, key: str, segment: Segment) -> Segment:
        self._segments[key] = (segment, self._looks)
        while next(iter(self._segments.values()))[1] < self._looks - self._unused:
            self._segments.popitem(last=False)
        return segment


class OpenSegments:
    """One worker's."""

    def __init__(self) -> None:
        self._opened = Opened(_UNUSED)
        self._ordered: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._questions: OrderedDict[str, int] = OrderedDict()
        """How often a segment was asked for at a peer."""
        self.pool = ThreadPoolExecutor(2, thread_name_prefix="meander-questions")
        """Where peers are asked beside a task's work."""

    def get(self, key: str) -> Segment | None:
        return self._opened.get(key)

    def put(self, key: str, segment: Segment) -> Segment:
        return self._opened.put(key, segment)

    def find(self, key: str, name: str, read: Callable[[], pa.Buffer | None], *, url: str) -> Segment:
        """An open segment, or one that is read now. Corrupted where it is gone."""
        if (segment := self._opened.get(key)) is not None:
            return segment
        data = read()
        if data is None:
            raise Corrupted(f"segment '{name}' is named by the manifest but is not in store {url}; was the store changed from outside?")
        return self._opened.put(key, Segment(name, data))

    def was_ordered(self, name: str, groups: int) -> bool:
        """Whether the steward was told to fetch these key groups of a segment."""
        return (name, groups) in self._ordered

    def ordered(self, name: str, groups: int) -> None:
        self._ordered[name, groups] = None
        while len(self._ordered) > _KEPT:
            self._ordered.popitem(last=False)

    def asks_again(self, name: str) -> bool:
        """Whether a segment is asked for at a peer in one epoch after the other, and this is the time to do something about it."""
        asked = self._questions.pop(name, 0) + 1
        self._questions[name] = asked
        while len(self._questions) > _UNUSED:
            self._questions.popitem(last=False)
        return asked % _OFTEN == 0

"""Finds the new files of a folder, beside the epochs: a listing costs what the folder holds, and an epoch only what is new in it.

Used by the cursor of the files source, on the driver. ``look`` lists at once. ``watch`` leaves it
to a thread that rests ten times as long as its last look took, so that a folder with a long past
costs a tenth of one core at most and never an epoch's time. Of the last two looks the shorter
counts: one in which the process stood still for a while must not have it rest for ten times that
while. A folder without changes is hardly listed at all: its modification time shows that nothing
came.

Guarantees: a file that is there and stays is handed over once; those of one listing come together, oldest first; ``take`` and
``forget`` never wait for a listing. Why a thread and no notifications of the system: docs/decisions/0008.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import NamedTuple

from meander.clock import Clock, SystemClock
from meander.errors import Retryable

_POLL = 0.05
_REST = 10.0
# A folder's mtime has the resolution of a clock tick or worse: only a listing that began this long after the mtime was first seen has
# seen all that came with it. Measured here and not against the mtime itself, which is of the file server's clock.
_MTIME_TRUST = 2.0
# Mounts of object stores never change a folder's mtime: it is listed now and then although it says that nothing happened.
_UNTOLD = 10.0
_UNTOLD_REST = 100.0
_REMEMBERED = 1000


class Found(NamedTuple):
    """A file as it was when it was looked at; in the order in which files are taken."""

    mtime_ns: int
    name: str
    size: int


class Grown(NamedTuple):
    """A file that has another size than when it was taken."""

    name: str
    before: int
    size: int
    mtime_ns: int


class Discovery:
    """The files of a folder that its one caller has not got yet."""

    def __init__(self, folder: str, known: set[str], clock: Clock | None = None) -> None:
        self._folder = folder
        self._clock = clock or SystemClock()
        self._listing = threading.Lock()
        self._known = known  # under the lock, as everything up to the empty line
        self._mtime_ns: int | None = None
        self._mtime_seen = 0.0
        self._listed = 0.0
        self._took: deque[float] = deque([0.0], maxlen=2)  # seconds, by the last listings
        self._looks: deque[float] = deque(maxlen=2)  # and by all that the thread did when it looked last

        self._recent: OrderedDict[str, int] = OrderedDict()  # the sizes of files that were taken lately

        self._taken: deque[Found] = deque()
        self._grown: deque[Grown] = deque()
        self._found: deque[list[Found]] = deque()
        self._forgotten: deque[str] = deque()
        self._failure: Exception | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """List now: afterwards everything that is in the folder at this moment has been found."""
        with self._listing:
            self._read_mtime()
            self._list()
            self._look_back()

    def watch(self) -> None:
        """From the first call on: list at once, and then whenever something may have come, in a thread."""
        if self._thread is None:
            self.look()
            self._thread = threading.Thread(target=self._watch, name=f"meander-files-{os.path.basename(self._folder)}", daemon=True)
            self._thread.start()

    def take(self) -> list[list[Found]]:
        """The files that listings have found since the last call. Raises the error of the thread's
        last listing, if that failed."""
        if self._failure is not None:
            raise self._failure
        found = []
        while self._found:
            found.append(self._found.popleft())
        return found

    def took(self, file: Found) -> None:
        """Record a taken file, so that later writes to it are reported. Remembered for the last
        thousand of them."""
        self._taken.append(file)

    def grown(self) -> list[Grown]:
        """Files that have changed in size since they were taken; each change is reported once."""
        taken = []
        while self._grown:
            taken.append(self._grown.popleft())
        return taken

    def forget(self, name: str) -> None:
        """Forget a file that was removed before it was taken: a later file of the same name is a
        new one."""
        self._forgotten.append(name)

    def close(self) -> None:
        """The thread has ended when this returns."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def tick(self) -> float:
        """List if something may have come; how many seconds to rest."""
        began = self._clock.monotonic()
        with self._listing:
            try:
                self._read_mtime()
                if self._may_hold_news():
                    self._list()
                self._look_back()
                self._failure = None
            except Exception as error:  # whatever it is, the cursor's thread raises it: a silent thread would be a silent stall
                self._failure = error
        self._looks.append(self._clock.monotonic() - began)
        return max(_POLL, _REST * min(self._looks))

    def _watch(self) -> None:
        rest = _POLL
        while not self._stop.wait(rest):
            rest = self.tick()

    def _read_mtime(self) -> None:
        try:
            mtime_ns = os.stat(self._folder).st_mtime_ns
        except OSError as error:
            raise self._unlisted(error) from error
        if mtime_ns != self._mtime_ns:
            self._mtime_ns, self._mtime_seen = mtime_ns, self._clock.monotonic()

    def _may_hold_news(self) -> bool:
        if self._forgotten or self._listed < self._mtime_seen + _MTIME_TRUST:
            return True
        return self._clock.monotonic() >= self._listed + max(_UNTOLD, _UNTOLD_REST * min(self._took))

    def _list(self) -> None:
        while self._forgotten:
            self._known.discard(self._forgotten.popleft())
        began = self._clock.monotonic()
        try:
            # By name: a folder that changes while it is read may give a name twice.
            found = {name: Found(stat.st_mtime_ns, name, stat.st_size) for name, stat in scan(self._folder, self._known)}
        except OSError as error:
            raise self._unlisted(error) from error
        if found:
            self._known.update(found)
            self._found.append(sorted(found.values()))
        self._listed, self._failure = began, None
        self._took.append(self._clock.monotonic() - began)

    def _look_back(self) -> None:
        while self._taken:
            file = self._taken.popleft()
            self._recent[file.name] = file.size
            if len(self._recent) > _REMEMBERED:
                self._recent.popitem(last=False)
        for name, before in list(self._recent.items()):
            try:
                stat = os.stat(os.path.join(self._folder, name))
            except OSError:
                del self._recent[name]  # archived, or taken away by its owner
                continue
            if stat.st_size != before:
                self._recent[name] = stat.st_size
                self._grown.append(Grown(name, before, stat.st_size, stat.st_mtime_ns))

    def _unlisted(self, error: OSError) -> Retryable:
        return Retryable(f"files {self._folder}: cannot be listed ({error.strerror}); check that the folder is there")


def scan(folder: str, known: set[str]) -> Iterator[tuple[str, os.stat_result]]:
    """The regular files that are input and not in ``known``."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name[0] in "._" or entry.name in known:
                continue
            try:
                if entry.is_file():
                    yield entry.name, entry.stat()
            except FileNotFoundError:
                continue

"""Telling stewards which segments are gone, beside the epochs.

A steward may be slow to answer, and is then not contacted for a while. Names that it has missed are
sent later, as long as the steward lives: otherwise its cache would keep removed segments until it
is full.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence

from meander.cache.client import Unreachable

_AGAIN = 1.0
_CLOSING = 1.0


class Notices:
    """Names of segments that are owed to addresses. ``tell`` brings some to one of them, and raises ``Unreachable``."""

    def __init__(self, tell: Callable[[str, list[str]], None], kept: int) -> None:
        """``kept`` is how many names an address is owed at most: the oldest are forgotten first."""
        self._tell, self._kept = tell, kept
        self._owed: dict[str, deque[str]] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="meander-notices", daemon=True)

    def send(self, address: str, names: Sequence[str]) -> None:
        """Returns at once."""
        with self._changed:
            if self._closed or not names:
                return
            self._owed.setdefault(address, deque(maxlen=self._kept)).extend(names)
            if self._thread.ident is None:  # not begun; a thread that has ended cannot begin again
                self._thread.start()
            self._changed.notify()

    def only(self, addresses: Collection[str]) -> None:
        """Forget the names for all other stewards, which are gone."""
        with self._changed:
            self._owed = {address: names for address, names in self._owed.items() if address in addresses}

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(_CLOSING)

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._wait():
            with self._changed:
                due = {address: [*names] for address, names in self._owed.items()}
            failed = [address for address, names in due.items() if not self._has_notified(address, names)]
            with self._changed:
                if failed and not self._closed:
                    self._changed.wait(_AGAIN)

    def _wait(self) -> bool:
        """Until something is owed: False where there is nothing more to do."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._owed)
            return not self._closed

    def _has_notified(self, address: str, names: list[str]) -> bool:
        try:
            self._tell(address, names)
        except Unreachable:
            return False
        notified = {*names}
        with self._changed:
            left = [name for name in self._owed.pop(address, ()) if name not in notified]
            if left:
                self._owed[address] = deque(left, maxlen=self._kept)
        return True

"""Being told to end while there are replicas: the process that has started them stops them first."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class UntilSignalled:
    """Makes SIGTERM and SIGHUP end this process as ``sys.exit`` does, while some part of it has
    something to stop.

    Only signals that would end the process anyhow are changed: handlers of the user's, and ignored
    signals, stay as they are. A second signal does not interrupt the stopping. Python handles
    signals in its main thread only: in other threads this object does nothing.
    """

    def __init__(self) -> None:
        self._users = 0
        self._mine: list[signal.Signals] = []

    def begin(self) -> Callable[[], None]:
        """Returns what is to be called once all is stopped; more than once does no harm."""
        if threading.current_thread() is not threading.main_thread():
            return lambda: None
        if not self._users:
            self._mine = [number for number in _SIGNALS if signal.getsignal(number) in (signal.SIG_DFL, self._exit)]
            for number in self._mine:
                signal.signal(number, self._exit)
        self._users += 1
        ended: list[bool] = []

        def end() -> None:
            if not ended:
                ended.append(True)
                self._end()

        return end

    def _exit(self, number: int, frame: FrameType | None) -> NoReturn:
        for one in self._mine:
            signal.signal(one, signal.SIG_IGN)
        sys.exit(128 + number)

    def _end(self) -> None:
        self._users -= 1
        if self._users or threading.current_thread() is not threading.main_thread():
            return
        for number in self._mine:
            if signal.getsignal(number) in (self._exit, signal.SIG_IGN):  # and not something that was put there meanwhile
                signal.signal(number, signal.SIG_DFL)


UNTIL_SIGNALLED = UntilSignalled()

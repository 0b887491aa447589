"""Signals that ask a command to end: Ctrl-C, SIGTERM, and SIGHUP, which a closed terminal sends.

A command that was started with SIGHUP ignored goes on ignoring it: ``nohup`` asks for that, and some CI systems do.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class Stop:
    """The wish to stop, and the signals that express it. A second Ctrl-C or SIGTERM ends the
    process at once."""

    def __init__(self) -> None:
        self.wanted = threading.Event()

    def on_signals(self, *, hangup: bool = False) -> Callable[[], None]:
        """Listen to SIGINT and SIGTERM, and with ``hangup`` to SIGHUP unless it is ignored. Returns the way back.

        To be called when Spark is up, since Spark puts a handler of its own. SIGHUP may come twice, from the shell and from the
        terminal: a second one changes nothing.
        """
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def heard(number: int, frame: FrameType | None) -> None:
            self.wanted.set()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

        for number in before:
            signal.signal(number, heard)
        if hangup and (found := signal.getsignal(signal.SIGHUP)) is not signal.SIG_IGN:
            before[signal.SIGHUP] = found
            signal.signal(signal.SIGHUP, lambda *_: self.wanted.set())

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        return restore


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM as Ctrl-C, so that what was started is stopped. Once: a second one must not end the stopping."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

"""Requests of other threads: a loop does them between two epochs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")


class Requests:
    """One loop's. ``at_work`` is held for as long as an epoch runs, whichever thread it is in."""

    def __init__(self) -> None:
        self.at_work = threading.RLock()
        self._waiting: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def put(self, change: Callable[[], T]) -> Future[T]:
        """Have something done in the loop's own thread before the next epoch begins. Can be called from any thread."""
        done: Future[T] = Future()

        def perform() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                done.set_result(change())
            except Exception as error:
                done.set_exception(error)

        self._waiting.put(perform)
        return done

    def perform(self) -> None:
        """Between two epochs: do what was asked for. Waits for an epoch that runs."""
        with self.at_work:
            while not self._waiting.empty():
                self._waiting.get()()

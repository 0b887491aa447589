"""Errors in the light of who owns the store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from meander.errors import Corrupted, Retryable
from meander.state.log import Log

_LOOKS = 5


@contextlib.contextmanager
def fenced_first(log: Log) -> Iterator[None]:
    """Fenced in place of other errors where another run has taken the store over.

    Objects that a replaced run misses were collected by its successor: that is no corruption, and trying again does not help.
    """
    try:
        yield
    except Retryable:
        with contextlib.suppress(Retryable):
            log.check_owner()
        raise
    except Corrupted:
        log.check_owner(attempts=_LOOKS)  # no answer just now must not make a replaced run look like a corrupted one
        raise

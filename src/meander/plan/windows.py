"""Windows of time: how time is cut, and when what is stored of it can go. Pure arithmetic on microseconds since 1970."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from meander.errors import FlowError
from meander.settings import seconds
from meander.stored import stored

Times = npt.NDArray[np.int64]
Places = npt.NDArray[np.intp]
_SECOND = 1_000_000
NEVER = -(1 << 62)
"""Before all times."""
FOREVER = 1 << 62
_Moments = TypeVar("_Moments", pl.Expr, Times)


@stored("time_window")
@dataclass(frozen=True)
class Window:
    """Windows of one size that begin every ``step``; side by side where the step is the size. Made by ``tumbling`` and ``sliding``."""

    size: int
    step: int
    offset: int = 0
    clock: str = "event"
    """The time that windows follow: the rows' own (``event``), or that at which the flow takes them
    in (``processing``)."""

    @property
    def pane(self) -> int:
        """The pieces that all windows are made of."""
        return math.gcd(self.size, self.step)

    @property
    def per_pane(self) -> int:
        """How many windows a pane is in."""
        return self.size // self.step

    @property
    def shares_panes(self) -> bool:
        """Whether windows overlap, so that a pane is in several of them."""
        return self.per_pane > 1

    def pane_of(self, times: Times) -> Times:
        """The beginning of the pane that each time is in."""
        return (times - self.offset) // self.pane * self.pane + self.offset

    def last_start(self, times: Times) -> Times:
        """The beginning of the last window that each time is in."""
        return (times - self.offset) // self.step * self.step + self.offset

    def last_end(self, mark: int) -> int:
        """When the last window ends that has ended at a mark.

        >>> Window(10, 4).last_end(13), Window(10, 4).last_end(14)
        (10, 14)
        """
        return (mark - self.size - self.offset) // self.step * self.step + self.offset + self.size

    def over(self, mark: int) -> int:
        """Up to which time panes begin that are in no window which ends after a mark.

        >>> Window(10, 4).over(14), [int(start) + 10 for start in Window(10, 4).last_start(np.array([7, 8]))]
        (7, [14, 18])
        """
        return self.last_end(mark) - self.size + self.step - 1

    def due(self, late: int, evict: int) -> tuple[int, int] | None:
        """Between which times (above one, up to another) the panes begin of the windows that end in (late, evict]; None: none ends there.

        >>> Window(10, 4).due(10, 13), Window(10, 4).due(10, 14)
        (None, (0, 12))
        """
        end = self.last_end(evict)
        return (late - self.size, end - self.pane) if end > late else None

    def begins(self, named: _Moments) -> _Moments:
        """The beginnings of windows, computed from their names: the end less the size."""
        return named

    @property
    def spread(self) -> int:
        """How far apart the last windows of two times can be that share a window."""
        return self.size - self.step

    def shared(self, times: Times, others: Times, after: int) -> tuple[Places, Times]:
        """The windows that pairs of times share and that end after a mark: the pair's number and
        the window's name, in order.

        >>> [list(map(int, found)) for found in Window(10, 5).shared(np.array([7, 7, 7]), np.array([7, 12, 17]), 0)]
        [[0, 0, 1], [0, 5, 5]]
        """
        newest = np.minimum(self.last_start(times), self.last_start(others))
        open_for = newest + self.size - np.maximum(np.maximum(times, others), after)
        counts = np.maximum(-(-open_for // self.step), 0)
        which = np.repeat(np.arange(len(counts)), counts)
        back = np.repeat(np.cumsum(counts), counts) - 1 - np.arange(len(which))
        return which, newest[which] - back * self.step

    def describe(self) -> str:
        size = show_duration(self.size)
        clock = "" if self.clock == "event" else ", processing time"
        return f"tumbling({size}{clock})" if self.size == self.step else f"sliding({size}, {show_duration(self.step)}{clock})"


@stored("cumulating_window")
@dataclass(frozen=True)
class Cumulating(Window):
    """Windows that begin together, every ``size``, and end one ``step`` after the other. Made by ``cumulating``.

    They are told apart by where a window of the whole size would begin that ends when they do: that time, ``last_start`` among them, is
    no beginning of theirs (but for the longest), and two windows never share it. Of a pane they have only what is not before they begin.
    """

    def last_start(self, times: Times) -> Times:
        """Of the last window that each time is in, which is a whole one."""
        return (times - self.offset) // self.size * self.size + self.offset

    def over(self, mark: int) -> int:
        """All panes go together, with the whole window.

        >>> Cumulating(12, 4).over(11), Cumulating(12, 4).over(12)
        (-1, 11)
        """
        return self._beginning(mark) - 1

    def due(self, late: int, evict: int) -> tuple[int, int] | None:
        """
        >>> Cumulating(12, 4).due(12, 15), Cumulating(12, 4).due(12, 16), Cumulating(12, 4).due(16, 30)
        (None, (11, 12), (11, 24))
        """
        end = self.last_end(evict)
        return (self._beginning(late) - 1, end - self.pane) if end > late else None

    @property
    def spread(self) -> int:
        return 0

    def begins(self, named: _Moments) -> _Moments:
        return (named + (self.size - 1 - self.offset)) // self.size * self.size + self.offset

    def _beginning(self, time: int) -> int:
        return (time - self.offset) // self.size * self.size + self.offset

    def describe(self) -> str:
        offset = f", offset {show_duration(self.offset)}" if self.offset else ""
        clock = "" if self.clock == "event" else ", processing time"
        return f"cumulating({show_duration(self.size)}, step {show_duration(self.step)}{offset}{clock})"


@stored("session_window")
@dataclass(frozen=True)
class Session:
    """Windows that last as long as no pause between two rows of a key is longer than ``gap``. Made by ``session``."""

    gap: int
    clock: str = "event"

    def describe(self) -> str:
        return f"session({show_duration(self.gap)}{'' if self.clock == 'event' else ', processing time'})"


def tumbling(size: float | str, offset: float | str = 0, time: str = "event") -> Window:
    """Windows side by side: every row is in one. ``offset`` shifts where they begin, from whole multiples of the size since 1970 (UTC):
    days of a place eight hours ahead of that begin at ``offset="-8h"``.

    ``time="processing"`` goes by the clock at which rows are taken in, and not by a column: no watermark is needed, and no row is late.
    All rows of an epoch have one time, that of the epoch's decision, so that a restart gives the same windows.

    >>> tumbling("10s").describe(), tumbling("1m", time="processing").describe()
    ('tumbling(10s)', 'tumbling(1m, processing time)')

    Example: ``md.tumbling("10s")``.
    """
    length = micros(size, "tumbling")
    return Window(length, length, signed_micros(offset, "tumbling") % length, check_clock("tumbling", time))


def sliding(size: float | str, step: float | str, offset: float | str = 0, time: str = "event") -> Window:
    """A window of ``size`` every ``step``: a row is in size / step of them.

    Example: ``md.sliding("10s", "2s")``.
    """
    length, every = micros(size, "sliding"), micros(step, "sliding")
    if length % every:
        raise FlowError(f"sliding({size!r}, {step!r}): the size must be a multiple of the step")
    return Window(length, every, signed_micros(offset, "sliding") % every, check_clock("sliding", time))


def cumulating(size: float | str, step: float | str, offset: float | str = 0, time: str = "event") -> Cumulating:
    """Windows that begin together, every ``size``, and end one ``step`` after the other, up to the whole: a day's numbers so far, hour by
    hour, are ``cumulating("1d", step="1h")``. A row is in all windows of its day that end after it.

    >>> cumulating("1d", step="1h", offset="-8h").describe()
    'cumulating(1d, step 1h, offset 16h)'

    Example: ``md.cumulating("1d", step="1h")``.
    """
    length, every = micros(size, "cumulating"), micros(step, "cumulating")
    if length % every:
        raise FlowError(f"cumulating({size!r}, step={step!r}): the size must be a multiple of the step")
    return Cumulating(length, every, signed_micros(offset, "cumulating") % length, check_clock("cumulating", time))


def check_clock(what: str, time: str) -> str:
    """The clock that a window follows; FlowError if there is no such clock."""
    if time not in ("event", "processing"):
        raise FlowError(f"{what}: time={time!r}; there are 'event', the time in the rows, and 'processing', that of the flow's own clock")
    return time


def signed_micros(value: object, what: str) -> int:
    """A duration that may be negative, in whole microseconds.

    >>> signed_micros("-1.5s", "join"), signed_micros("-8h", "tumbling"), signed_micros(2, "join")
    (-1500000, -28800000000, 2000000)
    """
    if isinstance(value, str) and value.strip().startswith("-"):
        return -micros(value.strip()[1:], what, least=0)
    if isinstance(value, int | float) and value < 0:
        return -micros(-value, what, least=0)
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise FlowError(f"{what}: {value!r} is not a duration; write '10s', '-500ms' or a number of seconds")
    return micros(value, what, least=0)


def micros(value: float | str, what: str, least: int = 1) -> int:
    """A duration in whole microseconds.

    >>> micros("10s", "tumbling"), micros(0.5, "tumbling")
    (10000000, 500000)
    """
    try:
        length = seconds(value)
    except Exception as error:
        raise FlowError(f"{what}: {value!r} is not a duration; write '10s', '500ms', '1h' or a number of seconds") from error
    if length is None or round(length * _SECOND) < least:
        raise FlowError(f"{what}: {value!r} is too short; write a duration such as '10s'")
    return round(length * _SECOND)


def show_duration(length: int) -> str:
    """
    >>> show_duration(10_000_000), show_duration(1_500), show_duration(7_200_000_000)
    ('10s', '1.5ms', '2h')
    """
    for unit, size in (("d", 86_400 * _SECOND), ("h", 3_600 * _SECOND), ("m", 60 * _SECOND), ("s", _SECOND)):
        if length >= size and length % size == 0:
            return f"{length // size}{unit}"
    return f"{length / 1000:g}ms"

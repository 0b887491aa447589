"""The time that an operator follows, as the driver needs it to compute the operator's marks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meander.stored import stored

Clock = Literal["mark", "clock", "epoch"]


@stored("timing")
@dataclass(frozen=True)
class Timing:
    """The time that an operator follows."""

    marks: frozenset[str] = frozenset()
    """Watermarks, of which the smallest counts."""
    delay: int = 0
    """How far behind them rows can come, in microseconds."""
    by_clock: bool = False
    """Whether it follows the decisions' clock instead."""
    flushes: bool = True
    """Whether something is closed where everything is to be: otherwise the end of the input leaves its state alone."""

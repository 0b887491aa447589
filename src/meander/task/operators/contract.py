"""The contract of stateful operators: stages, epochs and the loop use it and know no kinds of
operators.

The life of a row, from the operator's side:

1. ``refuses`` selects the rows that come too late: they are counted, and go to the operator's late
   stream or to the dead letters
2. ``before`` turns the other rows into the frame that goes through the exchange: partial states, or
   the rows themselves (``wholerows``)
3. ``work`` gets the frames that arrived for one slot, and a ``Workspace``: the epoch's times, and
   the operator's tables; it returns rows
4. the driver calls ``over`` for the rows of its tables that are not needed any more, and ``due`` to
   find out whether an epoch without input would have work

A new operator is a plan operator, a file here, and a line in ``operators/__init__.py``.

Equal rows arrive in an equal order at any parallelism and on both paths of a small epoch. So
``work`` may depend on its arguments and the workspace only: no clock, no randomness, no state of
its own between epochs. Its cost follows the rows that have arrived and that are due.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from meander.coordinate.timing import Clock, Timing
from meander.state.hashing import Hashes
from meander.state.table import Kept
from meander.task.rows import Rows

if TYPE_CHECKING:
    from meander.task.operators.workspace import Workspace

Mask = npt.NDArray[np.bool_]
Signs = npt.NDArray[np.int8]


@dataclass(frozen=True)
class Partial:
    """A frame for a stateful operator, ascending by hash. ``unit`` is None if the frame has a unit
    column."""

    operator: str
    unit: int | None
    frame: pl.DataFrame
    side: int = 0
    """The number of the operator's input that it came from."""


@dataclass(frozen=True)
class Emitted:
    """Rows that leave an operator, and the hashes of their keys, ascending: a key group's rows stand together, in an order of its own."""

    frame: pl.DataFrame
    hashes: Hashes
    signs: Signs | None = None
    """For streams of changes whose readers need removals: removed rows (-1), added rows (1), and
    unchanged ones (0)."""
    sides: Mapping[str, tuple[pl.DataFrame, Hashes]] = field(default_factory=dict)
    """By name, rows of side outputs, and the hashes of their keys, ascending."""


@dataclass
class Intake:
    """Where ``before`` works: which key groups are wanted (None: all), the decision's time, and how many rows of each unit there were."""

    key_groups: int
    groups: int | None
    now: int
    """In microseconds, from the decision."""
    counted: dict[int, int] = field(default_factory=dict)
    """Per unit, the rows that have come before: streams that were divided and united again have several pieces of one unit."""


class Reader(Protocol):
    """How people see an operator's state. Pickled into the store: it must not need Spark."""

    def show(self, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
        """The stored rows, by table, as users read them: keys and finished values."""


@dataclass(frozen=True)
class Stateful(ABC):
    """A stateful operator of a plan, ready to run. Immutable: the same object serves all epochs."""

    name: str
    number: int
    """Its place in the plan."""
    level: int
    inputs: tuple[str, ...]
    keys: tuple[str, ...]
    schema: pl.Schema
    """The columns that leave it."""
    keeps_late: frozenset[int]
    """The inputs whose late rows a stream takes. Those of the others go to the dead letters."""
    finds: ClassVar[bool] = False
    """Whether it looks up what has arrived, and nothing else, in the table of its own name."""
    takes_changes: ClassVar[bool] = False
    """Whether rows that are gone are for it, too. Others get a row's new values, wherever they may stand behind changes."""
    folds: ClassVar[bool] = False
    """Whether ``before`` folds rows within their units and looks at nothing else of where they come from: then it is given many at once."""

    @property
    def timing(self) -> Timing | None:
        """None where it has nothing to do with time."""
        return None

    def found_by(self, side: int) -> tuple[str, ...]:
        """The columns by which it finds emitted rows of an input again. 0.0 and -0.0 are one value
        there, and come as 0.0."""
        return self.keys if getattr(self, "retracts", False) else ()

    @abstractmethod
    def tables(self) -> dict[str, Kept]:
        """All its tables. The hash of a row is all that may tell where it is: rows of a key that end at different times have one hash."""

    @abstractmethod
    def before(self, rows: Rows, side: int, intake: Intake) -> pl.DataFrame:
        """The frame that goes through the exchange for these rows of one input: ``__hash``
        (ascending; its key group is the key's) and more.

        If the rows have units, so has the frame (``__unit``).
        """

    @abstractmethod
    def work(self, workspace: Workspace, arrived: Sequence[Partial]) -> Emitted | None:
        """One epoch of one slot. Called in every epoch, also where nothing has arrived."""

    @abstractmethod
    def reader(self) -> Reader:
        """How its state is shown."""

    def unfit(self, frame: pl.DataFrame, side: int, now: int) -> pl.Series | None:
        """Why rows of an input cannot be taken, whenever they come: a reason, or null. None: all can. Asked where it has a gauge."""
        return None

    def refuses(self, frame: pl.DataFrame, side: int, late: int) -> Mask | None:
        """A mask of the rows of an input that come too late; ``late`` is the mark that had been
        reached before the epoch. None: rows are never late."""
        return None

    def parted(self, frame: pl.DataFrame, side: int, late: int) -> bool:
        """Whether rows of an input, of which it refuses none, are kept apart from closed windows:
        by an earlier mark they could belong to one."""
        return False

    def why_late(self) -> str:
        """The reason that dead letters give."""
        return "late"

    def clock_of(self, table: str) -> Clock:
        """The time for a table's ``over`` and ``due``: the operator's ``mark``, the decisions'
        ``clock``, or the ``epoch``."""
        return "mark"

    def over(self, table: str, evict: int) -> int | None:
        """Up to which time rows of a table are over after an epoch that evicts up to this mark; None where they are not by that.

        Where everything is to be closed (``FOREVER``), all rows of a table go of which this is not None.
        """
        return None

    def floor(self, closed: int) -> int:
        """The mark at which all would be over that a flush has closed; ``closed`` is what ``work`` has said of the last of it.

        Called for the operators of all plans that may come back: these may have longer windows of
        the same state.
        """
        return closed

    def due(self, table: str, late: int, evict: int) -> tuple[int, int] | None:
        """Between which times (above one, up to another) rows of this table end with which something happens when time goes on from
        ``late`` to ``evict``, without any input. None: with none.
        """
        return None

"""Changed sources: whether one continues at its position, and with which columns. Pure.

A source may gain columns, lose them, and have wider ones. If nothing else of it differs it
*continues*: its cursor stays, with the input that was taken or decided; splits that were decided
before are read with the columns of the plan that their epoch runs under. If it is read in another
way (other limits, another folder) the caller has to choose: ``resume=True`` continues at the
position of the old source, also with other columns; ``resume=False`` begins with other input, from
its beginning.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from meander.connect.source import ChangesColumns, Source
from meander.errors import FlowError
from meander.plan.change.layout import is_wider
from meander.plan.operators import SourceOp
from meander.plan.schemas import show_type


@dataclass
class Sources:
    """The effect of a modification on the sources of a plan."""

    restarts: set[str] = field(default_factory=set)
    """Those that begin at their beginning, or are gone."""
    go_on: set[str] = field(default_factory=set)
    """Those that stay where they are, with other columns."""

    def change(self, name: str, old: SourceOp, new: SourceOp, resume: bool | None) -> SourceOp:
        """The source that takes the place of another; FlowError where it cannot."""
        stays = resume is not False and reads_on(old.source, new.source) and not is_same(old.source, new.source)
        if resume is None and not stays:
            raise FlowError(
                f"replace source {name!r}: say whether the new one continues where the old one is (resume=True: the same input, read "
                "in another way) or begins at its beginning (resume=False: other input)"
            )
        if resume is False:
            self.restarts.add(name)
            return new
        if type(old.source) is not type(new.source):
            raise FlowError(
                f"replace source {name!r}: {new.source.describe()} cannot go on where {old.source.describe()} is; give resume=False"
            )
        if stays:
            self.go_on.add(name)
        return _with_columns(name, old, new, stays)


def is_same(old: Source, new: Source) -> bool:
    """Whether rows are the same, whatever the limits and wherever they are."""
    return list(old.schema().items()) == list(new.schema().items()) and old.canonical() == new.canonical()


def reads_on(old: Source, new: Source) -> bool:
    """Whether cursors and splits of the one serve the other."""
    if type(old) is not type(new):
        return False
    if isinstance(old, ChangesColumns) and isinstance(new, ChangesColumns):
        return old.input() == new.input()
    return (old.describe(), old.canonical()) == (new.describe(), new.canonical())


def _with_columns(name: str, old: SourceOp, new: SourceOp, stays: bool) -> SourceOp:
    was, now = old.source.schema(), new.source.schema()
    for column, dtype in now.items():
        if column in was and was[column] != dtype and not is_wider(was[column], dtype):
            raise FlowError(
                f"source {name!r}: its column {column!r} is {show_type(was[column])} and would be {show_type(dtype)}, which not every "
                "value of it is; a column can become a wider integer or float. Read it as it is and cast it behind the source, or give "
                "resume=False for other input"
            )
    gained = (old.gained | (now.keys() - was.keys())) & now.keys()
    return SourceOp(new.source, frozenset(gained), replace(old, before=None) if stays else None)

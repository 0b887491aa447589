"""A setup: all that epochs are run with. A change of the flow brings a new one; a change that fails brings the one before back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from meander.connect.source import Cursor
from meander.epochs.parts import Parts
from meander.state.manifest import Json, Manifest, Table


@dataclass(frozen=True)
class Rewritten:
    """Tables as the first epoch under a new plan finds them."""

    forgets: tuple[str, ...] = ()
    """Tables whose segments up to now go."""
    tables: Mapping[str, Table] = field(default_factory=dict)
    """What some of them have instead, and tables that were set aside."""
    times: Mapping[str, Json] | None = None
    """What is known of event time, where that is not the manifest's."""
    flushed: Mapping[str, int] | None = None
    """And up to where flushes have closed everything."""

    def view(self, manifest: Manifest) -> Manifest:
        """A manifest as the epoch sees it."""
        if self == NOTHING:
            return manifest
        kept = {name: table for name, table in manifest.tables.items() if name not in self.forgets}
        times = manifest.times if self.times is None else dict(self.times)
        flushed = manifest.flushed if self.flushed is None else dict(self.flushed)
        return replace(manifest, tables={**kept, **self.tables}, times=times, flushed=flushed)


NOTHING = Rewritten()


@dataclass(frozen=True)
class Once:
    """Effects of the first epoch of a changed plan on the state. Later epochs do not have them."""

    rewritten: Callable[[Manifest], Rewritten] = lambda manifest: NOTHING
    """Given the last manifest: siblings may merge what it names until the epoch is committed."""
    restarts: tuple[str, ...] = ()
    """Sources that begin at their beginning with the epoch."""


@dataclass(frozen=True)
class Setup:
    """All that epochs are run with."""

    parts: Parts
    program: Any
    """The plan as the runner wants it."""
    routing: dict[str, list[int]]
    cursors: dict[str, Cursor]
    once: Once = Once()

"""What can happen to a process at a call to the store: no answer before or after the effect, the answer of a second try, a late
effect, a torn file, an outage of many calls, a disk that is full for a while, and death."""

from __future__ import annotations

import contextlib
import random
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest import mock

from meander.errors import Retryable
from meander.state.stores.contract import DirStore

KINDS = ("before", "after", "twice", "late", "torn")
ROOM_AFTER = 60


@dataclass
class Faults:
    """Of one process. ``often``: the chance at each call; a fault may be a burst of a few."""

    often: float = 0.0
    mortal: float = 0.0
    """The chance that a command is the one in which it dies."""
    outages: float = 0.0
    count: int = 0
    dies_at: int | None = None
    left: int = 0
    """Calls that a burst or an outage still fails."""
    room: int | None = None
    """Writes that there is still room for on a disk that is as good as full; what is removed makes room."""
    refused: int = 0
    """Writes that there was no room for. After some of them somebody else has made room."""
    removed: bool = False
    """Whether anything was removed since."""
    happened: int = 0
    """Faults since the process began."""
    quiet: bool = False

    def begin(self, rng: random.Random) -> None:
        """A new process."""
        self.happened = self.left = self.refused = 0
        self.room = None
        self.command(rng)

    def command(self, rng: random.Random) -> None:
        """A new command."""
        self.count, self.dies_at = 0, None
        if not self.quiet and rng.random() < self.mortal:
            self.dies_at = rng.choice((rng.randint(1, 12), rng.randint(1, 50)))

    def next(self, rng: random.Random, verb: str, name: str) -> tuple[str, bool] | None:
        """What happens to this call: how, and whether the process dies of it."""
        if self.quiet:
            return None
        self.count += 1
        if verb == "call":
            if self.mortal and rng.random() < 0.08:
                return "before", True
            if not self.often or rng.random() > 0.1:
                return None
            self.happened += 1
            return "before", False
        if self.dies_at is not None and self.count >= self.dies_at:
            self.dies_at = None
            return rng.choice(("before", "after", "late", "torn")), True
        if self.left:
            self.left -= 1
            return "before", False
        if self.room is not None and verb in ("put", "create", "delete"):
            self.room += 1 if verb == "delete" else -1
            self.removed |= verb == "delete"
            if self.room < 0:
                self.room, self.refused = 0, self.refused + 1
                if self.refused > ROOM_AFTER:
                    self.room = None
                return "full", False
        if verb == "create" and name.startswith("log/") and self.outages and self.often and self.room is None and rng.random() < 0.05:
            self.room, self.refused, self.removed = 0, 1, False
            return "full", False
        if verb == "create" and name.startswith("manifest/") and self.often and rng.random() < 0.2:
            self.happened += 1
            return rng.choice(("before", "after", "late")), False
        if verb == "create" and name.startswith("decide/") and self.often and rng.random() < 0.3:  # perhaps ahead of the epoch's turn
            self.happened += 1
            self.left = rng.choice((1, 1, 1, 3))
            return rng.choice(("before", "before", "after", "late")), False
        if self.often and rng.random() < self.often:
            self.happened += 1
            if rng.random() < 0.4:
                self.left = rng.randint(1, 3)
            elif rng.random() < self.outages:
                self.left = rng.randint(5, 40)
            elif rng.random() < self.outages:
                self.room, self.refused, self.removed = rng.randint(0, 6), 0, False
            return rng.choice(KINDS), False
        return None


@cache
def tears() -> bool:
    """Whether a folder may be left with a torn file by a put that dies: the store of a simulation does what that one does."""
    with tempfile.TemporaryDirectory() as folder:
        store = DirStore(folder)
        store.put("sign", b"whole")
        with mock.patch("os.write", side_effect=OSError(28, "No space left on device")), contextlib.suppress(Retryable):
            store.put("sign", b"other")
        return Path(folder, "sign").read_bytes() != b"whole"

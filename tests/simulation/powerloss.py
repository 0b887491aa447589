"""A disk that loses power: what a flow does to files is recorded, and the disk is built as it may be after a cut at any moment.

The recorder stands between the flow and the functions of ``os`` that change files: the store in a folder and the sinks use no others. A
cut keeps what was synced: a file's bytes by a sync of the file, a name by a sync of its folder, and nothing else. What was not synced
may be there or not, each piece for itself, as chance has it; deletions that arrive while new names do not are the worst of it.

Flows run in this process (``tests.local``), may be killed on the way and started again on the same disk, and are started once more on what
a cut has left. Everything follows from a seed.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl
from tests.local import Local, Script, constants

import meander as md
from meander import durable
from meander.clock import FakeClock
from meander.state import compaction, log

COLUMNS = {"k": pl.Int64(), "v": pl.Int64()}
EPOCHS = 9
SCRIPT = tuple(((0, tuple((key, 10 * epoch + key) for key in range(epoch % 3 + 1))),) for epoch in range(EPOCHS))
_SOURCE = os.path.dirname(durable.__file__)


class Killed(BaseException):
    """The process is gone. Not an Exception: no handler of ours may survive it."""


@dataclass(frozen=True)
class Event:
    """Something that was done to a file or a folder, each of which has a number; or what somebody was told."""

    kind: str
    node: int = 0
    name: str = ""
    other: int = 0
    data: bytes = b""
    site: str = ""


@dataclass
class Recorder:
    """All that happens below a folder, in order. A process can be killed before any of it."""

    root: Path
    events: list[Event] = field(default_factory=list)
    kill_at: int | None = None
    kill_after_folder: int | None = None
    """Kill it when so many folders have been made, before the last is synced."""
    _folders: int = 0
    _names: dict[str, int] = field(default_factory=lambda: {"": 0})
    _open: dict[int, int] = field(default_factory=dict)
    _nodes: int = 0

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for name in ("open", "write", "fsync", "fdatasync", "link", "rename", "replace", "unlink", "mkdir"):
                stack.enter_context(mock.patch.object(os, name, getattr(self, f"_{name}_with")(getattr(os, name))))
            yield

    def told(self, kind: str, epoch: int) -> None:
        """The world outside has seen something of an epoch."""
        self.events.append(Event(kind, epoch))

    def revive(self) -> None:
        self.kill_at = None
        self._open.clear()

    def _happens(self, kind: str, *arguments: Any, **more: Any) -> None:
        self.events.append(Event(kind, *arguments, **more))

    def _alive(self) -> None:
        if self.kill_at is not None and len(self.events) >= self.kill_at:
            raise Killed

    def _inside(self, path: Any) -> str | None:
        text = os.fspath(path)
        if text == str(self.root):
            return ""
        return text.removeprefix(f"{self.root}/") if isinstance(text, str) and text.startswith(f"{self.root}/") else None

    def _new(self, kind: str) -> int:
        self._nodes += 1
        self._happens(kind, self._nodes)
        return self._nodes

    def _enter(self, place: str, node: int) -> None:
        above, _, name = place.rpartition("/")
        self._names[place] = node
        self._happens("enter", self._names[above], name, node)

    def _leave(self, place: str) -> None:
        above, _, name = place.rpartition("/")
        del self._names[place]
        self._happens("leave", self._names[above], name)

    # -- the functions of os --------------------------------------------------------------------------------------

    def _open_with(self, real: Any) -> Any:
        def do(path: Any, flags: int, *arguments: Any, **more: Any) -> int:
            place = self._inside(path)
            if place is None:
                return int(real(path, flags, *arguments, **more))
            self._alive()
            fd = int(real(path, flags, *arguments, **more))
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                self._open[fd] = self._new("file")
                return fd
            if place not in self._names:
                self._enter(place, self._new("file"))
            elif flags & os.O_TRUNC:
                self._happens("empty", self._names[place])
            self._open[fd] = self._names[place]
            return fd

        return do

    def _write_with(self, real: Any) -> Any:
        def do(fd: int, data: Any) -> int:
            if fd in self._open:
                self._alive()
            written = int(real(fd, data))
            if fd in self._open:
                self._happens("write", self._open[fd], data=bytes(memoryview(data)[:written]))
            return written

        return do

    def _fsync_with(self, real: Any) -> Any:
        def do(fd: int) -> None:
            if fd in self._open:
                self._alive()
                self._happens("sync", self._open[fd], site=_site())
            else:
                real(fd)

        return do

    _fdatasync_with = _fsync_with

    def _link_with(self, real: Any) -> Any:
        def do(source: Any, target: Any, **more: Any) -> None:
            place = self._inside(target)
            assert place is not None
            self._alive()
            real(source, target, **more)
            text = os.fspath(source)
            self._enter(
                place, self._open[int(text.rpartition("/")[2])] if text.startswith("/proc/") else self._names[self._inside(text) or ""]
            )

        return do

    def _rename_with(self, real: Any) -> Any:
        def do(source: Any, target: Any) -> None:
            before, after = self._inside(source), self._inside(target)
            assert before is not None
            assert after is not None
            self._alive()
            real(source, target)
            node = self._names[before]
            self._enter(after, node)
            self._leave(before)

        return do

    _replace_with = _rename_with

    def _unlink_with(self, real: Any) -> Any:
        def do(path: Any, **more: Any) -> None:
            place = self._inside(path)
            if place is not None:
                self._alive()
            real(path, **more)
            if place is not None:
                self._leave(place)

        return do

    def _mkdir_with(self, real: Any) -> Any:
        def do(path: Any, *arguments: Any, **more: Any) -> None:
            place = self._inside(path)
            if place is not None:
                self._alive()
            real(path, *arguments, **more)
            if place is not None:
                self._enter(place, self._new("folder"))
                self._folders += 1
                if self._folders == self.kill_after_folder:
                    self.kill_at = len(self.events)

        return do


def _site() -> str:
    """Which sync of the package this is: the functions that ask for it, each with its line, down to the first outside of ``durable``."""
    found = []
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_SOURCE):
            found.append(f"{code.co_qualname}:{frame.f_lineno - code.co_firstlineno}")
            if not code.co_filename.endswith("durable.py"):
                break
        frame = frame.f_back  # type: ignore[assignment]
    return " < ".join(found)


# -- what is left ---------------------------------------------------------------------------------------------------


@dataclass
class _File:
    live: bytes = b""
    safe: bytes = b""

    def after(self, lucky: bool, rng: random.Random) -> bytes:
        return self.live[: rng.randrange(len(self.live) + 1)] if lucky and self.live != self.safe else self.safe


@dataclass
class _Folder:
    live: dict[str, int] = field(default_factory=dict)
    safe: dict[str, int] = field(default_factory=dict)

    def after(self, luck: str, rng: random.Random) -> dict[str, int]:
        left = dict(self.safe)
        for name in sorted(self.live.keys() | self.safe.keys()):
            if self.live.get(name) == self.safe.get(name):
                continue
            arrives = name not in self.live if luck == "deletions" else luck == "some" and rng.random() < 0.5
            if arrives:
                left.pop(name, None)
                left.update({name: self.live[name]} if name in self.live else {})
        return left


LUCK = ("nothing", "deletions", "some")
"""What arrives on the disk of what was not synced."""


def cut(events: list[Event], luck: str, rng: random.Random, folder: Path, without: str | None = None) -> None:
    """Build what a cut after these events leaves. ``without``: as if the package did not have this sync."""
    nodes: dict[int, _File | _Folder] = {0: _Folder()}
    for event in events:
        node = nodes.get(event.node)
        if event.kind in ("file", "folder"):
            nodes[event.node] = _File() if event.kind == "file" else _Folder()
        elif event.kind == "sync" and event.site != without:
            assert node is not None
            node.safe = node.live if isinstance(node, _File) else dict(node.live)  # type: ignore[assignment]
        elif event.kind == "write":
            assert isinstance(node, _File)
            node.live += event.data
        elif event.kind == "empty":
            assert isinstance(node, _File)
            node.live = b""
        elif event.kind == "enter":
            assert isinstance(node, _Folder)
            node.live[event.name] = event.other
        elif event.kind == "leave":
            assert isinstance(node, _Folder)
            del node.live[event.name]

    def build(number: int, place: Path) -> None:
        node = nodes[number]
        if isinstance(node, _File):
            place.write_bytes(node.after(luck == "some", rng))
            return
        place.mkdir()
        for name, inner in node.after(luck, rng).items():
            build(inner, place / name)

    build(0, folder)


# -- flows ----------------------------------------------------------------------------------------------------------


@dataclass
class Life:
    """A flow on a disk, with what the world outside has seen of it."""

    folder: Path
    recorder: Recorder | None = None
    called: dict[int, list[Any]] = field(default_factory=dict)

    def start(self, clock: FakeClock) -> Local:
        flow = md.Flow("powered")
        events = flow.source("events", Script(COLUMNS, SCRIPT))
        totals = events.key_by("k").aggregate(md.count().alias("n"), md.sum("v").alias("total"), name="totals")
        totals.sink("totals_out", md.parquet(self.folder / "deep" / "totals"))
        totals.sink("parted_out", md.parquet(self.folder / "parted", partition_by="k"))
        events.sink("called", md.foreach_batch(self._called))
        return Local(flow, self.folder / "state", clock=clock, done=_Told(self.recorder))

    def _called(self, frame: pl.DataFrame, epoch: int) -> None:
        rows = sorted(frame.rows())
        assert self.called.setdefault(epoch, rows) == rows, f"epoch {epoch} came with other rows"
        if self.recorder is not None:
            self.recorder.told("called", epoch)

    def result(self) -> dict[str, Any]:
        """What is there in the end."""
        found: dict[str, Any] = {"called": dict(sorted(self.called.items()))}
        for sink in ("deep/totals", "parted"):
            files = sorted((self.folder / sink).rglob("*.parquet"))
            found[sink] = {
                str(file.relative_to(self.folder)): sorted(pl.read_parquet(file, hive_partitioning=False).rows()) for file in files
            }
        found["state"] = sorted(pl.DataFrame(pl.from_arrow(md.read_state(self.folder / "state", "totals"))).rows())
        return found


class _Told(list[Any]):
    """What a listener was told of."""

    def __init__(self, recorder: Recorder | None) -> None:
        super().__init__()
        self._recorder = recorder

    def append(self, done: Any) -> None:
        super().append(done)
        if self._recorder is not None:
            self._recorder.told("done", done.epoch)


def small() -> Any:
    """Merges, snapshots and garbage within few epochs."""
    return constants(SNAPSHOT_EVERY=(log, 3), FEWEST=(compaction, 2))


def recorded(folder: Path, seed: int, after_folder: int | None = None) -> tuple[list[Event], dict[int, list[Any]]]:
    """A flow's whole life on a disk, killed some times on the way: what happened, and the calls of its function."""
    rng, clock = random.Random(seed), FakeClock(start=1.0e9, seed=seed)
    recorder = Recorder(folder)
    folder.mkdir()
    life = Life(folder, recorder)
    kills = sorted(rng.randrange(1, 640) for _ in range(rng.randrange(4)))
    recorder.kill_after_folder = after_folder or rng.choice([None, rng.randrange(1, 20)])
    unnamed = durable._UNNAMED if rng.random() < 0.7 else None
    with small(), mock.patch.object(durable, "_UNNAMED", unnamed), recorder.recording():
        while True:
            recorder.kill_at = next((at for at in kills if at > len(recorder.events)), None)
            try:
                life.start(clock).run()
                return recorder.events, life.called
            except Killed:
                recorder.revive()


def check(events: list[Event], called: dict[int, list[Any]], folder: Path, expected: dict[str, Any], seed: int) -> None:
    """Start the flow on what a cut after these events has left, and let it finish: nothing is lost, doubled, or taken back."""
    seen = [event.node for event in events if event.kind in ("done", "called")]
    calls = {event.node for event in events if event.kind == "called"}
    life = Life(folder, None, {epoch: rows for epoch, rows in called.items() if epoch in calls})
    with small():
        local = life.start(FakeClock(start=2.0e9, seed=seed + 1_000_000))
        assert local.manifest.epoch >= max(seen, default=0), (
            f"somebody has seen epoch {max(seen)}, and the log is at {local.manifest.epoch}"
        )
        local.run()
    assert life.result() == expected

"""Files that survive power loss and are never seen half; used by the store in a folder and by sinks
that write files.

A name is durable when its file was synced before it got the name, and its folder after. A folder is
durable when the folder above it was synced after it was made. A process that finds a folder must
sync, too: the process that made it may have been killed before its sync.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from meander.clock import Clock

# A large file (a compaction's) goes to the disk piece by piece: one sync of it all would hold up the small ones of the epochs.
_WRITE_AT_ONCE = 16 << 20
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}")
CANNOT_LINK = {errno.EXDEV, errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS}
"""Error numbers of file systems that cannot make hard links here."""
_UNNAMED: int | None = getattr(os, "O_TMPFILE", None)
_NO_UNNAMED = CANNOT_LINK | {errno.EISDIR, errno.EINVAL, errno.ENOENT}
"""And when it has no files without a name, or no /proc to link them from."""


def write(fd: int, data: bytes | memoryview | pa.Buffer) -> None:
    """All of the bytes, on the disk."""
    view = memoryview(data)
    while len(view):
        view = view[os.write(fd, view[:_WRITE_AT_ONCE]) :]
        if len(view):
            os.fdatasync(fd)
    os.fsync(fd)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path) -> None:
    """A folder is there, durably, and so is each above it that was made here.

    No folder is made in one whose own name is not durable: so of a folder that is there only its own name may not be.
    """
    missing = []
    there = folder
    while not there.is_dir() and there != there.parent:
        missing.append(there)
        there = there.parent
    with contextlib.suppress(PermissionError):  # a folder that may be passed and not be read: it is not ours, and neither is what is in it
        sync_folder(there.parent)
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        sync_folder(one.parent)


@contextlib.contextmanager
def temporary(path: Path, clock: Clock, open_file: Callable[[Path], int]) -> Iterator[tuple[Path, int]]:
    """A file beside ``path``, locked while its writer lives, so that a sweep can tell it from files
    that dead processes left."""
    while True:
        staged = path.parent / f".{path.name}.{clock.new_id()}"
        fd = open_file(staged)
        try:
            with contextlib.suppress(OSError):  # a file system without locks: no sweep removes anything there
                fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink == 0:
                continue  # swept in the moment before it was locked
            yield staged, fd
            return
        finally:
            try:
                staged.unlink(missing_ok=True)
            finally:
                os.close(fd)


def sweep(folder: Path, below: bool = True) -> None:
    """Remove the temporary files that processes left in a folder when they died, and in those ``below`` it. One of a live process stays."""
    for place, folders, names in os.walk(folder):
        if not below:
            folders.clear()
        for name in names:
            if _TEMPORARY.fullmatch(name):
                with contextlib.suppress(OSError):  # gone, in use, or not ours to remove: the next start looks again
                    _remove_unlocked(os.path.join(place, name))


def appear(target: Path, data: bytes, hidden: Path, clock: Clock) -> bool:
    """Have a file appear under a name, whole, with its bytes on the disk; its name is durable when its folder is synced next.

    False where the name is taken. If several processes do this at once, one of them makes the file.
    No reader sees it half: it has no name until it is whole. Where a file system has no such files
    they are in the folder ``hidden``, which is swept.
    """
    if _UNNAMED is not None:
        try:
            return _appear_from_nowhere(target, data, _UNNAMED)
        except OSError as error:
            if error.errno not in _NO_UNNAMED or not target.parent.is_dir():
                raise
    hidden.mkdir(exist_ok=True)
    with temporary(hidden / target.name, clock, _new_file) as (staged, fd):
        write(fd, data)
        try:
            os.link(staged, target)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in CANNOT_LINK:
                raise
            # No links at all: a second writer replaces the first one's file in one step, with the
            # same bytes.
            os.rename(staged, target)
        return True


def _appear_from_nowhere(target: Path, data: bytes, unnamed: int) -> bool:
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        fd = os.open(target.parent, unnamed | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        try:
            write(fd, data)
            # With a folder given, Python follows the link in /proc, which plain link(2) does not.
            os.link(f"/proc/self/fd/{fd}", target, src_dir_fd=folder, follow_symlinks=True)
            return True
        except FileExistsError:
            return False
        finally:
            os.close(fd)
    finally:
        os.close(folder)


def _new_file(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)


def _remove_unlocked(path: str) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    finally:
        os.close(fd)

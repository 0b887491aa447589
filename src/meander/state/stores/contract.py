"""Stores: where segments, log entries and staged output live. This file, ``s3.py`` and ``redis.py`` are all of this package that does I/O.

A store is a flat space of names with six verbs. ``put_if_absent`` is the one that everything rests on: of
all who try a name, exactly one succeeds, and once it has, the bytes are durable. Names are never reused.

Verbs raise ``Unavailable`` when it is unknown whether they took effect; the caller reads back.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

import pyarrow as pa

from meander.clock import Clock, SystemClock
from meander.durable import make_folder, sweep, sync_folder, temporary, write
from meander.errors import Busy, ConfigError, Unavailable

_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EEXIST}


class Store(Protocol):
    """The interface of every store."""

    url: str

    def get(self, name: str) -> bytes | None:
        """The bytes of a name, or None where there is none."""

    def get_range(self, name: str, start: int, length: int) -> bytes | None:
        """Some bytes of a name: fewer where it ends before, none where it ends before ``start``. None where there is no such name."""

    def map(self, name: str) -> pa.Buffer | None:
        """The bytes of a name without a copy where the store can do that."""

    def put(self, name: str, data: bytes | pa.Buffer) -> None:
        """Write a name that no other process writes; durable on return. Readers see all of it, or
        what was there before."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write a name unless it exists; durable on return. False where it existed."""

    def list(self, prefix: str) -> list[str]:
        """All names under a folder (a prefix that ends in '/'), in no order."""

    def delete(self, name: str) -> None:
        """Remove a name; no error where it is gone already."""

    def delete_all(self, names: Sequence[str]) -> None:
        """Remove names, in as few messages as the store can. Where it raises, some of them may be gone."""

    def local(self, name: str) -> Path | None:
        """The path of a name where the store is a directory of this machine."""


class DirStore:
    """A directory. Safe against power loss as far as fsync is."""

    def __init__(self, root: str | Path, clock: Clock | None = None) -> None:
        self.root = Path(root).absolute()
        self.url = f"file://{self.root}"
        self._clock = clock or SystemClock()
        self._made: set[Path] = set()

    def __reduce__(self) -> tuple[type[DirStore], tuple[Path]]:
        return DirStore, (self.root,)

    def get(self, name: str) -> bytes | None:
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unavailable(f"store {self.url}: '{name}' cannot be read: {error}") from error

    def get_range(self, name: str, start: int, length: int) -> bytes | None:
        try:
            with open(self.root / name, "rb", buffering=0) as file:
                return os.pread(file.fileno(), length, start)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unavailable(f"store {self.url}: '{name}' cannot be read: {error}") from error

    def map(self, name: str) -> pa.Buffer | None:
        try:
            with pa.memory_map(str(self.root / name)) as mapped:
                return mapped.read_buffer()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unavailable(f"store {self.url}: '{name}' cannot be mapped: {error}") from error

    def put(self, name: str, data: bytes | pa.Buffer) -> None:
        path = self._place(name)
        try:
            with temporary(path, self._clock, self._open) as (staged, fd):
                write(fd, data)
                os.replace(staged, path)
            sync_folder(path.parent)
        except OSError as error:
            raise Unavailable(f"store {self.url}: '{name}' cannot be written: {error}") from error

    def put_if_absent(self, name: str, data: bytes) -> bool:
        path = self._place(name)
        written = False
        try:
            with temporary(path, self._clock, self._open) as (staged, fd):
                write(fd, data)
                written = True
                try:
                    os.link(staged, path)
                    created = True
                except FileExistsError:
                    created = False
            sync_folder(path.parent)
            return created
        except OSError as error:
            raise Unavailable(f"store {self.url}: '{name}' cannot be written: {error}", refused=not written) from error

    def list(self, prefix: str) -> list[str]:
        try:
            return list(self._walk(self.root / prefix, prefix))
        except OSError as error:
            raise Unavailable(f"store {self.url}: '{prefix}' cannot be listed: {error}") from error

    def delete(self, name: str) -> None:
        try:
            (self.root / name).unlink(missing_ok=True)
        except OSError as error:
            raise Unavailable(f"store {self.url}: '{name}' cannot be deleted: {error}") from error

    def delete_all(self, names: Sequence[str]) -> None:
        for name in names:
            self.delete(name)

    def local(self, name: str) -> Path | None:
        return self.root / name

    def _place(self, name: str) -> Path:
        path = self.root / name
        if path.parent not in self._made:
            try:
                make_folder(path.parent)
            except OSError as error:
                if error.errno not in _NOT_ALLOWED:
                    raise Unavailable(f"store {self.url}: the folder of '{name}' cannot be made: {error}") from error
                raise ConfigError(f"store {self.url}: the folder cannot be made ({error}); name a folder that can be written") from error
            self._made.add(path.parent)
        return path

    def _open(self, path: Path) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        try:
            return os.open(path, flags, 0o644)
        except FileNotFoundError:  # the store was deleted and made anew since this process made the folder
            self._made.discard(path.parent)
            make_folder(path.parent)
            return os.open(path, flags, 0o644)

    def _walk(self, folder: Path, prefix: str) -> Iterator[str]:
        try:
            entries = list(os.scandir(folder))
        except FileNotFoundError:
            return
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from self._walk(folder / entry.name, f"{prefix}{entry.name}/")
            else:
                yield prefix + entry.name


_shared_memory: dict[str, Path] = {}


class _Kind(NamedTuple):
    """The class of a store that is made of its URL."""

    module: str
    name: str
    extra: str = ""
    """What has its client, of the extras in pyproject.toml."""


_KINDS = {
    "s3": _Kind("meander.state.stores.s3", "S3Store", "s3"),
    "redis": _Kind("meander.state.stores.redis", "RedisStore", "redis"),
    "rediss": _Kind("meander.state.stores.redis", "RedisStore", "redis"),
    "throttled": _Kind("meander.state.stores.throttled", "ThrottledStore"),
}
"""By the scheme of a URL. To add a store, write it in a file of its own, and put it here: see docs/extending.md."""
_OTHERS = ", ".join(f"{scheme}://…" for scheme in _KINDS if scheme != "throttled")


def open_store(url: str | Path) -> Store:
    """The store at a URL: a path or ``file://…``, ``s3://bucket/prefix``, ``redis://host:port/db/prefix``, or ``memory://name`` (a folder
    in memory, gone with this process)."""
    given: object = url
    if not isinstance(given, str | Path) or not str(given).strip():
        raise ConfigError(f"store {url!r}: a folder or an address is needed, such as 'state/' or 's3://bucket/prefix'")
    text = str(url)
    parts = urlsplit(text)
    if parts.scheme == "memory":
        name = parts.netloc + parts.path
        if name not in _shared_memory:
            fast = Path("/dev/shm")
            folder = tempfile.mkdtemp(prefix="meander-", dir=fast if os.access(fast, os.W_OK) else None)
            _shared_memory[name] = Path(folder)
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return DirStore(_shared_memory[name])
    if parts.scheme == "file":
        return DirStore(parts.path)
    if parts.scheme in _KINDS:
        return _open(_KINDS[parts.scheme], parts.scheme, text)
    if parts.scheme and "://" in text:
        raise ConfigError(f"store '{text}': there is no store for {parts.scheme}://; use a folder, file://…, memory://…, {_OTHERS}")
    return DirStore(text)


def _open(kind: _Kind, scheme: str, url: str) -> Store:
    """Clients are optional: a user without S3 needs no client for it."""
    try:
        made: Store = getattr(import_module(kind.module), kind.name)(url)
    except ModuleNotFoundError as error:
        if not kind.extra:
            raise
        command = f"pip install 'meander-streaming[{kind.extra}]'"
        raise ConfigError(f"{scheme}:// needs the package {error.name}; install it with: {command}") from error
    return made


class Lock:
    """The right to run on a store that is a folder: held by a live process, gone with it, however it dies. Elsewhere see ``lease.py``."""

    def __init__(self, store: Store, name: str, shared: bool = False) -> None:
        """``shared``: beside others who hold it so."""
        self._fd: int | None = None
        path = store.local(f"lock/{name}")
        if path is None:
            return
        make_folder(path.parent)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(fd, 200).decode(errors="replace").strip()
            os.close(fd)
            raise Busy(
                f"store {store.url} is in use by a live run ({owner or 'unknown process'}); nothing was touched. "
                "Stop that run first, or start with takeover=True if its machine is known to be gone or hung."
            ) from None
        with contextlib.suppress(OSError):  # a full disk: the lock holds without its owner's name
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"process {os.getpid()}".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def sweep_temporary(store: Store, folder: str) -> None:
    """Remove the temporary files that processes left in a folder, or at the root (""), when they died inside a put.

    One of a live process is locked and stays, whichever generation it is of. Where locks do not reach its machine, its put
    finds the file gone: it fails, the name is not written, and the caller may try again.
    """
    root = store.local(folder)
    if root is not None:
        sweep(root, below=bool(folder))

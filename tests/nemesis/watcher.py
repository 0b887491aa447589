"""Reads every output file at the moment it becomes visible, by inotify, and again at the end: it must be whole then, and never change.

Names that begin with a dot are not visible to readers. ``rows`` and ``epochs`` follow from what was seen.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import io
import os
import re
import select
import struct
import threading
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq

_CREATE, _MOVED_TO, _DELETE, _MOVED_FROM, _MODIFY = 0x100, 0x80, 0x200, 0x40, 0x2
_OVERFLOW, _IS_DIR = 0x4000, 0x40000000
_MASK = _CREATE | _MOVED_TO | _DELETE | _MOVED_FROM | _MODIFY
_EVENT = struct.Struct("iIII")
_NAME = re.compile(r"part-(\d+)-(\d+)\.parquet$")


class Watcher:
    """A thread that looks at one tree. ``wrong`` is what no reader should have seen."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._handle = self._libc.inotify_init1(os.O_NONBLOCK)
        self._folders: dict[int, Path] = {}
        self._seen: dict[Path, str] = {}
        self.wrong: list[str] = []
        self.rows: Counter[str] = Counter()
        """Visible rows per sink, by the first folder below the root: ``late``, and ``late.1`` once the sink was replaced."""
        self.epochs: list[tuple[float, int]] = []
        """When an epoch above all before was first seen: monotonic time and number."""
        self._lock = threading.Lock()
        self._halt = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="nemesis-watcher", daemon=True)

    def start(self) -> None:
        self._add(self._root)
        self._thread.start()

    def finish(self) -> None:
        """Stop looking, and read everything once more."""
        self._halt.set()
        self._thread.join()
        os.close(self._handle)
        for path, digest in self._seen.items():
            try:
                now = hashlib.sha1(path.read_bytes()).hexdigest()
            except OSError as error:
                self._say(f"{path} was visible and cannot be read any more: {error.strerror}")
                continue
            if now != digest:
                self._say(f"{path} has other content than when it became visible")
        for path in self._root.rglob("part-*.parquet"):
            if path not in self._seen:
                self._say(f"{path} is there, and was never seen to appear")

    @property
    def epoch(self) -> int:
        return self.epochs[-1][1] if self.epochs else 0

    @property
    def files(self) -> int:
        return len(self._seen)

    def _watch(self) -> None:
        while not self._halt.is_set():
            if not select.select([self._handle], [], [], 0.2)[0]:
                continue
            with contextlib.suppress(BlockingIOError):
                data, at = os.read(self._handle, 1 << 20), 0
                while at < len(data):
                    folder, mask, _, length = _EVENT.unpack_from(data, at)
                    name = data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0").decode()
                    at += _EVENT.size + length
                    self._heard(folder, mask, name)

    def _heard(self, folder: int, mask: int, name: str) -> None:
        if mask & _OVERFLOW:
            self._say("the watcher was too slow: files may have been visible that it has not seen")
            return
        place = self._folders.get(folder)
        if place is None or name.startswith(".") or not name:
            return
        path = place / name
        if mask & _IS_DIR:
            if mask & (_CREATE | _MOVED_TO):
                self._add(path)
        elif mask & (_CREATE | _MOVED_TO):
            self._read(path)
        elif mask & (_DELETE | _MOVED_FROM) and path in self._seen:
            self._say(f"{path} was visible and was taken away")
        elif mask & _MODIFY and path in self._seen:
            self._say(f"{path} was visible and was written to")

    def _add(self, folder: Path) -> None:
        number = self._libc.inotify_add_watch(self._handle, os.fsencode(folder), _MASK)
        if number < 0:
            self._say(f"{folder} cannot be watched: {os.strerror(ctypes.get_errno())}")
            return
        self._folders[number] = folder
        for entry in sorted(os.scandir(folder), key=lambda one: one.name):  # what came before the watch
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                self._add(folder / entry.name)
            else:
                self._read(folder / entry.name)

    def _read(self, path: Path) -> None:
        found = _NAME.search(path.name)
        if found is None or path in self._seen:
            return
        try:
            data = path.read_bytes()
        except OSError as error:
            self._say(f"{path} became visible and cannot be read: {error.strerror}")
            return
        self._seen[path] = hashlib.sha1(data).hexdigest()
        try:
            rows = pq.read_metadata(io.BytesIO(data)).num_rows
        except Exception as error:
            self._say(f"{path} was torn when it became visible ({len(data)} bytes): {error}")
            return
        self.rows[path.relative_to(self._root).parts[0].partition(".")[0]] += rows
        epoch = int(found.group(1))
        if epoch > self.epoch:
            self.epochs.append((time.monotonic(), epoch))

    def _say(self, text: str) -> None:
        with self._lock:
            if len(self.wrong) < 1000:
                self.wrong.append(text)

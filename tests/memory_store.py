"""A store in a dictionary, for tests and simulations inside one process. The package has ``memory://``: a folder in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa


class MemoryStore:
    """Fakes of other stores begin with it: a test overrides the calls that it counts, delays or fails."""

    def __init__(self) -> None:
        self.url = "memory://"
        self.objects: dict[str, bytes] = {}

    def get(self, name: str) -> bytes | None:
        return self.objects.get(name)

    def get_range(self, name: str, start: int, length: int) -> bytes | None:
        data = self.get(name)
        return None if data is None else data[start : start + length]

    def map(self, name: str) -> pa.Buffer | None:
        data = self.get(name)
        return None if data is None else pa.py_buffer(data)

    def put(self, name: str, data: bytes | pa.Buffer) -> None:
        self.objects[name] = bytes(memoryview(data))

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return self.objects.setdefault(name, data) is data

    def list(self, prefix: str) -> list[str]:
        return [name for name in self.objects if name.startswith(prefix)]

    def delete(self, name: str) -> None:
        self.objects.pop(name, None)

    def delete_all(self, names: Sequence[str]) -> None:
        for name in names:
            self.delete(name)

    def local(self, name: str) -> Path | None:
        return None

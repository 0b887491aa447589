"""A folder that behaves like a store far away: every verb waits. For comparing strategies on one machine; nothing else is different.

``throttled:///folder?latency_ms=5&mb_per_s=200``: each call takes the latency, and bytes take their time at the bandwidth.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa

from meander.clock import Clock, SystemClock
from meander.errors import ConfigError
from meander.state.stores.contract import DirStore


class ThrottledStore:
    """A DirStore behind a slow line."""

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        parts = urlsplit(url)
        options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        unknown = sorted(set(options) - {"latency_ms", "mb_per_s"})
        if unknown or not parts.path:
            raise ConfigError(f"store '{url}': write throttled:///folder?latency_ms=5&mb_per_s=200")
        self.url = url
        self._clock = clock or SystemClock()
        self._inner = DirStore(parts.path, self._clock)
        try:
            self._latency, self._rate = float(options.get("latency_ms", 5)) / 1000, float(options.get("mb_per_s", 200)) * 1e6
        except ValueError as error:
            raise ConfigError(f"store '{url}': latency_ms and mb_per_s are numbers") from error

    def get(self, name: str) -> bytes | None:
        return self._waited(self._inner.get(name))

    def get_range(self, name: str, start: int, length: int) -> bytes | None:
        return self._waited(self._inner.get_range(name, start, length))

    def map(self, name: str) -> pa.Buffer | None:
        data = self.get(name)
        return None if data is None else pa.py_buffer(data)

    def put(self, name: str, data: bytes | pa.Buffer) -> None:
        self._wait(len(memoryview(data)))
        self._inner.put(name, data)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self._wait(len(data))
        return self._inner.put_if_absent(name, data)

    def list(self, prefix: str) -> list[str]:
        self._wait(0)
        return self._inner.list(prefix)

    def delete(self, name: str) -> None:
        self._wait(0)
        self._inner.delete(name)

    def delete_all(self, names: Sequence[str]) -> None:
        self._wait(0)
        self._inner.delete_all(names)

    def local(self, name: str) -> Path | None:
        return None

    def _waited(self, data: bytes | None) -> bytes | None:
        self._wait(0 if data is None else len(data))
        return data

    def _wait(self, size: int) -> None:
        self._clock.sleep(self._latency + size / self._rate)

"""The store ``redis://host:port/db/prefix`` (``rediss://`` with TLS): everything in a Redis' memory and its append-only file.

    flow.start("redis://127.0.0.1:6379/0/flows/orders", dead_letters="dead/")

A password comes from ``REDISCLI_AUTH``, as for redis-cli, on the driver and on every executor; a user name may be in the URL.

Redis forgets and evicts unless told otherwise, so opening refuses a server that is not set to keep what it acknowledges. One server,
no cluster; a failover to a replica loses what had not been copied, and with it the guarantees.

The name ``log/1`` is the key ``<prefix>/log/1``. Beside the values stands the sorted set ``<prefix>/``, which is the list of all names, so
that listing a folder costs what is in it. A value and its place in the list change in one transaction: a client that dies between
two commands has done nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from redis import Redis, exceptions
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.retry import Retry

from meander.errors import ConfigError, Unavailable

_NEEDED = {
    "appendonly": "yes",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
    "maxmemory-policy": "noeviction",
}
_LARGEST = 512 << 20  # Redis' own limit of a value
_TIMEOUT = 30.0


class RedisStore:
    """A prefix of a database. Opening checks that the server keeps what it acknowledges."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.password is not None:
            raise ConfigError("store redis://…: no password in the URL, since URLs are in error messages; set REDISCLI_AUTH instead")
        database, _, prefix = parts.path.strip("/").partition("/")
        if not parts.hostname or not database.isdigit() or not prefix or parts.query:
            raise ConfigError(f"store '{url}': write redis://host:port/db/prefix, such as redis://127.0.0.1:6379/0/orders")
        self.url = url
        self._prefix = f"{prefix}/".encode()
        settings: dict[str, Any] = {
            "host": parts.hostname,
            "port": parts.port or 6379,
            "db": int(database),
            "username": parts.username,
            "password": os.environ.get("REDISCLI_AUTH"),
            "ssl": parts.scheme == "rediss",
            "socket_timeout": _TIMEOUT,
            "socket_connect_timeout": 5.0,
        }
        # A put-if-absent is sent once: repeated by the client it could meet its own success and answer "exists".
        self._once = Redis(**settings, retry=Retry(NoBackoff(), 0))
        self._client = Redis(**settings, retry=Retry(ExponentialBackoff(cap=1.0, base=0.05), 4))
        self._check_that_it_keeps()

    def __reduce__(self) -> tuple[type[RedisStore], tuple[str]]:
        return RedisStore, (self.url,)

    def get(self, name: str) -> bytes | None:
        with self._mapped_errors(name):
            found: Any = self._client.get(self._key(name))
            return None if found is None else bytes(found)

    def get_range(self, name: str, start: int, length: int) -> bytes | None:
        with self._mapped_errors(name), self._client.pipeline(transaction=True) as both:
            both.exists(self._key(name))
            both.getrange(self._key(name), start, start + max(length, 1) - 1)
            there, found = both.execute()
            return found[:length] if there else None

    def map(self, name: str) -> pa.Buffer | None:
        found = self.get(name)
        return None if found is None else pa.py_buffer(found)

    def put(self, name: str, data: bytes | pa.Buffer) -> None:
        self._set(self._client, name, data, only_new=False)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return self._set(self._once, name, data, only_new=True)

    def list(self, prefix: str) -> list[str]:
        low = prefix.encode()
        with self._mapped_errors(prefix):
            # 0xff is above every byte of UTF-8.
            found: Any = self._client.zrangebylex(self._prefix, b"[" + low, b"(" + low + b"\xff")
            return [name.decode() for name in found]

    def delete(self, name: str) -> None:
        with self._mapped_errors(name), self._client.pipeline(transaction=True) as both:
            both.delete(self._key(name))
            both.zrem(self._prefix, name.encode())
            both.execute()

    def delete_all(self, names: Sequence[str]) -> None:
        if names:
            with self._mapped_errors(names[0]), self._client.pipeline(transaction=True) as both:
                both.delete(*(self._key(name) for name in names))
                both.zrem(self._prefix, *(name.encode() for name in names))
                both.execute()

    def local(self, name: str) -> Path | None:
        return None

    def _set(self, client: Redis, name: str, data: bytes | pa.Buffer, only_new: bool) -> bool:
        view = memoryview(data)
        if view.nbytes > _LARGEST:
            raise ConfigError(
                f"store {self.url}: '{name}' has {view.nbytes:,} bytes, Redis takes {_LARGEST:,}; state of this size needs a folder or s3://"
            )
        with self._mapped_errors(name), client.pipeline(transaction=True) as both:
            both.set(self._key(name), view, nx=only_new)
            both.zadd(self._prefix, {name.encode(): 0})  # also where the value was there: then its name belongs in the list all the more
            return bool(both.execute()[0])

    def _key(self, name: str) -> bytes:
        return self._prefix + name.encode()

    def _check_that_it_keeps(self) -> None:
        with self._mapped_errors("CONFIG GET"):
            try:
                found: Any = self._client.config_get(*_NEEDED)
            except exceptions.ResponseError as error:
                if isinstance(error, exceptions.NoPermissionError) or "unknown command" in str(error).lower():
                    raise ConfigError(
                        f"store {self.url}: the server does not let this user read its settings ({error}), so nobody knows whether it "
                        "keeps what it acknowledges; allow CONFIG GET"
                    ) from error
                raise
        settings = {_text(key): _text(value) for key, value in found.items()}
        wrong = {key: value for key, value in _NEEDED.items() if settings.get(key) != value}
        if wrong:
            is_now = ", ".join(f"{key} is {settings.get(key, 'unknown')}" for key in wrong)
            commands = "; ".join(f"CONFIG SET {key} {value}" for key, value in wrong.items())
            raise ConfigError(
                f"store {self.url}: this Redis may forget what it acknowledged ({is_now}). Set it with redis-cli: {commands}; "
                "and CONFIG REWRITE, so that it stays so"
            )

    @contextlib.contextmanager
    def _mapped_errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except exceptions.AuthenticationError as error:
            raise ConfigError(f"store {self.url}: Redis refused the login ({error}); set REDISCLI_AUTH to the password") from error
        except (exceptions.BusyLoadingError, exceptions.ConnectionError, exceptions.TimeoutError, OSError) as error:
            raise Unavailable(f"store {self.url}: '{name}': no answer from Redis ({error})") from error
        except exceptions.ReadOnlyError as error:
            raise ConfigError(f"store {self.url}: this Redis is a replica and cannot be written; name its primary") from error
        except exceptions.OutOfMemoryError as error:
            words = f"store {self.url}: '{name}' does not fit any more; raise this Redis' maxmemory ({error})"
            raise Unavailable(words, refused=True) from error
        except exceptions.RedisError as error:
            if str(error).startswith("MISCONF"):  # its disk is full, or gone
                raise Unavailable(f"store {self.url}: '{name}': Redis cannot write to its disk ({error})", refused=True) from error
            raise ConfigError(f"store {self.url}: '{name}' was refused by Redis: {error}") from error


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)

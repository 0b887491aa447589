"""The store ``s3://bucket/prefix``: any S3 that honours ``If-None-Match: *`` on a put. Opened by ``open_store``.

    flow.start("s3://bucket/flows/orders?region=eu-central-1", dead_letters="dead/")
    flow.start("s3://bucket/orders?endpoint=http://127.0.0.1:9000", dead_letters="dead/")

Credentials, region and endpoint come from the usual environment (``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_SESSION_TOKEN``,
``AWS_REGION``, ``AWS_ENDPOINT_URL``, or the machine's role), on the driver and on every executor. They are never part of the URL: URLs
are in error messages.

An object is there whole or not at all. A put-if-absent is sent once: repeated by the client it could meet its own success and answer
"exists". Everything else may be repeated, and is, a few times.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import obstore
import pyarrow as pa
from obstore import exceptions
from obstore.store import S3Store as Client

from meander.errors import ConfigError, Unavailable

_OPTIONS = {"endpoint", "region"}
_PART = 16 << 20  # larger objects go up in parts of this size, several at a time
_TIMEOUT = "30s"
_RETRIES: dict[str, Any] = {"max_retries": 4, "retry_timeout": timedelta(seconds=60)}
_ONCE: dict[str, Any] = {"max_retries": 0}


class S3Store:
    """A prefix of a bucket. Opening sends no request: a missing bucket is found by the first
    verb."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        if unknown := options.keys() - _OPTIONS:
            raise ConfigError(f"store '{url}': unknown option {', '.join(sorted(unknown))}; there are {', '.join(sorted(_OPTIONS))}")
        if not parts.netloc or "@" in parts.netloc:  # the message has no URL: a secret may be in it
            raise ConfigError("store s3://…: write s3://bucket/prefix; credentials come from the environment (AWS_ACCESS_KEY_ID …)")
        self.url = url
        self._bucket = parts.netloc
        endpoint = options.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        config: dict[str, Any] = {"prefix": parts.path.strip("/") or None}
        if endpoint:
            config["endpoint"] = endpoint
        if "region" in options:
            config["region"] = options["region"]
        client: dict[str, Any] = {"timeout": _TIMEOUT, "allow_http": bool(endpoint and endpoint.startswith("http://"))}
        try:
            self._client = Client(self._bucket, client_options=client, retry_config=_RETRIES, **config)  # type: ignore[arg-type]
            self._once = Client(self._bucket, client_options=client, retry_config=_ONCE, **config)  # type: ignore[arg-type]
        except (exceptions.BaseError, ValueError) as error:
            raise ConfigError(f"store {url}: {_code(error)}") from error

    def __reduce__(self) -> tuple[type[S3Store], tuple[str]]:
        return S3Store, (self.url,)

    def get(self, name: str) -> bytes | None:
        found = self._fetch(name)
        return None if found is None else bytes(found)

    def get_range(self, name: str, start: int, length: int) -> bytes | None:
        if length == 0:  # HTTP has no empty range
            return None if self.get_range(name, start, 1) is None else b""
        with self._mapped_errors(name):
            try:
                return bytes(obstore.get_range(self._client, name, start=start, length=length))
            except FileNotFoundError as error:
                if _is_about_the_bucket(error):
                    raise
                return None
            except exceptions.BaseError as error:
                if _status(error) == 416:  # it ends before the range begins
                    return b""
                raise

    def map(self, name: str) -> pa.Buffer | None:
        found = self._fetch(name)
        return None if found is None else pa.py_buffer(found)

    def put(self, name: str, data: bytes | pa.Buffer) -> None:
        view = memoryview(data).cast("B")  # Arrow says signed bytes
        with self._mapped_errors(name):
            if view.nbytes <= _PART:
                obstore.put(self._client, name, view, use_multipart=False)
            else:
                parts = (view[start : start + _PART] for start in range(0, view.nbytes, _PART))
                obstore.put(self._client, name, parts, chunk_size=_PART, max_concurrency=4)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        with self._mapped_errors(name):
            try:
                obstore.put(self._once, name, data, mode="create", use_multipart=False)
            except exceptions.AlreadyExistsError as error:
                if _status(error) == 409:  # a conflict with a put or a deletion under way, which may yet fail
                    raise
                return False
        return True

    def list(self, prefix: str) -> list[str]:
        with self._mapped_errors(prefix):
            return [found["path"] for page in obstore.list(self._client, prefix.rstrip("/") or None, chunk_size=1000) for found in page]

    def delete(self, name: str) -> None:
        self.delete_all([name])  # the client has no other request for it

    def delete_all(self, names: Sequence[str]) -> None:
        """One request for up to a thousand of them."""
        if names:
            with self._mapped_errors(names[0]):
                try:
                    obstore.delete(self._client, list(names))
                except FileNotFoundError as error:
                    if _is_about_the_bucket(error):
                        raise

    def local(self, name: str) -> Path | None:
        return None

    def _fetch(self, name: str) -> Any:
        with self._mapped_errors(name):
            try:
                return obstore.get(self._client, name).bytes()
            except FileNotFoundError as error:
                if _is_about_the_bucket(error):
                    raise
                return None

    @contextlib.contextmanager
    def _mapped_errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except (exceptions.BaseError, FileNotFoundError) as error:
            status = _status(error)
            if _is_about_the_bucket(error):
                raise ConfigError(f"store {self.url}: there is no bucket '{self._bucket}'; make it, or name another") from error
            if status in (401, 403):  # what was right an hour ago may have expired, and may be renewed: a flow that runs waits for that
                raise Unavailable(
                    f"store {self.url}: access to '{name}' was refused ({_code(error)}); check AWS_ACCESS_KEY_ID, "
                    "AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and the bucket's policy"
                ) from error
            if status == 501:
                raise ConfigError(f"store {self.url}: the server cannot do what is needed for '{name}' ({_code(error)})") from error
            if "configured region" in str(error):
                raise ConfigError(f"store {self.url}: the bucket is in another region; say which with ?region=… or AWS_REGION") from error
            raise Unavailable(f"store {self.url}: '{name}': {_code(error)}") from error


def _is_about_the_bucket(error: Exception) -> bool:
    """A bucket that is not there is no empty store."""
    return "<Code>NoSuchBucket</Code>" in str(error)


def _status(error: Exception) -> int | None:
    """The HTTP status, which the client tells in its text only; None where there was no answer.

    >>> _status(Exception("Object at location log/409 already exists: … - Server returned non-2xx status code: 412 Precondition Failed: …"))
    412
    """
    found = re.search(r"non-2xx status code: (\d{3})", str(error))
    return int(found.group(1)) if found else None


def _code(error: Exception) -> str:
    """The error in a few words: the server's own code, or the first line."""
    found = re.search(r"status code: (\d{3}[^:<]*).*?(?:<Code>(\w+)</Code>|$)", str(error), re.DOTALL)
    return " ".join(filter(None, found.groups())).strip() if found else str(error).strip().split("\n")[0][:300]

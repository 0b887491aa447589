"""Tests of a store's abilities, made before anything depends on them.

Of two puts of one name exactly one must succeed, and every executor must see the store that the
driver sees. A folder that is not shared between machines fails the second test. The job for that
test also starts the Python workers, so that the first epoch does not wait for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyspark import SparkContext

from meander.clock import Clock
from meander.errors import ConfigError, MeanderError, Retryable, Unavailable
from meander.state.stores.contract import Store, open_store

AWAY = b"\0"
"""Before the words of an executor whose store did not answer."""


class _Look:
    """Reads the probe in a worker; travels by name."""

    def __init__(self, url: str, name: str) -> None:
        self._url, self._name = url, name

    def __call__(self, _: int, items: Iterable[int]) -> Iterator[bytes]:
        import meander.worker  # noqa: F401  what the first epoch will need

        list(items)
        try:
            store = open_store(self._url)
        except MeanderError as error:
            yield str(error).encode()
            return
        yield look(store, self._name)


def look(store: Store, name: str) -> bytes:
    """The content of a probe as an executor reads it; the text of the error if it cannot, after a
    mark if waiting may help."""
    try:
        return store.get(name) or b""
    except Retryable as error:
        return AWAY + str(error).encode()
    except MeanderError as error:
        return str(error).encode()


def judge(url: str, nonce: bytes, answers: Iterable[bytes]) -> None:
    """Raise where an executor has not seen the probe: Unavailable where the store did not answer it, ConfigError where that is another."""
    for answer in answers:
        if answer.startswith(AWAY):
            said = answer.removeprefix(AWAY).decode(errors="replace")
            raise Unavailable(f"store {url}: an executor cannot read what the driver has written there ({said})")
        if answer != nonce:
            instead = f" ({answer.decode(errors='replace')})" if answer else ""
            raise ConfigError(
                f"store {url}: executors do not see what the driver writes there{instead}. Use a store that all machines share."
            )


def put_probe(store: Store, clock: Clock) -> tuple[str, bytes]:
    """Put a probe into the store; its name and its content."""
    name, nonce = f"probe/{clock.new_id()}", clock.new_id().encode()
    store.put(name, nonce)
    return name, nonce


def probe_put_if_absent(store: Store, clock: Clock) -> tuple[str, bytes]:
    """Put a probe twice; its name and its content. ConfigError if both puts succeeded."""
    name, nonce = f"probe/{clock.new_id()}", clock.new_id().encode()
    if not store.put_if_absent(name, nonce) or store.put_if_absent(name, b"second") or store.get(name) != nonce:
        raise ConfigError(f"store {store.url} does not honour put-if-absent: two puts of one name succeeded. Use another store.")
    return name, nonce


def probe_store(store: Store, context: SparkContext, clock: Clock) -> None:
    """Raise ConfigError where the store cannot carry a flow."""
    name, nonce = probe_put_if_absent(store, clock)
    try:
        tasks = max(1, context.defaultParallelism)
        seen = context.parallelize(range(tasks), tasks).mapPartitionsWithIndex(_Look(store.url, name)).collect()
    finally:
        store.delete(name)
    judge(store.url, nonce, seen)

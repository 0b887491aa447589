"""Requests to a running supervisor: they go through the store, which both sides reach.

``replicas/asked/<id>`` is one request, written once by its sender. When the supervisor has done it,
or cannot do it, it puts ``replicas/answered/<id>`` and removes the request. ``replicas/supervisor``
is the supervisor's own sign of life, with its replicas and its term. A term,
``replicas/terms/<term>``, belongs to one supervisor; a supervisor with a later term replaces it.
Every other object has one writer, so nothing is lost if two senders ask at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meander import errors
from meander.clock import Clock
from meander.errors import ConfigError, MeanderError, Retryable
from meander.processes import ProcessId
from meander.state import formats
from meander.state.formats import ANSWER, KEY, WISH
from meander.state.signs import FOLDER, SILENT_AFTER, parse
from meander.state.stores.contract import Store

SUPERVISOR = f"{FOLDER}supervisor"
_ASKED = f"{FOLDER}asked/"
_ANSWERED = f"{FOLDER}answered/"
_TERMS = f"{FOLDER}terms/"
_LOOK_EVERY = 0.2

Json = dict[str, Any]


def newest_term(store: Store) -> int:
    """The term of the last supervisor that there was; 0 for none."""
    found = (name.removeprefix(_TERMS) for name in store.list(_TERMS))
    return max((int(number) for number in found if number.isdigit()), default=0)


def claim_term(store: Store, term: int, nonce: str) -> bool:
    """Become the supervisor of a term, if no other has; earlier terms can be forgotten then."""
    name = f"{_TERMS}{term:08d}"
    try:
        claimed = store.put_if_absent(name, nonce.encode())
    except Retryable:
        claimed = False  # or the answer was lost: the object in the store decides
    if not claimed and store.get(name) != nonce.encode():
        return False
    for older in store.list(_TERMS):
        if older < name:
            store.delete(older)
    return True


def asked(store: Store) -> dict[str, Json]:
    """The waiting requests, by the id of their answer; a request that cannot be read counts as
    empty."""
    found = {name.removeprefix(_ASKED): store.get(name) for name in sorted(store.list(_ASKED))}
    return {identity: parse(data) or {} for identity, data in found.items() if data is not None}


def check_wish(wish: Json) -> None:
    """Corrupted where a wish is of a format that cannot be read."""
    WISH.check(wish.get(KEY), _ASKED)


def wish(store: Store, identity: str, what: str, **more: Any) -> None:
    store.put_if_absent(f"{_ASKED}{identity}", WISH.write({"do": what, **more}))


def answer(store: Store, identity: str, said: Json) -> None:
    store.put(f"{_ANSWERED}{identity}", ANSWER.write(said))
    store.delete(f"{_ASKED}{identity}")


def answered(store: Store, identity: str) -> Json | None:
    """The answer to a wish; None where there is none yet."""
    said = parse(store.get(f"{_ANSWERED}{identity}"))
    if said is not None:
        store.delete(f"{_ANSWERED}{identity}")
        ANSWER.check(said.pop(KEY, None), f"{_ANSWERED}{identity}")
    return said


def say(store: Store, term: int, number: int, process: ProcessId, at: float, replicas: list[Json]) -> None:
    """A supervisor's sign of life, with what it knows."""
    said = {"term": term, "number": number, **process.to_json(), "at": at, "replicas": replicas}
    store.put(SUPERVISOR, formats.SUPERVISOR.write(said))


def forget(store: Store) -> None:
    """Remove the requests to a supervisor that is gone."""
    for folder in (_ASKED, _ANSWERED):
        for name in store.list(folder):
            store.delete(name)


def refusal(error: BaseException) -> Json:
    return {"error": str(error), "kind": type(error).__name__}


def raised(said: Json) -> MeanderError:
    """An error that crossed a process as words, as the class that it was."""
    kind = getattr(errors, str(said.get("kind")), MeanderError)
    found: MeanderError = (kind if isinstance(kind, type) and issubclass(kind, MeanderError) else MeanderError)(said["error"])
    return found


def live_supervisor(store: Store, clock: Clock) -> Json | None:
    """The sign of a store's supervisor; None if there is none, or the sign is older than some
    seconds."""
    first = data = store.get(SUPERVISOR)
    until = clock.monotonic() + SILENT_AFTER
    while data is not None and clock.monotonic() < until:
        clock.sleep(_LOOK_EVERY)
        data = store.get(SUPERVISOR)
        said = None if data == first else parse(data)
        if said is not None and {"process", "host"} <= said.keys():
            formats.SUPERVISOR.check(said.get(KEY), SUPERVISOR)
            return said
    return None


def ask(store: Store, clock: Clock, what: str, timeout: float, tell: Callable[[str], None] = lambda text: None, **more: Any) -> Json:
    """Send a request to a store's supervisor and wait until it is done. Raises the error of a
    refused request."""
    supervisor = live_supervisor(store, clock)
    if supervisor is None:
        raise ConfigError(
            f"store {store.url}: no supervisor answers; its replicas, if there are any, run without one. "
            "Start it again with the same `meander run ... --replicas N`: it takes up those that run"
        )
    identity = clock.new_id()
    wish(store, identity, what, **more)
    tell(f"asked the supervisor (process {supervisor['process']} on {supervisor['host']}); waiting until it is done")
    until, heard, last = clock.monotonic() + timeout, clock.monotonic(), supervisor.get("number")
    while clock.monotonic() < until:
        said = answered(store, identity)
        if said is not None:
            if "error" in said:
                raise raised(said)
            return said
        number = (parse(store.get(SUPERVISOR)) or {}).get("number", last)
        if number != last:
            heard, last = clock.monotonic(), number
        elif clock.monotonic() - heard > 3 * SILENT_AFTER:
            raise Retryable(f"store {store.url}: the supervisor has gone silent before it was done; look with `meander replicas`")
        clock.sleep(_LOOK_EVERY)
    raise Retryable(f"store {store.url}: the supervisor was not done within {timeout:g} s; it goes on: look with `meander replicas`")

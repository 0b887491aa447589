"""The right to run on a store that is no folder: a lease, renewed as long as its process lives.

``lease/<generation>`` is written by that generation alone, again and again, with a number that
grows. A process that wants to start watches it: if it changes, its owner lives and the start is
refused; if it stays the same for the lease's length, its owner is dead, hung or cut off. The
watcher measures that length with its own clock, so the machines' clocks need not agree.

**Correctness never depends on a lease.** It only prevents two live runs from replacing each other
by mistake. If two runs both act as the owner, the log decides: its generations fence, and the older
run's next append fails (see ``log.py``).
"""

from __future__ import annotations

import logging
import os
import socket
import threading

from meander.clock import Clock
from meander.errors import Busy, Retryable
from meander.state.formats import KEY, LEASE
from meander.state.signs import parse
from meander.state.stores.contract import Store

SECONDS = 5.0
_BEATS = 5  # per length: a few lost ones are no death
_LOOKS = 20
_LOG = logging.getLogger("meander")


class Lease:
    """A generation's sign of life."""

    def __init__(self, store: Store, generation: int, clock: Clock, shared: bool = False) -> None:
        """``shared``: others renew it, too, so that letting go of it says nothing."""
        self._store, self._name = store, _name(generation)
        self._shared = shared
        self._owner = f"process {os.getpid()} on {socket.gethostname()}"
        self._nonce = clock.new_id()
        self._number = 0
        self._stop = threading.Event()
        self.beat()
        for name in store.list("lease/"):
            if name < self._name:
                store.delete(name)
        self._thread = threading.Thread(target=self._renew, name="meander-lease", daemon=True)

    def start(self) -> Lease:
        """Renew from now on, in a thread that dies with the process."""
        self._thread.start()
        return self

    def beat(self) -> None:
        self._number += 1
        self._put(self._number)

    def release(self) -> None:
        """Let the next start go ahead at once."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._shared:
            return
        try:
            self._put(None)
        except Retryable:
            return  # then the next start waits for the lease's length

    def _put(self, number: int | None) -> None:
        self._store.put(self._name, LEASE.write({"owner": self._owner, "nonce": self._nonce, "number": number}))

    def _renew(self) -> None:
        # An event, not the clock's sleep: a release must not wait for the next beat.
        while not self._stop.wait(SECONDS / _BEATS):
            try:
                self.beat()
            except Retryable:
                continue  # the store is away, also for a process that would watch the lease
            except Exception:  # whatever it is: a lease that nobody renews lets another run take the store
                _LOG.exception("the lease cannot be renewed; it is tried again")


def live_owner(store: Store, generation: int, clock: Clock) -> str | None:
    """The owner of a generation's lease; None if it was released, or is not renewed. The answer
    takes up to the lease's length.

    A missing lease is watched, too: its owner may be between its takeover and its first beat.
    """
    first = now = store.get(_name(generation))
    if (said := parse(first)) is not None:
        LEASE.check(said.get(KEY), _name(generation))
    until = clock.monotonic() + SECONDS
    while now == first and not _is_released(now) and clock.monotonic() < until:
        clock.sleep(SECONDS / _LOOKS)
        now = store.get(_name(generation))
    if now == first or now is None or _is_released(now):  # None: a newer generation has removed it
        return None
    return str((parse(now) or {}).get("owner", "unknown process"))


def refuse_beside_live(store: Store, generation: int, clock: Clock) -> None:
    """Busy where a generation's owner is alive."""
    owner = live_owner(store, generation, clock)
    if owner is not None:
        raise Busy(
            f"store {store.url} is in use by a live run ({owner}); nothing was touched. "
            "Stop that run first, or start with takeover=True if its machine is known to be gone or hung."
        )


def _is_released(data: bytes | None) -> bool:
    said = parse(data)
    return said is not None and said.get("number") is None


def _name(generation: int) -> str:
    return f"lease/{generation:08d}"

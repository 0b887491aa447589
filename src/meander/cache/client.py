"""Talking to stewards: single keys and whole parts of segments from another executor's cache. Flight underneath.

A peer that does not answer costs its timeout once and is not asked again for a while: callers read
from the store instead.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pyarrow as pa
from pyarrow import flight

from meander.clock import SystemClock
from meander.state.hashing import Hashes

GENTLY = 0.1
"""The share of the time that each who fetches is at it while epochs go on."""
_PATIENCE = 5.0
_LEFT_ALONE = 5.0
_PIECE = 16 << 20
_CLOCK = SystemClock()


class Unreachable(Exception):
    """A steward did not answer."""


def split(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and bytes of a message."""
    (size,) = struct.unpack_from(">I", data)
    return json.loads(data[4 : 4 + size]), data[4 + size :]


def join(header: dict[str, Any], data: bytes | pa.Buffer = b"") -> Iterator[bytes | pa.Buffer]:
    """A message in pieces that a stream takes, without a copy."""
    text = json.dumps(header).encode()
    yield struct.pack(">I", len(text)) + text
    buffer = pa.py_buffer(data)
    for begin in range(0, buffer.size, _PIECE):
        yield buffer.slice(begin, min(_PIECE, buffer.size - begin))


def padded(size: int) -> int:
    """Where what follows may begin: Arrow wants its buffers aligned.

    >>> padded(0), padded(1), padded(64)
    (0, 64, 64)
    """
    return (size + 63) & ~63


def background_of(address: str) -> str:
    """Where a steward does what takes long. Its address names the port of its foreground, and then that of its background.

    >>> background_of("127.0.0.1:4001/4002")
    '127.0.0.1:4002'
    """
    foreground, _, port = address.partition("/")
    return f"{foreground.rpartition(':')[0]}:{port}" if port else foreground


class Peer:
    """A steward, seen from elsewhere."""

    _known: ClassVar[dict[str, Peer]] = {}

    @staticmethod
    def at(address: str, secret: str) -> Peer:
        """The connection to an address: one per process."""
        if address not in Peer._known:
            Peer._known[address] = Peer(address, secret)
        return Peer._known[address]

    def __init__(self, address: str, secret: str) -> None:
        self.address = address
        self._foreground = flight.FlightClient(f"grpc://{address.partition('/')[0]}")
        self._background = flight.FlightClient(f"grpc://{background_of(address)}")
        self._headers = [(b"authorization", f"Bearer {secret}".encode())]
        self._silent_until = 0.0

    def rows(self, names: Sequence[str], hashes: Hashes) -> list[pa.Buffer | None]:
        """Segments with their rows of these hashes; without bytes where there are none, None where the peer does not have the segment."""
        header, data = self._ask("rows", {"names": list(names)}, hashes.tobytes())
        found: list[pa.Buffer | None] = []
        at = 0
        for size in header["sizes"]:
            found.append(None if size is None else data.slice(at, size))
            at += padded(size or 0)
        return found

    def part(self, name: str, groups: int) -> pa.Buffer | None:
        """A segment with its rows of these key groups; None where the peer does not have it."""
        header, data = self._ask("part", {"name": name, "groups": f"{groups:x}"}, patience=60.0)
        return None if header.get("missing") else data

    def fetch(self, items: list[list[Any]], share: float = 1.0) -> None:
        """Have it bring parts of segments into its cache: (name, bytes, key groups, holder). It works for that share of the time."""
        self._ask("fetch", {"items": items, "share": share})

    def fetched(self) -> dict[str, Any]:
        return self._ask("fetched", {})[0]

    def drop(self, names: list[str]) -> None:
        """Nobody needs these segments any more."""
        self._ask("drop", {"names": names})

    def merge(self, order: dict[str, Any]) -> None:
        self._ask("merge", order)

    def merged(self) -> list[Any]:
        done: list[Any] = self._ask("merged_", {})[0]["done"]
        return done

    def _ask(self, what: str, header: dict[str, Any], body: bytes = b"", patience: float = _PATIENCE) -> tuple[dict[str, Any], pa.Buffer]:
        if _CLOCK.monotonic() < self._silent_until:
            raise Unreachable(self.address)
        options = flight.FlightCallOptions(timeout=patience, headers=self._headers)
        client = self._foreground if what == "rows" else self._background
        try:
            pieces = [r.body for r in client.do_action(flight.Action(what, b"".join(join(header, body))), options)]
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            self._silent_until = _CLOCK.monotonic() + _LEFT_ALONE
            raise Unreachable(f"{self.address}: {str(error).splitlines()[0]}") from error
        answer, _ = split(pieces[0].to_pybytes())
        if len(pieces) == 2:
            return answer, pieces[1]
        return answer, pa.py_buffer(b"".join(memoryview(piece) for piece in pieces[1:]))

"""The version of every stored format, in one table; and the sentences with which other versions are refused.

Whatever writes an object of a store puts the number of its format into it, and whatever reads one checks it first: ``Format.write`` and
``Format.read`` for objects of JSON, ``Format.metadata`` and ``Format.check`` for Arrow and Parquet. docs/formats.md describes all of them.

Within a version, readers ignore keys and columns that they do not know. So a key may be added without a new number where a reader that
ignores it does nothing wrong. A key that changes the meaning of others, and a kind of log entry, need a new number: a reader that ignored
them could lose rows or count them twice.

Imports nothing of Meander but its errors: every room may name a format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meander.errors import Corrupted

Json = dict[str, Any]
KEY = "format"
METADATA = "meander"
"""The key in the metadata of Arrow's schemas and of Parquet files under which a JSON object has the format."""


@dataclass(frozen=True)
class Format:
    """One stored format: what an object of it is called, the version that is written, and up to which one is read."""

    name: str
    version: int = 1

    def check(self, found: object, where: str) -> None:
        """Corrupted where this is not the number of a version that can be read: of an object in a store of a known format.

        >>> SEGMENT.check(2, "segments/t/x")
        Traceback (most recent call last):
        ...
        meander.errors.Corrupted: segment 'segments/t/x' has format 2, and this Meander reads format 1: use a newer Meander
        """
        if (refusal := self.refusal(found)) is not None:
            raise Corrupted(f"{self.name} '{where}' {refusal}")

    def refusal(self, found: object) -> str | None:
        """Why a version cannot be read; None where it can.

        >>> STORE.refusal(1), STORE.refusal(None)
        (None, 'does not say its format: it was written before format 1, which is the first that can be read, or changed from outside')
        """
        if isinstance(found, int) and not isinstance(found, bool) and found > 0:
            reads = f"this Meander reads format {self.version}" if self.version == 1 else f"this Meander reads formats 1 to {self.version}"
            return None if found <= self.version else f"has format {found}, and {reads}: use a newer Meander"
        says = "does not say its format" if found is None else f"has format {json.dumps(found, default=str)}"
        return f"{says}: it was written before format 1, which is the first that can be read, or changed from outside"

    def fields(self, fields: Mapping[str, Any]) -> Json:
        """An object of JSON with its format in front."""
        return {KEY: self.version, **fields}

    def write(self, fields: Mapping[str, Any]) -> bytes:
        return json.dumps(self.fields(fields), separators=(",", ":")).encode()

    def read(self, data: bytes, where: str) -> Json:
        """The fields of an object of JSON. Corrupted where it is none, or of a format that cannot be read."""
        try:
            found = json.loads(data)
        except ValueError as error:
            raise Corrupted(f"{self.name} '{where}' is not JSON ({error}); the store was changed from outside, or lost data") from error
        if not isinstance(found, dict):
            raise Corrupted(f"{self.name} '{where}' is no JSON object; the store was changed from outside, or lost data")
        self.check(found.get(KEY), where)
        return found

    def can_read(self, fields: Mapping[str, Any]) -> bool:
        """For what decides nothing, and is left alone where it cannot be read: a sign of life."""
        return self.refusal(fields.get(KEY)) is None

    def metadata(self, **more: Any) -> dict[str, str]:
        """For the schema of an Arrow file, or a Parquet file."""
        return {METADATA: self.write(more).decode()}

    def in_metadata(self, metadata: Mapping[bytes, bytes] | None, where: str) -> Json:
        """The fields that ``metadata`` has written. Corrupted where they are missing, or of a format that cannot be read."""
        found = (metadata or {}).get(METADATA.encode())
        if found is None:
            self.check(None, where)
        return self.read(found or b"", where)


STORE = Format("store")
ENTRY = Format("log entry")
SNAPSHOT = Format("snapshot")
SEGMENT = Format("segment")
PIECE = Format("piece of a stored table")
NAMES = Format("list of names")
DECISION = Format("decision")
DIGESTS = Format("digests of an epoch")
SIGN = Format("sign of life")
SUPERVISOR = Format("sign of a supervisor")
WISH = Format("request to a supervisor")
ANSWER = Format("answer of a supervisor")
LEASE = Format("lease")
REQUEST = Format("request of a modification")
VERDICT = Format("verdict on a modification")
REVERSAL = Format("reversal of a modification")
PLAN = Format("plan")
RECORD = Format("description of a plan")
DEAD_LETTERS = Format("file of dead letters")
PARTITIONED = Format("staged file of a partitioned sink")

FORMATS = (
    *(STORE, ENTRY, SNAPSHOT, SEGMENT, PIECE, NAMES, DECISION, DIGESTS, SIGN, SUPERVISOR, WISH, ANSWER, LEASE),
    *(REQUEST, VERDICT, REVERSAL, PLAN, RECORD, DEAD_LETTERS, PARTITIONED),
)

"""Documents: JSON objects with a format, which are one object of a store each."""

from __future__ import annotations

import json
from typing import Any

from meander.errors import ConfigError, Corrupted
from meander.stored.code import versions

FORMAT = 1
"""Of plans and of readers. A version that writes something which this one would misunderstand writes another number."""


def write_document(content: dict[str, Any]) -> bytes:
    return json.dumps({"format": FORMAT, "written_by": versions(), **content}, allow_nan=False).encode()


def read_document(data: bytes, what: str) -> dict[str, Any]:
    """Corrupted where it is no document, ConfigError where it is of a format that this version does not read."""
    try:
        found = json.loads(data)
        form = found["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupted(f"{what} is damaged: it is no document of a plan ({error})") from error
    if form != FORMAT:
        raise ConfigError(
            f"{what} has format {form!r}, and Meander {versions()['meander']} reads format {FORMAT}; it was written by Meander "
            f"{found.get('written_by', {}).get('meander', 'of an unknown version')}: use that version"
        )
    document: dict[str, Any] = found
    return document

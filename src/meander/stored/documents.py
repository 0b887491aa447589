"""Documents: JSON objects with a format, which are one object of a store each."""

from __future__ import annotations

import json
from typing import Any

from meander.errors import ConfigError, Corrupted
from meander.state.formats import KEY, PLAN
from meander.stored.code import versions


def write_document(content: dict[str, Any]) -> bytes:
    return json.dumps(PLAN.fields({"written_by": versions(), **content}), allow_nan=False, separators=(",", ":")).encode()


def read_document(data: bytes, what: str) -> dict[str, Any]:
    """Corrupted where it is no document, ConfigError where it is of a format that this version does not read."""
    try:
        found = json.loads(data)
    except ValueError as error:
        raise Corrupted(f"{what} is damaged: it is no document of a plan ({error})") from error
    if not isinstance(found, dict):
        raise Corrupted(f"{what} is damaged: it is no document of a plan, but {type(found).__name__}")
    if (refusal := PLAN.refusal(found.get(KEY))) is not None:
        wrote = found.get("written_by", {}).get("meander", "of an unknown version")
        raise ConfigError(f"{what} {refusal}; it was written by Meander {wrote}, and this is {versions()['meander']}")
    document: dict[str, Any] = found
    return document

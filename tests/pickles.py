"""What is in a pickle, by its opcodes alone: nothing is run."""

from __future__ import annotations

import base64
import contextlib
import pickletools
import sys
from collections.abc import Iterator
from typing import Any

import cloudpickle


@contextlib.contextmanager
def by_value(thing: Any) -> Iterator[None]:
    """Within this, code of the module that has the thing is pickled by value, as at the start of a flow."""
    module = sys.modules[thing.__module__]
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def code_in(data: Any) -> Iterator[bytes]:
    """The pickles of the blobs in a document."""
    if isinstance(data, dict):
        if "sha256" in data:
            yield base64.b64decode(data["pickle"])
        for value in data.values():
            yield from code_in(value)
    elif isinstance(data, list):
        for value in data:
            yield from code_in(value)


def texts_in(pickled: bytes) -> set[str]:
    """All texts in it."""
    return {argument for _, argument, _ in pickletools.genops(pickled) if isinstance(argument, str)}


def imports_in(pickled: bytes) -> set[str]:
    """The modules from which it takes something."""
    found: set[str] = set()
    pushed: list[Any] = []
    memo: list[Any] = []
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name == "MEMOIZE":
            memo.append(pushed[-1] if pushed else None)
        elif opcode.name in ("BINGET", "LONG_BINGET"):
            pushed.append(memo[argument])
        elif opcode.name == "STACK_GLOBAL":
            found.add(pushed[-2])
            pushed.append(None)
        elif opcode.name in ("GLOBAL", "INST"):
            found.add(argument.split(" ")[0])
        else:
            pushed.append(argument if isinstance(argument, str) else None)
    return found

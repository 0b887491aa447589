"""Docstrings as the site shows them: a session of Python is a block of code, and a line of a shell session stays one.

An extension of griffe, which reads docstrings for mkdocstrings. Markdown would take ``>>>`` for quotations.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_SESSION = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*(?:\n\s*\n>>> .*(?:\n(?!\s*$).*)*)*", re.MULTILINE)
_DIRECTIVE = re.compile(r"\s*# doctest: .*$", re.MULTILINE)


def with_blocks(text: str) -> str:
    """The docstring with every session fenced, and without directives that only doctest needs.

    >>> print(with_blocks('Adds.' + chr(10) * 2 + '>>> 1 + 1' + chr(10) + '2'))
    Adds.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    return _SESSION.sub(lambda found: f"```pycon\n{_DIRECTIVE.sub('', found[0])}\n```", text)


class DoctestBlocks(griffe.Extension):
    """Called by griffe for everything that it has read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_blocks(obj.docstring.value)

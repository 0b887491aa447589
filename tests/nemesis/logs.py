"""What the supervisor says about its replicas: why they ended, and which of that no fault should bring about."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

_DIED = re.compile(r"replica (\w+) has died: (.*?); it is started again")
_GIVEN_UP = re.compile(r"replica (\w+) is given up: (.*)")
_NEVER = re.compile(
    r"report this|other content|Corrupted|Divergent|computed something else|was the store changed from outside"
    r"|\b(KeyError|IndexError|TypeError|AttributeError|AssertionError|ValueError|NameError|RuntimeError|UnboundLocalError|RecursionError)\b"
    r"|SchemaError|ColumnNotFound|InvalidOperation|ArrowInvalid"
)
_RAISED = re.compile(r"(KeyError|IndexError|TypeError|AttributeError|AssertionError|NameError|polars\.exceptions\.\w+|pyarrow\.lib\.\w+): ")


def ends(supervisor: Path) -> tuple[Counter[str], list[str]]:
    """The reasons why replicas ended, and those that are findings: given up for good, or by an error that is a mistake of ours."""
    text = supervisor.read_text(errors="replace") if supervisor.exists() else ""
    reasons: Counter[str] = Counter()
    wrong = []
    for found in _DIED.finditer(text):
        reasons[_shortened(found.group(2))] += 1
        if _NEVER.search(found.group(2)):
            wrong.append(f"replica {found.group(1)} died of a mistake: {found.group(2)[:300]}")
    wrong += [f"replica {found.group(1)} was given up: {found.group(2)[:300]}" for found in _GIVEN_UP.finditer(text)]
    if "Traceback (most recent call last)" in text:
        wrong.append(f"the supervisor printed a traceback: see {supervisor}")
    return reasons, list(dict.fromkeys(wrong))


def mistakes(folder: Path) -> list[str]:
    """Errors that executors have printed and that no fault should bring about: a task that fails so fails again."""
    found: Counter[str] = Counter()
    for log in folder.glob("work*/*/*/stderr"):
        with log.open(errors="replace") as lines:
            found.update(line.strip()[:200] for line in lines if _RAISED.match(line))
    return [f"executors have failed {number} times with {error}" for error, number in found.most_common(10)]


def is_mistake(text: str) -> bool:
    return _NEVER.search(text) is not None


def _shortened(reason: str) -> str:
    return re.sub(r"\d{2,}", "N", reason)[:120]

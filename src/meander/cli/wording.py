"""Numbers as people read them: counts, sizes, rates and durations in the output of every command."""

from __future__ import annotations

import re

_OPTIONS = (
    (re.compile(r"drop_state=True"), "--drop-state"),
    (re.compile(r"resume=True"), "--resume"),
    (re.compile(r"resume=False"), "--restart"),
    (re.compile(r"apply=True"), "--apply"),
    (re.compile(r"same_code=True"), "--same-code"),
)
_NAMED = re.compile(r"(drop_state|same_code)=\[((?:'[^']*'(?:, )?)+)\]")


def count(number: float) -> str:
    """
    >>> count(1234567)
    '1,234,567'
    """
    return f"{number:,.0f}"


def size(number: float) -> str:
    """
    >>> size(512), size(20480), size(3_500_000)
    ('512 B', '20.5 kB', '3.5 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def duration(seconds: float) -> str:
    """
    >>> duration(0.0421), duration(1.5), duration(90), duration(7300), duration(200_000)
    ('42 ms', '1.50 s', '1.5 min', '2.0 h', '2.3 d')
    """
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    for below, unit, length in ((60, "s", 1), (3600, "min", 60), (86400, "h", 3600)):
        if seconds < below:
            return f"{seconds / length:.{2 if unit == 's' else 1}f} {unit}"
    return f"{seconds / 86400:.1f} d"


def plural(number: int, noun: str) -> str:
    """
    >>> plural(1, "epoch"), plural(2000, "key")
    ('1 epoch', '2,000 keys')
    """
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def ago(seconds: float) -> str:
    """
    >>> ago(3), ago(-1)
    ('3.00 s ago', 'just now')
    """
    return "just now" if seconds < 1 else f"{duration(seconds)} ago"


def _one_option_per_name(found: re.Match[str]) -> str:
    option = found.group(1).replace("_", "-")
    return " ".join(f"--{option} {name}" for name in re.findall(r"'([^']*)'", found.group(2)))


def as_options(message: str) -> str:
    """Python's arguments, written as options of a command line.

    >>> as_options("give drop_state=['totals', 'best'], or drop_state=True; resume=False begins anew")
    'give --drop-state totals --drop-state best, or --drop-state; --restart begins anew'
    >>> as_options("start this one with same_code=['clean']")
    'start this one with --same-code clean'
    """
    message = _NAMED.sub(_one_option_per_name, message)
    for argument, option in _OPTIONS:
        message = argument.sub(option, message)
    return message

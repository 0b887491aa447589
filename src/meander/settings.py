"""The settings of a run: frozen, checked once, passed in."""

from __future__ import annotations

import re
from dataclasses import dataclass

from meander.errors import ConfigError

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_WORDS = {"millisecond": "ms", "sec": "s", "second": "s", "minute": "min", "hour": "h", "day": "d"}


@dataclass(frozen=True)
class Settings:
    """How a flow runs. What it computes is the flow's own business and is not here."""

    parallelism: int = 2
    """Slots of every stateful operator."""
    trigger: float | None = 0.0
    """Seconds between the starts of two epochs; 0 for one after the other; None for only when asked to (``process_available``)."""
    strict: bool = False
    """Stop at the first bad row instead of writing it to the dead letters."""
    takeover: bool = False
    """Take the store from a run that still looks alive."""
    retain_epochs: int = 64
    """How many past epochs stay readable."""
    key_groups: int = 128
    """Into how many parts keys are divided, for ever: the upper limit of the parallelism."""
    small_epochs: bool = True
    """Let a small epoch do without the exchange."""
    work_ahead: bool = True
    """Begin the next epoch's first stage while an epoch runs."""
    dead_letters: str | None = None
    """The folder of the dead letters; by default inside the store."""
    latency_file: str | None = None
    """Write one line per event: when it came in and how long it took, in milliseconds."""
    idle_poll: float = 0.2
    """Seconds between two looks at sources that had nothing."""

    def __post_init__(self) -> None:
        for name in ("parallelism", "retain_epochs", "key_groups"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise ConfigError(
                    f"{name}={value!r}: it must be a whole number, such as {name}={Settings.__dataclass_fields__[name].default}"
                )
        for name in ("strict", "takeover", "small_epochs", "work_ahead"):
            if not isinstance(value := getattr(self, name), bool):
                raise ConfigError(f"{name}={value!r}: it must be True or False")
        if not 1 <= self.key_groups <= 1 << 16 or self.key_groups & (self.key_groups - 1):
            raise ConfigError(f"key_groups={self.key_groups}: it must be a power of two up to 65536, such as 128")
        if not 1 <= self.parallelism <= self.key_groups:
            raise ConfigError(f"parallelism={self.parallelism}: it must be between 1 and the number of key groups, {self.key_groups}")
        if self.retain_epochs < 1:
            raise ConfigError(f"retain_epochs={self.retain_epochs}: at least 1")


def seconds(value: float | str | None) -> float | None:
    """A duration as people write it, Spark's spelling included.

    >>> seconds("500ms"), seconds("2 min"), seconds("5 seconds"), seconds(3), seconds(None)
    (0.5, 120.0, 5.0, 3.0, None)
    """
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return float(value)
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z]+)\s*", value.lower()) if isinstance(value, str) else None
    unit = "" if match is None else match.group(2)
    unit = _WORDS.get(unit.removesuffix("s"), unit)
    if match is None or unit not in _UNITS:
        raise ConfigError(f"duration {value!r}: write seconds, or a number and a unit, such as '500ms', '5s', '5 seconds', '1h'")
    return float(match.group(1)) * _UNITS[unit]

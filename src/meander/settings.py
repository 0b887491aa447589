"""The settings of a run: frozen, checked once, passed in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from meander.errors import ConfigError

Strategy = Literal["eager", "lazy", "prefetch", "hybrid"]
"""How new owners of key groups come by their state. What each of them does is in ``coordinate.migration.BRINGING``."""
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
StateMode = Literal["hybrid", "local", "remote"]
"""Where reads of state go: see ``cache.reader``. Its ``hybrid`` has nothing to do with the strategy of that name."""
STATE_MODES: tuple[StateMode, ...] = get_args(StateMode)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_WORDS = {"millisecond": "ms", "sec": "s", "second": "s", "minute": "min", "hour": "h", "day": "d"}


@dataclass(frozen=True)
class Settings:
    """The options of a run. They do not affect the results of the flow."""

    parallelism: int = 2
    """Slots of every stateful operator."""
    trigger: float | None = 0.0
    """Seconds between the starts of two epochs; 0 for one after the other; None for only when asked to (``process_available``)."""
    strict: bool = False
    """Stop at the first bad row instead of writing it to the dead letters."""
    takeover: bool = False
    """Take the store from a run that still looks alive."""
    same_code: bool | Sequence[str] = False
    """The operators whose changed code does what it did before, by a person's word; True for all."""
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
    autoscale: Autoscale | None = None
    """Let the number of slots follow the load."""
    patience: float | None = None
    """Seconds for which a run holds while its store does not answer; None: until it does, or the run is stopped."""
    state_mode: StateMode = "hybrid"
    """Where reads of state go: ``hybrid`` (cache, then peers, then the store), ``local`` (own copies) or ``remote`` (the store)."""
    replica: str | None = None
    """The name of this run among others that run the same flow on the same store; None for a run of its own."""
    replication: str = "leaderless"
    """Whether whoever is first decides (``leaderless``), or one that was elected through ZooKeeper (``leader``)."""
    zookeeper: str | None = None
    """Where ZooKeeper is, as ``host:port,host:port``."""
    leader_timeout: float = 4.0
    """Seconds without a sign of life after which a leader is replaced."""

    def __post_init__(self) -> None:
        if self.replica is not None and not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,40}", str(self.replica)):
            raise ConfigError(f"replica={self.replica!r}: a name of small letters, digits, - and _ is needed, such as 'a'")
        if self.replication not in ("leaderless", "leader"):
            raise ConfigError(f"replication={self.replication!r}: there are 'leaderless' and 'leader'")
        if self.replica is not None and self.replication == "leader" and not self.zookeeper:
            raise ConfigError("replication='leader': say where ZooKeeper is, with zookeeper='host:port'")
        if self.patience is not None and not self.patience >= 0:
            raise ConfigError(f"patience={self.patience!r}: a duration is needed, such as '10min', or None to wait as long as it takes")
        if not self.leader_timeout > 0:
            raise ConfigError(f"leader_timeout={self.leader_timeout!r}: a duration above 0 is needed, such as '4s'")
        for name in ("parallelism", "retain_epochs", "key_groups"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise ConfigError(
                    f"{name}={value!r}: it must be a whole number, such as {name}={Settings.__dataclass_fields__[name].default}"
                )
        for name in ("strict", "takeover", "small_epochs", "work_ahead"):
            if not isinstance(value := getattr(self, name), bool):
                raise ConfigError(f"{name}={value!r}: it must be True or False")
        if not isinstance(self.same_code, bool) and not all(isinstance(name, str) for name in self.same_code):
            raise ConfigError(f"same_code={self.same_code!r}: it must be True, or names of operators, such as ['enrich']")
        if not 1 <= self.key_groups <= 1 << 16 or self.key_groups & (self.key_groups - 1):
            raise ConfigError(f"key_groups={self.key_groups}: it must be a power of two up to 65536, such as 128")
        if not 1 <= self.parallelism <= self.key_groups:
            raise ConfigError(f"parallelism={self.parallelism}: it must be between 1 and the number of key groups, {self.key_groups}")
        if self.autoscale is not None and not isinstance(self.autoscale, Autoscale):
            raise ConfigError(f"autoscale={self.autoscale!r}: it must be made by md.autoscale(...)")
        if self.state_mode not in STATE_MODES:
            raise ConfigError(f"state_mode={self.state_mode!r}: there are {', '.join(map(repr, STATE_MODES))}")
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


@dataclass(frozen=True)
class Autoscale:
    """The rules by which the number of slots follows the load. Made by ``autoscale``, which
    documents the fields.

    Example: ``md.autoscale(min=1, max=8)`` gives a ``md.Autoscale``.
    """

    target_utilisation: float = 0.7
    min: int = 1
    max: int = 8
    band: float = 0.15
    sample: float = 5.0
    warmup_epochs: int = 3
    cooldown: float = 60.0
    shrink_after: float = 600.0
    catch_up: float | None = 600.0
    rescales_per_hour: int = 6
    slots_per_executor: int | None = None

    def __post_init__(self) -> None:
        numbers = ("min", "max", "warmup_epochs", "rescales_per_hour")
        for name in numbers if self.slots_per_executor is None else (*numbers, "slots_per_executor"):
            if not isinstance(getattr(self, name), int) or isinstance(getattr(self, name), bool):
                raise ConfigError(f"autoscale: {name}={getattr(self, name)!r}: a whole number is needed")
        if not 0 < self.target_utilisation < 1:
            raise ConfigError(f"autoscale: target_utilisation={self.target_utilisation}: it must be between 0 and 1, such as 0.7")
        if not 0 <= self.band < 1:
            raise ConfigError(f"autoscale: band={self.band}: it must be at least 0 and below 1, such as 0.15")
        if self.target_utilisation * (1 + self.band) > 1:
            raise ConfigError(
                f"autoscale: target_utilisation={self.target_utilisation} with band={self.band} would add slots only above "
                f"{self.target_utilisation * (1 + self.band):.0%}, when it is too late; lower one of them"
            )
        if self.min < 1:
            raise ConfigError(f"autoscale: min={self.min}: at least 1")
        if self.max < self.min:
            raise ConfigError(f"autoscale: max={self.max} is below min={self.min}")
        if self.warmup_epochs < 0:
            raise ConfigError(f"autoscale: warmup_epochs={self.warmup_epochs}: at least 0")
        if self.rescales_per_hour < 1:
            raise ConfigError(f"autoscale: rescales_per_hour={self.rescales_per_hour}: at least 1; without an autoscaler there are none")
        if self.slots_per_executor is not None and self.slots_per_executor < 1:
            raise ConfigError(f"autoscale: slots_per_executor={self.slots_per_executor}: at least 1, or None to leave executors alone")
        for name in ("sample", "cooldown", "shrink_after", "catch_up"):
            value = getattr(self, name)
            least = 0 if name == "cooldown" else 1e-3
            if value is not None and not least <= value < float("inf"):
                raise ConfigError(f"autoscale: {name}={value}: a duration is needed, such as '1min'")


def autoscale(
    target_utilisation: float = 0.7,
    min: int = 1,
    max: int = 8,
    *,
    band: float = 0.15,
    sample: float | str = "5s",
    warmup_epochs: int = 3,
    cooldown: float | str = "1min",
    shrink_after: float | str = "10min",
    catch_up: float | str | None = "10min",
    rescales_per_hour: int = 6,
    slots_per_executor: int | None = None,
) -> Autoscale:
    """Let the number of slots follow the load, and the number of executors follow the slots.

    - ``target_utilisation``: the share of the time that slots should be at work; the rest is room for peaks.
    - ``min``, ``max``: slots of a stage, at least and at most.
    - ``band``: nothing happens while the utilisation is within this fraction of the target.
    - ``sample``: the length of one measurement; three in a row must need more slots before slots
      are added.
    - ``warmup_epochs``: epochs after a change that are not measured: caches are cold.
    - ``cooldown``: the least time between two changes.
    - ``shrink_after``: slots are removed only after fewer would have been enough for so long.
    - ``catch_up``: the time in which a backlog should be worked off; None adds no slots for a
      backlog.
    - ``rescales_per_hour``: the most changes per hour. A change that it holds back is reported.
    - ``slots_per_executor``: request executors from Spark's cluster manager, and release them to it, so that each has about so many slots
      of the largest stage; an executor's cores are a good number. None leaves the executors as they are.

    Durations are seconds or text such as ``"90s"``.

    >>> autoscale(max=16, shrink_after="30min").shrink_after
    1800.0
    """
    durations = {name: seconds(value) for name, value in (("sample", sample), ("cooldown", cooldown), ("shrink_after", shrink_after))}
    for name, value in durations.items():
        if value is None:
            raise ConfigError(f"autoscale: {name}=None: a duration is needed, such as '1min'")
    return Autoscale(
        target_utilisation=target_utilisation,
        min=min,
        max=max,
        band=band,
        warmup_epochs=warmup_epochs,
        catch_up=seconds(catch_up),
        rescales_per_hour=rescales_per_hour,
        slots_per_executor=slots_per_executor,
        **{name: value for name, value in durations.items() if value is not None},
    )

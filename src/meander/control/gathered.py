"""Metrics of several processes that run one flow, from what each of them shows at ``/metrics``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families


class _Shown:
    """What prometheus_client takes for a collector."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def as_registry(text: str) -> CollectorRegistry:
    """The metrics of one process, as they are pushed."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Shown(text_string_to_metric_families(text)))
    return registry


def as_text(texts: Mapping[str, str]) -> bytes:
    """The metrics of several processes as those of one, each value with its replica's name.

    >>> epoch = "# TYPE meander_epoch gauge\\nmeander_epoch "
    >>> shown = as_text({"a": f"{epoch} 3.0\\n", "b": f"{epoch} 4.0\\n"})
    >>> print(shown.decode().splitlines()[2:])
    ['meander_epoch{replica="a"} 3.0', 'meander_epoch{replica="b"} 4.0']
    """
    families: dict[str, Metric] = {}
    for replica, text in texts.items():
        for family in text_string_to_metric_families(text):
            whole = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                whole.add_sample(sample.name, {**sample.labels, "replica": replica}, sample.value)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Shown(families.values()))
    found: bytes = generate_latest(registry)
    return found

"""A run's numbers for Prometheus: fed by its epochs, completed from its status, written as text."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family

from meander import metrics
from meander.clock import Clock
from meander.metrics import Recorder

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_POINTS = 100
"""Latencies taken of one split: evenly spaced in it, each standing for its share of the rows."""
_LATELY = 20
"""Epochs that a true rate is taken over."""


class Exposition:
    """One run's metrics."""

    def __init__(self, flow: str, clock: Clock) -> None:
        self.recorder = Recorder()
        self._flow = flow
        self._clock = clock
        self._recent: deque[dict[str, tuple[int, float]]] = deque(maxlen=_LATELY)
        for metric in (metrics.EPOCHS, metrics.CACHE_HITS, metrics.DEAD_LETTERS, metrics.MODIFICATIONS):
            self.recorder.add(metric, 0)
        for origin in ("peers", "store"):
            self.recorder.add(metrics.FETCHED, 0, origin)

    def __call__(self, done: Any) -> None:
        """Record one epoch; called by the run as a listener."""
        published = self._clock.now() - done.seconds.get("tidy", 0.0)
        recorder, outcome = self.recorder, done.outcome
        recorder.add(metrics.EPOCHS, 1)
        for part, seconds in done.seconds.items():
            recorder.observe(metrics.EPOCH_SECONDS, [(seconds, 1)], part)
        recorder.observe(metrics.LATENCY, _latencies((split for _, split in done.decision.splits), published))
        for stage, (came, left) in outcome.records.items():
            recorder.add(metrics.RECORDS_IN, came, stage)
            recorder.add(metrics.RECORDS_OUT, left, stage)
        for facts in outcome.stages:
            recorder.add(metrics.BUSY, facts.busy, facts.name)
        recorder.add(metrics.CACHE_HITS, outcome.counts.get("cache_hits", 0))
        recorder.add(metrics.DEAD_LETTERS, outcome.counts.get("dead_letters", 0))
        for operator, rows in metrics.late_by_operator(outcome.counts).items():
            recorder.add(metrics.LATE_ROWS, rows, operator)
        for origin in ("peers", "store"):
            recorder.add(metrics.FETCHED, outcome.counts.get(f"fetched_from_{origin}", 0), origin)
        self._recent.append({facts.name: (facts.records, facts.busy) for facts in outcome.stages})

    def text(self, status: dict[str, Any]) -> bytes:
        """All metrics as text, with the values that the status has at this moment."""
        text: bytes = generate_latest(self.registry(status))
        return text

    def registry(self, status: dict[str, Any]) -> CollectorRegistry:
        """The same as a registry, for callers that write the text themselves."""
        self._read(status)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Families(list(self._families())))
        return registry

    def _read(self, status: dict[str, Any]) -> None:
        recorder = self.recorder
        recorder.set(metrics.RUNNING, 1 if status["state"] == "running" else 0)
        recorder.set(metrics.EPOCH, status["epoch"])
        recorder.set(metrics.WAITING, status.get("waiting", 0))
        operators = status["operators"].items()
        for metric, entry in (
            (metrics.SLOTS, "parallelism"),
            (metrics.STATE_ROWS, "rows"),
            (metrics.STATE_BYTES, "bytes"),
            (metrics.SEGMENTS, "segments"),
        ):
            recorder.replace(metric, {name: operator[entry] for name, operator in operators})
        for name, _ in operators:
            recorder.add(metrics.LATE_ROWS, 0, name)  # there from the beginning: Prometheus takes a counter's first value for its start
        recorder.replace(metrics.EXECUTOR_SLOTS, {name: executor["slots"] for name, executor in status.get("executors", {}).items()})
        sums: dict[str, tuple[int, float]] = {}
        for epoch in list(self._recent):
            for stage, (records, busy) in epoch.items():
                before = sums.get(stage, (0, 0.0))
                sums[stage] = (before[0] + records, before[1] + busy)
        recorder.replace(metrics.TRUE_RATE, {stage: records / busy for stage, (records, busy) in sums.items() if busy > 0})

    def _families(self) -> Iterator[Family]:
        numbers, histograms = self.recorder.snapshot()
        for metric in metrics.ALL:
            names = ("flow", *metric.labels)
            if metric.kind == "histogram":
                family = HistogramMetricFamily(metric.name, metric.help, labels=names)
                for labels, histogram in histograms.get(metric, {}).items():
                    reached = np.cumsum(histogram.counts).tolist()
                    bounds = [*map(str, metric.bounds), "+Inf"]
                    family.add_metric((self._flow, *labels), list(zip(bounds, reached, strict=True)), histogram.sum)
                yield family
                continue
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            plain = kind(metric.name, metric.help, labels=names)
            for labels, value in numbers.get(metric, {}).items():
                plain.add_metric((self._flow, *labels), value)
            yield plain


class _Families:
    """A collector, in the sense of prometheus_client."""

    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


def _latencies(splits: Iterable[Any], published: float) -> Iterator[tuple[float, int]]:
    for split in splits:
        if split.rows <= 0 or split.born[0] <= 0:
            continue
        points = min(split.rows, _POINTS)
        share, rest = divmod(split.rows, points)
        for number, born in enumerate(np.linspace(split.born[0], split.born[1], points).tolist()):
            yield max(0.0, published - born), share + (number < rest)

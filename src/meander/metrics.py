"""Every metric of Meander, declared once: name, kind, labels and description.

``Recorder`` keeps the numbers; ``control`` turns them into text. Counters begin with the process: a
restart of the driver sets them to 0, as Prometheus expects.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Metric:
    """A declaration. Counters end with ``_total``; times are in seconds, sizes in bytes."""

    name: str
    kind: str
    """counter, gauge or histogram."""
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets; one more, without a bound, is always there."""


_EPOCH_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LATENCY_BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

RUNNING = Metric("meander_running", "gauge", "1 while the flow runs, 0 when it has stopped, finished or failed.")
EPOCH = Metric("meander_epoch", "gauge", "The newest committed epoch.")
EPOCHS = Metric("meander_epochs_total", "counter", "Epochs that this process committed and published.")
EPOCH_SECONDS = Metric(
    "meander_epoch_duration_seconds", "histogram", "Time of an epoch, by part: run, commit, publish, tidy.", ("part",), _EPOCH_BOUNDS
)
LATENCY = Metric(
    "meander_latency_seconds",
    "histogram",
    "Time from an event's birth, where its source knows it, to the publication of its epoch.",
    (),
    _LATENCY_BOUNDS,
)
RECORDS_IN = Metric("meander_records_in_total", "counter", "Records that came into a stage.", ("stage",))
RECORDS_OUT = Metric("meander_records_out_total", "counter", "Records that a stage handed on, to later stages and to sinks.", ("stage",))
BUSY = Metric("meander_busy_seconds_total", "counter", "Seconds that the slots of a stage worked, without those they waited.", ("stage",))
TRUE_RATE = Metric("meander_true_rate_records_per_second", "gauge", "Records per second of work and slot, lately.", ("stage",))
SLOTS = Metric("meander_parallelism", "gauge", "Slots of a stateful operator.", ("operator",))
STATE_ROWS = Metric("meander_state_rows", "gauge", "Stored rows of an operator's state, older versions of a key included.", ("operator",))
STATE_BYTES = Metric("meander_state_bytes", "gauge", "Stored bytes of an operator's state.", ("operator",))
SEGMENTS = Metric("meander_state_segments", "gauge", "Segments that an operator's state consists of.", ("operator",))
CACHE_HITS = Metric("meander_cache_hits_total", "counter", "Segments that a task found in its executor's cache.")
FETCHED = Metric("meander_fetched_bytes_total", "counter", "Bytes of state that tasks fetched, by where from: peers or store.", ("origin",))
DEAD_LETTERS = Metric("meander_dead_letters_total", "counter", "Rows that could not be processed.")
LATE_ROWS = Metric("meander_late_rows_total", "counter", "Rows that came too late for an operator.", ("operator",))
WAITING = Metric("meander_waiting_records", "gauge", "About how many records the sources have to give.")
EXECUTOR_SLOTS = Metric("meander_executor_slots", "gauge", "Slots that are pinned to an executor.", ("executor",))
RESCALES = Metric("meander_rescales_total", "counter", "Rescales through the control plane that came into force.", ("operator",))
MODIFICATIONS = Metric("meander_modifications_total", "counter", "Changes of the flow through the control plane that came into force.")

ALL: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))


_LATE = "late_rows."


def late_count(operator: str) -> str:
    """Under which name an epoch counts the late rows of an operator; ``late_rows`` are those of all."""
    return _LATE + operator


def late_by_operator(counts: Mapping[str, int]) -> dict[str, int]:
    """The late rows of each operator, in the counts of an epoch or of a flow.

    >>> late_by_operator({"rows_in": 9, "late_rows": 3, late_count("visits"): 2, late_count("clicks"): 1})
    {'visits': 2, 'clicks': 1}
    """
    return {name.removeprefix(_LATE): number for name, number in counts.items() if name.startswith(_LATE)}


@dataclass
class Histogram:
    """How many observations were in each bucket, and their sum."""

    counts: list[int]
    sum: float = 0.0


Labels = tuple[str, ...]


@dataclass
class Recorder:
    """The numbers of one run. The flow's thread writes them; any thread may read them."""

    numbers: dict[Metric, dict[Labels, float]] = field(default_factory=dict)
    histograms: dict[Metric, dict[Labels, Histogram]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, metric: Metric, by: float, *labels: str) -> None:
        with self._lock:
            found = self.numbers.setdefault(metric, {})
            found[labels] = found.get(labels, 0.0) + by

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        with self._lock:
            self.numbers.setdefault(metric, {})[labels] = value

    def replace(self, metric: Metric, values: Mapping[str, float]) -> None:
        """Set all values of a gauge with one label; labels that are not in them are removed."""
        with self._lock:
            self.numbers[metric] = {(label,): value for label, value in values.items()}

    def observe(self, metric: Metric, values: Iterable[tuple[float, int]], *labels: str) -> None:
        """Values and how often each was seen.

        >>> recorder = Recorder()
        >>> recorder.observe(EPOCH_SECONDS, [(0.2, 1), (99.0, 2)], "run")
        >>> recorder.histograms[EPOCH_SECONDS][("run",)].counts[6], recorder.histograms[EPOCH_SECONDS][("run",)].counts[-1]
        (0, 2)
        """
        with self._lock:
            found = self.histograms.setdefault(metric, {})
            histogram = found.setdefault(labels, Histogram([0] * (len(metric.bounds) + 1)))
            for value, times in values:
                histogram.counts[bisect.bisect_left(metric.bounds, value)] += times
                histogram.sum += value * times

    def snapshot(self) -> tuple[dict[Metric, dict[Labels, float]], dict[Metric, dict[Labels, Histogram]]]:
        """A copy of all numbers at one moment."""
        with self._lock:
            numbers = {metric: dict(values) for metric, values in self.numbers.items()}
            histograms = {
                metric: {labels: Histogram(list(h.counts), h.sum) for labels, h in values.items()}
                for metric, values in self.histograms.items()
            }
        return numbers, histograms

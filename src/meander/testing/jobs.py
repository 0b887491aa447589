"""The work of ``SparkJobs``, here and now: an epoch's tasks run one after the other in this process.

Blobs are pickled and cut as on the wire, so that what a flow computes here is what it computes on a cluster. The work of Spark itself
(placement, retries, lost executors) is not here.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from meander.task.messages import Control, Seen
from meander.worker import Worker


@dataclass
class LocalStarted:
    """A first stage, which is over: what it has sent to every slot."""

    blobs: list[list[bytes]]
    shuffle_id: int = 0

    def is_over(self) -> bool:
        return True

    def cancel(self) -> None: ...


class LocalJobs:
    """Implements ``epochs.jobs.Jobs``, with a worker of its own."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def start_first_stage(self, controls: Sequence[Control], slots: int, among: Sequence[str] = ()) -> LocalStarted:
        return LocalStarted(_exchange([list(self._worker.first_stage([pickle.dumps(c)])) for c in controls], slots))

    def run_rest(self, started: LocalStarted, levels: Sequence[Sequence[Control]], places: Any) -> Callable[[], list[Seen]]:
        def run() -> list[Seen]:
            blobs = started.blobs
            for number, controls in enumerate(levels):
                pairs = [
                    [(blob, pickle.dumps(control) if nth == 0 else b"") for nth, blob in enumerate(blobs[slot])]
                    for slot, control in enumerate(controls)
                ]
                if number == len(levels) - 1:
                    return [pickle.loads(next(iter(self._worker.last_stage(pair)))) for pair in pairs]
                blobs = _exchange([list(self._worker.next_stage(pair)) for pair in pairs], len(levels[number + 1]))
            raise AssertionError("no level")

        return run

    def run_single(self, controls: Sequence[Control], among: Sequence[str] = ()) -> Callable[[], list[Seen]]:
        return lambda: [pickle.loads(next(iter(self._worker.only_stage([pickle.dumps(c)])))) for c in controls]

    def run_small(self, levels: Sequence[Sequence[Control]], places: Any) -> Callable[[], list[Seen]]:
        if len(levels) == 1:
            return lambda: [pickle.loads(next(iter(self._worker.small_last_stage([pickle.dumps(c)])))) for c in levels[0]]
        sent = [list(self._worker.small_next_stage([pickle.dumps(c)])) for c in levels[0]]
        return self.run_rest(LocalStarted(_exchange(sent, len(levels[1]))), levels[1:], places)

    def forget_shuffles(self, keep: Sequence[Any] = ()) -> None: ...

    def cancel(self) -> None: ...


def _exchange(sent: list[list[bytes]], slots: int) -> list[list[bytes]]:
    blobs: list[list[bytes]] = [[] for _ in range(slots)]
    for items in sent:
        for slot, blob in zip(items[::2], items[1::2], strict=True):
            blobs[int.from_bytes(slot, "big")].append(blob)
    return blobs

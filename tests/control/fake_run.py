"""A run without a flow: it keeps the contract of ``Running``, remembers what it was asked, and fails on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from meander.coordinate.capacity import StageFacts
from meander.outcomes import Migrated, Rescaled


class FakeRun:
    def __init__(self) -> None:
        self.name = "edits"
        self.slots = {"counts": 2}
        self.executors = {
            "0": {"slots": 2, "stages": [2], "leaving": False, "introduced": True},
            "1": {"slots": 0, "stages": [], "leaving": False, "introduced": True},
        }
        self.asked: list[tuple[Any, ...]] = []
        self.failure: Exception | None = None
        self.state = "running"
        self.listeners: list[Callable[[Any], None]] = []

    def status(self) -> dict[str, Any]:
        operators = [{"name": name, "kind": kind, "does": "", "inputs": []} for name, kind in (("lines", "source"), ("people", "filter"))]
        counts = [{"name": "counts", "kind": "aggregate", "does": "", "inputs": ["people"]}]
        return {
            "flow": self.name,
            "state": self.state,
            "error": "row 7" if self.state == "failed" else None,
            "epoch": 12,
            "waiting": 40,
            "operators": {
                name: {"parallelism": slots, "rows": 300, "bytes": 9000, "segments": 4, "routing": [0, 1]}
                for name, slots in self.slots.items()
            },
            "stages": [
                {"number": 1, "operators": operators, "stateful": [], "slots": 2},
                {"number": 2, "operators": counts, "stateful": ["counts"], "slots": self.slots["counts"]},
            ],
            "executors": self.executors,
        }

    def rescale(self, operator: str, parallelism: int, strategy: str = "hybrid") -> Rescaled:
        self.asked.append(("rescale", operator, parallelism, strategy))
        if self.failure is not None:
            raise self.failure
        before, self.slots[operator] = self.slots[operator], parallelism
        return Rescaled(operator, before, parallelism, 42, strategy, 13)

    def migrate(
        self, operators: Sequence[str], executor: str, key_groups: Sequence[int] | None = None, strategy: str = "hybrid"
    ) -> Migrated:
        self.asked.append(("migrate", list(operators), executor, key_groups, strategy))
        return Migrated(tuple(operators), executor, 21, 14, 0.5)

    def modify_as_data(self, data: Mapping[str, Any], code: bytes | None = None) -> dict[str, Any]:
        self.asked.append(("modify", dict(data), code))
        if self.failure is not None:
            raise self.failure
        effects = {
            "version": 2,
            "changes": ["replace 'people'"],
            "plan": ["filter 'people' differs"],
            "schemas": {},
            "state": {"counts": "kept"},
            "drops": [],
            "restarts": [],
            "go_on": [],
            "chance": {},
        }
        if data.get("dry_run"):
            return effects
        return {"id": data.get("request_id") or "x1", "version": 2, "epoch": 13, "seconds": 0.25, "effects": effects, "repeated": False}

    def modifications(self) -> list[dict[str, Any]]:
        effects = {"changes": ["replace 'people' by filter"]}
        return [
            {"id": "a", "author": "ada", "at": 1.0, "epoch": 3, "verdict": "in force", "effects": effects},
            {
                "id": "b",
                "author": "",
                "at": 2.0,
                "epoch": 4,
                "verdict": "rejected",
                "effects": effects,
                "why": "trace\nZeroDivisionError: no",
            },
        ]

    def evacuate(self, executor: str) -> None:
        self.asked.append(("evacuate", executor))
        self.executors[executor] = {"slots": 0, "stages": [], "leaving": True, "introduced": True}

    def stop(self) -> None:
        self.asked.append(("stop",))

    def on_epoch(self, listener: Callable[[Any], None]) -> None:
        self.listeners.append(listener)

    def epoch(self, now: float) -> None:
        """Tell the listeners of an epoch of 1,000 events that came during the second before."""
        split = SimpleNamespace(rows=1000, born=(now - 1.0, now))
        outcome = SimpleNamespace(
            counts={
                "rows_in": 1000,
                "rows_out": 50,
                "dead_letters": 3,
                "cache_hits": 5,
                "fetched_from_store": 4096,
                "late_rows": 2,
                "late_rows.counts": 2,
            },
            stages=(StageFacts("1", 1000, 0.5, 2), StageFacts("2", 300, 0.1, 2)),
            records={"1": (1000, 300), "2": (300, 50)},
        )
        seconds = {"run": 0.2, "commit": 0.01, "publish": 0.02, "tidy": 0.0}
        for listener in self.listeners:
            listener(SimpleNamespace(decision=SimpleNamespace(splits=(("lines", split),)), outcome=outcome, seconds=seconds))

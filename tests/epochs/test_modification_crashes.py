"""Modifications among crashes: whatever dies whenever, every epoch is what the plan in its log entry makes of its input, once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.local import Local, Script, constants

import meander as md
from meander.coordinate.routing import rebalance
from meander.errors import Rejected
from meander.plan.change.modify import Insert, Remove, Replace
from meander.state import compaction as compaction_module
from meander.state.log import entries_after
from meander.state.manifest import Manifest
from meander.state.stores.contract import DirStore

COLUMNS: dict[str, Any] = {"k": pl.Int64(), "v": pl.Int64()}


class Crash(BaseException):
    """The driver is gone."""


class Mortal(DirStore):
    """A store whose driver dies at one of its operations: before it has an effect, or after."""

    left: int | None = None
    after = False

    def _count(self) -> bool:
        if self.left is None:
            return False
        self.left -= 1
        return self.left == 0

    def _do(self, verb: str, *arguments: Any) -> Any:
        dies = self._count()
        if dies and not self.after:
            raise Crash
        result = getattr(DirStore, verb)(self, *arguments)
        if dies:
            raise Crash
        return result

    def get(self, name: str) -> Any:
        return self._do("get", name)

    def put(self, name: str, data: Any) -> None:
        self._do("put", name, data)

    def put_if_absent(self, name: str, data: Any) -> Any:
        return self._do("put_if_absent", name, data)

    def delete(self, name: str) -> None:
        self._do("delete", name)


def fails(frame: pl.DataFrame) -> pl.DataFrame:
    if frame.height:
        raise ZeroDivisionError("a typo")
    return frame


def same(frame: pl.DataFrame) -> pl.DataFrame:
    return frame


@dataclass(frozen=True)
class Version:
    """A plan, as the oracle knows it."""

    above: int = -100
    without: int | None = None
    aggs: tuple[tuple[str, str], ...] = (("n", "count"), ("total", "sum"))
    """Aliases and kinds."""

    def operator(self) -> Any:
        made = {"count": md.count(), "sum": md.sum("v"), "max": md.max("v")}
        return md.aggregate(*(made[kind].alias(alias) for alias, kind in self.aggs))


def flow_of(epochs: Any) -> tuple[md.Flow, Any]:
    flow, out = md.Flow("changing"), md.memory()
    above = flow.source("events", Script(COLUMNS, epochs)).filter("v > -100", name="above").map_batches(same, name="clean")
    above.key_by("k").aggregate(md.count().alias("n"), md.sum("v").alias("total"), name="totals").sink("out", out)
    return flow, out


def expected(store: DirStore, versions: dict[str | None, Version]) -> tuple[dict[int, list[Any]], dict[int, dict[str, int]]]:
    """A plain fold over the log: each epoch's input under the plan that its entry names."""
    state: dict[int, dict[str, int]] = {}
    output: dict[int, list[Any]] = {}
    for entry in entries_after(store, Manifest()):
        if entry["kind"] != "epoch":
            continue
        version = versions[entry["plan"].get("modification")]
        if "totals" in entry["forgets"]:
            state.clear()
        aliases = [alias for alias, _ in version.aggs]
        for values in state.values():
            for alias in [alias for alias in values if alias not in aliases]:
                del values[alias]
        touched = set()
        for _, payload in entry["splits"]:
            for k, v in payload["rows"]:
                if v <= version.above or k == version.without:
                    continue
                values = state.setdefault(k, {})
                touched.add(k)
                for alias, kind in version.aggs:
                    old = values.get(alias)
                    new = {"count": (old or 0) + 1, "sum": (old or 0) + v, "max": v if old is None else max(old, v)}
                    values[alias] = new[kind]
        if touched:
            output[entry["epoch"]] = sorted((k, *(state[k][alias] for alias in aliases)) for k in touched)
    return output, state


def check(local: Local, out: Any, versions: dict[str | None, Version], rows: int) -> None:
    output, state = expected(DirStore(local.folder), versions)
    assert {epoch: sorted(frame.rows()) for epoch, frame in out.epochs().items()} == output
    assert local.manifest.totals["rows_in"] == rows
    assert local.manifest.totals.get("dead_letters", 0) == 0
    aliases = [alias for alias, _ in versions[local.manifest.plan.get("modification")].aggs]
    stored = pl.DataFrame(pl.from_arrow(md.read_state(local.folder, "totals"))) if state else pl.DataFrame()
    assert sorted(stored.rows()) == sorted((k, *(values.get(alias) for alias in aliases)) for k, values in state.items())


CHANGES: dict[str, tuple[Any, Version, dict[str, Any]]] = {
    "a condition": (Replace("above", md.filter("v > 1")), Version(above=1), {}),
    "other state": (
        Replace("totals", Version(aggs=(("n", "count"), ("most", "max"))).operator()),
        Version(aggs=(("n", "count"), ("most", "max"))),
        {},
    ),
    "no old state": (Replace("totals", Version().operator()), Version(), {"drop": ["totals"]}),
    "a typo": (Replace("clean", md.map_batches(fails)), Version(), {}),
}


@pytest.mark.many
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("case", CHANGES)
def test_a_driver_that_dies_at_any_operation_around_a_change(tmp_path: Path, case: str, after: bool) -> None:
    change, version, rules = CHANGES[case]
    epochs = tuple(((0, ((1, e), (2, 1), (e % 3, 5))),) for e in range(4))
    verdicts, nth = set(), 0
    while nth < 200:
        nth += 1
        folder = tmp_path / str(nth)
        flow, out = flow_of(epochs)
        store = Mortal(folder)
        local = Local(flow, folder, 1, store=store)
        local.worker.stores[store.url] = store
        local.step()
        local.propose(change, request_id="it", **rules)
        store.left, store.after = nth, after
        try:
            local.step()
            died = False
        except Crash:
            died = True
        versions: dict[str | None, Version] = {None: Version(), "it": version}
        local = Local(flow, folder, 1)
        try:
            known = local.modifier.known("it")
        except Rejected:
            known = None
            assert case == "a typo"
        assert (known is not None) == (local.manifest.plan.get("modification") == "it"), "in force is what the log says"
        verdicts.add(known is not None)
        if known is None and case != "a typo":  # asking again is the same request
            trial = local.propose(change, request_id="it", **rules)
            local.step()
            assert trial.done.result(0).epoch == local.manifest.epoch
        local.run()
        check(local, out, versions, sum(len(rows) for ((_, rows),) in epochs))
        assert [record["verdict"] for record in local.modifier.history()] in (
            [["in force"]] if case != "a typo" else [["rejected"], ["not tried"], []]
        )
        if not died:
            break
    assert nth > 8, "it died at many operations"
    assert verdicts == ({True, False} if case != "a typo" else {False})


actions = st.sampled_from(["step", "above", "without", "add", "less", "drop", "typo", "restart", "die", "rescale"])
rows = st.lists(st.tuples(st.integers(0, 4), st.integers(-5, 5)), max_size=6).map(tuple)


@pytest.mark.many
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.data())
def test_random_modifications_crashes_and_restarts_equal_the_oracle(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("model")
    epochs = tuple(((0, one), (1, two)) for one, two in data.draw(st.lists(st.tuples(rows, rows), min_size=4, max_size=14)))
    flow, out = flow_of(epochs)
    versions: dict[str | None, Version] = {None: Version()}
    small, number = data.draw(st.booleans()), 0
    store = Mortal(folder)

    def start() -> Local:
        store.left = None
        local = Local(flow, folder, data.draw(st.sampled_from([1, 2, 3])), small, store=store, ahead=data.draw(st.booleans()))
        local.worker.stores[store.url] = store
        return local

    with constants(FEWEST=(compaction_module, 2)):
        local = start()
        for action in data.draw(st.lists(actions, min_size=3, max_size=16)):
            now = versions[local.manifest.plan.get("modification")]
            number += 1
            changed: Version | None = None
            change: list[Any] = []
            rules: dict[str, Any] = {}
            if action == "above":
                changed = Version(data.draw(st.integers(-3, 3)), now.without, now.aggs)
                change = [Replace("above", md.filter(f"v > {changed.above}"))]
            elif action == "without" and now.without is None:
                changed = Version(now.above, data.draw(st.integers(0, 4)), now.aggs)
                change = [Insert("without", md.filter(f"k <> {changed.without}"), after="above")]
            elif action == "without":
                changed, change = Version(now.above, None, now.aggs), [Remove("without")]
            elif action in ("add", "less", "drop"):
                aggs = now.aggs
                if action == "add":
                    aggs = (*aggs, (f"a{number}", data.draw(st.sampled_from(["count", "sum", "max"]))))
                elif action == "less" and len(aggs) > 1:
                    aggs = aggs[1:]
                changed = Version(now.above, now.without, aggs)
                change, rules = [Replace("totals", changed.operator())], {"drop": ["totals"]} if action == "drop" else {}
            elif action == "typo":
                changed, change = now, [Replace("clean", md.map_batches(fails))]
            elif action == "rescale":
                local.loop.reroute("totals", rebalance(local.loop.routing["totals"], data.draw(st.integers(1, 4))))
            elif action == "restart":
                local = start()
            if changed is not None:
                versions[f"m{number}"] = changed
                local.propose(*change, request_id=f"m{number}", **rules)
            if action == "die" or (changed is not None and data.draw(st.integers(0, 3)) == 0):
                store.left, store.after = data.draw(st.integers(1, 30)), data.draw(st.booleans())
            if action != "restart":
                try:
                    local.step()
                    store.left = None
                except Crash:
                    local = start()
        local.run()
    if not any(one or two for (_, one), (_, two) in epochs):
        return
    check(local, out, versions, sum(len(one) + len(two) for (_, one), (_, two) in epochs))
    for record in local.modifier.history():
        if record["verdict"] == "in force":
            assert record["id"] in json.dumps([entry["plan"] for entry in entries_after(DirStore(folder), Manifest()) if "plan" in entry])

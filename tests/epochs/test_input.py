"""Input is neither lost nor taken twice, whatever fails between the moment it is chosen and the moment it is decided."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.local import Local, Script, ScriptCursor
from tests.memory_store import MemoryStore

import meander as md
from meander.clock import FakeClock
from meander.connect.source import Choice
from meander.epochs.input import Input
from meander.state.log import Log
from meander.state.stores.contract import DirStore

COLUMNS = {"k": pl.Int64(), "v": pl.Int64()}
EPOCHS = 6
SCRIPT = tuple(((0, tuple((key, epoch) for key in range(3))),) for epoch in range(EPOCHS))
WHOLE = sorted((key, epoch) for key in range(3) for epoch in range(EPOCHS))


class Blinking(DirStore):
    """Does not answer to two calls: the put of one epoch's decision, and the look whether it is there."""

    epoch: int
    arrives: bool
    """Whether the put has an effect all the same."""
    deaf = 2

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if self._is_about(name):
            if self.arrives:
                super().put_if_absent(name, data)
            raise md.Retryable("no answer to the put")
        return super().put_if_absent(name, data)

    def get(self, name: str) -> bytes | None:
        if self.deaf == 1 and self._is_about(name):
            raise md.Retryable("no answer to the look")
        return super().get(name)

    def _is_about(self, name: str) -> bool:
        is_it = self.deaf > 0 and name.startswith("decide/") and int(name.rsplit("/", 1)[1]) == self.epoch
        self.deaf -= is_it
        return is_it


def blinking(folder: Path, epoch: int, arrives: bool) -> Blinking:
    store = Blinking(folder)
    store.epoch, store.arrives = epoch, arrives
    return store


@pytest.mark.parametrize("arrives", [False, True])
@pytest.mark.parametrize("epoch", [1, 2, 3, EPOCHS])
def test_a_replica_loses_nothing_where_the_store_fails_while_it_decides(tmp_path: Path, epoch: int, arrives: bool) -> None:
    flow, out = md.Flow("x"), md.memory()
    flow.source("events", Script(COLUMNS, SCRIPT)).sink("out", out)
    one = Local(flow, tmp_path / "state", replica="a", store=blinking(tmp_path / "state", epoch, arrives))
    assert one.loop.siblings is not None
    while one.loop.siblings.persevere(one.loop.step, everything=True):
        pass
    assert sorted(out.frame().rows()) == WHOLE


@pytest.mark.parametrize("arrives", [False, True])
def test_files_that_a_replica_could_not_decide_on_are_taken_once(tmp_path: Path, arrives: bool) -> None:
    (tmp_path / "in").mkdir()
    for number in range(EPOCHS):
        (tmp_path / "in" / f"{number}.csv").write_text(f"k,v\n{number},{number}\n")
    flow, out = md.Flow("x"), md.memory()
    flow.source("events", md.files(tmp_path / "in", "csv", {"k": "long", "v": "long"}, max_files_per_epoch=1)).sink("out", out)
    one = Local(flow, tmp_path / "state", replica="a", store=blinking(tmp_path / "state", 3, arrives))
    assert one.loop.siblings is not None
    one.loop.input.look()
    while one.loop.siblings.persevere(one.loop.step, everything=True):
        pass
    assert sorted(out.frame()["k"].to_list()) == list(range(EPOCHS))
    one.loop.close()


@dataclass(frozen=True)
class Named(Script):
    name: str = ""
    fails: list[str] = field(default_factory=list)

    def cursor(self, offset: dict[str, Any], seen: set[str], throttle: float = 1.0) -> ScriptCursor:
        if self.name in self.fails:
            raise md.Retryable("no answer")
        return Choosing(self, offset.get("next", 0))


class Choosing(ScriptCursor):
    closed = False

    def choose(self, now: float, everything: bool) -> Choice | None:
        assert not self.closed
        assert isinstance(self.script, Named)
        if self.script.name in self.script.fails:
            raise md.Retryable("no answer")
        return super().choose(now, everything)

    def close(self) -> None:
        self.closed = True


def opened(fails: list[str]) -> tuple[Input, dict[str, Named]]:
    store, clock = MemoryStore(), FakeClock()
    sources = {name: Named(COLUMNS, SCRIPT, name, fails) for name in ("a", "b")}
    return Input(store, clock.now, Log.take_over(store, clock), sources), sources


def offsets(input: Input) -> dict[str, Any]:
    decision = input.choose(1, everything=True)
    assert decision is not None
    return decision.offsets


def test_what_one_source_gave_is_kept_while_another_fails() -> None:
    fails: list[str] = []
    input, _ = opened(fails)
    fails.append("b")
    with pytest.raises(md.Retryable):
        input.choose(1, everything=True)
    fails.clear()
    assert offsets(input) == {"a": {"next": 1}, "b": {"next": 1}}


def test_what_a_source_gave_that_was_only_tried_is_not_taken_for_the_old_ones() -> None:
    fails: list[str] = []
    input, sources = opened(fails)
    before = input.cursors
    input.cursors = {"a": replace(sources["a"]).cursor({"next": 4}, set()), "b": before["b"]}
    fails.append("b")
    with pytest.raises(md.Retryable):  # the change is taken back
        input.choose(1, everything=True)
    fails.clear()
    input.cursors = before
    assert offsets(input) == {"a": {"next": 1}, "b": {"next": 1}}


def test_cursors_are_opened_anew_together_or_not_at_all() -> None:
    fails: list[str] = []
    input, sources = opened(fails)
    offsets(input)
    fails.append("b")
    with pytest.raises(md.Retryable):
        input.reopen(sources)
    fails.clear()
    assert offsets(input) == {"a": {"next": 2}, "b": {"next": 2}}
    input.reopen(sources)
    assert offsets(input) == {"a": {"next": 1}, "b": {"next": 1}}


def test_files_are_given_back_although_their_folder_cannot_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        (tmp_path / f"{number}.csv").write_text(f"k\n{number}\n")
    cursor = md.files(tmp_path, "csv", {"k": "long"}).cursor({}, set())
    cursor.look()
    given = cursor.choose(0.0, everything=True)
    assert given is not None

    def away(*arguments: Any, **options: Any) -> Any:
        raise OSError(116, "Stale file handle")

    stat: Callable[..., Any] = os.stat
    monkeypatch.setattr(os, "stat", away)
    cursor.follow(given, None)
    with pytest.raises(md.Retryable):
        cursor.choose(0.0, everything=True)
    monkeypatch.setattr(os, "stat", stat)
    again = cursor.choose(0.0, everything=True)
    assert again is not None
    assert again.seen == given.seen
    cursor.close()

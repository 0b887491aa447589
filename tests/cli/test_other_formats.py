"""A store of another format is refused by whatever opens it, before anything is started or written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.small_store import make_store
from tests.memory_store import MemoryStore

import meander as md
from meander import testing
from meander.cli.main import main
from meander.clock import FakeClock
from meander.errors import ConfigError
from meander.nexmark.checking import taken_by
from meander.on_spark import session
from meander.state.log import Log
from meander.state.stores.contract import DirStore
from meander.state.stores.opening import NAME, check_format, put_format

FLOW = """
import meander as md
flow = md.Flow("orders")
flow.source("edits", md.generator("wikipedia", rate=10)).sink("out", md.discard())
"""
OTHERS: dict[str, tuple[bytes | None, str]] = {
    "none": (None, r"store file://\S+ does not say its format: it was written before format 1, .* use another store"),
    "zero": (b'{"format":0}', r"store file://\S+ has format 0: it was written before format 1"),
    "newer": (b'{"format":2,"meander":"0.9.0"}', r"store file://\S+, which Meander 0.9.0 has made, has format 2, .* use a newer Meander"),
    "no json": (b"\0\0", r"store file://\S+ does not say its format"),
}


@pytest.fixture(params=OTHERS)
def other(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """A store with a flow, of another format; and the words of its refusal."""

    def started(*_: Any, **__: Any) -> None:
        raise AssertionError("a Spark was started")

    monkeypatch.setattr(session, "spark", started)
    (tmp_path / "flow.py").write_text(FLOW)
    store = make_store(tmp_path / "state", {"ada": (1, 1.0)})
    said, words = OTHERS[request.param]
    store.delete(NAME)
    if said is not None:
        store.put(NAME, said)
    return tmp_path / "state", words


def files(store: Path) -> dict[str, bytes]:
    return {str(file.relative_to(store)): file.read_bytes() for file in store.rglob("*") if file.is_file()}


def a_flow() -> md.Flow:
    flow = md.Flow("orders")
    flow.source("edits", md.generator("wikipedia", rate=10)).sink("out", md.discard())
    return flow


def run_in_process(store: Path) -> None:
    testing.run(a_flow(), store)


CALLS: dict[str, Callable[[Path], Any]] = {
    "start": lambda store: a_flow().start(store),
    "start with takeover": lambda store: a_flow().start(store, takeover=True),
    "start with apply": lambda store: a_flow().start(store, apply=True),
    "start as a replica": lambda store: a_flow().start(store, replica="a"),
    "start replicas": lambda store: a_flow().start(store, replicas=2),
    "read_state": lambda store: md.read_state(store, "totals"),
    "read_state of an epoch": lambda store: md.read_state(store, "totals", epoch=1),
    "read_dead_letters": md.read_dead_letters,
    "testing.run": run_in_process,
    "nexmark": lambda store: taken_by(store, "edits", lambda payload: payload),  # type: ignore[arg-type, return-value]
    "take over": lambda store: Log.take_over(DirStore(store), FakeClock()),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_call_that_opens_a_store_refuses_one_of_another_format(call: str, other: tuple[Path, str]) -> None:
    store, words = other
    before = files(store)
    with pytest.raises(ConfigError, match=words):
        CALLS[call](store)
    assert files(store) == before


COMMANDS = {
    "run": ["run", "FLOW", "--store", "STORE"],
    "run once, with takeover": ["run", "FLOW", "--once", "--takeover", "--store", "STORE"],
    "run with apply": ["run", "FLOW", "--apply", "--store", "STORE"],
    "run replicas": ["run", "FLOW", "--replicas", "2", "--store", "STORE"],
    "run a replica": ["run", "FLOW", "--replica", "a", "--store", "STORE"],
    "control-plane": ["control-plane", "FLOW", "--store", "STORE"],
    "status": ["status", "STORE"],
    "state": ["state", "STORE"],
    "state of an operator": ["state", "STORE", "totals"],
    "dead-letters": ["dead-letters", "STORE"],
    "modifications": ["modifications", "STORE"],
    "replicas": ["replicas", "STORE"],
    "replicas add": ["replicas", "add", "--store", "STORE"],
    "replicas drain": ["replicas", "drain", "a", "--store", "STORE"],
    "replicas restart": ["replicas", "restart", "--store", "STORE"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_opens_a_store_refuses_one_of_another_format(
    command: str, other: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    store, words = other
    before = files(store)
    given = {"FLOW": str(store.parent / "flow.py"), "STORE": str(store)}
    assert main([given.get(word, word) for word in COMMANDS[command]]) == 2
    assert re.search(words, " ".join(capsys.readouterr().err.split()))
    assert files(store) == before


# -- the object itself ------------------------------------------------------------------------------------------------


def test_a_new_store_says_its_format_and_who_has_made_it_before_anything_else() -> None:
    class Watched(MemoryStore):
        def put_if_absent(self, name: str, data: bytes) -> bool:
            assert self.objects or name == NAME
            return super().put_if_absent(name, data)

        def put(self, name: str, data: Any) -> None:
            assert self.objects
            super().put(name, data)

    store = Watched()
    Log.take_over(store, FakeClock())
    assert json.loads(store.objects[NAME]) == {"format": 1, "meander": md.__version__}


def test_a_store_that_says_only_its_format_has_no_flow_and_can_be_started(tmp_path: Path) -> None:
    """A start has died between the two."""
    store = DirStore(tmp_path / "state")
    put_format(store, FakeClock())
    with pytest.raises(ConfigError, match="there is no flow in it"):
        md.read_state(tmp_path / "state", "totals")
    with testing.run(a_flow(), tmp_path / "state") as run:
        assert run.epoch == 0


def test_what_an_older_start_has_made_is_not_made_again() -> None:
    store = MemoryStore()
    store.put(NAME, b'{"format":1,"meander":"0.0.7","more":[1]}')
    Log.take_over(store, FakeClock())
    assert store.get(NAME) == b'{"format":1,"meander":"0.0.7","more":[1]}'


def test_a_start_that_is_overtaken_by_one_of_a_newer_meander_is_refused() -> None:
    class Overtaken(MemoryStore):
        def put_if_absent(self, name: str, data: bytes) -> bool:
            self.objects.setdefault(name, b'{"format":2}')
            return False

    with pytest.raises(ConfigError, match="has format 2"):
        put_format(Overtaken(), FakeClock())


def test_a_start_whose_put_was_not_answered_goes_on() -> None:
    class Deaf(MemoryStore):
        times = 0

        def put_if_absent(self, name: str, data: bytes) -> bool:
            super().put_if_absent(name, bytes(bytearray(data)))
            self.times += 1
            if self.times < 3:
                raise md.Retryable("no answer")
            return False

    store = Deaf()
    put_format(store, FakeClock())
    assert check_format(store)


def test_a_reader_beside_a_first_start_does_not_take_it_for_an_older_store() -> None:
    class Started(MemoryStore):
        def list(self, prefix: str) -> list[str]:
            if not self.objects:
                self.objects.update({NAME: b'{"format":1}', "log/00000000/000000000000": b"{}"})
            return super().list(prefix)

    assert check_format(Started())

"""The driver dies around the commits of epochs that close and expire: what comes out is what comes out undisturbed, and state goes once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.local import Local, Script

import meander as md
from meander.epochs import entry as entry_module

COLUMNS = {"k": pl.Int64(), "ts": pl.Datetime("us")}
SECOND = 1_000_000
PAUSE = timedelta(seconds=5)
PLACES = ("before the commit", "after the commit", "after the publication")


class Killed(Exception):
    """The driver is dead from here on."""


class Visit(md.Processor):
    """Counts until nothing has come for five seconds."""

    output: ClassVar[Any] = {"n": "int64", "until": "timestamp"}
    count = md.value("int64", default=0)
    until = md.value("timestamp")

    def on_events(self, key: int, rows: Any, state: Any, ctx: Any) -> None:
        for row in rows:
            state.count += 1
            if state.until is None or row.ts + PAUSE > state.until:
                state.until = row.ts + PAUSE
        ctx.set_timer(state.until)

    def on_timer(self, key: int, time: datetime, state: Any, ctx: Any) -> Any:
        if time < state.until:
            return None
        found = (state.count, state.until)
        state.clear()
        return found


class Guest(Visit):
    """Counts what has come by the other side ten times."""

    def on_other_events(self, key: int, rows: Any, state: Any, ctx: Any) -> None:
        for row in rows:
            self.on_events(key, [row], state, ctx)
            state.count += 9


def flow_of(script: Any) -> tuple[md.Flow, dict[str, Any]]:
    names = ("windows", "sessions", "firsts", "pairs", "before", "visits", "guests", "shared", "alone", "met")
    flow, outs = md.Flow("crashes"), {name: md.memory() for name in names}
    events = flow.source("events", Script(COLUMNS, script)).watermark("ts", grace="2s")
    keyed = events.key_by("k")
    keyed.window(md.sliding("10s", "5s")).aggregate(md.count().alias("n"), name="windows").sink("windows_out", outs["windows"])
    keyed.window(md.session("4s")).aggregate(md.count().alias("n"), name="sessions").sink("sessions_out", outs["sessions"])
    keyed.deduplicate(ttl="6s", name="firsts").sink("firsts_out", outs["firsts"])
    events.join(events, on="k", within=("1s", "3s"), how="full", name="pairs").sink("pairs_out", outs["pairs"])
    events.window(md.sliding("4s", "2s")).join(events, on="k", how="full", where="ts < ts_right", name="shared").sink(
        "shared_out", outs["shared"]
    )
    later = events.filter("ts > TIMESTAMP '1970-01-01 00:00:10'", name="later")
    events.window(md.cumulating("6s", "2s")).join(later, on="k", how="anti", name="alone").sink("alone_out", outs["alone"])
    events.window(md.session("3s")).join(later, on="k", how="full", where="ts < ts_right", name="met").sink("met_out", outs["met"])
    events.join_latest(events, on="k", as_of=True, name="before").sink("before_out", outs["before"])
    keyed.process(Visit, name="visits").sink("visits_out", outs["visits"])
    keyed.connect(events.filter("k > 0").key_by("k")).process(Guest, name="guests").sink("guests_out", outs["guests"])
    return flow, outs


def kill_at(local: Local, place: str) -> Any:
    """The driver dies there in its next epoch."""
    if place == "before the commit":
        return mock.patch.object(local.loop.log, "append", side_effect=Killed)
    if place == "after the commit":
        return mock.patch.object(local.loop.publisher, "publish", side_effect=Killed)
    return mock.patch.object(local.loop.tidy, "published", side_effect=Killed)


def results(script: Any, folder: Path, deaths: Sequence[str | None]) -> dict[str, list[Any]]:
    """What comes out, everything closed at the end, where the driver dies in these places, one after the other."""
    flow, outs = flow_of(script)
    local, left = Local(flow, folder), list(deaths)
    for _ in range(100):
        place = left.pop(0) if left else None
        went_on = True
        if place is None:
            went_on = local.step(flush=local.loop.finished())
        else:
            try:
                with kill_at(local, place):
                    went_on = local.step(flush=local.loop.finished())
            except Killed:
                local = Local(flow, folder, 1 + len(left) % 3)
        if not went_on and not left:
            break
    else:
        raise AssertionError("it closes what it has closed, again and again")
    open_still = [name for name in local.stored if not name.startswith(("firsts", "before.latest")) and name not in ("visits", "guests")]
    assert not open_still, "what has closed is still there"
    for name in {"visits", "guests"} & local.manifest.tables.keys():
        assert md.read_state(folder, name).num_rows == 0, "whose timer has fired is still there"
    return {name: sorted(pl.DataFrame(pl.from_arrow(out.table())).rows(), key=repr) for name, out in outs.items()}


moments = st.integers(0, 30).map(lambda second: second * SECOND)
splits = st.lists(st.tuples(st.integers(0, 2), moments), max_size=6).map(lambda rows: ((0, tuple(rows)),))
deaths = st.lists(st.sampled_from([None, None, *PLACES]), max_size=12)


@pytest.mark.many
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(splits, min_size=1, max_size=5).map(tuple), deaths)
def test_what_comes_out_does_not_depend_on_when_the_driver_dies(
    tmp_path_factory: pytest.TempPathFactory, script: Any, deaths: list[str | None]
) -> None:
    undisturbed = results(script, tmp_path_factory.mktemp("undisturbed"), ())
    assert results(script, tmp_path_factory.mktemp("killed"), deaths) == undisturbed


SCRIPT = tuple(((0, ((1, second * SECOND), (2, second * SECOND))),) for second in (1, 3, 17, 40))
EVERYWHERE = [place for place in PLACES for _ in range(5)]


@pytest.mark.many
def test_dying_everywhere_changes_nothing(tmp_path: Path) -> None:
    assert results(SCRIPT, tmp_path / "killed", EVERYWHERE) == results(SCRIPT, tmp_path / "undisturbed", ())


@pytest.mark.many
def test_it_would_show_if_an_epochs_entry_did_not_say_what_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_module, "floors", lambda *_: {})
    with pytest.raises(AssertionError, match=r"again and again|still there"):
        results(SCRIPT, tmp_path, EVERYWHERE)

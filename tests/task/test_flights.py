"""Real data through a flow with every kind of state by time, without Spark: stopped anywhere and begun again with other slots."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import duckdb
import polars as pl
import pytest
from tests import flights
from tests.local import Local

pytestmark = pytest.mark.skipif(not flights.DATA.exists(), reason="the flights are not here: `make test-servers` gets them")


def run_in_pieces(folder: Path, pieces: tuple[tuple[int, int], ...]) -> dict[str, int]:
    """(slots, epochs) one after the other, each in a process that is dropped where it stands; then to the end with two slots."""
    for slots, epochs in pieces:
        local = Local(flights.build(folder / "in", folder / "out"), folder / "state", slots, key_groups=128)
        local.loop.input.look()
        for _ in range(epochs):
            assert local.step()
    last = Local(flights.build(folder / "in", folder / "out"), folder / "state", 2, key_groups=128)
    last.loop.input.look()
    last.run(flush=True)
    assert not list((folder / "state").glob("dead_letters/*"))
    return flights.check(folder / "in", folder / "out")


def answers(folder: Path) -> None:
    """DuckDB's own answers in the place of the output."""
    with duckdb.connect() as connection:
        for name in ("flights", "weather"):
            connection.execute(f"CREATE VIEW {name} AS SELECT DISTINCT * FROM read_parquet('{folder / 'in' / name}/*.parquet')")
        for name, query in flights.EXPECTED.items():
            (folder / "out" / name).mkdir(parents=True)
            connection.execute(f"COPY ({query}) TO '{folder / 'out' / name / '1.parquet'}' (FORMAT parquet)")


@pytest.mark.many
def test_the_check_finds_a_row_that_is_missing_doubled_or_changed(tmp_path: Path) -> None:
    flights.write(tmp_path / "in", seed=0, until=datetime(2013, 1, 4))
    answers(tmp_path)
    counts = flights.check(tmp_path / "in", tmp_path / "out")
    assert list(counts) == list(flights.EXPECTED)
    assert all(counts.values())
    for name in counts:
        path = tmp_path / "out" / name / "1.parquet"
        right = pl.read_parquet(path)
        number = right.columns[-1] if right.schema[right.columns[-1]].is_numeric() else "id"
        changed = pl.concat([right.head(1).with_columns(pl.col(number) + 1), right.tail(-1)])
        for wrong in (right.tail(-1), pl.concat([right, right.head(1)]), changed):
            wrong.write_parquet(path)
            with pytest.raises(AssertionError, match=f"{name}: 1 rows are (missing|too many)"):
                flights.check(tmp_path / "in", tmp_path / "out")
        right.write_parquet(path)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_days_of_flights_are_as_duckdb_has_them(tmp_path: Path) -> None:
    flights.write(tmp_path / "in", seed=1, until=datetime(2013, 1, 11))
    counts = run_in_pieces(tmp_path, ((2, 5), (3, 7), (1, 4)))
    assert counts["in_weather"] > 8_000


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "pieces",
    [
        ((2, 4), (3, 5), (1, 5)),  # found a pair that came out twice, where a join looked for one key in several stretches of time
        ((1, 7), (4, 6), (3, 3)),
    ],
)
def test_a_year_of_flights_is_as_duckdb_has_it(tmp_path: Path, pieces: tuple[tuple[int, int], ...]) -> None:
    """Epochs of half a month: a few seconds where an epoch's files do not follow its span, and hours where they do."""
    flights.write(tmp_path / "in", seed=0)
    counts = run_in_pieces(tmp_path, pieces)
    assert counts["in_weather"] == 336_776

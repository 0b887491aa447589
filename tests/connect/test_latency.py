"""The per-event latency file of the seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from meander.connect.latency import LatencyFile
from meander.connect.source import Split
from meander.errors import ConfigError


def test_every_event_has_a_line_with_ingestion_time_and_latency_in_milliseconds(tmp_path: Path) -> None:
    path = tmp_path / "source.txt"
    with LatencyFile(path) as latencies:
        latencies.append(
            [Split({}, 3, 0, (1682546002.0, 1682546002.2)), Split({}, 0, 0), Split({}, 1, 0, (1682546002.5, 1682546002.5))], 1682546003.0
        )
        assert path.read_text().splitlines() == ["1682546002000 1000", "1682546002100 900", "1682546002200 800", "1682546002500 500"]
        latencies.append([Split({}, 1, 0, (10.0, 10.0))], 9.0)
        latencies.append([], 9.0)
    assert path.read_text().splitlines()[4:] == ["10000 0"]


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        LatencyFile(tmp_path / "nowhere" / "x.txt")

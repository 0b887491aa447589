"""Markers mean what pyproject.toml says: a test without ``spark`` has no Java, so that `make test-fast` can leave out all others."""

from __future__ import annotations

import subprocess
import sys


def test_a_test_that_starts_java_without_the_marker_is_told_so() -> None:
    command = [sys.executable, "-c", "import meander as md; md.spark()"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "a test without the marker 'spark' has started Java" in done.stderr

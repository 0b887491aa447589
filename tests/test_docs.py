"""Code in the documents that is meant to be run, runs, and shows what the page says it shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
WHOLE = ["event-time.md", "joins.md", "replication.md", "modifications.md#The columns of a source"]
"""Pages, or sections of them, whose first block of Python is a whole program, followed by what it prints."""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("page", WHOLE)
def test_a_page_shows_what_its_program_prints(page: str, tmp_path: Path) -> None:
    file, _, section = page.partition("#")
    text = (DOCS / file).read_text()
    text = text[text.index(f"\n## {section}\n") :] if section else text
    program, output = re.findall(r"```(?:python)?\n(.*?)```", text, re.DOTALL)[:2]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert output.strip() in done.stdout

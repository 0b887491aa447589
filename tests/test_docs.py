"""Code in the documents that is meant to be run, runs, and shows what the page says it shows."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import meander as md
from meander.flow import WindowedStream

DOCS = Path(__file__).resolve().parents[1] / "docs"
WHOLE = [
    "event-time.md",
    "event-time.md#Windows",
    "joins.md",
    "joins.md#In windows",
    "modifications.md#The columns of a source",
    "processor.md#Side outputs",
    "processor.md#Two streams",
]
"""Pages, or sections of them, whose first block of Python is a whole program, followed by what it prints."""


def program_of(page: str) -> tuple[str, str]:
    """The program of a page, or of a section of it, and what it prints."""
    file, _, section = page.partition("#")
    text = (DOCS / file).read_text()
    text = text[text.index(f"\n## {section}\n") :] if section else text
    program, output = re.findall(r"```(?:python)?\n(.*?)```", text, re.DOTALL)[:2]
    return program, output.strip()


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("page", WHOLE)
def test_a_page_shows_what_its_program_prints(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: its Spark is there already."""
    program, output = program_of(page)
    monkeypatch.chdir(tmp_path)
    exec(compile(program, page, "exec"), {"__name__": "__main__"})
    assert output in capsys.readouterr().out


@pytest.mark.spark
@pytest.mark.slow
def test_the_page_about_replicas_shows_what_its_program_prints(tmp_path: Path) -> None:
    program, output = program_of("replication.md")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert output in done.stdout


@pytest.mark.many
def test_the_tests_on_the_page_about_testing_pass(tmp_path: Path) -> None:
    """The first block is a whole file of tests; the others begin where it ends."""
    whole, *others = re.findall(r"```python\n(.*?)```", (DOCS / "testing-flows.md").read_text(), re.DOTALL)
    build = "flow = build(testing.source(CLICKS, []), md.memory())\n"
    pieces = [f"\n\ndef test_block_{n}(tmp_path):\n" + textwrap.indent(build + block, "    ") for n, block in enumerate(others)]
    (tmp_path / "test_page.py").write_text(whole + "".join(pieces))
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "--basetemp=tmp", "test_page.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{whole.count('def test_') + len(others)} passed" in done.stdout


def test_the_operators_of_other_systems_are_written_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks together are one flow, which is checked as a whole."""
    monkeypatch.chdir(tmp_path)
    for folder in ("orders", "payments", "prices"):
        Path(folder).mkdir()
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", (DOCS / "coming-from.md").read_text(), re.DOTALL):
        exec(block, names)
    read = {name for node in names["flow"]._nodes.values() for name in node.inputs}
    for stream in [found for found in names.values() if isinstance(found, md.Stream) and found.name not in read]:
        stream.sink(f"{stream.name}_out", md.discard())
    explained = names["flow"].explain()
    assert all(operator in explained for operator in ("per_window", "paid", "priced", "unpaid", "newest", "with_price"))


def test_the_flow_of_the_readme_is_a_valid_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", (DOCS.parent / "README.md").read_text(), re.DOTALL)[0], names)
    assert [node.name for node in names["flow"].plan().nodes] == ["orders", "positive", "totals", "out"]


LONGEST_LINE = 100
ROOT = DOCS.parent
WRAPPED = [*("README.md", "CHANGELOG.md", "CONTRIBUTING.md"), *(str(page.relative_to(ROOT)) for page in sorted(DOCS.rglob("*.md")))]
"""Pages whose prose is wrapped; tables and blocks of code are not."""


@pytest.mark.parametrize("page", WRAPPED)
def test_lines_of_prose_are_short(page: str) -> None:
    prose = re.sub(r"^\s*```.*?^\s*```$", "", (DOCS.parent / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    assert not [line for line in prose.splitlines() if len(line) > LONGEST_LINE and not line.startswith("|")]


def test_names_on_the_page_of_other_systems_are_public() -> None:
    page = (DOCS / "coming-from.md").read_text()
    missing = {name for name in re.findall(r"\bmd\.(\w+)", page) if name not in md.__all__}
    assert not missing
    methods = {name for owner in (md.Stream, md.KeyedStream, md.Run, WindowedStream) for name in dir(owner)}
    here = {row.split("|")[2] for row in page.splitlines() if row.startswith("| ")}
    named = {name for cell in here for name in re.findall(r"(?:^|[ `])(?:run)?\.(\w+)", cell)}
    assert not named - methods

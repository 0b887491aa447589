"""The distribution is called `meander-streaming`: `meander` in the Python index belongs to another project."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import meander as md

ROOT = Path(__file__).resolve().parents[1]
READ = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "pyproject.toml", ".ci/run")),
    *(file for folder in ("src", "docs", "scripts", "examples") for file in sorted((ROOT / folder).rglob("*"))),
]
OTHER_PROJECT = re.compile(r"\bmeander\[|\binstall\b[^\n`]*[ \t'\"]meander(?![-\w./:]|\s*=\s)|^name = \"meander\"", re.MULTILINE)
"""An extra of `meander`, or a line that installs it."""


def project() -> dict[str, object]:
    found: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def test_the_distribution_has_a_name_of_its_own_and_the_command_keeps_its_name() -> None:
    assert project()["name"] == "meander-streaming"
    assert project()["scripts"] == {"meander": "meander.cli.main:main"}
    assert project()["version"] == md.__version__


def test_nothing_tells_a_reader_to_install_the_other_project() -> None:
    wrong = []
    for file in READ:
        if file.is_file() and file.suffix != ".pyc":
            wrong += [f"{file.relative_to(ROOT)}: {found[0]}" for found in OTHER_PROJECT.finditer(file.read_text())]
    assert not wrong, "\n".join(wrong)


def test_an_install_line_of_the_other_project_is_found() -> None:
    for line in ("pip install meander", "pip install 'meander[s3]'", "uv pip install -U meander>=0.1", "needs meander[redis]"):
        assert OTHER_PROJECT.search(line), line
    for line in ("pip install meander-streaming", "pip install 'meander-streaming[s3]'", "pip install -e .  # has the command meander.cli"):
        assert not OTHER_PROJECT.search(line), line


def test_an_extra_that_is_named_to_a_reader_exists() -> None:
    extras = project()["optional-dependencies"]
    assert isinstance(extras, dict)
    named = {
        name
        for file in READ
        if file.is_file() and file.suffix in {".py", ".md"}
        for name in re.findall(r"meander-streaming\[([\w-]+)\]", file.read_text())
    }
    assert named
    assert named <= extras.keys()

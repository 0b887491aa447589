"""The changes in docs/extending.md apply to the package as it is, touch two files of it at most, and do what the page says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "extending.md"
FEW_LINES = 100


class Task(NamedTuple):
    """A section of the page: a change, a program, and what it prints."""

    name: str
    diff: str
    program: str
    output: str


def tasks() -> list[Task]:
    found = []
    for section in PAGE.read_text().split("\n## ")[1:]:
        blocks = dict(re.findall(r"^```(\w*)\n(.*?)^```$", section, re.DOTALL | re.MULTILINE))
        found.append(Task(section.partition("\n")[0], blocks["diff"], blocks["python"], blocks[""]))
    return found


TASKS = {task.name: task for task in tasks()}


def changed(task: Task, folder: Path) -> dict[str, str]:
    """A copy of the package with the change in it: the environment in which Python finds that copy."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    apply = ["git", "apply", "--whitespace=error-all", "-"]
    # In a folder that is inside another repository git would leave out what is not of that one.
    outside = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    done = subprocess.run(apply, cwd=folder, input=task.diff, text=True, capture_output=True, check=False, env=outside)
    assert done.returncode == 0, f"the change of {task.name!r} does not fit the package any more: {done.stderr}"
    return {**os.environ, "PYTHONPATH": str(folder / "src")}


def test_the_page_has_the_four_tasks() -> None:
    assert list(TASKS) == ["A sink", "An aggregate", "A store", "A migration strategy"]


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_a_change_is_small_and_touches_two_files_at_most(task: Task) -> None:
    files = re.findall(r"^\+\+\+ b/(\S+)$", task.diff, re.MULTILINE)
    assert all(file.startswith("src/meander/") for file in files)
    assert 1 <= len(files) <= (1 if task.name == "An aggregate" else 2)
    assert len(re.findall(r"^[+-](?![+-])", task.diff, re.MULTILINE)) <= FEW_LINES


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_a_change_does_what_the_page_says(task: Task, tmp_path: Path) -> None:
    environment = changed(task, tmp_path)
    program = f"import meander\nassert meander.__file__.startswith({str(tmp_path)!r}), meander.__file__\n{task.program}"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=200, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == task.output


def test_the_new_store_passes_the_tests_of_all_stores(tmp_path: Path) -> None:
    environment = {**changed(TASKS["A store"], tmp_path), "MEANDER_TEST_STORE": "sqlite://{folder}/state.db"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n0",
        "-p",
        "no:cacheprovider",
        "--basetemp",
        str(tmp_path / "tmp"),
        "tests/state/test_store.py",
    ]
    chosen = "sqlite and not processes and not killed"  # these two take half a minute each, on any store
    done = subprocess.run([*command, "-k", chosen], cwd=ROOT, capture_output=True, text=True, timeout=280, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    (passed,) = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) >= 5


def test_a_strategy_is_known_wherever_strategies_are_named(tmp_path: Path) -> None:
    """Also by the command line and the HTTP API: they have no lists of their own."""
    environment = changed(TASKS["A migration strategy"], tmp_path)
    program = (
        "from meander.cli.main import main\nfrom meander.control.api import Rescale\n"
        "print(Rescale(operator='a', parallelism=2, strategy='small_first').strategy)\nmain(['rescale', '--help'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=200, env=environment, check=False
    )
    assert done.stdout.startswith("small_first\n"), done.stderr
    assert "hybrid,small_first" in done.stdout

"""The map of the package is true: every room is on it, says where to begin reading, and the walk of an event is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "meander"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
FOLDERS = sorted(str(file.parent.relative_to(PACKAGE)) for file in PACKAGE.rglob("__init__.py") if file.parent != PACKAGE)
OF_ONE_KIND = {"nexmark", "nexmark/queries", "task/operators"} | {f for f in FOLDERS if re.match(r"bench/(?!harness|load)", f)}
"""Folders whose docstring is about their subject: their files are many of one kind."""
LONGEST_WALK = 20


def section(title: str) -> str:
    return re.split(r"^#+ ", PAGE.partition(f" {title}\n")[2], flags=re.MULTILINE)[0]


def docstring(folder: str) -> str:
    return ast.get_docstring(ast.parse((PACKAGE / folder / "__init__.py").read_text())) or ""


def test_every_room_is_on_the_map_and_no_other() -> None:
    cells = [row.split("|")[1] for row in section("Map of the package").splitlines() if row.startswith("| `")]
    shown = {name.rstrip("/") for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    files = {file.name for file in PACKAGE.glob("*.py") if file.name != "__init__.py"}
    assert shown == files | {folder for folder in FOLDERS if "/" not in folder}


def test_every_room_has_its_place_in_the_order_of_imports() -> None:
    drawn = re.findall(r"^```\n(.*?)^```$", section("Map of the package"), re.DOTALL | re.MULTILINE)[0]
    rooms = {file.stem for file in PACKAGE.glob("*.py") if file.name != "__init__.py"}
    assert sorted(re.findall(r"\w+", drawn)) == sorted(rooms | {folder for folder in FOLDERS if "/" not in folder})


def test_the_walk_of_an_event_passes_files_that_exist_and_few_of_them() -> None:
    walk = re.findall(r"^\|[^|]*\| `([^`]+)` \|", section("A walk of one event, file by file"), re.MULTILINE)
    assert 0 < len(walk) <= LONGEST_WALK
    assert len(walk) == len(set(walk))
    assert not [file for file in walk if not (PACKAGE / file).is_file()]


@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if folder not in OF_ONE_KIND])
def test_a_room_says_where_to_begin_reading(folder: str) -> None:
    begin = docstring(folder).partition("Begin with ")[2]
    named = re.findall(r"``([\w/]+\.py|[\w/]+/)``", begin)
    assert named, f"{folder}/__init__.py: where does one begin reading?"
    assert not [name for name in named if not (PACKAGE / folder / name).exists()]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_room_names_only_files_that_exist(folder: str) -> None:
    text = docstring(folder)
    assert text
    named = re.findall(r"``((?:[\w]+/)*\w+\.py)``", text)
    places = [ROOT, PACKAGE, PACKAGE / folder]
    assert not [name for name in named if not any((place / name).is_file() for place in places)]

"""The glossary has the words of the code, and the code uses the words of the glossary."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "meander"
ROWS = re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
SOURCES = {str(file.relative_to(PACKAGE)): file.read_text() for file in sorted(PACKAGE.rglob("*.py"))}

# The rooms in which things of this domain are named; benchmarks and commands have words of their own.
ROOMS = {
    "aggregates", "cache", "connect", "control", "coordinate", "epochs", "plan", "processor", "replicate", "state", "task", "testing",
}  # fmt: skip
# Words in names of classes that mean what they mean in any program.
ORDINARY = {
    "aggregation", "back", "code", "columns", "counting", "file", "found", "input", "joining", "latest", "once", "opened", "pairs",
    "parser", "piece", "process", "reader", "ref", "rows", "server", "started", "time",
}  # fmt: skip
# Identifiers that had to be explained, and what is said instead.
RIDDLES = {
    "backroom": "background", "coded": "with code", "courtesy": "priority", "desk": "the part's own name", "household": "replicas",
    "percall": "per call", "seat": "slot", "told": "what it is: data, notices, an answer", "unwinding": "exit",
}  # fmt: skip
NOT_YET = {"task/operators/windows/time.py"}
"""A column of stored state is called so."""


def words(name: str) -> list[str]:
    """
    >>> words("TimeWindowTop"), words("_steward_of")
    (['time', 'window', 'top'], ['steward', 'of'])
    """
    return [word.lower() for word in re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+", name)]


def identifiers(text: str) -> set[str]:
    """The names of functions, classes, arguments, variables and attributes."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                found.add(name)
    return found


def test_every_word_has_one_row_and_a_meaning() -> None:
    named = [word for word, _ in ROWS]
    assert len(named) == len(set(named)) > 50
    assert all(meaning.strip() for _, meaning in ROWS)


def test_the_code_uses_every_word_of_the_glossary() -> None:
    """In its text: some words are of documents and messages, and name nothing in the code."""
    text = " ".join(SOURCES.values()).lower()
    assert not [word for word, _ in ROWS if not re.search(rf"\b{re.escape(word)}", text.replace("_", " "))]


def test_what_several_modules_name_classes_for_is_in_the_glossary() -> None:
    """The last word of a class's name says what kind of thing it is. One that names such things in two modules is a word of the domain,
    or an ordinary one: whoever brings a new one in decides which, and writes it down."""
    modules: dict[str, set[str]] = defaultdict(set)
    for name, text in SOURCES.items():
        if name.partition("/")[0] in ROOMS:
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef):
                    modules[words(node.name)[-1]].add(name)
    known = {part for word, _ in ROWS for part in words(word)}
    unknown = {
        word: sorted(found)
        for word, found in modules.items()
        if len(found) > 1 and not {word, word.removesuffix("s"), f"{word}s"} & known and word not in ORDINARY
    }
    assert not unknown


def test_riddles_are_not_names() -> None:
    found = {
        (name, identifier): RIDDLES[word]
        for name, text in SOURCES.items()
        if name not in NOT_YET
        for identifier in identifiers(text)
        for word in words(identifier)
        if word in RIDDLES
    }
    assert not found

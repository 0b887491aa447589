"""Documents and public docstrings are written plainly: sentences have a noun as their subject, and lines end in time.

A headless relative clause ("Who is released is drained first") makes a reader look for its noun. These rules find the
commonest forms, and nothing that a plain sentence needs: questions, and "what" inside of a sentence, are left alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "meander"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

BEGIN = r"(?:^|(?<=[.!?:;] )|(?<=[.!?]\*\* ))"
HEADLESS = re.compile(
    BEGIN
    + r"(?:\*\*)?(?:"
    + r"(?:Who|Whoever|Whom|Whose|Of what|In what|One that|Ones that|Those who)\b(?![^.!?]*\?)"
    + r"|What (?!follows\.)[^.!?]{3,}?(?=[.!])"
    + r"|(?:(?<=[:;] )(?:who|whoever)|(?<=; )one that) [^.!?]*?\b(?:is|has|was|does|goes|comes|must|may)\b"
    + r")"
)
"""A sentence, or a part of one behind a colon or semicolon, whose subject is a relative clause without a noun."""


def paragraphs(page: str) -> Iterator[str]:
    """The prose of a page: no code, no tables, no headings."""
    prose = re.sub(r"^\s*```.*?^\s*```$", "", page, flags=re.DOTALL | re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", prose):
        lines = [line.strip() for line in paragraph.splitlines() if not line.lstrip().startswith(("|", "#", "<"))]
        yield re.sub(r"^(?:[-*]|\d+\.) ", "", " ".join(lines).strip())


def docstrings(file: Path) -> Iterator[tuple[str, str]]:
    """Of the module, and of every public class and function in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            name = getattr(node, "name", "")
            text = ast.get_docstring(node)
            if text and not name.startswith("_"):
                yield name or "module", text


def headless(text: str) -> list[str]:
    return [paragraph[found.start() :][:90] for paragraph in paragraphs(text) for found in HEADLESS.finditer(paragraph)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_written_in_sentences_with_subjects(page: Path) -> None:
    assert not headless(page.read_text())


def test_public_docstrings_are_written_in_sentences_with_subjects() -> None:
    found = [
        f"{file.relative_to(ROOT)}, {name}: {sentence}"
        for file in sorted(PACKAGE.rglob("*.py"))
        for name, text in docstrings(file)
        for sentence in headless(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "sentence",
    [
        "Who is released is drained first.",
        "One that others are looked at instead of for long is let go.",
        "What may be state is not removed when a merge's entry was not answered.",
        "**Whoever does not answer** is asked again.",
        "The lock is gone: whoever asks next has it.",
        "A key of old rows is kept; one that comes back is neither.",
    ],
)
def test_a_headless_sentence_is_found(sentence: str) -> None:
    assert headless(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "Executors are drained before release.",
        "The message says what happened, and what to do next.",
        "What is an epoch? One round over a fixed piece of the input.",
        "**What follows.** A reader that fetches by ranges gets 2 MB at a time.",
        "Rows that come too late go to the dead letters; the flow says who wrote them.",
        "There are two strategies: one that waits, and one that does not.",
    ],
)
def test_a_plain_sentence_is_no_finding(sentence: str) -> None:
    assert not headless(sentence)

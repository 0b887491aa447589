"""The site's reference has every public name, each of them once, and its navigation has every page."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import meander as md
from meander import testing

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def test_every_public_name_is_on_one_page_of_the_reference() -> None:
    pages = sorted((DOCS / "reference").glob("*.md"))
    named = Counter(name for page in pages for name in re.findall(r"^::: meander\.(\S+)$", page.read_text(), re.MULTILINE))
    assert sorted(named) == sorted([*md.__all__, *(f"testing.{name}" for name in testing.__all__)])
    assert set(named.values()) == {1}


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r"[\w/.-]+\.md", navigation)
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_the_site_asks_the_network_for_nothing() -> None:
    """Web fonts would; and so would diagrams, whose renderer the theme fetches."""
    assert re.search(r"^  font: false", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert not [page for page in DOCS.rglob("*.md") if "```mermaid" in page.read_text()]

"""The words we agreed to avoid, sentences that are too long, and code that does not fit its column."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md")) + [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
SOURCES = sorted((ROOT / "src").rglob("*.py"))

AVOID = {
    r"unless given": "by default …",
    r"(?:a|one) (?:row|line|cell|task|process|thread) an? (?:agent|cell|task|seed|core)": "one row per agent",
    r"lies? still": "finite datasets",
    r"goes? without": "agents without a new batch",
    r"whosoever|thereof|therein|hitherto|heretofore|wherein": "a usual word",
    r"no attack is like another": "all attacks coincide",
    r"so long (?:as )?nothing": "until …",
    r"what cannot do": "what cannot fit",
    r"is no (?:message|number|folder|file|study|rule)\b": "is not a …",
    r"liars?": "Byzantine agents",
}
"""Patterns, and what to write instead."""
LONGEST = 35
"""Words in a sentence."""
COLUMN = 88
"""Characters in a line of code in the manual."""


def prose(page: Path) -> Iterator[str]:
    """The paragraphs of a page: no code, tables, headings, images or addresses."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->|^ {4,}\S.*$", "", text, flags=re.DOTALL | re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*|#>]|\d+\.) ?)", text):
        if not re.match(r"\s*(?:\||#|!\[|\{\{|:::|<)", paragraph):
            yield re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))


def sentences(paragraph: str) -> list[str]:
    return re.split(r"(?<=[.!?:;])\s+(?=[^a-z])", re.sub(r"`[^`]*`", "Code", paragraph))


def words_in(source: Path) -> Iterator[tuple[int, str]]:
    """The docstrings and comments of a file, with their lines."""
    text = source.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sentences_of_the_manual_are_short(page: Path) -> None:
    long = [one for part in prose(page) for one in sentences(part) if len(one.split()) > LONGEST]
    assert not long


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_of_the_manual_fits_its_column(page: Path) -> None:
    blocks = re.findall(r"^```.*?^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    wide = [line for block in blocks for line in block.splitlines() if len(line) > COLUMN]
    assert not wide


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_manual_uses_usual_words(page: Path) -> None:
    assert not list(_avoided((0, part) for part in prose(page)))


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: str(source.relative_to(ROOT / "src")))
def test_the_code_uses_usual_words(source: Path) -> None:
    assert not list(_avoided(words_in(source)))


def _avoided(texts: Iterator[tuple[int, str]]) -> Iterator[str]:
    for line, text in texts:
        for pattern, instead in AVOID.items():
            for found in re.finditer(rf"\b(?:{pattern})\b", " ".join(text.split()), flags=re.IGNORECASE):
                yield f"line {line}: {found[0]!r}: write {instead!r}"

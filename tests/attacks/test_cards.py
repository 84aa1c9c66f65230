"""Every attack has a complete card that is easy to read."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from varangian import attacks
from varangian.experiments.cards import Card, card_of

ATTACKS = [
    value
    for value in (getattr(attacks, name) for name in attacks.__all__ if name.islower())
    if dataclasses.is_dataclass(value)
]
FOLDER = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def equations() -> ModuleType:
    """docs/ is not a package."""
    spec = importlib.util.spec_from_file_location("equations", FOLDER / "docs" / "equations.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?])\s+", " ".join(text.split()))


def texts(card: Card) -> Iterator[str]:
    yield from (card.summary, card.text, card.knows, card.cost, card.reference)
    yield from (parameter.about for parameter in card.parameters)


def test_there_are_attacks() -> None:
    assert len(ATTACKS) >= 28


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_card_is_complete(attack: Any) -> None:
    card = card_of(attack)
    assert card.missing == []
    assert card.knows and not card.assumes


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_equation_can_be_typeset(attack: Any, equations: ModuleType) -> None:
    for line in card_of(attack).equation:
        assert equations.mathml(line).startswith("<math")
        # A word that is left in italics reads as a product of letters.
        assert "{frac" not in equations.to_latex(line) and "{sqrt" not in equations.to_latex(line)


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_summary_is_one_short_sentence(attack: Any) -> None:
    summary = card_of(attack).summary
    assert len(sentences(summary)) == 1 and summary.endswith(".")
    assert len(summary.split()) <= 25


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_sentence_is_long(attack: Any) -> None:
    for text in texts(card_of(attack)):
        for sentence in sentences(text):
            assert len(sentence.split()) <= 35, sentence


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_example_shows_the_attack(attack: Any) -> None:
    example = card_of(attack).example
    assert example.startswith(">>> ") and f"attacks.{attack.__name__}(" in example


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_reference_is_a_paper_or_says_what_it_stands_for(attack: Any) -> None:
    reference = card_of(attack).reference
    assert re.search(r"https://(arxiv\.org|doi\.org|github\.com)/", reference) or (
        reference.startswith(("Ours. It stands for ", "Folklore. It stands for "))
    )

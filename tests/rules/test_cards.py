"""Every rule has a complete card, and people can read it."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from varangian import rules
from varangian.experiments.cards import Card, card_of

RULES = [rule for name in rules.__all__ if dataclasses.is_dataclass(rule := getattr(rules, name)) and name.islower()]
LONGEST_SUMMARY, LONGEST_SENTENCE, LONGEST_EQUATION, LONGEST_CODE = 25, 35, 60, 88


def test_all_rules_are_looked_at() -> None:
    assert len(RULES) == len([name for name in rules.__all__ if name.islower()]) > 25


@pytest.mark.parametrize("rule", RULES)
def test_the_card_is_complete(rule: type[Any]) -> None:
    assert card_of(rule).missing == []


@pytest.mark.parametrize("rule", RULES)
def test_the_equation_can_be_typeset(rule: type[Any]) -> None:
    equations = load_equations()
    for line in card_of(rule).equation:
        assert len(line) <= LONGEST_EQUATION, f"too long for a small screen: {line}"
        found = equations.mathml(line)
        assert found.startswith("<math") and "merror" not in found


@pytest.mark.parametrize("rule", RULES)
def test_sentences_are_short(rule: type[Any]) -> None:
    card = card_of(rule)
    assert len(sentences(card.summary)) == 1 and card.summary.endswith(".")
    assert len(card.summary.split()) <= LONGEST_SUMMARY
    for sentence in sentences(prose(card)):
        assert len(sentence.split()) <= LONGEST_SENTENCE, sentence


@pytest.mark.parametrize("rule", RULES)
def test_descriptions_are_sentences(rule: type[Any]) -> None:
    card = card_of(rule)
    for text in (card.assumes, card.cost, *(one.about for one in card.parameters)):
        assert text.endswith("."), text


@pytest.mark.parametrize("rule", RULES)
def test_the_example_uses_the_rule_and_fits_its_column(rule: type[Any]) -> None:
    example = card_of(rule).example
    assert f"rules.{rule.__name__}(" in example
    code = [line for line in example.splitlines() if line.startswith(">>>")]
    assert code and max(map(len, code)) <= LONGEST_CODE


@pytest.mark.parametrize("rule", RULES)
def test_a_reference_has_an_address(rule: type[Any]) -> None:
    reference = card_of(rule).reference
    assert re.search(r"https?://[\w.]+/\S+", reference), reference
    assert re.search(r"\b(19|20)\d\d\b", reference), "a year"


def test_sentences_end_where_they_should() -> None:
    assert sentences("One, as in eq. 9 of Li et al. 2020. Two: f = 0.5 is a share. `three` is code.") == [
        "One, as in eq. 9 of Li et al. 2020.",
        "Two: f = 0.5 is a share.",
        "`three` is code.",
    ]


def prose(card: Card) -> str:
    return " ".join((card.text, card.assumes, card.cost, *(one.about for one in card.parameters)))


def sentences(text: str) -> list[str]:
    """Text between full stops; those of numbers and abbreviations do not count."""
    flat = " ".join(text.split())
    return re.split(r"(?<!\beq\.)(?<!\bal\.)(?<=[.!?])\s+", flat)


def load_equations() -> ModuleType:
    """docs/ is not a package, so its module is loaded by path."""
    path = Path(__file__).parents[2] / "docs" / "equations.py"
    spec = importlib.util.spec_from_file_location("equations", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

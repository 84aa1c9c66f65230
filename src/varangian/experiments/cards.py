"""One card for every rule and attack, read from its docstring.

One docstring serves three readers: `help()` in Python, `varangian rules NAME` in a terminal, and the pages of the
manual. This is the template:

    \"\"\"What it does, in one sentence.

    Equation:
        θ_k = Σ_l a_lk θ̂_l

    Other important facts, in short sentences.

    Assumes: What it needs of the neighbours.      (a rule; an attack has `Knows:`)
    Cost: What one agent computes in one round.

    Example:
        >>> from varangian import rules
        >>> rules.average()
        average()

    Reference:
        Authors, "Title", where and when. https://address.of/the-paper
    \"\"\"

The parameters are the fields of the class. The string below a field describes it.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

BLOCKS = ("Equation", "Example", "Reference")
"""Sections with an indented block below their name."""
LINES = ("Assumes", "Knows", "Cost")
"""Sections that are one paragraph."""


@dataclass(frozen=True)
class Parameter:
    """One field of a rule or an attack."""

    name: str
    type: str
    default: str
    about: str


@dataclass(frozen=True)
class Card:
    """The documentation of a rule or an attack."""

    name: str
    """The name as typed on the command line, without the file that it is in."""
    summary: str
    equation: tuple[str, ...]
    text: str
    assumes: str
    """For a rule: what it needs of the neighbours."""
    knows: str
    """For an attack: what the adversary knows."""
    cost: str
    parameters: tuple[Parameter, ...]
    example: str
    reference: str

    @property
    def missing(self) -> list[str]:
        """The sections and descriptions that are missing."""
        either = {"Assumes or Knows": self.assumes or self.knows}
        needed = {"Equation": self.equation, "Cost": self.cost, "Example": self.example, "Reference": self.reference}
        undescribed = [f"a description of {one.name}" for one in self.parameters if not one.about]
        return [name for name, value in (either | needed).items() if not value] + undescribed


def card_of(value: type[Any]) -> Card:
    """The card of a rule's or an attack's class.

    >>> from varangian import rules
    >>> card_of(rules.loss_based).name
    'loss-based'
    """
    sections = dict(_sections(inspect.getdoc(value) or ""))
    summary, _, text = sections.get("", "").partition("\n\n")
    return Card(
        name=value.__name__.replace("_", "-"),
        summary=_one_line(summary),
        equation=tuple(line.strip() for line in sections.get("Equation", "").splitlines() if line.strip()),
        text=text.strip(),
        assumes=_one_line(sections.get("Assumes", "")),
        knows=_one_line(sections.get("Knows", "")),
        cost=_one_line(sections.get("Cost", "")),
        parameters=tuple(_parameters(value)),
        example=sections.get("Example", ""),
        reference=_one_line(sections.get("Reference", "")),
    )


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """The name and text of each section. Text outside all sections has the empty name."""
    free: list[str] = []
    paragraphs = re.split(r"\n\s*\n", text)
    name, block = "", list[str]()
    for paragraph in paragraphs:
        head = re.match(rf"({'|'.join((*BLOCKS, *LINES))}):(?=\s)", paragraph)
        if name in BLOCKS and not head and paragraph.startswith("    "):
            block.append(textwrap.dedent(paragraph))
            continue
        if name:
            yield name, "\n\n".join(block)
        name, block = "", []
        if not head:
            free.append(paragraph)
            continue
        # `Assumes: …` and `Cost: …` may follow each other without an empty line.
        for part in re.split(rf"\n(?=(?:{'|'.join((*BLOCKS, *LINES))}):(?:\s))", paragraph):
            if name:
                yield name, "\n\n".join(block)
            name, _, rest = part.partition(":")
            block = [textwrap.dedent(rest.strip("\n"))] if name in BLOCKS else [rest]
    if name:
        yield name, "\n\n".join(block)
    yield "", "\n\n".join(free)


def _parameters(value: type[Any]) -> Iterator[Parameter]:
    about = described_fields(value)
    if not dataclasses.is_dataclass(value):
        for taken in inspect.signature(value).parameters.values():
            kind, default = ("" if one is taken.empty else one for one in (taken.annotation, taken.default))
            yield Parameter(taken.name, str(kind), repr(default) if default != "" else "required", "")
        return
    for one in dataclasses.fields(value):
        default = one.default
        if one.default_factory is not dataclasses.MISSING:
            default = one.default_factory()
        shown = "required" if default is dataclasses.MISSING else repr(default)
        yield Parameter(one.name, str(one.type), shown, about.get(one.name, ""))


def described_fields(value: type[Any]) -> dict[str, str]:
    """The string below each field of a class, and of the classes it inherits from."""
    found: dict[str, str] = {}
    for base in reversed(value.__mro__[:-1]):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError):  # a class without a file, such as one typed into a notebook
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for field, text in pairwise(body):
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                continue
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[field.target.id] = _one_line(str(text.value.value))
    return found


def _one_line(text: str) -> str:
    return " ".join(text.split())

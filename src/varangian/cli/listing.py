"""`varangian rules|attacks|studies`: a list with one line each, or one full card."""

from __future__ import annotations

import json as to_json
import shutil
import sys
import textwrap
from dataclasses import asdict
from types import ModuleType
from typing import Annotated, Any

import typer

import varangian
from varangian.core.errors import unknown
from varangian.experiments import cards, spec
from varangian.experiments.spec import catalogue, first_line

Name = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="Show its card: equation, parameters, cost, example, reference.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def rules(name: Name = None, json: AsJson = False) -> None:
    """List the rules, by which agents combine models, or show the card of one.

    varangian rules

    varangian rules loss-based
    """
    if name is None:
        listing(varangian.rules, json)
    else:
        show_card(varangian.rules, "rule", name, json)


def attacks(name: Name = None, json: AsJson = False) -> None:
    """List the attacks of Byzantine agents, or show the card of one.

    varangian attacks

    varangian attacks alie
    """
    if name is None:
        listing(varangian.attacks, json)
    else:
        show_card(varangian.attacks, "attack", name, json)


def studies(json: AsJson = False) -> None:
    """List the studies: what agents learn, and on which network."""
    listing(varangian.studies, json)


def listing(package: ModuleType, as_json: bool) -> None:
    """Print the name and the description of everything that a package offers."""
    offered = sorted(catalogue(package).items())
    rows = [{"name": name} | _knowledge(value) | {"description": first_line(value)} for name, value in offered]
    if as_json:
        print(to_json.dumps(rows, indent=2))
        return
    cells = [[_words(cell) if isinstance(cell, tuple) else cell for cell in row.values()] for row in rows]
    if not sys.stdout.isatty():
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        widths[-1] = 0
        for row in cells:
            print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*rows[0], box=None, show_header="knows" in rows[0], header_style="dim", padding=(0, 2, 0, 0))
    for name, *others in cells:
        table.add_row(Text(name, "bold"), *map(Text, others))  # not markup: [low, high] is no style
    Console().print(table)


def _words(knowledge: tuple[Any, ...]) -> str:
    return varangian.attacks.base.in_words(knowledge)


def _knowledge(value: type[Any]) -> dict[str, Any]:
    """What an attack knows. A rule and a study have no such column."""
    return {"knows": varangian.attacks.knowledge_of(value())} if hasattr(value, "send") else {}


def show_card(package: ModuleType, kind: str, name: str, as_json: bool) -> None:
    """Print the card of one rule or attack."""
    offered = catalogue(package)
    if spec.tidied(name) not in offered:
        raise unknown(kind, name, offered)
    value = offered[spec.tidied(name)]
    card, declared = cards.card_of(value), _knowledge(value)
    if as_json:
        knowledge = {"knowledge": declared["knows"]} if declared else {}
        print(to_json.dumps(asdict(card) | knowledge, indent=2, ensure_ascii=False))
        return
    print(f"{card.name}: {card.summary}\n")
    print("\n".join(f"    {line}" for line in card.equation) + "\n")
    width = min(100, shutil.get_terminal_size().columns)
    for paragraph in card.text.split("\n\n"):
        print(textwrap.fill(" ".join(paragraph.split()), width) + "\n")
    kinds = _words(declared["knows"]) if declared else ""
    sections = {"Assumes": card.assumes, "Knowledge": kinds, "Knows": card.knows, "Cost": card.cost}
    for title, text in sections.items():
        if text:
            print(textwrap.fill(f"{title}: {text}", width))
    for parameter in card.parameters:
        about = f"  {parameter.name} = {parameter.default}: {parameter.about}"
        print(textwrap.fill(about, width, subsequent_indent="      "))
    print("\n" + textwrap.indent(card.example, "    ") + "\n")
    print(textwrap.fill(f"Reference: {card.reference}", width, break_long_words=False, break_on_hyphens=False))

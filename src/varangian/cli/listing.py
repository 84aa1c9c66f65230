"""`varangian rules|attacks|studies`: a list with one line each, or one full card."""

from __future__ import annotations

import json as to_json
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

import varangian
from varangian import experiments
from varangian.core.errors import BadInput
from varangian.experiments import cards, spec
from varangian.experiments.spec import first_line

if TYPE_CHECKING:
    from varangian.experiments import own_code

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME|FILE.py]",
        help="Show its card: equation, parameters, cost, example, reference. A file with several shows a list of them.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def rules(name: Name = None, json: AsJson = False) -> None:
    """List the rules, by which agents combine models, or show the card of one.

    varangian rules

    varangian rules loss-based

    varangian rules mine.py:exponential
    """
    show("rule", name, json)


def attacks(name: Name = None, json: AsJson = False) -> None:
    """List the attacks of Byzantine agents, or show the card of one.

    varangian attacks

    varangian attacks alie

    varangian attacks mine.py:nudge
    """
    show("attack", name, json)


def studies(name: Name = None, json: AsJson = False) -> None:
    """List the studies: what agents learn, and on which network. With a name, show the settings of one.

    varangian studies

    varangian studies target-localization

    varangian studies mystudy.py
    """
    show("study", name, json)


def show(kind: own_code.Kind, name: str | None, as_json: bool) -> None:
    """Print everything of a kind, or everything in a file, or the card of one."""
    offered = experiments.own_code.Offered((kind,))
    if name is None:
        print_rows([_row(one, offered, kind) for one in sorted(offered)], as_json)
        for left_out in experiments.own_code.shadowed(kind):
            print(f"varangian: {left_out}", file=sys.stderr)
        return
    label, _ = spec.headed(name)
    if spec.is_place(label):
        members = experiments.own_code.members_of(offered.module(label)[0], kind)
        if len(members) > 1:
            print_rows([_row(one, members, kind) for one in members], as_json)
            return
    if label not in offered:
        raise spec.no_such(kind, label, offered)
    value = offered[label]
    show_card(value if isinstance(value, type) else type(value), label, as_json)


def _row(name: str, among: Mapping[str, Any], kind: own_code.Kind) -> dict[str, Any]:
    """The name, what an attack knows, the description. What cannot be loaded says why."""
    try:
        found = among[name]
        value = found if isinstance(found, type) else type(found)
        knowledge = _knowledge(value)
    except BadInput as error:
        knows = {"knows": ()} if kind == "attack" else {}
        return {"name": name} | knows | {"description": f"cannot be loaded: {error}"}
    package = experiments.own_code.announced(kind).get(name)
    source = {} if package is None else {"package": experiments.own_code.provider(package)}
    return {"name": name} | knowledge | {"description": first_line(value)} | source


def print_rows(rows: Sequence[dict[str, Any]], as_json: bool) -> None:
    """Print one line for each row, as a table or as JSON."""
    if as_json:
        print(to_json.dumps(rows, indent=2))
        return
    shown = [row | {"description": " ".join((row["description"], *_package(row)))} for row in rows]
    cells = [[_words(v) if isinstance(v, tuple) else v for k, v in row.items() if k != "package"] for row in shown]
    if not sys.stdout.isatty():
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        widths[-1] = 0
        for row in cells:
            print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    heads = [head for head in rows[0] if head != "package"]
    table = Table(*heads, box=None, show_header="knows" in heads, header_style="dim", padding=(0, 2, 0, 0))
    for name, *others in cells:
        table.add_row(Text(name, "bold"), *map(Text, others))  # not markup: [low, high] is no style
    Console().print(table)


def _package(row: dict[str, Any]) -> list[str]:
    return [f"({row['package']})"] if "package" in row else []


def _words(knowledge: tuple[Any, ...]) -> str:
    return varangian.attacks.base.in_words(knowledge)


def _knowledge(value: type[Any]) -> dict[str, Any]:
    """What an attack knows. A rule and a study have no such column."""
    if not hasattr(value, "send"):
        return {}
    return {"knows": varangian.attacks.knowledge_of(spec.with_settings(value, {}, f"attack {value.__name__}"))}


def show_card(value: type[Any], label: str, as_json: bool) -> None:
    """Print the card of one rule, attack or study. What its docstring does not have is left out."""
    card, declared = cards.card_of(value), _knowledge(value)
    if as_json:
        knowledge = {"knowledge": declared["knows"]} if declared else {}
        print(to_json.dumps(asdict(card) | knowledge, indent=2, ensure_ascii=False))
        return
    width = min(100, shutil.get_terminal_size().columns)
    blocks = [f"{label}: {card.summary}", "\n".join(f"    {line}" for line in card.equation)]
    blocks += [textwrap.fill(" ".join(paragraph.split()), width) for paragraph in card.text.split("\n\n")]
    kinds = _words(declared["knows"]) if declared else ""
    sections = {"Assumes": card.assumes, "Knowledge": kinds, "Knows": card.knows, "Cost": card.cost}
    facts = [textwrap.fill(f"{title}: {text}", width) for title, text in sections.items() if text]
    for one in card.parameters:
        about = f"  {one.name} = {one.default}" + (f": {one.about}" if one.about else "")
        facts.append(textwrap.fill(about, width, subsequent_indent="      "))
    blocks += ["\n".join(facts), textwrap.indent(card.example, "    ")]
    if card.reference:
        reference = f"Reference: {card.reference}"
        blocks.append(textwrap.fill(reference, width, break_long_words=False, break_on_hyphens=False))
    print("\n\n".join(filter(None, blocks)))

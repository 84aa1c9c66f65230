"""`varangian rules|attacks|studies`: what there is, one line each."""

from __future__ import annotations

import json as to_json
import sys
from types import ModuleType
from typing import Annotated

import typer

import varangian
from varangian.experiments.spec import catalogue, first_line

AsJson = Annotated[bool, typer.Option("--json", help="As JSON, for programs.")]


def rules(json: AsJson = False) -> None:
    """How agents combine what they hear: the rules there are."""
    listing(varangian.rules, json)


def attacks(json: AsJson = False) -> None:
    """What Byzantine agents send: the attacks there are."""
    listing(varangian.attacks, json)


def studies(json: AsJson = False) -> None:
    """What agents learn, and on which network: the studies there are."""
    listing(varangian.studies, json)


def listing(room: ModuleType, as_json: bool) -> None:
    """Print the name and the description of everything that a package offers."""
    offered = {name: first_line(value) for name, value in sorted(catalogue(room).items())}
    if as_json:
        print(to_json.dumps([{"name": name, "description": text} for name, text in offered.items()], indent=2))
        return
    if not sys.stdout.isatty():
        width = max(map(len, offered))
        print("\n".join(f"{name:<{width}}  {text}" for name, text in offered.items()))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, text in offered.items():
        table.add_row(Text(name, "bold"), Text(text))  # not markup: [low, high] is no style
    Console().print(table)

"""What a room offers, a line each."""

from __future__ import annotations

import json
import sys
from types import ModuleType


def listing(room: ModuleType, as_json: bool) -> None:
    from varangian.experiments.spec import catalogue, first_line

    offered = {name: first_line(value) for name, value in sorted(catalogue(room).items())}
    if as_json:
        print(json.dumps([{"name": name, "description": text} for name, text in offered.items()], indent=2))
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

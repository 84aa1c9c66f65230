"""Options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from varangian.errors import BadInput

What = Annotated[
    str,
    typer.Argument(
        metavar="STUDY|FILE.toml",
        help="A study (see `varangian studies`), or a configuration file such as a run folder's config.toml.",
    ),
]
Byzantine = Annotated[
    list[str] | None,
    typer.Option(help="How many agents are Byzantine: a number, a share (0.2) or which (3,5,8). Repeat to compare."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of the study, such as `agents=1000`. Repeat."),
]
Data = Annotated[Path | None, typer.Option(help="Where to look for data before the cache; the same as VARANGIAN_DATA.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


def pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise BadInput(f"--set takes key=value, but got {text!r}")
    return key.strip(), value.strip()

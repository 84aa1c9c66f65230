"""What the manual adds to Markdown: `{{ card rules.krum }}` is the card of a rule, made from its docstring.

MkDocs calls `on_page_markdown` for every page. Equations are typeset as MathML, which browsers show without scripts.
"""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path
from typing import Any

import varangian
from varangian.attacks.base import in_words, knowledge_of
from varangian.experiments.cards import Card, card_of

sys.path.append(str(Path(__file__).parent))
from equations import mathml

CARD = re.compile(r"^\{\{ card (rules|attacks)\.(\w+) \}\}$", re.MULTILINE)
SYMBOL = re.compile(
    r"`[^`]*`|(?<![\w`])(\|?\w[\u0302\u0303]?_(?:\{[^}]*\}|[A-Za-z0-9]{1,3}\*?)(?![\w(])\|?)"
)
"""A letter with an index, such as θ̂_k or |N_k|; code is left alone."""
ADDRESS = re.compile(r"https?://[^\s)>\]]+[^\s)>\].,;]")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page with its cards."""
    return CARD.sub(lambda found: card(found[1], found[2]), markdown)


def card(kind: str, name: str) -> str:
    """The card of a rule or an attack, in Markdown."""
    value = getattr(getattr(varangian, kind), name)
    one = card_of(value)
    lines = [f"### {name} {{#{one.name}}}", "", one.summary, ""]
    lines += [f'<div class="equation">{mathml(line)}</div>' for line in one.equation]
    lines += ["", _typeset(one.text), ""]
    kinds = in_words(knowledge_of(value())) if kind == "attacks" else ""
    about = {
        "Assumes": one.assumes,
        "Knowledge": kinds and f"{kinds}.",
        "Knows": one.knows,
        "Cost": one.cost,
    }
    lines += [
        f"**{title}.** {_typeset(text)}\n" for title, text in about.items() if text
    ]
    lines += _parameters(one)
    lines += ["```pycon", one.example, "```", ""]
    lines += [
        f"On the command line: `--{kind[:-1]} {one.name}`. Reference: {_linked(one.reference)}",
        "",
    ]
    return "\n".join(lines)


def _parameters(one: Card) -> list[str]:
    if not one.parameters:
        return []
    rows = [
        f"| `{part.name}` | `{_cell(part.default)}` | {_typeset(_cell(part.about))} |"
        for part in one.parameters
    ]
    return ["| parameter | default | |", "|---|---|---|", *rows, ""]


def _typeset(text: str) -> str:
    """The text with its symbols typeset."""
    return SYMBOL.sub(
        lambda found: mathml(found[1], display=False) if found[1] else found[0], text
    )


def _cell(text: str) -> str:
    return text.replace("|", "&#124;")


def _linked(text: str) -> str:
    return ADDRESS.sub(lambda found: f"<{found[0]}>", html.escape(text, quote=False))

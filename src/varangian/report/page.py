"""One self-contained page about runs: it works offline, in light and dark mode, and loads and sends nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from varangian.core.files import whole
from varangian.core.version import __version__
from varangian.report.pack import deflated, packed
from varangian.report.payload import page_tree
from varangian.report.source import Run

SCRIPTS = (
    "unpack.js",
    "page.js",
    "summary.js",
    "curves.js",
    "trust.js",
    "network.js",
    "matrix.js",
    "agents.js",
    "main.js",
)


def write_page(runs: Sequence[Run], path: Path) -> None:
    """Write the page about these runs. The file is replaced only when the page is complete."""
    with whole(path) as file:
        # Folder names may contain bytes that are not valid text; these are shown as a replacement character.
        file.write_bytes(page(page_tree(runs)).encode("utf-8", errors="replace"))


def page(tree: dict[str, Any], live: bool = False) -> str:
    """The page that shows a tree. Only a live page may connect to a server, and only to the one it came from."""
    code = "(() => {\n'use strict';\n" + "\n".join(map(static_text, SCRIPTS)) + "})();"
    plotly, hash_of_plotly = _plotly()
    # The browser runs only scripts with these two hashes, even if other scripts get into the page.
    policy = {
        "default-src": "'none'",
        "script-src": f"'sha256-{hash_of(code)}' 'sha256-{hash_of_plotly}'",
        "style-src": "'unsafe-inline'",
        "img-src": "data: blob:",
        "connect-src": "'self'" if live else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return Template(static_text("page.html")).substitute(
        policy="; ".join(f"{name} {value}" for name, value in policy.items()),
        title=escape(", ".join(dict.fromkeys(run["study"] for run in tree["runs"])) or "A run that has just begun"),
        about=escape(", ".join(run["name"] for run in tree["runs"])),
        style=static_text("page.css"),
        table="\n".join(_table(tree, number) for number in range(len(tree["runs"]))),
        version=escape(__version__),
        data=packed(tree),
        plotly=plotly,
        script=code,
    )


def _table(tree: dict[str, Any], number: int) -> str:
    """The table of a run's main metric, for browsers without scripts. With scripts, the page replaces it."""
    run = tree["runs"][number]
    metric = run["headline"]
    scenarios = [i for i, scenario in enumerate(tree["scenarios"]) if scenario["study"] == run["study"]]
    entries = {(cell["line"], cell["scenario"]): cell["entries"][metric] for cell in tree["cells"]}
    heads = "".join(f'<th scope="col">{escape(tree["scenarios"][i]["title"])}</th>' for i in scenarios)
    lines = [
        f'<tr><th scope="row">{escape(line["rule"])}</th>'
        + "".join(_entry(entries.get((place, i))) for i in scenarios)
        + "</tr>"
        for place, line in enumerate(tree["lines"])
        if line["run"] == number
    ]
    caption = f"<caption>{escape(run['name'])}: {escape(tree['metrics'][metric]['label'].lower())} at the end</caption>"
    head = f'<thead><tr><th scope="col">Rule</th>{heads}</tr></thead>'
    return f"<table>{caption}{head}<tbody>{''.join(lines)}</tbody></table>"


def _entry(texts: dict[str, Any] | None) -> str:
    if texts is None:
        return "<td>–</td>"
    text = escape(texts["mean"] + (f" ({texts['worst']})" if texts["worst"] else ""))
    return f"<td><b>{text}</b></td>" if texts["best"] else f"<td>{text}</td>"


@cache
def static_text(name: str) -> str:
    """A file of the page."""
    return (files("varangian.report") / "static" / name).read_text(encoding="utf-8")


@cache
def _plotly() -> tuple[str, str]:
    """The plotting library, compressed to a third, and the hash that allows the page to run it."""
    from plotly.offline import get_plotlyjs

    source: str = get_plotlyjs()
    return deflated(source.encode("utf-8")), hash_of(source)


def hash_of(script: str) -> str:
    """The hash by which a page allows a browser to run a script."""
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode()

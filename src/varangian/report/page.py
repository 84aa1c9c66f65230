"""One self-contained page about a run: table and figures, readable offline, in light and dark."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import xarray as xr

from varangian.report.table import headline, seeds_of, table

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid #8884; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 1.5rem 0; }
img { max-width: 100%; background: white; border-radius: 6px; }
code { background: #8882; padding: .1rem .3rem; border-radius: 4px; }
"""


def write_page(metrics: xr.Dataset, rows: Sequence[dict[str, Any]], figures: Sequence[Path], path: Path) -> None:
    """Write `report.html`: what ran, the table, the figures."""
    metric = headline(rows)
    heads, cells, best = table(rows, metric)
    study = escape(metrics.attrs["study"])
    body = [
        f"<h1>{study}</h1>",
        f"<p>{seeds_of(metrics)}, {int(metrics['round'][-1])} rounds, {metrics.sizes['agent']} agents. "
        f"Run it again: <code>varangian run {escape(str(path.parent / 'config.toml'))}</code></p>",
        f"<h2>{escape(metric)} at the end</h2>",
        "<p>Mean over normal agents ± standard error over seeds (worst agent); best of each column in bold.</p>",
        "<table><thead><tr>"
        + "".join(f"<th>{escape(head)}</th>" for head in ["rule", *heads])
        + "</tr></thead><tbody>",
        *(_line(i, line, best) for i, line in enumerate(cells)),
        "</tbody></table>",
        *(_figure(figure) for figure in figures),
    ]
    head = f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{study}</title>'
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    page = f"{head}{view}<style>{_STYLE}</style></head><body>\n" + "\n".join(body) + "\n</body></html>\n"
    path.write_text(page, encoding="utf-8")


def _line(number: int, cells: Sequence[str], best: set[tuple[int, int]]) -> str:
    marked = [
        f"<td><b>{escape(text)}</b></td>" if (number, j) in best else f"<td>{escape(text)}</td>"
        for j, text in enumerate(cells[1:])
    ]
    return f"<tr><td>{escape(cells[0])}</td>{''.join(marked)}</tr>"


def _figure(path: Path) -> str:
    name = escape(path.stem.replace("_", " "))
    picture = base64.b64encode(path.read_bytes()).decode()
    return f'<figure><img alt="{name}" src="data:image/png;base64,{picture}"><figcaption>{name}</figcaption></figure>'

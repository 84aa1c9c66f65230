"""One table a person can read: rules down, scenarios across."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

import xarray as xr

from varangian.results import higher_is_better

Row = dict[str, Any]
_PREFERRED = ("regret", "accuracy", "rmse", "test_loss", "loss")


def headline(rows: Sequence[Row]) -> str:
    """The metric to compare rules by: what is known exactly before what is estimated."""
    return next(metric for metric in _PREFERRED if f"{metric}_mean" in rows[0])


def table(rows: Sequence[Row], metric: str) -> tuple[list[str], list[list[str]], set[tuple[int, int]]]:
    """Heads, cells `mean ± standard error (worst agent)`, and which cell is the best of its column."""
    scenarios = list(dict.fromkeys((row["byzantine"], row["attack"] if row["byzantine"] else "") for row in rows))
    rules = list(dict.fromkeys(row["rule"] for row in rows))
    heads = [f"{count} Byzantine: {attack}" if count else "no attack" for count, attack in scenarios]
    means: dict[tuple[int, int], float] = {}
    cells: list[list[str]] = []
    for i, rule in enumerate(rules):
        line = [rule]
        for j, (count, attack) in enumerate(scenarios):
            same = [row for row in rows if row["rule"] == rule and row["byzantine"] == count]
            # Without Byzantine agents every attack has the same rows: once is enough.
            own = [row for row in same if row["attack"] == (attack or same[0]["attack"])]
            values = [row[f"{metric}_mean"] for row in own]
            worst = [row[f"{metric}_worst"] for row in own]
            means[i, j] = fmean(values)
            known = len(values) > 1 and all(map(math.isfinite, values))
            error = stdev(values) / math.sqrt(len(values)) if known else math.nan
            line.append(f"{_number(means[i, j])}{_error(error)} ({_number(fmean(worst))})")
        cells.append(line)
    choose = max if higher_is_better(metric) else min
    ranked = [[i for i in range(len(rules)) if not math.isnan(means[i, j])] for j in range(len(scenarios))]
    best = {(choose(some, key=lambda i: means[i, j]), j) for j, some in enumerate(ranked) if some}
    return heads, cells, best


def seeds_of(metrics: xr.Dataset) -> str:
    """How many seeds, in words."""
    return f"{metrics.sizes['seed']} seed{'s' * (metrics.sizes['seed'] != 1)}"


def _number(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1 else f"{value:.4g}"


def _error(value: float) -> str:
    return "" if math.isnan(value) else f" ± {value:.2g}"


def print_table(metrics: xr.Dataset, rows: Sequence[Row]) -> None:
    """Show the table on the terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    metric = headline(rows)
    heads, cells, best = table(rows, metric)
    title = f"{metrics.attrs['study']}: {metric} at the end, mean over normal agents (worst agent), {seeds_of(metrics)}"
    shown = Table(title=title, title_justify="left")
    shown.add_column("rule", no_wrap=True)
    for head in heads:
        shown.add_column(head, justify="right")
    for i, line in enumerate(cells):
        marked = [Text(text, "bold" if (i, j) in best else "") for j, text in enumerate(line[1:])]
        shown.add_row(Text(line[0]), *marked)
    # A file has no edge to wrap at.
    Console(width=None if sys.stdout.isatty() else 10_000).print(shown)

"""One table for readers: rules as rows, scenarios as columns."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any, NamedTuple

import xarray as xr

from varangian.engine.results import UNWEIGHED, higher_is_better
from varangian.experiments.summary import headline
from varangian.report.plain_text import plain

Row = dict[str, Any]
ALONE = "alone"
"""The rule that all others are compared with: no cooperation."""


class Scenario(NamedTuple):
    """The number of Byzantine agents and their attack. Without Byzantine agents all attacks coincide."""

    byzantine: int
    attack: str

    def __str__(self) -> str:
        return f"{self.byzantine} Byzantine: {self.attack}" if self.byzantine else "no attack"


@dataclass(frozen=True)
class Entry:
    """One rule in one scenario. Unknown values are nan."""

    mean: float
    """Mean over normal agents and seeds."""
    error: float
    """Standard error of the mean over seeds."""
    worst: float
    """The worst agent, averaged over seeds."""
    gain: float = math.nan
    """The difference from no cooperation, paired by seed; `gain_error` is its standard error."""
    gain_error: float = math.nan
    best: bool = False


def scenario_of(row: Row) -> Scenario:
    """
    >>> str(scenario_of({"byzantine": 0, "attack": "uniform"}))
    'no attack'
    """
    count = int(row["byzantine"])
    return Scenario(count, str(row["attack"]) if count else "")


def compared(rows: Sequence[Row], metric: str) -> dict[tuple[str, Scenario], Entry]:
    """One entry for each rule in each scenario that was run. The best rule of each scenario is marked.

    >>> rows = [{"rule": r, "attack": "", "byzantine": 0, "seed": s, "loss_mean": m, "loss_worst": m}
    ...         for r, m, s in [("alone", 3.0, 0), ("alone", 5.0, 1), ("average", 2.0, 0), ("average", 4.5, 1)]]
    >>> compared(rows, "loss")["average", Scenario(0, "")]
    Entry(mean=3.25, error=1.25, worst=3.25, gain=-0.75, gain_error=0.25, best=True)
    """
    # Without Byzantine agents all attacks have the same rows: those of the first attack are enough.
    by_cell: dict[tuple[str, Scenario], dict[int, Row]] = {}
    for row in rows:
        by_cell.setdefault((str(row["rule"]), scenario_of(row)), {}).setdefault(int(row["seed"]), row)
    mean_name = metric if metric in UNWEIGHED else f"{metric}_mean"
    entries: dict[tuple[str, Scenario], Entry] = {}
    for (rule, scenario), own in by_cell.items():
        means = {seed: _known(row, mean_name) for seed, row in own.items()}
        mean, error = mean_and_error(list(means.values()))
        worst, _ = mean_and_error([_known(row, f"{metric}_worst") for row in own.values()])
        alone = by_cell.get((ALONE, scenario), {}) if rule != ALONE and metric not in UNWEIGHED else {}
        gains = [means[seed] - _known(row, mean_name) for seed, row in alone.items() if seed in means]
        entries[rule, scenario] = Entry(mean, error, worst, *mean_and_error(gains))
    return _with_best(entries, metric)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard error. The error is nan for a single value or for infinite values."""
    if not values:
        return math.nan, math.nan
    known = len(values) > 1 and all(map(math.isfinite, values))
    return fmean(values), stdev(values) / math.sqrt(len(values)) if known else math.nan


def _known(row: Row, name: str) -> float:
    return float(row.get(name, math.nan))


def _with_best(entries: dict[tuple[str, Scenario], Entry], metric: str) -> dict[tuple[str, Scenario], Entry]:
    if metric in UNWEIGHED:
        return entries
    choose = max if higher_is_better(metric) else min
    for scenario in dict.fromkeys(scenario for _, scenario in entries):
        ranked = [key for key, entry in entries.items() if key[1] == scenario and not math.isnan(entry.mean)]
        if ranked:
            best = choose(ranked, key=lambda key: entries[key].mean)
            entries[best] = replace(entries[best], best=True)
    return entries


def table(rows: Sequence[Row], metric: str) -> tuple[list[str], list[list[str]], set[tuple[int, int]]]:
    """Column titles, cells `mean ± standard error (worst agent)`, and which cells are the best of their column."""
    entries = compared(rows, metric)
    scenarios = list(dict.fromkeys(scenario for _, scenario in entries))
    rules = list(dict.fromkeys(rule for rule, _ in entries))
    lines = [
        [rule, *(_text(entries[rule, scenario]) if (rule, scenario) in entries else "" for scenario in scenarios)]
        for rule in rules
    ]
    best = {(rules.index(rule), scenarios.index(scenario)) for (rule, scenario), e in entries.items() if e.best}
    return list(map(str, scenarios)), lines, best


def seeds_of(metrics: xr.Dataset) -> str:
    """The number of seeds, as text."""
    return f"{metrics.sizes['seed']} seed{'s' * (metrics.sizes['seed'] != 1)}"


def _text(entry: Entry) -> str:
    error = "" if math.isnan(entry.error) else f" ± {entry.error:.2g}"
    return f"{number(entry.mean)}{error} ({number(entry.worst)})"


def number(value: float) -> str:
    """
    >>> number(0.01342), number(24.123), number(1234567.0)
    ('0.0134', '24.12', '1.235e+06')
    """
    return f"{value:.4f}" if abs(value) < 1 else f"{value:.4g}"


def print_table(metrics: xr.Dataset, rows: Sequence[Row]) -> None:
    """Show the table on the terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    metric = headline(rows, str(metrics.attrs.get("headline") or metrics.attrs.get("metric", "")))
    heads, cells, best = table(rows, metric)
    title = f"{metrics.attrs['study']}: {metric} at the end, mean over normal agents (worst agent), {seeds_of(metrics)}"
    shown = Table(title=title, title_justify="left")
    shown.add_column("rule", no_wrap=True)
    for head in heads:
        shown.add_column(head, justify="right")
    # Do not wrap lines in a file.
    console = Console(width=None if sys.stdout.isatty() else 10_000)
    for i, row in enumerate(cells):
        line = [plain(text, console.encoding) for text in row]
        marked = [Text(text, "bold" if (i, j) in best else "") for j, text in enumerate(line[1:])]
        shown.add_row(Text(line[0]), *marked)
    console.print(shown)
    _print_exchange(metrics)


def _print_exchange(metrics: xr.Dataset) -> None:
    """For runs on several shards: the bytes sent between shards, and the time of each stage of a round."""
    if "exchanged_bytes" not in metrics:
        return
    for number in range(metrics.sizes["cell"]):
        cell = metrics.isel(cell=number)
        sent = float(cell["exchanged_bytes"].mean()) / 1e3
        stages = cell["stage_seconds"].mean("seed")
        spent = ", ".join(f"{stage.item()} {1e3 * float(stages.sel(stage=stage)):.3g}" for stage in stages["stage"])
        about = f"{cell['rule'].item()}, {int(cell['byzantine'])} Byzantine"
        print(f"{about}: {sent:,.1f} kB per round between shards; milliseconds per round: {spent}")

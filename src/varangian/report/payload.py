"""The data of the page, as one tree of names and arrays: runs, lines, scenarios, and one cell for each combination."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from varangian.core.version import __version__
from varangian.engine.results import UNWEIGHED, higher_is_better, in_percent, metrics_of
from varangian.experiments.summary import headline
from varangian.report.cells import cell_tree, detail_of, network_tree
from varangian.report.source import Run
from varangian.report.spread import BYZANTINE, GROUPS, Look, is_logarithmic, looks_of_rules
from varangian.report.table import Entry, Row, Scenario, compared, number, scenario_of

Tree = dict[str, Any]

LABELS = {
    "msd": "Squared deviation",
    "rmse": "Root mean square error",
    "kept": "Neighbours kept",
    "byzantine_weight": "Weight on Byzantine neighbours",
}
_DASHES = ("solid", "6px,3px", "2px,3px", "10px,3px,2px,3px", "14px,4px")
"""If several runs are compared, a rule has the same colour in all of them, and each run has its own line style."""


@dataclass(frozen=True)
class Progress:
    """The progress of a run, for a live page."""

    done: bool
    text: str
    share: float
    running: tuple[str, Scenario] | None = None
    """The cell that is running; it is not compared with others yet."""


def page_tree(runs: Sequence[Run], progress: Progress | None = None) -> Tree:
    """The tree for `pack.packed`, in the form that the scripts of the page expect."""
    metrics = list(dict.fromkeys(name for run in runs for name in measured_metrics(run)))
    return assembled(runs, metrics, [whole_cells(run, metrics) for run in runs], progress)


def assembled(
    runs: Sequence[Run],
    metrics: Sequence[str],
    of_runs: Sequence[Mapping[tuple[str, Scenario], Tree]],
    progress: Progress | None = None,
) -> Tree:
    """The tree, with the curves, agents and weights of each cell. Runs of which only tables are left have none."""
    looks = looks_of_rules(str(row["rule"]) for run in runs for row in run.rows)
    tree: Tree = {
        "version": __version__,
        "progress": progress and {"done": progress.done, "text": progress.text, "share": progress.share},
        "metrics": [_metric(name) for name in metrics],
        "byzantineColour": BYZANTINE,
        "groupColours": list(GROUPS),
        "runs": [],
        "lines": [],
        "scenarios": [],
        "cells": [],
    }
    running = progress.running if progress else None
    of_study = [run.study for run in runs]
    places: dict[tuple[str, Scenario], int] = {}
    for number_of_run, (run, cells) in enumerate(zip(runs, of_runs, strict=True)):
        tree["runs"].append(_run(run, metrics))
        earlier, several = of_study[:number_of_run].count(run.study), of_study.count(run.study) > 1
        entries = {metric: _compared(run.rows, metric, running) for metric in metrics}
        lines = {
            rule: len(tree["lines"]) + i for i, rule in enumerate(dict.fromkeys(str(row["rule"]) for row in run.rows))
        }
        for rule in lines:
            dash = _DASHES[earlier % len(_DASHES)] if several else _dash(looks[rule])
            about = {"run": number_of_run, "rule": rule, "label": f"{rule} ({run.name})" if several else rule}
            tree["lines"].append({**about, "colour": looks[rule][0], "dash": dash})
        for (rule, scenario), rows in _by_cell(run.rows).items():
            place = places.setdefault((run.study, scenario), len(places))
            finals = [[_value(row, metric, "mean") for row in rows.values()] for metric in metrics]
            worsts = [[_value(row, metric, "worst") for row in rows.values()] for metric in metrics]
            texts = [_texts(entries[metric].get((rule, scenario)), metric) for metric in metrics]
            cell = {"line": lines[rule], "scenario": place, "seeds": list(rows), "entries": texts}
            cell |= {"finals": finals, "worsts": worsts}
            tree["cells"].append(cell | cells.get((rule, scenario), {}))
    tree["scenarios"] = [
        {"study": study, "title": str(scenario), "byzantine": scenario.byzantine} for study, scenario in places
    ]
    return tree


def _compared(
    rows: Sequence[Row], metric: str, running: tuple[str, Scenario] | None
) -> dict[tuple[str, Scenario], Entry]:
    """The entries of the table. The running cell has an entry too, but it is not compared with others."""
    apart = [row for row in rows if (str(row["rule"]), scenario_of(row)) == running]
    rest = [row for row in rows if (str(row["rule"]), scenario_of(row)) != running]
    now = {key: replace(entry, best=False) for key, entry in compared(apart, metric).items()}
    return compared(rest, metric) | now


def whole_cells(run: Run, metrics: Sequence[str]) -> dict[tuple[str, Scenario], Tree]:
    """Curves, agents and weights of every cell of a run. Without Byzantine agents, only one attack is included."""
    if run.metrics is None:
        return {}
    detail = detail_of(run.metrics)
    about = zip(run.metrics["rule"].values, run.metrics["attack"].values, run.metrics["byzantine"].values, strict=True)
    out: dict[tuple[str, Scenario], Tree] = {}
    for cell, (rule, attack, byzantine) in enumerate(about):
        key = str(rule), scenario_of({"attack": attack, "byzantine": byzantine})
        if key not in out:
            out[key] = cell_tree(run.metrics.isel(cell=cell), metrics, detail)
    return out


def main_metric(run: Run) -> str:
    """The metric that the page shows first."""
    named = run.metrics is not None and run.metrics.attrs.get("headline")
    if named and named in measured_metrics(run):
        return str(named)
    rows = run.rows
    try:
        return headline(rows, "" if run.metrics is None else str(run.metrics.attrs.get("metric", "")))
    except StopIteration:
        return next(name.removesuffix("_mean") for name in rows[0] if name.endswith("_mean") or name in UNWEIGHED)


def measured_metrics(run: Run) -> list[str]:
    """All metrics of a run: those that any cell has."""
    columns = dict.fromkeys(name for row in run.rows for name in row)
    names = [name.removesuffix("_mean") for name in columns if name.endswith("_mean") or name in UNWEIGHED]
    if run.metrics is None:
        return names
    # If there are curves, these already have separate groups.
    names = [name for name in names if not re.search(r"_group_\d+$", name)]
    return list(dict.fromkeys([*names, *metrics_of(run.metrics)]))


def _metric(name: str) -> Tree:
    better = 0 if name == "kept" else 1 if higher_is_better(name) else -1
    label = LABELS.get(name, name.replace("_", " ").capitalize())
    percent = in_percent(name) or name == "byzantine_weight"
    return {"name": name, "label": label, "better": better, "log": is_logarithmic(name), "percent": percent}


def _run(run: Run, metrics: Sequence[str]) -> Tree:
    rows = run.rows
    tree: Tree = {
        "name": run.name,
        "study": run.study,
        "headline": metrics.index(main_metric(run)),
        "rounds": max(int(row["rounds"]) for row in rows),
        "seconds": sum(float(row["seconds"]) for row in rows),
        "seeds": sorted({int(row["seed"]) for row in rows}),
        "command": run.command,
        "config": run.config,
        "note": "" if run.metrics is None else str(run.metrics.attrs.get("seeds_change", "")),
        "published": [list(run.published[0]), *(list(row.values()) for row in run.published)] if run.published else [],
        "network": None,
    }
    if run.metrics is not None:
        tree["network"] = network_tree(run.metrics, detail_of(run.metrics))
    return tree


def _by_cell(rows: Sequence[Row]) -> dict[tuple[str, Scenario], dict[int, Row]]:
    out: dict[tuple[str, Scenario], dict[int, Row]] = {}
    for row in rows:
        out.setdefault((str(row["rule"]), scenario_of(row)), {}).setdefault(int(row["seed"]), row)
    return out


def _value(row: Row, metric: str, of: str) -> float:
    return float(row.get(metric if metric in UNWEIGHED else f"{metric}_{of}", math.nan))


def _texts(entry: Entry | None, metric: str) -> Tree | None:
    """An entry as the table shows it. A difference counts only if it is more than two standard errors."""
    if entry is None or math.isnan(entry.mean):
        return None
    finite = replace(entry, gain=entry.gain if math.isfinite(entry.gain) else math.nan)
    towards = finite.gain if higher_is_better(metric) else -finite.gain
    word = "" if math.isnan(finite.gain_error) else "unclear"
    if word and abs(finite.gain) > 2 * finite.gain_error:
        word = "better" if towards > 0 else "worse"
    mean = shown(finite.mean, metric)
    gain = "" if math.isnan(finite.gain) else ("−" if finite.gain < 0 else "+") + shown(abs(finite.gain), metric)
    return {
        "mean": mean + _error(finite.error, mean, metric),
        "worst": "" if math.isnan(finite.worst) else shown(finite.worst, metric) + (" %" if in_percent(metric) else ""),
        "gain": gain + _error(finite.gain_error, gain, metric),
        "word": word,
        "best": finite.best,
    }


def shown(value: float, metric: str) -> str:
    """
    >>> shown(0.9512, "accuracy"), shown(0.9512, "loss")
    ('95.1', '0.9512')
    """
    return f"{100 * value:.1f}" if in_percent(metric) else number(value)


def _error(value: float, beside: str, metric: str) -> str:
    """An error as text, with as many decimals as the number before it; if that gives zero, with one digit."""
    if math.isnan(value):
        return " %" if beside and in_percent(metric) else ""
    value, unit = (100 * value, " %") if in_percent(metric) else (value, "")
    decimals = len(beside.partition(".")[2]) if "e" not in beside else -1
    text = f"{value:.{decimals}f}" if decimals >= 0 else f"{value:.2g}"
    return f" ± {text if float(text) or not value else format(value, '.1g')}{unit}"


def _dash(look: Look) -> str:
    """A line style in pixels, with strokes and gaps that are longer than on paper."""
    style = look[1]
    return "solid" if style == "-" else ",".join(f"{2 * length:g}px" for length in style[1])

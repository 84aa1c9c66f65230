"""The table on the terminal while a sweep runs."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from varangian.experiments.cells import Cell
from varangian.experiments.config import plan_for
from varangian.report.terminal import Terminal


def test_the_table_shows_one_metric_only() -> None:
    plan = plan_for("target-localization", rules=["alone", "average"], byzantine=[0])
    terminal = Terminal(plan, Console(file=StringIO(), force_terminal=True, width=80))
    first, second = (Cell(rule, "", 0) for rule in ("alone", "average"))
    terminal.show(first, "loss", "0.9 …")
    terminal.show(second, "loss", "0.8 …")
    assert terminal.metric == "loss" and len(terminal.latest) == 2
    terminal.show(first, "regret", "0.1")  # measured later, and better: losses must not stand beside it
    assert terminal.metric == "regret" and list(terminal.latest.values()) == ["0.1"]
    terminal.show(second, "loss", "0.7 …")
    assert terminal.metric == "regret" and list(terminal.latest.values()) == ["0.1"]

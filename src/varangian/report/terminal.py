"""The progress of a run on the terminal: the round, the rate, the time left, and the metric of every rule so far."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Self

import torch
import xarray as xr
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from varangian.engine import results
from varangian.engine.callbacks import Callback
from varangian.engine.recorder import Recorder
from varangian.engine.state import State
from varangian.engine.world import World
from varangian.experiments.cells import Cell, cells, count_of
from varangian.experiments.config import Plan
from varangian.experiments.summary import PREFERRED, first_metric, headline
from varangian.report.table import number

LOOK = 0.5
"""Seconds between two readings of the metrics. Each reading makes a GPU wait."""


class Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f} rounds/s", "dim")


class Terminal:
    """Follows a sweep: a live display on a terminal, one line per cell elsewhere."""

    def __init__(self, plan: Plan, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.latest: dict[tuple[str, str], str] = {}
        """The metric of every rule in every scenario, if it is known yet."""
        self.metric, self.own = "", plan.study.metric
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), Rate(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=self.console)
        self.of_cell = plan.study.rounds * plan.seeds
        self.cells = len(cells(plan))
        self.task = self.bar.add_task("", total=self.cells * self.of_cell)
        self.done = 0
        self.running: Mapping[Cell, int] = {}
        """Cells that run in other processes, and the number of rounds each has finished."""
        self.live = Live(get_renderable=self.shown, console=self.console, transient=True, refresh_per_second=4)

    @property
    def is_live(self) -> bool:
        """Whether the display can change what it has shown: on a terminal, and in a notebook with widgets."""
        return self.console.is_terminal or (self.console.is_jupyter and find_spec("ipywidgets") is not None)

    def __enter__(self) -> Self:
        if self.is_live:
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.is_live:
            self.live.stop()

    def begin(self, cell: Cell) -> Sequence[Callback]:
        if not self.is_live:
            print(f"{cell} …", file=sys.stderr, flush=True)
            return []
        self.bar.update(self.task, description=str(cell))
        return [Rounds(self, cell)]

    def follow(self, running: Mapping[Cell, int]) -> None:
        self.running = dict(running)
        about = f"{self.done // self.of_cell} of {self.cells} cells done, {len(running)} running"
        self.bar.update(self.task, description=about, completed=self.done + sum(running.values()))

    def finish(self, cell: Cell, result: xr.Dataset) -> None:
        if self.is_live:
            self.done += self.of_cell
            if self.running:
                self.follow({other: rounds for other, rounds in self.running.items() if other != cell})
            else:
                self.bar.update(self.task, completed=self.done)
            rows: list[dict[str, Any]] = list(results.summary(result))
            metric = headline(rows, self.own)
            known = [row[f"{metric}_mean"] for row in rows]
            self.show(cell, metric, number(sum(known) / len(known)))

    def show(self, cell: Cell, metric: str, value: str) -> None:
        """Put a value into the table, which shows one metric: the best that was measured so far."""
        if self.metric and first_metric({metric, self.metric}, self.own) != metric:
            return
        if metric != self.metric:
            self.latest.clear()
        self.metric, self.latest[cell.rule, _scenario(cell)] = metric, value

    def shown(self) -> Group:
        """The progress bar, the cells that run in other processes, and a table of rules and scenarios."""
        shown = list(self.running.items())[: max(3, self.console.height // 3)]
        lines = [Text(f"  {rounds / self.of_cell:4.0%}  {cell}", "dim") for cell, rounds in shown]
        if len(self.running) > len(shown):
            lines.append(Text(f"        … and {len(self.running) - len(shown)} more", "dim"))
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column(f"{self.metric} so far" if self.metric else "")
        scenarios = list(dict.fromkeys(scenario for _, scenario in self.latest))
        for scenario in scenarios:
            table.add_column(Text(scenario), justify="right")
        for rule in dict.fromkeys(rule for rule, _ in self.latest):
            table.add_row(Text(rule), *(self.latest.get((rule, scenario), "") for scenario in scenarios))
        return Group(self.bar, *lines, *([table] if self.latest else []))


@dataclass
class Rounds:
    """Follows the rounds of one cell."""

    terminal: Terminal
    cell: Cell
    seen: float = field(default=0.0, repr=False)
    rounds: int = 0

    def start(self, world: World, state: State, rounds: int) -> None:
        self.rounds = rounds
        self.terminal.bar.advance(self.terminal.task, state.round * len(world.seeds))

    def round(self, world: World, state: State, recorder: Recorder) -> None:
        terminal = self.terminal
        if terminal.running:  # this cell is shown among those of other processes
            return
        terminal.bar.advance(terminal.task, len(world.seeds))
        if time.perf_counter() - self.seen < LOOK:
            return
        self.seen = time.perf_counter()
        terminal.bar.update(terminal.task, description=f"{self.cell}: round {state.round} of {self.rounds}")
        known = {**recorder.streaming, **recorder.held_out}
        measured = [name for name, rows in known.items() if rows]
        metric = first_metric(measured, terminal.own) if {*measured} & {*PREFERRED, terminal.own} else None
        if metric is not None and bool((normal := world.is_normal[:, 0]).any()):
            mean = float(torch.mean(known[metric][-1][normal].double()))
            terminal.show(self.cell, metric, f"{number(mean)} …")

    def end(self, world: World, state: State) -> None: ...


def _scenario(cell: Cell) -> str:
    return f"{count_of(cell.byzantine)} Byzantine: {cell.attack}" if cell.byzantine else "no attack"

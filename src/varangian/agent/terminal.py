"""The live table of a fleet: every agent's round, loss and accuracy, and how much it trusts each neighbour."""

from __future__ import annotations

import sys
import time
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from varangian.agent.record import FleetRecord
from varangian.experiments.summary import PREFERRED
from varangian.report.table import number

MOST = 24
"""Neighbours that have a column of their own."""
QUIET = 10.0
"""Seconds between lines, where there is no terminal."""


class Shown:
    """Shows the record of a fleet when it is called with one: a table on a terminal, a line now and then elsewhere."""

    def __init__(self, rounds: int, console: Console | None = None) -> None:
        self.rounds, self.console, self.said = rounds, console or Console(stderr=True), time.monotonic()
        self.display = Live(console=self.console, transient=True, refresh_per_second=4)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.display.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.console.is_terminal:
            self.display.stop()

    def __call__(self, record: FleetRecord) -> None:
        if self.console.is_terminal:
            self.display.update(table_of(record))
        elif time.monotonic() - self.said >= QUIET:
            self.said = time.monotonic()
            known = [status["round"] for name in record.names if (status := record.latest(name))]
            slowest = min(known, default=0)
            print(f"round {slowest} of {self.rounds}, {len(known)} agents heard from", file=sys.stderr, flush=True)


def table_of(record: FleetRecord) -> Table:
    """One row per agent. Trust is in percent; a dot is a neighbour without weight, − one that was not heard."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    for title in ("agent", "round", "loss", "", "rejected"):
        table.add_column(title, justify="left" if title == "agent" else "right")
    shown = record.names[:MOST]
    for place, _ in enumerate(shown):
        table.add_column(str(place), justify="right")
    byzantine = record.byzantine.tolist()
    for name, is_byzantine in zip(record.names, byzantine, strict=True):
        status = record.latest(name)
        if is_byzantine or status is None:
            table.add_row(Text(name, "red" if is_byzantine else "dim"), "Byzantine" if is_byzantine else "starts")
            continue
        metric = next((metric for metric in PREFERRED if metric in status["evaluated"]), "")
        weights, rejected = status["weights"] or {}, status["rejected"]
        table.add_row(
            name,
            f"{status['round']} of {record.rounds}",
            number(status["measured"].get("loss", float("nan"))),
            f"{metric} {number(status['evaluated'][metric])}" if metric else "",
            str(sum(count for reasons in rejected.values() for count in reasons.values())),
            *(_trust(weights.get(other), other == name or other in status["ages"]) for other in shown),
        )
    return table


def _trust(weight: float | None, heard: bool) -> Text:
    if not heard or weight is None:
        return Text("−", "dim")
    return Text(f"{weight:.0%}", "bold") if weight >= 0.005 else Text("·", "dim")

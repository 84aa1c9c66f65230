"""How long each phase of a command took: a line on the terminal, and `timings.csv` in the run folder."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from varangian.core.stopwatch import PHASES, Stopwatch
from varangian.engine.callbacks import Callback
from varangian.engine.simulated import Result
from varangian.experiments.cells import Cell, count_of

COLUMNS = ("rule", "attack", "byzantine", "phase", "seconds")


@dataclass(frozen=True)
class Timings:
    """Follows a sweep. `watch` has the phases of the whole command, those of all cells included.

    Cells that were found in the folder, and so not run, count nothing. On a cluster, and in several processes, cells
    run side by side, and their seconds together may be more than those of the command.
    """

    shown: bool = False
    """Whether people asked to see them."""
    watch: Stopwatch = field(default_factory=Stopwatch)
    of_cells: dict[str, tuple[Cell, Mapping[str, float]]] = field(default_factory=dict)

    def begin(self, cell: Cell) -> Sequence[Callback]:
        return []

    def follow(self, running: Mapping[Cell, int]) -> None: ...

    def finish(self, cell: Cell, result: Result) -> None:
        if cell.key not in self.of_cells:
            self.of_cells[cell.key] = cell, result.timings
            self.watch.add(result.timings)

    @property
    def line(self) -> str:
        """The seconds of every phase, for people."""
        spent = self.watch.seconds
        parts = [f"{phase} {spent[phase]:.2f}" for phase in PHASES if phase in spent]
        return f"Seconds: {', '.join(parts)}; together {self.watch.total:.2f}"

    def write(self, path: Path) -> Path:
        """Write a table: one row per cell and phase, then the rest of the command, with an empty rule."""
        rest = dict(self.watch.seconds)
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            for cell, spent in self.of_cells.values():
                for phase in (phase for phase in PHASES if phase in spent):
                    rest[phase] -= spent[phase]
                    about = (cell.rule, cell.attack, count_of(cell.byzantine))
                    writer.writerow((*about, phase, f"{spent[phase]:.4f}"))
            for phase in (phase for phase in PHASES if rest.get(phase, 0.0) > 5e-5):
                writer.writerow(("", "", "", phase, f"{rest[phase]:.4f}"))
        return path

"""Writes the metrics of runs for Weights & Biases, while they are running; by default offline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import xarray as xr

from varangian.core.version import __version__
from varangian.engine.callbacks import Callback
from varangian.experiments.cells import Cell, count_of
from varangian.report.scalars import Log, Scalars, check_installed


@dataclass(frozen=True)
class WandB:
    """Follows a sweep, or a single run: one W&B run for every cell and seed.

    >>> log = WandB("landmines", folder="runs")
    >>> callback = log.run("first try")  # for simulate(..., callbacks=[callback])
    """

    project: str = "varangian"
    folder: Path | str = "."
    """Runs are written to `wandb/` in this folder."""
    mode: Literal["offline", "online"] = "offline"
    """Offline, nothing leaves this machine; `wandb sync` uploads later."""

    def begin(self, cell: Cell) -> Sequence[Callback]:
        return [self.run(str(cell), {"rule": cell.rule, "attack": cell.attack, "byzantine": count_of(cell.byzantine)})]

    def run(self, name: str, about: Mapping[str, str] | None = None) -> Scalars:
        """A callback for `simulate` that makes runs of this name, with these settings."""
        return Scalars(lambda seed, done: self._opened(name, seed, about or {}))

    def _opened(self, name: str, seed: int, about: Mapping[str, str]) -> Log:
        check_installed("wandb", "wandb")
        import wandb

        Path(self.folder).mkdir(parents=True, exist_ok=True)
        made = wandb.init(
            project=self.project,
            name=f"{name}, seed {seed}",
            dir=str(self.folder),
            mode=self.mode,
            config={**about, "seed": seed, "varangian": __version__},
            reinit="create_new",  # seeds that share a run have several logs open at once
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, x_disable_meta=True),
        )
        return _Run(made)

    def follow(self, running: Mapping[Cell, int]) -> None: ...

    def finish(self, cell: Cell, result: xr.Dataset) -> None: ...


@dataclass(frozen=True)
class _Run:
    run: Any

    def write(self, values: Mapping[str, float], round: int) -> None:
        self.run.log(dict(values), step=round)

    def close(self, finished: bool) -> None:
        self.run.finish(exit_code=0 if finished else 1)

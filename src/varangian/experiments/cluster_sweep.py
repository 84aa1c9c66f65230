"""A sweep on a Ray cluster: every cell a task, kept in the run folder by whoever started the sweep."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import torch
import xarray as xr

from varangian.engine import results
from varangian.engine.cluster.progress import Writer, progress_board
from varangian.engine.cluster.ray_cluster import RayCluster
from varangian.engine.cluster.task_pool import in_tasks
from varangian.errors import BadInput
from varangian.experiments import sweep
from varangian.experiments.config import Plan
from varangian.experiments.process_pool import Lost


def spread(
    plan: Plan,
    folder: Path | None,
    cluster: RayCluster,
    *,
    resume: bool,
    begin: Callable[[sweep.Cell], object],
    advance: Callable[[int], object],
    watchers: Sequence[sweep.Watcher],
) -> dict[str, xr.Dataset]:
    """What came of every cell, by its key. Cells that the folder holds are not run, those that finish are put there.

    Cells that are alike are run once. Rounds are played elsewhere: watchers hear how many, and nothing else of them.
    """
    cluster.check_device(plan.device)
    alike: dict[str, list[sweep.Cell]] = {}
    for cell in sweep.cells(plan):
        alike.setdefault(cell.key, []).append(cell)
    of_cell = plan.study.rounds * plan.seeds
    done: dict[str, xr.Dataset] = {}

    def started(cell: sweep.Cell) -> None:
        begin(cell)
        for watcher in watchers:
            watcher.begin(cell)  # who watches rounds here would see none

    def finish(key: str, result: xr.Dataset) -> None:
        done[key] = result
        for number, cell in enumerate(alike[key]):
            if number:
                started(cell)
                advance(of_cell)
            for watcher in watchers:
                watcher.finish(cell, result)

    for key, (first, *_) in alike.items():
        if folder and resume and sweep.file_of(folder, first).exists():
            started(first)
            advance(of_cell)
            finish(key, results.load(sweep.file_of(folder, first)))
    left = [first for key, (first, *_) in alike.items() if key not in done]
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        for cell in left if not resume else ():
            shutil.rmtree(folder / cell.key, ignore_errors=True)
    with cluster.connected(), progress_board(of_cell, advance) as reader:

        def look() -> None:
            running = {alike[key][0]: rounds for key, rounds in reader.look().items()}
            for watcher in watchers:
                watcher.follow(running)

        work = partial(_play, plan, folder and folder.resolve(), reader.board)
        with closing(in_tasks(work, left, cluster, started, look)) as finishing:
            for cell, came in finishing:
                if isinstance(came, Lost):
                    raise BadInput(f"{cell}: {came}; what had finished is kept")
                if folder:
                    sweep.keep(came, folder, cell)
                reader.finish(cell.key)
                finish(cell.key, came)
    return done


def _play(plan: Plan, folder: Path | None, writers_board: Any, cell: sweep.Cell) -> xr.Dataset:
    """Run a cell on one core. Where this machine sees the run folder, an interrupted cell leaves a checkpoint there,
    and goes on from one that another process left."""
    torch.set_num_threads(1)
    near = folder if folder is not None and folder.is_dir() else None
    told = sweep.SeedsProgress(Writer(writers_board, cell.key))
    return sweep.play(plan, cell, near, resume=True, callbacks=[told])

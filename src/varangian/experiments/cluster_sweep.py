"""A sweep on a Ray cluster: one task per cell. The process that started the sweep saves the results."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import torch

from varangian.core.errors import BadInput
from varangian.engine.cluster.progress import Writer, progress_board
from varangian.engine.cluster.ray_cluster import RayCluster
from varangian.engine.cluster.task_pool import in_tasks
from varangian.engine.process_pool import Lost
from varangian.engine.simulated import Result
from varangian.experiments.cells import Cell, SeedsProgress, Watcher, cells, found, keep, play
from varangian.experiments.config import Plan


def spread(
    plan: Plan,
    folder: Path | None,
    cluster: RayCluster,
    *,
    resume: bool,
    begin: Callable[[Cell], object],
    advance: Callable[[int], object],
    watchers: Sequence[Watcher],
) -> dict[str, Result]:
    """The result of every cell, by its key. Cells found in the folder are not run; finished cells are saved there.

    Cells with the same key run once. Rounds are computed in other processes, so watchers only get their number.

    Args:
        plan: What to run.
        folder: Where to keep finished cells and checkpoints.
        cluster: Where to run.
        resume: Use what the folder holds.
        begin: Called with each cell that begins.
        advance: Called with the number of rounds computed since the last call.
        watchers: Objects that follow the sweep from cell to cell.
    """
    cluster.check_device(plan.options.device)
    alike: dict[str, list[Cell]] = {}
    for cell in cells(plan):
        alike.setdefault(cell.key, []).append(cell)
    of_cell = plan.study.rounds * plan.seeds
    done: dict[str, Result] = {}

    def started(cell: Cell) -> None:
        begin(cell)
        for watcher in watchers:
            watcher.begin(cell)  # its callbacks are not used: no rounds are computed in this process

    def finish(key: str, result: Result) -> None:
        done[key] = result
        for number, cell in enumerate(alike[key]):
            if number:
                started(cell)
                advance(of_cell)
            for watcher in watchers:
                watcher.finish(cell, result)

    for key, (first, *_) in alike.items():
        if resume and (finished := found(plan, folder, first)) is not None:
            started(first)
            advance(of_cell)
            finish(key, finished)
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
                    raise BadInput(f"{cell}: {came}; finished cells are kept")
                if folder:
                    keep(came, folder, cell)
                reader.finish(cell.key)
                finish(cell.key, came)
    return done


def _play(plan: Plan, folder: Path | None, writers_board: Any, cell: Cell) -> Result:
    """Run a cell on one core.

    If this machine can access the run folder, an interrupted cell saves a checkpoint there, and a cell continues from
    a checkpoint that another process saved.
    """
    torch.set_num_threads(1)
    near = folder if folder is not None and folder.is_dir() else None
    counter = SeedsProgress(Writer(writers_board, cell.key))
    return play(plan, cell, near, resume=near is not None, callbacks=[counter])

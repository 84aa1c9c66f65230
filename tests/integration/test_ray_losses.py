"""Processes and machines that die under one network, and interrupts: the same result, or a folder to go on from."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray_clusters import add_machine, parent, workers
from spread_networks import ABOUT, STUDY, alike

from varangian import RayCluster, simulate
from varangian.core.errors import BadInput
from varangian.engine.callbacks import Progress

pytest.importorskip("ray", reason="needs Ray")


def disturbed(*times: tuple[int, Callable[[], object]]) -> Progress:
    """Does something once after so many rounds, and then the next."""
    played, left = 0, list(times)

    def advance(rounds: int) -> None:
        nonlocal played
        played += rounds
        if left and played >= left[0][0]:
            left.pop(0)[1]()

    return Progress(advance)


def kill_a_shard() -> None:
    """As a machine short of memory would."""
    os.kill(workers("ShardActor")[0], signal.SIGKILL)


def test_processes_that_are_killed_change_nothing(cluster: Any) -> None:
    """Once before the first snapshot and once after it."""
    told: list[int] = []
    watching = [disturbed((3, kill_a_shard), (25, kill_a_shard)), Progress(told.append)]
    found = simulate(STUDY, rounds=40, engine=RayCluster(shards=2, keep_every=10), callbacks=watching, **ABOUT)
    began = [number for number, rounds in enumerate(told) if rounds <= 0]
    assert len(began) == 3 and sum(told) == 40, "it began three times"
    assert sum(told[: began[1] + 1]) == 0, "from the start"
    assert sum(told[: began[2] + 1]) >= 20, "from a snapshot"
    alike(found, simulate(STUDY, rounds=40, **ABOUT))


def test_a_machine_that_dies_changes_nothing(cluster: Any) -> None:
    """Three shards on three machines, and then on two, once the cluster has noticed that it is smaller."""
    lost = add_machine(cluster)

    def die() -> None:
        raylet = next(info.process.pid for info in lost.all_processes["raylet"])
        shards = [process for process in workers("ShardActor") if parent(process) == raylet]
        assert shards, "a shard was there"
        cluster.remove_node(lost, allow_graceful=False)
        while any(Path(f"/proc/{process}").exists() for process in shards):  # they end when they miss the raylet
            time.sleep(0.05)

    told: list[int] = []
    watching = [disturbed((20, die)), Progress(told.append)]
    found = simulate(STUDY, rounds=60, engine=RayCluster(shards=3, keep_every=10), callbacks=watching, **ABOUT)
    assert sum(rounds <= 0 for rounds in told) >= 2 and sum(told) == 60, "it began again"
    alike(found, simulate(STUDY, rounds=60, **ABOUT))


def test_too_many_losses_leave_a_folder_to_go_on_from(cluster: Any, tmp_path: Path) -> None:
    engine = RayCluster(shards=2, keep_every=5, retries=0)
    kept: dict[str, Any] = {"engine": engine, "checkpoint": tmp_path, **ABOUT}
    with pytest.raises(BadInput, match=r"a shard was lost 1 times.*--resume"):
        simulate(STUDY, rounds=30, callbacks=[disturbed((12, kill_a_shard))], **kept)
    assert list(tmp_path.glob("*.parts/round-*"))
    again: list[int] = []
    found = simulate(STUDY, rounds=30, callbacks=[Progress(again.append)], resume=True, **kept)
    assert again[0] >= 10, "it began where it had been"
    alike(found, simulate(STUDY, rounds=30, **ABOUT))
    with pytest.raises(BadInput, match="another run"):
        simulate(STUDY, rounds=31, resume=True, **kept)


def test_an_interrupt_leaves_a_folder_to_go_on_from(cluster: Any, tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    kept: dict[str, Any] = {"engine": RayCluster(shards=2), "checkpoint": tmp_path, **ABOUT}
    with pytest.raises(KeyboardInterrupt):
        simulate(STUDY, rounds=30, callbacks=[disturbed((9, interrupt))], **kept)
    again: list[int] = []
    found = simulate(STUDY, rounds=30, callbacks=[Progress(again.append)], resume=True, **kept)
    assert again[0] >= 9, "it began where it had been"
    alike(found, simulate(STUDY, rounds=30, **ABOUT))

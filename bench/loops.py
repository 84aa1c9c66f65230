"""Rounds of the engine against the plain loops of `tests/helpers/reference.py`, on one thread.

The engine runs in float32, its default, and also records metrics. The loops run in float64, their only type.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from bench.timing import Row, best
from bench.workloads import Workload, convolutional, localization, softmax
from varangian import rules
from varangian.core.execution import DEFAULT
from varangian.engine.recorder import Recorder
from varangian.engine.round import play_round
from varangian.engine.state import begin
from varangian.engine.world import prepare

sys.path.append(str(Path(__file__).parents[1] / "tests" / "helpers"))
from reference import Network

RULES: dict[str, Any] = {
    "average": rules.average(),
    "distance-based": rules.distance_based(),
    "loss-based": rules.loss_based(),
}


def rows() -> list[Row]:
    """For every problem and every rule: the rounds per second of both, and their ratio."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    loads = [(localization(100), 1), (localization(100, seeds=32), 32), (softmax(30), 1), (convolutional(10), 1)]
    out: list[Row] = []
    with torch.no_grad():
        for load, seeds in loads:
            for name, rule in RULES.items():
                ours, plain = _engine(load, rule) / seeds, _reference(load, rule)
                rates = {"engine, rounds/s per seed": 1 / ours, "loops, rounds/s": 1 / plain}
                out.append({"workload": load.name, "rule": name, **rates, "times as fast": plain / ours})
    torch.set_num_threads(before)
    return out


def _engine(load: Workload, rule: Any) -> float:
    world, recorder = load.world, Recorder()
    state = begin(world, rule, load.attack)

    def play() -> None:
        nonlocal state
        after, seen = play_round(world, rule, load.attack, state)
        recorder.record(world, after, seen, 10**9)
        state = after

    return best(play, 1.0)


def _reference(load: Workload, rule: Any) -> float:
    scene, seed = load.world.scenes[0], load.world.seeds[0]
    world = prepare([scene], [seed], 0.2, DEFAULT, torch.float64)
    return best(Network(world, rule, load.attack).play_round, 0.5, warm=False)

"""Rounds per second of the engine against the plain loops of `tests/reference.py`, in one run.

Prints a table and writes it to `runs/bench.csv`. Times are the best of several tries, on one thread; the engine runs
in float32, as it comes, the loops in float64, which is all they know.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from varangian import attacks, rules, studies
from varangian.graph import Graph
from varangian.record import Recorder
from varangian.simulate import begin, play_round
from varangian.studies.digits import cnn
from varangian.task import Task
from varangian.world import Scene, World, prepare

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from reference import Network

Scenes = tuple[list[Scene], int]
"""Networks side by side, and how many of each are Byzantine."""

RULES = {
    "alone": rules.alone(),
    "average": rules.average(),
    "distance-based": rules.distance_based(),
    "loss-based:keep=all": rules.loss_based(keep="all"),
    "loss-based": rules.loss_based(),
}


def localization(seeds: int) -> Scenes:
    study = studies.target_localization()
    return [study.scene(seed) for seed in range(seeds)], 20


def softmax() -> Scenes:
    """30 agents, 561 features, 6 labels, batches of 10, everyone hears everyone."""
    generator = torch.Generator().manual_seed(0)
    data = [
        (torch.randn(100, 561, generator=generator), torch.randint(0, 6, (100,), generator=generator))
        for _ in range(30)
    ]
    task = Task.supervised(nn.Linear(561, 6), nn.functional.cross_entropy, data, batch=10, step_size=0.01)
    return [Scene(task, Graph.complete(30))], 10


def digits() -> Scenes:
    """The paper's CNN: 10 agents, batches of 64, everyone hears everyone."""
    generator = torch.Generator().manual_seed(0)
    data = [
        (torch.rand(128, 1, 28, 28, generator=generator), torch.randint(0, 10, (128,), generator=generator))
        for _ in range(10)
    ]
    task = Task.supervised(cnn(), nn.functional.cross_entropy, data, batch=64, step_size=0.001)
    return [Scene(task, Graph.complete(10))], 2


def world(scenes: Scenes, dtype: torch.dtype) -> World:
    several, byzantine = scenes
    return prepare(several, range(len(several)), byzantine, torch.device("cpu"), dtype)


def engine_seconds(world: World, rule: Any, attack: Any, rounds: int) -> float:
    """Seconds a round of the engine, recording included."""
    state, recorder = begin(world, rule, attack), Recorder()

    def play() -> None:
        nonlocal state
        after, seen = play_round(world, rule, attack, state)
        recorder.record(world, after, seen, 10**9)
        state = after

    return _best(play, rounds)


def reference_seconds(world: World, rule: Any, attack: Any, rounds: int) -> float:
    """Seconds a round of the plain loops."""
    network = Network(world, rule, attack)
    return _best(network.play_round, rounds)


def _best(play: Callable[[], object], rounds: int, tries: int = 3) -> float:
    play()
    spans: list[float] = []
    for _ in range(tries):
        start = time.perf_counter()
        for _ in range(rounds):
            play()
        spans.append((time.perf_counter() - start) / rounds)
    return min(spans)


def rows() -> list[dict[str, Any]]:
    """Every problem × every rule: rounds per second of both, and their ratio."""
    one, many = localization(1), localization(32)
    problems = [
        ("localization, 100 agents", one, one, attacks.uniform(15, 16), 100, 3),
        ("the same, 32 seeds at once", many, one, attacks.uniform(15, 16), 30, 3),
        ("softmax, 30 agents × 561 × 6", softmax(), softmax(), attacks.uniform(0, 0.1), 30, 2),
        ("CNN, 10 agents, batch 64", digits(), digits(), attacks.uniform(0, 0.1), 1, 1),
    ]
    out: list[dict[str, Any]] = []
    for problem, scenes, small, attack, rounds, loops in problems:
        for name, rule in RULES.items():
            ours = engine_seconds(world(scenes, torch.float32), rule, attack, rounds) / len(scenes[0])
            plain = reference_seconds(world(small, torch.float64), rule, attack, loops)
            out.append(
                {
                    "problem": problem,
                    "rule": name,
                    "engine rounds/s per seed": 1 / ours,
                    "reference rounds/s": 1 / plain,
                    "ratio": plain / ours,
                }
            )
            print(f"{problem}, {name}: {plain / ours:.1f}×", file=sys.stderr, flush=True)
    return out


def main() -> None:
    torch.set_num_threads(1)
    with torch.no_grad():
        measured = rows()
    table = Table(title="Engine against plain loops, one thread")
    for column in measured[0]:
        table.add_column(column, justify="left" if column in ("problem", "rule") else "right")
    for row in measured:
        table.add_row(*(value if isinstance(value, str) else f"{value:,.1f}" for value in row.values()))
    Console().print(table)
    path = Path("runs/bench.csv")
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(measured[0]))
        writer.writeheader()
        writer.writerows(measured)
    print(f"Written to {path}")


if __name__ == "__main__":
    main()

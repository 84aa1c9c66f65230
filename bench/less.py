"""What judging less saves in time and costs in accuracy: `python -m bench.less [--device cuda]`.

- `quality.csv`: the accuracy of a study with each variant of `sparing` (human activity on a CPU, digits on a GPU).
- `cost.csv`: the time of a round, on dense and on sparse networks, against `loss-based` in the same run.
- `coarse.csv`: how often judging in bfloat16 keeps the same neighbours.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.timing import Row, best_each, show
from bench.workloads import Workload, convolutional, softmax
from varangian import rules, studies
from varangian.core.execution import Execution
from varangian.engine.results import final
from varangian.engine.round import play_round
from varangian.engine.run import simulate
from varangian.engine.state import begin
from varangian.engine.world import prepare
from varangian.studies.study import Study

WAYS: dict[str, Any] = {
    "loss-based": rules.loss_based(),
    "every=2": rules.sparing(every=2),
    "every=4": rules.sparing(every=4),
    "every=10": rules.sparing(every=10),
    "part=0.5": rules.sparing(part=0.5),
    "part=0.2": rules.sparing(part=0.2),
    "back-off=4": rules.sparing(back_off=4),
    "back-off=16": rules.sparing(back_off=16),
    "back-off=64": rules.sparing(back_off=64),
    "most=5": rules.sparing(most=5),
    "most=2": rules.sparing(most=2),
    "every=2, part=0.5": rules.sparing(every=2, part=0.5),
    "alone": rules.alone(),
}


def quality(study: Study, byzantine: int, rounds: int, seeds: int, device: str) -> list[Row]:
    """The accuracy of normal agents after `rounds` rounds."""
    out: list[Row] = []
    for name, rule in WAYS.items():
        attack = study.attacks[0]
        result = simulate(
            study, rule=rule, attack=attack, byzantine=byzantine, rounds=rounds, seeds=seeds, device=device
        )
        accuracy, loss = final(result, "accuracy"), final(result, "test_loss")
        reached = {"accuracy, mean": float(accuracy.mean()), "accuracy, worst": float(accuracy.min("agent").mean())}
        seconds = float(result["seconds"].mean())
        about = {"study": study.name, "byzantine": byzantine, "way": name}
        out.append({**about, **reached, "test loss": float(loss.mean())})
        mean = reached["accuracy, mean"]
        print(f"{study.name}, {byzantine} Byzantine, {name}: {mean:.4f} in {seconds:.1f} s", flush=True)
    return out


def cost(load: Workload, seconds: float) -> list[Row]:
    """Milliseconds per round, averaged over 20 rounds, since `sparing` does not do the same in every round.

    As many rounds run first as a warm-up.
    """
    rounds = 20
    with_rules = {name: rule for name, rule in WAYS.items() if name != "alone"}
    playing = {name: load.rounds(rule) for name, rule in with_rules.items()}
    plays = {name: context.__enter__() for name, context in playing.items()}

    def several(name: str) -> None:
        for _ in range(rounds):
            plays[name]()

    least = best_each([partial(several, name) for name in plays], seconds)
    for context in playing.values():
        context.__exit__(None, None, None)
    full = least[0]
    return [
        {"workload": load.name, "way": name, "round ms": 1e3 * time / rounds, "of loss-based": time / full}
        for name, time in zip(plays, least, strict=True)
    ]


def same_neighbours(study: Study, byzantine: int, rounds: int, device: str) -> Row:
    """The share of decisions of normal agents in which judging in bfloat16 keeps the same neighbours."""
    scene, rule, attack = study.scene(0), rules.loss_based(), study.attacks[0]
    worlds = [
        prepare([scene], [0], byzantine, Execution(torch.device(device)), torch.float32, kind)
        for kind in (None, "bfloat16")
    ]
    exact, coarse = (begin(world, rule, attack) for world in worlds)
    normal = worlds[0].is_normal[:, 0]
    same = decided = 0
    with torch.no_grad():
        for _ in range(rounds):
            # Both use the models of the exact run, so that single decisions are compared. Each has its own memory.
            coarse = exact._replace(rule=coarse.rule)
            exact, seen = play_round(worlds[0], rule, attack, exact)
            coarse, also = play_round(worlds[1], rule, attack, coarse)
            for one, other in zip(seen.weights, also.weights, strict=True):
                assert one is not None and other is not None
                same += int(((one > 0) == (other > 0))[normal].sum())
                decided += one[normal].numel()
    return {"study": study.name, "byzantine": byzantine, "decisions": decided, "the same": same / decided}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.less", description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    asked = parser.parse_args()
    out: Path = asked.out / asked.device
    study: Study
    if asked.device == "cuda":
        study, counts, rounds, seeds = studies.digits(), (0, 2), 320 if asked.quick else 1600, 1
    else:
        study, counts, rounds, seeds = studies.human_activity(), (0, 10), 200 if asked.quick else 1000, 3
    if asked.device == "cuda":
        loads = [(convolutional(agents, "cuda"), 1.0) for agents in ((10,) if asked.quick else (10, 100))]
    else:
        loads = [(convolutional(10), 1.0), (softmax(100), 5.0), (softmax(1000, 20), 5.0)][asked.quick :]
    show(
        [row for load, seconds in loads for row in cost(load, seconds)],
        "The time of a round with sparing",
        out / "cost.csv",
    )
    kept = [
        same_neighbours(studies.digits(), count, rounds if asked.device == "cuda" else 20, asked.device)
        for count in (0, 2)
    ]
    show(kept, "How often bfloat16 keeps the same neighbours", out / "coarse.csv")
    measured = [row for count in counts for row in quality(study, count, rounds, seeds, asked.device)]
    show(measured, "Accuracy with sparing", out / "quality.csv")


if __name__ == "__main__":
    main()

"""Agents with different label sets: they share a trunk, and each keeps a head of its own.

Twelve agents sort objects. There are eight kinds of object, and each agent knows five of them, under numbers of its
own: what is 0 to one is 3 to another, or nothing. Heads therefore mean nothing to others. But what makes a kind a kind
is the same for all, so the trunk below the head can be learnt together. Every other agent has little data, and few
chances to train; two agents are Byzantine. Run me: python examples/own_heads.py
"""

from __future__ import annotations

from typing import Any

import torch
import xarray as xr
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import varangian
from varangian import Graph, Task, attacks, rules
from varangian.engine.results import final

AGENTS, KINDS, KNOWN = 12, 8, 5
HIDDEN, INPUTS = 8, 40
MUCH, LITTLE = 1500, 150

Data = tuple[Tensor, Tensor]


def objects(seed: int) -> tuple[list[Data], list[Data]]:
    """Training and test data of every agent: noisy views of points on a curved surface that is the same for all."""
    draw = torch.Generator().manual_seed(seed)
    centre = torch.randn(KINDS, HIDDEN, generator=draw)
    surface = torch.randn(HIDDEN, INPUTS, generator=draw) / HIDDEN**0.5

    def some(count: int, known: Tensor) -> Data:
        label = torch.randint(KNOWN, (count,), generator=draw)
        place = centre[known[label]] + 0.3 * torch.randn(count, HIDDEN, generator=draw)
        # An object is seen from the front or from the back, so that no straight line parts the kinds.
        side = torch.randint(2, (count, 1), generator=draw) * 2 - 1
        return torch.tanh(side * place @ surface) + 0.3 * torch.randn(count, INPUTS, generator=draw), label

    known = [torch.randperm(KINDS, generator=draw)[:KNOWN] for _ in range(AGENTS)]
    train = [some(LITTLE if agent % 2 else MUCH, own) for agent, own in enumerate(known)]
    return train, [some(400, own) for own in known]


class TrunkAndHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(INPUTS, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU())
        self.head = nn.Linear(24, KNOWN)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(x))


def run(rule: rules.Rule[Any], step_size: float, seed: int) -> xr.DataArray:
    """Every normal agent's test accuracy in percent, in a network that is made from the seed, all of it."""
    train, test = objects(seed)
    torch.manual_seed(seed)
    task = Task.supervised(
        TrunkAndHead(), cross_entropy, train, test=test, batch=5, step_size=step_size,
        metrics={"accuracy": lambda predicted, label: predicted.argmax(-1) == label},
        share=["trunk"],  # all that travels; a neighbour's trunk is judged under one's own head
        skip=torch.tensor([0.9 if agent % 2 else 0.0 for agent in range(AGENTS)]), forgetting=0.2,
    )  # fmt: skip
    result = varangian.simulate(
        task, Graph.complete(AGENTS), rule=rule, attack=attacks.uniform(), byzantine=2, rounds=300, seeds=[seed]
    )
    return 100 * final(result, "accuracy")


def main(seeds: int = 3) -> dict[str, tuple[float, float]]:
    """Mean accuracy of all normal agents, and of those with little data, by rule."""
    table = {}
    print(f"{'rule':<12}{'all agents':>12}{'little data':>13}")
    # Each at a step size that suits it: of 0.2, 0.3, 0.4, 0.5 and 0.7, with six other seeds, `alone` did best at 0.4
    # and `loss_based` at 0.2 and 0.3.
    for rule, step_size in ((rules.alone(), 0.4), (rules.loss_based(), 0.3)):
        ends = xr.concat([run(rule, step_size, seed) for seed in range(seeds)], "seed")
        name = type(rule).__name__
        table[name] = float(ends.mean()), float(ends[..., 1::2].mean())
        print(f"{name:<12}{table[name][0]:>11.1f}%{table[name][1]:>12.1f}%")
    return table


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

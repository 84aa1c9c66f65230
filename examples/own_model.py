"""Your own data, model and loss: a Dataset per agent, a small residual network with BatchNorm, focal cross-entropy.

Ten agents look at pictures of bars, edges, spots and rings. Five see them bright on dark, five dark on bright and
noisier: related tasks, not the same one. Two agents are Byzantine, and lie before anyone has learnt anything. Run me:
python examples/own_model.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu
from torch.utils.data import Dataset

import varangian
from varangian import Graph, Task, attacks, rules
from varangian.engine.results import final

AGENTS, SHAPES, SIZE = 10, 4, 10


class Pictures(Dataset[tuple[Tensor, Tensor]]):
    """Shapes at random places; a map-style dataset needs nothing but a length and items."""

    def __init__(self, count: int, dark: bool, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.label = torch.randint(SHAPES, (count,), generator=draw)
        row, column = (torch.rand(2, count, 1, 1, generator=draw) * 4 + 3).unbind()
        down, right = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
        away = ((down - row) ** 2 + (right - column) ** 2).sqrt()
        shapes = torch.stack(((down - row).abs() < 1, right > column, away < 2, (away - 2.5).abs() < 0.7)).float()
        clean = shapes[self.label, torch.arange(count)]
        noise = torch.randn(count, SIZE, SIZE, generator=draw)
        self.picture = 1 - clean + 0.6 * noise if dark else clean + 0.4 * noise

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.picture[index][None], self.label[index]


def convolution(inputs: int, outputs: int) -> nn.Module:
    """Normalised. Training is short, so running statistics must follow faster than torch's 0.1 makes them."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs, momentum=0.3))


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = convolution(width, width), convolution(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return relu(x + self.second(relu(self.first(x))))


def residual_network(width: int = 8) -> nn.Module:
    body = convolution(1, width), nn.ReLU(), Residual(width), nn.MaxPool2d(2), Residual(width)
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, SHAPES))


def focal(predicted: Tensor, label: Tensor) -> Tensor:
    """Cross-entropy that dwells on the items one still gets wrong (Lin et al. 2017): the mean over a batch."""
    each = cross_entropy(predicted, label, reduction="none")
    return ((1 - (-each).exp()) ** 2 * each).mean()


def main(rounds: int = 60) -> dict[str, float]:
    """The mean test accuracy of normal agents in percent, by rule."""
    group = [int(agent >= AGENTS // 2) for agent in range(AGENTS)]
    train, test = ([Pictures(n, g == 1, seed + k) for k, g in enumerate(group)] for n, seed in ((60, 0), (200, 100)))
    torch.manual_seed(0)
    right = {"accuracy": lambda predicted, label: predicted.argmax(-1) == label}
    task = Task.supervised(residual_network(), focal, train, test=test, metrics=right, batch=12, forgetting=0.2)
    lies = {"attack": attacks.uniform(), "byzantine": [2, 7]}
    table = {}
    # A new network is no better than chance, and a bland lie seems as good: listen when you know something yourself.
    for rule in (rules.alone(), rules.average(), rules.loss_based(), rules.patient(rules.loss_based(), rounds=10)):
        result = varangian.simulate(task, Graph.ring(AGENTS, 2), rule=rule, rounds=rounds, **lies)
        table[type(rule).__name__] = 100 * float(final(result, "accuracy").mean())
        print(f"{type(rule).__name__:<12}{table[type(rule).__name__]:>6.1f}%")
    return table


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

"""Your own data, model and loss: a Dataset per agent, a small residual network with BatchNorm, focal cross-entropy.

Ten agents look at pictures of bars, edges, spots and rings. Five see them bright on dark, five dark on bright and
noisier: related tasks, not the same one. Two agents are Byzantine.

    python examples/own_model.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu
from torch.utils.data import Dataset

import varangian
from varangian import Graph, Task, attacks, rules
from varangian.optimisers import sgd
from varangian.results import final

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
        picture = shapes[self.label, torch.arange(count)]
        picture = 1 - picture if dark else picture
        self.picture = picture + (0.6 if dark else 0.4) * torch.randn(count, SIZE, SIZE, generator=draw)

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.picture[index][None], self.label[index]


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.first_norm, self.second_norm = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return relu(x + self.second_norm(self.second(relu(self.first_norm(self.first(x))))))


def residual_network(width: int = 8) -> nn.Module:
    stem = nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
    blocks = Residual(width), nn.MaxPool2d(2), Residual(width)
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, SHAPES))


def focal(predicted: Tensor, label: Tensor) -> Tensor:
    """Cross-entropy that dwells on the items one still gets wrong (Lin et al. 2017): the mean over a batch."""
    each = cross_entropy(predicted, label, reduction="none")
    return ((1 - (-each).exp()) ** 2 * each).mean()


def accuracy(predicted: Tensor, label: Tensor) -> Tensor:
    return predicted.argmax(-1) == label


def main(rounds: int = 60) -> dict[str, float]:
    """The mean test accuracy of normal agents in percent, by rule."""
    dark = [agent >= AGENTS // 2 for agent in range(AGENTS)]
    train, test = ([Pictures(n, d, seed + k) for k, d in enumerate(dark)] for n, seed in ((60, 0), (200, 100)))
    torch.manual_seed(0)
    task = Task.supervised(
        residual_network(), focal, train, test=test, metrics={"accuracy": accuracy}, groups=dark,
        batch=12, step_size=0.1, optimiser=sgd(momentum=0.9),
    )  # fmt: skip
    network, table = Graph.ring(AGENTS, 2), {}
    for rule in (rules.alone(), rules.average(), rules.loss_based()):
        result = varangian.simulate(task, network, rule=rule, attack=attacks.gaussian(), byzantine=[2, 7], rounds=rounds)
        name = type(rule).__name__
        table[name] = 100 * float(final(result, "accuracy").mean())
        print(f"{name:<12}{table[name]:>6.1f}%")
    return table


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

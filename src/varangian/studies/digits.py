"""Digits: ten agents read digits, five of them handwritten on white, five on busy backgrounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from varangian import data
from varangian.attacks import shrink, uniform
from varangian.attacks.attack import AnyAttack
from varangian.draws import Draws
from varangian.errors import BadInput
from varangian.graph import Graph
from varangian.optimisers import adam, sgd
from varangian.studies.supervised import correct, limited, seeded
from varangian.task import JudgedOn, Task
from varangian.world import Scene, byzantine_order

GroupTwo = Literal["synthetic", "mnist-m", "kaggle"]


@dataclass(frozen=True)
class digits:
    """The paper's CNN on digits: five agents on MNIST, five on digits over random backgrounds, with uneven data."""

    group2: GroupTwo = "synthetic"
    """What the second five read: our own rendering, MNIST-M in grey, or the paper's set from Kaggle."""
    agents_per_group: int = 5
    most: int = 2000
    """Training images each agent owns, and the one with most sees in an epoch …"""
    fewest: int = 200
    """… while the one with fewest is fed this many of them, drawn anew each epoch; the others lie evenly between."""
    test_images: int = 400
    batch: int = 64
    optimiser: Literal["adam", "sgd"] = "adam"
    """The text's plain gradient descent at 0.001 stays at chance; the authors' program uses Adam."""
    step_size: float = 0.001
    forgetting: float = 0.05
    judge: JudgedOn = "same"
    """On the batch just trained on: the flattered own loss keeps out models of the other group longer."""
    epochs: int = 100
    max_rounds: int | None = None
    """Stop after this many rounds, whatever the epochs."""

    name: ClassVar[str] = "digits"
    byzantine: ClassVar[tuple[int, ...]] = (0, 2, 8)
    attacks: ClassVar[tuple[AnyAttack, ...]] = (uniform(0, 0.1), shrink(0.1))
    metric: ClassVar[str] = "accuracy"
    by_group: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 1 <= self.fewest <= self.most:
            raise BadInput(f"digits needs 1 ≤ fewest ≤ most, but they are {self.fewest} and {self.most}")
        for name in ("agents_per_group", "test_images", "batch", "epochs"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} must be at least 1, but is {getattr(self, name)}")

    @property
    def rounds(self) -> int:
        return limited(self.scene(0).task, self.epochs, self.max_rounds)

    def scene(self, seed: int) -> Scene:
        """Two groups of agents, everyone hearing everyone; who has how much is drawn by seed."""
        each = self.agents_per_group
        groups = [0] * each + [1] * each
        draws = Draws.of(seed, len(groups))
        amounts = self._amounts(draws, groups)
        train, test = [], []
        for group, read in enumerate((data.mnist, _GROUP_TWO[self.group2])):
            x, y, test_x, test_y = _images(read)
            first = draws.take(torch.tensor([group * each]))
            train += [(x[part], y[part]) for part in _dealt(len(x), [self.most] * each, first)]
            test += [(test_x[part], test_y[part]) for part in _dealt(len(test_x), [self.test_images] * each, first)]
        with seeded(seed):
            model = cnn()
        task = Task.supervised(
            model,
            nn.functional.cross_entropy,
            train,
            test=test,
            metrics={"accuracy": correct},
            batch=self.batch,
            step_size=self.step_size,
            forgetting=self.forgetting,
            skip=1 - amounts / self.most,
            judge=self.judge,
            optimiser=adam() if self.optimiser == "adam" else sgd(),
            groups=groups,
            watch_training=True,
        )
        return Scene(task, Graph.complete(len(groups)), byzantine_by_group=True)

    def _amounts(self, draws: Draws, groups: list[int]) -> Int[Tensor, " agent"]:
        """How many images each agent is fed an epoch; a group's last to turn Byzantine sees most (appendix B.3)."""
        ladder = torch.linspace(self.fewest, self.most, self.agents_per_group).long()
        lots = draws.uniform("amount", 0, 1)[:, 0].clone()
        last = byzantine_order(draws, groups)[-2:]
        lots[last] = 2.0
        amounts = torch.empty(len(groups), dtype=torch.long)
        for group in (0, 1):
            own = torch.nonzero(torch.tensor(groups) == group)[:, 0]
            amounts[own[lots[own].argsort()]] = ladder
        return amounts


def cnn() -> nn.Sequential:
    """The network of the paper's table: 130,890 weights."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(576, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


_GROUP_TWO: dict[str, Callable[[], data.Digits]] = {
    "synthetic": data.synthetic_digits,
    "mnist-m": data.mnist_m,
    "kaggle": data.kaggle_digits,
}


@lru_cache(maxsize=2)
def _images(read: Callable[[], data.Digits]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images as the network takes them, (item, 1, 28, 28) in [0, 1], and labels."""
    found = read()

    def scaled(images: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> Tensor:
        return torch.from_numpy(images).unsqueeze(1).float() / 255

    labels = torch.from_numpy(found.train_labels), torch.from_numpy(found.test_labels)
    return scaled(found.train_images), labels[0], scaled(found.test_images), labels[1]


def _dealt(items: int, amounts: list[int], draws: Draws) -> list[Int[Tensor, " part"]]:
    """Deal so many items to each agent, nothing twice, in an order drawn by seed."""
    if sum(amounts) > items:
        raise BadInput(f"{sum(amounts)} images are wanted, but there are {items}; lower most or test_images")
    order = draws.uniform(f"deal {items}", 0, items, torch.float64)[0].argsort()
    return list(order[: sum(amounts)].split(amounts))

"""Digits: ten agents read digits; five read handwriting on white, five read digits on busy backgrounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from varangian.attacks import shrink, uniform
from varangian.attacks.base import AnyAttack
from varangian.core.batches import Pool
from varangian.core.draws import Draws
from varangian.core.errors import BadInput
from varangian.core.graph import Graph
from varangian.core.optimisers import adam, sgd
from varangian.core.scene import Scene, byzantine_order
from varangian.core.task import JudgedOn, Stale, Task
from varangian.studies import data
from varangian.studies.supervised import batch_size, check_items, correct, limited, seeded

GroupTwo = Literal["synthetic", "mnist-m", "kaggle"]


@dataclass(frozen=True)
class digits:
    """The paper's CNN on digits: five agents on MNIST, five on digits over random backgrounds, with uneven data."""

    group2: GroupTwo = "synthetic"
    """The images of the second group: our own rendering, MNIST-M in grey, or the paper's set from Kaggle."""
    agents_per_group: int = 5
    most: int = 2000
    """Training images per epoch of the agent with the most data. They are drawn anew from its group's images."""
    fewest: int = 200
    """Training images per epoch of the agent with the least data; the others are evenly spaced between the two."""
    items: int | None = None
    """Give every agent this many training images of its own, instead of `most` to `fewest` new ones per epoch."""
    test_images: int = 400
    batch: int = 64
    optimiser: Literal["adam", "sgd"] = "adam"
    """The paper says gradient descent at 0.001, which stays at chance; the authors' program uses Adam."""
    step_size: float = 0.001
    forgetting: float = 0.05
    judge: JudgedOn = "next"
    """On the `next` batch, or on the `same` one as just trained on, as in the authors' program.

    `same` is not safe: a sender that knows that batch can send a model that is good there and bad elsewhere."""
    stale: Stale = "wait"
    """What agents that skip a batch do: `wait`, judge on their `last` one, or judge on the `skipped` one, as in the
    authors' program."""
    epochs: int = 100
    max_rounds: int | None = None
    """Stop after this many rounds, even if epochs are left."""

    name: ClassVar[str] = "digits"
    byzantine: ClassVar[tuple[int, ...]] = (0, 2, 8)
    attacks: ClassVar[tuple[AnyAttack, ...]] = (uniform(0, 0.1), shrink(0.1))
    metric: ClassVar[str] = "accuracy"
    by_group: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 1 <= self.fewest <= self.most:
            raise BadInput(f"digits needs 1 ≤ fewest ≤ most, but they are {self.fewest} and {self.most}")
        check_items(self.items)
        for name in ("agents_per_group", "test_images", "batch", "epochs"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} must be at least 1, but is {getattr(self, name)}")

    @property
    def rounds(self) -> int:
        return limited(self, self.epochs, self.max_rounds)

    def scene(self, seed: int) -> Scene:
        """Two groups of agents on a complete graph; the seed decides how much data each agent has."""
        each = self.agents_per_group
        groups = [0] * each + [1] * each
        draws = Draws.of(seed, len(groups))
        sets = [_images(read) for read in (data.mnist, _GROUP_TWO[self.group2])]
        first = draws.take(torch.tensor([0, each]))
        known = [(x, y) for x, y, _, _ in sets]
        train: Pool | list[tuple[Tensor, Tensor]]
        skip: float | Tensor
        if self.items is None:
            train, skip = _shared(known, each), 1 - self._amounts(draws, groups) / self.most
        else:
            train, skip = _dealt(known, [self.items] * each, first, "items"), 0.0
        batch = batch_size(self.batch, self.items)
        with seeded(seed):
            model = cnn()
        task = Task.supervised(
            model,
            nn.functional.cross_entropy,
            train,
            test=_dealt([(x, y) for _, _, x, y in sets], [self.test_images] * each, first, "test_images"),
            metrics={"accuracy": correct},
            batch=batch,
            step_size=self.step_size,
            forgetting=self.forgetting,
            epoch=-(-(self.items or self.most) // batch),
            skip=skip,
            judge=self.judge,
            stale=self.stale,
            optimiser=adam() if self.optimiser == "adam" else sgd(),
            groups=groups,
            watch_training=self.test_images,
        )
        return Scene(task, Graph.complete(len(groups)), byzantine_by_group=True)

    def _amounts(self, draws: Draws, groups: list[int]) -> Int[Tensor, " agent"]:
        """Images per epoch of each agent. In a group, the last agent to turn Byzantine has most (appendix B.3)."""
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
    """Images in the form that the network needs, (item, 1, 28, 28) in [0, 1], and labels."""
    found = read()

    def scaled(images: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> Tensor:
        return torch.from_numpy(images).unsqueeze(1).float() / 255

    labels = torch.from_numpy(found.train_labels), torch.from_numpy(found.test_labels)
    return scaled(found.train_images), labels[0], scaled(found.test_images), labels[1]


def _shared(sets: list[tuple[Tensor, Tensor]], each: int) -> Pool:
    """A pool in which every agent of a group has all training images of that group."""
    start = torch.tensor([0, len(sets[0][0])])
    members = [begin + torch.arange(len(x)) for begin, (x, _) in zip(start, sets, strict=True) for _ in range(each)]
    return Pool.of(torch.cat([x for x, _ in sets]), torch.cat([y for _, y in sets]), members)


def _dealt(
    sets: list[tuple[Tensor, Tensor]], amounts: list[int], first: Draws, setting: str
) -> list[tuple[Tensor, Tensor]]:
    """Deal the images of each group to its agents: `amounts` each, none twice, in an order drawn by seed."""
    hands: list[tuple[Tensor, Tensor]] = []
    for group, (x, y) in enumerate(sets):
        if sum(amounts) > len(x):
            raise BadInput(f"{setting} asks for {sum(amounts)} images, but there are {len(x)}; lower {setting}")
        order = first.uniform(f"deal {len(x)}", 0, len(x), torch.float64)[group].argsort()
        hands += [(x[part], y[part]) for part in order[: sum(amounts)].split(amounts)]
    return hands

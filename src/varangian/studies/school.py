"""School: 139 London schools predict the exam scores of their pupils, each from its own data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from varangian.attacks import shrink, uniform
from varangian.attacks.base import AnyAttack
from varangian.core.draws import Draws
from varangian.core.graph import Graph
from varangian.core.models.base import Models
from varangian.core.scene import Scene
from varangian.core.task import Evaluation, JudgedOn, Some, Task, part_of
from varangian.studies import data
from varangian.studies.supervised import batch_size, check_settings, first_agents, limited, seeded


@dataclass(frozen=True)
class school:
    """Linear regression of exam scores: 139 schools are 139 agents, with 22 to 251 pupils each."""

    test_share: float = 0.25
    """The share of a school's pupils that is used for testing, at least two pupils."""
    items: int | None = None
    """Train on this many pupils per school, or on fewer where a school has fewer. By default on all."""
    batch: int = 10
    step_size: float = 0.03
    forgetting: float = 0.05
    judge: JudgedOn = "next"
    """On the next batch. In linear regression an agent's own model looks too good on the batch just trained on."""
    agents: int | None = None
    """Only the first so many schools take part. By default all."""
    epochs: int = 50
    max_rounds: int | None = None
    """Stop after this many rounds, even if epochs are left."""

    name: ClassVar[str] = "school"
    byzantine: ClassVar[tuple[int, ...]] = (0, 30, 138)
    attacks: ClassVar[tuple[AnyAttack, ...]] = (uniform(0, 0.1), shrink(0.1))
    metric: ClassVar[str] = "rmse"
    by_group: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_settings(self.test_share, self.batch, self.epochs, self.items)

    @property
    def rounds(self) -> int:
        return limited(self, self.epochs, self.max_rounds)

    def scene(self, seed: int) -> Scene:
        """All schools on a complete graph."""
        x, y, pupils = _pupils()
        draws = Draws.of(seed, len(pupils))
        lots = draws.uniform("split", 0, max(map(len, pupils)))
        train, test = [], []
        for own, lot in zip(pupils, lots, strict=True):
            mixed = own[lot[: len(own)].argsort()]
            held = max(2, round(len(own) * self.test_share))
            kept = mixed[:-held][: self.items]
            train.append((x[kept], y[kept]))
            test.append((x[mixed[-held:]], y[mixed[-held:]]))
        batch = batch_size(self.batch, self.items)
        with seeded(seed):
            model = nn.Linear(x.shape[1], 1, bias=False)
        task = Task.supervised(
            model,
            nn.functional.mse_loss,
            train,
            test=test,
            batch=batch,
            step_size=self.step_size,
            forgetting=self.forgetting,
            judge=self.judge,
        )
        assert task.held_out is not None
        variance = torch.stack([target.var(correction=0) for _, target in test])
        task = first_agents(replace(task, held_out=InPoints(task.held_out, variance)), self.agents)
        return Scene(task, Graph.complete(task.agents))


@dataclass(frozen=True, eq=False)
class InPoints:
    """The mean squared error of each school, also as root mean square error and as explained variance."""

    squared_error: Evaluation
    variance: Float[Tensor, " agent"]

    def __call__(self, models: Models) -> Mapping[str, Float[Tensor, " agent"]]:
        error = self.squared_error(models)["test_loss"]
        return {"test_loss": error, "rmse": error.sqrt(), "explained_variance": 1 - error / self.variance}

    def to(self, device: torch.device) -> InPoints:
        return InPoints(self.squared_error.to(device), self.variance.to(device))

    def part(self, agents: Some) -> InPoints:
        """The same for some schools."""
        return InPoints(part_of(self.squared_error, agents), self.variance[agents])


@lru_cache(maxsize=1)
def _pupils() -> tuple[Tensor, Tensor, list[Tensor]]:
    """Attributes of all pupils, each scaled to at most 1; their scores in points; and the pupils of each school."""
    read = data.school()
    x = torch.from_numpy(read.x)
    where = torch.from_numpy(read.school)
    pupils = [torch.nonzero(where == k)[:, 0] for k in range(int(where.max()) + 1)]
    return x / x.abs().amax(0), torch.from_numpy(read.y)[:, None], pupils

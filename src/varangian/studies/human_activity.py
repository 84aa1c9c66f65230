"""Human activity: 30 people are 30 agents, and recognise activities from the motion sensors of a phone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import torch
from jaxtyping import Int
from torch import Tensor, nn

from varangian.attacks import shrink, uniform
from varangian.attacks.base import AnyAttack
from varangian.core.batches import EpochEnds
from varangian.core.draws import Draws
from varangian.core.errors import BadInput
from varangian.core.graph import Graph
from varangian.core.scene import Scene, byzantine_order
from varangian.core.task import JudgedOn, Stale, Task
from varangian.studies import data
from varangian.studies.supervised import batch_size, check_settings, correct, first_agents, limited, seeded


@dataclass(frozen=True)
class human_activity:
    """Softmax regression on UCI HAR: 30 people are 30 agents, and ten of them train on a tenth of their batches."""

    split: Literal["random", "blocked"] = "random"
    """How to choose test windows: at random, as in the paper, or the last recorded ones of each person.

    Adjacent windows overlap by half, so the random split gives results that are too good."""
    test_share: float = 0.25
    """The share of a person's windows that is used for testing."""
    items: int | None = None
    """Train on this many windows per person, or on fewer where a person has fewer. By default on all."""
    scarce: int = 10
    """How many agents train on few batches."""
    scarce_share: float = 0.1
    """The share of their batches that these agents train on."""
    batch: int = 10
    step_size: float = 0.01
    forgetting: float = 0.05
    judge: JudgedOn = "next"
    """On the `next` batch, or on the `same` one as just trained on, as in the authors' program.

    `same` is not safe: a sender that knows that batch can send a model that is good there and bad elsewhere."""
    stale: Stale = "wait"
    """What agents that skip a batch do: `wait`, judge on their `last` one, or judge on the `skipped` one, as in the
    authors' program."""
    epoch: EpochEnds = "shortest"
    """An epoch ends when the first agent has used all its data, as in the authors' program, or when the last has."""
    agents: int | None = None
    """Only the first so many people take part. By default all."""
    epochs: int = 50
    max_rounds: int | None = None
    """Stop after this many rounds, even if epochs are left."""

    name: ClassVar[str] = "human-activity"
    byzantine: ClassVar[tuple[int, ...]] = (0, 10, 29)
    attacks: ClassVar[tuple[AnyAttack, ...]] = (uniform(0, 0.1), shrink(0.1))
    metric: ClassVar[str] = "accuracy"
    by_group: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_settings(self.test_share, self.batch, self.epochs, self.items)
        if not 0 < self.scarce_share <= 1:
            raise BadInput(f"scarce_share must be above 0 and at most 1, but is {self.scarce_share}")

    @property
    def rounds(self) -> int:
        return limited(self, self.epochs, self.max_rounds)

    def scene(self, seed: int) -> Scene:
        """Thirty people on a complete graph."""
        x, y, people = _windows()
        draws = Draws.of(seed, len(people))
        train, test = zip(*(self._split(own, draws, agent) for agent, own in enumerate(people)), strict=True)
        if not 0 <= self.scarce < len(people):
            raise BadInput(f"scarce must be below the number of agents, {len(people)}, but is {self.scarce}")
        # The last agent to turn Byzantine is never scarce, so the only normal agent has all its data (appendix B.2).
        order = byzantine_order(draws)[:-1]
        lots = draws.uniform("scarce", 0, 1)[order, 0]
        skip = torch.zeros(len(people))
        skip[order[lots.argsort()[: self.scarce]]] = 1 - self.scarce_share
        batch = batch_size(self.batch, self.items)
        with seeded(seed):
            model = nn.Linear(x.shape[1], 6)
        task = Task.supervised(
            model,
            nn.functional.cross_entropy,
            [(x[own], y[own]) for own in train],
            test=[(x[own], y[own]) for own in test],
            metrics={"accuracy": correct},
            batch=batch,
            epoch=self.epoch,
            step_size=self.step_size,
            forgetting=self.forgetting,
            skip=skip,
            judge=self.judge,
            stale=self.stale,
            watch_training=True,
        )
        task = first_agents(task, self.agents)
        return Scene(task, Graph.complete(task.agents))

    def _split(self, own: Int[Tensor, " item"], draws: Draws, agent: int) -> tuple[Tensor, Tensor]:
        held = round(len(own) * self.test_share)
        if self.split == "random":
            own = own[draws.uniform("split", 0, len(own))[agent].argsort()]
        return own[:-held][: self.items], own[-held:]


@lru_cache(maxsize=1)
def _windows() -> tuple[Tensor, Tensor, list[Tensor]]:
    """Features and labels of all windows, and the windows of each person."""
    read = data.human_activity()
    person = torch.from_numpy(read.person)
    whose = [torch.nonzero(person == k)[:, 0] for k in range(int(person.max()) + 1)]
    return torch.from_numpy(read.x), torch.from_numpy(read.y), whose

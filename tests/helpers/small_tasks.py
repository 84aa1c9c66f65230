"""Tasks that are small enough to run many times in a test."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from varangian import Task

AGENTS = 14


def softmax(agents: int = AGENTS, optimiser: Any = None, skip: float = 0.0) -> Task:
    draw = torch.Generator().manual_seed(1)

    def data(items: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(items, 5, generator=draw), torch.randint(0, 3, (items,), generator=draw)

    torch.manual_seed(0)
    return Task.supervised(
        nn.Linear(5, 3),
        cross_entropy,
        [data(12 + 3 * k) for k in range(agents)],
        test=[data(7) for _ in range(agents)],
        metrics={"accuracy": lambda p, y: (p.argmax(-1) == y).double()},
        batch=4,
        step_size=torch.linspace(0.02, 0.3, agents),
        forgetting=0.3,
        skip=skip,
        epoch=5,
        optimiser=optimiser,
        groups=[k % 2 for k in range(agents)],
    )

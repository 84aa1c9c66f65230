"""What one site learns: its own data, in the shape that all sites of a fleet agree on."""

from __future__ import annotations

import torch
from torch import nn

from varangian import Task


def task(name: str) -> Task:
    """The task of the agent `name`. Replace the made-up data by the data of your site."""
    generator = torch.Generator().manual_seed(len(name))
    inputs = torch.randn(200, 8, generator=generator)
    targets = (inputs.sum(1, keepdim=True) > 0).float()
    torch.manual_seed(0)  # all sites start from the same model
    return Task.supervised(
        nn.Linear(8, 1),
        nn.functional.binary_cross_entropy_with_logits,
        [(inputs[:150], targets[:150])],
        test=[(inputs[150:], targets[150:])],
        batch=10,
        step_size=0.1,
    )

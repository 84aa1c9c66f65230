"""What one site learns: its own data, in the shape that all sites of a fleet agree on."""

from __future__ import annotations

import zlib

import torch
from torch import nn

from varangian import Task


def task(name: str) -> Task:
    """The data is made up: put that of your site in its place."""
    draws = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    inputs = torch.randn(200, 8, generator=draws)
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

"""Which device to use, and how many seeds to run at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from varangian.core.errors import BadInput
from varangian.core.execution import Execution
from varangian.core.graph import Graph
from varangian.core.scene import Scene
from varangian.core.sizes import read_size
from varangian.engine.options import RunOptions


def execution_for(options: RunOptions, scenes: Sequence[Scene]) -> Execution:
    """How to compute these scenes, as the options say."""
    return Execution(
        device=chosen_device(options.device, scenes),
        threads=options.threads,
        memory=None if options.memory is None else read_size(options.memory),
        compile=options.compile == "on",
    )


def chosen_device(name: str, scenes: Sequence[Scene]) -> torch.device:
    """The device of that name. `auto` is a GPU if there is one and the network is large enough to be faster on it."""
    if name == "auto":
        task = scenes[0].task
        large = len(scenes) * task.agents * task.model.parameters >= 10**5
        return torch.device("cuda" if large and torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise BadInput(f"device {name!r} cannot be used; try 'cpu': {str(error).splitlines()[0][:100]}") from error
    return device


def torch_dtype(name: str) -> torch.dtype:
    """The torch type of `RunOptions.dtype`."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def seeds_at_once(scene: Scene) -> int:
    """How many seeds to run side by side: many if call overhead dominates, else one."""
    if not scene.task.together or not isinstance(scene.graph, Graph):
        return 1
    return max(1, 2**18 // len(scene.graph.senders))

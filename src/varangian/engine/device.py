"""Where and with how many threads to compute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from varangian.core.blocks import FEW, blockwise
from varangian.core.graph import Graph
from varangian.core.scene import Scene
from varangian.engine.world import World
from varangian.errors import BadInput, unknown

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


def chosen_device(name: str, scenes: Sequence[Scene]) -> torch.device:
    """`auto` takes a GPU where there is one and the network is large enough to gain by it."""
    if name == "auto":
        task = scenes[0].task
        large = len(scenes) * task.agents * task.model.parameters >= 10**5
        return torch.device("cuda" if large and torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise BadInput(f"device {name!r} cannot be used here: {str(error).splitlines()[0][:100]}") from error
    return device


def chosen_dtype(name: str) -> torch.dtype:
    if name not in _DTYPES:
        raise unknown("dtype", name, _DTYPES)
    return _DTYPES[name]


def seeds_at_once(scene: Scene) -> int:
    """How many seeds to run side by side: many where calls cost more than numbers, else one."""
    if not scene.task.together or not isinstance(scene.graph, Graph):
        return 1
    return max(1, 2**18 // len(scene.graph.senders))


@contextmanager
def addressed(world: World, round: int) -> Iterator[None]:
    """Set torch's own generator for a round, for models that train with it (dropout), and put it back after."""
    devices = [world.start.device] if world.start.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(
            int(world.draws.bits("training", torch.tensor([round], device=world.start.device), 1)[0, 0, 0])
        )
        yield


@contextmanager
def with_threads(number: int | None) -> Iterator[None]:
    """Runs within use so many threads, whatever their size; as they choose themselves where none is given.

    >>> with with_threads(0): pass
    Traceback (most recent call last):
    varangian.errors.BadInput: a run needs at least one thread, but threads is 0
    """
    if number is not None and number < 1:
        raise BadInput(f"a run needs at least one thread, but threads is {number}")
    token = _GIVEN.set(number or _GIVEN.get())
    try:
        yield
    finally:
        _GIVEN.reset(token)


_GIVEN: ContextVar[int | None] = ContextVar("threads asked for", default=None)


@contextmanager
def threads_for(world: World) -> Iterator[None]:
    """One thread for small networks: splitting small operations costs more than it saves, much more on busy cores.

    Networks of many agents with few parameters each are worked on in blocks, with one thread a block.
    """
    before = torch.get_num_threads()
    numbers = sum(part.numel() for part in world.sample(0)) + world.start.numel()
    blocks = world.start.shape[1] <= FEW and len(world.wiring(0).tables) > 1
    threads = _GIVEN.get() or (before if blocks or numbers >= 2**20 else 1)
    if blocks:
        with blockwise(threads):
            yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)

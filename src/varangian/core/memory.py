"""How much memory a run may take: told before it starts where it cannot do, and shared out while it goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from varangian.core.sizes import read_size
from varangian.errors import BadInput

if TYPE_CHECKING:
    from varangian.core.scene import Scene
    from varangian.rules.base import Rule

_PIECES = 64
"""Into how many pieces what is allowed is cut: one of them is worked on at a time."""
_budget: int | None = None


@contextmanager
def budget(most: str | int | None) -> Iterator[None]:
    """Keep to so much memory, all that the process holds included; without a number, to what the machine has."""
    global _budget
    before, _budget = _budget, None if most is None else read_size(most)
    try:
        yield
    finally:
        _budget = before


def numbers_at_once(usual: int) -> int:
    """How many numbers to work on at a time: as many as usual, or less where the budget is small."""
    return usual if _budget is None else max(1, min(usual, _budget // _PIECES // 4))


def check(more: int, what: str, device: torch.device | str = "cpu") -> None:
    """Refuse what cannot fit into the budget together with what is held already.

    >>> with budget("100MiB"):
    ...     check(10**9, "a thought")
    Traceback (most recent call last):
    varangian.errors.BadInput: a thought needs about ... GiB of memory, but there is 0.1 GiB; ...
    """
    place = torch.device(device)
    needed, most = _held(place) + more, _most(place)
    if needed > most:
        hint = (
            "take fewer agents or edges, or give more memory" if _budget is not None else "take fewer agents or edges"
        )
        raise BadInput(f"{what} needs about {_gib(needed)} of memory, but there is {_gib(most)}; {hint}")


def of_run(scenes: Sequence[Scene], rule: Rule[Any], recorded: int, dtype: torch.dtype, any_liars: bool) -> int:
    """About how many bytes a run of these scenes, recorded so many times, will take besides the scenes themselves.

    Tables of neighbourhoods with what a rule remembers, before and after a round; models in the making; samples; and
    what is recorded.
    """
    task, size = scenes[0].task, dtype.itemsize
    graphs = [scene.graph(0) if callable(scene.graph) else scene.graph for scene in scenes]
    agents = sum(graph.agents for graph in graphs)
    entries = sum(_entries(graph.degrees + 1) for graph in graphs)
    memory = tree_leaves(rule.init(torch.zeros(1, 2, dtype=dtype)))
    per_entry = sum(leaf.element_size() * leaf.numel() // 2 for leaf in memory if leaf.ndim >= 2)
    table = entries * (8 + 1 + 1 + 2 * per_entry + size)
    to_liars = 24 * entries if any_liars else 0
    optimiser = len(task.optimiser.init(torch.zeros(1, 1)))
    models = agents * task.model.parameters * size * (6 + 2 * optimiser)
    sample = len(scenes) * sum(part.numel() for part in task.stream.samples(_draws(task.agents), 0, 1, dtype))
    dense = 6 * size * max(graph.agents**2 if 2 * len(graph.senders) > graph.agents**2 else 0 for graph in graphs)
    record = 8 * agents * size * recorded
    total: int = table + to_liars + models + 3 * size * sample + dense + record
    return total


def _entries(slots: torch.Tensor) -> int:
    """Places in tables: about as many as there are edges, padding included."""
    return min(int(slots.max()) * len(slots), 2 * int(slots.sum()))


def _draws(agents: int) -> Any:
    from varangian.core.draws import Draws

    return Draws.of(0, agents)


def _held(device: torch.device) -> int:
    """What the process, or torch on a GPU, holds now."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):  # not Linux: count from nothing
        return 0


def _most(device: torch.device) -> int:
    if _budget is not None:
        return _budget
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 2**62


def _gib(number: int) -> str:
    return f"{number / 2**30:.1f} GiB"

"""A task of one's own in the place of a study: one task for all seeds, or one made for each seed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch

from varangian.attacks.base import AnyAttack
from varangian.attacks.simple import silent
from varangian.core.batches import Batches
from varangian.core.draws import Draws
from varangian.core.errors import BadInput
from varangian.core.graph import Graph, TimeVarying
from varangian.core.models.stacked import Stacked
from varangian.core.scene import Scene
from varangian.core.task import Task
from varangian.studies.study import Study

Made = TypeVar("Made")
SceneOfSeed = Callable[[int], Task | Scene]
"""From a seed to its task, or to its task with a graph."""
NO_SETTING = {"setting": False}
"""Marks a field that cannot be written to a configuration file."""


def scene_of(task: Task | Study | SceneOfSeed, graph: Graph | TimeVarying | None, seed: int) -> Scene:
    """The network of a seed. Without a graph, everyone hears everyone."""
    if isinstance(task, type):
        raise BadInput(f"{task.__name__} is a class; pass a value of it: {task.__name__}()")
    if isinstance(task, Study):
        if graph is not None:
            raise BadInput("a study has its own graph; leave out graph, or pass a task")
        return _seeded(task.scene, seed)
    if not isinstance(task, Task) and not callable(task):
        raise BadInput(f"pass a study, a Task or a function from the seed to a Task, not {type(task).__name__}")
    made = task if isinstance(task, Task) else _seeded(task, seed)
    if isinstance(made, Scene):
        if graph is not None:
            raise BadInput("a scene has its own graph; leave out graph, or return a task")
        return made
    if not isinstance(made, Task):
        raise BadInput(f"a function of the seed must return a Task or a Scene, but returned {type(made).__name__}")
    return Scene(made, graph if graph is not None else Graph.complete(made.agents))


def _seeded(make: Callable[[int], Made], seed: int) -> Made:
    """What a function makes of a seed. Layers draw their first weights from torch, so its generator is seeded too."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(seed)


@dataclass(frozen=True)
class OwnTask:
    """A study made of a task, or of a function from the seed to a task."""

    rounds: int = 100
    data: str = ""
    """A hash of the first seed's data and models, so that two tasks of the same name are told apart."""
    name: str = field(default="own-task", repr=False, metadata=NO_SETTING)
    metric: str = field(default="loss", repr=False, metadata=NO_SETTING)
    """The metric that figures show."""
    make: Callable[[int], Scene] | None = field(default=None, repr=False, metadata=NO_SETTING)
    fixed: bool = field(default=True, repr=False, metadata=NO_SETTING)
    """Whether all seeds have the same task."""
    byzantine: tuple[int, ...] = field(default=(0,), repr=False, metadata=NO_SETTING)
    attacks: tuple[AnyAttack, ...] = field(default=(silent(),), repr=False, metadata=NO_SETTING)
    by_group: bool = field(default=False, repr=False, metadata=NO_SETTING)

    @staticmethod
    def of(task: Task | SceneOfSeed, graph: Graph | TimeVarying | None, rounds: int, name: str) -> OwnTask:
        """A study of this task, or of the tasks that a function makes."""
        first = scene_of(task, graph, 0)
        make = partial(_scene_of_seed, first, task, graph)
        return OwnTask(rounds, hash_of(first), name, make=make, fixed=isinstance(task, Task))

    def scene(self, seed: int) -> Scene:
        """The network and the task of one seed."""
        if self.make is None:
            raise BadInput("this study was read from a file, without its task")
        return self.make(seed)


def _scene_of_seed(first: Scene, task: Task | SceneOfSeed, graph: Graph | TimeVarying | None, seed: int) -> Scene:
    """The network of a seed; that of seed 0 is made already. Other processes can be sent this function."""
    return first if seed == 0 else scene_of(task, graph, seed)


def hash_of(scene: Scene) -> str:
    """Twelve characters for the numbers of a scene: its first models, its first samples and its graph."""
    task = scene.task
    first: Any = (task.step_size, task.forgetting, task.skip, task.judge, task.stale, task.optimiser, task.epoch)
    digest = hashlib.sha256(repr(first).encode())
    model, draws = task.model, Draws.of(0, task.agents)
    tensors = [
        model.start(task.agents, torch.float32, torch.device("cpu")),
        *task.stream.samples(draws, 0, 1, torch.float32),
    ]
    tensors += model.frozen_values if isinstance(model, Stacked) else []
    if isinstance(task.stream, Batches):
        tensors += [task.stream.pool.x, task.stream.pool.y, task.stream.pool.members]
    tensors += [scene.graph.senders, scene.graph.offsets] if isinstance(scene.graph, Graph) else []
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]

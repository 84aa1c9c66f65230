"""Checkpoints: a run on disk, complete enough to resume at any round and get the same bits."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.utils._pytree import tree_flatten, tree_unflatten

from varangian.attacks.base import Attack
from varangian.core.errors import BadInput
from varangian.core.files import whole
from varangian.core.models.stacked import Stacked
from varangian.engine.options import RunOptions
from varangian.engine.recorder import Recorder
from varangian.engine.state import State
from varangian.engine.world import World
from varangian.rules.base import Rule


def save(path: Path, state: State, recorder: Recorder, fingerprint: str) -> None:
    """Write the state and the record to one file, completely or not at all."""
    tensors = tensors_of(state)
    # safetensors needs contiguous tensors that share no memory.
    record = recorder.tensors(state.round).items()
    tensors |= {f"record/{name}": tensor.detach().clone().contiguous() for name, tensor in record}
    about = {"round": str(state.round), "fingerprint": fingerprint}
    with whole(path) as file:
        save_file(tensors, file, about)


def tensors_of(state: State) -> dict[str, torch.Tensor]:
    """Copies of all tensors of a state, by the names that they have in a file."""
    leaves, _ = tree_flatten(state)
    tensors = {f"state/{i}": leaf for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
    return {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}


def state_from(tensors: Mapping[str, torch.Tensor], like: State) -> State | None:
    """The state that `tensors_of` was given. It must have the shape of `like`, and has its round; None if it has not.

    A table without rows is one that an attack fills in its first round, when it knows the graph.
    """
    leaves, spec = tree_flatten(like)
    filled: list[Any] = []
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            found = tensors.get(f"state/{i}")
            empty = leaf.ndim > 0 and len(leaf) == 0
            if found is None or found.dtype != leaf.dtype or (found.shape != leaf.shape and not empty):
                return None
            # Keep the memory order, so that sums round the same way.
            leaf = found.to(leaf.device) if empty else torch.empty_like(leaf).copy_(found)
        filled.append(leaf)
    return cast(State, tree_unflatten(filled, spec))._replace(round=like.round)


@dataclass
class Saver:
    """Writes checkpoints of a run in another thread while the run goes on. This is safe: a state is never modified.

    Without a path it writes nothing.
    """

    path: Path | None
    mark: str
    """The fingerprint of the run."""
    every: float = 60.0
    """The time between checkpoints, in seconds."""
    _last: float = field(default_factory=time.monotonic)
    _writing: Future[None] | None = None
    _writer: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "checkpoint"))

    @staticmethod
    def beside(file: Path | None, mark: str) -> Saver:
        """A saver whose checkpoint is beside `file`, where the finished run will be saved."""
        return Saver(file and file.with_suffix(".checkpoint"), mark)

    def offer(self, state: State, recorder: Recorder) -> None:
        """Start to write this state if a checkpoint is due. Raises the error of the last write, if it failed."""
        if self.path is None or time.monotonic() - self._last < self.every:
            return
        if self._writing is None or self._writing.done():
            self.wait()
            self._writing = self._writer.submit(save, self.path, state, recorder.so_far(), self.mark)
            self._last = time.monotonic()

    def keep(self, state: State, recorder: Recorder) -> None:
        """Write this state now, and wait for it."""
        self.wait()
        if self.path is not None:
            save(self.path, state, recorder, self.mark)

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def discard(self) -> None:
        """Delete the checkpoint, since the run is finished."""
        self.wait()
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def load(path: Path, like: Callable[[int], State], recorder: Recorder, fingerprint: str) -> State:
    """Read a checkpoint: return its state, and restore its record into `recorder`.

    Args:
        path: The checkpoint.
        like: From a round to a state of the shape that the saved one must have.
        recorder: Receives the record.
        fingerprint: Must be that of the saved run.
    """
    try:
        with safe_open(path, framework="pt") as stored:
            about: dict[str, str] = stored.metadata() or {}
            if about.get("fingerprint") != fingerprint:
                raise BadInput(f"{path} belongs to another run; remove it, or run without --resume")
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path} is not a readable checkpoint; remove it, or run without --resume: {error}") from error
    round = int(about["round"])
    state = state_from(tensors, like(round))
    if state is None:
        raise BadInput(f"{path} does not hold the state of this run; remove it, or run without --resume")
    recorder.restore({name[7:]: tensor for name, tensor in tensors.items() if name.startswith("record/")})
    return state


def fingerprint(world: World, rule: Rule[Any], attack: Attack[Any], rounds: int, options: RunOptions) -> str:
    """A hash of everything that decides the numbers of a run. Only a run with the same hash can use a checkpoint.

    Args:
        world: The network. Its parameters, its first sample and its first graph count.
        rule: How agents combine what they hear.
        attack: What Byzantine agents send.
        rounds: The number of rounds.
        options: Only those that change results count.
    """
    about: tuple[object, ...] = (
        rule,
        attack,
        rounds,
        world.seeds,
        world.model.shared,
        world.task.judge,
        world.task.stale,
        world.task.optimiser,
        options.fingerprint,
    )
    digest = hashlib.sha256(repr(about).encode())
    given = [world.start, world.step_size, world.forgetting, world.byzantine, *world.sample(0)]
    given += [] if world.skip is None else [world.skip]
    for scene in world.scenes:
        given += scene.task.model.frozen_values if isinstance(scene.task.model, Stacked) else []
    for table in world.wiring(0).tables:
        given += [table.receivers, table.senders]
    for tensor in given:
        digest.update(repr((tensor.dtype, tuple(tensor.shape))).encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()

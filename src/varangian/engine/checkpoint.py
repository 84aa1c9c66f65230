"""A run on disk: enough to go on from any round, and get the same bits."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.utils._pytree import tree_flatten, tree_unflatten

from varangian.attacks.base import Attack
from varangian.core.files import whole
from varangian.engine.options import RunOptions
from varangian.engine.recorder import Recorder
from varangian.engine.state import State
from varangian.engine.world import World
from varangian.errors import BadInput
from varangian.rules.base import Rule


def save(path: Path, state: State, recorder: Recorder, fingerprint: str) -> None:
    """Write state and record to one file, whole or not at all."""
    leaves, _ = tree_flatten(state)
    tensors = {f"state/{i}": leaf for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
    tensors |= {f"record/{name}": tensor for name, tensor in recorder.tensors(state.round).items()}
    about = {"round": str(state.round), "fingerprint": fingerprint}
    with whole(path) as file:
        # Copies, for tensors of a state may share memory, which the format refuses.
        save_file({key: value.detach().clone().contiguous() for key, value in tensors.items()}, file, about)


@dataclass
class Saver:
    """Keeps a checkpoint of a run that goes on meanwhile: states are never changed, so another thread can write one.

    Without a path it keeps nothing.
    """

    path: Path | None
    mark: str
    """The fingerprint of the run."""
    every: float = 60.0
    """Seconds from one checkpoint to the next."""
    _last: float = field(default_factory=time.monotonic)
    _writing: Future[None] | None = None
    _writer: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "checkpoint"))

    @staticmethod
    def beside(file: Path | None, mark: str) -> Saver:
        """Keeps its checkpoint beside the file in which the finished run will be."""
        return Saver(file and file.with_suffix(".checkpoint"), mark)

    def offer(self, state: State, recorder: Recorder) -> None:
        """Begin to write this state, if it is time to; an earlier one that could not be written is an error now."""
        if self.path is None or time.monotonic() - self._last < self.every:
            return
        if self._writing is None or self._writing.done():
            self.wait()
            self._writing = self._writer.submit(save, self.path, state, recorder.so_far(), self.mark)
            self._last = time.monotonic()

    def keep(self, state: State, recorder: Recorder) -> None:
        """Write this state and wait until it is written."""
        self.wait()
        if self.path is not None:
            save(self.path, state, recorder, self.mark)

    def wait(self) -> None:
        """Until nothing is being written."""
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def discard(self) -> None:
        """The run is over: no checkpoint is needed."""
        self.wait()
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def load(path: Path, like: Callable[[int], State], recorder: Recorder, fingerprint: str) -> State:
    """The state that was saved, in the shape that `like` gives for its round; the record goes to `recorder`."""
    try:
        with safe_open(path, framework="pt") as stored:
            about: dict[str, str] = stored.metadata() or {}
            if about.get("fingerprint") != fingerprint:
                raise BadInput(f"{path} belongs to another run; remove it or run without --resume")
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path} is not a checkpoint that can be read: {error}") from error
    round = int(about["round"])
    leaves, spec = tree_flatten(like(round))
    filled: list[Any] = []
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            found = tensors.get(f"state/{i}")
            if found is None or found.shape != leaf.shape or found.dtype != leaf.dtype:
                raise BadInput(f"{path} does not hold the state of this run; remove it or run without --resume")
            leaf = torch.empty_like(leaf).copy_(found)  # stored as it was, so that sums go the same way
        filled.append(leaf)
    recorder.restore({name[7:]: tensor for name, tensor in tensors.items() if name.startswith("record/")})
    return cast(State, tree_unflatten(filled, spec))._replace(round=round)


def fingerprint(world: World, rule: Rule[Any], attack: Attack[Any], rounds: int, options: RunOptions) -> str:
    """What must be the same for a run to go on from a checkpoint: everything that decides its numbers."""
    about: tuple[object, ...] = (
        rule,
        attack,
        rounds,
        world.seeds,
        world.model.shared,
        world.task.judge,
        world.task.optimiser,
        options.fingerprint,
    )
    digest = hashlib.sha256(repr(about).encode())
    given = [world.start, world.step_size, world.forgetting, world.byzantine, *world.sample(0)]
    given += [] if world.skip is None else [world.skip]
    for table in world.wiring(0).tables:
        given += [table.receivers, table.senders]
    for tensor in given:
        digest.update(repr((tensor.dtype, tuple(tensor.shape))).encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()

"""Checkpoints: a run on disk, complete enough to resume at any round and get the same bits."""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from varangian.core.checks import one_line
from varangian.core.errors import BadInput
from varangian.core.files import whole
from varangian.engine.fingerprint import what_differs
from varangian.engine.recorder import Recorder
from varangian.engine.state import State


def save(path: Path, state: State, recorder: Recorder, fingerprint: str) -> None:
    """Write the state and the record to one file, completely or not at all."""
    tensors = tensors_of(state)
    # safetensors needs contiguous tensors that share no memory.
    record = recorder.tensors(state.round).items()
    tensors |= {f"record/{name}": tensor.detach().clone().contiguous() for name, tensor in record}
    about = {"round": str(state.round), "fingerprint": fingerprint}
    with whole(path) as file:
        save_file(tensors, file, about | {"checksum": _checksum(tensors, about)})


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


def _checksum(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    """A hash of everything in a checkpoint."""
    digest = hashlib.blake2b(digest_size=16)
    for name, value in sorted(about.items()):
        digest.update(repr((name, value)).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(repr((name, tensor.dtype, tuple(tensor.shape))).encode())
        digest.update(tensor.cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@dataclass
class Saver:
    """Writes checkpoints of a run in another thread while the run goes on. This is safe: a state is never modified.

    The last but one checkpoint stays beside the last one, in case that one is damaged. Without a path nothing is
    written.
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
            self._writing = self._writer.submit(self._write, self.path, state, recorder.so_far())
            self._last = time.monotonic()

    def keep(self, state: State, recorder: Recorder) -> None:
        """Write this state now, and wait for it."""
        self.wait()
        if self.path is not None:
            self._write(self.path, state, recorder)

    def _write(self, path: Path, state: State, recorder: Recorder) -> None:
        save(_beside(path, "new"), state, recorder, self.mark)
        if path.exists():
            os.replace(path, _beside(path, "older"))
        os.replace(_beside(path, "new"), path)

    def load(self, like: Callable[[int], State], recorder: Recorder) -> State | None:
        """The state of the checkpoint, or None if there is none. If the last one is damaged, that of the older one.

        Args:
            like: From a round to a state of the shape that the saved one must have.
            recorder: Receives the record.
        """
        if self.path is None:
            return None
        older = _beside(self.path, "older")
        if self.path.exists():
            try:
                return load(self.path, like, recorder, self.mark)
            except Damaged as error:
                if not older.exists():
                    raise
                state = load(older, like, recorder, self.mark)
                warnings.warn(f"{error}; the run goes on from the older one, after round {state.round}", stacklevel=2)
                return state
        return load(older, like, recorder, self.mark) if older.exists() else None

    def rescue(self, state: State, recorder: Recorder) -> Path | None:
        """Write this state after an error, if that is possible and a round is finished. Returns where it is."""
        if self.path is None or not state.round:
            return None
        try:
            self.keep(state, recorder)
        except Exception:  # a full disk or a lost GPU may be the reason of the error itself
            return None
        return self.path

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def discard(self) -> None:
        """Delete the checkpoint, since the run is finished."""
        self.wait()
        if self.path is not None:
            for path in (_beside(self.path, "new"), _beside(self.path, "older"), self.path):
                path.unlink(missing_ok=True)


class Damaged(BadInput):
    """A checkpoint that is not what was written."""


def _beside(path: Path, word: str) -> Path:
    return path.with_name(f"{path.name}.{word}")


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
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        written = about.pop("checksum", "")
        if _checksum(tensors, about) != written:
            raise Damaged(f"{path} is damaged: its checksum is wrong; remove it, or run without --resume")
    except (SafetensorError, OSError, ValueError, RuntimeError, OverflowError, MemoryError) as error:
        if isinstance(error, BadInput):
            raise
        said = f"{path} is not a readable checkpoint; remove it, or run without --resume: {one_line(error)}"
        raise Damaged(said) from error
    if about["fingerprint"] != fingerprint:
        changed = what_differs(fingerprint, about["fingerprint"])
        raise BadInput(f"{path} belongs to another run ({changed}); remove it, or run without --resume")
    round = int(about["round"])
    state = state_from(tensors, like(round))
    if state is None:
        raise BadInput(f"{path} does not hold the state of this run; remove it, or run without --resume")
    recorder.restore({name[7:]: tensor for name, tensor in tensors.items() if name.startswith("record/")})
    return state

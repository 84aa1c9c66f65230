"""A run on disk: enough to go on from any round, and get the same bits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.utils._pytree import tree_flatten, tree_unflatten

from varangian.attacks.attack import Attack
from varangian.errors import BadInput
from varangian.files import whole
from varangian.record import Recorder
from varangian.rules.rule import Rule
from varangian.state import State
from varangian.world import World


def save(path: Path, state: State, recorder: Recorder, fingerprint: str) -> None:
    """Write state and record to one file, whole or not at all."""
    leaves, _ = tree_flatten(state)
    tensors = {f"state/{i}": leaf for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
    tensors |= {f"record/{name}": tensor for name, tensor in recorder.tensors(state.round).items()}
    about = {"round": str(state.round), "fingerprint": fingerprint}
    with whole(path) as file:
        # Copies, for tensors of a state may share memory, which the format refuses.
        save_file({key: value.detach().clone().contiguous() for key, value in tensors.items()}, file, about)


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
            leaf = found.to(leaf.device)
        filled.append(leaf)
    recorder.restore({name[7:]: tensor for name, tensor in tensors.items() if name.startswith("record/")})
    return cast(State, tree_unflatten(filled, spec))._replace(round=round)


def fingerprint(world: World, rule: Rule[Any], attack: Attack[Any], rounds: int) -> str:
    """What must be the same for a run to go on from a checkpoint: everything that decides its numbers."""
    about = (rule, attack, rounds, world.seeds, world.model.shared, world.task.judge, world.task.optimiser)
    digest = hashlib.sha256(repr(about).encode())
    given = [world.start, world.step_size, world.forgetting, world.byzantine, *world.sample(0)]
    given += [] if world.skip is None else [world.skip]
    for table in world.wiring(0).tables:
        given += [table.receivers, table.senders]
    for tensor in given:
        digest.update(repr((tensor.dtype, tuple(tensor.shape))).encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()

"""A run on disk: enough to go on from any round, and get the same bits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.utils._pytree import tree_flatten, tree_unflatten

from varangian.errors import BadInput
from varangian.files import whole
from varangian.record import Recorder
from varangian.state import State


def save(path: Path, state: State, recorder: Recorder, fingerprint: str) -> None:
    """Write state and record to one file, whole or not at all."""
    leaves, _ = tree_flatten(state)
    tensors = {f"state/{i}": leaf for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
    tensors |= {f"record/{name}": tensor for name, tensor in recorder.tensors().items()}
    about = {"round": str(state.round), "fingerprint": fingerprint}
    with whole(path) as file:
        # Copies, for tensors of a state may share memory, which the format refuses.
        save_file({key: value.detach().clone().contiguous() for key, value in tensors.items()}, file, about)


def load(path: Path, like: State, recorder: Recorder, fingerprint: str) -> State:
    """The state that was saved, in the shape of `like`; the record goes to `recorder`."""
    leaves, spec = tree_flatten(like)
    try:
        with safe_open(path, framework="pt") as stored:
            about: dict[str, str] = stored.metadata() or {}
            if about.get("fingerprint") != fingerprint:
                raise BadInput(f"{path} belongs to another run; remove it or run without --resume")
            stored_tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path} is not a checkpoint that can be read: {error}") from error
    recorder.restore({name[7:]: t for name, t in stored_tensors.items() if name.startswith("record/")})
    filled: Sequence[Any] = [
        stored_tensors[f"state/{i}"].to(leaf.device) if isinstance(leaf, torch.Tensor) else leaf
        for i, leaf in enumerate(leaves)
    ]
    return cast(State, tree_unflatten(filled, spec))._replace(round=int(about["round"]))


def fingerprint(**parts: Any) -> str:
    """What must be the same for a run to go on from a checkpoint."""
    return json.dumps({name: repr(part) for name, part in parts.items()}, sort_keys=True)

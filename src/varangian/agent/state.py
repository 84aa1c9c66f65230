"""An agent's state on disk: two generations, each with a checksum, each written completely or not at all.

A new state replaces the older generation, so the newer one stays until the new one is complete. If a file is damaged,
the agent goes on from the other one. If no file is whole, it stops: it never starts from nothing without being told.
If the agent has other neighbours or data now, it goes on with its model, and its evidence about neighbours starts anew.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from safetensors.torch import save as tensor_bytes
from torch import Tensor
from torch.utils._pytree import tree_leaves

from varangian.agent.message import new_session
from varangian.agent.peer_round import Peer
from varangian.core.errors import BadInput
from varangian.core.files import whole
from varangian.engine.checkpoint import state_from, tensors_of
from varangian.engine.state import State

GENERATIONS = ("state-0", "state-1")
SESSION = "session"
CHECKSUM = hashlib.sha256().digest_size
FINGERPRINT = hashlib.sha256().digest_size
WHO = FINGERPRINT // 2
"""The bytes of a fingerprint that say whose state it is. The others say with which neighbours and data."""
KEPT = ("models", "optimiser", "second")
"""The fields of a state that do not depend on neighbours and data."""


@dataclass(frozen=True)
class Damaged:
    """A file that is not a whole state, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Found:
    """The newest whole state in a folder, and the damaged files beside it."""

    state: State
    damaged: tuple[Damaged, ...]
    changed: bool = False
    """Whether the agent had other neighbours or data when the state was saved."""


def fingerprint(peer: Peer, name: str) -> bytes:
    """Hashes of what a state belongs to: of the agent with its rule and model, and of its neighbours and data."""
    share, world = peer.share, peer.world
    who = (name, share.seed, peer.rule, world.task.optimiser, world.start.dtype, world.model.sizes, world.start.shape)
    around = hashlib.sha256(repr((share.number, share.neighbours)).encode())
    for tensor in (world.start, *world.sample(0)):
        around.update(repr((tensor.dtype, tuple(tensor.shape))).encode())
        around.update(tensor.contiguous().numpy().tobytes())
    return hashlib.sha256(repr(who).encode()).digest()[:WHO] + around.digest()[WHO:]


@dataclass
class Saver:
    """Writes states into a folder, each over the older of the two generations."""

    folder: Path
    mark: bytes
    """The fingerprint of the agent."""
    oldest: str = ""

    def save(self, state: State) -> None:
        """Replace the older generation by this state. Raises OSError if the disk is full.

        The file holds the checksum of the rest, the fingerprint, the round, and the tensors as a safetensors file.
        """
        # A damaged file has no round, so it is replaced first.
        self.oldest = self.oldest or min(GENERATIONS, key=lambda name: _round_of(self.folder / name))
        body = self.mark + state.round.to_bytes(8, "big") + tensor_bytes(tensors_of(state))
        with whole(self.folder / self.oldest) as file, file.open("wb") as stream:
            stream.write(hashlib.sha256(body).digest() + body)
            stream.flush()
            os.fsync(stream.fileno())
        self.oldest = next(name for name in GENERATIONS if name != self.oldest)


def load(folder: Path, peer: Peer, mark: bytes) -> Found | None:
    """The newest whole state in a folder. None if there is no state; `BadInput` if there are only damaged ones."""
    states: list[tuple[State, bool]] = []
    damaged: list[Damaged] = []
    paths = [folder / name for name in GENERATIONS if (folder / name).exists()]
    for path in paths:
        try:
            states.append(_read(path, peer, mark))
        except (ValueError, OSError, SafetensorError) as error:
            if isinstance(error, BadInput):
                raise
            damaged.append(Damaged(path, str(error)))
    if states:
        newest, changed = max(states, key=lambda found: (found[0].round, not found[1]))
        return Found(newest, tuple(damaged), changed)
    if damaged:
        reasons = "; ".join(f"{one.path.name}: {one.reason}" for one in damaged)
        raise BadInput(f"{folder} holds no whole state ({reasons}); restore a copy, or empty the folder to start anew")
    return None


def next_session(folder: Path) -> int:
    """A number that grows with every start of the agent, also if its clock was set back. It is stored at once."""
    path = folder / SESSION
    try:
        before = int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        before = 0
    session = new_session(before)
    with whole(path) as file:
        file.write_text(f"{session}\n", encoding="ascii")
    return session


def last_round(folder: Path) -> int:
    """The number of finished rounds that the folder holds; −1 if it holds no whole state."""
    return max(_round_of(folder / name) for name in GENERATIONS)


def _parts(path: Path) -> tuple[bytes, int, bytes]:
    """The fingerprint, the round and the tensors in a file, after its checksum was compared."""
    stored = path.read_bytes()
    checksum, body = stored[:CHECKSUM], stored[CHECKSUM:]
    if len(body) < FINGERPRINT + 8:
        raise ValueError(f"it has only {len(stored)} bytes")
    if hashlib.sha256(body).digest() != checksum:
        raise ValueError("its checksum does not match")
    return body[:FINGERPRINT], int.from_bytes(body[FINGERPRINT : FINGERPRINT + 8], "big"), body[FINGERPRINT + 8 :]


def _round_of(path: Path) -> int:
    """The round of a whole state, −1 for a damaged or missing file."""
    try:
        return _parts(path)[1]
    except (ValueError, OSError):
        return -1


def _read(path: Path, peer: Peer, mark: bytes) -> tuple[State, bool]:
    """The state in a file, and whether it is one with other neighbours or data."""
    fingerprint, round, stored = _parts(path)
    if fingerprint[:WHO] != mark[:WHO]:
        raise BadInput(
            f"{path} is the state of another agent, rule or model; name another state folder, or empty this one"
        )
    changed = fingerprint != mark
    with torch.no_grad():
        tensors, like = read_tensors(stored), peer.first(round)
        state = state_from(_with_models_of(tensors, like) if changed else tensors, like)
    if state is None:
        raise ValueError("it holds other tensors than this agent has")
    return state, changed


def _with_models_of(stored: Mapping[str, Tensor], like: State) -> dict[str, Tensor]:
    """The tensors of `like`, in which those that do not depend on neighbours and data are the stored ones."""
    tensors, first = tensors_of(like), 0
    for name, field in like._asdict().items():
        places = range(first, first := first + len(tree_leaves(field)))
        if name in KEPT:
            tensors |= {key: stored[key] for key in (f"state/{place}" for place in places) if key in stored}
    return tensors

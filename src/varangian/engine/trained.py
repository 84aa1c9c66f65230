"""The models of all agents, outside of a run: as state dicts, as modules, and in a file.

A run returns the models that its agents end with. Another run can start from them.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from varangian.core.errors import BadInput, unknown
from varangian.core.files import whole
from varangian.core.models.base import Model, Models
from varangian.core.models.stacked import Stacked
from varangian.core.version import __version__

StateDict = dict[str, Tensor]
SMALL = 2**24
"""How many numbers the models of a run may have to be kept without being asked for: 64 MiB in float32."""
THETA = "theta"
"""The name of the parameters of a model that is a formula."""


@dataclass(frozen=True, eq=False)
class AgentModels(Sequence[StateDict]):
    """The models of all agents of one seed: `models[3]` is that of agent 3, as a state dict.

    >>> layer = nn.Linear(2, 1)
    >>> models = AgentModels.of(Stacked.of(layer, nn.functional.mse_loss), torch.zeros(4, 3))
    >>> len(models), models[3]["weight"].shape
    (4, torch.Size([1, 2]))
    >>> models.module(3)
    Linear(in_features=2, out_features=1, bias=True)
    """

    rows: Float[Tensor, "agent parameter"]
    names: tuple[str, ...]
    """What a row holds, in order …"""
    shapes: tuple[torch.Size, ...]
    """… and in which shapes."""
    common: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """What all agents have in common: frozen parameters, and buffers without floating-point numbers."""
    template: nn.Module | None = None
    """The module that all agents started from. A formula has none, and neither have models from a file."""
    seed: int = 0

    @staticmethod
    def of(model: Model, rows: Models, seed: int = 0) -> AgentModels:
        """The models of a task, one row per agent."""
        if not isinstance(model, Stacked):
            return AgentModels(rows, (THETA,), (rows.shape[1:],), seed=seed)
        stored = model.module.state_dict()
        common = {name: value for name, value in stored.items() if _first_name(model.module, name) not in model.names}
        return AgentModels(rows, model.names, model.shapes, common, model.module, seed)

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, agent: int) -> StateDict: ...
    @overload
    def __getitem__(self, agent: slice) -> list[StateDict]: ...
    def __getitem__(self, agent: int | slice) -> StateDict | list[StateDict]:
        if isinstance(agent, slice):
            return [self[one] for one in range(len(self))[agent]]
        if not -len(self) <= agent < len(self):
            raise IndexError(f"there are {len(self)} agents, 0 … {len(self) - 1}, but not {agent}")
        own = {name: part[agent].clone() for name, part in self._stacked().items()}
        if self.template is None:
            return own | {name: value.clone() for name, value in self.common.items()}
        # In the module's order. A parameter that two layers share has two names, and one place in the row.
        named = {name: _first_name(self.template, name) for name in self.template.state_dict()}
        return {name: own[first] if first in own else self.common[name].clone() for name, first in named.items()}

    def module(self, agent: int) -> nn.Module:
        """The model of an agent, as a module of its own in evaluation mode."""
        if self.template is None:
            raise BadInput("these models have no module: they are formulas or come from a file; take their state dicts")
        made = copy.deepcopy(self.template).to(self.rows.dtype).eval()
        made.load_state_dict(self[agent])
        return made

    def save(self, path: Path | str, about: Mapping[str, object] | None = None) -> None:
        """Write the models to one safetensors file, completely or not at all.

        `own/NAME` is a parameter of all agents: its first dimension is the agent. `common/NAME` is the same for all.
        """
        tensors = {f"own/{name}": part.contiguous().clone() for name, part in self._stacked().items()}
        tensors |= {f"common/{name}": value.detach().cpu().clone() for name, value in self.common.items()}
        note = {name: str(value) for name, value in (about or {}).items()}
        note |= {"version": __version__, "seed": str(self.seed), "names": json.dumps(self.names)}
        with whole(Path(path)) as file:
            save_file(tensors, file, note)

    @staticmethod
    def load(path: Path | str) -> AgentModels:
        """Read models that `save` wrote.

        >>> import tempfile
        >>> models = AgentModels(torch.ones(4, 2), ("theta",), (torch.Size([2]),), seed=7)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     models.save(f"{folder}/models.safetensors")
        ...     again = AgentModels.load(f"{folder}/models.safetensors")
        >>> len(again), again.seed, again[0]
        (4, 7, {'theta': tensor([1., 1.])})
        """
        try:
            with safe_open(Path(path), framework="pt") as stored:
                note: dict[str, str] = stored.metadata() or {}
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
            names = tuple(map(str, json.loads(note["names"])))
            own = [tensors[f"own/{name}"] for name in names]
            rows = torch.cat([part.flatten(1) for part in own], 1)
            seed = int(note["seed"])
        except FileNotFoundError as error:
            raise BadInput(f"{path} does not exist; name a file that --save-models or models.save wrote") from error
        except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError, IndexError) as error:
            raise BadInput(f"{path} does not hold the models of agents: {str(error).splitlines()[0]}") from error
        common = {name.removeprefix("common/"): t for name, t in tensors.items() if name.startswith("common/")}
        return AgentModels(rows, names, tuple(part.shape[1:] for part in own), common, seed=seed)

    def _stacked(self) -> dict[str, Float[Tensor, "agent ..."]]:
        """Every parameter of all agents."""
        parts = self.rows.split([shape.numel() for shape in self.shapes], 1)
        return {
            name: part.reshape(-1, *shape) for name, part, shape in zip(self.names, parts, self.shapes, strict=True)
        }

    def __repr__(self) -> str:
        return f"the models of {len(self)} agents, seed {self.seed}: {', '.join(self.names)}"


Start = AgentModels | Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]] | Path | str
"""Models to start from: one state dict for all agents, one per agent, or a file with models."""


def read_start(start: Start) -> AgentModels | Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]]:
    """The models to start from; a file is read."""
    return AgentModels.load(start) if isinstance(start, Path | str) else start


def rows_to_start(model: Model, agents: int, given: Any) -> Models:
    """The initial models of all agents, from state dicts that must fit the model.

    Args:
        model: The model of the task.
        agents: How many agents the task has.
        given: A state dict for all agents, or one for each.
    """
    states = [given] * agents if isinstance(given, Mapping) else given
    if not isinstance(states, Sequence) or isinstance(states, str | bytes):
        raise BadInput(f"start takes state dicts or a file, but got {type(given).__name__}")
    if len(states) != agents:
        raise BadInput(f"start has the models of {len(states)} agents, but the task has {agents}")
    like = AgentModels.of(model, torch.zeros(1, model.parameters))
    if isinstance(given, AgentModels) and (given.names, given.shapes) == (like.names, like.shapes):
        _check_common(like, given.common, "start")
        rows = given.rows
    elif isinstance(given, Mapping):
        rows = _row(like, given, "start").repeat(agents, 1)
    else:
        rows = torch.stack([_row(like, state, f"start, agent {agent}") for agent, state in enumerate(states)])
    if not bool(rows.isfinite().all()):
        raise BadInput("start has numbers that are not finite")
    return rows


def _row(like: AgentModels, state: Mapping[str, Tensor], where: str) -> Float[Tensor, " parameter"]:
    aliases = {} if like.template is None else {n: _first_name(like.template, n) for n in like.template.state_dict()}
    for name in state:
        if name not in like.names and name not in like.common and name not in aliases:
            raise unknown(f"parameter in {where}:", str(name), (*like.names, *like.common))
    parts: list[Tensor] = []
    for name, shape in zip(like.names, like.shapes, strict=True):
        if name not in state:
            raise BadInput(f"{where} has no {name!r}; the model needs {', '.join(like.names)}")
        value = torch.as_tensor(state[name])
        if value.shape != shape:
            raise BadInput(f"{where}: {name!r} has shape {tuple(value.shape)}, but the model needs {tuple(shape)}")
        parts.append(value.detach().cpu().reshape(-1))
    _check_common(like, state, where)
    return torch.cat(parts)


def _check_common(like: AgentModels, given: Mapping[str, Tensor], where: str) -> None:
    """Frozen parameters belong to the model. Others would silently be ignored, so they are refused."""
    for name, value in like.common.items():
        if value.is_floating_point() and name in given and not torch.equal(given[name].cpu().to(value.dtype), value):
            raise BadInput(f"{where}: the frozen parameter {name!r} is not that of the model; load it into the model")


def _first_name(module: nn.Module, name: str) -> str:
    """The name under which a parameter is listed: the first one, if several layers share it."""
    every = dict(module.named_parameters(remove_duplicate=False))
    if name not in every:
        return name
    return next(other for other, value in every.items() if value is every[name])


def kept(numbers: int, wanted: bool | None) -> bool:
    """Whether to keep final models with this many numbers: if asked to, or by default if they are small."""
    return numbers <= SMALL if wanted is None else wanted


def of_seeds(models: Models, tasks_models: Sequence[Model], seeds: Sequence[int]) -> dict[int, AgentModels]:
    """The models of networks side by side, by seed."""
    rows = models.detach().cpu().unflatten(0, (len(seeds), -1)).unbind()
    parts = zip(tasks_models, rows, seeds, strict=True)
    return {seed: AgentModels.of(model, own.contiguous(), seed) for model, own, seed in parts}

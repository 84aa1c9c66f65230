"""What `simulate` returns: a labelled dataset with the final models of all agents, and tidy tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import xarray as xr
from torch import nn

from varangian.core.errors import BadInput
from varangian.engine import results, tables
from varangian.engine.part_file import load_part, save_part
from varangian.engine.trained import AgentModels

if TYPE_CHECKING:
    import pandas as pd


class Result(xr.Dataset):  # type: ignore[no-untyped-call]
    """An xarray Dataset (seed × round × agent) that also holds the models with which the agents end.

    A part of a result (`result.isel(seed=0)`) is a result too, but only the whole one has the models.
    """

    __slots__ = ("kept_models", "timings")
    kept_models: Mapping[int, AgentModels]
    timings: Mapping[str, float]
    """The seconds of each phase: set-up, compile, rounds, recording, writing. Empty if the result was read from a file.
    On a GPU, work is counted where the processor waits for it."""

    @classmethod
    def of(
        cls,
        data: xr.Dataset,
        models: Mapping[int, AgentModels] | None = None,
        timings: Mapping[str, float] | None = None,
    ) -> Self:
        """A result from a dataset, from the models of each seed, and from the seconds of each phase."""
        made = cls(data.data_vars, data.coords, data.attrs)
        made.kept_models = dict(models or {})
        made.timings = dict(timings or {})
        return made

    def alike(self, data: xr.Dataset) -> Self:
        """A result with other data, and with the models and timings of this one."""
        return type(self).of(data, getattr(self, "kept_models", None), getattr(self, "timings", None))

    def saying(self, about: Mapping[str, Any]) -> Self:
        """The same result with these attributes added."""
        return self.alike(self.assign_attrs(about))

    def timed(self, seconds: Mapping[str, float]) -> Self:
        """The same result with the seconds of each phase."""
        return type(self).of(self, getattr(self, "kept_models", None), seconds)

    @property
    def models(self) -> AgentModels:
        """The final models of all agents: `result.models[3]` is the state dict of agent 3.

        With several seeds these are the models of the first one; `models_of(seed)` has the others.
        """
        return self.models_of()

    def models_of(self, seed: int | None = None) -> AgentModels:
        """The final models of a seed, by default of the first."""
        models: Mapping[int, AgentModels] = getattr(self, "kept_models", {})
        if not models:
            raise BadInput(
                "this result has no models: they were large (ask for them with save_models=True), or this is a part "
                "or a copy of a result, or it was read from a file"
            )
        wanted = next(iter(models)) if seed is None else seed
        if wanted not in models:
            raise BadInput(f"this result has the seeds {', '.join(map(str, models))}, but not {seed}")
        return models[wanted]

    def module(self, agent: int, seed: int | None = None) -> nn.Module:
        """The final model of an agent as a module of its own, in evaluation mode."""
        return self.models_of(seed).module(agent)

    def curves(self) -> pd.DataFrame:
        """One row per seed, metric and point in time: `mean` and `worst` over normal agents."""
        return tables.curves(self)

    def agents(self) -> pd.DataFrame:
        """One row per seed and agent: whether it is Byzantine, its group, and every metric at the end."""
        return tables.agents(self)

    def trust(self) -> pd.DataFrame:
        """One row per seed, recorded round and pair of agents: the weight that `receiver` gives to `sender`."""
        return tables.trust(self)

    def __copy__(self) -> Self:
        return self.alike(super().__copy__())

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self.alike(super().__deepcopy__(memo))


def joined(parts: Sequence[Result]) -> Result:
    """The results of several seeds as one."""
    if len(parts) == 1:
        return parts[0]
    models = {seed: own for part in parts for seed, own in part.kept_models.items()}
    return Result.of(results.joined(parts), models)


def save_finished(result: Result, file: Path) -> None:
    """Save the result of some seeds to a file, with the models beside it."""
    for seed, models in result.kept_models.items():
        models.save(_models_file(file, seed))
    save_part(result, file)


def finished(file: Path, fingerprint: str, seeds: Sequence[int]) -> Result | None:
    """What `save_finished` saved, with the models of `seeds`. None if it is not there, or was saved without them."""
    files = {seed: _models_file(file, seed) for seed in seeds}
    if not file.exists() or not all(path.exists() for path in files.values()):
        return None
    models = {seed: AgentModels.load(path) for seed, path in files.items()}
    return Result.of(load_part(file, fingerprint), models)


def _models_file(file: Path, seed: int) -> Path:
    return file.with_name(f"models-{seed}.safetensors")


def load(path: Path | str) -> Result:
    """Read a saved result: `metrics.nc` of a run folder, or what `to_netcdf` wrote."""
    return Result.of(results.load(path))

"""Results as labelled arrays (seed × round × agent): saved to one file, and summarised in one table."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Int
from torch import Tensor

from varangian.core.errors import BadInput
from varangian.core.files import whole
from varangian.core.measures import higher_is_better as higher_is_better
from varangian.core.scene import Scene
from varangian.engine.recorder import Recorder
from varangian.engine.triggers import SUCCESS
from varangian.engine.world import World

Array = np.ndarray[Any, Any]

UNWEIGHED = ("byzantine_weight", "kept")
"""Metrics about weights. Tables show their mean only, since a worst agent would mean little."""


def in_percent(metric: str) -> bool:
    """Whether a metric is a share of items, which people read in percent."""
    return "accuracy" in metric or metric == SUCCESS


def labelled(world: World, recorder: Recorder, seconds: float, empty: bool = False) -> xr.Dataset:
    """The record of a run as an xarray Dataset with dimensions seed × round × agent (and epoch, snapshot, slot).

    With `empty`, the recorder is emptied on the way, so that its numbers are never held twice.
    """
    senders = None
    if recorder.weights:
        wiring = world.wiring(0)
        senders = wiring.join_tables([table.senders for table in wiring.tables]).cpu()
    # Results list agents by number, even if they were reordered in memory.
    place = slice(None) if world.agent_order is None else world.agent_order.place
    is_byzantine = world.is_byzantine.cpu()[place]
    return dataset(world.scenes, world.seeds, is_byzantine, recorder, senders, seconds, place, empty)


def dataset(
    scenes: Sequence[Scene],
    numbers: Sequence[int],
    is_byzantine: Bool[Tensor, " agent"],
    recorder: Recorder,
    senders: Int[Tensor, "agent slot"] | None,
    seconds: float,
    place: slice | Int[Tensor, " agent"] = slice(None),
    empty: bool = False,
) -> xr.Dataset:
    """The record of networks side by side, one per seed, as an xarray Dataset.

    Args:
        scenes: The networks.
        numbers: Their seeds.
        is_byzantine: Which agents are Byzantine, network after network.
        recorder: What was measured.
        senders: Whom each slot hears, if weights were recorded.
        seconds: How long the run took.
        place: The position of each agent in the record. By default agents are in order.
        empty: Empty the recorder on the way.

    Returns:
        A dataset with dimensions seed, round and agent (and epoch, snapshot and slot).
    """
    seeds, agents = len(numbers), len(is_byzantine) // len(numbers)

    def by_seed(rows: list[torch.Tensor]) -> Array:
        if isinstance(place, slice) and rows[0].device.type == "cpu":
            ordered = torch.stack(list(rows))
        else:
            ordered = torch.empty((len(rows), *rows[0].shape), dtype=rows[0].dtype)
            for into, row in zip(ordered, rows, strict=True):  # no second copy of all rows is held
                into.copy_(row.cpu()[place])
        if empty:
            rows.clear()
        return ordered.view(len(ordered), seeds, agents, *ordered.shape[2:]).transpose(0, 1).numpy()

    data: dict[str, Any] = {}
    evaluated, slots = bool(recorder.held_out), recorder.weights[0].shape[1] if recorder.weights else 0
    for name, rows in recorder.streaming.items():
        data[name] = (("seed", "round", "agent"), by_seed(rows))
    for name, rows in recorder.held_out.items():
        data[name] = (("seed", "epoch", "agent"), by_seed(rows))
    if senders is not None:
        data["weight"] = (("seed", "snapshot", "agent", "slot"), by_seed(recorder.weights))
        first = torch.arange(seeds)[:, None, None] * agents
        data["sender"] = (("seed", "agent", "slot"), (senders.view(seeds, agents, -1) - first).numpy())
    data["byzantine_agent"] = (("seed", "agent"), is_byzantine.view(seeds, agents).numpy())
    if scenes[0].task.groups is not None:
        groups = [list(scene.task.groups or ()) for scene in scenes]
        data["group"] = (("seed", "agent"), np.asarray(groups))
    if scenes[0].positions is not None:
        places = [scene.positions.cpu().numpy() for scene in scenes if scene.positions is not None]
        data["position"] = (("seed", "agent", "axis"), np.stack(places))
    data["seconds"] = (("seed",), np.full(seeds, seconds / seeds))
    coords: dict[str, Any] = {"seed": list(numbers), "round": recorder.rounds, "agent": np.arange(agents)}
    names = [scene.task.names for scene in scenes]
    if names[0] is not None and all(of_seed == names[0] for of_seed in names):
        coords["name"] = ("agent", np.asarray(names[0], dtype=str))
    if evaluated:
        coords["epoch"] = recorder.epochs
    if slots:
        coords["snapshot"] = recorder.weight_rounds
        coords["slot"] = np.arange(slots)
    return xr.Dataset(data, coords)


def metrics_of(result: xr.Dataset) -> list[str]:
    """The names of the metrics: what was measured per agent over rounds or epochs."""
    return [str(name) for name, array in result.data_vars.items() if {"round", "epoch"} & set(map(str, array.dims))]


def final(result: xr.Dataset, metric: str) -> xr.DataArray:
    """The metric of each normal agent at the end of the run; nan for Byzantine agents.

    Held-out metrics are those of the last evaluation. Other metrics are averaged over the last fifth of the rounds.
    """
    array = result[metric]
    if "epoch" in array.dims:
        last = array.isel(epoch=-1)
    else:
        end = int(result["round"][-1])
        # Use float64: where a rule fails, the sum may overflow in float32.
        last = array.sel(round=slice(end - max(1, end // 5) + 1, None)).mean("round", dtype=np.float64)
    return last.where(~result["byzantine_agent"])


def summary(result: xr.Dataset) -> list[dict[str, float | int]]:
    """One row per seed: rounds, seconds, and for every metric its mean and its worst value over normal agents."""
    names = metrics_of(result)
    at_end = {name: final(result, name) for name in names}
    rows: list[dict[str, float | int]] = []
    for seed in result["seed"].values:
        row: dict[str, float | int] = {
            "seed": int(seed),
            "rounds": int(result["round"][-1]),
            "seconds": round(float(result["seconds"].sel(seed=seed)), 4),
        }
        for name in names:
            values = at_end[name].sel(seed=seed).values
            values = values[~np.isnan(values)]
            if name in UNWEIGHED:
                row[name] = float(values.mean()) if len(values) else float("nan")
                continue
            worst = np.min if higher_is_better(name) else np.max
            row[f"{name}_mean"] = float(values.mean()) if len(values) else float("nan")
            row[f"{name}_worst"] = float(worst(values)) if len(values) else float("nan")
        rows.append(row)
    return rows


def save(result: xr.Dataset, path: Path) -> None:
    """Save to one netCDF file, completely or not at all.

    It is compressed if h5netcdf is installed, and else in the classic format. Each variable is stored in pieces, so
    that one record of many agents can be read without the others.
    """
    if find_spec("h5netcdf") is None or find_spec("h5py") is None:
        stored = result.to_netcdf(engine="scipy")
    else:
        large = {str(name): array.shape for name, array in result.variables.items() if array.size > 1000}
        # Bytes of the same significance are put together first: that compresses better, and takes less time.
        how = {"zlib": True, "complevel": 1, "shuffle": True}
        compact = {name: {**how, "chunksizes": _piece(shape)} for name, shape in large.items()}
        stored = result.to_netcdf(engine="h5netcdf", encoding=compact)
    # Build the file in memory first: on a full disk HDF5 crashes the process, but a plain write only raises an error.
    with whole(path) as file:
        file.write_bytes(stored)


def _piece(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of the pieces of a variable: consecutive numbers, of which a piece has at most 2¹⁸.

    >>> _piece((1, 1, 10, 1_000_000)), _piece((15, 5, 500, 100))
    ((1, 1, 1, 262144), (1, 5, 500, 100))
    """
    piece, room = list[int](), 2**18
    for size in reversed(shape):
        piece.append(min(size, max(1, room)))
        room //= max(1, piece[-1])
    return tuple(reversed(piece))


def load(path: Path | str) -> xr.Dataset:
    """Read a saved result."""
    try:
        with xr.open_dataset(path) as stored:
            return stored.load()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path} is not a result file: {str(error).splitlines()[0]}") from error


def joined(parts: Sequence[xr.Dataset]) -> xr.Dataset:
    """The results of several seeds as one. Agents with fewer neighbours have empty slots at the end."""
    blank = {"weight": 0.0, "sender": -1}
    return xr.concat(parts, "seed", data_vars="minimal", coords="minimal", join="outer", fill_value=blank)

"""Results as tidy tables: one row per curve point, per agent, or per pair of agents.

Use these instead of `to_dataframe`, which repeats every number for every round, snapshot and neighbour.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from varangian.core.errors import BadInput
from varangian.engine.results import UNWEIGHED, final, higher_is_better, metrics_of

if TYPE_CHECKING:
    import pandas as pd

LABELS = ("rule", "attack", "byzantine")


def curves(result: xr.Dataset) -> pd.DataFrame:
    """One row per seed, metric and point in time: `mean` and `worst` over normal agents.

    `unit` says whether `time` is a round or an epoch. A result of several rules and attacks has columns for these.
    """
    return _by_cell(result, _curves)


def agents(result: xr.Dataset) -> pd.DataFrame:
    """One row per seed and agent: whether it is Byzantine, its group, and every metric at the end of the run.

    Metrics are those of `varangian.final`, and so nan for Byzantine agents.
    """
    return _by_cell(result, _agents)


def trust(result: xr.Dataset) -> pd.DataFrame:
    """One row per seed, recorded round and pair of agents: the `weight` that `receiver` gives to `sender`.

    Weights are recorded in networks of at most 200 agents, some twenty times in a run, if the rule has weights.
    """
    if "weight" not in result:
        raise BadInput("this result has no weights: the network has more than 200 agents, or no rule has weights")
    return _by_cell(result, _trust)


def _by_cell(result: xr.Dataset, of: Callable[[xr.Dataset], pd.DataFrame]) -> pd.DataFrame:
    """One table of all cells, labelled by rule, attack and number of Byzantine agents.

    Without Byzantine agents all attacks coincide. Their one cell has the attack `none`.
    """
    import pandas as pd

    if "cell" not in result.dims:
        return of(result)
    seen: set[tuple[object, ...]] = set()
    parts: list[pd.DataFrame] = []
    for number in range(result.sizes["cell"]):
        cell = result.isel(cell=number)
        label = {name: cell[name].item() for name in LABELS}
        label["attack"] = label["attack"] if label["byzantine"] else "none"
        if tuple(label.values()) in seen:
            continue
        seen.add(tuple(label.values()))
        table = of(cell)
        for place, (name, value) in enumerate(label.items()):
            table.insert(place, name, value)
        parts.append(table)
    return pd.concat(parts, ignore_index=True)


def _curves(result: xr.Dataset) -> pd.DataFrame:
    import pandas as pd

    parts: list[pd.DataFrame] = []
    normal = ~result["byzantine_agent"].astype(bool)
    for name in metrics_of(result):
        if "agent" not in result[name].dims:
            continue
        values = result[name].astype(float).where(normal)
        unit = "epoch" if "epoch" in values.dims else "round"
        values = values.dropna(unit, how="all")
        worst = values.min("agent") if higher_is_better(name) else values.max("agent")
        table = xr.Dataset({"mean": values.mean("agent"), "worst": worst.where(name not in UNWEIGHED)})
        table = table.transpose("seed", unit).reset_coords(drop=True)
        frame = table.to_dataframe().reset_index().rename(columns={unit: "time"})
        frame.insert(1, "metric", name)
        frame.insert(2, "unit", unit)
        parts.append(frame)
    return pd.concat(parts, ignore_index=True)


def _agents(result: xr.Dataset) -> pd.DataFrame:
    ends = {name: final(result, name) for name in metrics_of(result) if "agent" in result[name].dims}
    about = {"is_byzantine": result["byzantine_agent"].astype(bool)}
    for name in ("name", "group"):
        if name in result:
            about[name] = result[name].broadcast_like(result["byzantine_agent"])
    table = xr.Dataset({name: array.reset_coords(drop=True) for name, array in {**about, **ends}.items()})
    return table.transpose("seed", "agent").to_dataframe().reset_index()


def _trust(result: xr.Dataset) -> pd.DataFrame:
    import pandas as pd

    weight = result["weight"].transpose("seed", "snapshot", "agent", "slot").values
    sender = np.nan_to_num(result["sender"].transpose("seed", "agent", "slot").values.astype(float), nan=-1).astype(int)
    receiver = np.broadcast_to(np.arange(sender.shape[1])[:, None], sender.shape[1:])
    # Empty slots hold −1 or the agent itself; the agent's own weight is in the first slot.
    used = (sender >= 0) & ((sender != receiver) | (np.arange(sender.shape[2]) == 0))
    seeds, snapshots = result["seed"].values, result["snapshot"].values
    is_byzantine = result["byzantine_agent"].transpose("seed", "agent").values.astype(bool)
    parts: list[pd.DataFrame] = []
    for place, seed in enumerate(seeds):
        here, sent = receiver[used[place]], sender[place][used[place]]
        for at, round in enumerate(snapshots):
            weights = weight[place, at][used[place]]
            about = {"seed": seed, "round": round, "receiver": here, "sender": sent, "weight": weights}
            parts.append(pd.DataFrame({**about, "from_byzantine": is_byzantine[place][sent]}))
    table = pd.concat(parts, ignore_index=True)
    return table[table["weight"].notna()].reset_index(drop=True)

"""What a picture of the network shows: where agents are, who hears whom, and who trusts whom. It is drawn elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from varangian.core.errors import BadInput
from varangian.engine.results import Array

VISIBLE = 2000
"""The most agents in a picture of a network; more would cover each other."""


@dataclass(frozen=True, eq=False)
class NetworkData:
    """The network of one seed."""

    heading: str
    places: Array
    """Where each agent is drawn."""
    group: Array
    is_byzantine: Array
    pairs: Array
    """The neighbours."""
    trust: Array | None
    """For each pair, the weight that they give each other in the end. None if it is not known."""
    heading_of_trust: str


def network_data(metrics: xr.Dataset, byzantine: int | None = None) -> NetworkData:
    """The network of the first seed.

    Agents have their positions, or are on a circle if they have none. `byzantine` is the number of Byzantine agents; by
    default it is the largest number that leaves a majority of normal agents. Weights are those of a loss-based run of
    this scenario, if they are known. Of a large network, there are the `VISIBLE` agents in the middle.
    """
    everyone = metrics.isel(seed=0)
    cell = cell_of(everyone, largest_minority(metrics) if byzantine is None else byzantine)
    heading = _heading(metrics.sizes["agent"], int(everyone["byzantine_agent"].isel(cell=cell).sum()))
    first = in_the_middle(everyone)
    shown = first.isel(cell=cell)
    is_byzantine, pairs = shown["byzantine_agent"].values.astype(bool), neighbours(first)
    trust = final_trust(shown, pairs, is_byzantine)
    of_trust = "" if trust is None else _heading_of_weights(shown)
    return NetworkData(heading, positions(first), groups(first), is_byzantine, pairs, trust, of_trust)


def in_the_middle(first: xr.Dataset, most: int = VISIBLE) -> xr.Dataset:
    """One seed of a network, cut to the agents in the middle. Agents without positions are taken at equal distances."""
    agents = first.sizes["agent"]
    if agents <= most:
        return first
    if "position" in first:
        places = positions(first)
        from_middle = np.abs(places - np.median(places, axis=0)).max(1)
        kept = np.sort(np.argpartition(from_middle, most)[:most])
    else:
        kept = np.linspace(0, agents - 1, most).round().astype(int)
    some = first.isel(agent=kept)
    if "sender" not in first:
        return some
    place = np.full(agents + 1, np.nan)  # the last entry stands for senders that are missing
    place[kept] = np.arange(most)
    senders = some["sender"].transpose("agent", "slot")
    return some.assign(sender=senders.copy(data=place[np.nan_to_num(senders.values, nan=-1).astype(int)]))


def largest_minority(metrics: xr.Dataset) -> int:
    """The largest number of Byzantine agents that leaves a normal majority; if there is none, the smallest."""
    counts = sorted({int(count) for count in metrics["byzantine"].values})
    return max((count for count in counts if 2 * count < metrics.sizes["agent"]), default=counts[0])


def positions(first: xr.Dataset) -> Array:
    """The positions of the agents of one seed: agent × 2."""
    if "position" in first and first.sizes["axis"] >= 2:
        return np.asarray(first["position"].values[:, :2], dtype=float)
    around = 2 * np.pi * np.arange(first.sizes["agent"]) / first.sizes["agent"]
    return np.stack((np.sin(around), np.cos(around)), 1)


def groups(first: xr.Dataset) -> Array:
    """The group of each agent. Without groups, all agents are in the same one."""
    return first["group"].values if "group" in first else np.zeros(first.sizes["agent"], dtype=int)


def cell_of(first: xr.Dataset, byzantine: int) -> int:
    """A cell with this number of Byzantine agents; preferably one of the paper's loss-based rule."""
    rules = [str(rule) for rule in first["rule"].values]
    cells = np.flatnonzero(first["byzantine"].values == byzantine).tolist()
    if not cells:
        raise BadInput(f"no run has {byzantine} Byzantine agents")
    return min(cells, key=lambda c: (not _is_loss_based(rules[c]), rules[c] != "loss-based"))


def neighbours(first: xr.Dataset) -> Array:
    """All pairs i < j in which one agent receives from the other, without duplicates."""
    if "sender" not in first:
        return np.empty((0, 2), dtype=int)
    senders = first["sender"].transpose("agent", "slot").values
    receivers = np.broadcast_to(np.arange(len(senders))[:, None], senders.shape)
    heard = np.stack((senders, receivers), -1).reshape(-1, 2)
    heard = heard[np.isfinite(heard).all(1)].astype(int)  # joining cells may have filled missing values with nan
    return np.unique(np.sort(heard[heard[:, 0] != heard[:, 1]], axis=1), axis=0)


def final_trust(shown: xr.Dataset, pairs: Array, is_byzantine: Array) -> Array | None:
    """For each pair, the larger of the two weights that its normal agents give each other.

    None if the weights are unknown, or if the rule is not loss-based.
    """
    if not ("weight" in shown and "sender" in shown and len(pairs) and _is_loss_based(str(shown["rule"].values))):
        return None
    table = shown["weight"].isel(snapshot=-1).transpose("agent", "slot").values
    senders = shown["sender"].transpose("agent", "slot").values
    if not np.isfinite(table).any():
        return None
    known = np.isfinite(senders) & np.isfinite(table) & ~is_byzantine[:, None]
    receivers = np.broadcast_to(np.arange(len(senders))[:, None], senders.shape)
    weight = np.zeros((len(senders), len(senders)))
    np.maximum.at(weight, (receivers[known], senders[known].astype(int)), table[known])
    i, j = pairs.T
    heavier: Array = np.maximum(weight[i, j], weight[j, i])
    return heavier


def _heading(agents: int, byzantine: int) -> str:
    many = f"{agents} agents" if agents != 1 else "1 agent"
    many += f", {byzantine} Byzantine" if byzantine else ""
    return many if agents <= VISIBLE else f"{many}; the {VISIBLE} in the middle"


def _heading_of_weights(shown: xr.Dataset) -> str:
    attack = str(shown["attack"].values).partition(":")[0]
    against = f", attack {attack}" if int(shown["byzantine"]) else ""
    return rf"Final weights $a_{{\ell k}}$ of {shown['rule'].values}{against}"


def _is_loss_based(rule: str) -> bool:
    return rule.partition(":")[0] == "loss-based"

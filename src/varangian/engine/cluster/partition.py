"""Which shard an agent belongs to: shards of the same size between which few messages have to travel.

A model is sent to a shard once, however many agents hear it there, so what counts is not edges but pairs of a sender
and another shard that hears it: METIS calls their number the communication volume and can minimise it.

All agents weigh alike, whatever their degree: models, samples and what an optimiser remembers are so much an agent,
and room for these is what shards are taken for. Where degrees differ widely, judging does not spread as evenly.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from varangian.core.graph import Graph
from varangian.errors import BadInput

SLACK = 0.03
"""By which share the size of a shard may be off: a little freedom saves many messages."""

Parts = np.ndarray[Any, np.dtype[np.int64]]


def parts(graph: Graph, shards: int) -> Int[Tensor, " agent"]:
    """The shard of every agent: sizes off by 3 % or one agent at most, and few models that have to travel.

    Sparse graphs are cut by METIS where pymetis is installed; else agents are put in an order in which neighbours
    stand near each other (reverse Cuthill–McKee) and cut into equal pieces. Where about everyone hears everyone, any
    equal pieces are as good as others. The same graph is always cut the same way.

    >>> parts(Graph.complete(5), 2)
    tensor([0, 0, 0, 1, 1])
    """
    agents = graph.agents
    if shards < 1:
        raise BadInput(f"a network is spread over at least one shard, not {shards}")
    if shards > agents:
        raise BadInput(f"{agents} agents cannot be spread over {shards} shards; take at most {agents} shards")
    if shards == 1 or 2 * len(graph.senders) > agents**2:
        return torch.from_numpy(_pieces(np.arange(agents), shards))
    mutual = _mutual(graph)
    if find_spec("pymetis") is None:
        from scipy.sparse.csgraph import reverse_cuthill_mckee

        order = reverse_cuthill_mckee(mutual, symmetric_mode=True).astype(np.int64)
        return torch.from_numpy(_pieces(order, shards))
    return torch.from_numpy(_levelled(mutual, _metis(mutual, shards), shards))


def cut(graph: Graph, parts: Int[Tensor, " agent"]) -> int:
    """How many models travel in a round: pairs of a sender and another shard in which somebody hears it.

    >>> cut(Graph.ring(6), torch.tensor([0, 0, 0, 1, 1, 1]))
    4
    """
    where, sender = parts[graph.receivers], graph.senders
    away = where != parts[sender]
    return len(torch.unique(sender[away] * (int(parts.max()) + 1) + where[away]))


def _pieces(order: Parts, shards: int) -> Parts:
    """Agents in this order, cut into pieces that differ by one agent at most, the larger ones first."""
    found = np.empty(len(order), dtype=np.int64)
    for shard, piece in enumerate(np.array_split(order, shards)):
        found[piece] = shard
    return found


def _mutual(graph: Graph) -> Any:
    """The graph as a symmetric sparse matrix without itself: who hears, or is heard by, whom."""
    from scipy.sparse import csr_matrix

    sender, receiver = graph.senders.numpy(), graph.receivers.numpy()
    other = sender != receiver
    sender, receiver = sender[other], receiver[other]
    ends = (np.concatenate((sender, receiver)), np.concatenate((receiver, sender)))
    found = csr_matrix((np.ones(len(ends[0]), dtype=np.int32), ends), shape=(graph.agents, graph.agents))
    found.sum_duplicates()
    return found


def _metis(mutual: Any, shards: int) -> Parts:
    import pymetis

    # Of its two methods only k-way, the faster one, knows of communication volume.
    options = pymetis.Options(objtype=int(pymetis.ObjType.VOL), ufactor=round(1000 * SLACK), seed=0)
    adjacency = pymetis.CSRAdjacency(mutual.indptr, mutual.indices)
    found = pymetis.part_graph(shards, adjacency, recursive=False, options=options)
    return np.asarray(found.vertex_part, dtype=np.int64)


def _levelled(mutual: Any, found: Parts, shards: int) -> Parts:
    """The same with every shard of the size promised, which METIS does not keep to on small graphs.

    Shards that lack agents get them from those that can spare some, first the agents with most neighbours there.
    """
    fair = len(found) / shards
    least = min(int(fair), int(np.ceil(fair * (1 - SLACK))))
    most = max(int(np.ceil(fair)), int(fair * (1 + SLACK)))
    found = found.copy()
    sizes = np.bincount(found, minlength=shards)
    while sizes.max() > most or sizes.min() < least:
        taker, giver = int(sizes.argmin()), int(sizes.argmax())
        wanted = max(least - sizes[taker], sizes[giver] - most)
        number = min(wanted, most - sizes[taker], sizes[giver] - least)
        there = np.asarray(mutual @ (found == taker)).ravel()
        own = np.flatnonzero(found == giver)
        moved = own[np.argsort(-there[own], kind="stable")[:number]]
        found[moved] = taker
        sizes = np.bincount(found, minlength=shards)
    return found

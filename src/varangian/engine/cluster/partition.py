"""Assigns agents to shards: shards of equal size, with few messages between them.

A model is sent to another shard once, however many agents receive it there. So the cost is not the number of cut edges
but the number of pairs (sender, other shard that receives it). METIS calls this the communication volume and can
minimise it.

All agents have the same weight, whatever their degree: models, samples and optimiser states take the same memory for
each agent, and memory is why a network is spread. Where degrees differ widely, evaluation time is less balanced.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from varangian.core.errors import BadInput
from varangian.core.graph import Graph

SLACK = 0.03
"""How far the size of a shard may differ from the mean, as a fraction: a little freedom saves many messages."""

Parts = np.ndarray[Any, np.dtype[np.int64]]


def parts(graph: Graph, shards: int) -> Int[Tensor, " agent"]:
    """The shard of every agent: sizes differ by at most 3 % or one agent, and few models travel between shards.

    METIS cuts sparse graphs if pymetis is installed. Without it, agents are sorted so that neighbours are close
    (reverse Cuthill–McKee) and split into equal pieces. In a nearly complete graph any equal pieces are as good. The
    same graph is always cut in the same way.

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
    """How many models travel in a round: the pairs of a sender and another shard in which an agent receives it.

    >>> cut(Graph.ring(6), torch.tensor([0, 0, 0, 1, 1, 1]))
    4
    """
    where, sender = parts[graph.receivers], graph.senders
    away = where != parts[sender]
    return len(torch.unique(sender[away] * (int(parts.max()) + 1) + where[away]))


def _pieces(order: Parts, shards: int) -> Parts:
    """Split agents in this order into pieces whose sizes differ by at most one, larger pieces first."""
    found = np.empty(len(order), dtype=np.int64)
    for shard, piece in enumerate(np.array_split(order, shards)):
        found[piece] = shard
    return found


def _mutual(graph: Graph) -> Any:
    """The graph as a symmetric sparse matrix without self-loops; directions are ignored."""
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

    # Of the two methods of METIS, only k-way (the faster one) can minimise the communication volume.
    options = pymetis.Options(objtype=int(pymetis.ObjType.VOL), ufactor=round(1000 * SLACK), seed=0)
    adjacency = pymetis.CSRAdjacency(mutual.indptr, mutual.indices)
    found = pymetis.part_graph(shards, adjacency, recursive=False, options=options)
    return np.asarray(found.vertex_part, dtype=np.int64)


def _levelled(mutual: Any, found: Parts, shards: int) -> Parts:
    """Move agents until every shard has an allowed size, which METIS does not guarantee on small graphs.

    Agents move from the largest shard to the smallest, first those with most neighbours in the smallest.
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

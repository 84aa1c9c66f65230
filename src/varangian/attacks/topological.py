"""Lies made for the graph: against the agreement that gossip is to bring, edge by edge."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import embedding_bag

from varangian.attacks.base import View
from varangian.attacks.victims import Company, networks_of, once_per_wiring, to_each
from varangian.core.messages import ToEach
from varangian.errors import BadInput

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Own = Float[Tensor, "byzantine parameter"]


@dataclass(frozen=True)
class dissensus:
    """Two-faced: each neighbour is pushed away from its honest neighbours, as hard as they pull it.

    θ̂_k − ε Σ_l w_lk (θ̂_l − θ̂_k) / Σ_b w_bk over the victim's honest neighbours l and Byzantine neighbours b, with the
    equal weights w of an average, which cancel. With ε = 1 an average gains nothing, see `isolation`; with more it
    drives honest agents apart. Omniscient; against averaging and clipped gossip.

    He, Karimireddy, Jaggi: Byzantine-robust decentralized learning via ClippedGossip. arXiv 2202.01545, 2022.
    """

    epsilon: float = 1.5

    local: ClassVar[bool] = True

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToEach, tuple[()]]:
        return ToEach(to_each(view, lambda around: _repelled(around, self.epsilon))), state


@dataclass(frozen=True)
class isolation:
    """Two-faced: what makes an average over the neighbourhood each victim's own model, as if it had no neighbours.

    Σ_l w_lk θ̂_l + Σ_b w_bk m = θ̂_k for equal weights w, so m = θ̂_k − Σ_l (θ̂_l − θ̂_k) / f: `dissensus` with ε = 1.
    Whoever is no victim is told the truth. Omniscient; against averaging, of which it leaves no cooperation.

    Wu, Chen, Ling: Byzantine-resilient decentralized stochastic optimization with robust aggregation rules. IEEE
    Transactions on Signal Processing 2023 (in its program, ByrdLab).
    """

    victim: int | None = None
    """The victim, by its number; everybody unless given."""

    def __post_init__(self) -> None:
        if self.victim is not None and self.victim < 0:
            raise BadInput(f"isolation has a victim by its number, 0 or more, but victim is {self.victim}")

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToEach, tuple[()]]:
        rows = to_each(view, lambda around: _repelled(around, 1.0))
        if self.victim is None:
            return ToEach(rows), state
        chosen = torch.isin(view.receiver, networks_of(view).numbered(self.victim, "isolation"))
        return ToEach(torch.where(chosen[:, None], rows, view.adapted[view.sender])), state


def _repelled(around: Company, epsilon: float) -> Float[Tensor, "victim parameter"]:
    pull = around.count * (around.mean - around.own)
    return around.own - epsilon / around.liars[:, None] * pull


@dataclass(frozen=True)
class spectral_dissensus:
    """Two-faced: honest agents are pushed apart along the cut at which they agree most slowly.

    θ̂_k + ε v_k Σ_l v_l θ̂_l, v being the Fiedler vector of what the graph is without Byzantine agents (taken both ways
    where edges are one-way): the unit eigenvector of the second smallest eigenvalue of its Laplacian, for each
    connected part. Gossip wears this disagreement down last of all. Where several vectors are equally slow, as in a
    complete graph, agents' numbers decide among them. Omniscient; against averaging and clipped gossip on sparse
    graphs.

    Gaucher, Dieuleveut, Hendrikx: Unified breakdown analysis for Byzantine robust gossip. ICML 2025.
    """

    epsilon: float = 3.0

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToEach, tuple[()]]:
        cut = slowest_cut(view)
        victim = view.receiver
        if not len(cut.start):
            return ToEach(view.adapted[victim]), state
        weight = cut.vector.to(view.adapted.dtype)
        apart = embedding_bag(cut.member, view.adapted, cut.start, per_sample_weights=weight[cut.member], mode="sum")
        push = self.epsilon * weight[victim, None] * apart[cut.part[victim]]
        return ToEach(view.adapted[victim] + push), state


@dataclass(frozen=True, eq=False)
class Cut:
    """The Fiedler vectors of the connected parts of the honest graph."""

    vector: Float[Tensor, " agent"]
    """Of unit length over each part; 0 for Byzantine agents and for those on their own."""
    part: Int[Tensor, " agent"]
    member: Int[Tensor, " honest"]
    """The agents of all parts, part by part."""
    start: Int[Tensor, " part"]
    """Where each part starts among them."""


@once_per_wiring
def slowest_cut(view: View) -> Cut:
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    sender, receiver = (ends.cpu().numpy() for ends in view.among_normal)
    agents, device = view.wiring.graph.agents, view.adapted.device
    other = sender != receiver
    ends = (np.r_[sender[other], receiver[other]], np.r_[receiver[other], sender[other]])
    graph = coo_matrix((np.ones(len(ends[0])), ends), (agents, agents)).tocsr()
    graph.data[:] = 1  # an edge both ways was counted twice
    _, part = connected_components(graph, directed=False)
    sizes = np.bincount(part)
    order = np.argsort(part, kind="stable")
    pieces = [piece for piece in np.split(order, np.cumsum(sizes)[:-1]) if len(piece) > 1]
    vector, number = np.zeros(agents), np.zeros(agents, dtype=np.int64)
    for place, piece in enumerate(pieces):
        vector[piece] = _fiedler(graph[piece][:, piece])
        number[piece] = place
    member = np.concatenate([np.zeros(0, dtype=np.int64), *pieces])
    start = np.cumsum([0, *map(len, pieces)])[:-1].astype(np.int64)
    parts = (vector, number, member, start)
    return Cut(*(torch.from_numpy(values).to(device) for values in parts))


def _fiedler(graph: csr_matrix, exact_up_to: int = 400) -> np.ndarray[Any, Any]:
    """The unit Fiedler vector of a connected graph; nearly so where it is large."""
    from scipy.sparse.csgraph import laplacian
    from scipy.sparse.linalg import lobpcg

    bends = laplacian(graph).tocsr()
    agents = bends.shape[0]
    if agents <= exact_up_to:
        vectors: np.ndarray[Any, Any] = np.linalg.eigh(bends.toarray())[1]
        return vectors[:, 1]
    guess = np.cos(np.arange(agents) * np.pi / agents)[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # near enough is good enough: any slow direction will do
        _, found = lobpcg(bends, guess - guess.mean(), Y=np.ones((agents, 1)), largest=False, tol=1e-6, maxiter=500)
    slow: np.ndarray[Any, Any] = found[:, 0] / np.linalg.norm(found[:, 0])
    return slow

"""Attacks that use the graph: they prevent the agreement that gossip should bring."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import embedding_bag

from varangian.attacks.base import Knowledge, View
from varangian.attacks.victims import Company, networks_of, once_per_wiring, to_each
from varangian.core.errors import BadInput
from varangian.core.messages import ToEach

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Own = Float[Tensor, "byzantine parameter"]


@dataclass(frozen=True)
class dissensus:
    """Pushes each victim away from its honest neighbours, as hard as they pull it or harder.

    Equation:
        m_k = θ̂_k − (ε / f) Σ_{l∈H_k} (θ̂_l − θ̂_k)

    Two-faced: each victim k hears a different message. H_k are the honest agents that k hears, and f is the number of
    its Byzantine neighbours. The equation holds for an average with equal weights. With ε = 1 an average gains
    nothing, as under `isolation`. With more, honest agents drift apart. It works against averages and clipped gossip,
    and in our tournament against all rules that look for a middle.

    Knows: The models that each victim hears.
    Cost: O(n d) per victim and round, if it hears n agents and models have d parameters.

    Example:
        >>> from varangian import attacks
        >>> attacks.dissensus(epsilon=2.0)
        dissensus(epsilon=2.0)

    Reference:
        He, Karimireddy and Jaggi, "Byzantine-robust decentralized learning via ClippedGossip", 2022.
        https://arxiv.org/abs/2202.01545
    """

    epsilon: float = 1.5
    """ε: how hard to push, where 1 cancels the pull of the honest neighbours."""

    knows: ClassVar[tuple[Knowledge, ...]] = ("messages",)
    local: ClassVar[bool] = True
    strength: ClassVar[str] = "epsilon"
    strengths: ClassVar[tuple[float, ...]] = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToEach, tuple[()]]:
        return ToEach(to_each(view, lambda around: _repelled(around, self.epsilon))), state


@dataclass(frozen=True)
class isolation:
    """Makes an average over the neighbourhood equal the victim's own model, as if it had no neighbours.

    Equation:
        m_k = θ̂_k − (1 / f) Σ_{l∈H_k} (θ̂_l − θ̂_k)

    Two-faced: each victim k hears a different message. H_k are the honest agents that k hears, and f is the number of
    its Byzantine neighbours. It is `dissensus` with ε = 1. Neighbours that are not victims hear the sender's honest
    model. It works against averages, which are left without cooperation.

    Knows: The models that each victim hears.
    Cost: O(n d) per victim and round, if it hears n agents and models have d parameters.

    Example:
        >>> from varangian import attacks
        >>> attacks.isolation(victim=3)
        isolation(victim=3)

    Reference:
        Wu, Chen and Ling, "Byzantine-resilient decentralized stochastic optimization with robust aggregation
        rules", IEEE Transactions on Signal Processing, 2023. https://arxiv.org/abs/2206.04568 The attack is in
        its program, https://github.com/Zhaoxian-Wu/IOS
    """

    victim: int | None = None
    """The number of the only victim. By default every neighbour is a victim."""

    knows: ClassVar[tuple[Knowledge, ...]] = ("messages",)

    def __post_init__(self) -> None:
        if self.victim is not None and self.victim < 0:
            raise BadInput(f"isolation needs the number of a victim, 0 or more, but victim is {self.victim}")

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
    """Pushes honest agents apart along the cut of the graph across which they agree most slowly.

    Equation:
        m_k = θ̂_k + ε v_k Σ_l v_l θ̂_l
        L v = λ_2 v
        ‖v‖ = 1

    Two-faced: each victim k hears a different message. L is the Laplacian of the graph of honest agents, and v is its
    Fiedler vector, which belongs to the second smallest eigenvalue λ_2. Gossip needs longest to remove a disagreement
    along v. Each connected part has its own v, and one-way edges count both ways. If several vectors are equally
    slow, as in a complete graph, the numbers of the agents decide. It works against averages and clipped gossip on
    sparse graphs.

    Knows: All honest models. The graph is known to every attack.
    Cost: O(d) per agent and round, and one eigenvector per graph; for parts of more than 400 agents it is
    approximate.

    Example:
        >>> from varangian import attacks
        >>> attacks.spectral_dissensus(epsilon=5.0)
        spectral_dissensus(epsilon=5.0)

    Reference:
        Gaucher, Dieuleveut and Hendrikx, "Unified breakdown analysis for Byzantine robust gossip", ICML 2025.
        https://arxiv.org/abs/2410.10418
    """

    epsilon: float = 3.0
    """ε: how hard to push."""

    knows: ClassVar[tuple[Knowledge, ...]] = ("messages",)
    strength: ClassVar[str] = "epsilon"
    strengths: ClassVar[tuple[float, ...]] = (0.03, 0.1, 0.3, 1.0, 10.0, 30.0)

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
    """Of unit length on each part; 0 for Byzantine agents and for agents without honest neighbours."""
    part: Int[Tensor, " agent"]
    member: Int[Tensor, " honest"]
    """The agents of all parts, part by part."""
    start: Int[Tensor, " part"]
    """Where each part starts in `member`."""


@once_per_wiring
def slowest_cut(view: View) -> Cut:
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    sender, receiver = (ends.cpu().numpy() for ends in view.among_normal)
    agents, device = view.wiring.graph.agents, view.adapted.device
    other = sender != receiver
    ends = (np.r_[sender[other], receiver[other]], np.r_[receiver[other], sender[other]])
    graph = coo_matrix((np.ones(len(ends[0])), ends), (agents, agents)).tocsr()
    graph.data[:] = 1  # an edge in both directions was counted twice
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
    """The unit Fiedler vector of a connected graph; approximate for large graphs."""
    from scipy.sparse.csgraph import laplacian
    from scipy.sparse.linalg import lobpcg

    bends = laplacian(graph).tocsr()
    agents = bends.shape[0]
    if agents <= exact_up_to:
        vectors: np.ndarray[Any, Any] = np.linalg.eigh(bends.toarray())[1]
        return vectors[:, 1]
    guess = np.cos(np.arange(agents) * np.pi / agents)[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # not fully converged is good enough: any slow direction will do
        _, found = lobpcg(bends, guess - guess.mean(), Y=np.ones((agents, 1)), largest=False, tol=1e-6, maxiter=500)
    slow: np.ndarray[Any, Any] = found[:, 0] / np.linalg.norm(found[:, 0])
    return slow

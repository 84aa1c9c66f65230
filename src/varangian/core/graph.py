"""Who hears whom.

A graph is stored by receiver (CSR): agent k hears `senders[offsets[k]:offsets[k+1]]`, itself first. For computing, the
receivers form tables of (agent, slot), in which slot 0 is the agent itself. Rules then read like the paper and need no
segment operations. Agents of very different degree are in different tables.

In memory a table is stored slot by slot. Operations over slots then run along agents, and processors handle several
agents at a time. A large network is split into tables that fit into a processor's cache.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeGuard, Union

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from varangian.core.checks import whole_number
from varangian.core.errors import BadInput
from varangian.core.geometric import distinct, graph_within, pairs_within
from varangian.core.memory import check_fits

if TYPE_CHECKING:
    import networkx as nx

CACHE_ENTRIES = 2**17
"""The most entries of a table that fit into a processor's cache, together with what is computed from them."""
MAX_ENTRIES = 2**27
"""The most entries of a table where the size of the cache does not matter."""

TimeVarying = Callable[[int], "Graph"]
"""A graph that changes over time: a function from the round to the graph of that round."""


@dataclass(frozen=True, eq=False)
class Neighbourhoods:
    """A table of some agents and whom each of them hears. Slot 0 is the agent itself; so are the unused slots."""

    receivers: Int[Tensor, " agent"]
    senders: Int[Tensor, "agent slot"]
    present: Bool[Tensor, "agent slot"]
    """Which slots are used; the others are padding."""
    dense: bool
    """Whether more than half of all possible edges exist, so that computing all pairs wastes little."""
    rows: Int[Tensor, " agent"]
    """The rows of these agents among the agents combined here: the whole network, or one part of it."""
    span: slice | None
    """The same rows as a slice, if they are consecutive."""
    everyone: bool
    """Whether the table has all agents combined here, in order."""
    complete: bool
    """Whether each of them hears every agent of the network."""

    @cached_property
    def int32_senders(self) -> Int[Tensor, "slot agent"]:
        """`senders` as 32-bit integers in memory order; −1 in unused slots."""
        return int32_sources(self.senders, self.present)

    def blank(self, dtype: torch.dtype) -> Float[Tensor, "agent slot"]:
        """A table of zeros."""
        return torch.zeros_like(self.senders, dtype=dtype)

    def rows_of(self, values: Tensor) -> Tensor:
        """The rows of these agents, from a tensor with one row per agent."""
        if self.everyone:
            return values
        return values[self.rows if self.span is None else self.span]

    def put(self, values: Float[Tensor, "agents parameter"], own: Float[Tensor, "agent parameter"]) -> Tensor:
        """`values`, which has one row per agent, with the rows of these agents replaced by `own`."""
        return own if self.everyone else values.index_copy(0, self.rows, own)

    def widened(self, slots: int) -> Neighbourhoods:
        """The same table padded to `slots` slots."""
        more = slots - self.senders.shape[1]
        if not more:
            return self
        senders = torch.cat((self.senders.T, self.receivers.expand(more, -1))).T
        return replace(self, senders=senders, present=torch.cat((self.present.T, senders.T[-more:] < 0)).T)

    def to(self, device: torch.device) -> Neighbourhoods:
        tensors = ("receivers", "senders", "present", "rows")
        return replace(self, **{name: getattr(self, name).to(device) for name in tensors})


def int32_sources(source: Int[Tensor, "agent slot"], heard: Bool[Tensor, "agent slot"]) -> Int[Tensor, "slot agent"]:
    """The row of each slot's message as a 32-bit integer, in memory order; −1 where nothing was heard."""
    return torch.where(heard.T, source.T, -1).to(torch.int32).contiguous()


@dataclass(frozen=True, eq=False)
class Graph:
    """Who hears whom. Every agent hears itself. Edges may be one-way.

    >>> Graph.ring(5).neighbours(0)
    [1, 4]
    >>> Graph.from_edges(3, [(0, 1)]).neighbours(0)  # 0 sends to 1 and hears nobody
    []
    """

    senders: Int[Tensor, " edge"]
    offsets: Int[Tensor, " agent_plus_1"]

    @property
    def agents(self) -> int:
        return len(self.offsets) - 1

    @property
    def degrees(self) -> Int[Tensor, " agent"]:
        """How many others each agent hears."""
        return self.offsets.diff() - 1

    @property
    def receivers(self) -> Int[Tensor, " edge"]:
        """The receiver of every edge."""
        return torch.repeat_interleave(torch.arange(self.agents), self.offsets.diff())

    def neighbours(self, agent: int) -> list[int]:
        """The agents that an agent hears, without itself."""
        return self.senders[self.offsets[agent] + 1 : self.offsets[agent + 1]].tolist()

    def __repr__(self) -> str:
        return f"Graph({self.agents} agents, {len(self.senders) - self.agents} edges)"

    # Making one -----------------------------------------------------------------------------------------------

    @staticmethod
    def from_edges(agents: int, edges: Iterable[tuple[int, int]] | np.ndarray[Any, Any]) -> Graph:
        """A graph from pairs (sender, receiver). Duplicates and self-loops are allowed and change nothing."""
        agents = _size(agents)
        pairs = np.asarray(edges if isinstance(edges, np.ndarray) else list(edges))
        pairs = pairs.reshape(-1, 2) if not pairs.size else pairs
        if pairs.ndim != 2 or pairs.shape[1] != 2 or (pairs.size and pairs.dtype.kind not in "iu"):
            raise BadInput("edges must be pairs (sender, receiver) of agent numbers")
        pairs = pairs.astype(np.int64)
        if pairs.size and (pairs.min() < 0 or pairs.max() >= agents):
            raise BadInput(f"an edge names agent {pairs.max()} or a negative number; agents are 0 … {agents - 1}")
        pairs = pairs[pairs[:, 0] != pairs[:, 1]]
        receiver, sender = np.divmod(distinct(pairs[:, 1] * agents + pairs[:, 0]), agents)
        offsets = np.zeros(agents + 1, dtype=np.int64)
        np.cumsum(np.bincount(receiver, minlength=agents) + 1, out=offsets[1:])
        senders = np.empty(offsets[-1], dtype=np.int64)
        senders[offsets[:-1]] = np.arange(agents)
        senders[np.arange(len(sender)) + receiver + 1] = sender  # each receiver so far has one entry for itself
        return Graph(torch.from_numpy(senders), torch.from_numpy(offsets))

    @staticmethod
    def from_networkx(graph: nx.Graph[Any]) -> Graph:
        """A graph from any networkx graph. In a directed graph, v hears u if u → v.

        Nodes 0 … n − 1 keep their numbers. Other nodes are numbered in the order of `graph.nodes`.
        """
        nodes = list(graph.nodes)
        number = {node: i for i, node in enumerate(range(len(nodes)) if has_numbers(graph) else nodes)}
        edges = [(number[u], number[v]) for u, v in graph.edges()]
        if not graph.is_directed():
            edges += [(v, u) for u, v in edges]
        return Graph.from_edges(len(number), edges)

    @staticmethod
    def complete(n: int) -> Graph:
        """Every agent hears every other agent."""
        n = _size(n)
        check_fits(120 * n * n, f"a complete graph of {n} agents")
        return Graph.from_edges(n, np.stack(np.divmod(np.arange(n * n), n), axis=1))

    @staticmethod
    def ring(n: int, k: int = 1) -> Graph:
        """Every agent hears the k nearest agents on each side."""
        n, k = _size(n), whole_number(k, "k, the number of neighbours on each side of a ring,", least=0)
        agent = np.arange(n)
        steps = [step for step in range(-k, k + 1) if step]
        pairs = [np.stack(((agent + step) % n, agent), axis=1) for step in steps]
        return Graph.from_edges(n, np.concatenate(pairs) if pairs else [])

    @staticmethod
    def star(n: int) -> Graph:
        """Agent 0 hears all others, and all others hear agent 0."""
        leaves = np.arange(1, _size(n))
        hub = np.zeros_like(leaves)
        return Graph.from_edges(n, np.concatenate((np.stack((hub, leaves), 1), np.stack((leaves, hub), 1))))

    @staticmethod
    def erdos_renyi(n: int, p: float, seed: int = 0) -> Graph:
        """The two agents of every pair hear each other with probability p."""
        import networkx as nx

        n = _size(n)
        if not 0 <= p <= 1:
            raise BadInput(f"p, the probability of an edge, must be between 0 and 1, but is {p}")
        return Graph.from_networkx(nx.fast_gnp_random_graph(n, p, seed=seed))

    @staticmethod
    def geometric(
        points: Float[Tensor, "agent 2"], radius: float, max_degree: int | None = None, seed: int = 0
    ) -> Graph:
        """Agents that are near each other hear each other. The graph is symmetric.

        Args:
            points: The position of every agent.
            radius: Agents at most this far apart can hear each other.
            max_degree: The most neighbours of an agent. By default there is no limit.
            seed: Decides which neighbours an agent keeps when it has too many.
        """
        if points.ndim != 2 or not bool(points.isfinite().all()):
            raise BadInput(f"points must be finite, with one row per agent, but have shape {tuple(points.shape)}")
        edges = len(points) * (8 if max_degree is None else max_degree)
        check_fits(600 * len(points) + 40 * edges, f"a network of {len(points)} agents")
        places = points.double().cpu().numpy()
        made = graph_within(places, radius, max_degree, seed)
        if made is not None:
            return Graph(*map(torch.from_numpy, made))
        check_fits(600 * len(points) + 200 * edges, f"a network of {len(points)} agents")
        pairs = pairs_within(places, radius, max_degree, seed)
        return Graph.from_edges(len(points), np.concatenate((pairs, pairs[:, ::-1])))

    @staticmethod
    def disjoint_union(graphs: Sequence[Graph]) -> Graph:
        """Several networks side by side, with no edges between them. This is how seeds share one run."""
        if not graphs:
            raise BadInput("a union needs at least one graph")
        agents = np.cumsum([0] + [g.agents for g in graphs])
        edges = np.cumsum([0] + [len(g.senders) for g in graphs])
        senders = torch.cat([g.senders + int(a) for g, a in zip(graphs, agents, strict=False)])
        offsets = [g.offsets[:-1] + int(e) for g, e in zip(graphs, edges, strict=False)]
        return Graph(senders, torch.cat([*offsets, torch.tensor([int(edges[-1])])]))

    def to_networkx(self) -> nx.DiGraph[int]:
        """The same graph in networkx: directed, without self-loops."""
        import networkx as nx

        out: nx.DiGraph[int] = nx.DiGraph()
        out.add_nodes_from(range(self.agents))
        pairs = torch.stack((self.senders, self.receivers), 1).tolist()
        out.add_edges_from((sender, receiver) for sender, receiver in pairs if sender != receiver)
        return out

    # Computing with it ----------------------------------------------------------------------------------------

    def neighbourhoods(
        self, max_entries: int | None = None, receivers: Int[Tensor, " agent"] | None = None
    ) -> list[Neighbourhoods]:
        """The graph as tables of (agent, slot).

        Agents of similar degree share a table. If padding would more than double the number of edges, there is one
        table per power of two of the degree.

        Args:
            max_entries: The most entries of a table. By default a table of a sparse graph fits into the cache.
            receivers: Make tables of these agents only. By default all agents.
        """
        hearing = torch.arange(self.agents) if receivers is None else receivers
        slots = (self.degrees + 1)[hearing]
        edges, widest = int(slots.sum()), int(slots.max())
        dense = 2 * edges > len(hearing) * self.agents
        most = max_entries or (MAX_ENTRIES if dense else CACHE_ENTRIES)
        if widest * len(hearing) <= max(2 * edges, 2**16):
            groups = [torch.arange(len(hearing))]
        else:
            size = torch.ceil(torch.log2(slots.double())).long()
            groups = [torch.nonzero(size == s).flatten() for s in size.unique()]
        tables: list[Neighbourhoods] = []
        for group in groups:
            width = int(slots[group].max())
            tables += [
                self._table(hearing, piece, dense).widened(width) for piece in _even_split(group, max(1, most // width))
            ]
        return tables

    def _table(self, hearing: Int[Tensor, " agent"], rows: Int[Tensor, " some"], dense: bool) -> Neighbourhoods:
        receivers = hearing[rows]
        slots = self.offsets[receivers + 1] - self.offsets[receivers]
        slot = torch.arange(int(slots.max()))[:, None]
        present = slot < slots
        edge = self.offsets[receivers] + torch.where(present, slot, 0)
        first, last = int(rows[0]), int(rows[-1])
        span = slice(first, last + 1) if last - first + 1 == len(rows) else None
        everyone, complete = len(rows) == len(hearing), int(slots.min()) == self.agents
        return Neighbourhoods(receivers, self.senders[edge].T, present.T, dense, rows, span, everyone, complete)


def _size(agents: Any) -> int:
    number = whole_number(agents, "the number of agents of a graph")
    if number < 1:
        raise BadInput(f"a graph needs at least one agent, not {number}")
    return number


AnyGraph = Union[Graph, "nx.Graph[Any]"]


def as_graph(graph: AnyGraph | TimeVarying) -> Graph | TimeVarying:
    """A graph, or a function from the round to one, from what people have: also networkx graphs.

    If the nodes of a networkx graph are not 0 … n − 1, a warning shows their order.
    """
    if isinstance(graph, Graph | _TimeVarying):
        return graph
    if _is_networkx(graph):
        if not has_numbers(graph):
            order = ", ".join(f"{node!r} is {i}" for i, node in zip(range(8), graph.nodes, strict=False))
            more = "" if len(graph) <= 8 else f", … {len(graph)} in all"
            warnings.warn(f"the nodes of the graph become agents in their order: {order}{more}", stacklevel=4)
        return Graph.from_networkx(graph)
    if isinstance(graph, type) or not callable(graph):
        what = f"{type(graph).__name__} {' '.join(repr(graph).split())[:60]}"
        raise BadInput(
            f"graph must be a Graph, a networkx graph or a function of the round, but is {what}; "
            "Graph.from_edges makes one from pairs (sender, receiver)"
        )
    return _TimeVarying(graph)


@dataclass(frozen=True, eq=False)
class _TimeVarying:
    """A function from the round to its graph, whatever kind of graph the user's function returns."""

    given: Callable[[int], Any]
    _last: list[tuple[Any, Graph]] = field(default_factory=list[tuple[Any, Graph]], repr=False)

    def __call__(self, round: int) -> Graph:
        now = self.given(round)
        if isinstance(now, Graph):
            return now
        if not _is_networkx(now):
            raise BadInput(f"graph({round}) must return a Graph or a networkx graph, but returns {type(now).__name__}")
        if not self._last or self._last[0][0] is not now:
            self._last[:] = [(now, Graph.from_networkx(now))]
        return self._last[0][1]


def has_numbers(graph: nx.Graph[Any]) -> bool:
    """Whether the nodes of a networkx graph are 0 … n − 1, in any order."""
    return all(type(node) is int and 0 <= node < len(graph) for node in graph.nodes)


def _is_networkx(graph: Any) -> TypeGuard[nx.Graph[Any]]:
    """Without importing networkx, which takes a while."""
    return any(kind.__module__.partition(".")[0] == "networkx" for kind in type(graph).__mro__)


def _even_split(agents: Int[Tensor, " agent"], most: int) -> Sequence[Int[Tensor, " some"]]:
    """Pieces of about the same size, with at most `most` agents each."""
    pieces = -(-len(agents) // most)
    return list(agents.split(-(-len(agents) // pieces)))

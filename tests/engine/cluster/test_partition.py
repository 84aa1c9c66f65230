"""Who belongs to which shard: shards of the same size, between which few models have to travel."""

from __future__ import annotations

import math

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from varangian import BadInput, Graph
from varangian.engine.cluster import partition
from varangian.engine.cluster.partition import cut, parts

torch.set_num_threads(1)


@pytest.fixture(params=["metis", "no metis"])
def cutter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With pymetis, and as if it were not installed."""
    if request.param == "metis":
        pytest.importorskip("pymetis")
    else:
        monkeypatch.setattr(partition, "find_spec", lambda name: None)
    return str(request.param)


def sizes(found: torch.Tensor, shards: int) -> list[int]:
    return torch.bincount(found, minlength=shards).tolist()


def two_cliques(size: int) -> Graph:
    return Graph.from_networkx(nx.barbell_graph(size, 0))


def grid(width: int) -> Graph:
    return Graph.from_networkx(nx.grid_2d_graph(width, width))


# ----------------------------------------------------------------------------------------- what has to travel


def test_what_has_to_travel_is_counted_once_for_every_shard_that_hears_it() -> None:
    star, shard = Graph.star(7), torch.tensor([0, 0, 0, 1, 1, 2, 2])
    assert cut(star, shard) == 2 + 4, "the hub's model goes to two shards, and those of four leaves to the hub's"
    assert cut(star, torch.zeros(7, dtype=torch.long)) == 0
    one_way = Graph.from_edges(4, [(0, 1), (0, 2), (0, 3)])
    assert cut(one_way, torch.tensor([0, 1, 1, 1])) == 1
    assert cut(one_way, torch.tensor([0, 1, 2, 3])) == 3
    assert cut(Graph.complete(6), torch.tensor([0, 0, 1, 1, 2, 2])) == 6 * 2


@pytest.mark.usefixtures("cutter")
def test_two_cliques_are_two_shards() -> None:
    graph = two_cliques(12)
    found = parts(graph, 2)
    assert len(found[:12].unique()) == len(found[12:].unique()) == 1
    assert found[0] != found[12]
    assert cut(graph, found) == 2, "the two ends of the one edge between them"


@pytest.mark.usefixtures("cutter")
@pytest.mark.parametrize("shards", [2, 3, 7])
def test_a_ring_is_cut_into_arcs(shards: int) -> None:
    graph = Graph.ring(210)
    found = parts(graph, shards)
    # Two models leave each arc. An order in one line has both sides of the ring at once, and its pieces two arcs.
    assert cut(graph, found) <= 2 * 2 * shards


@pytest.mark.parametrize(("shards", "ideal"), [(2, 2 * 24), (4, 4 * 24), (9, 24 * 8)])
def test_a_grid_is_cut_along_short_lines(cutter: str, shards: int, ideal: int) -> None:
    """Squares (24 × 24 agents in 2 × 1, 2 × 2 and 3 × 3 of them) have to tell each other so many models."""
    graph = grid(24)
    found = cut(graph, parts(graph, shards))
    assert found <= (1.35 if cutter == "metis" else 3) * ideal
    assert found < 0.4 * cut(graph, torch.arange(24 * 24) % shards)


@pytest.mark.usefixtures("cutter")
def test_a_hundred_thousand_agents_in_the_plane() -> None:
    agents, shards = 100_000, 8
    points = torch.rand(agents, 2, generator=torch.Generator().manual_seed(0))
    graph = Graph.geometric(points, radius=0.01, max_degree=10)
    found = parts(graph, shards)
    assert all(abs(size - agents / shards) <= 0.03 * agents / shards for size in sizes(found, shards))
    assert cut(graph, found) < 0.2 * agents, "nearly all are heard in their own shard alone"


# ----------------------------------------------------------------------------------------------------- promises


@pytest.mark.usefixtures("cutter")
@pytest.mark.parametrize(
    "graph",
    [
        Graph.from_edges(1, []),
        Graph.from_edges(11, []),
        Graph.star(30),
        Graph.ring(10),
        Graph.complete(9),
        Graph.from_edges(20, [(0, agent) for agent in range(1, 20)]),
        Graph.disjoint_union([two_cliques(4), Graph.ring(5), Graph.from_edges(3, [])]),
        grid(9),
    ],
    ids=["one", "nobody hears", "star", "ring", "complete", "one way", "in pieces", "grid"],
)
def test_shards_are_of_the_same_size_and_always_the_same(graph: Graph) -> None:
    for shards in range(1, min(graph.agents, 12) + 1):
        found = parts(graph, shards)
        assert found.shape == (graph.agents,)
        assert found.dtype == torch.int64
        fair = graph.agents / shards
        for size in sizes(found, shards):
            assert math.floor(fair) <= size <= math.ceil(fair) or abs(size - fair) <= 0.03 * fair
        assert torch.equal(found, parts(graph, shards))


@given(st.integers(2, 60), st.sampled_from([0.0, 0.02, 0.1, 0.4]), st.integers(1, 9), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_no_shard_is_left_empty_or_overfull(agents: int, chance: float, shards: int, seed: int) -> None:
    shards = min(shards, agents)
    found = parts(Graph.erdos_renyi(agents, chance, seed), shards)
    assert max(sizes(found, shards)) <= max(math.ceil(agents / shards), 1.03 * agents / shards)
    assert min(sizes(found, shards)) >= min(agents // shards, 0.97 * agents / shards)


@pytest.mark.usefixtures("cutter")
def test_where_everyone_hears_everyone_shards_are_contiguous() -> None:
    assert parts(Graph.complete(7), 3).tolist() == [0, 0, 0, 1, 1, 2, 2]


def test_more_shards_than_agents_are_refused() -> None:
    with pytest.raises(BadInput, match="5 agents cannot be spread over 6 shards; take at most 5 shards"):
        parts(Graph.ring(5), 6)
    with pytest.raises(BadInput, match="at least one shard, not 0"):
        parts(Graph.ring(5), 0)

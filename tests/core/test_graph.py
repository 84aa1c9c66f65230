"""Graphs against lists written by hand, against networkx, and against properties of all graphs."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from varangian import BadInput, Graph

torch.set_num_threads(1)
quickly = settings(max_examples=60, deadline=None)


def heard(graph: Graph) -> list[list[int]]:
    return [graph.neighbours(agent) for agent in range(graph.agents)]


@st.composite
def graphs(draw: st.DrawFn, most: int = 12) -> Graph:
    n = draw(st.integers(1, most))
    agent = st.integers(0, n - 1)
    return Graph.from_edges(n, draw(st.lists(st.tuples(agent, agent), max_size=3 * n)))


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (Graph.complete(1), [[]]),
        (Graph.complete(4), [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]),
        (Graph.ring(1), [[]]),
        (Graph.ring(2), [[1], [0]]),
        (Graph.ring(5), [[1, 4], [0, 2], [1, 3], [2, 4], [0, 3]]),
        (Graph.ring(6, 2), [[1, 2, 4, 5], [0, 2, 3, 5], [0, 1, 3, 4], [1, 2, 4, 5], [0, 2, 3, 5], [0, 1, 3, 4]]),
        (Graph.ring(3, 7), [[1, 2], [0, 2], [0, 1]]),
        (Graph.ring(3, 0), [[], [], []]),
        (Graph.star(1), [[]]),
        (Graph.star(4), [[1, 2, 3], [0], [0], [0]]),
        (Graph.erdos_renyi(4, 0.0), [[], [], [], []]),
        (Graph.erdos_renyi(3, 1.0), [[1, 2], [0, 2], [0, 1]]),
        (Graph.from_edges(1, []), [[]]),
        (Graph.from_edges(4, [(0, 1), (2, 1), (0, 1), (1, 1), (3, 0)]), [[3], [0, 2], [], []]),
        (Graph.from_edges(3, np.array([[2, 0], [1, 0]])), [[1, 2], [], []]),
        (Graph.from_networkx(nx.path_graph(4)), [[1], [0, 2], [1, 3], [2]]),
        (Graph.from_networkx(nx.DiGraph([("a", "b"), ("c", "b"), ("b", "b")])), [[], [0, 2], []]),
        (Graph.from_networkx(nx.MultiGraph([(0, 1), (0, 1), (1, 2)])), [[1], [0, 2], [1]]),
        (Graph.from_networkx(nx.empty_graph(2)), [[], []]),
        (Graph.disjoint_union([Graph.star(3), Graph.complete(1), Graph.ring(2)]), [[1, 2], [0], [0], [], [5], [4]]),
        (Graph.geometric(torch.tensor([[0.0, 0.0], [1.0, 0.0], [5.0, 5.0]]), 1.0), [[1], [0], []]),
        (Graph.geometric(torch.zeros(1, 2), 1.0, max_degree=3), [[]]),
        (Graph.geometric(torch.zeros(4, 2), 1.0, max_degree=0), [[], [], [], []]),
        (Graph.geometric(torch.zeros(3, 2), 1.0, max_degree=5), [[1, 2], [0, 2], [0, 1]]),
    ],
)
def test_neighbours_are_those_written_by_hand(graph: Graph, expected: list[list[int]]) -> None:
    assert heard(graph) == expected
    assert graph.degrees.tolist() == [len(those) for those in expected]
    assert graph.senders[graph.offsets[:-1]].tolist() == list(range(graph.agents))


@pytest.mark.parametrize("seed", range(3))
def test_erdos_renyi_is_symmetric_seeded_and_as_dense_as_asked(seed: int) -> None:
    graph = Graph.erdos_renyi(200, 0.1, seed)
    assert heard(graph) == heard(Graph.erdos_renyi(200, 0.1, seed))
    assert heard(graph) != heard(Graph.erdos_renyi(200, 0.1, seed + 10))
    matrix = nx.to_numpy_array(graph.to_networkx(), nodelist=range(200))
    assert (matrix == matrix.T).all()
    pairs = 200 * 199 / 2
    assert abs(matrix.sum() / 2 - 0.1 * pairs) < 5 * math.sqrt(pairs * 0.1 * 0.9)


@quickly
@given(graphs())
def test_everyone_hears_itself_first_and_nobody_twice(graph: Graph) -> None:
    for agent in range(graph.agents):
        row = graph.senders[graph.offsets[agent] : graph.offsets[agent + 1]].tolist()
        assert row[0] == agent
        assert len(set(row)) == len(row)
    assert torch.equal(graph.receivers.bincount(minlength=graph.agents), graph.degrees + 1)


@quickly
@given(st.integers(1, 9), st.integers(0, 20), st.booleans())
def test_networkx_and_back_is_the_same_graph(n: int, seed: int, directed: bool) -> None:
    there = nx.fast_gnp_random_graph(n, 0.4, seed=seed, directed=directed)
    graph = Graph.from_networkx(there)
    expected = set(there.edges) if directed else {pair for u, v in there.edges for pair in ((u, v), (v, u))}
    assert set(graph.to_networkx().edges) == expected
    assert heard(Graph.from_networkx(graph.to_networkx())) == heard(graph)
    for agent in range(n):
        assert graph.neighbours(agent) == sorted(there.predecessors(agent) if directed else there[agent])


points = st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3)), min_size=1, max_size=25)


@quickly
@given(points, st.floats(0.05, 3), st.one_of(st.none(), st.integers(0, 6)), st.integers(0, 5))
def test_geometric_is_symmetric_within_reach_and_bounded(
    where: list[tuple[float, float]], radius: float, most: int | None, seed: int
) -> None:
    place = torch.tensor(where, dtype=torch.float64)
    graph = Graph.geometric(place, radius, most, seed)
    hears = {(r, s) for r in range(graph.agents) for s in graph.neighbours(r)}
    assert hears == {(s, r) for r, s in hears}
    near = {
        (i, j)
        for i in range(len(where))
        for j in range(len(where))
        if i != j and math.hypot(where[i][0] - where[j][0], where[i][1] - where[j][1]) <= radius
    }
    assert all(math.dist(where[i], where[j]) <= radius * (1 + 1e-12) for i, j in hears)
    if most is None:
        assert hears == {pair for pair in hears | near if math.dist(where[pair[0]], where[pair[1]]) <= radius}
        return
    degree = graph.degrees.tolist()
    assert max(degree) <= most
    for i, j in near - hears:  # no pair is left out while both agents are below the limit
        assert most in (degree[i], degree[j]) or math.isclose(math.dist(where[i], where[j]), radius, rel_tol=1e-9)
    assert heard(graph) == heard(Graph.geometric(place, radius, most, seed))


def test_geometric_choices_are_the_seed_s() -> None:
    place = torch.rand(60, 2, generator=torch.Generator().manual_seed(0))
    drawn = {str(heard(Graph.geometric(place, 0.8, 3, seed))) for seed in range(5)}
    assert len(drawn) == 5


@quickly
@given(st.lists(graphs(most=6), min_size=1, max_size=4))
def test_a_disjoint_union_holds_each_graph_and_nothing_between(parts: list[Graph]) -> None:
    union = Graph.disjoint_union(parts)
    expected: list[list[int]] = []
    for part in parts:
        first = len(expected)
        expected += [[first + sender for sender in those] for those in heard(part)]
    assert heard(union) == expected


@quickly
@given(graphs(), st.one_of(st.just(2**27), st.integers(1, 30)))
def test_tables_reproduce_the_graph_whatever_their_size(graph: Graph, max_entries: int) -> None:
    _reproduces(graph, max_entries)


@pytest.mark.parametrize("max_entries", [2**27, 5000, 301, 7, 1])
def test_tables_of_very_different_degrees_reproduce_the_graph(max_entries: int) -> None:
    star = Graph.star(300)
    _reproduces(star, max_entries)
    _reproduces(Graph.disjoint_union([star, Graph.ring(50, 3), Graph.from_edges(2, [])]), max_entries)
    assert len(star.neighbourhoods()) > 1


def _reproduces(graph: Graph, max_entries: int) -> None:
    tables = graph.neighbourhoods(max_entries)
    seen: dict[int, list[int]] = {}
    for table in tables:
        agents, slots = table.senders.shape
        assert agents == 1 or agents * slots <= max_entries
        assert torch.equal(table.senders[:, 0], table.receivers)
        assert bool(table.present[:, 0].all())
        padding = table.senders == table.receivers[:, None]
        assert bool(padding[~table.present].all())
        for agent, senders, present in zip(table.receivers.tolist(), table.senders, table.present, strict=True):
            assert agent not in seen
            seen[agent] = senders[present][1:].tolist()
    assert [seen[agent] for agent in range(graph.agents)] == heard(graph)


def test_only_dense_graphs_are_called_dense() -> None:
    assert all(table.dense for table in Graph.complete(10).neighbourhoods())
    assert not any(table.dense for table in Graph.ring(10).neighbourhoods())


@pytest.mark.parametrize("make", [Graph.complete, Graph.ring, Graph.star, lambda n: Graph.erdos_renyi(n, 0.5)])
@pytest.mark.parametrize("n", [0, -1])
def test_a_graph_needs_an_agent(make: object, n: int) -> None:
    with pytest.raises(BadInput, match="at least one agent"):
        make(n)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Graph.from_edges(3, [(0, 3)]), "agent 3 .* agents are 0 … 2"),
        (lambda: Graph.from_edges(3, [(-1, 0)]), "negative"),
        (lambda: Graph.from_edges(0, []), "at least one agent"),
        (lambda: Graph.from_networkx(nx.Graph()), "at least one agent"),
        (lambda: Graph.ring(5, -1), "k"),
        (lambda: Graph.erdos_renyi(5, 1.5), "between 0 and 1"),
        (lambda: Graph.erdos_renyi(5, -0.1), "between 0 and 1"),
        (lambda: Graph.erdos_renyi(5, math.nan), "between 0 and 1"),
        (lambda: Graph.geometric(torch.zeros(3, 2), 0.0), "radius"),
        (lambda: Graph.geometric(torch.zeros(3, 2), -1.0), "radius"),
        (lambda: Graph.geometric(torch.zeros(3, 2), math.nan), "radius"),
        (lambda: Graph.geometric(torch.zeros(3, 2), 1.0, max_degree=-1), "max_degree"),
        (lambda: Graph.geometric(torch.full((3, 2), math.nan), 1.0), "finite"),
        (lambda: Graph.geometric(torch.zeros(0, 2), 1.0), "at least one agent"),
        (lambda: Graph.geometric(torch.zeros(3), 1.0), "points"),
        (lambda: Graph.from_edges(3, [(0, 1, 2)]), "pairs"),  # an edge has two numbers, not three
        (lambda: Graph.from_edges(3, [(0, 1, 2), (2, 1, 0)]), "pairs"),
        (lambda: Graph.disjoint_union([]), "at least one"),
    ],
)
def test_what_cannot_be_a_graph_is_refused_in_one_line(make: object, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        make()  # type: ignore[operator]
    assert "\n" not in str(caught.value)

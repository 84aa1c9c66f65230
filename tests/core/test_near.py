"""Graphs from a grid are those from a tree, edge for edge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from varangian.core import geometric, near
from varangian.core.cpp.build import NotBuilt, has_compiler
from varangian.core.graph import Graph

pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")

Array = np.ndarray[Any, Any]


def uniform(rng: np.random.Generator, agents: int) -> Array:
    return rng.random((agents, 2)) * 3


def clustered(rng: np.random.Generator, agents: int) -> Array:
    return rng.normal(size=(agents, 2)) * rng.exponential(size=(agents, 1))


def in_a_strip(rng: np.random.Generator, agents: int) -> Array:
    return rng.random((agents, 2)) * (1000.0, 0.001) - 500


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near, "MANY", 1)
    monkeypatch.setattr(near, "CROWDED", 10**6)
    monkeypatch.setattr(geometric, "_few", lambda points, radius: False)


def by_tree(points: Array, radius: float, max_degree: int, seed: int) -> Graph:
    pairs = geometric.pairs_within(points, radius, max_degree, seed)
    return Graph.from_edges(len(points), np.concatenate((pairs, pairs[:, ::-1])))


@pytest.mark.parametrize("radius", [0.01, 0.1, 5.0])
@pytest.mark.parametrize("max_degree", [1, 4, 10])
@pytest.mark.parametrize("placed", [uniform, clustered, in_a_strip])
def test_the_same_graph_edge_for_edge(placed: Any, max_degree: int, radius: float) -> None:
    points = placed(np.random.default_rng(max_degree), 600)
    ours = geometric.graph_within(points, radius, max_degree, seed=7)
    assert ours is not None
    theirs = by_tree(points, radius, max_degree, seed=7)
    assert torch.equal(torch.from_numpy(ours[1]), theirs.offsets)
    assert torch.equal(torch.from_numpy(ours[0]), theirs.senders)


def test_many_agents_give_the_same_graph() -> None:
    points = uniform(np.random.default_rng(0), 30_000)
    ours = Graph.geometric(torch.from_numpy(points), 1.0, 10, seed=3)
    theirs = by_tree(points, 1.0, 10, seed=3)
    assert torch.equal(ours.senders, theirs.senders) and torch.equal(ours.offsets, theirs.offsets)
    assert int(ours.degrees.max()) == 10


def test_points_that_fit_no_grid_are_left_to_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    assert near.nearest_graph(np.zeros((50, 2)), 1.0, 20, 10, 0) is None, "all at one place"
    assert near.nearest_graph(rng.random((50, 3)), 1.0, 20, 10, 0) is None, "not in a plane"
    monkeypatch.setattr(near, "CROWDED", 3)
    assert near.nearest_graph(clustered(rng, 500), 1.0, 20, 10, 0) is None, "crowded"
    monkeypatch.undo()
    assert near.nearest_graph(rng.random((50, 2)), 1.0, 20, 10, 0) is None, "few"


def test_without_a_compiler_the_graph_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    points = torch.from_numpy(uniform(np.random.default_rng(1), 300))
    ours = Graph.geometric(points, 0.5, 5, seed=1)

    def fails(text: str, *options: str) -> Any:
        raise NotBuilt("no compiler")

    monkeypatch.setattr(near, "built", fails)
    theirs = Graph.geometric(points, 0.5, 5, seed=1)
    assert torch.equal(ours.senders, theirs.senders) and torch.equal(ours.offsets, theirs.offsets)

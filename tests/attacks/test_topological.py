"""Attacks made for the graph: tiny cases by hand, loops beside them, and the harm they are for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from attack_views import byzantine_around, column, common_goal, honest_around, random_view, regret, sent_by, view_of

from varangian import BadInput, rules, simulate
from varangian.attacks.copying import scaled
from varangian.attacks.topological import dissensus, isolation, slowest_cut, spectral_dissensus
from varangian.core.graph import Graph

HONEST = scaled(1.0)


def test_dissensus_and_isolation_by_hand() -> None:
    """Agent 0 is at 0, pulled by 3 and 6, and hears two liars."""
    view = view_of(Graph.complete(5), [3, 4], column(0, 3, 6, 50, 60))
    assert sent_by(dissensus(epsilon=1.5), view)[3, 0].item() == pytest.approx(-1.5 * 9 / 2)
    assert sent_by(isolation(), view)[4, 0].item() == pytest.approx(-4.5)


def test_isolation_of_one_leaves_the_others_in_peace() -> None:
    view = view_of(Graph.complete(5), [3, 4], column(0, 3, 6, 50, 60))
    sent = sent_by(isolation(victim=0), view)
    assert [sent[3, k].item() for k in range(3)] == pytest.approx([-4.5, 50, 50])
    with pytest.raises(BadInput, match="isolation names agent 5, but agents are 0 … 4"):
        sent_by(isolation(victim=5), view)


def test_spectral_dissensus_by_hand() -> None:
    """A path of honest agents 0 – 1 – 2 has the Fiedler vector (1, 0, −1)/√2."""
    both = [(0, 1), (1, 2), (3, 0), (3, 1), (3, 2)]
    view = view_of(Graph.from_edges(4, [*both, *((b, a) for a, b in both)]), [3], column(4, 7, 0, 50))
    sent = sent_by(spectral_dissensus(epsilon=3.0), view)
    assert [sent[3, k].item() for k in range(3)] == pytest.approx([4 + 3 * 2, 7, 0 - 3 * 2])


def test_the_cut_is_the_slowest_one() -> None:
    """v ⟂ 1 of unit length with Lv = λ₂v, for every connected part, beside networkx; zero for the rest."""
    import networkx as nx

    pieces = [nx.barbell_graph(4, 2), nx.path_graph(7), nx.star_graph(1), nx.empty_graph(2)]
    whole = nx.disjoint_union_all(pieces)
    graph = Graph.from_networkx(whole)
    cut = slowest_cut(view_of(graph, [graph.agents - 1], torch.zeros(graph.agents, 1)))
    first = 0
    for piece in pieces[:3]:
        own = cut.vector[first : first + len(piece)].numpy()
        bends = nx.laplacian_matrix(piece).toarray()
        slowest = np.linalg.eigvalsh(bends)[1]
        assert np.allclose([own.sum(), own @ own], [0, 1])
        assert np.allclose(bends @ own, slowest * own)
        first += len(piece)
    assert not cut.vector[first:].any()


def test_large_networks_are_cut_nearly_as_well() -> None:
    """Two dense halves joined by one edge: the halves are told apart."""
    import networkx as nx

    halves = nx.disjoint_union(*(nx.random_regular_graph(6, 300, seed=s) for s in (0, 1)))
    halves.add_edge(0, 300)
    graph = Graph.from_networkx(nx.disjoint_union(halves, nx.empty_graph(1)))
    vector = slowest_cut(view_of(graph, [600], torch.zeros(601, 1))).vector
    assert vector[:300].sign().eq(vector[0].sign()).all()
    assert vector[300:600].sign().eq(-vector[0].sign()).all()
    assert vector.norm().item() == pytest.approx(1)


@pytest.mark.parametrize("seed", range(3))
def test_all_are_what_a_loop_over_victims_makes(seed: int) -> None:
    view = random_view(seed)
    cut = slowest_cut(view).vector
    away = {epsilon: sent_by(dissensus(epsilon), view) for epsilon in (0.4, 2.0)}
    isolated, apart = sent_by(isolation(), view), sent_by(spectral_dissensus(0.5), view)
    for edge in apart:
        victim = edge[1]
        if not view.wiring.normal[victim]:
            continue
        own, f = view.adapted[victim], len(byzantine_around(view, victim))
        pull = sum(view.adapted[k] - own for k in honest_around(view, victim))
        for epsilon, sent in away.items():
            assert torch.allclose(sent[edge], own - epsilon * pull / f)
        everyone = [*view.adapted[honest_around(view, victim)], *[isolated[edge]] * f]
        assert torch.allclose(torch.stack(everyone).mean(0), own)
        along = sum(cut[k] * view.adapted[k] for k in range(len(cut)) if view.wiring.normal[k])
        assert torch.allclose(apart[edge], own + 0.5 * cut[victim] * along)


@pytest.mark.parametrize(
    ("attack", "graph", "times"),
    [
        (dissensus(), None, 1e6),
        (dissensus(), Graph.ring(12, 2), 1e6),
        (spectral_dissensus(), Graph.ring(12, 2), 1e6),
    ],
    ids=repr,
)
def test_each_drives_an_average_apart(attack: Any, graph: Graph | None, times: float) -> None:
    assert regret(rules.average(), attack, graph) > times * regret(rules.average(), HONEST, graph)


def test_isolation_leaves_no_cooperation() -> None:
    """In a complete graph everybody hears the liars, and averaging becomes being alone, round by round."""
    settings = {"byzantine": 3, "rounds": 30, "attack": isolation(), "dtype": "float64", "device": "cpu"}
    of = [simulate(common_goal(), rule=rule, **settings) for rule in (rules.average(), rules.alone())]
    normal = ~of[0]["byzantine_agent"]
    assert np.allclose(of[0]["regret"].where(normal, 0), of[1]["regret"].where(normal, 0))


def test_a_graph_that_changes_is_read_anew() -> None:
    graphs = [Graph.ring(12, 1), Graph.ring(12, 2), Graph.complete(12)]
    for attack in (dissensus(), spectral_dissensus()):
        result = simulate(
            common_goal(),
            lambda round: graphs[round % 3],
            rule=rules.loss_based(),
            attack=attack,
            byzantine=3,
            rounds=30,
            device="cpu",
        )
        assert float(result["regret"].where(~result["byzantine_agent"]).isel(round=-1).max()) < 1


def test_what_cannot_work_is_said() -> None:
    with pytest.raises(BadInput, match="0 or more"):
        isolation(victim=-1)

"""All attacks that look around: finite whatever they see, and blind to the networks of other seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from attack_views import view_of

from varangian import attacks, rules, simulate, studies
from varangian.attacks.best_response import best_response
from varangian.attacks.copying import collusion, free_rider, scaled, sybil
from varangian.attacks.fang import fang_krum, fang_trimmed_mean
from varangian.attacks.faults import delay, dropping, duplicate
from varangian.attacks.poisoning import label_flip
from varangian.attacks.statistical import alie, inner_product, mimic, min_max, min_sum
from varangian.attacks.topological import dissensus, isolation, spectral_dissensus
from varangian.core.graph import Graph
from varangian.testing.contract import ATTACK_PROPERTIES

ATTACKS = [
    alie(),
    alie(1.5),
    inner_product(),
    fang_trimmed_mean(),
    fang_krum(),
    min_max(),
    min_max("unit"),
    min_sum(),
    min_sum("sign"),
    mimic(),
    mimic(agent=0),
    dissensus(),
    isolation(),
    isolation(victim=0),
    spectral_dissensus(),
    scaled(),
    free_rider(),
    collusion(),
    sybil(attacks.gaussian()),
    sybil(attacks.pulling()),
    delay(3),
    duplicate(),
    dropping(),
    label_flip(),
    best_response(lengths=1, refinements=1, horizon=1, ahead=2, imitates=(attacks.dissensus(),)),
    attacks.rop(),
    attacks.poisoned_fl(window=3),
    attacks.variance_inflation(),
    attacks.trust_then_strike(gifts=1),
    attacks.model_replacement(),
    attacks.model_replacement(then=attacks.pulling()),
    attacks.backdoor(features=(0,)),
    attacks.backdoor(features=(0,), replace=True),
]
NETWORKS = {
    "nobody honest": (Graph.complete(4), [0, 1, 2, 3]),
    "one honest": (Graph.complete(4), [1, 2, 3]),
    "one liar": (Graph.complete(4), [2]),
    "a liar on its own": (Graph.from_edges(4, [(0, 1), (1, 0)]), [3]),
    "honest agents on their own": (Graph.star(4), [0]),
    "a liar who only listens": (Graph.from_edges(4, [(0, 3), (1, 3)]), [3]),
    "alone in the world": (Graph.complete(1), [0]),
}


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_what_is_sent_is_finite_in_every_network_even_where_all_agree(attack: Any) -> None:
    for name, (graph, liars) in NETWORKS.items():
        drawn = torch.randn(graph.agents, 3, generator=torch.Generator().manual_seed(0))
        for models in (drawn, torch.ones_like(drawn), torch.zeros_like(drawn), drawn * 1e15, drawn * 1e-20):
            for previous in (torch.zeros_like(models), models):
                view = view_of(graph, liars, models, previous)
                sent, state = attack.send(view, attack.init(view.own))
                again, _ = attack.send(view, state)
                assert sent.rows.isfinite().all() and again.rows.isfinite().all(), name


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_seeds_side_by_side_are_seeds_one_by_one(attack: Any) -> None:
    study = studies.target_localization(agents=14)
    settings = {"rule": rules.loss_based(), "attack": attack, "byzantine": 4, "rounds": 8, "dtype": "float64"}
    together = simulate(study, seeds=2, device="cpu", **settings)
    for seed in (0, 1):
        alone = simulate(study, seeds=[seed], device="cpu", **settings)
        for name in ("regret", "byzantine_weight"):
            assert np.allclose(together[name].sel(seed=seed), alone[name].sel(seed=seed), rtol=1e-9, atol=1e-12), name


@pytest.mark.parametrize("attack", [mimic(agent=2), isolation(victim=2)], ids=repr)
def test_who_names_an_agent_keeps_the_rest_of_the_contract(attack: Any) -> None:
    """The numbers of agents matter to it, as they should, and nothing else that should not."""
    for name, complaints in ATTACK_PROPERTIES.items():
        for dtype in (torch.float32, torch.float64):
            assert bool(list(complaints(attack, dtype, parameters=2))) == ("relabelling" in name)

"""Attacks that hide in statistics: tiny cases by hand, loops over victims beside them, and the harm they are for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import robust_peers
import torch
from attack_views import byzantine_around, column, honest_around, random_view, regret, sent_by, view_of
from torch import Tensor

from varangian import BadInput, robust, rules
from varangian.attacks.base import View
from varangian.attacks.copying import scaled
from varangian.attacks.fang import fang_krum, fang_trimmed_mean
from varangian.attacks.statistical import alie, inner_product, mimic, min_max, min_sum
from varangian.core.graph import Graph
from varangian.experiments.spec import with_settings
from varangian.rules.nearest import krum
from varangian.rules.robust import median, trimmed_mean

HONEST = scaled(1.0)
FIVE = Graph.complete(5)
"""Agents 0, 1, 2 are honest where 3 and 4 lie."""


# By hand ------------------------------------------------------------------------------------------------------


def test_alie_by_hand() -> None:
    """Honest models 0, 3, 6: μ = 3, σ = √6."""
    view = view_of(FIVE, [3, 4], column(0, 3, 6, 50, 60))
    assert sent_by(alie(z=1.0), view)[3, 0].item() == pytest.approx(3 - math.sqrt(6))
    # n = 5, f = 2: a majority is 3, so one honest agent must be persuaded: Φ(z) = (5 − 3) / 3, z = 0.4307.
    assert sent_by(alie(), view)[4, 2].item() == pytest.approx(3 - 0.430727 * math.sqrt(6))


def test_alie_says_the_mean_where_no_majority_can_be_won_and_stays_finite_where_liars_are_one() -> None:
    few = view_of(Graph.complete(4), [3], column(0, 3, 6, 50))
    assert sent_by(alie(), few)[3, 0].item() == pytest.approx(3)  # (4 − 3) / 3 is less than a half
    many = view_of(Graph.complete(4), [2, 3], column(0, 4, 50, 60))  # (4 − 3) / 2 is a half
    assert sent_by(alie(), many)[3, 0].item() == pytest.approx(2)
    all_but_one = view_of(FIVE, [1, 2, 3, 4], column(7, 0, 0, 0, 0))
    assert sent_by(alie(), all_but_one)[3, 0].item() == pytest.approx(7)


def test_inner_product_by_hand() -> None:
    """Changes 1, 2, 3 around victims that were at 10, 20, 30."""
    view = view_of(FIVE, [3, 4], column(11, 22, 33, 0, 0), column(10, 20, 30, 0, 0))
    sent = sent_by(inner_product(epsilon=0.5), view)
    assert [sent[3, k].item() for k in range(3)] == pytest.approx([9, 19, 29])


def test_fang_trimmed_mean_by_hand() -> None:
    """What grows is told less than the least of it, what shrinks more than the most, as far as a factor of two goes."""
    adapted = torch.tensor([[1, -1, 3, -2], [2, -2, 4, 1], [4, -4, 5, 2], [9, 9, 9, 9], [9, 9, 9, 9]]).double()
    previous = torch.tensor([[0, 0, 9, 1]]).double().expand(5, 4)
    sent = sent_by(fang_trimmed_mean(), view_of(FIVE, [3, 4], adapted, previous))
    # Least 1: down to 1/2. Most −1: up to −1/2. Most 5: up to 10. Most 2: up to 4.
    for low, high, number in zip((0.5, -1, 5, 2), (1, -0.5, 10, 4), sent[3, 0].tolist(), strict=True):
        assert low < number < high
    assert (sent[3, 0] != sent[4, 0]).all(), "each sender draws for itself"
    view = view_of(FIVE, [3, 4], adapted, previous)
    drawn = view.uniform("fang trimmed mean attack")[0]
    assert torch.allclose(sent[3, 0], torch.tensor([1, -1, 5, 2]) + drawn * torch.tensor([-0.5, 0.5, 5, 2]))


def test_fang_krum_by_hand() -> None:
    """From 0, with honest models 1, 2, 3: two lies are each other's nearest and win at once, one has nobody."""
    two = view_of(FIVE, [3, 4], column(1, 2, 3, 0, 0))
    assert sent_by(fang_krum(), two)[3, 0].item() == pytest.approx(-4)  # √1 + 3, the paper's bound
    one = view_of(Graph.complete(4), [3], column(1, 2, 3, 0))
    assert sent_by(fang_krum(halvings=3), one)[3, 0].item() == pytest.approx(-4 / 8)


def test_min_max_and_min_sum_by_hand() -> None:
    """Honest models 0, 1, 5: μ = 2. No farther than 5 from any; Σ of squares at most 5² + 4² = 41 = 14 + 3 · 9."""
    view = view_of(FIVE, [3, 4], column(0, 1, 5, 50, 60))
    for deviation in ("std", "unit", "sign"):
        assert sent_by(min_max(deviation), view)[3, 0].item() == pytest.approx(0)
        assert sent_by(min_sum(deviation), view)[3, 0].item() == pytest.approx(-1)


def test_mimic_by_hand() -> None:
    view = view_of(FIVE, [3, 4], column(0, 1, 5, 50, 60))
    assert {row.item() for row in sent_by(mimic(), view).values()} == {5.0}
    assert {row.item() for row in sent_by(mimic(agent=1), view).values()} == {1.0}
    with pytest.raises(BadInput, match=r"agent 5, but agents are 0 … 4"):
        sent_by(mimic(agent=5), view)


def test_mimic_stays_with_the_agent_it_has_chosen() -> None:
    """Agent 2 is farthest in the first two rounds, then agent 0. By then the choice has been made."""
    rounds = [column(0, 1, 5, 9), column(0, 1, 4, 9), column(-8, 1, 2, 9), column(-9, 1, 2, 9)]
    for warmup, expected in ((1, [5.0, 4.0, 2.0, 2.0]), (2, [5.0, 4.0, 2.0, 2.0]), (3, [5.0, 4.0, -8.0, -9.0])):
        attack, told = mimic(warmup=warmup), list[float]()
        state: Any = attack.init(rounds[0][3:])
        for number, adapted in enumerate(rounds):
            sent, state = attack.send(view_of(Graph.complete(4), [3], adapted, round=100 + number), state)
            told.append(sent.rows[0, 0].item())
        assert told == expected, "it counts its own rounds, whatever the number of the round"


def test_mimic_weighs_each_round_of_its_search_alike() -> None:
    """In round i the old direction has weight i: z = (0, 1) twice, then w = (1, 0) gives (1, 2) / √5."""
    up = torch.tensor([[0, 3], [0, 0], [0, 0], [0, 0]], dtype=torch.float64)
    attack = mimic()
    state: Any = attack.init(up[3:])
    for adapted in (up, up, up.flip(1) + up / 10**9):
        _, state = attack.send(view_of(Graph.complete(4), [3], adapted), state)
    assert state.direction[0].tolist() == pytest.approx([1 / math.sqrt(5), 2 / math.sqrt(5)], abs=1e-6)


def test_mimic_stays_with_the_direction_in_which_models_vary_most() -> None:
    """One model stands out once; the others vary along another line, which wins in the long run."""
    line = torch.tensor([[4, 0], [2, 0], [-2, 0], [-4.1, 0], [0, 3]], dtype=torch.float64)
    outlier = line.index_copy(0, torch.tensor([4]), torch.tensor([[0, 9.0]]).double())
    state: Any = mimic().init(line[:1])
    copied = []
    for models in (outlier, *[line] * 20):
        view = view_of(Graph.complete(6), [5], torch.cat((models, torch.zeros(1, 2).double())))
        sent, state = mimic().send(view, state)
        copied.append(sent.rows[0].tolist())
    assert copied[0] == [0, 9]
    assert copied[-1] == pytest.approx([-4.1, 0])


# Beside a plain loop ------------------------------------------------------------------------------------------


def expected_alie(view: View, victim: int, z: float) -> np.ndarray[Any, Any]:
    honest = view.adapted[honest_around(view, victim)].numpy()
    return honest.mean(0) - z * honest.std(0)


def expected_inner_product(view: View, victim: int, epsilon: float) -> np.ndarray[Any, Any]:
    honest = honest_around(view, victim)
    change = (view.adapted[honest] - view.previous[honest]).numpy().mean(0)
    return view.previous[victim].numpy() - epsilon * change


def expected_fang_krum(view: View, victim: int, halvings: int) -> np.ndarray[Any, Any]:
    honest = view.adapted[honest_around(view, victim)].numpy()
    start, f = view.previous[victim].numpy(), len(byzantine_around(view, victim))
    n, d = len(honest) + f, len(start)
    direction = np.where(honest.mean(0) >= start, 1.0, -1.0)

    def scores(models: np.ndarray[Any, Any]) -> list[float]:
        near = max(1, n - f - 2)
        squares = ((models[:, None] - models[None]) ** 2).sum(2)
        return [float(np.sort(np.delete(row, i))[:near].sum()) for i, row in enumerate(squares)]

    closest = min(scores(honest)) if len(honest) > 1 else 0.0
    length = math.sqrt(closest / (max(1, n - 2 * f - 1) * d))
    length += max(float(np.linalg.norm(model - start)) for model in honest) / math.sqrt(d)
    for _ in range(halvings):
        lie = start - length * direction
        of_all = scores(np.vstack([honest, *[lie] * f]))
        if of_all[-1] <= min(of_all[: len(honest)]):
            break
        length /= 2
    return start - length * direction


def bisected(view: View, victim: int, deviation: str, kind: str) -> np.ndarray[Any, Any]:
    """γ as the papers find it: by trying."""
    honest = view.adapted[honest_around(view, victim)].numpy()
    mean, change = honest.mean(0), honest.mean(0) - view.previous[victim].numpy()
    p = {"std": -honest.std(0), "unit": -change / np.linalg.norm(change), "sign": -np.sign(change)}[deviation]
    squares = ((honest[:, None] - honest[None]) ** 2).sum(2)

    def passes(gamma: float) -> bool:
        away = ((mean + gamma * p - honest) ** 2).sum(1)
        return away.max() <= squares.max() if kind == "max" else away.sum() <= squares.sum(1).max()

    low, high = 0.0, 1e6
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if passes(middle) else (low, middle)
    return mean + (low if p.any() else 0) * p


@pytest.mark.parametrize("seed", range(4))
def test_all_are_what_a_loop_over_victims_makes(seed: int) -> None:
    view = random_view(seed)
    wanted = [
        (alie(z=1.3), lambda k: expected_alie(view, k, 1.3)),
        (inner_product(0.7), lambda k: expected_inner_product(view, k, 0.7)),
        (fang_krum(12), lambda k: expected_fang_krum(view, k, 12)),
        *((min_max(d), lambda k, d=d: bisected(view, k, d, "max")) for d in ("std", "unit", "sign")),  # type: ignore[misc]
        *((min_sum(d), lambda k, d=d: bisected(view, k, d, "sum")) for d in ("std", "unit", "sign")),  # type: ignore[misc]
    ]
    for attack, expected in wanted:
        sent = sent_by(attack, view)
        assert len(sent) == len(view.sender)
        for (_, victim), row in sent.items():
            if view.wiring.normal[victim]:
                assert np.allclose(row.numpy(), expected(victim), rtol=1e-6, atol=1e-6), (attack, victim)


def test_agents_of_very_different_degree_are_all_served() -> None:
    """A star wide enough to be laid out in several tables: the hub hears liars, and leaves hear a lying hub."""
    numbers = torch.Generator().manual_seed(0)
    adapted = torch.randn(400, 2, generator=numbers, dtype=torch.float64)
    graph = Graph.star(400)
    assert len(graph.neighbourhoods()) > 1
    view = view_of(graph, [7, 300], adapted)
    sent = sent_by(alie(z=1.0), view)
    assert sent.keys() == {(7, 0), (300, 0)}
    assert np.allclose(sent[300, 0].numpy(), expected_alie(view, 0, 1.0))
    view = view_of(graph, [0], adapted)
    sent = sent_by(alie(z=1.0), view)
    assert all(torch.equal(sent[0, leaf], adapted[leaf]) for leaf in range(1, 400)), "a leaf has nobody else"


# Harm ---------------------------------------------------------------------------------------------------------


def test_krum_takes_what_was_made_for_it() -> None:
    numbers = torch.Generator().manual_seed(0)
    view = view_of(Graph.complete(9), [6, 7, 8], torch.randn(9, 4, generator=numbers, dtype=torch.float64) + 0.5)
    lie = sent_by(fang_krum(), view)[6, 0]
    heard = torch.cat((view.adapted[:6], lie.expand(3, 4)))
    assert torch.equal(robust.krum(heard, 3), lie)
    assert (lie * view.adapted[:6].mean(0) < 0).all(), "and it lies where models come from, not where they go"
    assert lie.norm() > 0.1


@pytest.mark.parametrize(
    ("attack", "rule", "times"),
    [
        (alie(z=1.5), median(), 50),
        (alie(z=1.5), trimmed_mean(), 50),
        (inner_product(0.5), median(), 50),
        (inner_product(5.0), rules.average(), 1e4),
        (fang_trimmed_mean(), trimmed_mean(), 50),
        (fang_trimmed_mean(), median(), 50),
        (fang_krum(), krum(), 10),
        (min_max(), median(), 50),
        (min_sum(), trimmed_mean(), 50),
        (min_max("unit"), rules.distance_based(), 50),
    ],
    ids=repr,
)
def test_each_harms_the_rule_it_is_for(attack: Any, rule: Any, times: float) -> None:
    assert regret(rule, attack) > times * regret(rule, HONEST)


@pytest.mark.parametrize(
    "attack", [alie(z=1.5), inner_product(), fang_trimmed_mean(), fang_krum(), min_max()], ids=repr
)
def test_who_judges_by_loss_is_not_impressed(attack: Any) -> None:
    assert regret(rules.loss_based(), attack) < 2 * regret(rules.loss_based(), HONEST)


def test_mimic_tips_the_balance_between_tasks() -> None:
    """Three want 0 and two want 1; with two who copy, those who want 1 are the majority."""
    view = view_of(Graph.complete(7), [5, 6], column(0, 0, 0, 1, 1, 9, 9))
    copied = sent_by(mimic(), view)[5, 0]
    assert robust.median(view.adapted[:5]).item() == 0
    assert robust.median(torch.cat((view.adapted[:5], copied.expand(2, 1)))).item() == 1


# The rest -----------------------------------------------------------------------------------------------------


def test_byzfl_says_the_same_where_definitions_agree() -> None:
    try:
        byzfl = robust_peers.byzfl("attacks")
    except ImportError as error:
        pytest.skip(f"nothing to compare with: {error}")
    honest: Tensor = torch.randn(5, 4, generator=torch.Generator().manual_seed(3)).double()
    view = view_of(Graph.complete(7), [5, 6], torch.cat((honest, torch.zeros(2, 4).double())))
    # Their ALIE goes the other way, and estimates σ of a population from a sample.
    theirs = {
        alie(z=1.5): byzfl.ALittleIsEnough(tau=-1.5 * math.sqrt(4 / 5)),
        inner_product(2.0): byzfl.InnerProductManipulation(2.0),
        mimic(agent=3): byzfl.Mimic(3),
    }
    for ours, their in theirs.items():
        assert np.allclose(sent_by(ours, view)[5, 0].numpy(), np.asarray(their(honest.numpy()))), ours


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: fang_trimmed_mean(b=1.0), "b > 1"),
        (lambda: fang_krum(halvings=-1), "halvings must not be negative"),
        (lambda: mimic(agent=-1), "0 or more"),
        (lambda: mimic(warmup=0), "warmup is 0"),
        (lambda: with_settings(min_max, {"deviation": "stdd"}, "attack min-max"), "known: sign, std, unit"),
    ],
)
def test_what_cannot_work_is_said(make: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        make()


def test_settings_are_set_by_text() -> None:
    assert with_settings(alie, {"z": "1.5"}, "attack alie") == alie(1.5)
    assert with_settings(alie, {"z": "none"}, "attack alie") == alie()
    assert with_settings(min_sum, {"deviation": "unit"}, "attack min-sum") == min_sum("unit")
    assert with_settings(mimic, {"agent": "3"}, "attack mimic") == mimic(3)

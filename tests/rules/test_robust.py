"""Vector rules as learning rules: by hand, against a loop over agents, and against liars."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from contracts import beyond_defaults
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from varangian import Graph, Task, attacks, robust, rules, simulate, studies
from varangian.attacks import gaussian, sign_flip
from varangian.core.draws import Draws
from varangian.core.errors import BadInput
from varangian.core.inbox import DIRECT, Direct, Inbox
from varangian.core.models.base import Formula, Sample
from varangian.core.task import Quadratic
from varangian.engine.compute.evaluator import Fast
from varangian.engine.results import final
from varangian.experiments.spec import made
from varangian.rules.nearest import krum, monna, multi_krum
from varangian.rules.robust import centerpoint, geometric_median, median, nearest_neighbour_mixing, trimmed_mean
from varangian.testing import check_rule
from varangian.testing.scenarios import Story

torch.set_num_threads(1)

MIXING = [
    nearest_neighbour_mixing(),
    nearest_neighbour_mixing(then="median", f=2),
    nearest_neighbour_mixing(then="geometric-median"),
    nearest_neighbour_mixing(then="krum", f=0.3),
]
RULES = [
    median(),
    trimmed_mean(),
    trimmed_mean(f=2),
    trimmed_mean(f=2, keep_own=False),
    geometric_median(),
    krum(),
    krum(f=1),
    multi_krum(),
    multi_krum(f=1, m=2),
    monna(),
    monna(f=2),
    *MIXING,
]


@pytest.mark.parametrize("rule", beyond_defaults([*RULES, geometric_median(smoothing=0.1, iterations=3)]), ids=repr)
def test_every_rule_keeps_the_contract(rule: Any) -> None:
    check_rule(rule)


# By hand --------------------------------------------------------------------------------------------------------


def one_agent(own: list[float], *messages: list[float]) -> Inbox:
    """What agent 0 sees who has `own` and hears these; models have three numbers that travel and one that does not."""
    count = len(messages) + 1
    models = torch.full((4, count, 4), 7.0, dtype=torch.float64)
    models[:, :, :3] = torch.tensor([own, *messages], dtype=torch.float64)
    graph = Graph.from_edges(count, [(sender, 0) for sender in range(1, count)])
    return Story(graph, models, models, models[..., :3], models, models[..., 0]).inbox(0)


def model_of(rule: Any, inbox: Inbox) -> list[float]:
    return [round(value, 6) for value in rule.combine(inbox, ()).models[0].tolist()]


def weights_of(rule: Any, inbox: Inbox) -> list[float]:
    return [round(value, 6) for value in rule.combine(inbox, ()).weights[0].tolist()]


FIVE = one_agent([0, 1, 0], [1, 0, 0], [2, 4, 0], [4, 2, 0], [90, -90, 0])


def test_the_median_is_taken_of_each_coordinate() -> None:
    assert model_of(median(), FIVE) == [2, 1, 0, 7]
    assert model_of(median(), one_agent([0, 1, 0], [1, 0, 0], [2, 4, 0], [90, 90, 0])) == [1.5, 2.5, 0, 7]


def test_the_trimmed_mean_leaves_out_both_ends() -> None:
    plain = partial(trimmed_mean, keep_own=False)
    assert model_of(plain(f=1), FIVE) == [round(7 / 3, 6), 1, 0, 7]
    # A quarter of four neighbours is one; three of four are more than five can bear, and two leave the median.
    assert model_of(plain(f=0.25), FIVE) == [round(7 / 3, 6), 1, 0, 7]
    assert model_of(plain(f=3), FIVE) == [2, 1, 0, 7]


def test_the_trimmed_mean_of_bridge_keeps_ones_own_value() -> None:
    """Own 0, neighbours 10, 11 and 12: 11 is left, and (0 + 11) / 2 = 5.5. Among all four, 10 and 11 would be left."""
    inbox = one_agent([0, 0, 0], [10, 0, 0], [11, 0, 0], [12, 0, 0])
    assert model_of(trimmed_mean(f=1), inbox)[0] == 5.5
    assert model_of(trimmed_mean(f=1, keep_own=False), inbox)[0] == 10.5
    # Of 1, 2, 4 and 90, 2 and 4 are left; of 0, 4, 2 and −90, 0 and 2.
    assert model_of(trimmed_mean(f=1), FIVE) == [2, 1, 0, 7]
    # Two of four are more than four can bear, so one is trimmed on each side.
    assert model_of(trimmed_mean(f=2), FIVE) == [2, 1, 0, 7]
    # One neighbour cannot be trimmed, and without neighbours there is only the own value.
    assert model_of(trimmed_mean(f=1), one_agent([0, 0, 0], [8, 0, 0]))[0] == 4
    assert model_of(trimmed_mean(f=1), one_agent([3, 0, 0]))[0] == 3


def test_monna_is_as_near_to_honest_models_as_its_card_says() -> None:
    """Own 0, honest 1 and 4, one Byzantine at 3.9, f = 1: the mean of 0, 1 and 3.9 is near that of 0, 1 and 4."""
    got = model_of(monna(f=1), one_agent([0, 0, 0], [1, 0, 0], [4, 0, 0], [3.9, 0, 0]))[0]
    assert got == pytest.approx(4.9 / 3)
    honest, farthest = 5 / 3, 4.0
    assert abs(got - honest) <= 2 * 1 * farthest / (4 - 1)


@given(st.lists(st.floats(-9, 9), min_size=4, max_size=7), st.lists(st.floats(-30, 30), min_size=1, max_size=2))
@settings(deadline=None, max_examples=50)
def test_monna_keeps_its_bound(honest: list[float], lies: list[float]) -> None:
    f, n = len(lies), len(honest) + len(lies)
    got = model_of(monna(f=f), one_agent(*([x, 0, 0] for x in (*honest, *lies))))[0]
    far = max(abs(x - honest[0]) for x in honest)
    assert abs(got - sum(honest) / len(honest)) <= 2 * f * far / (n - f) + 1e-6


def test_the_geometric_median_is_where_unit_vectors_cancel() -> None:
    square = one_agent([0, 0, 0], [2, 0, 0], [2, 2, 0], [0, 2, 0])
    assert model_of(geometric_median(), square) == pytest.approx([1, 1, 0, 7], abs=1e-5)
    assert weights_of(geometric_median(), square) == pytest.approx([0.25] * 4, abs=1e-5)
    # Below the smoothing distances are all alike, and their geometric median is the mean.
    assert weights_of(geometric_median(smoothing=1e3), FIVE) == [0.2] * 5
    # Any two of three that agree are the geometric median.
    agreed = one_agent([5, 0, 0], [1, 1, 1], [1, 1, 1])
    assert geometric_median().combine(agreed, ()).models[0].tolist() == pytest.approx([1, 1, 1, 7], abs=1e-5)


def test_krum_takes_the_one_with_the_nearest_neighbours() -> None:
    # Sums of the two smallest squares (five less one less two): 0 → 1 + 9, 1 → 1 + 4, 3 → 1 + 4 … of 0, 1, 3, 4, 90.
    line = one_agent([0, 0, 0], [1, 0, 0], [3, 0, 0], [4, 0, 0], [90, 0, 0])
    assert weights_of(krum(f=1), line) == [0, 1, 0, 0, 0]
    assert model_of(krum(f=1), line) == [1, 0, 0, 7]
    # With three the score is the nearest distance, which the nearest two share: the one nearer to me is taken.
    for messages in ([[5, 0, 0], [4, 0, 0]], [[4, 0, 0], [5, 0, 0]]):
        assert model_of(krum(), one_agent([0, 0, 0], *messages)) == [4, 0, 0, 7]


def test_multi_krum_averages_the_best() -> None:
    line = one_agent([0, 0, 0], [1, 0, 0], [3, 0, 0], [4, 0, 0], [90, 0, 0])
    assert weights_of(multi_krum(f=1), line) == [0.25, 0.25, 0.25, 0.25, 0]
    assert weights_of(multi_krum(f=1, m=2), line) == [0, 0.5, 0.5, 0, 0]
    assert weights_of(multi_krum(f=1, m=99), line) == [0.2] * 5


def test_monna_averages_those_nearest_to_me() -> None:
    line = one_agent([3, 0, 0], [90, 0, 0], [0, 0, 0], [4, 0, 0], [1, 0, 0])
    assert weights_of(monna(f=1), line) == [0.25, 0, 0.25, 0.25, 0.25]
    assert weights_of(monna(f=2), line) == [0.333333, 0, 0, 0.333333, 0.333333]
    assert weights_of(monna(f=0), line) == [0.2] * 5


def test_mixing_comes_before_another_rule() -> None:
    # Means of the three nearest of 0, 1, 5, 90: 2, 2, 2, 32; their median is 2, and so is their trimmed mean.
    line = one_agent([0, 0, 0], [1, 0, 0], [5, 0, 0], [90, 0, 0])
    assert model_of(nearest_neighbour_mixing(f=1), line) == [2, 0, 0, 7]
    assert model_of(nearest_neighbour_mixing(then="median", f=1), line) == [2, 0, 0, 7]
    assert model_of(median(), line) == [3, 0, 0, 7]


def test_who_hears_nobody_stays_as_it_is() -> None:
    for rule in [*RULES, centerpoint()]:
        assert model_of(rule, one_agent([1, 2, 3])) == [1, 2, 3, 7]


def test_copies_of_a_model_that_nobody_trained_stop_krum_and_the_geometric_median() -> None:
    """What a reader should know: agents that skip a batch send the model that all had, in the middle of all steps."""
    steps = [[0.2, 1, 0], [0.2, -1, 0], [0.2, 0, 1], [0.2, 0, -1], [0.2, 0.7, 0.7], [0.2, -0.7, -0.7]]
    trained, a_quarter_copies = one_agent(*steps), one_agent(*steps, [0, 0, 0], [0, 0, 0])
    for rule in (krum(f=1), geometric_median()):
        assert model_of(rule, trained)[0] == pytest.approx(0.2)
        assert model_of(rule, a_quarter_copies)[:3] == pytest.approx([0, 0, 0], abs=1e-4)
    assert model_of(rules.average(), a_quarter_copies)[0] == pytest.approx(0.15)


# Against a loop -------------------------------------------------------------------------------------------------


def distance(x: Tensor, y: Tensor) -> float:
    return float((x - y).square().sum().sqrt())


def bear(f: float, n: int, most: int) -> int:
    """f of n, oneself among them, but no more than so many."""
    return max(0, min(int(f) if f >= 1 else math.ceil(f * (n - 1) - 1e-9), most))


def trimmed(vectors: list[Tensor], f: int) -> Tensor:
    return torch.stack(vectors).sort(0).values[f : len(vectors) - f].mean(0)


def median_of(vectors: list[Tensor], f: float = 0.0) -> Tensor:
    return trimmed(vectors, (len(vectors) - 1) // 2)


def trimmed_mean_of(vectors: list[Tensor], f: float) -> Tensor:
    return trimmed(vectors, bear(f, len(vectors), (len(vectors) - 1) // 2))


def bridge_of(vectors: list[Tensor], f: float) -> Tensor:
    """The own value and what is left of the neighbours', with equal weights."""
    own, *others = vectors
    if not others:
        return own
    few = bear(f, len(vectors), (len(others) - 1) // 2)
    return (own + trimmed(others, few) * (len(others) - 2 * few)) / (len(others) - 2 * few + 1)


def geometric_median_of(vectors: list[Tensor], f: float = 0.0) -> Tensor:
    z = torch.stack(vectors).mean(0)
    for _ in range(100):
        near = [1 / max(distance(x, z), 1e-9) for x in vectors]
        z = torch.stack([x * (w / sum(near)) for x, w in zip(vectors, near, strict=True)]).sum(0)
    return z


def best(vectors: list[Tensor], f: float, m: int | None) -> list[Tensor]:
    """Those with the lowest scores of Krum; of equal ones the nearest to vector 0."""
    few = bear(f, len(vectors), (len(vectors) - 3) // 2)
    others = {i: [x for j, x in enumerate(vectors) if j != i] for i in range(len(vectors))}

    def score(i: int) -> float:
        near = sorted(distance(vectors[i], x) ** 2 for x in others[i])[: max(0, len(vectors) - few - 2)]
        return round(sum(near), 9)

    order = sorted(range(len(vectors)), key=lambda i: (score(i), distance(vectors[i], vectors[0])))
    return [vectors[i] for i in order[: m or len(vectors) - few]]


def krum_of(vectors: list[Tensor], f: float) -> Tensor:
    return best(vectors, f, 1)[0]


def monna_of(vectors: list[Tensor], f: float) -> Tensor:
    kept = len(vectors) - bear(f, len(vectors), (len(vectors) - 1) // 2)
    return torch.stack(sorted(vectors, key=lambda x: distance(x, vectors[0]))[:kept]).mean(0)


def mixing_of(rule: nearest_neighbour_mixing, vectors: list[Tensor]) -> Tensor:
    then = {"median": median_of, "trimmed-mean": trimmed_mean_of, "krum": krum_of}
    kept = len(vectors) - bear(rule.f, len(vectors), len(vectors) - 1)
    mixed = [torch.stack(sorted(vectors, key=lambda y: distance(y, x))[:kept]).mean(0) for x in vectors]
    return (then | {"geometric-median": geometric_median_of})[rule.then](mixed, rule.f)


LOOPS: dict[type[Any], Callable[[Any, list[Tensor]], Tensor]] = {
    median: lambda rule, vectors: median_of(vectors),
    trimmed_mean: lambda rule, vectors: (bridge_of if rule.keep_own else trimmed_mean_of)(vectors, rule.f),
    geometric_median: lambda rule, vectors: geometric_median_of(vectors),
    krum: lambda rule, vectors: krum_of(vectors, rule.f),
    multi_krum: lambda rule, vectors: torch.stack(best(vectors, rule.f, rule.m)).mean(0),
    monna: lambda rule, vectors: monna_of(vectors, rule.f),
    nearest_neighbour_mixing: mixing_of,
}


def told(inbox: Inbox) -> list[list[Tensor]]:
    """What each agent has and heard, its own first."""
    rows = inbox.rows[inbox.source]
    return [list(vectors[heard]) for vectors, heard in zip(rows, inbox.heard, strict=True)]


def hostile() -> Story:
    """A random network in which one is silent, two lie, and some hear very few."""
    calm = Story.calm(torch.float64, Graph.erdos_renyi(14, 0.4, seed=3))
    sent = calm.sent.clone()
    sent[:, 3], sent[:, 8], sent[:, 11] = math.nan, 4.0, sent[:, 11] * 5
    return replace(calm, sent=sent)


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("dense", [False, True])
def test_stacked_equals_a_loop_over_agents(rule: Any, dense: bool) -> None:
    inbox = replace(hostile(), dense=dense).inbox(0)
    models = rule.combine(inbox, ()).models
    # Weiszfeld's iteration creeps where the geometric median is one of the vectors.
    tolerance = 0.05 if "geometric" in repr(rule) else 1e-10
    for agent, vectors in enumerate(told(inbox)):
        expected = LOOPS[type(rule)](rule, vectors)
        assert torch.allclose(models[agent, :3], expected, atol=tolerance), agent
        assert torch.equal(models[agent, 3:], inbox.own[agent, 3:])


def test_no_point_has_a_smaller_sum_of_distances_than_the_geometric_median() -> None:
    inbox = hostile().inbox(0)
    models = geometric_median().combine(inbox, ()).models[:, :3]
    for agent, vectors in enumerate(told(inbox)):
        reached = sum(distance(x, models[agent]) for x in vectors)
        assert reached <= sum(distance(x, geometric_median_of(vectors)) for x in vectors) * (1 + 1e-3)
        assert reached <= min(sum(distance(x, y) for x in vectors) for y in vectors) * (1 + 1e-3)


def test_a_centerpoint_of_the_plane_is_deep_for_everyone() -> None:
    """Every closed half-plane that contains it holds a third of those heard, liars or not."""
    graph = Graph.erdos_renyi(14, 0.6, seed=3)
    models = Draws.of(0, 14).normal_rounds("models", 0, 4, 2, torch.float64)
    models[:, 5] = 1e3
    inbox = Story(graph, models, models, models, models, models[..., 0], model=Formula(2, squared_error)).inbox(0)
    found = centerpoint().combine(inbox, ()).models
    angle = torch.linspace(0, 2 * math.pi, 721, dtype=torch.float64)
    direction = torch.stack((angle.cos(), angle.sin()))
    for agent, vectors in enumerate(told(inbox)):
        beyond = ((torch.stack(vectors) - found[agent]) @ direction >= -1e-6).sum(0)
        assert beyond.min() >= len(vectors) / 3


def test_a_centerpoint_in_space_is_that_of_the_stack_nearest_first() -> None:
    inbox = hostile().inbox(0)
    found = centerpoint().combine(inbox, ()).models[:, :3]
    for agent, vectors in enumerate(told(inbox)):
        nearest_first = sorted(vectors, key=lambda x, own=vectors[0]: distance(x, own))  # type: ignore[misc]
        assert torch.allclose(found[agent], robust.centerpoint(torch.stack(nearest_first)), atol=1e-4), agent


# Against liars --------------------------------------------------------------------------------------------------

TRUTH = 3.0


@dataclass(frozen=True)
class Measurements:
    """Everyone measures the same two numbers, each with an error of its own."""

    agents: int = 20

    def samples(self, draws: Draws, start: int, rounds: int, dtype: torch.dtype) -> Sample:
        return (draws.normal_rounds("measurement", start, rounds, 2, dtype) + TRUTH,)

    def to(self, device: torch.device) -> Measurements:
        return self


def squared_error(theta: Tensor, sample: Sample) -> Tensor:
    return (theta - sample[0]).square().sum(-1)


@cache
def error(rule: Any, attack: Any) -> float:
    """Mean square deviation of the normal agents who follow a mean, each hearing two liars among ten neighbours."""
    model = Formula(2, squared_error, first=lambda agents: torch.full((agents, 2), TRUTH))
    optimum = torch.full((20, 2), TRUTH, dtype=torch.float64)
    exact = Quadratic(optimum, torch.eye(2, dtype=torch.float64).expand(20, 2, 2))
    task = Task(model, Measurements(), step_size=0.05, exact=exact)
    result = simulate(task, Graph.ring(20, 5), rule=rule, attack=attack, byzantine=[2, 7, 12, 17], rounds=40, seeds=2)
    return float(final(result, "msd").mean())


@pytest.mark.parametrize("attack", [gaussian(30.0, 1.0), sign_flip(4.0)], ids=repr)
@pytest.mark.parametrize(
    ("rule", "share_of_alone"),
    [
        # Those who pick out vectors profit from the honest …
        *((rule, 1 / 5) for rule in (krum(), multi_krum(), monna(), *MIXING)),
        # … and those who look for a middle are moved by liars who all stand on one side, if never far.
        *((rule, 4) for rule in (median(), trimmed_mean(), geometric_median())),
    ],
    ids=repr,
)
def test_robust_rules_help_against_a_minority_far_away(rule: Any, share_of_alone: float, attack: Any) -> None:
    defended, averaged, alone = (error(r, attack) for r in (rule, rules.average(), rules.alone()))
    assert defended < averaged / 200
    assert defended < share_of_alone * alone


def test_a_centerpoint_stays_among_the_honest() -> None:
    """Two liars of eleven in the plane are fewer than a third."""
    graph = Graph.ring(20, 5)
    models = Draws.of(1, 20).normal_rounds("models", 0, 4, 2, torch.float64)
    sent = models.clone()
    sent[:, [2, 7, 12, 17]] = 1e3
    inbox = Story(graph, models, models, sent, models, models[..., 0], model=Formula(2, squared_error)).inbox(0)
    honest = [k for k in range(20) if k not in (2, 7, 12, 17)]
    assert centerpoint().combine(inbox, ()).models[honest].abs().max() < 2
    assert rules.average().combine(inbox, ()).models[honest].abs().min() > 100


def test_an_outvoted_agent_follows_the_majority_except_with_monna() -> None:
    """What a multi-task reader should know: these rules look for the majority, whatever it learns."""
    other_task = [[9 + i / 10, 9, 9] for i in range(5)]
    inbox = one_agent([0, 0, 0], [0.1, 0, 0], [0, 0.2, 0], *other_task)
    for rule in (median(), trimmed_mean(f=2), geometric_median(), krum(f=2), nearest_neighbour_mixing(f=3)):
        assert model_of(rule, inbox)[2] > 6
    assert model_of(monna(f=3), inbox)[2] < 6


# What can be asked for ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: trimmed_mean(f=2.5), "but is 2.5"),
        (lambda: krum(f=-0.1), "but is -0.1"),
        (lambda: multi_krum(m=0), "m is 0"),
        (lambda: monna(f=math.nan), "but is nan"),
        (lambda: geometric_median(smoothing=-1.0), "but is -1.0"),
        (lambda: geometric_median(iterations=0), "iterations is 0"),
        (lambda: nearest_neighbour_mixing(then="mean"), "then is 'mean'"),  # type: ignore[arg-type]
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(make: Callable[[], object], says: str) -> None:
    with pytest.raises(BadInput, match=says) as refused:
        make()
    assert "\n" not in str(refused.value)


def test_rules_are_made_from_text() -> None:
    named = {"multi-krum": multi_krum, "nearest-neighbour-mixing": nearest_neighbour_mixing}
    assert made("multi-krum:f=2,m=3", "rule", named) == multi_krum(f=2.0, m=3)
    assert made("nearest-neighbour-mixing:then=krum", "rule", named) == nearest_neighbour_mixing(then="krum")


@pytest.mark.parametrize("rule", [rules.median(), *(rules.trimmed_mean(f=f, keep_own=False) for f in (0.3, 2))])
@pytest.mark.parametrize("attack", [attacks.uniform(0, 9), attacks.crash(at=1), attacks.not_finite()])
@pytest.mark.parametrize("byzantine", [[0, 4], [5, 6]])
def test_where_all_hear_the_same_once_is_enough(rule: Any, attack: Any, byzantine: list[int]) -> None:
    """Against the same network told that they might not, the first agent lying or not."""
    task, graph = studies.target_localization(agents=7).task(0), Graph.complete(7)
    about: dict[str, Any] = {"rule": rule, "attack": attack, "byzantine": byzantine, "rounds": 12, "dtype": "float64"}
    once = simulate(task, graph, **about)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Fast,
            "_once_for_all",
            lambda fast, inbox, function, of: Direct.by_neighbourhood(DIRECT, inbox, function, of, any_order=False),
        )
        each = simulate(task, graph, **about)
    np.testing.assert_allclose(once["regret"], each["regret"], rtol=1e-12)

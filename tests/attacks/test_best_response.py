"""The adversary that tries the rule first: how far it gets, and how far it does not."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from attack_views import column, regret, sent_by, view_of
from torch import Tensor

from varangian import BadInput, attacks, rules, simulate, studies
from varangian.attacks.base import View
from varangian.attacks.best_response import best_response
from varangian.attacks.copying import scaled
from varangian.attacks.message_search import worst_neighbour
from varangian.attacks.statistical import alie, inner_product
from varangian.attacks.true_risk import gradient_of_risk, improved
from varangian.core.draws import Draws
from varangian.core.execution import DEFAULT
from varangian.core.graph import Graph
from varangian.core.messages import ToAll
from varangian.core.models.base import Formula, Sample
from varangian.core.scene import Scene
from varangian.core.task import Task
from varangian.engine.round import adapt, play_round
from varangian.engine.state import begin
from varangian.engine.world import prepare
from varangian.rules.nearest import krum
from varangian.rules.robust import median, trimmed_mean

GREEDY = best_response(lengths=6, refinements=2, horizon=0, patience=0.0, every=1, imitates=())
PAIR = Graph.complete(2)
"""Agent 0 hears agent 1, which lies."""


# By hand ------------------------------------------------------------------------------------------------------


def test_by_hand() -> None:
    """Who averages and wants to be at zero is harmed most by what is farthest: 100 times all there is beyond 1."""
    view = view_of(PAIR, [1], column(1, 0), column(1, 0))
    assert sent_by(GREEDY, view)[1, 0].item() == pytest.approx(1 + 100)
    assert sent_by(replace(GREEDY, reach=7.0), view)[1, 0].item() == pytest.approx(1 + 7)


def test_a_length_is_refined() -> None:
    """A victim that hears only what is within 2 of its own is told what is as nearly 2 away as refining gets."""

    def sent(refinements: int) -> float:
        view = view_of(PAIR, [1], column(1, 0), column(1, 0))
        usual = view.insight.foresee_each

        def within_two(told: Tensor, rule: Any = None) -> Tensor:
            near = (told[:, :1] - 1).abs() <= 2
            return torch.where(near, usual(told, rule), view.insight.models)

        view = replace(view, insight=replace(view.insight, foresee_each=within_two))
        return sent_by(replace(GREEDY, refinements=refinements), view)[1, 0].item()

    assert sent(0) < sent(3) <= 3
    assert sent(6) > 2.8


def test_where_nothing_does_harm_the_victim_hears_itself() -> None:
    view = view_of(PAIR, [1], column(1, 5), column(2, 5))
    deaf = replace(
        view.insight,
        foresee=lambda sent, rule=None: view.insight.models,
        foresee_each=lambda told, rule=None: view.insight.models.expand(len(told), -1, -1),
    )
    for attack in (GREEDY, best_response(imitates=())):
        assert sent_by(attack, replace(view, insight=deaf))[1, 0].item() == 1


def test_silence_where_every_word_helps() -> None:
    """A victim that does the opposite of what it is told is best left alone."""
    view = view_of(PAIR, [1], column(1, 5), column(2, 5))

    def contrary(told: Tensor, rule: Any = None) -> Tensor:
        return torch.where(told[:, :1].isnan(), 1.0, 0.5) * view.insight.models

    helped = replace(view.insight, foresee=lambda sent, rule=None: view.insight.models * 0.5, foresee_each=contrary)
    assert sent_by(GREEDY, replace(view, insight=helped)) == {}


def test_what_it_needs_to_know() -> None:
    """The slope of the risk, a better model, and the worst neighbour."""
    view = view_of(Graph.complete(4), [3], column(2, -4, 5, 9))
    assert gradient_of_risk(view, view.insight.models)[:, 0].tolist() == [4, -8, 10, 18]  # of θ²
    assert (improved(view, column(4, 4, 4, 4)).abs() < 0.1 * view.adapted.abs()).all()
    # The last samples are 1.8, −3.6, 4.5, 8.1, and losses squared distances to them.
    assert worst_neighbour(view)[:, 0].tolist() == [-4, 5, -4, 9], "nobody lies to agent 3"


def test_a_risk_without_a_gradient_is_replaced_by_the_loss() -> None:
    view = view_of(PAIR, [1], column(1, 0), column(1, 0))
    flat = replace(view.insight, risk=lambda models: models.detach().square().sum(1))
    view = replace(view, insight=flat)
    assert gradient_of_risk(view, flat.models)[:, 0].tolist() == pytest.approx([2 * (1 - 0.9), 0])
    assert sent_by(GREEDY, view)[1, 0].item() == pytest.approx(101)


# What it finds ------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class rehearsing:
    """Honest, but notes what others would have done in a round, by their own foresight."""

    others: tuple[Any, ...]
    at: int
    risks: list[Tensor] = field(default_factory=list[Tensor])

    def init(self, own: Tensor) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToAll, tuple[()]]:
        if view.round == self.at:
            for other in self.others:
                sent, _ = other.send(view, other.init(view.own))
                risk = view.insight.risk(view.insight.foresee(sent, None))
                self.risks.append(risk[view.wiring.normal])
        return ToAll(view.own), state


RULES = [
    rules.average(),
    rules.distance_based(),
    rules.distance_based(smoothing=1.0),
    rules.loss_based(),
    rules.loss_based(judge="same", smoothing=1.0),
    rules.loss_based(keep="all"),
    median(),
    trimmed_mean(),
    krum(),
]


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("at", [0, 12])
def test_no_known_attack_does_more_harm_in_a_round(rule: Any, at: int) -> None:
    """Nor does silence, nor honesty, to anybody."""
    safe = (attacks.silent(), scaled(1.0))
    known = (attacks.uniform(15, 16), attacks.pulling((0.0,)), attacks.pulling((0.0,), 0.5), alie(1.5), inner_product())
    rehearsal = rehearsing((replace(GREEDY, refinements=4), *safe, *known), at)
    study = studies.target_localization(agents=20)
    simulate(study, rule=rule, attack=rehearsal, byzantine=6, rounds=at + 1, dtype="float64", device="cpu")
    best, *others = rehearsal.risks
    for risk in others[: len(safe)]:
        assert (best >= risk).all()
    for attack, risk in zip(known, others[len(safe) :], strict=True):
        assert best.mean() >= risk.mean(), attack


def test_it_ruins_an_average() -> None:
    quick = best_response(lengths=3, refinements=0, horizon=0, imitates=())
    assert regret(rules.average(), quick, rounds=20) > 1e9


def test_it_knows_the_rule_it_is_told() -> None:
    """Against those who are thought to be alone nothing helps, so it does not try."""
    told = regret(rules.average(), replace(GREEDY, lengths=3, rule=rules.alone()), rounds=20)
    assert told < regret(rules.alone(), attacks.silent(), rounds=20)


def test_patience_pays_against_those_who_remember() -> None:
    """Greedy lies are remembered and weigh nothing from then on; patient ones are near enough to be trusted again."""
    greedy, patient = (
        regret(
            rules.distance_based(),
            best_response(lengths=3, refinements=0, horizon=0, patience=p, every=1, imitates=()),
            rounds=40,
        )
        for p in (0.0, 2.0)
    )
    assert patient > 20 * greedy


def test_who_judges_on_a_sample_known_beforehand_is_lost_where_who_judges_on_the_next_is_not() -> None:
    """One sample shows one direction: an adversary that knows it has all others to itself."""
    study = studies.target_localization(agents=20)

    def regret_of(rule: Any, attack: Any) -> float:
        result = simulate(study, rule=rule, attack=attack, byzantine=6, rounds=40, device="cpu")
        return float(result["regret"].where(~result["byzantine_agent"]).isel(round=slice(-10, None)).mean())

    quick = best_response(lengths=4, refinements=0, horizon=2, every=1, imitates=())
    known, unknown = (regret_of(rules.loss_based(judge=judge), quick) for judge in ("same", "next"))
    assert known > 100 * unknown
    assert unknown < 10 * regret_of(rules.alone(), attacks.silent())


# What it cannot -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class WholeRisk:
    """Every sample shows an agent its whole risk, (θ − θ*)ᵀH(θ − θ*) + 1."""

    optimum: Tensor
    curvature: Tensor

    @property
    def agents(self) -> int:
        return len(self.optimum)

    def samples(self, draws: Draws, start: int, rounds: int, dtype: torch.dtype) -> Sample:
        return tuple(part.to(dtype).expand(rounds, *part.shape) for part in (self.optimum, self.curvature))

    def to(self, device: torch.device) -> WholeRisk:
        return self


def whole_risk(theta: Tensor, sample: Sample) -> Tensor:
    optimum, curvature = sample
    error = theta - optimum
    return (error * (curvature * error[..., None, :]).sum(-1)).sum(-1) + 1


@pytest.mark.parametrize("attack", [GREEDY, best_response(ahead=5)], ids=["greedy", "usual"])
def test_theorem_1_holds_against_it(attack: Any) -> None:
    """r_k(θ_k) ≤ r_k(θ̂_k) in every round for every normal agent that knows its risk, whoever lies and however well."""
    numbers = torch.Generator().manual_seed(0)
    bent = torch.randn(8, 3, 3, generator=numbers, dtype=torch.float64)
    stream = WholeRisk(torch.randn(8, 3, generator=numbers, dtype=torch.float64), bent @ bent.mT / 3)
    task = Task(Formula(3, whole_risk), stream, step_size=0.02)
    world = prepare([Scene(task, Graph.complete(8))], [0], 4, DEFAULT, torch.float64)
    rule = rules.loss_based(judge="same", smoothing=1.0)
    state, sample = begin(world, rule, attack), world.sample(0)
    with torch.no_grad():
        for _ in range(12):
            adapted, _ = adapt(world, state)
            state, _ = play_round(world, rule, attack, state)
            own, combined = (whole_risk(models, sample) for models in (adapted, state.models))
            assert (combined <= own * (1 + 1e-9))[world.is_normal[:, 0]].all()


def test_it_cannot_harm_many_who_learn_the_same_and_judge_by_loss() -> None:
    quick = best_response(lengths=3, refinements=0, horizon=1, ahead=15)
    assert regret(rules.loss_based(), quick, rounds=30) < 1.5 * regret(rules.alone(), attacks.silent(), rounds=30)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"lengths": 0}, "at least one length"),
        ({"refinements": -1}, "refinements must not be negative"),
        ({"horizon": -1}, "horizon must not be negative"),
        ({"patience": float("nan")}, "patience must not be negative or infinite"),
        ({"reach": 0.0}, "positive reach"),
        ({"every": 0}, "every round at most"),
        ({"ahead": 0}, "at least one round ahead"),
        ({"imitates": (attacks.label_flip(),)}, "changes data"),
    ],
)
def test_what_cannot_work_is_said(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        best_response(**settings)

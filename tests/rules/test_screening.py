"""Rules that screen neighbours: by hand, against a loop that reads as the papers do, and against liars."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from contracts import beyond_defaults
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from varangian import Graph, Task, rules, simulate
from varangian.attacks import gaussian, pulling, sign_flip
from varangian.core.draws import Draws
from varangian.core.errors import BadInput
from varangian.core.execution import Execution
from varangian.core.inbox import Inbox
from varangian.core.models.base import Formula, Sample
from varangian.core.task import Quadratic
from varangian.engine.compute.evaluator import Fast
from varangian.engine.results import final
from varangian.experiments.spec import made
from varangian.rules import neighbourhoods as nearby
from varangian.rules.outliers import ios
from varangian.rules.screening import balance, clipped_gossip, sketchguard, ubar
from varangian.rules.sketches import sketched
from varangian.testing import check_rule
from varangian.testing.scenarios import InPart, Story

torch.set_num_threads(1)

RULES = [
    ubar(),
    ubar(share=0.3, alpha=0.0, judge="same"),
    clipped_gossip(),
    clipped_gossip(f=2),
    clipped_gossip(radius=0.5),
    balance(),
    balance(gamma=1.5, kappa=3.0, alpha=0.1, rounds=2),
    sketchguard(),
    sketchguard(width=2, gamma=1.5, seed=3),
    ios(),
    ios(f=1),
    ios(f=3),
]


@pytest.mark.parametrize("rule", beyond_defaults(RULES), ids=repr)
def test_every_rule_keeps_the_contract(rule: Any) -> None:
    check_rule(rule)


# By hand --------------------------------------------------------------------------------------------------------


def one_agent(own: list[float], *messages: list[float]) -> Inbox:
    """What agent 0 sees who has `own` and hears these; models have three numbers, and the loss of θ is θ₀²."""
    count = len(messages) + 1
    models = torch.zeros(4, count, 4, dtype=torch.float64)
    models[:, :, :3] = torch.tensor([own, *messages], dtype=torch.float64)
    first = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64).expand(4, count, 4)
    graph = Graph.from_edges(count, [(sender, 0) for sender in range(1, count)])
    return Story(graph, models, models, models[..., :3], first, torch.zeros(4, count, dtype=torch.float64)).inbox(0)


def weights_of(rule: Any, inbox: Inbox, state: Any = None) -> list[float]:
    state = rule.init(inbox.own.new_zeros(inbox.heard.shape)) if state is None else state
    weights: Tensor = rule.combine(inbox, state).weights
    return [round(value, 6) for value in weights[0].tolist()]


def test_ubar_shortlists_by_distance_and_keeps_by_loss() -> None:
    # Distances 1, 1.5, 2, 9; losses 4 against 9, 2.25, 4, 0: the last is best, but too far to be looked at.
    inbox = one_agent([2, 0, 0], [3, 0, 0], [1.5, math.sqrt(2), 0], [2, 2, 0], [0, 0, math.sqrt(77)])
    assert weights_of(ubar(share=0.75), inbox) == [0.5, 0, 0.25, 0.25, 0]
    assert weights_of(ubar(share=0.75, alpha=0.8), inbox) == [0.8, 0, 0.1, 0.1, 0]
    assert weights_of(ubar(share=1.0), inbox) == [0.5, 0, 0.166667, 0.166667, 0.166667]


def test_ubar_takes_the_best_of_a_bad_shortlist() -> None:
    inbox = one_agent([0, 0, 0], [2, 0, 0], [-1, 0, 0], [3, 0, 0])
    assert weights_of(ubar(share=1.0), inbox) == [0.5, 0, 0.5, 0]
    assert weights_of(ubar(), one_agent([0, 0, 0])) == [1]


def test_ubar_alone_sees_through_a_liar_who_stays_near() -> None:
    """What a multi-task reader should know: near and bad passes every rule here but the one that judges."""
    near_and_bad, near_and_good = [3.1, 0, 0], [2.5, 0, 0]
    inbox = one_agent([3, 0, 0], near_and_bad, near_and_good)
    assert weights_of(ubar(share=1.0), inbox) == [0.5, 0, 0.5]
    for blind in (balance(), sketchguard(), ios(f=0), clipped_gossip(radius=1.0)):
        assert weights_of(blind, inbox)[1] > 0


def test_clipped_gossip_pulls_back_to_the_radius() -> None:
    # Distances 1, 2, 8 and four in all: with τ = 2 the last counts for a quarter of a quarter.
    inbox = one_agent([0, 0, 0], [1, 0, 0], [0, 2, 0], [0, 0, 8])
    assert weights_of(clipped_gossip(radius=2.0), inbox) == [0.4375, 0.25, 0.25, 0.0625]
    assert clipped_gossip(radius=2.0).combine(inbox, ()).models[0].tolist() == [0.25, 0.5, 0.5, 0]
    # One set aside leaves 2 as the largest distance, two would leave 1, but two of four are no majority.
    assert weights_of(clipped_gossip(f=1), inbox) == [0.4375, 0.25, 0.25, 0.0625]
    assert weights_of(clipped_gossip(f=2), inbox) == [0.4375, 0.25, 0.25, 0.0625]
    assert weights_of(clipped_gossip(f=0), inbox) == [0.25] * 4


def test_clipped_gossip_listens_to_an_only_neighbour() -> None:
    assert weights_of(clipped_gossip(), one_agent([0, 0, 0], [5, 0, 0])) == [0.5, 0.5]


def test_balance_accepts_less_from_round_to_round() -> None:
    # ‖own‖ = 5; half of it is 2.5, and 2.5 exp(−1) = 0.92 after the two rounds that it has to shrink in.
    inbox = one_agent([3, 4, 0], [3, 4, 2.5], [3, 4, 0.9], [3, 4, 2.6])
    rule = balance(gamma=0.5, kappa=1.0, rounds=2)
    assert weights_of(rule, inbox) == [0.5, 0.25, 0.25, 0]
    state = rule.init(inbox.own.new_zeros(inbox.heard.shape))
    for expected in ([0.5, 0.25, 0.25, 0], [0.5, 0, 0.5, 0], [0.5, 0, 0.5, 0], [0.5, 0, 0.5, 0]):
        assert weights_of(rule, inbox, state) == expected
        state = rule.combine(inbox, state).state
    assert weights_of(balance(gamma=0.5, alpha=0.2), inbox) == [0.2, 0.4, 0.4, 0]
    assert weights_of(balance(gamma=0.0), inbox) == [1, 0, 0, 0]


def test_ios_never_leaves_out_oneself() -> None:
    # The agent itself is farthest from the mean, 2.75; −1 comes next, and goes.
    inbox = one_agent([10, 0, 0], [-1, 0, 0], [0, 0, 0], [2, 0, 0])
    assert weights_of(ios(f=1), inbox) == [0.333333, 0, 0.333333, 0.333333]
    assert ios(f=1).combine(inbox, ()).models[0].tolist() == pytest.approx([4, 0, 0, 0])
    assert weights_of(ios(f=0), inbox) == [0.25] * 4
    # From the mean 2.2 first −9 goes; then from 5 it is 0 that does, and not 8, which was farther from 2.2.
    inbox = one_agent([9, 0, 0], [-9, 0, 0], [0, 0, 0], [3, 0, 0], [8, 0, 0])
    assert weights_of(ios(f=2), inbox) == [0.333333, 0, 0, 0.333333, 0.333333]


def test_what_is_too_far_to_be_measured_is_refused() -> None:
    inbox = one_agent([1, 0, 0], [0, 1e200, 0])
    for rule in (ubar(share=1.0), clipped_gossip(f=0), clipped_gossip(radius=1e9), balance(gamma=1e9)):
        assert weights_of(rule, inbox) == [1, 0]


def test_ios_compares_messages_too_large_to_be_squared() -> None:
    own, like_mine, larger, largest = [1, 0, 0], [0, 1, 0], [-1e160, 0, 0], [1e300, 0, 0]
    assert weights_of(ios(f=1), one_agent(own, larger, like_mine, largest)) == [0.333333, 0.333333, 0.333333, 0]
    inbox = one_agent(own, larger, like_mine, largest, own)
    assert weights_of(ios(f=2), inbox) == [0.333333, 0, 0.333333, 0, 0.333333]
    # Even the difference overflows.
    assert weights_of(ios(f=1), one_agent([-1.5e308, 0, 0], [-1.4e308, 0, 0], [1.5e308, 0, 0])) == [0.5, 0.5, 0]


# Against a loop -------------------------------------------------------------------------------------------------


def distance(x: Tensor, y: Tensor) -> float:
    return float((x - y).square().sum().sqrt())


def own_and_mean(own: Tensor, kept: list[Tensor], alpha: float) -> Tensor:
    return alpha * own + (1 - alpha) * torch.stack(kept).mean(0) if kept else own


def ubar_of(rule: ubar, own: Tensor, received: list[Tensor], loss: Callable[[Tensor], float], t: int) -> Tensor:
    count = math.ceil(rule.share * len(received) - 1e-9)
    shortlist = sorted(received, key=lambda x: distance(x, own))[:count]
    good = [x for x in shortlist if loss(x) <= loss(own)]
    return own_and_mean(own, good or sorted(shortlist, key=loss)[:1], rule.alpha)


def clipped_gossip_of(rule: clipped_gossip, own: Tensor, received: list[Tensor], loss: Any, t: int) -> Tensor:
    if not received:
        return own
    count = int(rule.f) if rule.f >= 1 else math.ceil(rule.f * len(received) - 1e-9)
    count = min(count, len(received) // 2)
    radius = rule.radius or sorted(distance(x, own) for x in received)[len(received) - count - 1]
    clipped = [(x - own) * min(1.0, radius / distance(x, own)) for x in received]
    return own + torch.stack(clipped).sum(0) / (len(received) + 1)


def balance_of(rule: balance, own: Tensor, received: list[Tensor], loss: Any, t: int) -> Tensor:
    threshold = rule.gamma * math.exp(-rule.kappa * min(1.0, t / rule.rounds)) * float(own.norm())
    return own_and_mean(own, [x for x in received if distance(x, own) <= threshold], rule.alpha)


def sketchguard_of(rule: sketchguard, own: Tensor, received: list[Tensor], loss: Any, t: int) -> Tensor:
    def sketch(x: Tensor) -> Tensor:
        return sketched(x[None], rule.width, rule.seed)[0]

    threshold = rule.gamma * math.exp(-rule.kappa * min(1.0, t / rule.rounds)) * float(sketch(own).norm())
    near = [x for x in received if distance(sketch(x), sketch(own)) <= threshold]
    return own_and_mean(own, near, rule.alpha)


def ios_of(rule: ios, own: Tensor, received: list[Tensor], loss: Any, t: int) -> Tensor:
    count = int(rule.f) if rule.f >= 1 else math.ceil(rule.f * len(received) - 1e-9)
    left = list(received)
    for _ in range(min(count, len(received) // 2)):
        mean = torch.stack([own, *left]).mean(0)
        farthest = max(range(len(left)), key=lambda i: distance(left[i], mean))
        left.pop(farthest)
    return torch.stack([own, *left]).mean(0)


LOOPS: dict[type[Any], Callable[..., Tensor]] = {
    ubar: ubar_of,
    clipped_gossip: clipped_gossip_of,
    balance: balance_of,
    sketchguard: sketchguard_of,
    ios: ios_of,
}


def told(inbox: Inbox) -> Iterator[tuple[int, Tensor, list[Tensor]]]:
    """Every agent with its own travelling part and the messages that it heard."""
    for agent in range(len(inbox.own)):
        heard = [slot for slot in range(1, inbox.heard.shape[1]) if inbox.heard[agent, slot]]
        yield agent, inbox.own[agent, :3], [inbox.rows[inbox.source[agent, slot]] for slot in heard]


@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("dense", [False, True])
def test_stacked_equals_a_loop_over_agents(rule: Any, dense: bool) -> None:
    calm = Story.calm(torch.float64, Graph.erdos_renyi(14, 0.5, seed=2))
    sent = calm.sent.clone()
    sent[:, 3], sent[:, 8], sent[:, 11] = math.nan, 4.0, sent[:, 11] * 5
    story = replace(calm, sent=sent, dense=dense, model=InPart(4, squared_error))
    judged = getattr(rule, "judge", None) or "next"
    for t, (inbox, _, combined) in enumerate(story.play(rule)):
        for agent, own, received in told(inbox):
            u, y = (part[agent] for part in inbox.samples[judged])
            private = inbox.own[agent, 3:]
            loss = lambda x, u=u, y=y, private=private: float((y - torch.cat((x, private)) @ u) ** 2)  # noqa: E731
            expected = LOOPS[type(rule)](rule, own, received, loss, t)
            assert torch.allclose(combined.models[agent], torch.cat((expected, private)), atol=1e-10), agent


def squared_error(theta: Tensor, sample: Sample) -> Tensor:
    u, y = sample
    return (y - (theta * u).sum(-1)).square()


# Sketches -------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**31))
def test_sketches_are_linear_and_exact_where_there_is_room(parameters: int, width: int, seed: int) -> None:
    x, y = Draws.of(seed, 2).normal("rows", 0, parameters, torch.float64)
    both = sketched(torch.stack((x, y, x - 2 * y)), width, seed)
    assert both.shape == (3, min(width, parameters))
    assert torch.allclose(both[0] - 2 * both[1], both[2])
    if width >= parameters:
        assert torch.allclose(both.norm(dim=1), torch.stack((x, y, x - 2 * y)).norm(dim=1))


def test_sketches_estimate_squared_distances_without_bias() -> None:
    """Mean and spread over 400 hash functions, for numbers some of which are much larger than others."""
    x = torch.logspace(-1, 1, 60, dtype=torch.float64)[None]
    estimates = torch.stack([sketched(x, 20, seed).square().sum() for seed in range(400)]) / x.square().sum()
    # The variance of a count sketch is at most 2 / width.
    assert estimates.std() < math.sqrt(2 / 20)
    assert abs(float(estimates.mean()) - 1) < 4 * math.sqrt(2 / 20 / 400)


def test_with_as_many_numbers_as_parameters_sketchguard_is_balance() -> None:
    story = Story.calm(torch.float64, Graph.complete(9))
    exact, sketchy = (story.outcome(rule) for rule in (balance(gamma=1.5), sketchguard(width=3, gamma=1.5)))
    assert all(torch.allclose(a, b) for a, b in zip(exact, sketchy, strict=True))
    assert (exact[1] > 0).any(-1).any() and (exact[1] == 0).any(), "some should be accepted and some refused"


def test_a_sketch_can_be_fooled_by_who_knows_the_seed() -> None:
    far = torch.zeros(1, 3, dtype=torch.float64)
    signs = sketched(torch.eye(3, dtype=torch.float64), width=1)[:, 0]
    far[0, :2] = torch.tensor([100.0, -100.0]) * signs[:2]
    inbox = one_agent([1, 0, 0], (torch.tensor([[1.0, 0, 0]]) + far)[0].tolist())
    assert weights_of(balance(), inbox) == [1, 0]
    assert weights_of(sketchguard(width=1), inbox) == [0.5, 0.5]


# Numbers of liars -----------------------------------------------------------------------------------------------


@given(st.integers(0, 200), st.integers(0, 100))
def test_a_share_of_neighbours_is_rounded_up(others: int, percent: int) -> None:
    heard = torch.ones(1, others + 1, dtype=torch.bool)
    assert int(nearby.share_of(percent / 100, heard)) == -(-percent * others // 100)


def test_neighbourhoods_are_the_same_in_pieces() -> None:
    inbox = Story.calm(torch.float64, Graph.erdos_renyi(14, 0.5, seed=2)).inbox(0)
    f = nearby.tolerated(0.3, inbox.heard)
    pieces: list[int] = []

    def sums(messages: Tensor, heard: Tensor, f: Tensor) -> Tensor:
        pieces.append(len(messages))
        return (messages * heard[:, :, None]).sum(1) * f[:, None]

    whole = inbox.by_neighbourhood(sums, f)
    slots = inbox.heard.shape[1]
    little = Execution(memory=256 * 4 * slots * slots)
    assert torch.equal(replace(inbox, evaluator=Fast(little)).by_neighbourhood(sums, f), whole)
    assert pieces == [14, 4, 4, 4, 2]


# Against liars --------------------------------------------------------------------------------------------------

TRUTH = 3.0


@dataclass(frozen=True)
class Measurements:
    """Everyone measures the same five numbers, each with an error of its own."""

    agents: int = 20

    def samples(self, draws: Draws, start: int, rounds: int, dtype: torch.dtype) -> Sample:
        return (draws.normal_rounds("measurement", start, rounds, 5, dtype) + TRUTH,)

    def to(self, device: torch.device) -> Measurements:
        return self


@cache
def error(rule: Any, attack: Any, byzantine: int = 4) -> float:
    """Mean square deviation of the normal agents after 60 rounds of estimating a mean together."""
    model = Formula(5, lambda theta, sample: (theta - sample[0]).square().sum(-1))
    optimum = torch.full((20, 5), TRUTH, dtype=torch.float64)
    exact = Quadratic(optimum, torch.eye(5, dtype=torch.float64).expand(20, 5, 5))
    task = Task(model, Measurements(), step_size=0.05, exact=exact)
    graph = Graph.ring(20, 4)
    result = simulate(task, graph, rule=rule, attack=attack, byzantine=byzantine, rounds=60, seeds=3)
    return float(final(result, "msd").mean())


@pytest.mark.parametrize("attack", [gaussian(30.0, 1.0), sign_flip(4.0)], ids=repr)
@pytest.mark.parametrize(
    ("rule", "share_of_alone"),
    [
        (ubar(), 1 / 3),
        (balance(rounds=60), 1 / 5),
        (sketchguard(width=4, rounds=60), 1 / 5),
        (ios(f=0.4), 1 / 5),
        # Clipped liars still pull by the radius in every round, all the same way: a tie with no cooperation at best.
        (clipped_gossip(f=0.4), 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_screening_helps_against_liars_who_are_far_away(rule: Any, share_of_alone: float, attack: Any) -> None:
    screened, averaged, alone = (error(r, attack) for r in (rule, rules.average(), rules.alone()))
    assert screened < averaged / 500
    assert screened < share_of_alone * alone


def test_who_pulls_slowly_gets_past_all_who_do_not_judge() -> None:
    """Towards zero by a tenth of the way in each round: near enough for all, and worse than no cooperation."""
    attack = pulling((0.0,), 0.1)
    alone = error(rules.alone(), attack, byzantine=10)
    for blind in (balance(), sketchguard(), ios(), clipped_gossip()):
        assert error(blind, attack, byzantine=10) > 5 * alone
    assert error(ubar(), attack, byzantine=10) < 1.2 * alone


# What can be asked for ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ubar(share=0.0), "share is 0.0"),
        (lambda: ubar(alpha=1.5), "alpha is 1.5"),
        (lambda: clipped_gossip(radius=-1.0), "radius is -1.0"),
        (lambda: clipped_gossip(f=1.5), "but is 1.5"),
        (lambda: balance(gamma=-1.0), "gamma is -1.0"),
        (lambda: balance(kappa=math.nan), "kappa is nan"),
        (lambda: balance(rounds=0), "rounds is 0"),
        (lambda: sketchguard(width=0), "width is 0"),
        (lambda: ios(f=-1.0), "but is -1.0"),
        (lambda: ios(f=math.inf), "but is inf"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(make: Callable[[], object], says: str) -> None:
    with pytest.raises(BadInput, match=says) as refused:
        make()
    assert "\n" not in str(refused.value)


def test_rules_are_made_from_text() -> None:
    named = {"clipped-gossip": clipped_gossip, "sketchguard": sketchguard}
    assert made("clipped-gossip:radius=none,f=2", "rule", named) == clipped_gossip(f=2.0)
    assert made("sketchguard:width=50,rounds=20", "rule", named) == sketchguard(width=50, rounds=20)


@pytest.mark.parametrize("shape", [(4, 1, 1), (1, 4, 1), (1, 4, 3), (5, 3, 2)], ids=str)
def test_a_rule_may_change_the_messages_that_it_is_given(shape: tuple[int, int, int]) -> None:
    agents, slots, parameters = shape
    rows = torch.randn(agents * slots, parameters)
    inbox = replace(
        Story.calm(torch.float32, Graph.ring(4)).inbox(0),
        rows=rows,
        source=torch.arange(agents * slots).view(agents, slots),
        heard=torch.ones(agents, slots, dtype=torch.bool),
        evaluator=Fast(),
    )

    def spoils(messages: Tensor, heard: Tensor) -> Tensor:
        total = messages.sum(1)
        messages.zero_()
        return total

    assert torch.equal(inbox.by_neighbourhood(spoils), inbox.by_neighbourhood(spoils))

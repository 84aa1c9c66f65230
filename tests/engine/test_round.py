"""The engine against the paper's equations in plain loops: equal to 1e-9 in float64, models and weights, each round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from reference import Network
from torch import Tensor, nn

from varangian import attacks, rules
from varangian.core.execution import DEFAULT
from varangian.core.graph import Graph, TimeVarying
from varangian.core.models.base import Formula
from varangian.core.optimisers import adam, sgd
from varangian.core.scene import Scene
from varangian.core.task import Task
from varangian.engine.round import play_round
from varangian.engine.state import Seen, State, begin
from varangian.engine.world import World, prepare
from varangian.studies.target_localization import target_localization

ROUNDS = 25
"""Attacks that begin or end do so after 20."""
CLOSE = 1e-9

RULES = {
    "alone": rules.alone(),
    "average": rules.average(),
    "distance": rules.distance_based(),
    "distance, ahead, p=1": rules.distance_based("ahead", p=1),
    "distance, p=inf, unsmoothed": rules.distance_based(p=float("inf"), smoothing=1.0),
    "distance, ahead, p=3": rules.distance_based("ahead", p=3, smoothing=0.5),
    "distance, from 1": rules.distance_based(start=1.0, smoothing=0.001),
    "loss": rules.loss_based(),
    "loss, all": rules.loss_based(keep="all"),
    "loss, regret": rules.loss_based(weigh="regret"),
    "loss, all, regret": rules.loss_based(keep="all", weigh="regret", smoothing=0.3),
    "loss, same sample": rules.loss_based(judge="same"),
    "loss, from 1": rules.loss_based(start=1.0),
    "loss, unsmoothed, all": rules.loss_based(smoothing=1.0, keep="all"),
    "loss, unsmoothed": rules.loss_based(smoothing=1.0),
}

ATTACKS = {
    "uniform": attacks.uniform(15, 16),
    "gaussian": attacks.gaussian(10, 5),
    "sign flip": attacks.sign_flip(0.5),
    "shrink": attacks.shrink(0.9),
    "pulling": attacks.pulling(point=(0.0,), step=0.05),
    "not finite": attacks.not_finite(),
    "silent": attacks.silent(),
    "crash": attacks.crash(at=20),
    "sleeper": attacks.sleeper(until=20, then=attacks.pulling(point=(5.0,), step=0.1)),
}

GRAPHS: dict[str, Callable[[int], Graph]] = {
    "complete": Graph.complete,
    "geometric": lambda n: Graph.geometric(torch.rand(n, 2, generator=torch.manual_seed(3)), 0.5, 3),
    "star": Graph.star,
}


def world_of(task: Task, graph: Graph | TimeVarying, byzantine: int | Sequence[int], seed: int = 0) -> World:
    return prepare([Scene(task, graph)], [seed], byzantine, DEFAULT, torch.float64)


def agree(
    task: Task,
    graph: Graph | TimeVarying,
    rule: Any,
    attack: Any,
    byzantine: int | Sequence[int] = (),
    seed: int = 0,
    rounds: int = ROUNDS,
) -> Network:
    """Run the engine and the reference side by side, and compare them after every round."""
    world = world_of(task, graph, byzantine, seed)
    network = Network(world, rule, attack)
    with torch.no_grad():
        state = begin(world, rule, attack)
        for round in range(rounds):
            state, seen = play_round(world, rule, attack, state)
            network.play_round()
            check_models(state, network, round)
            check_weights(world, seen, network, round)
    return network


def check_models(state: State, network: Network, round: int) -> None:
    expected = torch.stack([agent.theta for agent in network.agents])
    assert bool(expected.isfinite().all())
    # With a rule that accepts 1e38, models have that size. Then only the relative error can be small.
    size = expected.abs().amax(1, keepdim=True).clamp(min=1)
    error = ((state.models - expected).abs() / size).max()
    assert error <= CLOSE, f"round {round}: models differ by {error:.1e}"


def check_weights(world: World, seen: Seen, network: Network, round: int) -> None:
    error = (weights_of_engine(world, seen) - weights_of_reference(network)).abs().max()
    assert error <= CLOSE, f"round {round}: weights differ by {error:.1e}"


def weights_of_engine(world: World, seen: Seen) -> Tensor:
    out = torch.zeros(world.agents, world.agents, dtype=torch.float64)
    for table, weights in zip(seen.wiring.tables, seen.weights, strict=True):
        assert weights is not None
        assert bool((weights >= 0).all())
        assert torch.allclose(weights.sum(1), torch.ones(len(weights), dtype=torch.float64))
        assert not bool(weights[~table.present].any()), "padding has weight"
        out[table.receivers] = out[table.receivers].scatter_add(1, table.senders, weights)
    out[world.byzantine] = 0
    return out


def weights_of_reference(network: Network) -> Tensor:
    n = len(network.agents)
    rows = [[agent.weights.get(sender, 0.0) for sender in range(n)] for agent in network.agents]
    return torch.tensor(rows, dtype=torch.float64)


def localization(agents: int, **settings: Any) -> Task:
    """Linear regression from a stream."""
    return replace(target_localization(agents=agents).scene(0).task, **settings)


def softmax_regression(agents: int = 5, **settings: Any) -> Task:
    noise = torch.manual_seed(1)
    data = [labelled(9 + 2 * k, (6,), k, noise) for k in range(agents)]
    torch.manual_seed(2)
    settings = {"batch": 8, "step_size": 0.5, **settings}
    return Task.supervised(nn.Linear(6, 3), nn.functional.cross_entropy, data, **settings)


def small_cnn(agents: int = 3, **settings: Any) -> Task:
    noise = torch.manual_seed(1)
    data = [labelled(9 + k, (1, 6, 6), k, noise) for k in range(agents)]
    torch.manual_seed(2)
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3))
    return Task.supervised(net, nn.functional.cross_entropy, data, **{"batch": 8, "step_size": 0.5, **settings})


def labelled(items: int, shape: tuple[int, ...], agent: int, noise: torch.Generator) -> tuple[Tensor, Tensor]:
    """Three classes that are easy to distinguish, a little different at every agent.

    Soon, because a model of 1e38 everywhere has the same logits for every class, up to rounding, and so the loss log 3
    or one that is large and meaningless; only to agents who do better than log 3 does the difference make none.
    """
    y = torch.arange(items) % 3
    x = torch.randn(items, *shape, generator=noise) / 3
    x.flatten(1)[torch.arange(items), y] += 3
    return x + agent / 10, y


# Every rule, every attack, on every graph ---------------------------------------------------------------------


RULES_AS_THEY_ARE = ("distance", "loss")
"""Tested with every attack on every graph."""
OF_THE_PAPER = ("alone", "average", "loss, all")
"""Tested on every graph. Variants are tested on complete graphs, both with attacks that distinguish them."""
PARTING = ("uniform", "pulling", "not finite", "sleeper")


@pytest.mark.parametrize(
    ("rule", "graph", "attack"),
    [(rule, graph, attack) for rule in RULES_AS_THEY_ARE for graph in GRAPHS for attack in ATTACKS]
    + [(rule, graph, attack) for rule in OF_THE_PAPER for graph in GRAPHS for attack in PARTING]
    + [(rule, "complete", a) for rule in RULES if rule not in (*RULES_AS_THEY_ARE, *OF_THE_PAPER) for a in PARTING],
)
def test_linear_regression(rule: str, graph: str, attack: str) -> None:
    byzantine = [2, 3] if graph != "star" else [0, 3]
    rounds = 50 if graph == "geometric" else ROUNDS
    agree(localization(5), GRAPHS[graph](5), RULES[rule], ATTACKS[attack], byzantine, rounds=rounds)


@pytest.mark.parametrize("rule", RULES)
def test_one_agent(rule: str) -> None:
    """A network of one agent, which is normal or Byzantine."""
    agree(localization(1), Graph.complete(1), RULES[rule], attacks.silent(), [])
    for attack in ATTACKS.values():
        agree(localization(1), Graph.complete(1), RULES[rule], attack, [0], rounds=4)


EVERY_RULE = [(rule, "uniform", "complete") for rule in RULES]
EVERY_ATTACK = [("loss", attack, "star") for attack in ATTACKS]


@pytest.mark.parametrize(("rule", "attack", "graph"), EVERY_RULE + EVERY_ATTACK)
def test_softmax_regression(rule: str, attack: str, graph: str) -> None:
    agree(softmax_regression(4), GRAPHS[graph](4), RULES[rule], ATTACKS[attack], [1])


@pytest.mark.parametrize(("rule", "attack", "graph"), EVERY_RULE + EVERY_ATTACK)
def test_small_cnn(rule: str, attack: str, graph: str) -> None:
    agree(small_cnn(3), GRAPHS[graph](3), RULES[rule], ATTACKS[attack], [1], rounds=15)


# Every special case of the engine ------------------------------------------------------------

SOME_RULES = ("average", "distance", "distance, ahead, p=1", "loss", "loss, all", "loss, same sample")


@pytest.mark.parametrize("attack", ["pulling", "not finite"])
@pytest.mark.parametrize("rule", SOME_RULES)
@pytest.mark.parametrize("dense", [True, False], ids=["dense", "sparse"])
def test_dense_and_sparse(monkeypatch: pytest.MonkeyPatch, dense: bool, rule: str, attack: str) -> None:
    """The dense and the sparse way give the same results, whichever the engine would choose."""
    table = Graph._table
    monkeypatch.setattr(Graph, "_table", lambda self, hearing, rows, _: table(self, hearing, rows, dense))
    graph = Graph.complete(5) if not dense else Graph.ring(5)
    agree(localization(5), graph, RULES[rule], ATTACKS[attack], [2, 3])
    if rule == "loss":
        agree(softmax_regression(5), graph, RULES[rule], ATTACKS[attack], [2, 3], rounds=20)
        agree(small_cnn(5), graph, RULES[rule], ATTACKS[attack], [2, 3], rounds=10)


@pytest.mark.parametrize("attack", ["uniform", "pulling", "crash"])
@pytest.mark.parametrize("rule", SOME_RULES)
def test_star_in_several_tables(monkeypatch: pytest.MonkeyPatch, rule: str, attack: str) -> None:
    whole = Graph.neighbourhoods
    monkeypatch.setattr(Graph, "neighbourhoods", lambda self, *_: whole(self, max_entries=14))
    assert len(Graph.star(7).neighbourhoods()) > 2
    agree(localization(7), Graph.star(7), RULES[rule], ATTACKS[attack], [0, 4])


def test_wide_star_has_tables_by_degree() -> None:
    """The hub and the leaves are in different tables by default."""
    graph = Graph.star(300)
    assert len(graph.neighbourhoods()) == 2
    agree(localization(300), graph, rules.loss_based(), attacks.pulling((0.0,)), 30, rounds=4)


@pytest.mark.parametrize("attack", ["gaussian", "pulling"])
@pytest.mark.parametrize("rule", SOME_RULES)
def test_seeds_side_by_side(rule: str, attack: str) -> None:
    """Three seeds in one world, each with its own graph and Byzantine agents, against three references."""
    seeds, agents = (3, 0, 11), 6
    study = target_localization(agents=agents, radius=2.0, max_degree=3)
    scenes = [study.scene(seed) for seed in seeds]
    kind = torch.float64
    together = prepare(scenes, seeds, 2, DEFAULT, kind)
    apart = [
        Network(prepare([scene], [seed], 2, DEFAULT, kind), RULES[rule], ATTACKS[attack])
        for scene, seed in zip(scenes, seeds, strict=True)
    ]
    with torch.no_grad():
        state = begin(together, RULES[rule], ATTACKS[attack])
        for round in range(ROUNDS):
            state, seen = play_round(together, RULES[rule], ATTACKS[attack], state)
            weights = weights_of_engine(together, seen)
            for i, network in enumerate(apart):
                network.play_round()
                part = slice(i * agents, (i + 1) * agents)
                check_models(state._replace(models=state.models[part]), network, round)
                assert (weights[part, part] - weights_of_reference(network)).abs().max() <= CLOSE


@pytest.mark.parametrize(
    ("share", "rule", "attack"),
    [("0", rule, attack) for rule in SOME_RULES for attack in ("uniform", "pulling", "not finite")]
    + [(share, rule, "pulling") for share in ("2", "0.weight") for rule in ("average", "distance", "loss")],
)
def test_share(share: str, rule: str, attack: str) -> None:
    """Only some parameters are shared, and these are not always the first of the module."""
    data = [labelled(9, (6,), k, torch.manual_seed(k)) for k in range(4)]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
    task = Task.supervised(net, nn.functional.cross_entropy, data, batch=9, step_size=0.5, share=[share])
    assert 0 < task.model.shared < task.model.parameters
    agree(task, Graph.complete(4), RULES[rule], ATTACKS[attack], [1], rounds=20)


@pytest.mark.parametrize("rule", ["loss", "loss, same sample", "loss, from 1"])
@pytest.mark.parametrize("stale", ["wait", "last", "skipped"])
def test_agents_without_a_new_sample(stale: str, rule: str) -> None:
    """They wait, or they judge on their last one, or on the one they skip."""
    settings = {"skip": torch.tensor([0.0, 0.5, 0.9, 0.2, 0.7]), "stale": stale}
    network = agree(localization(5, **settings), Graph.complete(5), RULES[rule], ATTACKS["uniform"], [4])
    times = [agent.observations[agent.number] for agent in network.agents[:4]]
    assert times[0] == ROUNDS > times[1] > times[2] > 0 if stale == "wait" else times == [ROUNDS] * 4
    agree(softmax_regression(5, **settings), Graph.ring(5), RULES[rule], attacks.gaussian(), [4], rounds=25)


@pytest.mark.parametrize("rule", SOME_RULES)
@pytest.mark.parametrize("attack", ["uniform", "pulling", "sleeper"])
def test_agents_differ(rule: str, attack: str) -> None:
    """Every agent has its own step size, forgetting factor and probability to skip a batch."""
    settings = {
        "step_size": torch.tensor([0.1, 0.02, 0.05, 0.0, 0.15]),
        "forgetting": torch.tensor([0.1, 1.0, 0.5, 0.05, 0.01]),
        "skip": torch.tensor([0.0, 0.5, 0.9, 0.2, 0.7]),
    }
    agree(localization(5, **settings), Graph.complete(5), RULES[rule], ATTACKS[attack], [4])
    agree(localization(5, **settings), Graph.ring(5), RULES[rule], ATTACKS[attack], [4], seed=1)


OPTIMISERS = {
    "momentum": sgd(momentum=0.9),
    "weight decay": sgd(weight_decay=0.01),
    "momentum and decay": sgd(momentum=0.5, weight_decay=0.01),
    "adam": adam(),
    "adam and decay": adam(beta1=0.8, beta2=0.9, weight_decay=0.01),
}


@pytest.mark.parametrize("rule", ["alone", "distance, ahead, p=1", "loss"])
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_optimisers(optimiser: str, rule: str) -> None:
    """With a schedule, and with agents that skip batches and so count their own steps."""
    settings = {
        "optimiser": OPTIMISERS[optimiser],
        "schedule": lambda round: 1 / (1 + round / 10),
        "step_size": 0.02,
        "skip": 0.3,
    }
    agree(localization(5, **settings), Graph.complete(5), RULES[rule], ATTACKS["uniform"], [4])
    agree(softmax_regression(5, **settings), Graph.ring(5), RULES[rule], attacks.gaussian(), [4], rounds=25)


@pytest.mark.parametrize("attack", ["uniform", "pulling", "not finite", "crash", "sleeper"])
@pytest.mark.parametrize("rule", ["average", "distance", "loss", "loss, all", "loss, from 1"])
def test_graph_that_changes(rule: str, attack: str) -> None:
    """A ring and a complete graph in turn, sometimes twice: agents that leave are forgotten, others are not."""
    ring, complete, star = Graph.ring(5), Graph.complete(5), Graph.star(5)

    def graph(round: int) -> Graph:
        return (ring, complete, complete, ring, star)[round % 5]

    agree(localization(5), graph, RULES[rule], ATTACKS[attack], [1])


def test_graph_made_anew_every_round() -> None:
    """Equal graphs are the same graph, whether or not they are the same object."""
    agree(localization(5), lambda _: Graph.ring(5), rules.loss_based(), ATTACKS["pulling"], [1])


@pytest.mark.parametrize("rule", RULES)
def test_one_way_edges_and_hermits(rule: str) -> None:
    """Agent 2 hears 0 and 1, which hear each other; 3 hears nobody; 4 hears only Byzantine agent 5."""
    graph = Graph.from_edges(6, [(0, 2), (1, 2), (0, 1), (1, 0), (5, 4), (3, 5)])
    agree(localization(6), graph, RULES[rule], ATTACKS["pulling"], [5])


# What the paper does not define ------------------------------------------------------------------------------------


def root_of_theta(theta: Tensor, sample: tuple[Tensor, ...]) -> Tensor:
    """A loss that is nan for negative models, and so is its gradient."""
    return (theta.sqrt().sum(-1) - sample[0]).square()


class Wobble:
    """A stream that needs no draws."""

    def __init__(self, agents: int, level: float = 3.0, width: float = 1.0) -> None:
        self.agents, self.level, self.width = agents, level, width

    def samples(self, draws: Any, start: int, rounds: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        time = torch.arange(start, start + rounds, dtype=dtype)[:, None]
        return (self.level + self.width * torch.sin(time + torch.arange(self.agents, dtype=dtype)),)

    def to(self, device: torch.device) -> Wobble:
        return self


@pytest.mark.parametrize("attack", ["gaussian", "not finite"])
@pytest.mark.parametrize("rule", RULES)
def test_losses_that_are_no_numbers(rule: str, attack: str) -> None:
    """Agents 0 and 3 start where their loss and gradient are nan: they take no step and do not observe themselves."""

    def first(agents: int) -> Tensor:
        return torch.tensor([[-1.0], [1.0], [4.0], [-2.0], [9.0]])

    task = Task(Formula(1, root_of_theta, first=first), Wobble(5), step_size=0.05)
    for graph in (Graph.complete(5), Graph.ring(5)):
        agree(task, graph, RULES[rule], ATTACKS[attack], [4], rounds=20)


@pytest.mark.parametrize("rule", RULES)
def test_losses_of_exactly_zero(rule: str) -> None:
    """Models with a loss of 0 share all the weight; so do models at distance 0."""

    def first(agents: int) -> Tensor:
        return torch.tensor([[3.0], [3.0], [1.0], [2.0]])

    task = Task(
        Formula(1, lambda theta, sample: (theta[..., 0] - sample[0]).square(), first=first),
        Wobble(4, width=0.0),
        step_size=0.05,
    )
    agree(task, Graph.complete(4), RULES[rule], attacks.uniform(3.0, 3.0), [3], rounds=20)


def test_steps_that_overflow_are_not_taken() -> None:
    """Every step overflows: models and the memory of the momentum do not change."""
    task = Task(
        Formula(1, lambda theta, sample: 1e300 * (theta[..., 0] - sample[0]).square()),
        Wobble(3),
        step_size=1e10,
        optimiser=sgd(momentum=0.9),
    )
    network = agree(task, Graph.complete(3), rules.loss_based(), attacks.silent(), [], rounds=5)
    assert all(float(agent.theta) == 0 for agent in network.agents)


def test_the_comparison_can_fail() -> None:
    """The engine with one rule differs from the reference with another rule."""
    world = world_of(localization(5), Graph.complete(5), [1])
    network = Network(world, rules.loss_based(smoothing=0.11), attacks.silent())
    state = begin(world, rules.loss_based(), attacks.silent())
    for _ in range(10):
        state, _ = play_round(world, rules.loss_based(), attacks.silent(), state)
        network.play_round()
    with pytest.raises(AssertionError, match="models differ"):
        check_models(state, network, 10)

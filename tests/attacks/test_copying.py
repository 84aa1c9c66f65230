"""Copies, echoes, exaggerations, faults and poisoned data: tiny cases by hand, and the harm they do or do not do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attack_views import column, regret, sent_by, view_of
from torch import nn
from torch.utils._pytree import tree_map

from varangian import BadInput, attacks, robust, rules, simulate
from varangian.attacks.copying import collusion, free_rider, scaled, sybil
from varangian.attacks.faults import delay, dropping, duplicate
from varangian.attacks.poisoning import label_flip
from varangian.attacks.statistical import alie, mimic
from varangian.core.execution import DEFAULT
from varangian.core.graph import Graph
from varangian.core.messages import ToAll
from varangian.core.scene import Scene
from varangian.core.task import Task
from varangian.engine.world import poisoned, prepare
from varangian.experiments.config import plan_for
from varangian.experiments.spec import with_settings
from varangian.testing.scenarios import Stage

HONEST = scaled(1.0)
attack_of = plan_for("target-localization").attack
FIVE = Graph.complete(5)
"""Agents 0, 1, 2 are honest where 3 and 4 lie."""


# Copying ------------------------------------------------------------------------------------------------------


def test_scaled_by_hand() -> None:
    view = view_of(FIVE, [3, 4], column(0, 0, 0, 12, 20), column(0, 0, 0, 10, 21))
    sent = sent_by(scaled(factor=10.0), view)
    assert [sent[3, 0].item(), sent[4, 0].item()] == [10 + 20, 21 - 10]


def test_free_rider_by_hand() -> None:
    view = view_of(FIVE, [3, 4], column(1, 2, 3, 0, 0), column(7, 8, 9, 0, 0))
    sent = sent_by(free_rider(), view)
    assert [sent[s, k].item() for s in (3, 4) for k in range(3)] == [7, 8, 9, 7, 8, 9]


def test_collusion_by_hand() -> None:
    """0, 1, 7, 9: their mean is 4.25, 9 is farthest, and 7 is more than half as far on that side."""
    view = view_of(Graph.complete(6), [4, 5], column(0, 1, 7, 9, 50, 60))
    assert {row.item() for row in sent_by(collusion(), view).values()} == {8.0}
    assert {row.item() for row in sent_by(collusion(point=(3.0,)), view).values()} == {3.0}
    assert {
        row.item() for row in sent_by(collusion(), view_of(FIVE, [1, 2, 3, 4], column(6, 0, 0, 0, 0))).values()
    } == {6}


def test_collusion_makes_another_task_the_most_crowded() -> None:
    view = view_of(Graph.complete(7), [5, 6], column(0.0, 0.1, 0.2, 1.0, 1.1, 9, 9))
    point = sent_by(collusion(), view)[5, 0]
    assert robust.krum(view.adapted[:5], 1).item() < 0.5
    assert robust.krum(torch.cat((view.adapted[:5], point.expand(2, 1))), 2).item() > 0.5


def test_sybils_speak_with_one_voice() -> None:
    view = view_of(FIVE, [2, 3, 4], torch.randn(5, 3, generator=torch.Generator().manual_seed(0)))
    single, repeated = (sent_by(attack, view) for attack in (attacks.gaussian(), sybil(attacks.gaussian())))
    voices = {tuple(row.tolist()) for row in repeated.values()}
    assert len(voices) == 1 < len({tuple(row.tolist()) for row in single.values()})
    assert voices < {tuple(row.tolist()) for row in single.values()}


def test_sybils_tell_each_victim_what_one_of_its_neighbours_would() -> None:
    """Agent 0 hears 3 and 4, agent 1 hears 4 and 5, agent 2 hears 5 only."""

    class signed(attacks.pulling):
        def send(self, view: Any, state: Any) -> Any:
            return attacks.ToEach((view.sender * 10 + view.receiver)[:, None].double()), state

    graph = Graph.from_edges(6, [(3, 0), (4, 0), (4, 1), (5, 1), (5, 2)])
    heard = {0: (3, 4), 1: (4, 5), 2: (5,)}
    voices = set()
    for seed in range(8):
        sent = sent_by(sybil(signed()), view_of(graph, [3, 4, 5], column(0, 0, 0, 0, 0, 0), seed=seed))
        for victim, senders in heard.items():
            said = {sent[sender, victim].item() for sender in senders}
            assert len(said) == 1
            assert said <= {sender * 10.0 + victim for sender in senders}
        voices.add(tuple(sent[senders[0], victim].item() for victim, senders in heard.items()))
    assert len(voices) > 1, "another seed, another leader"


def test_sybils_of_silence_are_silent_and_of_poison_there_are_none() -> None:
    view = view_of(FIVE, [3, 4], column(0, 0, 0, 1, 2))
    assert sent_by(sybil(attacks.silent()), view) == {}
    with pytest.raises(BadInput, match="changes data"):
        sybil(label_flip())


# Faults -------------------------------------------------------------------------------------------------------


def played(attack: Any, rounds: int) -> list[list[float]]:
    """What two agents send whose models are 10, 20 + the round."""
    state = attack.init(column(10, 20))
    out: list[list[float]] = []
    for round in range(rounds):
        view = view_of(Graph.complete(3), [1, 2], column(0, 11 + round, 21 + round), round=round)
        sent, state = attack.send(view, state)
        silent = [False] * 2 if sent.silent is None else sent.silent.tolist()
        out.append([float("nan") if no else row.item() for row, no in zip(sent.rows, silent, strict=True)])
    return out


def test_delay_by_hand() -> None:
    assert played(delay(2), 5) == [[10, 20], [10, 20], [11, 21], [12, 22], [13, 23]]
    assert played(delay(1), 3) == [[10, 20], [11, 21], [12, 22]]


def test_duplicate_by_hand() -> None:
    assert played(duplicate(), 3) == [[11, 21]] * 3


def test_dropping_keeps_to_its_stretches_and_to_its_probability() -> None:
    away = []
    for round in range(20):
        lying = torch.arange(401) > 0
        view = view_of(Graph.star(401), lying.nonzero()[:, 0].tolist(), torch.zeros(401, 1), round=round)
        sent, _ = dropping(probability=0.3, length=5).send(view, ())
        away.append(sent.silent)
    stretches = torch.stack(away).view(4, 5, 400)
    assert (stretches == stretches[:, :1]).all()
    assert not (stretches[0] == stretches[1]).all()
    assert stretches.float().mean().item() == pytest.approx(0.3, abs=4 * (0.3 * 0.7 / 1600) ** 0.5)


@pytest.mark.parametrize("attack", [delay(3), duplicate(), mimic(), sybil(delay(2))], ids=repr)
def test_a_state_keeps_its_shape(attack: Any) -> None:
    """Or a run could not be taken up again from a checkpoint."""
    states = [state for _, state, _ in Stage.of(torch.float32, 3).play(attack)]
    kinds = [tree_map(lambda leaf: (leaf.shape, leaf.dtype), state) for state in states]
    assert all(kind == kinds[0] for kind in kinds)


# Poisoned data ------------------------------------------------------------------------------------------------


class Mislabelled:
    """An attack on data of one's own."""

    def init(self, own: Any) -> tuple[()]:
        return ()

    def send(self, view: Any, state: tuple[()]) -> Any:
        return ToAll(view.own), state

    def poison(self, sample: Any, labels: int) -> Any:
        return sample


def test_labels_are_turned_around_and_numbers_negated() -> None:
    x = torch.ones(2, 3, 4)
    labels = torch.tensor([[0, 1, 2], [9, 8, 5]])
    kept, flipped = label_flip().poison((x, labels), labels=10)
    assert kept is x
    assert flipped.tolist() == [[9, 8, 7], [0, 1, 4]]
    assert label_flip().poison((x, torch.tensor([1.5, -2.0])), labels=0)[1].tolist() == [-1.5, 2.0]


def test_a_label_that_was_never_seen_before_stays_a_label() -> None:
    assert label_flip().poison((torch.tensor([3, 4]),), labels=3)[0].tolist() == [2, 1]


def test_labels_are_those_of_all_data_and_not_of_the_first_batch() -> None:
    """Only agent 1 knows the label 2, and it comes late: who lies must turn 0 into 2 before it is seen, too."""
    rare = torch.tensor([0, 1] * 9 + [2])
    data = [(torch.ones(len(y), 2), y) for y in (rare[:-1], rare, rare[:-1])]
    task = Task.supervised(nn.Linear(2, 3), nn.functional.cross_entropy, data, batch=1)
    scenes = [Scene(task, Graph.complete(3))] * 2
    clean = prepare(scenes, [0, 1], [0, 1], DEFAULT, torch.float32)
    false = poisoned(clean, label_flip())
    told, turned = (torch.stack([world.sample(round)[1] for round in range(19)]) for world in (clean, false))
    assert told[0].max() == 1 and told.max() == 2
    liars, honest = [0, 1, 3, 4], [2, 5]
    torch.testing.assert_close(turned[:, liars], 2 - told[:, liars])
    torch.testing.assert_close(turned[:, honest], told[:, honest])


def test_what_changes_data_is_not_put_inside_what_changes_messages() -> None:
    """Nothing would come of it, and nobody would be told."""
    for outer, wrapping in (("sleeper", attacks.sleeper), ("sybil", sybil)):
        for inner in (label_flip(), Mislabelled()):
            with pytest.raises(BadInput, match=f"^{outer} .* changes data; run it by itself$"):
                wrapping(then=inner)
        with pytest.raises(BadInput, match=f"^{outer} .* changes data; run it by itself$"):
            attack_of(f"{outer}:then=label-flip")
    assert attacks.sleeper(then=sybil()).then == sybil()


def test_only_liars_learn_from_false_labels() -> None:
    """Two labels told apart by the sign of x: who learns them the wrong way round is wrong about everything."""
    numbers = torch.Generator().manual_seed(0)
    x = torch.randn(8, 60, 2, generator=numbers)
    data = [(own, (own[:, 0] > 0).long()) for own in x]
    accuracy = {"accuracy": lambda predicted, y: (predicted.argmax(-1) == y).float()}
    task = Task.supervised(
        nn.Linear(2, 2), nn.functional.cross_entropy, data, test=data, metrics=accuracy, batch=20, step_size=0.5
    )
    settings = {"byzantine": [6, 7], "rounds": 60, "attack": label_flip(), "device": "cpu"}
    alone = simulate(task, rule=rules.alone(), **settings)["accuracy"].isel(epoch=-1)[0]
    assert alone[:6].min() > 0.9
    assert alone[6:].max() < 0.1


# Harm, and the lack of it -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attack", "rule", "times"),
    [
        (scaled(100.0), rules.average(), 20),
        (free_rider(), rules.distance_based(), 1000),
        (collusion(point=(5.0,)), rules.average(), 1000),
        (sybil(), rules.average(), 1000),
        (delay(40), rules.average(), 50),
        (duplicate(), rules.average(), 1000),
        (label_flip(), rules.average(), 1000),
    ],
    ids=repr,
)
def test_each_harms_who_trusts_blindly(attack: Any, rule: Any, times: float) -> None:
    assert regret(rule, attack) > times * regret(rule, HONEST)
    assert regret(rules.loss_based(), attack) < 2 * regret(rules.loss_based(), HONEST)


def test_an_echo_stops_those_who_trust_the_nearest_and_hardly_anybody_else() -> None:
    """At distance 0 it takes all weight: the regret of the first model, ‖GOAL‖² = 14, never falls."""
    assert regret(rules.distance_based(), free_rider()) == pytest.approx(14, rel=1e-3)
    assert regret(rules.average(), free_rider()) < 10 * regret(rules.average(), HONEST)


def test_absence_costs_little() -> None:
    for rule in (rules.average(), rules.loss_based()):
        assert regret(rule, dropping()) < 4 * regret(rule, HONEST)


# The rest -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: delay(0), "at least one round"),
        (lambda: dropping(probability=1.5), "between 0 and 1"),
        (lambda: dropping(length=0), "at least one round"),
        (lambda: collusion(point=()), "point is empty"),
        (lambda: collusion(point=(1.0, 2.0)).init(torch.zeros(1, 3)), "2 coordinates, but models have 3"),
    ],
)
def test_what_cannot_work_is_said(make: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        make()


def test_settings_are_set_by_text() -> None:
    named = {"sybil": sybil, "alie": alie}
    assert with_settings(sybil, {"then": "alie:z=2"}, "attack sybil", named) == sybil(alie(2.0))
    assert with_settings(collusion, {"point": "1/2"}, "attack collusion") == collusion((1.0, 2.0))
    assert with_settings(dropping, {"probability": "0.1", "length": "3"}, "attack dropping") == dropping(0.1, 3)

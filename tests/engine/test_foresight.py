"""What adversaries try before they send agrees with what then happens."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from varangian import Graph, Task, attacks, rules, simulate, studies
from varangian.attacks.base import View
from varangian.core.messages import ToAll, ToEach
from varangian.engine.round import play_round
from varangian.engine.state import begin
from varangian.engine.world import prepare

LINEAR = rules.average(), rules.loss_based(), rules.loss_based(judge="same"), rules.distance_based()
OTHERS = (
    rules.anchored(),
    rules.ditto(),
    rules.apfl(),
    rules.bucketing(),
    rules.clipped(),
    rules.krum(),
    rules.median(),
    rules.geometric_median(),
    rules.interpolated(),
    rules.oracle(),
    rules.paired(),
)


@dataclass(eq=False)
class comparing:
    """Tries messages together and one after another, and notes the largest difference."""

    differences: list[float] = field(default_factory=list[float])

    def init(self, own: Tensor) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToAll, tuple[()]]:
        told = torch.stack((view.adapted, -view.adapted, view.previous * 3, torch.full_like(view.adapted, torch.nan)))
        together = view.insight.foresee_each(told, None)
        for rows, models in zip(told, together, strict=True):
            alone = view.insight.foresee(ToEach(rows[view.receiver]), None)
            self.differences.append(float((alone - models).abs().max()))
        risk = view.insight.risk(together)
        one_by_one = torch.stack([view.insight.risk(models) for models in together])
        self.differences.append(float((risk - one_by_one).abs().max()))
        return ToAll(view.own), state


@pytest.mark.parametrize("rule", [*LINEAR, *OTHERS], ids=repr)
def test_many_trials_at_once_are_the_trials_one_by_one(rule: Any) -> None:
    attack = comparing()
    study = studies.target_localization(agents=20)
    simulate(study, rule=rule, attack=attack, byzantine=6, rounds=4, seeds=2, dtype="float64", device="cpu")
    assert len(attack.differences) == 20 and max(attack.differences) < 1e-9


@pytest.mark.parametrize("share", [None, ["0"]])
def test_networks_on_dense_graphs_too(share: list[str] | None) -> None:
    torch.manual_seed(0)
    data = [(torch.randn(20, 4), torch.randint(0, 3, (20,))) for _ in range(6)]
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    task = Task.supervised(net, nn.functional.cross_entropy, data, test=data, batch=4, share=share)
    for rule in (rules.average(), rules.loss_based(), rules.krum()):
        attack = comparing()
        simulate(task, Graph.complete(6), rule=rule, attack=attack, byzantine=2, rounds=3, dtype="float64")
        assert max(attack.differences) < 1e-9


@dataclass(eq=False)
class rehearsing:
    """Plays another attack ahead in one round."""

    other: Any
    at: int
    rounds: int
    found: list[Tensor] = field(default_factory=list[Tensor])

    def init(self, own: Tensor) -> Any:
        return self.other.init(own)

    def send(self, view: View, state: Any) -> Any:
        if view.round == self.at and not self.found:
            first = view.insight.rehearse(self.other, state, self.rounds)
            halves = view.insight.rehearse(self.other, state, 2).further(self.rounds - 2)
            assert torch.equal(first.models, halves.models), "playing on is like playing at once"
            self.found.append(first.models)
        return self.other.send(view, state)


PLAYED = [rules.loss_based(), rules.paired(), rules.anchored(), rules.ditto()]


@pytest.mark.parametrize("rule", PLAYED, ids=repr)
def test_a_rehearsal_is_the_run_on_other_samples(rule: Any) -> None:
    """From round 2 on: the sample of that round is known, later ones are imagined."""
    attack = rehearsing(attacks.sleeper(until=4, then=attacks.sign_flip()), at=2, rounds=5)
    world = prepare([studies.target_localization(agents=12).scene(0)], [0], 3)
    state = begin(world, rule, attack)
    for _ in range(2):
        state, _ = play_round(world, rule, attack, state)
    play_round(world, rule, attack, state)
    imagined = replace(world, sample=world.imagined_sample)
    for _ in range(5):
        state, _ = play_round(imagined, rule, attack.other, state)
    assert torch.equal(attack.found[0], state.used)
    assert not torch.equal(world.imagined_sample(3)[0], world.sample(3)[0])


@pytest.mark.parametrize("rule", PLAYED, ids=repr)
def test_a_rehearsal_changes_nothing(rule: Any) -> None:
    """The run goes on with the same bits, as if nobody had looked ahead."""
    study, settings = studies.target_localization(agents=12), {"byzantine": 3, "rounds": 6}
    plain = simulate(study, rule=rule, attack=attacks.sign_flip(), **settings)
    ahead = simulate(study, rule=rule, attack=rehearsing(attacks.sign_flip(), 2, 4), **settings)
    assert plain["regret"].equals(ahead["regret"])

"""Byzantine agents that combine what they hear before they lie."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from varangian import attacks, rules
from varangian.core.scene import Scene
from varangian.engine.round import play_round
from varangian.engine.state import begin
from varangian.engine.world import World, prepare
from varangian.studies.target_localization import target_localization

HONEST = attacks.crash(at=10**9)
"""Byzantine agents that send what they would send if they were honest."""
LYING = [1, 4, 7]


def scene() -> Scene:
    return target_localization(agents=12).scene(0)


def models(world: World, rule: Any, attack: Any, rounds: int = 8) -> Tensor:
    with torch.no_grad():
        state = begin(world, rule, attack)
        for _ in range(rounds):
            state = play_round(world, rule, attack, state)[0]
    return state.models


@pytest.mark.parametrize("rule", [rules.loss_based(), rules.average(), rules.median()], ids=repr)
def test_a_byzantine_agent_that_listens_and_is_honest_equals_an_honest_agent(rule: Any) -> None:
    listening = models(prepare([scene()], [0], LYING, byzantine_listen=True), rule, HONEST)
    assert torch.equal(listening, models(prepare([scene()], [0], 0), rule, HONEST))


def test_by_default_byzantine_agents_train_alone() -> None:
    deaf = models(prepare([scene()], [0], LYING), rules.average(), HONEST)
    alone = models(prepare([scene()], [0], 0), rules.alone(), HONEST)
    assert torch.equal(deaf[LYING], alone[LYING])
    others = [agent for agent in range(12) if agent not in LYING]
    assert not torch.equal(deaf[others], alone[others])


def test_listening_changes_only_what_byzantine_agents_start_from() -> None:
    """An attack that ignores its own model does the same to normal agents."""
    world = prepare([scene()], [0], LYING)
    listening = replace(world, listening=torch.ones_like(world.listening))
    one, other = (models(each, rules.loss_based(), attacks.uniform(15, 16)) for each in (world, listening))
    assert torch.equal(one[~world.is_byzantine], other[~world.is_byzantine])
    assert not torch.equal(one[LYING], other[LYING])

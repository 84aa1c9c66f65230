"""Hubs: an agent that hears very many others is computed within memory, or the run is refused before it starts."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any

import pytest
import torch
from tests.helpers.peak_memory import PeakMemory
from torch import nn

import varangian
from varangian import BadInput, Graph, Task, attacks, robust, rules
from varangian.core.batches import Pool
from varangian.core.scene import Scene
from varangian.engine.compute.memory import estimate
from varangian.engine.round import play_round
from varangian.engine.state import begin
from varangian.engine.world import attacked, prepare
from varangian.rules.base import WithWorkspace, workspace_of

torch.set_num_threads(1)
MANY = 100_001


def star_task(agents: int, parameters: int = 4) -> Task:
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(agents, 2, parameters, generator=draw), torch.randn(agents, 2, 1, generator=draw)
    model = nn.Linear(parameters, 1, bias=False)
    pairs = list(zip(x, y, strict=True))
    return Task.supervised(model, nn.functional.mse_loss, pairs, test=pairs, batch=1, epoch=1)


@pytest.fixture(scope="module")
def many() -> Task:
    """A task for so many agents, made without a list of as many pairs."""
    draw = torch.Generator().manual_seed(0)
    members = torch.arange(MANY)[:, None]
    pool = Pool(
        torch.randn(MANY, 2, generator=draw),
        torch.randn(MANY, 1, generator=draw),
        members,
        torch.ones(MANY, dtype=torch.long),
    )
    return Task.supervised(nn.Linear(2, 1, bias=False), nn.functional.mse_loss, pool, batch=1)


class Started(Exception):
    """A run began."""


class Stop:
    def start(self, world: Any, state: Any, rounds: int) -> None:
        raise Started

    def round(self, world: Any, state: Any, recorder: Any) -> None: ...

    def end(self, world: Any, state: Any) -> None: ...


HUNGRY: dict[str, dict[str, Any]] = {
    "krum": {"rule": rules.krum()},
    "multi_krum": {"rule": rules.multi_krum()},
    "geometric_median": {"rule": rules.geometric_median()},
    "nearest_neighbour_mixing": {"rule": rules.nearest_neighbour_mixing()},
    "centerpoint": {"rule": rules.centerpoint()},
    "relationship_learning": {"rule": rules.relationship_learning()},
    "ios": {"rule": rules.ios()},
    "a rule around krum": {"rule": rules.verified(rule=rules.krum())},
    "min_max": {"rule": rules.average(), "attack": attacks.min_max(), "byzantine": 5},
    "min_sum": {"rule": rules.average(), "attack": attacks.min_sum(), "byzantine": 5},
    "fang_krum": {"rule": rules.average(), "attack": attacks.fang_krum(), "byzantine": 5},
    "an attack inside another": {
        "rule": rules.average(),
        "attack": attacks.sleeper(3, attacks.min_max()),
        "byzantine": 5,
    },
}


@pytest.mark.parametrize("memory", [None, "3GiB"])
@pytest.mark.parametrize("name", HUNGRY)
def test_a_huge_hub_is_refused_before_the_run_starts(name: str, memory: str | None, many: Task) -> None:
    with pytest.raises(BadInput) as caught:
        varangian.simulate(many, Graph.star(MANY), rounds=2, memory=memory, callbacks=[Stop()], **HUNGRY[name])
    line = str(caught.value)
    assert "compares all pairs of the 100001 models that one agent hears, and needs about" in line
    assert "use another one, or smaller hubs" in line
    assert "\n" not in line


@pytest.mark.parametrize("rule", [rules.loss_based(), rules.median(), rules.trimmed_mean(), rules.monna()])
def test_rules_that_need_little_start_on_a_huge_hub(rule: Any, many: Task) -> None:
    with pytest.raises(Started):
        varangian.simulate(many, Graph.star(MANY), rule=rule, rounds=2, memory="3GiB", callbacks=[Stop()])


def test_a_budget_counts() -> None:
    task, graph = star_task(2_000), Graph.star(2_000)
    settings: dict[str, Any] = {"rule": rules.krum(), "rounds": 1, "callbacks": [Stop()]}
    with pytest.raises(Started):
        varangian.simulate(task, graph, memory="8GiB", **settings)
    with pytest.raises(BadInput, match="or allow more memory"):
        varangian.simulate(task, graph, memory="300MiB", **settings)


def built_in(module: Any, method: str) -> list[Any]:
    """Every rule or every attack with its defaults."""
    # best_response takes long, and works in pieces of its own.
    found = [getattr(module, name) for name in module.__all__ if name != "best_response"]
    kinds = [kind for kind in found if isinstance(kind, type) and is_dataclass(kind) and hasattr(kind, method)]
    special: dict[Any, Any] = {
        attacks.sleeper: lambda: attacks.sleeper(0, attacks.min_max()),
        attacks.strongest: lambda: attacks.strongest(rounds=2),
    }
    return [pytest.param(special.get(kind, kind)(), id=kind.__name__) for kind in kinds]


def peak_and_promise(rule: Any, attack: Any, hub: int) -> tuple[int, int]:
    """The bytes of tensors in one round on a star, and what the run was estimated to need."""
    scene = Scene(star_task(hub), Graph.star(hub))
    with torch.no_grad():
        world = attacked(prepare([scene], [0], [1, 2]), attack)
        state = begin(world, rule, attack)
        with PeakMemory() as peak:
            play_round(world, rule, attack, state)
    promise = estimate([scene], rule, 1, torch.float32, any_byzantine=True)
    return peak.most, promise + max(workspace_of(who, hub, 4) for who in (rule, attack))


HUB = 1200
LEFT_OVER = 2**22
"""What does not grow with the square of the hub."""


@pytest.mark.parametrize("rule", built_in(rules, "combine"))
def test_a_rule_needs_no_more_than_it_says(rule: Any) -> None:
    used, promised = peak_and_promise(rule, attacks.sign_flip(), HUB)
    assert used <= promised + LEFT_OVER


@pytest.mark.parametrize("attack", built_in(attacks, "send"))
def test_an_attack_needs_no_more_than_it_says(attack: Any) -> None:
    used, promised = peak_and_promise(rules.average(), attack, HUB)
    assert used <= promised + LEFT_OVER


def test_in_the_plane_a_centerpoint_needs_no_more_than_it_says() -> None:
    vectors = torch.randn(120, 2, generator=torch.Generator().manual_seed(0))
    with PeakMemory() as peak:
        robust.centerpoint(vectors)
    rule = rules.centerpoint()
    assert isinstance(rule, WithWorkspace)
    assert peak.most <= rule.workspace(120, 2)


@pytest.mark.parametrize(
    "function", [lambda v: robust.krum(v, 1), robust.geometric_median, robust.centerpoint, robust.squared_distances]
)
def test_robust_functions_refuse_what_no_machine_holds(function: Any) -> None:
    vectors = torch.zeros(1, 2).expand(10_000_000, 2)
    with pytest.raises(BadInput, match=r"10000000 vectors.* needs about .* GiB of memory") as caught:
        function(vectors)
    assert "\n" not in str(caught.value)

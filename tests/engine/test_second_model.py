"""A second model for every agent. As an anchor, it is bit for bit what the agent would have under `rules.alone()`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from small_tasks import softmax
from torch import nn

from varangian import BadInput, Graph, Task, attacks, rules, simulate
from varangian.core.execution import DEFAULT
from varangian.core.inbox import Inbox
from varangian.core.optimisers import adam, sgd
from varangian.core.scene import Scene
from varangian.engine import checkpoint as checkpoints
from varangian.engine.cluster.shard import Shard, ShardOptions
from varangian.engine.cluster.subnetwork import cut
from varangian.engine.compute.blocks import Blocks
from varangian.engine.compute.compile import Compiled
from varangian.engine.compute.memory import estimate
from varangian.engine.executor import Executor, Plain
from varangian.engine.options import RunOptions
from varangian.engine.recorder import Recorder
from varangian.engine.results import summary
from varangian.engine.round import play_round
from varangian.engine.state import State, begin
from varangian.engine.world import World, poisoned, prepare
from varangian.rules import Combined
from varangian.studies import target_localization

torch.set_num_threads(1)
ROUNDS = 12
RING = Graph.ring(14, 2)


@dataclass(frozen=True)
class anchored_average:
    """Averages everything, and so leaves the anchor behind at once."""

    companion: ClassVar = "alone"

    def init(self, table: torch.Tensor) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Combined[tuple[()]]:
        return rules.average().combine(inbox, state)


@dataclass(frozen=True)
class shifting:
    """Averages what is sent, and moves the personal model by one in every round."""

    companion: ClassVar = "personal"

    def init(self, table: torch.Tensor) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Combined[tuple[()]]:
        return rules.average().combine(inbox, state)._replace(personal=inbox.personal.now + 1)


def network(*layers: nn.Module, agents: int = 14, **settings: Any) -> Task:
    draw = torch.Generator().manual_seed(3)
    data = [(torch.randn(9, 4, generator=draw), torch.randn(9, 1, generator=draw)) for _ in range(agents)]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), *layers, nn.Linear(6, 1))
    return Task.supervised(net, nn.functional.mse_loss, data, batch=4, **settings)


def changing(round: int) -> Graph:
    return [Graph.ring(14), Graph.star(14), Graph.complete(14)][round // 3 % 3]


_WIDE = [Graph.ring(300, 3), Graph.star(300)]


def widely_changing(round: int) -> Graph:
    """A graph that changes between one and several tables of neighbourhoods."""
    return _WIDE[round // 3 % 2]


def localized(agents: int = 14) -> Scene:
    return target_localization(agents=agents).scene(0)


SCENES: dict[str, Callable[[], list[Scene]]] = {
    "formula": lambda: [localized()],
    "several tables": lambda: [localized(400)],
    "softmax": lambda: [Scene(softmax(), RING)],
    "momentum": lambda: [Scene(softmax(optimiser=sgd(momentum=0.9, weight_decay=0.01)), RING)],
    "adam": lambda: [Scene(softmax(optimiser=adam()), RING)],
    "skipped batches": lambda: [Scene(softmax(optimiser=adam(), skip=0.4), RING)],
    "schedule": lambda: [Scene(network(nn.Tanh(), schedule=lambda round: 1 / (1 + round)), RING)],
    "private parameters": lambda: [Scene(network(nn.Tanh(), share=["0"]), RING)],
    "normalisation": lambda: [Scene(network(nn.BatchNorm1d(6)), RING)],
    "dropout": lambda: [Scene(network(nn.Dropout(0.5)), RING)],
    "everyone hears everyone": lambda: [Scene(softmax(), Graph.complete(14))],
    "a changing graph": lambda: [Scene(softmax(), changing)],
    "changing tables": lambda: [Scene(network(nn.Tanh(), agents=300), widely_changing)],
    "seeds side by side": lambda: [localized() for _ in range(3)],
}


def play(world: World, rule: Any, attack: Any, rounds: int = ROUNDS) -> Iterator[State]:
    world = poisoned(world, attack)
    with torch.no_grad():
        state = begin(world, rule, attack)
        for _ in range(rounds):
            state, _ = play_round(world, rule, attack, state)
            yield state


def same_bits(state: State, alone: State) -> None:
    """The second models and their optimisers are those of agents that never listened."""
    assert state.second is not None
    assert torch.equal(state.second.models, alone.models)
    assert len(state.second.optimiser) == len(alone.optimiser)
    for one, other in zip(state.second.optimiser, alone.optimiser, strict=True):
        assert torch.equal(one, other)


def agree(scenes: list[Scene], executor: Callable[[], Executor], attack: Any, dtype: torch.dtype) -> None:
    seeds = range(len(scenes))
    ours, theirs = (
        replace(prepare(scenes, seeds, 3, DEFAULT, dtype), executor=executor()) for _ in ("anchored", "alone")
    )
    for state, alone in zip(play(ours, anchored_average(), attack), play(theirs, rules.alone(), attack), strict=True):
        same_bits(state, alone)
    assert not torch.equal(state.models, alone.models), "the cooperative models have heard nothing"


@pytest.mark.parametrize("executor", [Plain, lambda: Blocks(DEFAULT)], ids=["plain", "blocks"])
@pytest.mark.parametrize("name", SCENES)
def test_the_anchor_is_what_the_agent_would_be_alone(name: str, executor: Callable[[], Executor]) -> None:
    agree(SCENES[name](), executor, attacks.uniform(15, 16), torch.float32)


@pytest.mark.parametrize("attack", [attacks.label_flip(), attacks.pulling(step=0.3), attacks.not_finite()], ids=repr)
def test_no_attack_reaches_the_anchor(attack: Any) -> None:
    agree(SCENES["softmax"](), lambda: Blocks(DEFAULT), attack, torch.float64)


def test_the_anchor_is_the_same_in_compiled_runs() -> None:
    agree(SCENES["formula"](), lambda: Compiled(DEFAULT), attacks.uniform(15, 16), torch.float32)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["formula", "softmax", "adam", "normalisation", "dropout"])
def test_the_anchor_is_the_same_on_a_gpu(name: str) -> None:
    execution = replace(DEFAULT, device=torch.device("cuda"))
    scenes = SCENES[name]()
    ours, theirs = (prepare(scenes, [0], 3, execution, torch.float32) for _ in range(2))
    attack = attacks.uniform(15, 16)
    for state, alone in zip(play(ours, anchored_average(), attack), play(theirs, rules.alone(), attack), strict=True):
        same_bits(state, alone)


@pytest.mark.parametrize("name", ["formula", "softmax", "adam", "skipped batches", "private parameters"])
@pytest.mark.parametrize("shards", [2, 5])
def test_the_anchor_is_the_same_in_shards(name: str, shards: int) -> None:
    (scene,) = SCENES[name]()
    attack, rule = attacks.uniform(15, 16), anchored_average()
    part_of = torch.arange(scene.task.agents) % shards
    options = ShardOptions(rule, attack, ROUNDS, 1, 0, RunOptions(device="cpu"))
    ours = [Shard(part, options) for part in cut(scene, 0, 3, part_of, attack)]
    *_, alone = play(prepare([scene], [0], 3), rules.alone(), attack)
    for _ in range(ROUNDS):
        told = [shard.tell() for shard in ours]
        for number, shard in enumerate(ours):
            shard.adapt_others()
            senders = [(who, to) for who, part in enumerate(ours) for to, rows in enumerate(part.part.to) if len(rows)]
            of = {pair: sum(1 for other in senders if other[0] == pair[0] and other[1] < pair[1]) for pair in senders}
            shard.hear([told[who][of[who, to]] for who, to in senders if to == number])
    for shard in ours:
        own = shard.part.own
        rows = State(*alone)._replace(models=alone.models[own], optimiser=tuple(o[own] for o in alone.optimiser))
        same_bits(shard.state, rows)


@pytest.mark.parametrize("rule", [anchored_average(), shifting()], ids=repr)
@pytest.mark.parametrize("name", ["adam", "skipped batches", "normalisation", "a changing graph", "changing tables"])
def test_a_resumed_run_has_the_same_second_models(rule: Any, name: str, tmp_path: Path) -> None:
    attack = attacks.uniform(15, 16)
    *_, whole = play(prepare(SCENES[name](), [0], 3), rule, attack)
    world = prepare(SCENES[name](), [0], 3)
    *_, state = play(world, rule, attack, rounds=5)
    checkpoints.save(tmp_path / "run", state, Recorder(), "mark")
    with torch.no_grad():
        state = checkpoints.load(tmp_path / "run", lambda round: begin(world, rule, attack, round), Recorder(), "mark")
        while state.round < ROUNDS:
            state, _ = play_round(world, rule, attack, state)
    assert torch.equal(state.models, whole.models)
    same_bits(state, whole._replace(models=whole.second.models, optimiser=whole.second.optimiser))


def test_without_a_companion_there_is_no_second_model() -> None:
    world = prepare([localized()], [0], 3)
    *_, state = play(world, rules.average(), attacks.uniform(15, 16), rounds=2)
    assert state.second is None
    of_rule = [estimate([localized()], rule, 1, torch.float32, True) for rule in (rules.average(), anchored_average())]
    assert of_rule[0] < of_rule[1]


def test_an_anchor_does_not_change_the_run() -> None:
    about: dict[str, Any] = {"rounds": 20, "byzantine": 3, "attack": attacks.uniform(15, 16), "seeds": 2}
    study = target_localization(agents=12)
    one, other = (simulate(study, rule=rule, **about) for rule in (anchored_average(), rules.average()))
    for name in ("loss", "regret", "byzantine_weight"):
        assert one[name].equals(other[name])


@pytest.mark.parametrize(
    ("task", "graph", "names"),
    [(target_localization(agents=12), None, ["regret"]), (softmax(), RING, ["accuracy", "test_loss"])],
    ids=["every round", "every epoch"],
)
def test_a_run_with_anchors_also_measures_no_cooperation(task: Any, graph: Any, names: list[str]) -> None:
    about: dict[str, Any] = {"graph": graph, "rounds": 20, "byzantine": 3, "attack": attacks.uniform(15, 16)}
    result = simulate(task, rule=anchored_average(), **about)
    expected = simulate(task, rule=rules.alone(), **about)
    for name in names:
        assert result[f"alone_{name}"].equals(expected[name])
        assert not result[name].equals(expected[name])
    assert [name for name in expected if str(name).startswith("alone")] == []
    assert {f"alone_{name}_{of}" for name in names for of in ("mean", "worst")} < set(summary(result)[0])


def test_a_personal_model_is_trained_combined_and_measured() -> None:
    # The loss of θ is (θ − 1)², the step size ¼: a step leads half of the way to 1.
    task = Task.supervised(
        nn.Linear(1, 1, bias=False), nn.functional.mse_loss, [(torch.ones(2, 1), torch.ones(2, 1))] * 3, step_size=0.25
    )
    task.model.first.zero_()  # type: ignore[attr-defined]
    states = list(play(prepare([Scene(task, Graph.complete(3))], [0], [2]), shifting(), attacks.silent(), rounds=3))
    seconds = [state.second for state in states if state.second is not None]
    assert [second.models[0].item() for second in seconds] == [1.5, 2.25, 2.625]
    assert [state.models[0].item() for state in states] == pytest.approx([0.5, 0.75, 0.875])
    assert all(second.before is None and second.personal for second in seconds)
    assert [state.used[0].item() for state in states] == [1.5, 2.25, 2.625]
    assert seconds[-1].models[2].item() == 0.875, "a Byzantine agent keeps its trained model"


def test_what_is_used_is_what_is_measured() -> None:
    result = simulate(target_localization(agents=5), rule=shifting(), rounds=40)
    assert float(result["regret"].isel(round=-1).mean()) > 0.5
    assert float(result["loss"].isel(round=-1).mean()) > 0.5


def test_a_personal_model_that_is_not_finite_is_not_taken() -> None:
    @dataclass(frozen=True)
    class breaking(shifting):
        def combine(self, inbox: Inbox, state: tuple[()]) -> Combined[tuple[()]]:
            return rules.average().combine(inbox, state)._replace(personal=inbox.personal.now * math.nan)

    *_, state = play(prepare([localized()], [0], 0), breaking(), attacks.silent())
    *_, alone = play(prepare([localized()], [0], 0), rules.alone(), attacks.silent())
    same_bits(state, alone)


@pytest.mark.parametrize("rule", [anchored_average(), shifting()], ids=repr)
def test_an_attack_may_try_a_rule_with_a_second_model(rule: Any) -> None:
    attack = attacks.best_response(lengths=2, refinements=0, horizon=1, ahead=4, rule=rule)
    for followed in (rule, rules.average()):
        result = simulate(target_localization(agents=6), rule=followed, attack=attack, byzantine=2, rounds=3)
        assert bool(result["regret"].notnull().all())


def test_a_rule_that_forgets_to_ask_is_told() -> None:
    class forgetful(rules.average):
        def combine(self, inbox: Inbox, state: tuple[()]) -> Combined[tuple[()]]:
            return Combined(inbox.anchor, None, state)

    with pytest.raises(BadInput, match="set its attribute companion"):
        simulate(target_localization(agents=5), rule=forgetful(), rounds=2)

"""Fold models: K models per agent, each trained without one fold of its items, bit for bit the same everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from varangian import BadInput, Graph, Task, attacks, rules, simulate
from varangian.core.batches import Batches
from varangian.core.draws import Draws
from varangian.core.execution import DEFAULT
from varangian.core.optimisers import adam
from varangian.core.scene import Scene
from varangian.engine import checkpoint as checkpoints
from varangian.engine.cluster.shard import Shard, ShardOptions
from varangian.engine.cluster.subnetwork import cut
from varangian.engine.compute.blocks import Blocks
from varangian.engine.compute.memory import estimate
from varangian.engine.executor import Executor, Plain
from varangian.engine.fold_models import FoldState
from varangian.engine.options import RunOptions
from varangian.engine.recorder import Recorder
from varangian.engine.round import play_round
from varangian.engine.run import suited
from varangian.engine.state import State, begin
from varangian.engine.world import prepare
from varangian.rules.cross_fitted import cross_fitted
from varangian.studies import target_localization

torch.set_num_threads(1)
AGENTS, ROUNDS, RULE = 6, 10, cross_fitted(folds=3)
ATTACK = attacks.uniform(0, 0.5)


def data(changed: tuple[int, int] | None = None) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """A few items for each agent. One target of one agent may be changed: (agent, item)."""
    draw = torch.Generator().manual_seed(4)
    own = [(torch.randn(5 + k, 4, generator=draw), torch.randn(5 + k, 1, generator=draw)) for k in range(AGENTS)]
    if changed is not None:
        own[changed[0]][1][changed[1]] += 7.0
    return own


def task(*layers: nn.Module, changed: tuple[int, int] | None = None, **settings: Any) -> Task:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), *layers, nn.Linear(6, 1))
    return Task.supervised(net, mse_loss, data(changed), batch=2, **settings)


TASKS: dict[str, Callable[..., Task]] = {
    "network": lambda **more: task(nn.Tanh(), **more),
    "adam and skipped batches": lambda **more: task(nn.Tanh(), optimiser=adam(), skip=0.4, **more),
    "private parameters": lambda **more: task(nn.Tanh(), share=["0"], **more),
    "normalisation": lambda **more: task(nn.BatchNorm1d(6), **more),
}


def play(task: Task, executor: Executor | None = None, rounds: int = ROUNDS) -> Iterator[State]:
    world = prepare([Scene(task, Graph.complete(AGENTS))], [0], 1)
    world = world if executor is None else replace(world, executor=executor)
    with torch.no_grad():
        state = begin(world, RULE, ATTACK)
        for _ in range(rounds):
            state, _ = play_round(world, RULE, ATTACK, state)
            yield state


def folds_of(state: State) -> FoldState:
    assert state.second is not None and state.second.folds is not None
    return state.second.folds


def last(task: Task, **how: Any) -> State:
    *_, state = play(task, **how)
    return state


@pytest.mark.parametrize("name", TASKS)
def test_a_fold_model_never_sees_the_items_of_its_fold(name: str) -> None:
    before, after = (folds_of(last(TASKS[name](changed=changed))).models for changed in (None, (2, 4)))
    same = [torch.equal(one[2], other[2]) for one, other in zip(before, after, strict=True)]
    assert same[1], "item 4 is in fold 1"
    assert not all(same), "others have seen it"
    others = [agent for agent in range(AGENTS) if agent != 2]
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one[others], other[others]), "nobody else has the item, and fold models do not listen"


def test_fold_models_are_those_of_a_plain_loop() -> None:
    torch.manual_seed(0)
    line = Task.supervised(nn.Linear(4, 1, bias=False), mse_loss, data(), batch=2, step_size=0.1)
    assert isinstance(line.stream, Batches)
    found, draws = folds_of(last(line)), Draws.of(0, AGENTS)
    most, per_epoch = line.stream.pool.members.shape[1], line.stream.rounds_per_pass
    for agent, (x, y) in enumerate(data()):
        for fold in range(3):
            theta, left = (
                line.model.start(1, torch.float32, torch.device("cpu"))[0],
                [i for i in range(len(x)) if i % 3 != fold],
            )
            for turn, _ in enumerate(range(fold, ROUNDS, 3)):
                epoch, within = divmod(turn, per_epoch)
                keys = draws.uniform("shuffle", epoch, most)[agent, : len(left)].tolist()
                order = sorted(range(len(left)), key=keys.__getitem__)
                batch = [left[order[(2 * within + j) % len(left)]] for j in range(2)]
                error = x[batch] @ theta - y[batch, 0]
                theta = theta - 0.1 * error @ x[batch]  # two items, so that the factors 2 and 1/2 cancel
            torch.testing.assert_close(found.models[fold][agent], theta)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("executor", [Plain, lambda: Blocks(DEFAULT)], ids=["plain", "blocks"])
def test_fold_models_are_the_same_with_every_executor(name: str, executor: Callable[[], Executor]) -> None:
    one, other = last(TASKS[name]()), last(TASKS[name](), executor=executor())
    for a, b in zip(folds_of(one).models, folds_of(other).models, strict=True):
        assert torch.equal(a, b)
    torch.testing.assert_close(one.models, other.models, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", TASKS)
def test_a_resumed_run_goes_on_with_the_same_bits(name: str, tmp_path: Path) -> None:
    whole = last(TASKS[name]())
    *_, state = play(TASKS[name](), rounds=4)
    world = prepare([Scene(TASKS[name](), Graph.complete(AGENTS))], [0], 1)
    checkpoints.save(tmp_path / "run", state, Recorder(), "mark")
    with torch.no_grad():
        state = checkpoints.load(tmp_path / "run", lambda round: begin(world, RULE, ATTACK, round), Recorder(), "mark")
        while state.round < ROUNDS:
            state, _ = play_round(world, RULE, ATTACK, state)
    assert torch.equal(state.models, whole.models)
    for one, other in zip(folds_of(state).models, folds_of(whole).models, strict=True):
        assert torch.equal(one, other)


def test_shards_have_the_same_fold_models() -> None:
    scene = Scene(TASKS["adam and skipped batches"](), Graph.complete(AGENTS))
    whole = last(scene.task)
    options = ShardOptions(RULE, ATTACK, ROUNDS, 1, 0, RunOptions(device="cpu"))
    shards = [Shard(part, options) for part in cut(scene, 0, 1, torch.arange(AGENTS) % 2, ATTACK)]
    for _ in range(ROUNDS):
        told = [shard.tell() for shard in shards]
        for number, shard in enumerate(shards):
            shard.adapt_others()
            shard.hear(told[1 - number])
    for shard in shards:
        own = shard.part.own
        torch.testing.assert_close(shard.state.models, whole.models[own])
        for one, other in zip(folds_of(shard.state).models, folds_of(whole).models, strict=True):
            assert torch.equal(one, other[own])


def test_a_single_item_cannot_be_left_out_so_its_fold_models_never_train() -> None:
    few = [(torch.ones(1, 1), torch.ones(1, 1)), (torch.ones(5, 1), torch.ones(5, 1))]
    net = nn.Linear(1, 1, bias=False)
    lonely = Task.supervised(net, mse_loss, few, batch=1)
    world = prepare([Scene(lonely, Graph.complete(2))], [0], 0)
    with torch.no_grad():
        state = begin(world, RULE, ATTACK)
        for _ in range(6):
            state, _ = play_round(world, RULE, ATTACK, state)
    for models in folds_of(state).models:
        assert torch.equal(models[0], world.start[0])
        assert not torch.equal(models[1], world.start[1])


def test_only_runs_that_need_fold_models_have_them() -> None:
    scene = Scene(task(nn.Tanh()), Graph.complete(AGENTS))
    world = prepare([scene], [0], 1)
    second = begin(world, rules.anchored(), ATTACK).second
    assert second is not None and second.folds is None
    needs = [estimate([scene], rule, 1, torch.float32, True) for rule in (rules.anchored(), RULE)]
    assert needs[0] < needs[1]


def test_a_stream_has_no_folds() -> None:
    with pytest.raises(BadInput, match="finite dataset"):
        simulate(target_localization(agents=5), rule=RULE, rounds=2)


def test_the_anchored_rule_chooses_by_itself() -> None:
    rule = rules.anchored()
    few, stream = task(nn.Tanh()), target_localization(agents=5).scene(0).task
    assert suited(rule, few, 100) == cross_fitted()
    assert suited(rule, few, 3) == rule, "items that were seen once are new"
    assert suited(rule, stream, 100) == rule
    assert suited(rules.anchored(folds_for_few=0), few, 100) == rules.anchored(folds_for_few=0)
    assert suited(rules.anchored(rules.average()), few, 100) == rules.anchored(rules.average())
    assert suited(rules.average(), few, 100) == rules.average()
    chosen, named = (simulate(few, rule=rule, rounds=20) for rule in (rules.anchored(), cross_fitted()))
    assert chosen["loss"].equals(named["loss"])


@pytest.mark.parametrize("rule", [RULE, cross_fitted(folds=4)], ids=repr)
def test_an_attack_may_try_the_rule(rule: Any) -> None:
    attack = attacks.best_response(lengths=2, refinements=0, horizon=1, ahead=4, rule=rule)
    for followed in (RULE, rules.average()):
        result = simulate(task(nn.Tanh()), rule=followed, attack=attack, byzantine=1, rounds=2)
        assert bool(result["loss"].notnull().all())

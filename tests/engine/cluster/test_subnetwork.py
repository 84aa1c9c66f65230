"""A network cut into parts gives what it gives whole: parts played in one process, messages handed over."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_tasks import AGENTS, softmax

from varangian import Graph, attacks, rules, studies
from varangian.core import optimisers
from varangian.core.execution import DEFAULT
from varangian.core.scene import Scene
from varangian.engine.cluster.shard import Shard, ShardOptions
from varangian.engine.cluster.subnetwork import cut
from varangian.engine.options import RunOptions
from varangian.engine.recorder import Recorder
from varangian.engine.round import play_round
from varangian.engine.state import begin
from varangian.engine.world import attacked, prepare

OPTIONS = RunOptions(device="cpu", dtype="float64")


def shards_of(scene: Scene, shard_options: ShardOptions, byzantine: Any, part_of: torch.Tensor) -> list[Shard]:
    return [Shard(part, shard_options) for part in cut(scene, 0, byzantine, part_of, shard_options.attack)]


def play_in_parts(shards: list[Shard], rounds: int) -> None:
    """What an engine does, with nothing between one part and another."""
    for _ in range(rounds):
        told = [shard.tell() for shard in shards]
        for shard in shards:
            shard.adapt_others()
        for number, shard in enumerate(shards):
            messages = []
            for other, teller in enumerate(shards):
                receivers = [to for to, rows in enumerate(teller.part.to) if len(rows)]
                if number in receivers:
                    messages.append(told[other][receivers.index(number)])
            shard.hear(messages)


def agree(scene: Scene, rule: Any, attack: Any, byzantine: Any, shards: int, rounds: int = 12) -> None:
    """Models, memories and what is recorded, against the whole network."""
    snapshots = 4 if isinstance(scene.graph, Graph) else 0  # as in any run: slots change with a graph
    world = prepare([scene], [0], byzantine, DEFAULT, torch.float64)
    world, recorder = attacked(world, attack), Recorder(1, snapshots)
    state = begin(world, rule, attack)
    with torch.no_grad():
        for _ in range(rounds):
            state, seen = play_round(world, rule, attack, state)
            recorder.record(world, state, seen, rounds)
    shard_options = ShardOptions(rule, attack, rounds, 1, snapshots, OPTIONS)
    part_of = torch.randperm(scene.task.agents, generator=torch.Generator().manual_seed(shards)) % shards
    parts = shards_of(scene, shard_options, byzantine, part_of)
    play_in_parts(parts, rounds)
    expected = recorder.tensors(rounds)
    for shard in parts:
        own = shard.part.own
        close(shard.state.models, state.models[own])
        for one, other in zip(shard.state.optimiser, state.optimiser, strict=True):
            close(one, other[own])
        for name, values in shard.recorder.tensors(rounds).items():
            whole = expected[name]
            if name.startswith(("streaming", "held_out")):
                close(values, whole[:, own])
            elif name == "weights":
                close(values, whole[:, own, : values.shape[2]])
            else:
                assert values.tolist() == whole.tolist()


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12, equal_nan=True)


GRAPHS = {
    "complete": Graph.complete(AGENTS),
    "ring": Graph.ring(AGENTS, 2),
    "star": Graph.star(AGENTS),
    "one-way": Graph.from_edges(AGENTS, [(k, (3 * k + 1) % AGENTS) for k in range(AGENTS)]),
    "nobody": Graph.from_edges(AGENTS, []),
}


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
@pytest.mark.parametrize("graph", GRAPHS)
def test_graphs(graph: str, shards: int) -> None:
    agree(Scene(softmax(), GRAPHS[graph]), rules.loss_based(), attacks.pulling((0.0,)), 4, shards)


@pytest.mark.parametrize(
    "rule",
    [
        rules.alone(),
        rules.average(),
        rules.distance_based(),
        rules.loss_based(judge="same"),
        rules.anchored(),
        rules.ditto(),
        rules.apfl(),
        rules.interpolated(),
        rules.paired(),
        rules.patient(),
        rules.verified(rules.median()),
        rules.trimmed_mean(f=1),
        rules.krum(f=1),
        rules.geometric_median(),
        rules.ubar(),
        rules.balance(rounds=12),
        rules.relationship_learning(),
        rules.mean_regularised(),
        rules.fedfomo(),
        rules.pens(rounds=5),
        rules.l2c(),
        rules.fltrust(),
        rules.basil(own=True),
        rules.threshold_clustering(),
        rules.bucketing(rules.trimmed_mean(f=1)),
        rules.clipped(rules.bucketing(rules.krum())),
        rules.oracle(),
        rules.best_in_hindsight(steps=2),
        rules.sparing(every=2),
    ],
    ids=lambda rule: type(rule).__name__,
)
def test_every_family_of_rules(rule: Any) -> None:
    agree(Scene(softmax(), Graph.ring(AGENTS, 3)), rule, attacks.uniform(0, 0.1), 3, 3)


@pytest.mark.parametrize(
    "attack",
    [
        attacks.gaussian(),
        attacks.sign_flip(),
        attacks.not_finite(),
        attacks.silent(),
        attacks.crash(),
        attacks.sleeper(until=4, then=attacks.uniform()),
        attacks.free_rider(),
        attacks.delay(),
        attacks.duplicate(),
        attacks.dropping(),
        attacks.label_flip(),
        attacks.alie(),
        attacks.fang_krum(),
        attacks.fang_trimmed_mean(),
        attacks.min_max(),
        attacks.min_sum(),
        attacks.dissensus(),
        attacks.backdoor(),
        attacks.backdoor(replace=True),
        # These look at everyone, and everyone is told to every part.
        attacks.scaled(),
        attacks.inner_product(),
        attacks.mimic(),
        attacks.collusion(),
        attacks.sybil(),
        attacks.isolation(victim=3),
        attacks.spectral_dissensus(),
        attacks.rop(),
        attacks.poisoned_fl(window=3),
        attacks.variance_inflation(),
        attacks.model_replacement(),
    ],
    ids=lambda attack: type(attack).__name__,
)
def test_attacks_across_parts(attack: Any) -> None:
    agree(Scene(softmax(), Graph.ring(AGENTS, 3)), rules.loss_based(), attack, 4, 3)


def test_a_graph_that_changes() -> None:
    graphs = [Graph.ring(AGENTS, 2), Graph.star(AGENTS), Graph.complete(AGENTS)]
    scene = Scene(softmax(), lambda round: graphs[round // 3 % 3])
    agree(scene, rules.loss_based(), attacks.pulling((0.0,)), 4, 3)


@pytest.mark.parametrize("optimiser", [optimisers.adam(), optimisers.sgd(momentum=0.9)])
def test_what_optimisers_remember_and_who_goes_without_a_batch(optimiser: Any) -> None:
    agree(Scene(softmax(optimiser=optimiser, skip=0.4), Graph.ring(AGENTS)), rules.loss_based(), attacks.silent(), 2, 3)


def test_streams_and_places() -> None:
    agree(studies.target_localization(agents=40).scene(0), rules.loss_based(), attacks.uniform(15, 16), 8, 3, rounds=30)


def test_a_part_holds_its_own_data_alone_and_is_told_what_crosses() -> None:
    shard_options = ShardOptions(rules.average(), attacks.silent(), 3, 1, 0, OPTIONS)
    part_of = torch.arange(AGENTS) // 7
    one, other = shards_of(Scene(softmax(), Graph.ring(AGENTS)), shard_options, 0, part_of)
    assert len(one.part.task.stream.pool.x) == sum(12 + 3 * k for k in range(7))  # type: ignore[attr-defined]
    assert other.part.border == 2 and other.part.own[:2].tolist() == [7, 13]
    assert one.part.heard.tolist() == [*range(8), 13]
    play_in_parts([one, other], 3)
    assert one.spent.bytes == 3 * 2 * 18 * 8


def test_a_part_goes_on_from_what_it_kept() -> None:
    scene = Scene(softmax(optimiser=optimisers.adam()), Graph.ring(AGENTS))
    shard_options = ShardOptions(rules.loss_based(), attacks.delay(), 8, 1, 2, OPTIONS)
    part_of = torch.arange(AGENTS) % 3
    straight, broken = (shards_of(scene, shard_options, 3, part_of) for _ in range(2))
    play_in_parts(straight, 8)
    play_in_parts(broken, 5)
    kept = [shard.kept() for shard in broken]
    again = shards_of(scene, shard_options, 3, part_of)
    assert [shard.restore(one) for shard, one in zip(again, kept, strict=True)] == [5, 5, 5]
    play_in_parts(again, 3)
    for one, other in zip(straight, again, strict=True):
        assert torch.equal(one.state.models, other.state.models)
        for name, values in one.recorded().items():
            assert values.tobytes() == other.recorded()[name].tobytes()

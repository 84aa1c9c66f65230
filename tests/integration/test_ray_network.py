"""One network over the shards of a real Ray cluster of two machines: the same result as in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_tasks import AGENTS, softmax
from spread_networks import ABOUT, STUDY, alike

from varangian import Graph, RayCluster, Task, attacks, rules, simulate, studies
from varangian.core import optimisers
from varangian.core.errors import BadInput
from varangian.core.scene import Scene
from varangian.engine.cluster import actors
from varangian.engine.cluster.actors import ActorGroup, ShardActor
from varangian.engine.cluster.partition import cut as cut_senders
from varangian.engine.cluster.partition import parts as partitioned
from varangian.engine.cluster.run import Job, _whole
from varangian.engine.cluster.shard import ShardOptions
from varangian.engine.cluster.snapshots import Snapshots
from varangian.engine.cluster.subnetwork import cut
from varangian.engine.options import RunOptions

ray = pytest.importorskip("ray", reason="needs Ray")
MOST_SHARDS = 4  # on a ring, each of four parts sends to two others


@pytest.fixture(scope="module")
def shard_actors(cluster: Any) -> Iterator[list[Any]]:
    """A few actors for all cases: to start a process takes longer than a case. They leave the cores to other tests."""
    shard: Any = ray.remote(ShardActor).options(num_cpus=0, scheduling_strategy="SPREAD")
    started = [shard.remote() for _ in range(MOST_SHARDS)]
    ray.get([actor.ready.remote() for actor in started])
    yield started
    for actor in started:
        ray.kill(actor)


GRAPHS = [Graph.ring(AGENTS, 2), Graph.complete(AGENTS)]
CASES: dict[str, tuple[Scene, Any, Any, int]] = {
    "complete, loss-based": (Scene(softmax(), Graph.complete(AGENTS)), rules.loss_based(), attacks.uniform(), 4),
    "geometric, two-faced": (
        studies.target_localization(agents=40).scene(0),
        rules.loss_based(),
        attacks.pulling((0.0, 0.0)),
        8,
    ),
    "ring, two-faced": (Scene(softmax(), Graph.ring(AGENTS, 2)), rules.trimmed_mean(f=1), attacks.dissensus(), 4),
    "ring, whole network known": (Scene(softmax(), Graph.ring(AGENTS, 2)), rules.patient(), attacks.mimic(), 4),
    "time-varying": (Scene(softmax(), lambda now: GRAPHS[now // 2 % 2]), rules.loss_based(), attacks.free_rider(), 4),
    "Adam": (Scene(softmax(optimiser=optimisers.adam()), GRAPHS[0]), rules.distance_based(), attacks.delay(), 4),
}


@pytest.mark.parametrize("shards", [2, MOST_SHARDS])
@pytest.mark.parametrize("case", CASES)
def test_the_same_as_in_one_process(shard_actors: list[Any], case: str, shards: int) -> None:
    scene, rule, attack, byzantine = CASES[case]
    rounds = 8
    shard_options = shard_options_for(scene, rule, attack, rounds)
    graph = scene.graph if isinstance(scene.graph, Graph) else scene.graph(0)
    parts = list(cut(scene, 0, byzantine, partitioned(graph, shards), attack))
    group = started(shard_actors, parts, shard_options)
    group.play(Snapshots(None), rounds, lambda _: None)
    found = _whole(Job(scene, 0, byzantine, rule, attack, rounds), parts, shard_options, group.recorded(), 1.0)
    lying = [int(agent) for agent in np.flatnonzero(found["byzantine_agent"][0])]
    about: dict[str, Any] = {"rule": rule, "attack": attack, "byzantine": lying, "rounds": rounds, "dtype": "float64"}
    alike(found, simulate(scene.task, scene.graph, **about))
    if not parts[0].everyone:
        least = cut_senders(graph, partitioned(graph, shards)) * scene.task.model.shared * 8
        assert float(found["exchanged_bytes"][0]) == least


def shard_options_for(scene: Scene, rule: Any, attack: Any, rounds: int) -> ShardOptions:
    snapshots = 20 if isinstance(scene.graph, Graph) else 0
    return ShardOptions(rule, attack, rounds, 1, snapshots, RunOptions(device="cpu", dtype="float64"))


def started(shard_actors: list[Any], parts: list[Any], shard_options: ShardOptions) -> ActorGroup:
    """The first few actors, each with its part."""
    ray.get([actor.start.remote(part, shard_options) for actor, part in zip(shard_actors, parts, strict=False)])
    return ActorGroup(parts, shard_actors[: len(parts)])


def test_a_snapshot_that_cannot_be_read_is_one_line(shard_actors: list[Any], tmp_path: Path) -> None:
    scene, rule, attack, byzantine = CASES["Adam"]
    parts = list(cut(scene, 0, byzantine, partitioned(GRAPHS[0], 2), attack))
    group = started(shard_actors, parts, shard_options_for(scene, rule, attack, 8))
    group.play(Snapshots(tmp_path, every=4), 8, lambda _: None)
    part = tmp_path / "round-4" / "part-1"
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(BadInput, match="cannot be resumed"):
        group.play(Snapshots(tmp_path), 8, lambda _: None)


def test_a_full_cluster_is_one_line(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else has a core: there is no room for two shards that need one each."""
    monkeypatch.setattr(actors, "ROOM_SECONDS", 2.0)
    other: Any = ray.remote(ShardActor).options(num_cpus=1).remote()
    ray.get(other.ready.remote())
    try:
        said = r"no room for 2 shards for 2 seconds: each needs 1 CPUs, and \S+ of its 2 CPUs are free$"
        with pytest.raises(BadInput, match=said):
            simulate(STUDY, rounds=2, engine=RayCluster(shards=2), **ABOUT)
    finally:
        ray.kill(other)
    simulate(STUDY, rounds=2, engine=RayCluster(shards=2), **ABOUT)


class Watching:
    """A callback that looks at a whole network."""

    def start(self, world: object, state: object, rounds: int) -> None: ...

    def round(self, world: object, state: object, recorder: object) -> None: ...

    def end(self, world: object, state: object) -> None: ...


def test_what_cannot_be_cut_is_refused(cluster: Any) -> None:
    engine = RayCluster(shards=2)
    with pytest.raises(BadInput, match="best-response"):
        simulate(STUDY, engine=engine, attack=attacks.best_response(), byzantine=3)
    with pytest.raises(BadInput, match="best-response"):
        simulate(STUDY, engine=engine, attack=attacks.sleeper(until=0, then=attacks.best_response()), byzantine=3)
    with pytest.raises(BadInput, match="leave out memory or engine"):
        simulate(STUDY, engine=engine, memory="4GiB")
    with pytest.raises(BadInput, match="leave out threads or engine"):
        simulate(STUDY, engine=engine, threads=2)
    with pytest.raises(BadInput, match="30 agents cannot be spread over 31 shards"):
        simulate(STUDY, engine=RayCluster(shards=31))
    with pytest.raises(BadInput, match="callbacks"):
        simulate(STUDY, engine=engine, callbacks=[Watching()])
    with pytest.raises(BadInput, match="gpus_per_shard"):
        simulate(STUDY, engine=engine, device="cuda")
    droppy = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Dropout())
    data = [(torch.randn(8, 5), torch.randint(0, 3, (8,))) for _ in range(4)]
    with pytest.raises(BadInput, match="dropout"):
        simulate(Task.supervised(droppy, torch.nn.functional.cross_entropy, data), engine=engine)

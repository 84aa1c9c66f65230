"""One network over the shards of a real Ray cluster of two nodes: the same result, whatever dies on the way."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from small_tasks import softmax

from varangian import Graph, RayCluster, Task, attacks, rules, simulate, studies
from varangian.core import optimisers
from varangian.core.scene import Scene
from varangian.engine.callbacks import Progress
from varangian.engine.cluster.actors import Crew, Player
from varangian.engine.cluster.partition import cut as cut_senders
from varangian.engine.cluster.partition import parts as partitioned
from varangian.engine.cluster.run import Job, _whole
from varangian.engine.cluster.shard import Orders
from varangian.engine.cluster.snapshots import Keeper
from varangian.engine.cluster.subnetwork import cut
from varangian.errors import BadInput

library = pytest.importorskip("ray", reason="needs Ray")
AGENTS = 14


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    two = Cluster(
        initialize_head=True,
        connect=True,
        head_node_args={"num_cpus": 4, "object_store_memory": 100 * 2**20, "include_dashboard": False},
    )
    two.add_node(num_cpus=4, object_store_memory=100 * 2**20)
    two.wait_for_nodes()
    yield two
    library.shutdown()
    two.shutdown()


@pytest.fixture(scope="class")
def players(cluster: Any) -> Iterator[list[Any]]:
    """Seven actors for all cases: starting a process takes longer than a case."""
    player: Any = library.remote(Player).options(num_cpus=0.5, scheduling_strategy="SPREAD")
    actors = [player.remote() for _ in range(7)]
    library.get([actor.ready.remote() for actor in actors])
    yield actors
    for actor in actors:
        library.kill(actor)


def alike(found: xr.Dataset, expected: xr.Dataset) -> None:
    """All that was measured, but for how long it took."""
    for name, values in expected.drop_vars("seconds").data_vars.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-9, atol=1e-12, err_msg=str(name))


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


class TestEquality:
    @pytest.mark.parametrize("shards", [2, 3, 7])
    @pytest.mark.parametrize("case", CASES)
    def test_the_same_as_in_one_process(self, players: list[Any], case: str, shards: int) -> None:
        scene, rule, attack, byzantine = CASES[case]
        rounds = 8
        orders = Orders(rule, attack, rounds, 1, 20 if isinstance(scene.graph, Graph) else 0, "cpu", "float64", None)
        graph = scene.graph if isinstance(scene.graph, Graph) else scene.graph(0)
        parts = list(cut(scene, 0, byzantine, partitioned(graph, shards), attack))
        library.get([actor.start.remote(part, orders) for actor, part in zip(players, parts, strict=False)])
        crew = Crew(parts, players[:shards])
        crew.play(Keeper(None), rounds, lambda _: None)
        found = _whole(Job(scene, 0, byzantine, rule, attack, rounds), parts, orders, crew.recorded(), 1.0)
        expected = simulate(
            scene.task,
            scene.graph,
            rule=rule,
            attack=attack,
            byzantine=byzantine_of(found),
            rounds=rounds,
            dtype="float64",
        )
        alike(found, expected)
        if not parts[0].everyone:
            least = cut_senders(graph, partitioned(graph, shards)) * scene.task.model.shared * 8
            assert float(found["exchanged_bytes"][0]) == least


def byzantine_of(result: xr.Dataset) -> list[int]:
    return [int(agent) for agent in np.flatnonzero(result["byzantine_agent"][0])]


STUDY = studies.target_localization(agents=30)
ABOUT: dict[str, Any] = {"rule": rules.loss_based(), "attack": attacks.delay(), "byzantine": 6, "dtype": "float64"}


def disturbed(at: int, what: Callable[[], object]) -> Progress:
    """Does something once, after so many rounds."""
    played, done = 0, False

    def advance(rounds: int) -> None:
        nonlocal played, done
        played += rounds
        if played >= at and not done:
            done = True
            what()

    return Progress(advance)


def kill_a_player() -> None:
    """As a machine short of memory would."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if name.startswith(b"ray::Player"):
            os.kill(int(process.name), signal.SIGKILL)
            return
    raise AssertionError("no shard is running")


@pytest.mark.parametrize("keep_every", [7, None], ids=["kept", "from the start"])
def test_a_process_that_is_killed_changes_nothing(cluster: Any, keep_every: int | None) -> None:
    at = int(np.random.default_rng(keep_every).integers(10, 35))
    engine = RayCluster(shards=3, keep_every=keep_every)
    told: list[int] = []
    watching = [disturbed(at, kill_a_player), Progress(told.append)]
    found = simulate(STUDY, rounds=40, engine=engine, callbacks=watching, **ABOUT)
    assert sum(rounds <= 0 for rounds in told) == 2 and sum(told) == 40, "it began twice"
    alike(found, simulate(STUDY, rounds=40, **ABOUT))


def test_a_node_that_dies_changes_nothing(cluster: Any) -> None:
    """Long enough for the processes of a dead node to be missed."""
    lost = cluster.add_node(num_cpus=4, object_store_memory=100 * 2**20)
    cluster.wait_for_nodes()
    engine = RayCluster(shards=6, keep_every=100)
    stop = disturbed(20, lambda: cluster.remove_node(lost, allow_graceful=False))
    told: list[int] = []
    found = simulate(STUDY, rounds=1500, engine=engine, callbacks=[stop, Progress(told.append)], **ABOUT)
    assert sum(rounds <= 0 for rounds in told) >= 2 and sum(told) == 1500, "it began again"
    alike(found, simulate(STUDY, rounds=1500, **ABOUT))


def test_too_many_losses_leave_a_folder_to_go_on_from(cluster: Any, tmp_path: Path) -> None:
    engine = RayCluster(shards=2, keep_every=5, retries=0)
    with pytest.raises(BadInput, match=r"a shard was lost 1 times.*--resume"):
        simulate(
            STUDY, rounds=30, engine=engine, callbacks=[disturbed(12, kill_a_player)], checkpoint=tmp_path, **ABOUT
        )
    assert list(tmp_path.glob("*.parts/round-*"))
    again: list[int] = []
    found = simulate(
        STUDY, rounds=30, engine=engine, callbacks=[Progress(again.append)], checkpoint=tmp_path, resume=True, **ABOUT
    )
    assert again[0] >= 10, "it began where it had been"
    alike(found, simulate(STUDY, rounds=30, **ABOUT))
    with pytest.raises(BadInput, match="another run"):
        simulate(STUDY, rounds=31, engine=engine, checkpoint=tmp_path, resume=True, **ABOUT)


def test_an_interrupt_leaves_a_folder_to_go_on_from(cluster: Any, tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    engine = RayCluster(shards=2)
    with pytest.raises(KeyboardInterrupt):
        simulate(STUDY, rounds=30, engine=engine, callbacks=[disturbed(9, interrupt)], checkpoint=tmp_path, **ABOUT)
    with pytest.raises(BadInput, match="left by 2 shards"):
        simulate(STUDY, rounds=30, engine=RayCluster(shards=3), checkpoint=tmp_path, resume=True, **ABOUT)
    part = next(tmp_path.glob("*.parts/round-*/part-1"))
    whole = part.read_bytes()
    part.write_bytes(whole[:100])
    with pytest.raises(BadInput, match="cannot be gone on from"):
        simulate(STUDY, rounds=30, engine=engine, checkpoint=tmp_path, resume=True, **ABOUT)
    part.write_bytes(whole)
    found = simulate(STUDY, rounds=30, engine=engine, checkpoint=tmp_path, resume=True, **ABOUT)
    alike(found, simulate(STUDY, rounds=30, **ABOUT))


def test_what_cannot_be_cut_is_refused(cluster: Any) -> None:
    engine = RayCluster(shards=2)
    with pytest.raises(BadInput, match="best-response"):
        simulate(STUDY, engine=engine, attack=attacks.best_response(), byzantine=3)
    with pytest.raises(BadInput, match="best-response"):
        simulate(STUDY, engine=engine, attack=attacks.sleeper(until=0, then=attacks.best_response()), byzantine=3)
    with pytest.raises(BadInput, match="take more shards"):
        simulate(STUDY, engine=engine, memory="4GiB")
    with pytest.raises(BadInput, match="leave out threads or engine"):
        simulate(STUDY, engine=engine, threads=2)
    with pytest.raises(BadInput, match="30 agents cannot be spread over 31 shards"):
        simulate(STUDY, engine=RayCluster(shards=31))
    with pytest.raises(BadInput, match="callbacks"):
        simulate(STUDY, engine=engine, callbacks=[object()])  # type: ignore[list-item]
    with pytest.raises(BadInput, match="gpus_per_shard"):
        simulate(STUDY, engine=engine, device="cuda")
    droppy = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Dropout())
    data = [(torch.randn(8, 5), torch.randint(0, 3, (8,))) for _ in range(4)]
    with pytest.raises(BadInput, match="dropout"):
        simulate(Task.supervised(droppy, torch.nn.functional.cross_entropy, data), engine=engine)

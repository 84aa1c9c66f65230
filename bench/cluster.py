"""One network on the shards of a Ray cluster on this machine, against one process: `python -m bench.cluster`.

Measures how the time of a round is divided (adapt, exchange, judge and combine, as the shards measure them), and how
long a round takes for the caller. The shards share the cores. For comparison, the same code runs the network as a
single part in one process, with all cores and with nothing to exchange.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import torch

from bench.timing import Row, show
from varangian import RayCluster, attacks, rules, studies
from varangian.core.graph import Graph
from varangian.engine.cluster.actors import started_actors
from varangian.engine.cluster.partition import parts as partitioned
from varangian.engine.cluster.run import STAGES
from varangian.engine.cluster.shard import Shard, ShardOptions, StageTimes
from varangian.engine.cluster.snapshots import Snapshots
from varangian.engine.cluster.subnetwork import Part, cut
from varangian.engine.options import RunOptions
from varangian.studies.study import Study


@dataclass(frozen=True)
class Load:
    study: Study
    attack: Any
    byzantine: int
    rounds: int
    name: str


def loads(quick: bool) -> list[Load]:
    many = 10_000 if quick else 100_000
    return [
        Load(studies.human_activity(), attacks.uniform(0, 0.1), 10, 100, "human activity, 30 agents, complete"),
        Load(studies.digits(), attacks.uniform(0, 0.1), 2, 3 if quick else 8, "digits, 10 agents, complete"),
        Load(
            studies.target_localization(agents=many, field_size=3.0 * (many / 100) ** 0.5),
            attacks.uniform(15, 16),
            many // 5,
            30,
            f"localization, {many:,} agents",
        ),
    ]


def rows(load: Load) -> list[Row]:
    """In one process, and over one, two and four shards."""
    scene, rule = load.study.scene(0), rules.loss_based()
    assert isinstance(scene.graph, Graph)
    shard_options = ShardOptions(
        rule, load.attack, 10**6, 10**6, 0, RunOptions(device="cpu"), threads=torch.get_num_threads()
    )
    out: list[Row] = []
    for shards in (0, 1, 2, 4):
        part_of = partitioned(scene.graph, max(1, shards))
        parts = list(cut(scene, 0, load.byzantine, part_of, load.attack))
        seconds, spent = (
            _here(parts[0], shard_options, load.rounds) if not shards else _there(parts, shard_options, load.rounds)
        )
        about = {"workload": load.name, "engine": f"ray, {shards} shards" if shards else "in process"}
        stages = {f"{stage} ms": 1e3 * getattr(spent, stage) for stage in STAGES}
        expected = sum(len(rows) for part in parts for rows in part.to) * scene.task.model.shared * 4
        share = spent.exchange / (spent.adapt + spent.exchange + spent.judge + spent.combine)
        crossed = {
            "KB told": spent.bytes / 1e3,
            "of cut senders × parameters × 4": spent.bytes / expected if expected else None,
        }
        out.append({**about, "round ms": 1e3 * seconds, **stages, "exchange share": share, **crossed})
        print(f"{load.name}, {about['engine']}: {1e3 * seconds:.3g} ms per round", flush=True)
    return out


def _here(part: Part, shard_options: ShardOptions, rounds: int) -> tuple[float, StageTimes]:
    shard = Shard(part, shard_options)

    def play(number: int) -> None:
        for _ in range(number):
            shard.tell()
            shard.adapt_others()
            shard.hear([])

    play(2)
    before, start = astuple(shard.spent), time.perf_counter()
    play(rounds)
    return (time.perf_counter() - start) / rounds, _since([before], [shard.spent], rounds)


def _there(parts: Sequence[Part], shard_options: ShardOptions, rounds: int) -> tuple[float, StageTimes]:
    import ray

    with started_actors(
        RayCluster(shards=len(parts)), parts, [ray.put(part) for part in parts], shard_options
    ) as group:
        group.play(Snapshots(None, 10**9), 2, lambda _: None)
        before = [astuple(spent) for _, spent in group.recorded()]
        start = time.perf_counter()
        group.play(Snapshots(None, 10**9), rounds, lambda _: None)
        seconds = (time.perf_counter() - start) / rounds
        return seconds, _since(before, [spent for _, spent in group.recorded()], rounds)


def _since(before: Sequence[tuple[float, ...]], after: Sequence[StageTimes], rounds: int) -> StageTimes:
    """The seconds of a round, averaged over shards, and its bytes, summed over shards."""
    grown = [[b - a for a, b in zip(x, astuple(y), strict=True)] for x, y in zip(before, after, strict=True)]
    *seconds, sent, _ = (sum(column) / rounds for column in zip(*grown, strict=True))
    return StageTimes(*(stage / len(after) for stage in seconds), bytes=round(sent))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    asked = parser.parse_args()
    with RayCluster(shards=4).connected():
        measured = [row for load in loads(asked.quick) for row in rows(load)]
    show(measured, "One network over shards", asked.out / "cpu" / "cluster.csv")


if __name__ == "__main__":
    main()

"""One network over many processes and machines: the same run as in one process, part by part.

All parts save snapshots at regular intervals. When a process or a machine dies, all parts continue from the last
snapshot. Random draws are addressed by agent and round, so the results are the same as without the failure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from varangian.attacks.base import Attack
from varangian.core.errors import BadInput
from varangian.core.graph import Graph
from varangian.core.scene import Byzantine, Scene
from varangian.core.stopwatch import Stopwatch
from varangian.core.user_code import carried
from varangian.engine import results
from varangian.engine.callbacks import Callback, Progress
from varangian.engine.check import check_schedule
from varangian.engine.cluster.actors import LostShard, started_actors
from varangian.engine.cluster.partition import parts as partitioned
from varangian.engine.cluster.ray_cluster import RayCluster, one_line
from varangian.engine.cluster.shard import Array, ShardOptions, StageTimes
from varangian.engine.cluster.snapshots import Snapshots
from varangian.engine.cluster.subnetwork import Part, cut
from varangian.engine.fingerprint import identity, text_of
from varangian.engine.options import RunOptions
from varangian.engine.part_file import ENDING
from varangian.engine.recorder import Recorder, recording_plan
from varangian.engine.simulated import Result, finished, joined, save_finished
from varangian.engine.trained import kept, of_seeds
from varangian.rules.base import Rule

STAGES = ("adapt", "exchange", "judge", "combine")


@dataclass(frozen=True, eq=False)
class Job:
    """The network of one seed, and what to run on it."""

    scene: Scene
    seed: int
    byzantine: Byzantine
    rule: Rule[Any]
    attack: Attack[Any]
    rounds: int

    def mark(self, options: RunOptions) -> str:
        """A fingerprint. A finished result is reused only if its fingerprint is the same."""
        task, graph = self.scene.task, self.scene.graph
        return text_of(
            {
                "rule": identity(self.rule),
                "attack": identity(self.attack),
                "rounds": self.rounds,
                "seeds": self.seed,
                "byzantine": self.byzantine,
                "model": (task.agents, task.model.parameters, self.scene.start),
                "loss": getattr(task.model, "loss", None),
                "schedule": check_schedule(task.schedule, self.rounds),
                "optimiser": repr(task.optimiser),
                "judging": task.judge,
                "step-size": task.step_size,
                "options": repr(options.fingerprint),
                "graph": (graph.senders, graph.offsets) if isinstance(graph, Graph) else None,
            }
        )


def on_cluster(
    cluster: RayCluster,
    jobs: Iterable[Job],
    options: RunOptions,
    callbacks: Sequence[Callback],
    folder: Path | None,
    resume: bool,
    watch: Stopwatch,
) -> Result:
    """`simulate` on a cluster: one seed after another, each with its network spread over all shards.

    Args:
        cluster: Where to run.
        jobs: One for each seed. Their networks are made when they are needed.
        options: How to compute.
        callbacks: Only `Progress` can be used.
        folder: Where finished seeds and snapshots are saved.
        resume: Use what the folder holds.
        watch: Measures the phases.
    """
    device = options.device
    progress = [callback for callback in callbacks if isinstance(callback, Progress)]
    if len(progress) < len(callbacks):
        raise BadInput("callbacks look at a whole network, which is nowhere on a cluster; only Progress can be used")
    if device.startswith("cuda") and not cluster.gpus_per_shard:
        raise BadInput("by default shards have no GPU; set gpus_per_shard, or use device cpu")
    place = device if device != "auto" else "cuda" if cluster.gpus_per_shard else "cpu"
    placed = replace(options, device=place)

    def advance(rounds: int) -> None:
        for callback in progress:
            callback.advance(rounds)

    done: list[Result] = []
    with cluster.connected():
        for job in jobs:
            file = folder and folder / f"seeds-{job.seed}-{job.seed}{ENDING}"
            keep = kept(job.scene.task.agents * job.scene.task.model.parameters, options.save_models)
            if resume and file and (found := finished(file, job.mark(options), [job.seed] if keep else [])) is not None:
                done.append(found)
                advance(job.rounds)
                continue
            saved = Snapshots(file and file.with_suffix(".parts"), cluster.keep_every)
            if not resume:
                saved.discard()
            every, snapshots = recording_plan([job.scene], job.rounds, options.record_every)
            shard_options = ShardOptions(job.rule, job.attack, job.rounds, every, snapshots, placed, keep)
            result = run(job, cluster, shard_options, saved, advance, watch)
            done.append(result.saying({"fingerprint": job.mark(options)}))
            if file:
                with watch.phase("writing"):
                    file.parent.mkdir(parents=True, exist_ok=True)
                    save_finished(done[-1], file)
    return joined(done)


def run(
    job: Job,
    cluster: RayCluster,
    shard_options: ShardOptions,
    saved: Snapshots,
    advance: Callable[[int], object],
    watch: Stopwatch,
) -> Result:
    """The result of a run in one process, plus the cost of one round: `exchanged_bytes` and `stage_seconds`.

    Args:
        job: The network and what to run on it.
        cluster: The cluster to run on.
        shard_options: What all shards have in common.
        saved: The snapshots; the run continues from the last one.
        advance: Called with the number of rounds since the last call. It is negative if a lost shard cost rounds.
        watch: Measures the phases.
    """
    with watch.phase("set-up"):
        graph = job.scene.graph
        part_of = partitioned(graph if isinstance(graph, Graph) else graph(0), cluster.shards)
        parts = list(cut(job.scene, job.seed, job.byzantine, part_of, job.attack))
    began, played = time.perf_counter(), 0

    def done(rounds: int) -> None:
        nonlocal played
        advance(rounds - played)
        played = rounds

    import ray as library

    given = [library.put(carried(part)) for part in parts]
    for tries in range(1, cluster.retries + 2):
        try:
            with watch.phase("rounds"), started_actors(cluster, parts, given, shard_options) as group:
                group.play(saved, job.rounds, done)
                with watch.phase("recording"):
                    recorded = group.recorded()
            break
        except LostShard as lost:
            if tries > cluster.retries:
                where = f"; go on from {saved.folder} with --resume" if saved.folder else ""
                raise BadInput(f"a shard was lost {tries} times: {one_line(lost)[:120]}{where}") from lost
    with watch.phase("recording"):
        result = _whole(job, parts, shard_options, recorded, time.perf_counter() - began)
    saved.discard()
    return result


def _whole(
    job: Job,
    parts: Sequence[Part],
    shard_options: ShardOptions,
    recorded: Sequence[tuple[dict[str, Array], StageTimes]],
    seconds: float,
) -> Result:
    """The records of all parts, joined into one result."""
    found, spent = [arrays for arrays, _ in recorded], [of_part for _, of_part in recorded]
    recorder = Recorder(shard_options.every, shard_options.snapshots)
    weighed = all("weights" in arrays for arrays in found)
    whole: dict[str, Tensor] = {}
    for name, first in found[0].items():
        if name.startswith(("streaming/", "held_out/")):
            whole[name] = _joined(parts, [arrays[name] for arrays in found])
        elif name == "weights" and weighed:
            whole[name] = _joined(parts, _alike([arrays[name] for arrays in found]))
        elif name not in ("senders", "models") and (weighed or not name.startswith("weight")):
            whole[name] = torch.from_numpy(first.copy())
    recorder.restore(whole)
    senders = None
    if weighed:
        # Empty slots point to the agent itself, as they do in a table.
        slots = max(arrays["senders"].shape[1] for arrays in found)
        padded = [
            np.concatenate((a["senders"], np.repeat(p.own.numpy()[:, None], slots - a["senders"].shape[1], 1)), 1)
            for a, p in zip(found, parts, strict=True)
        ]
        senders = _joined(parts, [rows[None] for rows in padded])[0]
    is_byzantine = _joined(parts, [part.byzantine[part.place].numpy()[None] for part in parts])[0]
    result = results.dataset([job.scene], [job.seed], is_byzantine, recorder, senders, seconds)
    rounds = max(1, max(of_part.rounds for of_part in spent))
    stages = [[sum(getattr(of_part, stage) for of_part in spent) / rounds / len(spent) for stage in STAGES]]
    measured = result.assign(
        exchanged_bytes=("seed", [sum(of_part.bytes for of_part in spent) / rounds]),
        stage_seconds=(("seed", "stage"), stages),
    ).assign_coords(stage=list(STAGES))
    if not shard_options.keep_models:
        return Result.of(measured)
    models = _joined(parts, [arrays["models"] for arrays in found])[0]
    return Result.of(measured, of_seeds(models, [job.scene.task.model], [job.seed]))


def _joined(parts: Sequence[Part], values: Sequence[Array]) -> Tensor:
    """The arrays of all parts, joined along the second dimension, which is the agent."""
    first = values[0]
    out = np.empty((len(first), parts[0].agents, *first.shape[2:]), dtype=first.dtype)
    for part, value in zip(parts, values, strict=True):
        out[:, part.own.numpy()] = value
    return torch.from_numpy(out)


def _alike(weights: Sequence[Array]) -> list[Array]:
    """Weights padded with zeros, so that all parts have the same number of slots."""
    slots = max(of_part.shape[2] for of_part in weights)
    return [np.pad(of_part, ((0, 0), (0, 0), (0, slots - of_part.shape[2]))) for of_part in weights]

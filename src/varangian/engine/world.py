"""A network made ready to run: one seed's, or several seeds' side by side, placed on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from varangian.attacks.base import AnyAttack, Poisons
from varangian.core.batches import Batches
from varangian.core.blocks import FEW, ROWS, by_column, each, joined
from varangian.core.draws import Draws, ahead
from varangian.core.graph import Graph
from varangian.core.ground_truth import Risk
from varangian.core.models.base import Model, Models, Sample
from varangian.core.models.cuda_graphs import replayed
from varangian.core.models.low_precision import Coarse
from varangian.core.scene import Byzantine, Scene, chosen
from varangian.core.task import TEST_LOSS, Copyable, Divisible, PerAgent, Stream, Task, part_of, side_by_side
from varangian.core.wiring import Wiring, check_size, wirer
from varangian.engine.compute.agent_order import Arrangement
from varangian.engine.compute.compile import fused


@dataclass(frozen=True, eq=False)
class World:
    """Everything about a run that does not change while it runs."""

    task: Task
    """The first seed's: model, optimiser, schedule and epoch are every seed's."""
    seeds: tuple[int, ...]
    scenes: tuple[Scene, ...]
    draws: Draws
    byzantine_draws: Draws
    sample: Callable[[int], Sample]
    """From the round to what arrives in it."""
    wiring: Callable[[int], Wiring]
    byzantine: Int[Tensor, " byzantine"]
    first_of_byzantine: Models
    """The models that Byzantine agents start from."""
    is_byzantine: Bool[Tensor, " agent"]
    is_normal: Bool[Tensor, "agent 1"]
    exact: Callable[[Models], Mapping[str, Float[Tensor, " agent"]]]
    """What is known exactly about the models, every round."""
    held_out: Callable[[Models], Mapping[str, Float[Tensor, " agent"]]]
    """What held-out data says about the models, every epoch."""
    tested: Callable[[Models], Mapping[str, Float[Tensor, " agent"]]]
    """The part of it that says how good they are on data that nobody trains on."""
    step_size: Float[Tensor, "agent 1"]
    forgetting: Float[Tensor, "agent 1"]
    skip: Float[Tensor, "agent 1"] | None
    start: Models
    network: Int[Tensor, " agent"]
    """Which of the networks side by side each agent belongs to."""
    group: Int[Tensor, " agent"]
    """Which task each agent has; one for all where nothing else is known."""
    arrangement: Arrangement | None
    """Where agents stand, if not in the order of their numbers."""
    judge_dtype: str | None
    judging: Model
    """The model as neighbours are judged with: the task's own, unless they are judged in coarser numbers."""

    @property
    def risk(self) -> Risk | None:
        """How good models really are, where the task can tell."""
        if self.task.exact is not None:
            return lambda models: self.exact(models)["regret"]
        if self.task.tested is not None:
            return lambda models: self.tested(models)[TEST_LOSS]
        return None

    @property
    def agents(self) -> int:
        return len(self.is_byzantine)

    @property
    def whole(self) -> bool:
        """Whether all who send are played here, too."""
        return len(self.start) == self.agents

    @property
    def model(self) -> Model:
        return self.task.model

    def step_size_at(self, round: int) -> Float[Tensor, "agent 1"]:
        schedule = self.task.schedule
        return self.step_size if schedule is None else self.step_size * schedule(round)


def prepare(
    scenes: Sequence[Scene],
    seeds: Sequence[int],
    byzantine: Byzantine,
    device: torch.device,
    dtype: torch.dtype,
    judge_dtype: str | None = None,
) -> World:
    """Lay the scenes side by side, one for each seed, and draw who is Byzantine."""
    agents = scenes[0].task.agents
    for scene in scenes:
        if isinstance(scene.graph, Graph):
            check_size(scene.graph, scene.task.agents)
    draws = [Draws.of(seed, agents) for seed in seeds]
    liars = [chosen(byzantine, scene, draw) for scene, draw in zip(scenes, draws, strict=True)]
    is_byzantine = torch.zeros(agents * len(seeds), dtype=torch.bool)
    for place, who in enumerate(liars):
        is_byzantine[place * agents + who] = True
    arrangement = Arrangement.of(scenes[0], device) if len(scenes) == 1 else None
    arranged = scenes
    if arrangement is not None:
        arranged = [arrangement.arranged(scenes[0])]
        draws = [draws[0].take(arrangement.order)]
        is_byzantine = is_byzantine[arrangement.order]
    everyone = Draws.join(draws).to(device)
    liar_rows = torch.nonzero(is_byzantine)[:, 0].to(device)
    tasks = [placed(scene.task, device) for scene in arranged]
    exact = side_by_side([task.exact for task in tasks if task.exact is not None], agents, dtype)
    held_out = side_by_side([task.held_out for task in tasks if task.held_out is not None], agents, dtype)
    tested = side_by_side([task.tested for task in tasks if task.tested is not None], agents, dtype)
    start = torch.cat([task.model.start(agents, dtype, device) for task in tasks])
    start = stored(start if arrangement is None else start[arrangement.order])

    def column(name: str) -> Tensor:
        values: list[PerAgent] = [getattr(task, name) for task in tasks]
        of_seed = [torch.as_tensor(value, dtype=dtype).expand(agents) for value in values]
        return torch.cat(of_seed)[:, None].to(device)

    skip = column("skip")
    return World(
        task=tasks[0],
        seeds=tuple(seeds),
        scenes=tuple(scenes),
        draws=everyone,
        byzantine_draws=everyone.take(liar_rows),
        sample=sampler(tasks, [draw.to(device) for draw in draws], dtype),
        wiring=wirer([scene.graph for scene in arranged], agents, is_byzantine, device),
        byzantine=liar_rows,
        first_of_byzantine=start[liar_rows],
        is_byzantine=is_byzantine.to(device),
        is_normal=~is_byzantine.to(device)[:, None],
        exact=exact if arrangement is None else arrangement.measured(exact),
        held_out=held_out if arrangement is None else arrangement.measured(held_out),
        tested=tested if arrangement is None else arrangement.measured(tested),
        step_size=column("step_size"),
        forgetting=column("forgetting"),
        skip=skip if bool((skip > 0).any()) else None,
        start=start,
        network=torch.arange(len(seeds), device=device).repeat_interleave(agents),
        group=torch.cat([groups_of(task) for task in tasks]).to(device),
        arrangement=arrangement,
        judge_dtype=judge_dtype,
        judging=tasks[0].model
        if judge_dtype is None
        else replayed(Coarse.of(scenes[0].task.model, judge_dtype), device),
    )


def groups_of(task: Task) -> Int[Tensor, " agent"]:
    """Which task each agent has; one for all where nothing else is known."""
    return torch.zeros(task.agents, dtype=torch.long) if task.groups is None else torch.as_tensor(task.groups)


def stored(models: Models) -> Models:
    """Models as they lie best in memory."""
    return by_column(models) if models.shape[1] <= FEW else models


def poisoned(world: World, attack: AnyAttack) -> World:
    """The world as an attack on data leaves it: Byzantine agents' samples are what the attack makes of them."""
    if not isinstance(attack, Poisons) or not len(world.byzantine):
        return world
    liars = torch.nonzero(~world.is_normal[:, 0])[:, 0]
    # All of the data; of a stream that only makes samples, what its first ones show.
    held = [scene.task.stream.pool.y for scene in world.scenes if isinstance(scene.task.stream, Batches)]
    seen = held or [world.sample(0)[-1]]
    count = 0 if seen[0].is_floating_point() else max(int(labels.max()) for labels in seen) + 1

    def sample(round: int) -> Sample:
        clean = world.sample(round)
        changed = attack.poison(tuple(part[liars] for part in clean), count)
        return tuple(part.index_copy(0, liars, new) for part, new in zip(clean, changed, strict=True))

    return replace(world, sample=sample)


def placed(task: Task, device: torch.device) -> Task:
    """The task with its data on a device, ready to be run there."""
    return replace(
        task,
        model=replayed(task.model, device),
        stream=task.stream.to(device),
        exact=task.exact and task.exact.to(device),
        held_out=task.held_out and task.held_out.to(device),
    )


def sampler(tasks: Sequence[Task], draws: Sequence[Draws], dtype: torch.dtype) -> Callable[[int], Sample]:
    """From the round to what arrives in it, for several networks side by side."""
    pieces = [piece for task, own in zip(tasks, draws, strict=True) for piece in _pieces(task.stream, own)]
    streams, of_streams = zip(*pieces, strict=True)
    only, drawn_anew = tasks[0].stream, len(tasks) == 1 and not _still(tasks[0].stream)

    def in_pieces(start: int, rounds: int) -> Sample:
        parts = each(
            lambda stream, own: stream.samples(own, start, rounds, dtype),
            streams,
            of_streams,
            device=draws[0].seed.device,
        )
        return tuple(joined(part, rows=1) for part in zip(*parts, strict=True))

    numbers = sum(part.numel() for part in in_pieces(0, 1))
    at_a_time = max(1, min(512, 2**18 // numbers))

    def plainly(start: Tensor) -> Sample:
        return in_pieces(int(start), at_a_time)

    def in_one(start: Tensor) -> Sample:
        # Only ever traced, with a round that holds no number.
        return only.samples(draws[0], cast(int, start), at_a_time, dtype)

    def samples(start: int, rounds: int) -> list[Sample]:
        # Where many are drawn, that is a good part of a round.
        many = drawn_anew and numbers >= 2**14
        drawn = fused(in_one, only, plain=plainly)(torch.tensor(start)) if many else in_pieces(start, rounds)
        return list(zip(*drawn, strict=True))

    return ahead(samples, at_a_time)


def _pieces(stream: Stream, draws: Draws) -> list[tuple[Stream, Draws]]:
    if _still(stream) or draws.seed.device.type != "cpu":
        return [(stream, draws)]
    spans = [slice(first, first + ROWS) for first in range(0, stream.agents, ROWS)]
    return [(part_of(stream, span), draws.take(span)) for span in spans] if len(spans) > 1 else [(stream, draws)]


def _still(stream: Stream) -> bool:
    """Data that lies still is only looked up: nothing is gained by doing so in blocks, or by compiling it."""
    return isinstance(stream, Copyable) or not isinstance(stream, Divisible)

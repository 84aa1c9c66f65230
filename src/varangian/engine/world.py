"""A network prepared for a run: that of one seed, or of several seeds side by side, on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from varangian.attacks.base import AnyAttack, Poisons
from varangian.core.batches import Batches
from varangian.core.checks import shown
from varangian.core.draws import ON_GPU, Draws, prefetched
from varangian.core.errors import BadInput
from varangian.core.execution import DEFAULT, Execution, using
from varangian.core.folds import Folds, FoldSampler, fold_sample
from varangian.core.graph import Graph
from varangian.core.ground_truth import Risk
from varangian.core.layout import FEW, by_column, joined
from varangian.core.models.base import Model, Models, Sample
from varangian.core.models.cuda_graphs import graphed
from varangian.core.models.low_precision import LowPrecision
from varangian.core.scene import Byzantine, PerNetwork, Scene, choose_byzantine
from varangian.core.stopwatch import Stopwatch
from varangian.core.task import TEST_LOSS, Divisible, PerAgent, Stream, Task, loss_alone, round_by_round, side_by_side
from varangian.core.wiring import Wiring, check_size, wirer
from varangian.engine.compute.agent_order import AgentOrder, Measure
from varangian.engine.compute.choice import executor_for, with_threads
from varangian.engine.executor import Executor
from varangian.engine.triggers import trigger_test


@dataclass(frozen=True, eq=False)
class World:
    """Everything about a run that does not change during the run."""

    task: Task
    """The task of the first seed. Its model, optimiser, schedule and epoch are used for all seeds."""
    seeds: tuple[int, ...]
    scenes: tuple[Scene, ...]
    draws: Draws
    sender_draws: Draws
    """The draws of all agents that send messages: those above, and in a part of a network also those of others."""
    byzantine_draws: Draws
    sample: Callable[[int], Sample]
    """From the round to its sample."""
    imagined_sample: Callable[[int], Sample]
    """Samples like those of the same round, but other draws: for adversaries that think ahead."""
    folds: Callable[[int], FoldSampler]
    """From a number of folds to the samples of fold models. It fails if the data is not finite."""
    wiring: Callable[[int], Wiring]
    byzantine: Int[Tensor, " byzantine"]
    first_of_byzantine: Models
    """The initial models of Byzantine agents."""
    is_byzantine: Bool[Tensor, " agent"]
    is_normal: Bool[Tensor, "agent 1"]
    listening: Bool[Tensor, "agent 1"]
    """The agents that combine what they hear: normal agents, and with `byzantine_listen` all agents."""
    exact_at: Callable[[int], Callable[[Models], Mapping[str, Float[Tensor, " agent"]]]]
    """What is known exactly about the models after so many rounds; measured every round."""
    held_out: Callable[[Models], Mapping[str, Float[Tensor, " agent"]]]
    """What is measured on held-out data, every epoch."""
    tested: Callable[[Models], Mapping[str, Float[Tensor, " agent"]]]
    """The loss on data that no agent trains on."""
    step_size: Float[Tensor, "agent 1"]
    forgetting: Float[Tensor, "agent 1"]
    skip: Float[Tensor, "agent 1"] | None
    start: Models
    network: Int[Tensor, " agent"]
    """The number of the network that each agent belongs to, if several are side by side."""
    group: Int[Tensor, " agent"]
    """The number of each agent's task; 0 for all if the tasks are not known."""
    agent_order: AgentOrder | None
    """The order of agents in memory. None if they are in the order of their numbers."""
    judging: Model
    """The model with which agents judge neighbours: that of the task, or a version in another number type."""
    execution: Execution
    executor: Executor
    """Computes the functions of a round."""

    def risk_at(self, round: int) -> Risk | None:
        """The true risk of the models after so many rounds, if the task knows it."""
        if self.task.exact is not None:
            exact = self.exact_at(round)
            return lambda models: exact(models)["regret"]
        if self.task.tested is not None:
            return lambda models: self.tested(models)[TEST_LOSS]
        return None

    @property
    def agents(self) -> int:
        return len(self.is_byzantine)

    @property
    def whole(self) -> bool:
        """Whether this world runs all agents that send messages, and not only a part of the network."""
        return len(self.start) == self.agents

    @property
    def model(self) -> Model:
        return self.task.model

    @contextmanager
    def training_randomness(self, round: int) -> Iterator[None]:
        """Seed torch's global generator for a round, if the model uses it (dropout), and restore it afterwards."""
        if not self.model.random:
            yield
            return
        device = self.start.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(int(self.draws.bits("training", torch.tensor([round], device=device), 1)[0, 0, 0]))
            yield

    def step_size_at(self, round: int) -> Float[Tensor, "agent 1"]:
        schedule = self.task.schedule
        return self.step_size if schedule is None else self.step_size * schedule(round)


def prepare(
    scenes: Sequence[Scene],
    seeds: Sequence[int],
    byzantine: Byzantine | PerNetwork,
    execution: Execution = DEFAULT,
    dtype: torch.dtype = torch.float32,
    judge_dtype: str | None = None,
    byzantine_listen: bool = False,
    watch: Stopwatch | None = None,
) -> World:
    """Put the scenes side by side, one for each seed, and choose the Byzantine agents.

    Args:
        scenes: One network for each seed. A scene that stands there several times has the same samples each time.
        seeds: The seeds.
        byzantine: The number of Byzantine agents in each network, or their share, or a list of them.
        execution: Where to compute, and how much of the machine to use.
        dtype: The number type.
        judge_dtype: The number type in which agents judge neighbours. By default the same.
        byzantine_listen: Whether Byzantine agents combine what they hear, too.
        watch: Measures how long it takes to compile functions of the rounds.
    """
    agents, device = scenes[0].task.agents, execution.device
    for scene in scenes:
        if isinstance(scene.graph, Graph):
            check_size(scene.graph, scene.task.agents)
    draws = [Draws.of(seed, agents) for seed in seeds]
    each = byzantine.of if isinstance(byzantine, PerNetwork) else [byzantine] * len(scenes)
    chosen = [choose_byzantine(*of_network) for of_network in zip(each, scenes, draws, strict=True)]
    is_byzantine = torch.zeros(agents * len(seeds), dtype=torch.bool)
    for place, who in enumerate(chosen):
        is_byzantine[place * agents + who] = True
    agent_order = AgentOrder.of(scenes[0], device) if len(scenes) == 1 else None
    reordered = scenes
    if agent_order is not None:
        reordered = [agent_order.reordered(scenes[0])]
        draws = [draws[0].take(agent_order.order)]
        is_byzantine = is_byzantine[agent_order.order]
    everyone = Draws.join(draws).to(device)
    byzantine_rows = torch.nonzero(is_byzantine)[:, 0].to(device)
    wiring = wirer([scene.graph for scene in reordered], agents, is_byzantine, device)
    execution = with_threads(execution, [scene.task for scene in reordered], len(wiring(0).tables))
    executor = executor_for(execution, watch or Stopwatch())
    on_device = {id(scene): placed(scene.task, execution) for scene in reordered}
    tasks = [on_device[id(scene)] for scene in reordered]
    exact_at = round_by_round([task.exact for task in tasks if task.exact is not None], agents, dtype)
    held_out = side_by_side([task.held_out for task in tasks if task.held_out is not None], agents, dtype)
    tested = side_by_side([loss_alone(task.tested) for task in tasks if task.tested is not None], agents, dtype)
    start = torch.cat([start_of(scene, task, dtype, device) for scene, task in zip(reordered, tasks, strict=True)])
    start = stored(start if agent_order is None else start[agent_order.order])

    def column(name: str) -> Tensor:
        values: list[PerAgent] = [getattr(task, name) for task in tasks]
        of_seed = [torch.as_tensor(value, dtype=dtype).expand(agents) for value in values]
        return torch.cat(of_seed)[:, None].to(device)

    skip = column("skip")
    with execution.applied():
        sample = sampler([task.stream for task in tasks], [draw.to(device) for draw in draws], dtype, executor)
    exact: Any = scenes[0].task.exact
    exact_order = None if isinstance(exact, Divisible) else agent_order
    return World(
        task=tasks[0],
        seeds=tuple(seeds),
        scenes=tuple(scenes),
        draws=everyone,
        sender_draws=everyone,
        byzantine_draws=everyone.take(byzantine_rows),
        sample=sample,
        folds=fold_sampler(tasks, [draw.to(device) for draw in draws], dtype, executor),
        imagined_sample=imagined_sampler(tasks, [draw.to(device) for draw in draws], dtype, executor),
        wiring=wiring,
        byzantine=byzantine_rows,
        first_of_byzantine=start[byzantine_rows],
        is_byzantine=is_byzantine.to(device),
        is_normal=~is_byzantine.to(device)[:, None],
        listening=~is_byzantine.to(device)[:, None] | byzantine_listen,
        exact_at=exact_at if exact_order is None else partial(_measure_at, exact_at, exact_order),
        held_out=held_out if agent_order is None else agent_order.wrap_measure(held_out),
        tested=tested if agent_order is None else agent_order.wrap_measure(tested),
        step_size=column("step_size"),
        forgetting=column("forgetting"),
        skip=skip if bool((skip > 0).any()) else None,
        start=start,
        network=torch.arange(len(seeds), device=device).repeat_interleave(agents),
        group=torch.cat([groups_of(task) for task in tasks]).to(device),
        agent_order=agent_order,
        judging=judging_model(scenes[0].task.model, tasks[0].model, judge_dtype, execution),
        execution=execution,
        executor=executor,
    )


def _measure_at(exact_at: Callable[[int], Measure], order: AgentOrder, round: int) -> Measure:
    return order.wrap_measure(exact_at(round))


def judging_model(given: Model, placed: Model, judge_dtype: str | None, execution: Execution) -> Model:
    """The model with which agents judge neighbours: `placed`, or `given` in another number type."""
    if judge_dtype is None:
        return placed
    return graphed(using(LowPrecision.of(given, judge_dtype), execution), execution.device)


def start_of(scene: Scene, task: Task, dtype: torch.dtype, device: torch.device) -> Models:
    """The initial models of a scene: those it was given, or those of its task."""
    of_task = task.model.start(scene.task.agents, dtype, device)  # also when not used: it moves the model to the device
    return of_task if scene.start is None else scene.start.to(dtype=dtype, device=device)


def groups_of(task: Task) -> Int[Tensor, " agent"]:
    """The number of each agent's task; 0 for all if the tasks are not known."""
    return torch.zeros(task.agents, dtype=torch.long) if task.groups is None else torch.as_tensor(task.groups)


def stored(models: Models) -> Models:
    """The models in their best memory order."""
    return by_column(models) if models.shape[1] <= FEW else models


def attacked(world: World, attack: AnyAttack) -> World:
    """The world with what the attack changes in it: the samples of Byzantine agents, and what is measured."""
    return poisoned(with_trigger_test(world, attack), attack)


def with_trigger_test(world: World, attack: AnyAttack) -> World:
    """The world in which the success of the attack's trigger is measured with all else, if it has one."""
    tests = [trigger_test(scene.task, attack, world.execution) for scene in world.scenes]
    given = [test for test in tests if test is not None]
    if not given:
        return world
    tested = side_by_side(given, given[0].agents, world.start.dtype)
    success = tested if world.agent_order is None else world.agent_order.wrap_measure(tested)
    return replace(world, held_out=lambda models: {**world.held_out(models), **success(models)})


def poisoned(world: World, attack: AnyAttack) -> World:
    """The world with the samples of Byzantine agents changed, if the attack poisons data."""
    if not isinstance(attack, Poisons) or not len(world.byzantine):
        return world
    byzantine = torch.nonzero(~world.is_normal[:, 0])[:, 0]
    # Labels come from the whole dataset, or from the first samples of a stream that generates them.
    held = [scene.task.stream.pool.y for scene in world.scenes if isinstance(scene.task.stream, Batches)]
    seen = held or [world.sample(0)[-1]]
    count = 0 if seen[0].is_floating_point() else max(int(labels.max()) for labels in seen) + 1

    def of_byzantine(clean: Sample) -> tuple[Sample, Sample]:
        """The samples of Byzantine agents, and what the attack makes of them."""
        own = tuple(part[byzantine] for part in clean)
        return own, attack.poison(own, count)

    def sample(round: int) -> Sample:
        clean = world.sample(round)
        _, changed = of_byzantine(clean)
        return tuple(part.index_copy(0, byzantine, new) for part, new in zip(clean, changed, strict=True))

    check_poisoned(attack, *of_byzantine(world.sample(0)))
    return replace(world, sample=sample)


def check_poisoned(attack: AnyAttack, clean: Sample, changed: Any) -> None:
    """Refuse a poisoned sample that has other shapes or types than the clean one."""
    wanted = [(tuple(part.shape), part.dtype) for part in clean]
    parts = changed if isinstance(changed, tuple) else (changed,)
    got = [(tuple(part.shape), part.dtype) if isinstance(part, Tensor) else type(part).__name__ for part in parts]
    if got != wanted:
        raise BadInput(f"attack {shown(attack, 100)} poisons a sample of {wanted} into {got}; both must be the same")


def placed(task: Task, execution: Execution) -> Task:
    """The task with its model and its data on the device."""
    device = execution.device
    return replace(
        task,
        model=graphed(using(task.model, execution), device),
        stream=task.stream.to(device),
        exact=task.exact and task.exact.to(device),
        held_out=task.held_out and using(task.held_out.to(device), execution),
    )


def sampler(
    streams: Sequence[Stream], draws: Sequence[Draws], dtype: torch.dtype, executor: Executor
) -> Callable[[int], Sample]:
    """A function from the round to its sample, for several networks side by side. Small samples are prefetched."""
    # The same networks may be there several times, for several cases. Their samples are drawn once.
    networks = [(id(stream), int(own.seed[0])) for stream, own in zip(streams, draws, strict=True)]
    some = len({*networks})
    cases = len(networks) // some if networks == networks[:some] * (len(networks) // some) else 1
    some = len(networks) // cases
    draw = executor.drawer(streams[:some], draws[:some], dtype)
    numbers = cases * sum(part.numel() for part in draw(0, 1))

    def of_rounds(start: int, rounds: int) -> list[Sample]:
        drawn = (joined([part] * cases, rows=1) for part in draw(start, rounds))
        return list(zip(*drawn, strict=True))

    at_once = 2**18 if draws[0].seed.device.type == "cpu" else ON_GPU
    return prefetched(of_rounds, max(1, min(512, at_once // numbers)))


def fold_sampler(
    tasks: Sequence[Task], draws: Sequence[Draws], dtype: torch.dtype, executor: Executor
) -> Callable[[int], FoldSampler]:
    """The samples of fold models, by the number of folds. Nothing is made before the first call."""

    @cache
    def made(count: int) -> FoldSampler:
        folds = [Folds.of(task.stream, count) for task in tasks]
        items = torch.cat([own.data.pool.counts for own in folds])[:, None]
        draw = sampler(folds, draws, dtype, executor)
        return FoldSampler(lambda round: fold_sample(draw(round)), items > 1, items.to(dtype))

    return made


def imagined_sampler(
    tasks: Sequence[Task], draws: Sequence[Draws], dtype: torch.dtype, executor: Executor
) -> Callable[[int], Sample]:
    """As `sampler`, with draws that no run has. Nothing is drawn before the first call."""

    @cache
    def made() -> Callable[[int], Sample]:
        others = [Draws(-1 - own.seed, own.agent) for own in draws]
        return sampler([task.stream for task in tasks], others, dtype, executor)

    return lambda round: made()(round)

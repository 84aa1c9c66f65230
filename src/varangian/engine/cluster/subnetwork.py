"""A network cut into parts. Each part computes the rounds of its own agents, from messages of the other parts.

A part holds the data, models and memories of its own agents, and their tables of neighbours. Slots in these tables
point to rows. There is one row for each agent that the part's agents receive from, in any part, in the order of agent
numbers. Random draws are addressed by agent number, so results do not depend on how the network is cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from varangian.attacks.base import AnyAttack, is_local
from varangian.core.draws import Draws
from varangian.core.errors import BadInput
from varangian.core.execution import DEFAULT, Execution
from varangian.core.graph import Graph, TimeVarying
from varangian.core.models.base import Models
from varangian.core.models.stacked import Stacked
from varangian.core.scene import Byzantine, Scene, choose_byzantine
from varangian.core.stopwatch import Stopwatch
from varangian.core.task import PerAgent, Task, loss_alone, round_by_round, side_by_side
from varangian.core.wiring import wirer
from varangian.engine.compute.choice import executor_for, with_threads
from varangian.engine.world import (
    World,
    fold_sampler,
    groups_of,
    imagined_sampler,
    judging_model,
    placed,
    sampler,
    stored,
)


@dataclass(frozen=True, eq=False)
class Part:
    """Some agents of a network, and all that their rounds need except the messages of other parts."""

    seed: int
    agents: int
    """The number of agents in the whole network."""
    task: Task
    """The task of this part's agents."""
    own: Int[Tensor, " agent"]
    """The numbers of this part's agents. Agents that other parts receive from come first."""
    border: int
    """How many agents of this part other parts receive from."""
    heard: Int[Tensor, " row"]
    """The numbers of all agents that this part's agents receive from, including themselves, in ascending order."""
    byzantine: Bool[Tensor, " row"]
    group: Int[Tensor, " row"]
    graph: Graph | TimeVarying
    """The graph among the agents in `heard`."""
    to: tuple[Int[Tensor, " some"], ...]
    """For each other part, which of this part's agents it receives from."""
    at: tuple[Int[Tensor, " some"], ...]
    """For each other part, the rows of its agents in `heard`."""
    start: Models | None
    """The models that the agents in `heard` start from, if some were given."""
    everyone: bool
    """Whether this part receives the models of all agents, before and after adaptation.

    Attacks in which Byzantine agents observe the whole network need this.
    """

    @property
    def place(self) -> Int[Tensor, " agent"]:
        """The rows of this part's agents."""
        return torch.searchsorted(self.heard, self.own)


def cut(
    scene: Scene, seed: int, byzantine: Byzantine, part_of: Int[Tensor, " agent"], attack: AnyAttack
) -> Iterator[Part]:
    """The parts of a scene; agent k is in part `part_of[k]`.

    If an attack depends only on what its victims receive, every part computes the attack on its own agents. If an
    attack depends on more, or if the graph changes over time, every part receives the models of all agents.

    Args:
        scene: The task and the graph.
        seed: The seed of the run.
        byzantine: Which agents are Byzantine.
        part_of: The part of each agent.
        attack: The attack of the Byzantine agents.
    """
    task, graph, agents = scene.task, scene.graph, scene.task.agents
    is_byzantine = torch.zeros(agents, dtype=torch.bool)
    is_byzantine[choose_byzantine(byzantine, scene, Draws.of(seed, agents))] = True
    static = graph if isinstance(graph, Graph) and (is_local(attack) or not bool(is_byzantine.any())) else None
    count = int(part_of.max()) + 1
    mine = [torch.nonzero(part_of == number)[:, 0] for number in range(count)]
    heard = [torch.arange(agents) if static is None else _heard(static, own) for own in mine]
    sent = [[who[part_of[who] == sender] for sender in range(count)] for who in heard]
    place = torch.empty(agents, dtype=torch.long)
    nobody = torch.empty(0, dtype=torch.long)
    for number, own in enumerate(mine):
        outside = [nobody if other == number else sent[other][number] for other in range(count)]
        border = torch.cat(outside).unique()
        own = torch.cat((border, own[~torch.isin(own, border)]))
        place[own] = torch.arange(len(own))
        who = heard[number]
        yield Part(
            seed=seed,
            agents=agents,
            task=task.part(own),
            own=own,
            border=len(border),
            heard=who,
            byzantine=is_byzantine[who],
            group=groups_of(task)[who],
            graph=graph if static is None else _among(static, who, own),
            to=tuple(place[some] for some in outside),
            at=tuple(
                nobody if other == number else torch.searchsorted(who, sent[number][other]) for other in range(count)
            ),
            start=None if scene.start is None else scene.start[who],
            everyone=static is None,
        )


def _heard(graph: Graph, own: Int[Tensor, " agent"]) -> Int[Tensor, " row"]:
    slots = graph.offsets.diff()[own]
    first = torch.repeat_interleave(graph.offsets[own] - (slots.cumsum(0) - slots), slots)
    heard: Tensor = graph.senders[first + torch.arange(len(first))].unique()
    return heard


def _among(graph: Graph, heard: Int[Tensor, " row"], own: Int[Tensor, " agent"]) -> Graph:
    """The graph among the agents in `heard`. Only agents in `own` have neighbours; others hear only themselves."""
    row = torch.searchsorted(heard, own)
    slots = torch.ones_like(heard).index_copy(0, row, graph.offsets.diff()[own])
    offsets = torch.cat((slots.new_zeros(1), slots.cumsum(0)))
    # The first sender of every agent is the agent itself. Agents of other parts keep only this one.
    first = torch.repeat_interleave(graph.offsets[:-1][heard] - offsets[:-1], slots)
    return Graph(torch.searchsorted(heard, graph.senders[first + torch.arange(len(first))]), offsets)


def world_of(
    part: Part,
    execution: Execution = DEFAULT,
    dtype: torch.dtype = torch.float32,
    judge_dtype: str | None = None,
    byzantine_listen: bool = False,
) -> World:
    """The world in which a part runs. States have one row per agent of the part, messages one per agent in `heard`."""
    if part.task.model.random:
        raise BadInput("a model that draws random numbers while it trains (dropout) cannot be cut; use --engine local")
    agents, device = len(part.own), execution.device
    wiring = wirer([part.graph], len(part.heard), part.byzantine, device, part.place, part.everyone)
    execution = with_threads(execution, [part.task], len(wiring(0).tables))
    executor = executor_for(execution, Stopwatch())
    task = placed(part.task, execution)
    draws, of_rows = (Draws(torch.full_like(who, part.seed), who).to(device) for who in (part.own, part.heard))
    byzantine_rows = torch.nonzero(part.byzantine)[:, 0]
    exact_at = round_by_round([] if task.exact is None else [task.exact], agents, dtype)
    held_out, tested = (
        side_by_side([] if evaluation is None else [evaluation], agents, dtype)
        for evaluation in (task.held_out, task.tested and loss_alone(task.tested))
    )

    def column(value: PerAgent) -> Tensor:
        return torch.as_tensor(value, dtype=dtype).expand(agents)[:, None].to(device)

    skip = column(task.skip)
    return World(
        task=task,
        seeds=(part.seed,),
        scenes=(Scene(part.task, part.graph),),
        draws=draws,
        sender_draws=of_rows,
        byzantine_draws=of_rows.take(byzantine_rows.to(device)),
        sample=sampler([task.stream], [draws], dtype, executor),
        folds=fold_sampler([task], [draws], dtype, executor),
        imagined_sample=imagined_sampler([task], [draws], dtype, executor),
        wiring=wiring,
        byzantine=byzantine_rows.to(device),
        first_of_byzantine=_start(part, part.heard[byzantine_rows], dtype, device),
        is_byzantine=part.byzantine.to(device),
        is_normal=~part.byzantine[part.place][:, None].to(device),
        listening=~part.byzantine[part.place][:, None].to(device) | byzantine_listen,
        exact_at=exact_at,
        held_out=held_out,
        tested=tested,
        step_size=column(task.step_size),
        forgetting=column(task.forgetting),
        skip=skip if bool((skip > 0).any()) else None,
        start=stored(_start(part, part.own, dtype, device)),
        network=torch.zeros(len(part.heard), dtype=torch.long, device=device),
        group=part.group.to(device),
        agent_order=None,
        judging=judging_model(part.task.model, task.model, judge_dtype, execution),
        execution=execution,
        executor=executor,
    )


def _start(part: Part, agents: Int[Tensor, " some"], dtype: torch.dtype, device: torch.device) -> Models:
    """The initial models of these agents.

    All agents with neural networks start from the same model, so only the rows of these agents are made.
    """
    model = part.task.model
    if part.start is not None:
        model.start(0, dtype, device)  # moves the model to the device
        return part.start[torch.searchsorted(part.heard, agents)].to(dtype=dtype, device=device)
    if isinstance(model, Stacked):
        return model.start(len(agents), dtype, device)
    return model.start(part.agents, dtype, device)[agents.to(device)]

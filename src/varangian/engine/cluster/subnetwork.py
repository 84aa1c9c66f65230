"""A network cut into parts, each of which plays the rounds of its own agents from what the others tell it.

A part holds the data, models and memories of its own agents. Its tables of neighbourhoods are theirs; the rows that
slots point to are all whom they hear, wherever those live, in the order of their numbers. Random draws are addressed
by an agent's number, so that a run is the same however it is cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from varangian.attacks.base import AnyAttack, is_local
from varangian.core.draws import Draws
from varangian.core.execution import DEFAULT, Execution
from varangian.core.graph import Graph, TimeVarying
from varangian.core.models.base import Models
from varangian.core.models.stacked import Stacked
from varangian.core.scene import Byzantine, Scene, choose_byzantine
from varangian.core.task import PerAgent, Task, side_by_side
from varangian.core.wiring import wirer
from varangian.engine.compute.choice import executor_for, with_threads
from varangian.engine.world import World, groups_of, judging_model, placed, sampler, stored
from varangian.errors import BadInput


@dataclass(frozen=True, eq=False)
class Part:
    """Some agents of a network, and all that it takes to play their rounds but what the others tell them."""

    seed: int
    agents: int
    """How many the whole network has."""
    task: Task
    """Of its own agents."""
    own: Int[Tensor, " agent"]
    """The numbers of its own agents; those whom other parts hear come first."""
    border: int
    """How many those are."""
    heard: Int[Tensor, " row"]
    """The numbers of all whom its agents hear, themselves included, in order."""
    byzantine: Bool[Tensor, " row"]
    group: Int[Tensor, " row"]
    graph: Graph | TimeVarying
    """Among those who are heard."""
    to: tuple[Int[Tensor, " some"], ...]
    """For every part, which of one's own agents it is told about."""
    at: tuple[Int[Tensor, " some"], ...]
    """For every part, the rows of those of its agents that are heard here."""
    everyone: bool
    """Everybody is heard of, and what everybody was before: for Byzantine agents who listen to the whole network."""

    @property
    def place(self) -> Int[Tensor, " agent"]:
        """The rows of one's own agents."""
        return torch.searchsorted(self.heard, self.own)


def cut(
    scene: Scene, seed: int, byzantine: Byzantine, part_of: Int[Tensor, " agent"], attack: AnyAttack
) -> Iterator[Part]:
    """The parts of a scene, agent k in part `part_of[k]`.

    Where Byzantine agents look only at what their victims hear, every part works out what its own agents are told. An
    attack that looks further, or a graph that changes, makes every part hear of everyone.
    """
    task, graph, agents = scene.task, scene.graph, scene.task.agents
    liars = torch.zeros(agents, dtype=torch.bool)
    liars[choose_byzantine(byzantine, scene, Draws.of(seed, agents))] = True
    static = graph if isinstance(graph, Graph) and (is_local(attack) or not bool(liars.any())) else None
    count = int(part_of.max()) + 1
    mine = [torch.nonzero(part_of == number)[:, 0] for number in range(count)]
    heard = [torch.arange(agents) if static is None else _heard(static, own) for own in mine]
    told = [[who[part_of[who] == sender] for sender in range(count)] for who in heard]
    place = torch.empty(agents, dtype=torch.long)
    nobody = torch.empty(0, dtype=torch.long)
    for number, own in enumerate(mine):
        outside = [nobody if other == number else told[other][number] for other in range(count)]
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
            byzantine=liars[who],
            group=groups_of(task)[who],
            graph=graph if static is None else _among(static, who, own),
            to=tuple(place[some] for some in outside),
            at=tuple(
                nobody if other == number else torch.searchsorted(who, told[number][other]) for other in range(count)
            ),
            everyone=static is None,
        )


def _heard(graph: Graph, own: Int[Tensor, " agent"]) -> Int[Tensor, " row"]:
    slots = graph.offsets.diff()[own]
    first = torch.repeat_interleave(graph.offsets[own] - (slots.cumsum(0) - slots), slots)
    heard: Tensor = graph.senders[first + torch.arange(len(first))].unique()
    return heard


def _among(graph: Graph, heard: Int[Tensor, " row"], own: Int[Tensor, " agent"]) -> Graph:
    """The graph among those who are heard, in which only one's own agents hear anybody but themselves."""
    row = torch.searchsorted(heard, own)
    slots = torch.ones_like(heard).index_copy(0, row, graph.offsets.diff()[own])
    offsets = torch.cat((slots.new_zeros(1), slots.cumsum(0)))
    # Everyone's first sender is itself, which is all that those elsewhere keep.
    first = torch.repeat_interleave(graph.offsets[:-1][heard] - offsets[:-1], slots)
    return Graph(torch.searchsorted(heard, graph.senders[first + torch.arange(len(first))]), offsets)


def world_of(
    part: Part, execution: Execution = DEFAULT, dtype: torch.dtype = torch.float32, judge_dtype: str | None = None
) -> World:
    """A part made ready to run: rows of what agents have are its own, rows of messages are all who are heard."""
    if part.task.model.random:
        raise BadInput("a model that draws random numbers while it trains (dropout) cannot be cut; use --engine local")
    agents, device = len(part.own), execution.device
    wiring = wirer([part.graph], len(part.heard), part.byzantine, device, part.place, part.everyone)
    execution = with_threads(execution, [part.task], len(wiring(0).tables), dtype)
    executor = executor_for(execution)
    task = placed(part.task, execution)
    draws, of_rows = (Draws(torch.full_like(who, part.seed), who).to(device) for who in (part.own, part.heard))
    liar_rows = torch.nonzero(part.byzantine)[:, 0]
    exact, held_out, tested = (
        side_by_side([] if evaluation is None else [evaluation], agents, dtype)
        for evaluation in (task.exact, task.held_out, task.tested)
    )

    def column(value: PerAgent) -> Tensor:
        return torch.as_tensor(value, dtype=dtype).expand(agents)[:, None].to(device)

    skip = column(task.skip)
    return World(
        task=task,
        seeds=(part.seed,),
        scenes=(Scene(part.task, part.graph),),
        draws=draws,
        byzantine_draws=of_rows.take(liar_rows.to(device)),
        sample=sampler([task], [draws], dtype, executor),
        wiring=wiring,
        byzantine=liar_rows.to(device),
        first_of_byzantine=_start(part, part.heard[liar_rows], dtype, device),
        is_byzantine=part.byzantine.to(device),
        is_normal=~part.byzantine[part.place][:, None].to(device),
        exact=exact,
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
    """Where these agents start from; of networks all start from the same, and no more than these need be made."""
    model = part.task.model
    if isinstance(model, Stacked):
        return model.start(len(agents), dtype, device)
    return model.start(part.agents, dtype, device)[agents.to(device)]

"""The round: start reading here.

Every agent adapts its model on its own data (eq. 2), sends it, hears its neighbours' (some of them lies), judges what
it hears on its next sample, and combines what is worth it (eq. 3). Everybody does so at once: models are one matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils._pytree import tree_map

from varangian.attacks.base import Attack, Hidden, Insight, View
from varangian.core.blocks import FEW, by_blocks, each
from varangian.core.graph import Neighbourhoods
from varangian.core.ground_truth import Truth
from varangian.core.inbox import Inbox, Table
from varangian.core.messages import ToAll, ToEach, Told, deliver, finite_rows
from varangian.core.models.base import Models, Sample, own_loss
from varangian.core.wiring import Wiring
from varangian.engine.compute.compile import fused
from varangian.engine.device import addressed
from varangian.engine.kernels.loss_based import loop_for
from varangian.engine.rule_memory import carried
from varangian.engine.state import Heard, Seen, State
from varangian.engine.world import World
from varangian.rules.base import Rule


def begin(world: World, rule: Rule[Any], attack: Attack[Any], round: int = 0) -> State:
    """The state before the first round; at a later one, a state of the right shape to be filled."""
    wiring = world.wiring(max(0, round - 1))
    return State(
        round=round,
        models=world.start,
        sample=world.sample(0),
        fresh=torch.ones_like(world.step_size, dtype=torch.bool),
        optimiser=world.task.optimiser.init(world.start),
        rule=[rule.init(table.blank(world.start.dtype)) for table in wiring.tables],
        attack=attack.init(world.first_of_byzantine[:, : world.model.shared]),
    )


def play_round(world: World, rule: Rule[Any], attack: Attack[Any], state: State) -> tuple[State, Seen]:
    """One round, in the paper's order."""
    adapted, optimiser = adapt(world, state)
    return listen(world, rule, attack, state, adapted, optimiser, Told.by(world.model, adapted, state.models))


def listen(
    world: World,
    rule: Rule[Any],
    attack: Attack[Any],
    state: State,
    adapted: Models,
    optimiser: tuple[Tensor, ...],
    told: Told,
) -> tuple[State, Seen]:
    """The second half of a round: what agents make of what they and their neighbours have adapted."""
    wiring = world.wiring(state.round)
    memory = carried(rule, state.rule, world.wiring(max(0, state.round - 1)), wiring, world.start.dtype)
    sent, attack_state = lie(world, rule, memory, attack, state, adapted, told, wiring)
    delivered = deliver(told.adapted, sent, world.byzantine)
    sample, fresh = next_sample(world, state)
    models, weights, memory = combine(world, rule, memory, wiring, state, Heard(delivered, adapted, sample))
    after = State(state.round + 1, models, sample, fresh, optimiser, memory, attack_state)
    return after, Seen(state.models, wiring, weights)


def adapt(world: World, state: State, agents: slice = slice(None)) -> tuple[Models, tuple[Tensor, ...]]:
    """θ̂_k = θ_k − μ_k ∇ℓ(θ_k; ξ_k) (eq. 2), or what the optimiser makes of it; for some agents, or for all.

    A step that does not lead to finite numbers is not taken: one overflow must not end an agent.
    """

    def step(
        models: Models, sample: Sample, step_size: Tensor, fresh: Tensor, optimiser: tuple[Tensor, ...]
    ) -> tuple[Models, tuple[Tensor, ...]]:
        gradient = world.model.gradient(models, sample)
        stepped, after = world.task.optimiser.update(models, gradient, step_size, optimiser)
        stepped = world.model.settle(stepped, models, sample)
        take = finite_rows(stepped)
        for part in after:
            take = take & finite_rows(part)
        if world.skip is not None:
            take = take & fresh
        kept = [torch.where(take, new, old) for new, old in zip(after, optimiser, strict=True)]
        return torch.where(take, stepped, models), tuple(kept)

    everyones = (state.models, state.sample, world.step_size_at(state.round), state.fresh, state.optimiser)
    parts = tree_map(lambda part: part[agents], everyones) if agents != slice(None) else everyones
    # Few numbers are compiled as one loop over all agents; many are worked on block by block.
    few = world.start.shape[1] <= FEW
    in_blocks = partial(by_blocks, step if few else fused(step, world), whole=world.model.random)
    stepped = fused(step, world, plain=cast(Any, in_blocks)) if few else in_blocks
    with addressed(world, state.round) if world.model.random else nullcontext():
        adapted: tuple[Models, tuple[Tensor, ...]] = stepped(*parts)
    return adapted


def lie(
    world: World,
    rule: Rule[Any],
    memory: Sequence[Any],
    attack: Attack[Any],
    state: State,
    adapted: Models,
    told: Told,
    wiring: Wiring,
) -> tuple[ToAll | ToEach | None, Any]:
    """What Byzantine agents send in place of their adapted models."""
    if not len(world.byzantine):
        return None, state.attack

    def foresee(sent: ToAll | ToEach, other: Rule[Any] | None = None) -> Models:
        heard = Heard(deliver(told.adapted, sent, world.byzantine), adapted, state.sample)
        if other is None or other == rule:
            return combine(world, rule, memory, wiring, state, heard)[0]
        blank = [other.init(table.blank(adapted.dtype)) for table in wiring.tables]
        return combine(world, other, blank, wiring, state, heard)[0]

    def last_loss(models: Models) -> Float[Tensor, " agent"]:
        return own_loss(world.model, models, state.sample)

    view = View(
        round=state.round,
        adapted=told.adapted,
        previous=told.previous,
        byzantine=world.byzantine,
        draws=world.byzantine_draws,
        wiring=wiring.known or wiring,
        network=world.network,
        insight=Insight(world.model, adapted, state.sample, world.risk or last_loss, foresee)
        if world.whole
        else cast(Insight, Hidden()),
    )
    return attack.send(view, state.attack)


def next_sample(world: World, state: State) -> tuple[Sample, Bool[Tensor, "agent 1"]]:
    """The sample to judge on now and to train on next; who goes without keeps the one it has."""
    sample = world.sample(state.round + 1)
    if world.skip is None:
        return sample, state.fresh
    lot = world.draws.uniform("skip", state.round + 1, 1, world.skip.dtype)
    fresh = lot >= world.skip

    def held(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(fresh.view(-1, *[1] * (new.ndim - 1)), new, old)

    return tuple(held(new, old) for new, old in zip(sample, state.sample, strict=True)), fresh


def combine(
    world: World, rule: Rule[Any], memory: Sequence[Any], wiring: Wiring, state: State, heard: Heard
) -> tuple[Models, Sequence[Table | None], Sequence[Any]]:
    """θ_k = Σ_l a_lk θ̂_l (eq. 3), the weights being the rule's; Byzantine agents keep to themselves."""

    def combined(inbox: Inbox, memory: Any, normal: Tensor) -> tuple[Models, Table | None, Any]:
        models, weights, state = rule.combine(inbox, memory)
        return torch.where(finite_rows(models) & normal, models, inbox.own), weights, state

    def of_table(table: Neighbourhoods, source: Tensor, memory: Any) -> tuple[Models, Table | None, Any]:
        inbox = inbox_of(world, wiring, table, source, state, heard)
        return fast(inbox, memory, table.rows_of(world.is_normal))

    loop = loop_for(world, rule)
    if loop is not None:
        return loop(world, wiring, memory, state, heard)
    fast = fused(combined, world, rule)
    models, weights, states = zip(
        *each(of_table, wiring.tables, wiring.sources(heard.delivered), memory, device=world.start.device), strict=True
    )
    return wiring.everyones(models), weights, states


def inbox_of(
    world: World,
    wiring: Wiring,
    table: Neighbourhoods,
    source: Int[Tensor, "agent slot"],
    state: State,
    heard: Heard,
) -> Inbox:
    """What each agent of a table sees."""
    of, delivered = table.rows_of, heard.delivered
    return Inbox(
        model=world.judging,
        rows=delivered.rows,
        source=source,
        heard=delivered.heard(source, table),
        own=of(heard.adapted),
        previous=of(state.models),
        samples={"next": tuple(map(of, heard.sample)), "same": tuple(map(of, state.sample))},
        judged_on=world.task.judge,
        forgetting=of(world.forgetting),
        step_size=of(world.step_size_at(state.round)),
        truth=Truth(table, heard.adapted, world.group, wiring.normal, world.risk),
        dense=table.dense,
        alike=table.complete and not delivered.two_faced,
        private_rows=len(delivered.rows) - world.agents,
        round=state.round,
    )

"""The round: start reading here.

Every agent adapts its model on its own data (eq. 2) and sends it to its neighbours. It judges the models it hears, some
from Byzantine agents, on its next sample, and combines the good ones (eq. 3). All agents do so at once: their models
are one matrix, one row per agent. This page says what is computed; `world.executor` decides how.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.utils._pytree import tree_map

from varangian.attacks.base import Attack, Insight, View
from varangian.core.exchange import Exchange
from varangian.core.inbox import Inbox
from varangian.core.layout import rows_where
from varangian.core.messages import HonestMessages, ToAll, ToEach, deliver, finite_rows
from varangian.core.models.base import Models, Sample
from varangian.core.wiring import Wiring
from varangian.engine.executor import Combined, CombinedNetwork
from varangian.engine.foresight import insight_of
from varangian.engine.rule_memory import carried_over
from varangian.engine.state import Seen, State, exchange_of, second_after, with_second, with_second_adapted
from varangian.engine.world import World
from varangian.rules.base import Rule


def play_round(world: World, rule: Rule[Any], attack: Attack[Any], state: State) -> tuple[State, Seen]:
    """One round, in the paper's order."""
    adapted, optimiser = adapt(world, state)
    return listen(world, rule, attack, state, adapted, optimiser, HonestMessages.of(world.model, adapted, state.models))


def listen(
    world: World,
    rule: Rule[Any],
    attack: Attack[Any],
    state: State,
    adapted: Models,
    optimiser: tuple[Tensor, ...],
    honest: HonestMessages,
) -> tuple[State, Seen]:
    """The second half of a round, after all agents have adapted. `honest` is what honest agents would send."""
    before, wiring = state.used, world.wiring(state.round)
    state = with_second_adapted(world, state, adapted, optimiser, partial(adapt, world))
    memory = carried_over(rule, state.rule, world.wiring(max(0, state.round - 1)), wiring, world.start.dtype)
    sent, attack_state = byzantine_messages(world, rule, memory, attack, state, adapted, honest, wiring)
    delivered = deliver(honest.adapted, sent, world.byzantine)
    sample, fresh = next_sample(world, state)
    exchange = exchange_of(world, state, adapted, delivered, sample, fresh)
    models, weights, memory, personal = combine(world, rule, memory, exchange)
    second = second_after(state, personal)
    after = State(state.round + 1, models, sample, fresh, optimiser, memory, attack_state, second)
    return after, Seen(before, wiring, weights)


def adapt(world: World, state: State, agents: slice = slice(None)) -> tuple[Models, tuple[Tensor, ...]]:
    """θ̂_k = θ_k − μ_k ∇ℓ(θ_k; ξ_k) (eq. 2), or the step of another optimiser; for some agents, or for all.

    A step that does not lead to finite numbers is not taken: one overflow must not stop an agent for good.
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
        kept = [rows_where(take, new, old) for new, old in zip(after, optimiser, strict=True)]
        return rows_where(take, stepped, models), tuple(kept)

    everyone = (state.models, state.sample, world.step_size_at(state.round), state.fresh, state.optimiser)
    some = everyone if agents == slice(None) else tree_map(lambda part: part[agents], everyone)
    with world.training_randomness(state.round):
        adapted: tuple[Models, tuple[Tensor, ...]] = world.executor.per_agent(step, *some, whole=world.model.random)
    return adapted


def byzantine_messages(
    world: World,
    rule: Rule[Any],
    memory: Sequence[Any],
    attack: Attack[Any],
    state: State,
    adapted: Models,
    honest: HonestMessages,
    wiring: Wiring,
) -> tuple[ToAll | ToEach | None, Any]:
    """What Byzantine agents send instead of their adapted models."""
    if not len(world.byzantine):
        return None, state.attack

    insight = insight_of(world, rule, memory, state, adapted, honest, play_round, next_sample)
    view = View(
        round=state.round,
        adapted=honest.adapted,
        previous=honest.previous,
        byzantine=world.byzantine,
        draws=world.byzantine_draws,
        wiring=wiring.known or wiring,
        network=world.network,
        insight=insight if world.whole else Insight.hidden(),
        sizes=world.model.sizes,
    )
    return attack.send(view, state.attack)


def next_sample(world: World, state: State) -> tuple[Sample, Bool[Tensor, "agent 1"]]:
    """The sample to judge on now and to train on next, and who trains on it. The others keep their last sample."""
    sample = world.sample(state.round + 1)
    if world.skip is None:
        return sample, state.fresh
    fresh = world.draws.uniform("skip", state.round + 1, 1, world.skip.dtype) >= world.skip
    if world.task.stale == "skipped":
        return sample, fresh

    def kept(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(fresh.view(-1, *[1] * (new.ndim - 1)), new, old)

    return tuple(kept(new, old) for new, old in zip(sample, state.sample, strict=True)), fresh


def combine(world: World, rule: Rule[Any], memory: Sequence[Any], exchange: Exchange) -> CombinedNetwork:
    """θ_k = Σ_l a_lk θ̂_l (eq. 3), with the rule's weights. Agents that do not listen keep their own models."""

    def combined(inbox: Inbox, memory: Any, listening: Tensor) -> Combined:
        models, weights, after, personal = rule.combine(inbox, memory)
        if personal is not None:
            personal = rows_where(finite_rows(personal) & listening, personal, inbox.personal.now)
        return rows_where(finite_rows(models) & listening, models, inbox.own), weights, after, personal

    return world.executor.per_table(rule, combined, with_second(exchange, rule), memory)

"""What an omniscient adversary knows, and what it can try before it sends.

It can try many messages at once, and it can play several rounds ahead. All trials of a round differ only in what
Byzantine agents send. So the honest messages are judged once for all trials, and every trial adds one more message per
victim. The rule itself is applied as in the round, to one inbox that holds the victims of all trials.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils._pytree import tree_map

from varangian.attacks.base import AnyAttack, Insight, Rehearsed
from varangian.core.draws import PairDraws
from varangian.core.exchange import Exchange
from varangian.core.execution import DEFAULT, Execution
from varangian.core.graph import Neighbourhoods
from varangian.core.ground_truth import Truth
from varangian.core.inbox import Change, Inbox, OfNeighbourhoods, SecondModel, Table
from varangian.core.messages import HonestMessages, ToAll, ToEach, deliver, finite_rows
from varangian.core.models.base import Models, Sample, own_loss
from varangian.core.task import SampleKind, takes_trials
from varangian.engine.compute.evaluator import Fast
from varangian.engine.rule_memory import initial_memory
from varangian.engine.state import State, exchange_of, with_second
from varangian.engine.world import World
from varangian.rules.base import Combined, Rule

Trials = Float[Tensor, "trial agent shared"]
"""For each trial, what every agent hears from all its Byzantine neighbours."""

_AT_ONCE = 2**24
"""How many numbers of messages to try at a time."""


def insight_of(
    world: World,
    rule: Rule[Any],
    memory: Sequence[Any],
    state: State,
    adapted: Models,
    honest: HonestMessages,
    play_round: Callable[[World, Rule[Any], AnyAttack, State], tuple[State, Any]],
    next_sample: Callable[[World, State], tuple[Sample, Any]],
) -> Insight:
    """What an omniscient adversary knows in this round.

    Args:
        world: The network.
        rule: The rule of the agents.
        memory: What it remembers, one entry per table.
        state: The state before the round.
        adapted: The models after adapting.
        honest: What honest agents send.
        play_round: Plays one round.
        next_sample: The sample on which agents will judge.
    """
    wiring = world.wiring(state.round)

    def with_memory(other: Rule[Any] | None) -> tuple[Rule[Any], Sequence[Any]]:
        if other is None or other == rule:
            return rule, memory
        return other, initial_memory(other, wiring, adapted.dtype)

    def exchange(sent: ToAll | ToEach | None) -> Exchange:
        delivered = deliver(honest.adapted, sent, world.byzantine)
        return exchange_of(world, state, adapted, delivered, state.sample, torch.ones_like(state.fresh))

    def foresee(sent: ToAll | ToEach, other: Rule[Any] | None = None) -> Models:
        tried, remembered = with_memory(other)
        return _outcome(with_second(exchange(sent), tried), tried, remembered, world.execution)

    def foresee_each(told: Trials, other: Rule[Any] | None = None) -> Float[Tensor, "trial agent parameter"]:
        tried, remembered = with_memory(other)
        return outcomes(with_second(exchange(None), tried), tried, remembered, told, world.execution)

    def rehearse(attack: AnyAttack, attack_state: Any, rounds: int) -> Rehearsed:
        imagined = replace(world, sample=world.imagined_sample)

        def played(future: State, rounds: int) -> Rehearsed:
            for _ in range(rounds):
                future, _ = play_round(imagined, rule, attack, future)
            return Rehearsed(future.used, partial(played, future))

        return played(state._replace(attack=attack_state), rounds)

    true_risk = world.risk_at(state.round + 1)

    def risk(models: Float[Tensor, "*trial agent parameter"]) -> Float[Tensor, "*trial agent"]:
        # A measure that puts agents in another order takes one trial at a time.
        if models.ndim > 2 and (world.agent_order or not takes_trials(world.task.exact or world.task.tested)):
            return torch.stack([risk(of_trial) for of_trial in models])
        return true_risk(models) if true_risk is not None else own_loss(world.model, models, state.sample)

    return Insight(
        model=world.model,
        models=adapted,
        sample=state.sample,
        risk=risk,
        foresee=foresee,
        foresee_each=foresee_each,
        rehearse=rehearse,
        upcoming=lambda: next_sample(world, state)[0],
    )


def _outcome(exchange: Exchange, rule: Rule[Any], memory: Sequence[Any], execution: Execution) -> Models:
    """The models that agents would combine."""
    wiring, out = exchange.wiring, list[Models]()
    private_rows = len(exchange.delivered.rows) - wiring.graph.agents
    for table, source, of_table in zip(wiring.tables, wiring.sources(exchange.delivered), memory, strict=True):
        inbox = exchange.inbox(table, source, Fast(execution, table.dense, private_rows=private_rows))
        out.append(_used(rule.combine(inbox, of_table), inbox))
    return torch.where(exchange.listening, wiring.join_tables(out), exchange.adapted)


def _used(combined: Combined[Any], inbox: Inbox) -> Models:
    """The models that agents would use: the combined ones, or the personal ones beside them."""
    if combined.personal is not None:
        return torch.where(finite_rows(combined.personal), combined.personal, inbox.personal.now)
    return torch.where(finite_rows(combined.models), combined.models, inbox.own)


def outcomes(
    exchange: Exchange, rule: Rule[Any], memory: Sequence[Any], told: Trials, execution: Execution = DEFAULT
) -> Float[Tensor, "trial agent parameter"]:
    """The models that agents would combine in each trial.

    Args:
        exchange: The round in which Byzantine agents send what honest ones would. The trials take its place.
        rule: The rule of the agents.
        memory: What it remembers, one entry per table.
        told: The messages of the trials. A message that is not finite counts as silence.
        execution: How much memory to use.
    """
    some = max(1, execution.numbers_at_once(_AT_ONCE) // told[0].numel())
    return torch.cat([_outcomes(exchange, rule, memory, part, execution) for part in told.split(some)])


def _outcomes(
    exchange: Exchange, rule: Rule[Any], memory: Sequence[Any], told: Trials, execution: Execution
) -> Float[Tensor, "trial agent parameter"]:
    wiring, out = exchange.wiring, []
    for table, lying, of_table in zip(wiring.tables, wiring.from_byzantine, memory, strict=True):
        inbox = _inbox(exchange, table, lying, told, execution)
        models = _used(rule.combine(inbox, tree_map(lambda leaf: _repeated(leaf, len(told)), of_table)), inbox)
        out.append(models.unflatten(0, (len(told), -1)).transpose(0, 1))
    combined = wiring.join_tables(out).transpose(0, 1)
    return torch.where(exchange.listening, combined, exchange.adapted)


def _inbox(
    exchange: Exchange, table: Neighbourhoods, lying: Bool[Tensor, "agent slot"], told: Trials, execution: Execution
) -> Inbox:
    """The inbox of all victims of a table in all trials, trial after trial."""
    trials, agents = told.shape[:2]
    fast = Fast(execution, table.dense)
    honest = exchange.inbox(table, table.senders, fast)
    arrived = finite_rows(told.flatten(0, 1)).view(trials, agents)
    clean = torch.where(arrived[:, :, None], told, 0)
    places = agents + torch.arange(trials * agents, device=told.device).view(trials, agents)

    def of_table(values: Tensor) -> Tensor:
        """The rows of this table, from a tensor (trial, agent, …)."""
        return torch.stack([table.rows_of(part) for part in values])

    everyone = torch.where(lying, of_table(places)[:, :, None], table.senders).flatten(0, 1)
    heard = table.present & (of_table(arrived)[:, :, None] | ~lying)
    return replace(
        honest,
        own=_repeated(honest.own, trials),
        previous=_repeated(honest.previous, trials),
        fresh=_repeated(honest.fresh, trials),
        trained=_repeated(honest.trained, trials),
        step_size=_repeated(honest.step_size, trials),
        forgetting=_repeated(table.rows_of(exchange.forgetting), trials),
        rows=torch.cat((honest.rows, clean.flatten(0, 1))),
        source=everyone,
        heard=heard.flatten(0, 1),
        samples={on: tuple(_repeated(part, trials) for part in sample) for on, sample in honest.samples.items()},
        truth=_truth(honest.truth, table, trials),
        second=honest.second and SecondModel(*(_repeated(models, trials) for models in honest.second)),
        folds=honest.folds and tree_map(lambda part: _repeated(part, trials), honest.folds),
        pairs=PairDraws(exchange.draws, _repeated(table.receivers, trials), _repeated(table.senders, trials)),
        evaluator=Tried(fast, honest, lying, of_table(clean), everyone),
    )


def _truth(truth: Truth, table: Neighbourhoods, trials: int) -> Truth:
    """The truth about the agents of all trials. Senders and receivers keep their numbers."""
    agents, risk = len(truth.everyone), truth.risk_of_everyone
    first = torch.arange(trials, device=table.rows.device)[:, None] * agents
    wide = replace(
        table,
        receivers=_repeated(table.receivers, trials),
        senders=_repeated(table.senders, trials),
        present=_repeated(table.present, trials),
        rows=(first + table.rows).flatten(),
        span=None,
        everyone=False,
    )
    of_all = None if risk is None else lambda models: torch.cat([risk(part) for part in models.split(agents)])
    return replace(truth, table=wide, everyone=_repeated(truth.everyone, trials), risk_of_everyone=of_all)


def _repeated(values: Tensor, times: int) -> Tensor:
    return values.repeat(times, *[1] * (values.ndim - 1))


@dataclass(frozen=True, eq=False)
class Tried:
    """Computes the numbers of an inbox of trials. What concerns honest messages is computed once for all trials."""

    fast: Fast
    honest: Inbox
    """The inbox of the victims in one trial, in which Byzantine agents send what honest ones would."""
    lying: Bool[Tensor, "victim slot"]
    told: Float[Tensor, "trial victim shared"]
    source: Int[Tensor, "agent slot"]
    """The slots of the inbox. A rule may put them in another order, and then nothing is known beforehand."""

    def loss(self, inbox: Inbox, on: SampleKind) -> Table:
        if inbox.source is not self.source:
            return self._plain.loss(inbox, on)
        return self._losses(self.honest, on).flatten(0, 1)

    def loss_where(self, inbox: Inbox, due: Bool[Tensor, "agent slot"], on: SampleKind, part: float) -> Table:
        if inbox.source is not self.source:
            return self._plain.loss_where(inbox, due, on, part)
        return inbox.known(torch.where(due, self._losses(self.honest.on_part(part), on).flatten(0, 1), torch.inf))

    def _losses(self, honest: Inbox, on: SampleKind) -> Float[Tensor, "trial victim slot"]:
        sample: Sample = honest.samples[on]
        messages: Models = honest.whole(self.told.transpose(0, 1))
        of_told = honest.model.judge(messages, sample).T
        return torch.where(self.lying, of_told[:, :, None], honest.loss(on))

    def mix(self, inbox: Inbox, weights: Table) -> Float[Tensor, "agent shared"]:
        if inbox.source is not self.source:
            return self._plain.mix(inbox, weights)
        of_trial = weights.unflatten(0, (len(self.told), -1)).transpose(0, 1)
        from_honest = (of_trial * ~self.lying[:, None]) @ self.honest.received()
        from_told = (of_trial * self.lying[:, None]).sum(2, keepdim=True) * self.told.transpose(0, 1)
        mixed: Tensor = (from_honest + from_told).transpose(0, 1).flatten(0, 1)
        return mixed

    def loss_of(self, inbox: Inbox, change: Change, on: SampleKind) -> Table:
        return self._plain.loss_of(inbox, change, on)

    def distance(self, inbox: Inbox, target: Float[Tensor, "agent shared"], p: float) -> Table:
        return self._plain.distance(inbox, target, p)

    def by_neighbourhood(
        self, inbox: Inbox, function: OfNeighbourhoods, of_agents: tuple[Tensor, ...], any_order: bool
    ) -> Float[Tensor, "agent out"]:
        return self._plain.by_neighbourhood(inbox, function, of_agents, any_order)

    def for_single_slots(self) -> Fast:
        return self.fast.for_single_slots()

    @property
    def _plain(self) -> Fast:
        return replace(self.fast, dense=False)

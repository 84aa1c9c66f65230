"""What some agents see of their neighbours in one round.

Values per neighbour are tables of (agent, slot), in which slot 0 is the agent itself. Losses and distances are computed
when a rule first uses them; rules that do not use them do not pay for them. A slot without a message has infinite loss
and distance, so that it is the worst in any comparison.

An inbox is data. An `Evaluator` computes its numbers. `Direct` follows the definitions; executors have faster ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import embedding

from varangian.core.draws import PairDraws
from varangian.core.errors import BadInput
from varangian.core.ground_truth import Truth
from varangian.core.models.base import Model, Models, Sample
from varangian.core.task import JudgedOn, SampleKind

Table = Float[Tensor, "agent slot"]

OfNeighbourhoods = Callable[..., Float[Tensor, "some out"]]
"""A function of the messages (some, slot, shared), the mask of slots heard (some, slot), and values per agent."""
Change = Callable[[Float[Tensor, "some piece shared"], slice], Float[Tensor, "some piece shared"]]
"""From messages, and the agents that receive them, to models of the same shape."""


class SecondModel(NamedTuple):
    """The second model of some agents. It is never sent."""

    now: Models
    """After training."""
    before: Models
    """Before training."""


class FoldModels(NamedTuple):
    """Models of some agents, each trained without one fold of the agent's items. They never listen: see `folds`."""

    models: tuple[Models, ...]
    """For each fold, the models that were trained without it."""
    samples: tuple[tuple[Sample, ...], ...]
    """For each fold, some of its items, one at a time. The `unseen` sample holds them all."""
    items: Float[Tensor, "agent 1"]
    """How many items each agent has."""


class Evaluator(Protocol):
    """Computes the numbers of an inbox. It has the methods of `Inbox`, without default arguments."""

    def loss(self, inbox: Inbox, on: SampleKind) -> Table: ...

    def loss_where(self, inbox: Inbox, due: Bool[Tensor, "agent slot"], on: SampleKind, part: float) -> Table: ...

    def loss_of(self, inbox: Inbox, change: Change, on: SampleKind) -> Table: ...

    def distance(self, inbox: Inbox, target: Float[Tensor, "agent shared"], p: float) -> Table: ...

    def mix(self, inbox: Inbox, weights: Table) -> Float[Tensor, "agent shared"]: ...

    def by_neighbourhood(
        self, inbox: Inbox, function: OfNeighbourhoods, of_agents: tuple[Tensor, ...], any_order: bool
    ) -> Float[Tensor, "agent out"]: ...

    def for_single_slots(self) -> Evaluator:
        """An evaluator for an inbox in which no two slots share a row."""
        ...


@dataclass(frozen=True)
class Direct:
    """Computes every number by its definition, from all messages at once."""

    def loss(self, inbox: Inbox, on: SampleKind) -> Table:
        return inbox.model.judge(inbox.whole(inbox.received()), inbox.samples[on])

    def loss_where(self, inbox: Inbox, due: Bool[Tensor, "agent slot"], on: SampleKind, part: float) -> Table:
        return torch.where(due, inbox.on_part(part).loss(on), math.inf)

    def loss_of(self, inbox: Inbox, change: Change, on: SampleKind) -> Table:
        return inbox.model.judge(inbox.whole(change(inbox.received(), slice(None))), inbox.samples[on])

    def distance(self, inbox: Inbox, target: Float[Tensor, "agent shared"], p: float) -> Table:
        distance: Tensor = torch.linalg.vector_norm(target[:, None] - inbox.received(), p, dim=2)
        return distance

    def mix(self, inbox: Inbox, weights: Table) -> Float[Tensor, "agent shared"]:
        mixed: Tensor = (weights[:, :, None] * inbox.received()).sum(1)
        return mixed

    def by_neighbourhood(
        self, inbox: Inbox, function: OfNeighbourhoods, of_agents: tuple[Tensor, ...], any_order: bool
    ) -> Float[Tensor, "agent out"]:
        return function(inbox.received(), inbox.heard, *of_agents)

    def for_single_slots(self) -> Direct:
        return self


DIRECT = Direct()


@dataclass(frozen=True, eq=False)
class Inbox:
    """The messages of one round as their receivers see them."""

    model: Model
    rows: Float[Tensor, "row shared"]
    """All messages after the check on arrival. They are finite; rows without a valid message are zero."""
    source: Int[Tensor, "agent slot"]
    """The row that each slot received; slot 0 is the agent's own message."""
    heard: Bool[Tensor, "agent slot"]
    """Which slots received a valid message."""
    own: Models
    """θ̂_k: the agent's own model after adapting."""
    previous: Models
    """θ_k of the previous round."""
    samples: Mapping[SampleKind, Sample]
    fresh: Bool[Tensor, "agent 1"]
    """Which agents have a next sample that they have not trained on. The others have no sample to judge on."""
    trained: Bool[Tensor, "agent 1"]
    """The same for the sample just trained on: which agents had a new one in this round."""
    judged_on: JudgedOn
    forgetting: float | Float[Tensor, "agent 1"]
    step_size: Float[Tensor, "agent 1"]
    truth: Truth = field(repr=False)
    """What no agent can know; only clairvoyant reference rules use it."""
    round: int = 0
    pairs: PairDraws | None = field(default=None, repr=False)
    """Where random numbers per slot come from."""
    second: SecondModel | None = field(default=None, repr=False)
    """The agents' second models, if the rule asks for them."""
    folds: FoldModels | None = field(default=None, repr=False)
    """The agents' fold models, if the rule asks for them."""
    evaluator: Evaluator = field(default=DIRECT, repr=False)
    _computed: dict[str, Tensor] = field(default_factory=dict[str, Tensor], init=False, repr=False)

    def loss(self, on: SampleKind | None = None) -> Table:
        """ℓ(θ̂_l; ξ_k): the loss of each neighbour's model on the agent's own data; infinite where it is nan.

        It is also infinite for agents without a new sample: `of_fresh` says why.
        """
        on = on or self.judged_on
        return self.once(f"loss on {on}", lambda: self.known(self.of_fresh(self.evaluator.loss(self, on), on)))

    def loss_where(self, due: Bool[Tensor, "agent slot"], on: SampleKind | None = None, part: float = 1.0) -> Table:
        """`loss` in the slots where `due` is true, on a part of the batch; infinite elsewhere.

        This computes little more than the losses that are due. On a GPU, the program has to wait for their number.
        """
        on = on or self.judged_on
        return self.evaluator.loss_where(self, due & self.heard & self.has_fresh(on), on, part)

    def loss_of(self, change: Change, on: SampleKind | None = None) -> Table:
        """ℓ(change(θ̂_l); ξ_k): the loss of a model made from each message; infinite where it is nan."""
        on = on or self.judged_on
        return self.known(self.of_fresh(self.evaluator.loss_of(self, change, on), on))

    @property
    def anchor(self) -> Models:
        """The model that each agent would have alone, after its step. For rules with `companion = "alone"`."""
        return self.personal.now

    @property
    def personal(self) -> SecondModel:
        """Each agent's personal model, before and after its step. For rules with `companion = "personal"`."""
        if self.second is None:
            raise BadInput("this rule uses a second model, but does not ask for one; set its attribute companion")
        return self.second

    def anchor_loss(self, on: SampleKind | None = None) -> Float[Tensor, "agent 1"]:
        """ℓ(a_k; ξ_k): the loss of the anchor on the agent's own data; infinite where it is nan.

        It is also infinite for agents without a new sample, as `loss` is.
        """
        on = on or self.judged_on

        def judged() -> Tensor:
            loss = self.of_fresh(self.model.judge(self.anchor[:, None], self.samples[on]), on)
            return loss.nan_to_num_(math.inf, math.inf, math.inf)

        return self.once(f"loss of the anchor on {on}", judged)

    @property
    def cross_fitted(self) -> FoldModels:
        """Each agent's fold models. For rules that say how many `folds` they need."""
        if self.folds is None:
            raise BadInput("this rule uses fold models, but does not ask for them; set its attribute folds")
        return self.folds

    def unseen_losses(self) -> Float[Tensor, "item agent slot"]:
        """ℓ(θ̂_l; ξ) for each item ξ of the `unseen` sample, which has as many items of every fold.

        Messages are completed with private parameters that have not been trained on the items: those of the fold
        models. An agent's own private parameters have.
        """
        folds = self.cross_fitted
        all_shared = self.rows.shape[1] == self.own.shape[1]
        evaluator = self.evaluator if all_shared else self.evaluator.for_single_slots()

        def judged() -> Tensor:
            inboxes = (
                replace(self, own=self.own if all_shared else own, samples={"unseen": item}, evaluator=evaluator)
                for own, items in zip(folds.models, folds.samples, strict=True)
                for item in items
            )
            return torch.stack([inbox.loss("unseen") for inbox in inboxes])

        return self.once("losses on unseen items", judged)

    def unseen_anchor_losses(self) -> Float[Tensor, "item agent 1"]:
        """The cross-fitted losses: each item of the `unseen` sample is judged by the model that was trained without it.

        They are infinite where they are nan.
        """

        def judged() -> Tensor:
            folds = zip(self.cross_fitted.models, self.cross_fitted.samples, strict=True)
            losses = [self.model.judge(own[:, None], item) for own, items in folds for item in items]
            return torch.stack(losses).nan_to_num_(math.inf, math.inf, math.inf)

        return self.once("cross-fitted losses", judged)

    def distance(self, target: Models, p: float = 2.0) -> Table:
        """‖target_k − θ̂_l‖_p, over the shared parameters."""
        return self.known(self.evaluator.distance(self, target[:, : self.rows.shape[1]], p))

    def mix(self, weights: Table) -> Models:
        """Σ_l a_lk θ̂_l (eq. 3). Private parameters stay the agent's own."""
        return self.with_private(self.evaluator.mix(self, weights))

    def mix_with_anchor(self, weights: Table, of_anchor: Float[Tensor, "agent 1"]) -> Models:
        """Σ_l a_lk θ̂_l + b_k a_k. Messages come with the agent's own private parameters, the anchor with its own."""
        anchor, shared = self.anchor, self.rows.shape[1]
        models = self.evaluator.mix(self, weights) + of_anchor * anchor[:, :shared]
        if shared == self.own.shape[1]:
            return models
        return torch.cat((models, torch.lerp(self.own[:, shared:], anchor[:, shared:], of_anchor)), 1)

    def by_neighbourhood(
        self, function: OfNeighbourhoods, *of_agents: Tensor, any_order: bool = False
    ) -> Float[Tensor, "agent out"]:
        """`function(messages, heard, *of_agents)` for all agents, as many at a time as memory allows.

        Messages have the shape (some agents, slot, shared), and slot 0 is the agent's own message. Slots where the
        mask `heard` is false hold finite numbers without a meaning. With `any_order`, the function must not depend on
        the order of the neighbours. If all agents hear the same messages, it is then computed only once, and its
        argument `heard` may be None.

            f = tolerated(0.2, inbox.heard)
            shared = inbox.by_neighbourhood(lambda messages, heard, f: robust.krum(messages, f, mask=heard), f)
        """
        return self.evaluator.by_neighbourhood(self, function, of_agents, any_order)

    def one_step_ahead(self) -> Models:
        """θ̂_k + μ_k ∇ℓ(θ̂_k; ξ_k), on the sample that the agent has just trained on."""
        return self.own.addcmul(self.step_size, self.model.gradient(self.own, self.samples["same"]))

    def random(self, purpose: str) -> Table:
        """A random number in [0, 1) for every slot. It depends on (seed, purpose, round, receiver, sender) only."""
        if self.pairs is None:
            raise BadInput("this inbox has no random numbers; a rule that draws some cannot be used here")
        return self.pairs.uniform(purpose, self.round, self.own.dtype)

    def in_order(self, order: Int[Tensor, "agent slot"]) -> Inbox:
        """The same messages with their slots in another order. Slot 0 must stay the agent itself."""
        pairs = self.pairs and replace(self.pairs, senders=self.pairs.senders.gather(1, order))
        return replace(self, source=self.source.gather(1, order), heard=self.heard.gather(1, order), pairs=pairs)

    def with_messages(self, messages: Float[Tensor, "agent slot shared"], heard: Bool[Tensor, "agent slot"]) -> Inbox:
        """The inbox that agents would have if they had received these messages; slot 0 is still their own.

        Rules around rules use it to change messages before another rule sees them. It holds all messages at once.
        """
        rows = messages.flatten(0, 1)
        source = torch.arange(len(rows), device=rows.device).view(heard.shape)
        evaluator = self.evaluator.for_single_slots()
        # With other slots, the numbers of the senders say nothing about a slot.
        pairs = self.pairs if heard.shape == self.heard.shape else None
        return replace(self, rows=rows, source=source, heard=heard, evaluator=evaluator, pairs=pairs)

    def received(self) -> Float[Tensor, "agent slot shared"]:
        """The message of every slot. This can be large: agents × slots × parameters."""
        return embedding(self.source, self.rows)

    def on_part(self, part: float) -> Inbox:
        """The same inbox with only the first items of every agent's batch; `part` is their share."""
        if part == 1:
            return self
        samples = {on: part_of_batch(sample, part) for on, sample in self.samples.items()}
        return replace(self, samples=samples)

    def with_private(self, shared: Float[Tensor, "agent shared"]) -> Models:
        """Complete models: the given shared part, and the agents' own private part."""
        if shared.shape[1] == self.own.shape[1]:
            return shared
        return torch.cat((shared, self.own[:, shared.shape[1] :]), dim=1)

    def whole(
        self, shared: Float[Tensor, "some piece shared"], agents: slice = slice(None)
    ) -> Float[Tensor, "some piece parameter"]:
        """Messages to some agents, completed with the private parameters of the receivers."""
        private = self.own[agents, None, shared.shape[2] :]
        if not private.shape[2]:
            return shared
        return torch.cat((shared, private.expand(-1, shared.shape[1], -1)), dim=2)

    def once(self, name: str, compute: Callable[[], Tensor]) -> Tensor:
        """The result of `compute`, cached under this name. A changed copy of the inbox starts with an empty cache."""
        if name not in self._computed:
            self._computed[name] = compute()
        return self._computed[name]

    def has_fresh(self, on: SampleKind) -> Bool[Tensor, "agent 1"]:
        """Which agents have a new sample of this kind. Items that a fold model has not seen are always new to it."""
        if on == "unseen":
            return torch.ones_like(self.fresh)
        return self.fresh if on == "next" else self.trained

    def of_fresh(self, loss: Float[Tensor, "agent several"], on: SampleKind) -> Float[Tensor, "agent several"]:
        """The losses of agents that have a new sample; infinite for the others.

        An old sample is one that the agent has trained on and that a sender may know by heart. All losses pass through
        here. So every rule that judges sees no evidence for an agent without a new sample: its memory stays as it is,
        and the agent keeps its own model.
        """
        return torch.where(self.has_fresh(on), loss, math.inf)

    def known(self, values: Table) -> Table:
        """The values, but infinite where nothing was heard or where a value is not finite."""
        return torch.where(self.heard, values, math.inf).nan_to_num_(math.inf, math.inf, math.inf)


def part_of_batch(sample: Sample, part: float) -> Sample:
    """The first items of every agent's batch; `part` is their share."""
    if part == 1:
        return sample
    sizes = {tensor.shape[1] if tensor.ndim > 1 else 0 for tensor in sample}
    if len(sizes) > 1 or 0 in sizes:
        raise BadInput("this task has no batches, so part of a batch cannot be used; leave part out")
    items = math.ceil(sizes.pop() * part)
    return tuple(tensor[:, :items] for tensor in sample)

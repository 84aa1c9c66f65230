"""What some agents see of their neighbours in one round.

Everything per neighbour is a table of (agent, slot) with slot 0 the agent itself. Losses and distances are computed
when a rule first asks for them; a rule that does not ask does not pay. A slot from which nothing arrived has infinite
loss and distance, so that it is the worst in any comparison.

An inbox is data. How its numbers are computed is the business of an `Evaluator`: `Direct` says what they are, and
executors bring faster ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import embedding

from varangian.core.ground_truth import Truth
from varangian.core.models.base import Model, Models, Sample
from varangian.core.task import JudgedOn
from varangian.errors import BadInput

Table = Float[Tensor, "agent slot"]

OfNeighbourhoods = Callable[..., Float[Tensor, "some out"]]
"""From messages (some, slot, shared), who was heard (some, slot), and whatever else there is per agent."""
Change = Callable[[Float[Tensor, "some piece shared"], slice], Float[Tensor, "some piece shared"]]
"""From messages, and which agents receive them, to models of the same shape."""


class Evaluator(Protocol):
    """How the numbers that an inbox offers are computed. Its methods are those of `Inbox`, with every argument."""

    def loss(self, inbox: Inbox, on: JudgedOn) -> Table: ...

    def loss_where(self, inbox: Inbox, due: Bool[Tensor, "agent slot"], on: JudgedOn, part: float) -> Table: ...

    def loss_of(self, inbox: Inbox, change: Change, on: JudgedOn) -> Table: ...

    def distance(self, inbox: Inbox, target: Float[Tensor, "agent shared"], p: float) -> Table: ...

    def mix(self, inbox: Inbox, weights: Table) -> Float[Tensor, "agent shared"]: ...

    def by_neighbourhood(
        self, inbox: Inbox, function: OfNeighbourhoods, of_agents: tuple[Tensor, ...], any_order: bool
    ) -> Float[Tensor, "agent out"]: ...


@dataclass(frozen=True)
class Direct:
    """Every number as its definition says, from all messages at once."""

    def loss(self, inbox: Inbox, on: JudgedOn) -> Table:
        return inbox.model.judge(inbox.whole(inbox.received()), inbox.samples[on])

    def loss_where(self, inbox: Inbox, due: Bool[Tensor, "agent slot"], on: JudgedOn, part: float) -> Table:
        return torch.where(due, inbox.on_part(part).loss(on), math.inf)

    def loss_of(self, inbox: Inbox, change: Change, on: JudgedOn) -> Table:
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


DIRECT = Direct()


@dataclass(frozen=True, eq=False)
class Inbox:
    """One round's messages as their receivers see them."""

    model: Model
    rows: Float[Tensor, "row shared"]
    """Messages after the check at the door: finite, zero where none arrived."""
    source: Int[Tensor, "agent slot"]
    """Which row each slot received; slot 0 is one's own."""
    heard: Bool[Tensor, "agent slot"]
    own: Models
    """θ̂_k: one's own model after adapting."""
    previous: Models
    """θ_k of the round before."""
    samples: Mapping[JudgedOn, Sample]
    judged_on: JudgedOn
    forgetting: float | Float[Tensor, "agent 1"]
    step_size: Float[Tensor, "agent 1"]
    truth: Truth = field(repr=False)
    """What no agent knows; only clairvoyant references look at it."""
    round: int = 0
    evaluator: Evaluator = field(default=DIRECT, repr=False)
    _computed: dict[str, Tensor] = field(default_factory=dict[str, Tensor], init=False, repr=False)

    def loss(self, on: JudgedOn | None = None) -> Table:
        """ℓ(θ̂_l; ξ_k): each neighbour's model on my data; infinite where it is not a number."""
        on = on or self.judged_on
        return self.once(f"loss on {on}", lambda: self.known(self.evaluator.loss(self, on)))

    def loss_where(self, due: Bool[Tensor, "agent slot"], on: JudgedOn | None = None, part: float = 1.0) -> Table:
        """`loss` of the neighbours that are due, on a part of the batch; infinite elsewhere.

        Little more is computed than what is due. On a GPU the program has to wait until it knows how much that is.
        """
        return self.evaluator.loss_where(self, due & self.heard, on or self.judged_on, part)

    def loss_of(self, change: Change, on: JudgedOn | None = None) -> Table:
        """ℓ(change(θ̂_l); ξ_k): the loss of a model that is made from each message; infinite where it is no number."""
        return self.known(self.evaluator.loss_of(self, change, on or self.judged_on))

    def distance(self, target: Models, p: float = 2.0) -> Table:
        """‖target_k − θ̂_l‖_p, over the part that travels."""
        return self.known(self.evaluator.distance(self, target[:, : self.rows.shape[1]], p))

    def mix(self, weights: Table) -> Models:
        """Σ_l a_lk θ̂_l (eq. 3); what does not travel stays one's own."""
        return self.with_private(self.evaluator.mix(self, weights))

    def by_neighbourhood(
        self, function: OfNeighbourhoods, *of_agents: Tensor, any_order: bool = False
    ) -> Float[Tensor, "agent out"]:
        """`function(messages, heard, *of_agents)` for everyone, as many agents at a time as memory allows.

        Messages are (some agents, slot, shared), slot 0 the agent's own. Where nothing was heard, as the mask `heard`
        says, they hold finite numbers without a meaning. With `any_order` the function must not depend on the order
        of the neighbours; where everyone hears the same it is then computed once for all, and `heard` may be None.

            f = tolerated(0.2, inbox.heard)
            shared = inbox.by_neighbourhood(lambda messages, heard, f: robust.krum(messages, f, mask=heard), f)
        """
        return self.evaluator.by_neighbourhood(self, function, of_agents, any_order)

    def one_step_ahead(self) -> Models:
        """θ̂_k + μ_k ∇ℓ(θ̂_k; ξ_k), on the sample just trained on."""
        return self.own.addcmul(self.step_size, self.model.gradient(self.own, self.samples["same"]))

    def received(self) -> Float[Tensor, "agent slot shared"]:
        """Every message, gathered. This can be large: agents × slots × parameters."""
        return embedding(self.source, self.rows)

    def on_part(self, part: float) -> Inbox:
        """The same messages, to be judged on the first items of every agent's batch."""
        if part == 1:
            return self
        samples = {on: part_of_batch(sample, part) for on, sample in self.samples.items()}
        return replace(self, samples=samples)

    def with_private(self, shared: Float[Tensor, "agent shared"]) -> Models:
        """Whole models from their travelling part and one's own private part."""
        if shared.shape[1] == self.own.shape[1]:
            return shared
        return torch.cat((shared, self.own[:, shared.shape[1] :]), dim=1)

    def whole(
        self, shared: Float[Tensor, "some piece shared"], agents: slice = slice(None)
    ) -> Float[Tensor, "some piece parameter"]:
        """Messages to some agents, completed by the receivers' own private parts."""
        private = self.own[agents, None, shared.shape[2] :]
        if not private.shape[2]:
            return shared
        return torch.cat((shared, private.expand(-1, shared.shape[1], -1)), dim=2)

    def once(self, name: str, compute: Callable[[], Tensor]) -> Tensor:
        """What `compute` gives, computed when it is first asked for under this name. A changed inbox starts anew."""
        if name not in self._computed:
            self._computed[name] = compute()
        return self._computed[name]

    def known(self, values: Table) -> Table:
        """The values of what was heard; infinite where nothing was, or where they are not finite numbers."""
        return torch.where(self.heard, values, math.inf).nan_to_num_(math.inf, math.inf, math.inf)


def part_of_batch(sample: Sample, part: float) -> Sample:
    """The first items of every agent's batch."""
    if part == 1:
        return sample
    sizes = {tensor.shape[1] if tensor.ndim > 1 else 0 for tensor in sample}
    if len(sizes) > 1 or 0 in sizes:
        raise BadInput("only tasks with batches can judge on a part of one; leave part out")
    items = math.ceil(sizes.pop() * part)
    return tuple(tensor[:, :items] for tensor in sample)

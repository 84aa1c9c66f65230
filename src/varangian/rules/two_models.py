"""Rules with two models per agent: one that is sent and combined, and a personal one that is used.

ditto = the personal model trains on its own data,            pulled towards the combined one
apfl  = a mixture of a local model and the combined one,      in a proportion that is learned

Both take what is combined from another rule. They limit what neighbours can do to an agent, but do not judge them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from varangian.core.errors import BadInput
from varangian.core.inbox import Inbox
from varangian.rules.base import Combined, Companion, Rule, companion_of
from varangian.rules.evidence import Table
from varangian.rules.paper import average

AnyRule = Rule[Any]

LEAST_ALPHA = 0.01
"""The smallest α of `apfl`. The local model is computed from the mixture, which holds a share α of it."""


@dataclass(frozen=True)
class ditto:
    """Ditto: a personal model that trains on the agent's own data and is pulled towards a model that all combine.

    Equation:
        w_k = combined from the ŵ_l,  ŵ_k = w_k − μ_k ∇ℓ(w_k; ξ_k)
        v_k ← v_k − μ_k (∇ℓ(v_k; ξ_k) + λ (v_k − w_k))

    Agents send ŵ_k. What they use, and what is measured, is the personal model v_k. With λ = 0 nobody listens. With a
    large λ all agents use the combined model.

    With other optimisers, the gradient step of v_k is the optimiser's step; the pull is the same. It acts on the
    parameters that travel. In the paper a server averages; here each agent combines by another rule, by default the
    mean. The paper also combines Ditto with robust rules such as `median` and `krum`.

    Limits: nothing is judged. A Byzantine neighbour moves w_k as far as the other rule lets it, and v_k by a share of
    λ. The best λ depends on how alike the tasks are and on how many agents are Byzantine.

    Assumes: Related tasks. What the other rule assumes, else λ limits the harm.
    Cost: A second gradient, d operations, and the cost of the other rule.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.ditto(rules.median(), strength=0.5), rounds=5)

    Reference:
        Li, Hu, Beirami and Smith, "Ditto: fair and robust federated learning through personalization", ICML 2021.
        https://arxiv.org/abs/2012.04221
    """

    rule: AnyRule = field(default_factory=average)
    """How agents combine what is sent."""
    strength: float = 1.0
    """λ: how strongly the personal model is pulled towards the combined one."""

    companion: ClassVar[Companion] = "personal"

    def __post_init__(self) -> None:
        _check_inner("ditto", self.rule)
        if not 0 <= self.strength < float("inf"):
            raise BadInput(f"λ must be 0 or a positive number, but strength is {self.strength}")

    def init(self, table: Table) -> Any:
        return self.rule.init(table)

    def combine(self, inbox: Inbox, state: Any) -> Combined[Any]:
        combined = self.rule.combine(inbox, state)
        shared = inbox.rows.shape[1]
        v, w = inbox.personal.before[:, :shared], inbox.previous[:, :shared]
        pulled = inbox.personal.now[:, :shared] - inbox.step_size * self.strength * (v - w)
        return combined._replace(personal=_with_rest(pulled, inbox))


class Mixture(NamedTuple):
    """The state of another rule, and the share of the local model in every agent's mixture."""

    inner: Any
    alpha: Float[Tensor, " agent"]


@dataclass(frozen=True)
class apfl:
    """APFL: every agent uses a mixture of a local model and the model that all combine, and learns the proportion.

    Equation:
        w_k = combined from the ŵ_l,  ŵ_k = w_k − μ_k ∇ℓ(w_k; ξ_k)
        m_k = α_k v_k + (1 − α_k) w_k
        v_k ← v_k − μ_k α_k ∇ℓ(m_k; ξ_k)
        α_k ← α_k − μ_k ⟨v_k − w_k, ∇ℓ(m_k; ξ_k)⟩

    Agents send ŵ_k. What they use, and what is measured, is the mixture m_k. The local model v_k descends along the
    gradient at the mixture, and so does α_k, which stays between 0.01 and 1.

    With other optimisers, the optimiser's step at m_k takes the place of μ_k ∇ℓ. The mixture is of the parameters that
    travel. In the paper a server averages; here each agent combines by another rule, by default the mean.

    Limits: α_k takes plain gradient steps. Where losses are large it jumps to a bound, and at 0.01 the mixture hardly
    learns. On target localization a fixed α of 0.9 gains over no cooperation, and the learned one ends far above it. A
    Byzantine neighbour moves m_k at once, by a share 1 − α_k.

    Assumes: Related tasks, and honest neighbours or another rule that deals with them.
    Cost: A second gradient, 6 d operations, and the cost of the other rule.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.apfl(alpha=0.75, adaptive=False), rounds=5)

    Reference:
        Deng, Kamani and Mahdavi, "Adaptive personalized federated learning", 2020.
        https://arxiv.org/abs/2003.13461
    """

    rule: AnyRule = field(default_factory=average)
    """How agents combine what is sent."""
    alpha: float = 0.5
    """α: the share of the local model at first."""
    adaptive: bool = True
    """Whether α is learned. Otherwise it stays as it is."""

    companion: ClassVar[Companion] = "personal"

    def __post_init__(self) -> None:
        _check_inner("apfl", self.rule)
        if not LEAST_ALPHA <= self.alpha <= 1:
            raise BadInput(f"α must lie between {LEAST_ALPHA} and 1, but is {self.alpha}")

    def init(self, table: Table) -> Mixture:
        return Mixture(self.rule.init(table), table.new_full((len(table),), self.alpha))

    def combine(self, inbox: Inbox, state: Mixture) -> Combined[Mixture]:
        combined = self.rule.combine(inbox, state.inner)
        shared, alpha = inbox.rows.shape[1], state.alpha[:, None]
        m, w = inbox.personal.before[:, :shared], inbox.previous[:, :shared]
        step = inbox.personal.now[:, :shared] - m  # −μ_k ∇ℓ(m_k; ξ_k)
        apart = (m - w) / alpha  # v_k − w_k
        local = w + apart + alpha * step
        if self.adaptive:
            learned = (alpha + (apart * step).sum(1, keepdim=True)).clamp(LEAST_ALPHA, 1)
            alpha = torch.where(learned.isfinite(), learned, alpha)
        mixed = torch.lerp(combined.models[:, :shared], local, alpha)
        after = Mixture(combined.state, alpha[:, 0])
        return Combined(combined.models, combined.weights, after, _with_rest(mixed, inbox))


def _with_rest(shared: Float[Tensor, "agent shared"], inbox: Inbox) -> Float[Tensor, "agent parameter"]:
    """Personal models with this shared part. The rest is as it was trained."""
    now = inbox.personal.now
    return shared if shared.shape[1] == now.shape[1] else torch.cat((shared, now[:, shared.shape[1] :]), dim=1)


def _check_inner(name: str, rule: AnyRule) -> None:
    if companion_of(rule) is not None:
        raise BadInput(f"{name} has a second model already; the rule inside it must not ask for another")

"""Attacks on trust: gifts first, and then something else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float
from torch import Tensor

from varangian.attacks.base import KNOWLEDGE, AnyAttack, Knowledge, Poisons, View, knowledge_of
from varangian.attacks.drifting import variance_inflation
from varangian.attacks.true_risk import improved
from varangian.core.errors import BadInput
from varangian.core.messages import ToAll, ToEach

Own = Float[Tensor, "byzantine parameter"]


@dataclass(frozen=True)
class trust_then_strike:
    """Sends gifts, models that are better for the victim than its own, until it is trusted; then it strikes.

    Equation:
        m_k = argmin_{m ∈ P_k} r_k(m)  if i mod (gifts + strikes) < gifts
        m_k = t_k  otherwise

    Two-faced: each victim k hears a different message. Here i is the round, r_k the true risk of k and P_k the points
    of a short descent of this risk. t_k is what k would hear in the attack `then`. A rule that remembers good messages
    forgives the strike, and after it the next gifts restore the trust. With `gifts=1,strikes=1` gift and poison
    alternate. It works against rules with a long memory. The attack `then` must change messages, not data.

    Knows: All models, the true risk, and the sample that each victim has just trained on; also what `then` knows.
    Cost: Four gradients and 32 losses of the true risk per agent in a round of gifts; that of `then` in others.

    Example:
        >>> from varangian import attacks
        >>> attacks.trust_then_strike(gifts=5, then=attacks.alie())
        trust_then_strike(gifts=5, strikes=1, then=alie(z=None))

    Reference:
        Ours. It stands for the on-off attack on reputation systems, with a gift in place of honesty.
    """

    gifts: int = 4
    """How many rounds of gifts a cycle has."""
    strikes: int = 1
    """How many rounds of strikes follow."""
    then: AnyAttack = field(default_factory=lambda: variance_inflation(drift=30.0, swing=0.0))
    """The attack to strike with. By default `variance_inflation`, so hard that it would be rejected without gifts."""

    def __post_init__(self) -> None:
        if self.gifts < 0 or self.strikes < 1:
            raise BadInput(
                f"trust-then-strike needs gifts ≥ 0 and strikes ≥ 1, but they are {self.gifts} and {self.strikes}"
            )
        if isinstance(self.then, Poisons):
            raise BadInput(f"trust-then-strike changes messages, but {self.then} changes data; run it by itself")

    @property
    def knows(self) -> tuple[Knowledge, ...]:
        known = {"messages", "sample", "truth", *knowledge_of(self.then)}
        return tuple(kind for kind in KNOWLEDGE if kind in known)

    def init(self, own: Own) -> Any:
        return self.then.init(own)

    def send(self, view: View, state: Any) -> tuple[ToAll | ToEach, Any]:
        if view.round % (self.gifts + self.strikes) >= self.gifts:
            return self.then.send(view, state)
        far = view.adapted.norm(dim=1, keepdim=True) + (view.adapted - view.previous).norm(dim=1, keepdim=True)
        return ToEach(improved(view, far)[view.receiver]), state

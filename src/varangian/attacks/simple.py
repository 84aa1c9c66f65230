"""Attacks that need no knowledge of the rule, and simple faults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from varangian.attacks.base import AnyAttack, Knowledge, Poisons, View, is_local, knowledge_of
from varangian.core.errors import BadInput
from varangian.core.messages import ToAll, ToEach

Own = Float[Tensor, "byzantine parameter"]


@dataclass(frozen=True)
class uniform:
    """Sends random numbers: every coordinate is drawn from U(low, high), anew each round.

    Equation:
        m_b ~ U(low, high)

    This is the paper's attack. It works against averages. Distance-based weights ignore it where these numbers are
    far from all honest models, as in models of many parameters. Rules that judge by loss resist it.

    Knows: Nothing.
    Cost: O(d) per Byzantine agent and round, for models of d parameters.

    Example:
        >>> from varangian import attacks
        >>> attacks.uniform(15, 16)
        uniform(low=15, high=16)

    Reference:
        Li, Abbas and Koutsoukos, "Byzantine resilient distributed multi-task learning", NeurIPS 2020.
        https://arxiv.org/abs/2010.13032
    """

    low: float = 0.0
    """The lower end of the interval."""
    high: float = 0.1
    """The upper end of the interval."""

    knows: ClassVar[tuple[Knowledge, ...]] = ()
    local: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise BadInput(f"uniform needs low ≤ high, but low is {self.low} and high is {self.high}")

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToAll, tuple[()]]:
        return ToAll(view.uniform("uniform attack") * (self.high - self.low) + self.low), state


@dataclass(frozen=True)
class gaussian:
    """Sends random numbers: every coordinate is drawn from a normal distribution, anew each round.

    Equation:
        m_b ~ N(mean, std²)

    It works against averages. With a large `std` the messages are outliers, and rules that remove outliers do not
    care.

    Knows: Nothing.
    Cost: O(d) per Byzantine agent and round, for models of d parameters.

    Example:
        >>> from varangian import attacks
        >>> attacks.gaussian(std=200.0)
        gaussian(mean=0.0, std=200.0)

    Reference:
        Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine learning with adversaries: Byzantine tolerant
        gradient descent", NeurIPS 2017. https://arxiv.org/abs/1703.02757
    """

    mean: float = 0.0
    """The mean of every coordinate."""
    std: float = 1.0
    """The standard deviation of every coordinate."""

    knows: ClassVar[tuple[Knowledge, ...]] = ()
    local: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.std >= 0:
            raise BadInput(f"a standard deviation must not be negative, but std is {self.std}")

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToAll, tuple[()]]:
        return ToAll(view.normal("gaussian attack") * self.std + self.mean), state


@dataclass(frozen=True)
class sign_flip:
    """Sends the sender's own adapted model with the opposite sign.

    Equation:
        m_b = −scale · θ̂_b

    It works against averages. Rules that judge by loss resist it. The reference flips the sign of what a server
    collects; here it is the sign of a model.

    Knows: The sender's own model.
    Cost: O(d) per Byzantine agent and round, for models of d parameters.

    Example:
        >>> from varangian import attacks
        >>> attacks.sign_flip(scale=3.0)
        sign_flip(scale=3.0)

    Reference:
        Li, Xu, Chen, Giannakis and Ling, "RSA: Byzantine-robust stochastic aggregation methods for distributed
        learning from heterogeneous datasets", AAAI 2019. https://arxiv.org/abs/1811.03761
    """

    scale: float = 1.0
    """The length of the message, in lengths of the sender's own model."""

    knows: ClassVar[tuple[Knowledge, ...]] = ()
    local: ClassVar[bool] = True
    strength: ClassVar[str] = "scale"
    strengths: ClassVar[tuple[float, ...]] = (0.03, 0.1, 0.3, 3.0, 10.0)

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToAll, tuple[()]]:
        return ToAll(view.own * -self.scale), state


@dataclass(frozen=True)
class shrink:
    """Trains the sender's model, but shrinks it in every round, each tensor by its own random factor.

    Equation:
        m_b ← v_b · (m_b + θ̂_b − θ_b)
        v_b ~ U(0, most)  for each tensor of the model

    This is the attack of the paper's program. There the shrunken model takes the place of the sender's own, so the
    factors of all rounds multiply, and the message is soon close to zero. Here it takes the sender's honest steps
    θ̂_b − θ_b, and starts from its first model. It works against averages. It is near everyone's model while models are
    small, so distance-based weights may trust it. Rules that judge by loss resist it.

    Knows: The sender's own model.
    Cost: O(d) per Byzantine agent and round, for models of d parameters.

    Example:
        >>> from varangian import attacks
        >>> attacks.shrink(most=0.5)
        shrink(most=0.5)

    Reference:
        The program of Li, Abbas and Koutsoukos, "Byzantine resilient distributed multi-task learning", NeurIPS
        2020. https://github.com/JianiLi/resilientDistributedMTL
    """

    most: float = 0.1
    """The largest factor."""

    knows: ClassVar[tuple[Knowledge, ...]] = ()
    local: ClassVar[bool] = True

    def init(self, own: Own) -> tuple[Own, Own]:
        """The last message and the last honest model. Both are the first model."""
        return own, own

    def send(self, view: View, state: tuple[Own, Own]) -> tuple[ToAll, tuple[Own, Own]]:
        sent, honest = state
        lots = view.draws.uniform("shrink attack", view.round, len(view.sizes), view.adapted.dtype) * self.most
        factor = torch.cat([lot.expand(-1, size) for lot, size in zip(lots.split(1, 1), view.sizes, strict=True)], 1)
        # Byzantine agents never listen, so the last honest model is where the honest step of this round began.
        message = factor * (sent + view.own - honest)
        return ToAll(message), (message, view.own)


@dataclass(frozen=True)
class pulling:
    """Sends each neighbour that neighbour's own last model, moved a little towards a malicious point.

    Equation:
        m_k = θ_k + step · (point − θ_k)

    Two-faced: each neighbour k hears a different message. The message is so near to θ_k that distance-based weights
    trust it above all others, and it pulls the same way in every round. Rules that judge by loss resist it,
    unless they judge on items that θ_k knows by heart.

    Knows: The last model of each victim.
    Cost: O(d) per victim and round, for models of d parameters.

    Example:
        >>> from varangian import attacks
        >>> attacks.pulling(point=(1.0, 2.0))
        pulling(point=(1.0, 2.0), step=0.05)

    Reference:
        Li, Abbas and Koutsoukos, "Resilient distributed diffusion in networks with adversaries", IEEE
        Transactions on Signal and Information Processing over Networks, 2020. https://arxiv.org/abs/2003.10563
    """

    point: tuple[float, ...] = (0.0,)
    """Where to pull the victims; one number stands for every coordinate."""
    step: float = 0.05
    """The part of the way to the point that a message goes in one round."""

    knows: ClassVar[tuple[Knowledge, ...]] = ("messages",)
    local: ClassVar[bool] = True
    strength: ClassVar[str] = "step"
    strengths: ClassVar[tuple[float, ...]] = (0.005, 0.02, 0.1, 0.2, 0.5, 1.0)

    def __post_init__(self) -> None:
        if not self.point:
            raise BadInput("pulling needs a point to pull to, but point is empty")

    def init(self, own: Own) -> tuple[()]:
        if len(self.point) not in (1, own.shape[1]):
            raise BadInput(
                f"pulling's point has {len(self.point)} coordinates, but models have {own.shape[1]} that are sent"
            )
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToEach, tuple[()]]:
        victim = view.previous[view.receiver]
        return ToEach(victim.lerp(victim.new_tensor(self.point), self.step)), state


@dataclass(frozen=True)
class not_finite:
    """Sends models full of nan, of infinity and of 1e38, in turn.

    Equation:
        m_b = nan, ∞, 10³⁸, nan, …

    It stands for a broken sender, or for one that wants to crash its neighbours. It crashes none: messages that are not
    finite count as silence, and with 1e38 every rule here still returns finite models. But 1e38 is not harmless. In a
    softmax layer, the same number everywhere scores all labels alike, so early on it may pass a filter by loss. Mixed
    in, it erases the victim's model by rounding, and later steps are too small to change it.

    Knows: Nothing.
    Cost: O(d) per Byzantine agent and round, for models of d parameters.

    Example:
        >>> from varangian import attacks
        >>> attacks.not_finite()
        not_finite()

    Reference:
        Ours. It stands for numerical overflow and for corrupt memory.
    """

    knows: ClassVar[tuple[Knowledge, ...]] = ()
    local: ClassVar[bool] = True

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToAll, tuple[()]]:
        value = (float("nan"), float("inf"), 1e38)[view.round % 3]
        return ToAll(torch.full_like(view.own, value)), state


@dataclass(frozen=True)
class silent:
    """Sends nothing: the Byzantine agents are absent.

    Equation:
        m_b = ∅

    Rules must treat silence as absence. The victims lose the help of these neighbours and nothing else, so this is
    the baseline for every other attack.

    Knows: Nothing.
    Cost: None.

    Example:
        >>> from varangian import attacks
        >>> attacks.silent()
        silent()

    Reference:
        Folklore. It stands for nodes that are down from the start.
    """

    knows: ClassVar[tuple[Knowledge, ...]] = ()
    local: ClassVar[bool] = True

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToAll, tuple[()]]:
        return ToAll(view.own, silent=view.nobody()), state


@dataclass(frozen=True)
class crash:
    """Honest until round `at`, then silent for ever.

    Equation:
        m_b = θ̂_b  if i < at
        m_b = ∅  if i ≥ at

    Here i is the round. Rules that keep weights for absent neighbours would suffer. Rules that treat silence as
    absence do not.

    Knows: The sender's own model.
    Cost: None.

    Example:
        >>> from varangian import attacks
        >>> attacks.crash(at=50)
        crash(at=50)

    Reference:
        Folklore. It stands for the crash fault of distributed computing: a node stops and never recovers.
    """

    at: int = 100
    """The first round of silence."""

    knows: ClassVar[tuple[Knowledge, ...]] = ()
    local: ClassVar[bool] = True

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToAll, tuple[()]]:
        return ToAll(view.own, silent=view.nobody() if view.round >= self.at else None), state


@dataclass(frozen=True)
class sleeper:
    """Honest until round `until`, to earn trust; then it plays another attack.

    Equation:
        m_b = θ̂_b  if i < until
        m_b = t_b  if i ≥ until

    Here i is the round, and t_b is what b would send in the attack `then`. It works against rules that never forget
    how they came to trust a neighbour, such as `pens`, which judges in the first rounds only. The attack `then` must
    change messages, not data.

    Knows: What the attack `then` knows.
    Cost: The cost of the attack `then`.

    Example:
        >>> from varangian import attacks
        >>> attacks.sleeper(until=200, then=attacks.sign_flip())
        sleeper(until=200, then=sign_flip(scale=1.0))

    Reference:
        Folklore. It stands for the on-off attack on reputation systems.
    """

    until: int = 100
    """The first round of the attack."""
    then: AnyAttack = field(default_factory=uniform)
    """The attack to play from that round on. By default `uniform`."""

    def __post_init__(self) -> None:
        if isinstance(self.then, Poisons):
            raise BadInput(f"sleeper changes messages, but {self.then} changes data; run it by itself")

    @property
    def knows(self) -> tuple[Knowledge, ...]:
        return knowledge_of(self.then)

    @property
    def local(self) -> bool:
        return is_local(self.then)

    def init(self, own: Own) -> Any:
        return self.then.init(own)

    def send(self, view: View, state: Any) -> tuple[ToAll | ToEach, Any]:
        if view.round < self.until:
            return ToAll(view.own), state
        return self.then.send(view, state)

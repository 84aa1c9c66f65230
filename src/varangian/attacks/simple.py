"""Attacks that need no knowledge of the rule they face, and faults that are nobody's intention."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from varangian.attacks.base import AnyAttack, Poisons, View, is_local
from varangian.core.messages import ToAll, ToEach
from varangian.errors import BadInput

Own = Float[Tensor, "byzantine parameter"]


@dataclass(frozen=True)
class uniform:
    """Every coordinate from U[low, high], anew each round: the paper's attack."""

    low: float = 0.0
    high: float = 0.1

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
    """Every coordinate from N(mean, std²), anew each round."""

    mean: float = 0.0
    std: float = 1.0

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
    """The sender's own adapted model times −scale."""

    scale: float = 1.0

    local: ClassVar[bool] = True

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToAll, tuple[()]]:
        return ToAll(view.own * -self.scale), state


@dataclass(frozen=True)
class shrink:
    """The sender's own adapted model times a random factor of at most `most`, anew each round: the attack of the
    authors' program. A shrunken model is near everyone's in distance."""

    most: float = 0.1

    local: ClassVar[bool] = True

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToAll, tuple[()]]:
        factor = view.draws.uniform("shrink attack", view.round, 1, view.adapted.dtype) * self.most
        return ToAll(view.own * factor), state


@dataclass(frozen=True)
class pulling:
    """Two-faced: to each neighbour k that neighbour's own last model moved towards a malicious point,
    θ_k + step (point − θ_k). So near that distance trusts it above all others, and always the same way."""

    point: tuple[float, ...] = (0.0,)
    """Where to pull to; one number stands for every coordinate."""
    step: float = 0.05
    """The part of the way to go in one round."""

    local: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.point:
            raise BadInput("pulling needs a point to pull to, but point is empty")

    def init(self, own: Own) -> tuple[()]:
        if len(self.point) not in (1, own.shape[1]):
            raise BadInput(
                f"pulling's point has {len(self.point)} coordinates, but models have {own.shape[1]} that travel"
            )
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToEach, tuple[()]]:
        victim = view.previous[view.receiver]
        return ToEach(victim.lerp(victim.new_tensor(self.point), self.step)), state


@dataclass(frozen=True)
class not_finite:
    """Models of nan, of inf and of 1e38, round by round in turn: a broken sender, or one that wants to break you."""

    local: ClassVar[bool] = True

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToAll, tuple[()]]:
        value = (float("nan"), float("inf"), 1e38)[view.round % 3]
        return ToAll(torch.full_like(view.own, value)), state


@dataclass(frozen=True)
class silent:
    """Sends nothing: these neighbours are absent."""

    local: ClassVar[bool] = True

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToAll, tuple[()]]:
        return ToAll(view.own, silent=view.nobody()), state


@dataclass(frozen=True)
class crash:
    """Honest until round `at`, and never heard of again."""

    at: int = 100

    local: ClassVar[bool] = True

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToAll, tuple[()]]:
        return ToAll(view.own, silent=view.nobody() if view.round >= self.at else None), state


@dataclass(frozen=True)
class sleeper:
    """Honest until round `until`, to earn trust, then another attack, on messages and not on data."""

    until: int = 100
    then: AnyAttack = field(default_factory=uniform)

    def __post_init__(self) -> None:
        if isinstance(self.then, Poisons):
            raise BadInput(f"sleeper changes messages, but {self.then} changes data; run it by itself")

    @property
    def local(self) -> bool:
        return is_local(self.then)

    def init(self, own: Own) -> Any:
        return self.then.init(own)

    def send(self, view: View, state: Any) -> tuple[ToAll | ToEach, Any]:
        if view.round < self.until:
            return ToAll(view.own), state
        return self.then.send(view, state)

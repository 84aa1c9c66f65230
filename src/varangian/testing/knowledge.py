"""Whether an attack uses only what it declares to know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from varangian.attacks.base import Attack, Insight, Knowledge, View, knowledge_of
from varangian.testing.scenarios import Stage

NEEDED: dict[str, tuple[Knowledge, ...]] = {
    "models": ("messages",),
    "sample": ("sample",),
    "risk": ("truth",),
    "foresee": ("rule", "sample"),
    "foresee_each": ("rule", "sample"),
    "rehearse": ("rule", "sample", "truth"),
    "upcoming": ("future sample",),
}
"""The knowledge that each part of an insight belongs to. The model, which is the loss function, is known to all."""


@dataclass(frozen=True, eq=False)
class Limited:
    """An insight whose parts raise an error unless they are known."""

    insight: Insight
    known: tuple[Knowledge, ...]

    def __getattr__(self, part: str) -> Any:
        for kind in NEEDED.get(part, ()):
            if kind not in self.known:
                raise AssertionError(f"it uses insight.{part}, but does not declare {kind!r}")
        return getattr(self.insight, part)


def undeclared(attack: Attack[Any], dtype: torch.dtype, parameters: int) -> Iterator[str]:
    """Complaints about an attack that uses more than it declares."""
    stage, known = Stage.of(dtype, parameters), knowledge_of(attack)

    def sent(moved: float) -> list[Tensor]:
        """What the attack sends if all models of normal agents are moved."""

        def send(view: View, state: Any) -> Any:
            move = moved * view.wiring.normal[:, None]
            seen = replace(
                view,
                adapted=view.adapted + move,
                previous=view.previous + move,
                insight=cast(Insight, Limited(view.insight, known)),
            )
            return attack.send(seen, state)

        return stage.outcome(cast(Attack[Any], SimpleNamespace(init=attack.init, send=send)))

    usual = sent(0.0)
    if "messages" not in known and not all(
        torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in zip(usual, sent(0.5), strict=True)
    ):
        yield "the models of normal agents change what it sends, but it does not declare 'messages'"

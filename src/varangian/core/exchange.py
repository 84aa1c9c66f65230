"""What a whole network has before it when it combines: models sent, samples to judge on, who hears whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

from varangian.core.graph import Neighbourhoods
from varangian.core.ground_truth import Risk, Truth
from varangian.core.inbox import DIRECT, Evaluator, Inbox
from varangian.core.messages import Delivered
from varangian.core.models.base import Model, Models, Sample
from varangian.core.task import JudgedOn
from varangian.core.wiring import Wiring


@dataclass(frozen=True, eq=False)
class Exchange:
    """One round's messages, and everything agents judge them with. `inbox` shows it as some agents see it."""

    round: int
    wiring: Wiring
    delivered: Delivered
    adapted: Models
    """θ̂_k, everyone's own."""
    previous: Models
    """θ_k of the round before."""
    samples: Mapping[JudgedOn, Sample]
    model: Model
    """What neighbours are judged with."""
    judged_on: JudgedOn
    forgetting: Float[Tensor, "agent 1"]
    step_size: Float[Tensor, "agent 1"]
    normal: Bool[Tensor, "agent 1"]
    group: Int[Tensor, " agents"]
    risk: Risk | None

    def inbox(self, table: Neighbourhoods, source: Int[Tensor, "agent slot"], evaluator: Evaluator = DIRECT) -> Inbox:
        """What the agents of a table see; `source` is the row that each slot received."""
        of = table.rows_of
        return Inbox(
            model=self.model,
            rows=self.delivered.rows,
            source=source,
            heard=self.delivered.heard(source, table),
            own=of(self.adapted),
            previous=of(self.previous),
            samples={on: tuple(map(of, sample)) for on, sample in self.samples.items()},
            judged_on=self.judged_on,
            forgetting=of(self.forgetting),
            step_size=of(self.step_size),
            truth=Truth(table, self.adapted, self.group, self.wiring.normal, self.risk),
            round=self.round,
            evaluator=evaluator,
        )

"""Everything a network needs to combine models: the messages, the samples to judge them on, and who hears whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils._pytree import tree_map

from varangian.core.draws import Draws, PairDraws
from varangian.core.graph import Neighbourhoods
from varangian.core.ground_truth import Risk, Truth
from varangian.core.inbox import DIRECT, Evaluator, FoldModels, Inbox, SecondModel
from varangian.core.messages import Delivered
from varangian.core.models.base import Model, Models, Sample
from varangian.core.task import JudgedOn, SampleKind
from varangian.core.wiring import Wiring


@dataclass(frozen=True, eq=False)
class Exchange:
    """The messages of one round, and what agents judge them with. `inbox` gives the view of some agents."""

    round: int
    wiring: Wiring
    delivered: Delivered
    adapted: Models
    """θ̂_k: every agent's own model after adapting."""
    previous: Models
    """θ_k of the previous round."""
    samples: Mapping[SampleKind, Sample]
    fresh: Bool[Tensor, "agent 1"]
    """Which agents have a next sample that they have not trained on."""
    trained: Bool[Tensor, "agent 1"]
    """Which agents had a new sample to train on in this round."""
    model: Model
    """The model with which agents judge their neighbours."""
    judged_on: JudgedOn
    forgetting: Float[Tensor, "agent 1"]
    step_size: Float[Tensor, "agent 1"]
    listening: Bool[Tensor, "agent 1"]
    """The agents that combine what they hear. All others keep their own models."""
    group: Int[Tensor, " agents"]
    risk: Risk | None
    draws: Draws
    """The random numbers of all agents that send messages."""
    second: SecondModel | None = None
    """The second model of every agent, if the rule asks for one."""
    folds: FoldModels | None = None
    """The fold models of every agent, if the rule asks for them."""

    def inbox(self, table: Neighbourhoods, source: Int[Tensor, "agent slot"], evaluator: Evaluator = DIRECT) -> Inbox:
        """The inbox of the agents of a table. `source` is the row of `delivered` that each slot received."""
        of = table.rows_of
        return Inbox(
            model=self.model,
            rows=self.delivered.rows,
            source=source,
            heard=self.delivered.heard(source, table),
            own=of(self.adapted),
            previous=of(self.previous),
            samples={on: tuple(map(of, sample)) for on, sample in self.samples.items()},
            fresh=of(self.fresh),
            trained=of(self.trained),
            judged_on=self.judged_on,
            forgetting=of(self.forgetting),
            step_size=of(self.step_size),
            truth=Truth(table, self.adapted, self.group, self.wiring.normal, self.risk),
            round=self.round,
            pairs=PairDraws(self.draws, table.receivers, table.senders),
            second=None if self.second is None else SecondModel(*map(of, self.second)),
            folds=None if self.folds is None else tree_map(of, self.folds),
            evaluator=evaluator,
        )

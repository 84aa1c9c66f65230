"""What changes from round to round, and what a round shows to those who watch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxtyping import Bool
from torch import Tensor

from varangian.core.inbox import Table
from varangian.core.messages import Delivered
from varangian.core.models.base import Models, Sample
from varangian.core.wiring import Wiring


class State(NamedTuple):
    """All that changes from round to round; with the world, all it takes to go on."""

    round: int
    models: Models
    sample: Sample
    fresh: Bool[Tensor, "agent 1"]
    """Who has not trained on its sample yet: everybody, but for those who go without a batch."""
    optimiser: tuple[Tensor, ...]
    rule: Sequence[Any]
    """The rule's state for each table of neighbourhoods."""
    attack: Any


class Heard(NamedTuple):
    """What agents have before them when they combine."""

    delivered: Delivered
    adapted: Models
    """θ̂_k, everyone's own."""
    sample: Sample
    """The next one, to judge on."""


class Seen(NamedTuple):
    """What a round leaves for those who watch."""

    before: Models
    wiring: Wiring
    weights: Sequence[Table | None]

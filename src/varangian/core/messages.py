"""What travels: everyone's adapted model, what Byzantine senders put in its place, and the check at the door."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from varangian.core.graph import Neighbourhoods
from varangian.core.layout import FEW, joined, replaced
from varangian.core.models.base import Model, Models


class HonestMessages(NamedTuple):
    """What agents would tell each other were all of them honest."""

    adapted: Float[Tensor, "agent shared"]
    """θ̂ of everyone."""
    previous: Float[Tensor, "agent shared"]
    """θ of everyone, before adapting."""

    @staticmethod
    def of(model: Model, adapted: Models, previous: Models) -> HonestMessages:
        """By agents with these models: the part that travels."""
        shared = model.shared
        whole = shared == model.parameters
        return HonestMessages(adapted, previous) if whole else HonestMessages(adapted[:, :shared], previous[:, :shared])


class ToAll(NamedTuple):
    """One message from each Byzantine sender to all who hear it."""

    rows: Float[Tensor, "byzantine parameter"]
    silent: Bool[Tensor, " byzantine"] | None = None


class ToEach(NamedTuple):
    """A message of its own for every edge on which a Byzantine agent sends: two-faced senders."""

    rows: Float[Tensor, "edge parameter"]
    silent: Bool[Tensor, " edge"] | None = None


class Delivered(NamedTuple):
    """The messages of a round after the check at the door."""

    rows: Float[Tensor, "row parameter"]
    """Everyone's message, then those of two-faced senders edge by edge; zeros where it was no message."""
    arrived: Bool[Tensor, " row"] | None
    """Which are messages; nothing where all are, and one can tell without making a GPU wait."""
    two_faced: bool

    def heard(self, source: Int[Tensor, "agent slot"], table: Neighbourhoods) -> Bool[Tensor, "agent slot"]:
        """Whether a message arrived in every slot of a table."""
        if self.arrived is None:
            return table.present
        by_slot = source.T
        return self.arrived.index_select(0, by_slot.reshape(-1)).view(by_slot.shape).T & table.present


def finite_rows(rows: Float[Tensor, "row parameter"]) -> Bool[Tensor, "row 1"]:
    """Which rows hold only finite numbers; the largest magnitude tells, and nan is below nothing."""
    if rows.shape[1] <= FEW:
        return rows.abs().amax(1, keepdim=True) < math.inf
    # Magnitudes of many parameters would be a matrix as large as the models.
    return torch.maximum(rows.amax(1, keepdim=True), -rows.amin(1, keepdim=True)) < math.inf


def deliver(
    honest: Float[Tensor, "agent parameter"],
    sent: ToAll | ToEach | None,
    byzantine: Int[Tensor, " byzantine"],
) -> Delivered:
    """Put Byzantine messages in place, and let in only what is a message: something sent, every number finite.

    What is not let in becomes zeros, so that its numbers never enter a product (0 · nan is nan).
    """
    if sent is None:
        # Adapted models are finite: adapting refuses a step that is not.
        return Delivered(honest, None, two_faced=False)
    clean, lets_in = _checked(sent)
    two_faced = isinstance(sent, ToEach)
    rows = joined((honest, clean)) if two_faced else replaced(honest, byzantine, clean)
    if lets_in is None:
        return Delivered(rows, None, two_faced)
    everyone = honest.new_ones(len(honest), dtype=torch.bool)
    arrived = torch.cat((everyone, lets_in)) if two_faced else everyone.index_copy_(0, byzantine, lets_in)
    return Delivered(rows, arrived, two_faced)


def _checked(
    sent: ToAll | ToEach,
) -> tuple[Float[Tensor, "message parameter"], Bool[Tensor, " message"] | None]:
    """What was sent with zeros for what is no message, and which are messages unless all are."""
    # A sum is a finite number only of finite numbers; that of large ones may not be one either.
    if sent.silent is None and sent.rows.device.type == "cpu" and math.isfinite(sent.rows.sum()):
        return sent.rows, None
    lets_in = finite_rows(sent.rows)
    if sent.silent is not None:
        lets_in = lets_in & ~sent.silent[:, None]
    return torch.where(lets_in, sent.rows, 0), lets_in[:, 0]

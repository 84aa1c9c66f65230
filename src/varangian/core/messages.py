"""Messages: the adapted models, what Byzantine agents send instead, and the check on arrival."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from varangian.core.graph import Neighbourhoods
from varangian.core.layout import FEW, joined, replaced
from varangian.core.models.base import Model, Models
from varangian.core.tracing import has_values


class HonestMessages(NamedTuple):
    """What all agents, Byzantine agents included, would send if they were honest."""

    adapted: Float[Tensor, "agent shared"]
    """θ̂_k: the models after adapting."""
    previous: Float[Tensor, "agent shared"]
    """θ_k: the models before adapting."""

    @staticmethod
    def of(model: Model, adapted: Models, previous: Models) -> HonestMessages:
        """The messages of agents with these models: their shared parameters."""
        shared = model.shared
        whole = shared == model.parameters
        return HonestMessages(adapted, previous) if whole else HonestMessages(adapted[:, :shared], previous[:, :shared])


class ToAll(NamedTuple):
    """One message from each Byzantine agent to all agents that hear it."""

    rows: Float[Tensor, "byzantine parameter"]
    silent: Bool[Tensor, " byzantine"] | None = None
    """Which Byzantine agents send nothing. By default none."""


class ToEach(NamedTuple):
    """A separate message for every edge on which a Byzantine agent sends (two-faced senders)."""

    rows: Float[Tensor, "edge parameter"]
    silent: Bool[Tensor, " edge"] | None = None
    """On which edges nothing is sent. By default on none."""


class Delivered(NamedTuple):
    """The messages of a round after the check on arrival."""

    rows: Float[Tensor, "row parameter"]
    """One message per agent, then one per edge of two-faced senders. Rows without a valid message are zero."""
    arrived: Bool[Tensor, " row"] | None
    """Which rows are valid messages. None if all are, and this is known without waiting for a GPU."""
    two_faced: bool
    """Whether there are rows for single edges."""

    def heard(self, source: Int[Tensor, "agent slot"], table: Neighbourhoods) -> Bool[Tensor, "agent slot"]:
        """Which slots of a table received a valid message."""
        if self.arrived is None:
            return table.present
        by_slot = source.T
        return self.arrived.index_select(0, by_slot.reshape(-1)).view(by_slot.shape).T & table.present


def finite_rows(rows: Float[Tensor, "row parameter"]) -> Bool[Tensor, "row 1"]:
    """Which rows hold only finite numbers. It is enough to test the largest magnitude: `nan < inf` is false."""
    if rows.shape[1] > FEW and all_finite(rows):
        return rows.new_ones((len(rows), 1), dtype=torch.bool)
    if rows.shape[1] <= FEW:
        return rows.abs().amax(1, keepdim=True) < math.inf
    # With many parameters, the matrix of magnitudes would be as large as the models.
    return torch.maximum(rows.amax(1, keepdim=True), -rows.amin(1, keepdim=True)) < math.inf


def all_finite(rows: Float[Tensor, "row parameter"]) -> bool:
    """Whether all numbers are surely finite: a finite sum proves it. False also if Python must not look at them.

    The sum of large numbers may overflow. So if this is false, look closer, row by row.
    """
    return has_values(rows) and math.isfinite(rows.detach().sum())


def deliver(
    honest: Float[Tensor, "agent parameter"],
    sent: ToAll | ToEach | None,
    byzantine: Int[Tensor, " byzantine"],
) -> Delivered:
    """Put in the messages of Byzantine agents, and accept only valid ones: something was sent, and it is finite.

    Rows without a valid message become zero, because nan would spoil every product (0 · nan is nan).
    """
    if sent is None:
        # No check is needed: `adapt` rejects steps that are not finite.
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
    """The messages, with zero rows where they are not valid; and which are valid, or None if all are."""
    if sent.silent is None and all_finite(sent.rows):
        return sent.rows, None
    lets_in = finite_rows(sent.rows)
    if sent.silent is not None:
        lets_in = lets_in & ~sent.silent[:, None]
    return torch.where(lets_in, sent.rows, 0), lets_in[:, 0]

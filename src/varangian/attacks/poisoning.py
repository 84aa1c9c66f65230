"""Attacks on data: Byzantine agents train honestly, on samples that were changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from varangian.attacks.base import Knowledge, View
from varangian.core.messages import ToAll
from varangian.core.models.base import Sample

Own = Float[Tensor, "byzantine parameter"]


@dataclass(frozen=True)
class label_flip:
    """Trains honestly on wrong labels, and sends what it learns.

    Equation:
        y ← labels − 1 − y
        m_b = θ̂_b

    Where targets are numbers and not labels, y becomes −y. The sender really learns what it sends, so its message
    looks like an honest model of another task. It works against averages and against rules that look for outliers
    only. It changes data, so it cannot be used inside another attack.

    Knows: The sender's own data and model.
    Cost: Nothing beyond honest training.

    Example:
        >>> import torch
        >>> from varangian import attacks
        >>> attacks.label_flip().poison((torch.zeros(3, 1), torch.tensor([0, 1, 5])), labels=6)[1]
        tensor([5, 4, 0])

    Reference:
        Tolpegin, Truex, Gursoy and Liu, "Data poisoning attacks against federated learning systems", ESORICS
        2020. https://arxiv.org/abs/2007.08432
    """

    knows: ClassVar[tuple[Knowledge, ...]] = ()
    local: ClassVar[bool] = True

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToAll, tuple[()]]:
        return ToAll(view.own), state

    def poison(self, sample: Sample, labels: int) -> Sample:
        """The sample with flipped targets, which are its last part.

        >>> import torch
        >>> label_flip().poison((torch.zeros(3, 1), torch.tensor([0, 1, 5])), labels=6)[1]
        tensor([5, 4, 0])
        >>> label_flip().poison((torch.zeros(1, 1), torch.tensor([2.5])), labels=0)[1]
        tensor([-2.5000])
        """
        *inputs, targets = sample
        # A user's own stream may show a new label later; modulo keeps its flipped value a valid label.
        flipped = (labels - 1 - targets) % labels if labels else -targets
        return (*inputs, flipped)

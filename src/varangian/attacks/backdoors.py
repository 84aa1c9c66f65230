"""Attacks with a goal of their own: a model for the victim, or a label for all inputs that carry a trigger."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from varangian.attacks.base import KNOWLEDGE, AnyAttack, Knowledge, Poisons, View, knowledge_of
from varangian.attacks.simple import sign_flip
from varangian.attacks.victims import Company, sender_row, to_each
from varangian.core.errors import BadInput
from varangian.core.messages import ToAll, ToEach
from varangian.core.models.base import Sample

Own = Float[Tensor, "byzantine parameter"]


@dataclass(frozen=True)
class model_replacement:
    """Sends each victim what makes its average equal a chosen model, whatever its honest neighbours send.

    Equation:
        m_k = (n t_k − Σ_{l∈H_k} θ̂_l) / f

    Two-faced: each victim k hears a different message. The victim hears n agents, itself included: f are Byzantine, and
    H_k are the others. t_k is the chosen model: what k would hear in the attack `then`. With several senders, the
    average is the mean of their choices. The message is large, so rules that look at distances or losses reject it. It
    works against averages, in one round. A fixed point is `then=collusion:point=0/0`. The attack `then` must change
    messages, not data; for a data attack see `backdoor`. The paper scales without knowing the other models.

    Knows: The models that each victim hears, and what `then` knows.
    Cost: O(n d) per victim and round, for models of d parameters, and the cost of `then`.

    Example:
        >>> from varangian import attacks
        >>> attacks.model_replacement(then=attacks.uniform(15, 16))
        model_replacement(then=uniform(low=15, high=16))

    Reference:
        Bagdasaryan, Veit, Hua, Estrin and Shmatikov, "How to backdoor federated learning", AISTATS 2020.
        https://arxiv.org/abs/1807.00459
    """

    then: AnyAttack = field(default_factory=sign_flip)
    """The attack whose message the victim's average becomes. By default `sign_flip`."""

    def __post_init__(self) -> None:
        if isinstance(self.then, Poisons):
            raise BadInput(f"model-replacement changes messages, but {self.then} changes data; run it by itself")

    @property
    def knows(self) -> tuple[Knowledge, ...]:
        known = {"messages", *knowledge_of(self.then)}
        return tuple(kind for kind in KNOWLEDGE if kind in known)

    def init(self, own: Own) -> Any:
        return self.then.init(own)

    def send(self, view: View, state: Any) -> tuple[ToEach, Any]:
        sent, state = self.then.send(view, state)
        if isinstance(sent, ToEach):
            return ToEach(replacing(view, sent.rows), sent.silent), state
        row = sender_row(view)
        return ToEach(replacing(view, sent.rows[row]), None if sent.silent is None else sent.silent[row]), state


@dataclass(frozen=True)
class backdoor:
    """Trains on samples of which a part carries a trigger and a false label, and sends what it learns.

    Equation:
        (x, y) ← (x with trigger, target)  for a part of each sample
        m_b = θ̂_b

    The trigger sets some input features to a fixed value. The rest of the sample is clean, so the model is as good as
    an honest one, but labels any input with the trigger as `target`. The metric `backdoor_success` tells whether it
    works: the share of test items of other classes that a normal agent labels so when the trigger is on. Accuracy does
    not show the attack. It works against averages and against rules that look for outliers or losses on clean data.
    Where targets are numbers, `target` is such a number. It changes data, so it cannot be used inside another attack.

    Knows: The sender's own data and model; with `replace`, also the models that each victim hears.
    Cost: Nothing beyond honest training; with `replace`, O(n d) per victim and round.

    Example:
        >>> import torch
        >>> from varangian import attacks
        >>> inputs, labels = attacks.backdoor(features=(1,), target=2).trigger((torch.zeros(1, 3), torch.tensor([0])))
        >>> inputs, labels
        (tensor([[0., 3., 0.]]), tensor([2]))

    Reference:
        Bagdasaryan, Veit, Hua, Estrin and Shmatikov, "How to backdoor federated learning", AISTATS 2020.
        https://arxiv.org/abs/1807.00459
    """

    target: int = 0
    """The label for all inputs with the trigger."""
    features: tuple[int, ...] = (0, 1, 2, 3)
    """The places of the trigger in an input; an image counts row by row."""
    value: float = 3.0
    """The value of these features when the trigger is on."""
    share: float = 0.2
    """The part of each sample that gets the trigger."""
    replace: bool = False
    """Whether to send what makes the victim's average equal the sender's model, as `model_replacement` does."""

    local: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.features or min(self.features) < 0:
            raise BadInput(f"backdoor needs places of features, 0 or more, but features is {self.features}")
        if not 0 <= self.share <= 1:
            raise BadInput(f"backdoor needs a share between 0 and 1, but share is {self.share}")
        if self.target < 0:
            raise BadInput(f"backdoor needs a label as its target, but target is {self.target}")

    @property
    def knows(self) -> tuple[Knowledge, ...]:
        return ("messages",) if self.replace else ()

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToAll | ToEach, tuple[()]]:
        if not self.replace:
            return ToAll(view.own), state
        return ToEach(replacing(view, view.adapted[view.sender])), state

    def poison(self, sample: Sample, labels: int) -> Sample:
        """The sample, in which the first items of each agent have the trigger. Batches come in random order.

        >>> import torch
        >>> clean = torch.zeros(1, 2, 2), torch.tensor([[0, 1]])
        >>> backdoor(target=3, features=(0,)).poison(clean, labels=4)
        (tensor([[[3., 0.],
                 [0., 0.]]]), tensor([[3, 1]]))
        """
        *_, y = sample
        if labels and self.target >= labels:
            raise BadInput(f"backdoor's target is label {self.target}, but labels are 0 … {labels - 1}")
        # A stream without batches has one item per agent.
        items = y.shape[1] if y.ndim > 1 else 1
        some = torch.arange(items, device=y.device) < math.ceil(self.share * items)
        changed = self.trigger(tuple(part.flatten(0, 1) if y.ndim > 1 else part for part in sample))
        whose = some.expand(len(y), items).reshape(y.shape[:2] if y.ndim > 1 else y.shape)

        def mixed(new: Tensor, clean: Tensor) -> Tensor:
            chosen = whose.reshape(*whose.shape, *[1] * (clean.ndim - whose.ndim))
            return torch.where(chosen, new.view_as(clean), clean)

        return tuple(mixed(new, clean) for new, clean in zip(changed, sample, strict=True))

    def trigger(self, sample: Sample) -> Sample:
        """Items with the trigger on, and the label that the adversary wants for each."""
        x, *others, y = sample
        flat = x.flatten(1).clone()
        if max(self.features) >= flat.shape[1]:
            raise BadInput(
                f"backdoor's trigger uses feature {max(self.features)}, but inputs have {flat.shape[1]}; set features"
            )
        flat[:, list(self.features)] = self.value
        return (flat.view_as(x), *others, torch.full_like(y, self.target))


def replacing(view: View, wanted: Float[Tensor, "edge parameter"]) -> Float[Tensor, "edge parameter"]:
    """What to send on each edge so that the mean of what a victim hears is the mean of what is wanted."""

    def of_honest(around: Company) -> Tensor:
        return around.count * around.mean / around.liars[:, None]

    def times(around: Company) -> Tensor:
        return (around.heard / around.liars)[:, None].to(wanted.dtype).expand_as(around.own)

    return to_each(view, times) * wanted - to_each(view, of_honest)

"""How often a backdoor works: the share of test items that a model labels as the adversary wants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from varangian.attacks.base import AnyAttack, Triggers
from varangian.core.batches import HeldOut, Pool
from varangian.core.execution import Execution, using
from varangian.core.models.base import Models
from varangian.core.task import Evaluations, Task

SUCCESS = "backdoor_success"


@dataclass(frozen=True, eq=False)
class TriggerTest:
    """Measures one thing: how often every agent's model falls for the trigger."""

    held_out: HeldOut

    @property
    def agents(self) -> int:
        return self.held_out.pool.agents

    def __call__(self, models: Models) -> Mapping[str, Float[Tensor, " agent"]]:
        return {SUCCESS: self.held_out(models)[SUCCESS]}

    def to(self, device: torch.device) -> TriggerTest:
        return TriggerTest(self.held_out.to(device))


def trigger_test(task: Task, attack: AnyAttack, execution: Execution) -> TriggerTest | None:
    """The test of a trigger on a task's test data. None if the attack has no trigger, or if there are no labels."""
    parts = task.tested.parts if isinstance(task.tested, Evaluations) else (task.tested,)
    clean = next((part for part in parts if isinstance(part, HeldOut)), None)
    if not isinstance(attack, Triggers) or clean is None or clean.pool.y.is_floating_point():
        return None
    return TriggerTest(using(triggered(clean, attack).to(execution.device), execution))


def triggered(clean: HeldOut, attack: Triggers) -> HeldOut:
    """The test items with the trigger on, without those that have the wanted label anyway."""
    pool = clean.pool
    x, wanted = attack.trigger((pool.x, pool.y))
    own = torch.arange(pool.members.shape[1], device=pool.counts.device) < pool.counts[:, None]
    counted = own & (wanted != pool.y)[pool.members]
    order = counted.byte().argsort(dim=1, descending=True, stable=True)
    others = Pool(x, wanted, pool.members.gather(1, order), counted.sum(1))
    return replace(clean, pool=others, metrics={SUCCESS: _labelled_so}, prefix="")


def _labelled_so(predicted: Float[Tensor, "item label"], wanted: Tensor) -> Float[Tensor, " item"]:
    return (predicted.argmax(-1) == wanted).to(predicted.dtype)

"""Judging in a number type of lower precision, for hardware that is several times as fast with it.

Only predictions are computed in low precision. Losses are computed, smoothed and compared in the number type of the
run, and nothing that an agent keeps is rounded.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor, nn

from varangian.core.errors import BadInput, unknown
from varangian.core.execution import Execution
from varangian.core.models.base import Model, Models, Sample
from varangian.core.models.stacked import Stacked

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, eq=False)
class LowPrecision:
    """A network that judges in another number type than the one it trains in."""

    model: Stacked
    dtype: torch.dtype

    @staticmethod
    def of(model: Model, name: str) -> LowPrecision:
        """`model`, judging in the named number type. Only networks can do this."""
        if name not in DTYPES:
            raise unknown("judge_dtype", name, DTYPES)
        if not isinstance(model, Stacked):
            raise BadInput(f"only networks can judge in {name}, and this model is a formula; leave out judge_dtype")
        return LowPrecision(model, DTYPES[name])

    @property
    def parameters(self) -> int:
        return self.model.parameters

    @property
    def shared(self) -> int:
        return self.model.shared

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.model.sizes

    @property
    def random(self) -> bool:
        return self.model.random

    def using(self, execution: Execution) -> LowPrecision:
        """The same model with the threads and the memory of `execution`."""
        return replace(self, model=self.model.using(execution))

    def start(self, agents: int, dtype: torch.dtype, device: torch.device) -> Models:
        return self.model.start(agents, dtype, device)

    def judge(self, models: Float[Tensor, "agent slot parameter"], sample: Sample) -> Float[Tensor, "agent slot"]:
        return self._low_precision(models).judge(models.to(self.dtype), self._rounded(sample))

    def judge_all(self, models: Float[Tensor, "row parameter"], sample: Sample) -> Float[Tensor, "row agent"]:
        return self._low_precision(models).judge_all(models.to(self.dtype), self._rounded(sample))

    def gradient(self, models: Models, sample: Sample) -> Models:
        return self.model.gradient(models, sample)

    def settle(self, stepped: Models, before: Models, sample: Sample) -> Models:
        return self.model.settle(stepped, before, sample)

    def _rounded(self, sample: Sample) -> Sample:
        x, *rest = sample
        return (x.to(self.dtype) if x.is_floating_point() else x, *rest)

    def _low_precision(self, models: Tensor) -> Stacked:
        def loss(predicted: Tensor, y: Tensor) -> Tensor:
            return self.model.loss(predicted.to(models.dtype), y)

        if not self.model.frozen:
            return replace(self.model, loss=loss)
        return replace(self.model, loss=loss, judging=_rounded_copy(self.model.judging, self.dtype, models.device))


@lru_cache(maxsize=8)
def _rounded_copy(module: nn.Module, dtype: torch.dtype, device: torch.device) -> nn.Module:
    """A copy whose frozen parameters, which are in no row, have the number type too."""
    return copy.deepcopy(module).to(dtype=dtype, device=device)

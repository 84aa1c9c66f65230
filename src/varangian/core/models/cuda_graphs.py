"""Less launch overhead on a GPU: whole passes are recorded as CUDA graphs, and layers are fused.

A pass over ten small networks is a few hundred kernels of some microseconds each. Launching them one by one takes
longer than computing them. A CUDA graph launches all of them at once. It replays what was recorded, so the numbers are
the same.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from varangian.core.models.base import Formula, HasLayers, LinearLayer, Model, Models, Sample

Pass = Callable[..., Tensor]
Forward = Callable[[dict[str, Tensor], Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class CudaGraphed:
    """A model whose passes are recorded as CUDA graphs. The first call for each shape records; later calls replay."""

    model: Model
    _recorded: dict[Any, Recording] = field(default_factory=dict, repr=False)

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

    def start(self, agents: int, dtype: torch.dtype, device: torch.device) -> Models:
        return self.model.start(agents, dtype, device)

    def judge(self, models: Float[Tensor, "agent slot parameter"], sample: Sample) -> Float[Tensor, "agent slot"]:
        return self._replay(self.model.judge, models, sample)

    def judge_all(self, models: Float[Tensor, "row parameter"], sample: Sample) -> Float[Tensor, "row agent"]:
        return self._replay(self.model.judge_all, models, sample)

    def gradient(self, models: Models, sample: Sample) -> Models:
        return self._replay(self.model.gradient, models, sample)

    def settle(self, stepped: Models, before: Models, sample: Sample) -> Models:
        return self.model.settle(stepped, before, sample)

    def linear_layers(self, models: Models, sample: Sample) -> list[LinearLayer]:
        return self.model.linear_layers(models, sample) if isinstance(self.model, HasLayers) else []

    def _replay(self, function: Callable[[Tensor, Sample], Tensor], models: Tensor, sample: Sample) -> Tensor:
        if torch.is_grad_enabled():  # a replayed pass cannot be differentiated
            return function(models, sample)
        given = (models, *sample)
        key = (function.__name__, *((part.shape, part.dtype) for part in given))
        if key not in self._recorded:
            self._recorded[key] = Recording.of(lambda rows, *parts: function(rows, parts), given)
        return self._recorded[key].replay(given)


def graphed(model: Model, device: torch.device) -> Model:
    """The model with CUDA graphs, if it is a network on a GPU and its training uses no random numbers."""
    return (
        CudaGraphed(model) if device.type == "cuda" and not isinstance(model, Formula) and not model.random else model
    )


@dataclass(frozen=True, eq=False)
class Recording:
    """One recorded pass for one set of shapes, with its input and output buffers."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    result: Tensor

    @staticmethod
    def of(function: Pass, given: tuple[Tensor, ...]) -> Recording:
        inputs = tuple(part.clone() for part in given)
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # warm up: libraries choose their kernels now, which must not be recorded
            for _ in range(3):
                function(*inputs)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with _no_garbage_collection(), torch.cuda.graph(graph):
            result = function(*inputs)
        return Recording(graph, inputs, result)

    def replay(self, given: tuple[Tensor, ...]) -> Tensor:
        for place, part in zip(self.inputs, given, strict=True):
            place.copy_(part)
        self.graph.replay()
        return self.result.clone()


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A graph of an earlier run that is freed while another is recorded makes the recording fail."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def forward_of(module: nn.Module) -> Forward:
    """The forward pass of a network as a function of its parameters; compiled if it consists of torch's own layers.

    Compiling takes seconds, so networks with the same layers share one result. They are compared by `repr`. Only the
    `repr` of torch's layers describes all that they compute, so networks with custom layers are not compiled.
    """
    if all(type(layer).__module__.startswith(("torch.nn.", "varangian.")) for layer in module.modules()):
        return _fused(repr(module), _ModuleHolder(module))
    return lambda views, x: functional_call(module, views, (x,))


class _ModuleHolder:
    """Holds a module, and is equal to every other holder, so that the cache of `_fused` looks only at `description`."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ModuleHolder)

    def __hash__(self) -> int:
        return 0


@lru_cache(maxsize=16)
def _fused(description: str, holder: _ModuleHolder) -> Forward:
    module = holder.module

    def plain(views: dict[str, Tensor], x: Tensor) -> Tensor:
        predicted: Tensor = functional_call(module, views, (x,))
        return predicted

    compiled = torch.compile(plain, dynamic=False)
    usable = True

    def forward(views: dict[str, Tensor], x: Tensor) -> Tensor:
        nonlocal usable
        if usable:
            try:
                return compiled(views, x)
            except Exception as error:  # the run can go on without a compiler
                usable = False
                warnings.warn(f"layers could not be fused; judging is slower: {error}", stacklevel=2)
        return plain(views, x)

    return forward

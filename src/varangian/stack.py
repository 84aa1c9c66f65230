"""Any nn.Module times n agents as one matrix.

A row of the matrix holds one agent's parameters, the travelling ones first; a module's layers are views into it.
Gradients come from one vectorised pass, judging from as large a product as the model allows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, vmap

from varangian.errors import BadInput, unknown
from varangian.model import Models, Sample

Loss = Callable[[Tensor, Tensor], Tensor]
"""From predictions and targets of one batch to their mean loss."""


@dataclass(frozen=True, eq=False)
class Stacked:
    """A module and a loss, for many agents at once.

    >>> layer = Stacked.of(nn.Linear(3, 2), nn.functional.cross_entropy)
    >>> layer.parameters, layer.shared
    (8, 8)
    >>> only_trunk = Stacked.of(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), nn.functional.mse_loss, share=["0"])
    >>> only_trunk.parameters, only_trunk.shared
    (26, 16)
    """

    training: nn.Module
    judging: nn.Module
    loss: Loss
    first: Float[Tensor, " parameter"]
    """The parameters as they were given."""
    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    shared: int
    random: bool
    """Training draws random numbers of its own, as dropout does."""
    convolves: bool
    """Then go model by model where it pays: grouped convolutions, which is what stacking makes of them, are slow."""

    @staticmethod
    def of(module: nn.Module, loss: Loss, share: Sequence[str] | None = None) -> Stacked:
        """Stack `module`; `share` names the parameters that travel, by name or by the start of it."""
        parameters = dict(module.named_parameters())
        if not parameters:
            raise BadInput(f"the model {type(module).__name__} has no parameters to learn")
        travel = set(parameters) if share is None else _chosen(share, parameters)
        names = sorted(parameters, key=lambda name: name not in travel)
        return Stacked(
            training=copy.deepcopy(module).train(),
            judging=copy.deepcopy(module).eval(),
            loss=loss,
            first=torch.cat([parameters[name].detach().reshape(-1) for name in names]),
            names=tuple(names),
            shapes=tuple(parameters[name].shape for name in names),
            shared=sum(parameters[name].numel() for name in names if name in travel),
            random=any(isinstance(part, nn.modules.dropout._DropoutNd) for part in module.modules()),
            convolves=any(isinstance(part, nn.modules.conv._ConvNd) for part in module.modules()),  # pyright: ignore
        )

    @property
    def parameters(self) -> int:
        return sum(shape.numel() for shape in self.shapes)

    def start(self, agents: int, dtype: torch.dtype, device: torch.device) -> Models:
        """Everyone starts from the module as it was given."""
        self.training.to(dtype=dtype, device=device)
        self.judging.to(dtype=dtype, device=device)
        return self.first.to(dtype=dtype, device=device).repeat(agents, 1)

    def predict(self, row: Float[Tensor, " parameter"], x: Tensor) -> Tensor:
        """One agent's predictions, as it would make them when not training."""
        predicted: Tensor = functional_call(self.judging, self._views(row), (x,))
        return predicted

    def predict_all(self, models: Models, x: Float[Tensor, "agent item ..."]) -> Tensor:
        """Every agent's predictions for its own inputs."""
        if self._one_by_one(models):
            return torch.stack([self.predict(row, own) for row, own in zip(models, x, strict=True)])
        return vmap(self.predict)(models, x)

    def judge(self, models: Float[Tensor, "agent slot parameter"], sample: Sample) -> Float[Tensor, "agent slot"]:
        x, y = sample
        agents, slots = models.shape[:2]
        if self._one_by_one(models):
            rows = [self._one_loss(models[k, s], x[k], y[k]) for k in range(agents) for s in range(slots)]
            return torch.stack(rows).view(agents, slots)
        # Targets are spread over slots by hand: some losses fail in a nested vmap when only one side is batched.
        each = y[:, None].expand(-1, slots, *y.shape[1:])
        return vmap(vmap(self._one_loss, in_dims=(0, None, 0)))(models, x, each)

    def judge_all(self, models: Float[Tensor, "row parameter"], sample: Sample) -> Float[Tensor, "row agent"]:
        x, y = sample
        everyone = x.flatten(0, 1)

        if isinstance(self.judging, nn.Linear):
            predicted = self._one_product(models, everyone)
            return vmap(vmap(self.loss), in_dims=(0, None))(predicted.unflatten(1, x.shape[:2]), y)

        def of_model(row: Float[Tensor, " parameter"]) -> Float[Tensor, " agent"]:
            predicted = self.predict(row, everyone)
            return vmap(self.loss)(predicted.unflatten(0, x.shape[:2]), y)

        if self._one_by_one(models):
            return torch.stack([of_model(row) for row in models])
        return vmap(of_model, chunk_size=self._rows_at_once(everyone))(models)

    def gradient(self, models: Models, sample: Sample) -> Models:
        x, y = sample
        with torch.enable_grad():
            leaf = models.detach().requires_grad_()
            if self._one_by_one(models[:1]):
                rows = zip(leaf, x, y, strict=True)
                losses = torch.stack([self._training_loss(row, one_x, one_y) for row, one_x, one_y in rows])
            else:
                losses = vmap(self._training_loss, randomness="different")(leaf, x, y)
            # A row's loss depends on that row alone, so the gradient of the sum is all gradients at once.
            (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        return gradient

    def _one_product(
        self, models: Float[Tensor, "row parameter"], x: Float[Tensor, "item feature"]
    ) -> Float[Tensor, "row item output"]:
        """A lone linear layer: every model's output for every item is one matrix product."""
        views = vmap(self._views)(models)
        bias = views["bias"].flatten() if "bias" in views else None
        wide = nn.functional.linear(x, views["weight"].flatten(0, 1), bias)
        by_model: Tensor = wide.unflatten(-1, (len(models), -1))
        return by_model.movedim(-2, 0)

    def _one_loss(self, row: Float[Tensor, " parameter"], x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.predict(row, x), y)

    def _training_loss(self, row: Float[Tensor, " parameter"], x: Tensor, y: Tensor) -> Tensor:
        predicted: Tensor = functional_call(self.training, self._views(row), (x,))
        return self.loss(predicted, y)

    def _views(self, row: Float[Tensor, " parameter"]) -> dict[str, Tensor]:
        # split, not slices: its backward is one concatenation instead of a zero-filled row per layer.
        parts = row.split([shape.numel() for shape in self.shapes])
        shaped = zip(self.names, self.shapes, parts, strict=True)
        return {name: part.view(shape) for name, shape, part in shaped}

    def _one_by_one(self, models: Tensor) -> bool:
        """Whether many models are faster one after another: convolutions on a CPU, or of many models on a GPU."""
        return self.convolves and (models.device.type == "cpu" or len(models) > 32)

    @staticmethod
    def _rows_at_once(x: Tensor) -> int | None:
        """Bound what one vectorised pass holds, at some 2**28 numbers were a layer as wide as ten inputs."""
        return max(1, 2**28 // (10 * x.numel()))


def _chosen(share: Sequence[str], parameters: dict[str, nn.Parameter]) -> set[str]:
    def matching(start: str) -> Iterator[str]:
        return (name for name in parameters if name == start or name.startswith(start + "."))

    for start in share:
        if not any(matching(start)):
            raise unknown("parameter to share", start, parameters)
    return {name for start in share for name in matching(start)}

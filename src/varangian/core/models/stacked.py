"""Any nn.Module for n agents, as one matrix.

A row of the matrix holds the parameters of one agent, the shared ones first. The module's layers are views into it. One
vectorised pass gives all gradients. Judging uses as large a matrix product as the model allows.

Running statistics of normalisation layers are at the end of the row, and are private. An agent judges its neighbours'
parameters with its own statistics, as it would use them. Frozen parameters (`requires_grad=False`) are not in the row:
all agents have them in common, and they are neither trained nor sent.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _NormBase

from varangian.core.errors import BadInput, unknown
from varangian.core.execution import DEFAULT, Execution, thread_copy
from varangian.core.models.base import LinearLayer, Models, Sample
from varangian.core.models.conv_rewrite import rewritten
from varangian.core.models.cuda_graphs import forward_of

Loss = Callable[[Tensor, Tensor], Tensor]
"""From the predictions and targets of one batch to their mean loss."""


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
    module: nn.Module
    """A copy of the given module."""
    first: Float[Tensor, " parameter"]
    """The parameters of the given module, without frozen ones."""
    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    shared: int
    statistics: tuple[str, ...]
    """The last of the names: buffers. Training updates them, but not by gradients."""
    frozen: tuple[str, ...]
    """The parameters that are not in a row, because all agents have them in common and nobody trains them."""
    random: bool
    """Whether training uses torch's random generator, as dropout does."""
    normalises: bool
    """Whether predictions depend on the rest of the batch even when judging, so that batches must not be joined."""
    convolves: bool
    """Whether there are convolutions. Stacked, they become grouped convolutions, which are slow; computing model by
    model is then often faster."""
    execution: Execution = DEFAULT

    @staticmethod
    def of(module: nn.Module, loss: Loss, share: Sequence[str] | None = None) -> Stacked:
        """Stack `module`. `share` lists the parameters to send, by name or by the start of their names."""
        parameters = {name: value for name, value in module.named_parameters() if value.requires_grad}
        if not parameters:
            frozen = "; all of them are frozen" if any(True for _ in module.parameters()) else ""
            raise BadInput(f"the model {type(module).__name__} has no parameters to learn{frozen}")
        for name, part in module.named_modules():
            if isinstance(part, _NormBase) and part.track_running_stats and part.momentum is None:
                raise BadInput(f"layer {name} has momentum=None, which is not supported; give it a momentum")
        travel = set(parameters) if share is None else _chosen(share, parameters, module)
        buffers = {name: buffer for name, buffer in module.named_buffers() if buffer.is_floating_point()}
        kept = {**parameters, **buffers}
        names = sorted(parameters, key=lambda name: name not in travel) + list(buffers)
        return Stacked(
            training=rewritten(module).train(),
            judging=rewritten(module).eval(),
            loss=loss,
            module=copy.deepcopy(module),
            first=torch.cat([kept[name].detach().reshape(-1) for name in names]),
            names=tuple(names),
            shapes=tuple(kept[name].shape for name in names),
            shared=sum(parameters[name].numel() for name in travel),
            statistics=tuple(buffers),
            frozen=tuple(name for name, value in module.named_parameters() if not value.requires_grad),
            random=any(isinstance(part, nn.modules.dropout._DropoutNd) for part in module.modules()),
            normalises=any(isinstance(part, _NormBase) and not part.track_running_stats for part in module.modules()),
            convolves=any(isinstance(part, nn.modules.conv._ConvNd) for part in module.modules()),
        )

    @property
    def frozen_values(self) -> list[Tensor]:
        """The values of the frozen parameters."""
        values = dict(self.module.named_parameters())
        return [values[name].detach() for name in self.frozen]

    @property
    def parameters(self) -> int:
        return sum(shape.numel() for shape in self.shapes)

    @property
    def sizes(self) -> tuple[int, ...]:
        sizes = [shape.numel() for shape in self.shapes]
        # The tensors that travel come first.
        return tuple(size for size, end in zip(sizes, accumulate(sizes), strict=True) if end <= self.shared)

    def using(self, execution: Execution) -> Stacked:
        """The same model with the threads and the memory of `execution`."""
        return replace(self, execution=execution)

    def start(self, agents: int, dtype: torch.dtype, device: torch.device) -> Models:
        """The initial models: all agents start from the given module."""
        self.training.to(dtype=dtype, device=device)
        self.judging.to(dtype=dtype, device=device)
        return self.first.to(dtype=dtype, device=device).repeat(agents, 1)

    def predict(self, row: Float[Tensor, " parameter"], x: Tensor) -> Tensor:
        """The predictions of one agent, in evaluation mode."""
        predicted: Tensor = functional_call(thread_copy(self.judging), self._views(row), (x,))
        return predicted

    def predict_all(self, models: Models, x: Float[Tensor, "agent item ..."]) -> Tensor:
        """The predictions of every agent for its own inputs."""
        if self._one_by_one(models):
            return torch.stack(
                self.execution.each(self._predict_alone, models.unbind(), x.unbind(), device=models.device)
            )
        return vmap(self.predict)(models, x)

    def judge(self, models: Float[Tensor, "agent slot parameter"], sample: Sample) -> Float[Tensor, "agent slot"]:
        x, y = sample
        agents, slots = models.shape[:2]
        if self._one_by_one(models):
            pairs = [(k, s) for k in range(agents) for s in range(slots)]
            losses = self.execution.each(
                lambda pair: self.loss(self._predict_alone(models[pair], x[pair[0]]), y[pair[0]]),
                pairs,
                device=models.device,
            )
            return torch.stack(losses).view(agents, slots)
        if self.is_softmax(x, y):
            return self.cross_entropies(models, x, y).mean(2)
        # Expand the targets over slots first: some losses fail in a nested vmap if only one argument is batched.
        wide = y[:, None].expand(-1, slots, *y.shape[1:])
        if self._is_linear(x):
            return vmap(vmap(self.loss))(self._products(*self._layer(models), x).mT, wide)
        return vmap(vmap(self._one_loss, in_dims=(0, None, 0)))(models, x, wide)

    def judge_all(self, models: Float[Tensor, "row parameter"], sample: Sample) -> Float[Tensor, "row agent"]:
        x, y = sample
        if self.normalises:
            return torch.stack([vmap(partial(self._one_loss, row))(x, y) for row in models])
        everyone = x.flatten(0, 1)
        if self._is_linear(x):
            some = self._at_once(models.device) // (len(everyone) * self.shapes[self.names.index("weight")][0])
            return torch.cat([self._judge_linear(rows, everyone, y) for rows in models.split(max(1, some))])
        if self.convolves:
            alone = self.execution.each(
                lambda row: self._predict_alone(row, everyone), models.unbind(), device=models.device
            )
            predicted = torch.stack(alone)
        else:
            # Assume that the widest layer has ten times as many numbers as the inputs.
            some = max(1, self._at_once(models.device) // (10 * everyone.numel()))
            predicted = vmap(self.predict, in_dims=(0, None), chunk_size=some)(models, everyone)
        return self._losses(predicted.unflatten(1, x.shape[:2]), y)

    def gradient(self, models: Models, sample: Sample) -> Models:
        x, y = sample
        if self.is_softmax(x, y):
            return self._softmax_gradient(models, x, y)
        with torch.enable_grad():
            if self._one_by_one(models[:1]):
                rows = models.unbind(), x.unbind(), y.unbind()
                if self.random:  # with several threads, the order of random numbers would change from run to run
                    return torch.stack(list(map(self._gradient_alone, *rows)))
                return torch.stack(self.execution.each(self._gradient_alone, *rows, device=models.device))
            leaf = models.detach().requires_grad_()
            losses = vmap(self._training_loss, randomness="different")(leaf, x, y)
            # The loss of a row depends on that row only, so the gradient of the sum holds all gradients.
            (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        return gradient

    def _softmax_gradient(
        self, models: Models, x: Float[Tensor, "agent item feature"], y: Int[Tensor, "agent item"]
    ) -> Models:
        """The gradient of softmax regression, (softmax(Wx + b) − 1_y) xᵀ / items. Autograd takes four times as long."""
        logits = self._products(*self._layer(models[:, None]), x)[:, 0]
        slope = logits.softmax(1)
        slope.scatter_add_(1, y[:, None], slope.new_full((1,), -1.0).expand(len(y), 1, y.shape[1]))
        slope /= y.shape[1]
        parts = {"weight": (slope @ x).flatten(1), "bias": slope.sum(2)}
        return torch.cat([parts[name] for name in self.names], dim=1)

    def _gradient_alone(self, row: Float[Tensor, " parameter"], x: Tensor, y: Tensor) -> Float[Tensor, " parameter"]:
        leaf = row.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(self.loss(self._alone(self.training, leaf, x), y), leaf)
        return gradient

    def _judge_linear(
        self, models: Float[Tensor, "row parameter"], everyone: Float[Tensor, "item feature"], y: Tensor
    ) -> Float[Tensor, "row agent"]:
        if self.is_softmax(everyone[None], y):
            losses = self.cross_entropies(models[None], everyone[None], y.reshape(1, -1))
            return losses.view(len(models), *y.shape).mean(2)
        outputs = self._products(*self._layer(models[None]), everyone[None])[0].unflatten(2, y.shape[:2])
        return vmap(vmap(self.loss))(outputs.movedim(1, 3), y.expand(len(models), *y.shape))

    def _is_linear(self, x: Tensor) -> bool:
        """Whether the model is a single linear layer: many models on many items are then one matrix product.

        Both its weights and its biases must be in the row, and not frozen.
        """
        return isinstance(self.judging, nn.Linear) and x.ndim == 3 and not self.frozen

    def is_softmax(self, x: Tensor, y: Tensor) -> bool:
        """Whether the model is a single linear layer with cross-entropy loss and one label per item."""
        labels = y.ndim == 2 and not y.is_floating_point()
        return self.loss is nn.functional.cross_entropy and labels and self._is_linear(x)

    def _layer(
        self, models: Float[Tensor, "group row parameter"]
    ) -> tuple[Float[Tensor, "group row output feature"], Float[Tensor, "group row output"] | None]:
        """The weights and biases of a single linear layer."""
        parts = dict(zip(self.names, models.split([shape.numel() for shape in self.shapes], -1), strict=True))
        return parts["weight"].unflatten(-1, self.shapes[self.names.index("weight")]), parts.get("bias")

    def _products(
        self,
        weight: Float[Tensor, "group row output feature"],
        bias: Float[Tensor, "group row output"] | None,
        x: Float[Tensor, "group item feature"],
    ) -> Float[Tensor, "group row output item"]:
        """The output of every model of a group for every item of the group."""
        rows = weight.flatten(1, 2)
        # With many more rows than items, the transposed product takes little more than half the time.
        wide = (x @ rows.mT).mT.contiguous() if 3 * x.shape[1] < rows.shape[1] else rows @ x.mT
        product: Tensor = wide.unflatten(1, weight.shape[1:3])
        if bias is not None:
            product += bias.unsqueeze(-1)
        return product

    def cross_entropies(
        self,
        models: Float[Tensor, "group row parameter"],
        x: Float[Tensor, "group item feature"],
        y: Int[Tensor, "group item"],
    ) -> Float[Tensor, "group row item"]:
        """The cross-entropy of every model of a group for every item of the group.

        Only differences between logits matter. Logits are computed relative to that of the first label, which saves one
        label. `log_softmax` subtracts the largest logit first. Without this, huge logits would absorb the logarithm by
        rounding, and a model with 1e38 everywhere would seem to be always right.
        """
        weight, bias = self._layer(models)
        bias = None if bias is None else bias[..., 1:] - bias[..., :1]
        others = self._products(weight[:, :, 1:] - weight[:, :, :1], bias, x)
        logits = nn.functional.pad(others, (0, 0, 1, 0))
        right = y[:, None, None].expand(-1, logits.shape[1], 1, -1)
        return -logits.log_softmax(2).gather(2, right).squeeze(2)

    def linear_layers(self, models: Models, sample: Sample) -> list[LinearLayer]:
        """The linear layers whose weights are in the models, with their inputs, in the order of their names.

        >>> net = Stacked.of(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Linear(3, 2)), nn.functional.mse_loss)
        >>> sample = torch.zeros(5, 8, 2, 2), torch.zeros(5, 8, 2)
        >>> [(start, stop, inputs.shape) for start, stop, inputs in net.linear_layers(torch.zeros(5, 23), sample)]
        [(0, 12, torch.Size([5, 8, 4])), (15, 21, torch.Size([5, 8, 3]))]
        """
        module = thread_copy(self.judging)
        ends = dict(zip(self.names, accumulate(shape.numel() for shape in self.shapes), strict=True))
        linear = {
            weight: layer
            for name, layer in module.named_modules()
            if isinstance(layer, nn.Linear) and (weight := f"{name}.weight".removeprefix(".")) in ends
        }

        def inputs(row: Float[Tensor, " parameter"], x: Tensor) -> dict[str, Tensor]:
            seen = dict[str, list[Tensor]]()

            def watch(name: str, layer: nn.Linear, given: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
                (entered,) = (*given, *named.values())
                # A copy, because the model may change its numbers later.
                seen.setdefault(name, []).append(entered.reshape(-1, layer.in_features).clone())

            watched = [
                layer.register_forward_pre_hook(partial(watch, name), with_kwargs=True)
                for name, layer in linear.items()
            ]
            try:
                functional_call(module, self._views(row), (x,))
            finally:
                for hook in watched:
                    hook.remove()
            return {name: torch.cat(parts) for name, parts in seen.items()}

        if self._one_by_one(models):
            alone = [inputs(row, x) for row, x in zip(models, sample[0], strict=True)]
            found = {name: torch.stack([one[name] for one in alone]) for name in alone[0]}
        else:
            found = vmap(inputs)(models, sample[0])
        return [
            LinearLayer(ends[name] - layer.weight.numel(), ends[name], found[name])
            for name, layer in linear.items()
            if name in found
        ]

    def settle(self, stepped: Models, before: Models, sample: Sample) -> Models:
        """The models with their running statistics updated by the sample, from those of the models `before`."""
        if not self.statistics:
            return stepped
        x, _ = sample
        updated = vmap(self._updated_statistics, randomness="different")(before, x)
        return torch.cat((stepped[:, : -updated.shape[1]], updated), dim=1)

    def _updated_statistics(self, row: Float[Tensor, " parameter"], x: Tensor) -> Float[Tensor, " statistic"]:
        views = self._training_views(row)
        functional_call(thread_copy(self.training), views, (x,))
        return torch.cat([views[name].reshape(-1) for name in self.statistics])

    def _losses(self, predicted: Float[Tensor, "row agent batch ..."], y: Tensor) -> Float[Tensor, "row agent"]:
        return vmap(vmap(self.loss), in_dims=(0, None))(predicted, y)

    def _predict_alone(self, row: Float[Tensor, " parameter"], x: Tensor) -> Tensor:
        """`predict` for a single model, in pieces that fit into the cache of a CPU or the memory of a GPU."""
        some = 32 if x.device.type == "cpu" else max(1, self._at_once(x.device) // (32 * x[0].numel()))
        return torch.cat([self._alone(self.judging, row, piece) for piece in x.split(some)])

    def _alone(self, module: nn.Module, row: Float[Tensor, " parameter"], x: Tensor) -> Tensor:
        """A single model, with images in the channels-last format, in which convolutions are fastest."""
        views = self._training_views(row) if module is self.training else self._views(row)
        images = {name: _channels_last(view) for name, view in views.items()}
        if x.is_cuda and module is self.judging:
            return forward_of(module)(images, _channels_last(x))
        predicted: Tensor = functional_call(thread_copy(module), images, (_channels_last(x),))
        return predicted

    def _one_loss(self, row: Float[Tensor, " parameter"], x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.predict(row, x), y)

    def _training_loss(self, row: Float[Tensor, " parameter"], x: Tensor, y: Tensor) -> Tensor:
        predicted: Tensor = functional_call(thread_copy(self.training), self._training_views(row), (x,))
        return self.loss(predicted, y)

    def _views(self, row: Float[Tensor, " parameter"]) -> dict[str, Tensor]:
        # Use split, not slices: its backward pass is one concatenation, not one zero-filled row per layer.
        parts = row.split([shape.numel() for shape in self.shapes])
        shaped = zip(self.names, self.shapes, parts, strict=True)
        return {name: part.view(shape) for name, shape, part in shaped}

    def _training_views(self, row: Float[Tensor, " parameter"]) -> dict[str, Tensor]:
        """Views for training. The statistics are detached copies, so that layers may update them."""
        views = self._views(row)
        return views | {name: views[name].detach().clone() for name in self.statistics}

    def _at_once(self, device: torch.device) -> int:
        """How many numbers one pass may hold: in float32, 16 MiB on a CPU and 1 GiB on a GPU, if the budget allows."""
        return self.execution.numbers_at_once(2**22 if device.type == "cpu" else 2**28)

    def _one_by_one(self, models: Tensor) -> bool:
        """Whether models are faster one after another: convolutions on a CPU, or of many models on a GPU."""
        return self.convolves and (models.device.type == "cpu" or len(models) > 32)


def _channels_last(values: Tensor) -> Tensor:
    return values.contiguous(memory_format=torch.channels_last) if values.ndim == 4 else values


def _chosen(share: Sequence[str], parameters: Mapping[str, nn.Parameter], module: nn.Module) -> set[str]:
    def matching(start: str, names: Iterable[str]) -> Iterator[str]:
        return (name for name in names if name == start or name.startswith(start + "."))

    for start in share:
        if not any(matching(start, parameters)):
            if any(matching(start, dict(module.named_parameters()))):
                raise BadInput(f"share names {start!r}, which is frozen (requires_grad=False) and so is never sent")
            raise unknown("parameter to share", start, parameters)
    return {name for start in share for name in matching(start, parameters)}

"""A trial of a model, a loss and metrics on a few items, so that errors are found before a run starts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from varangian.core.batches import HeldOut, Pool, as_dtype
from varangian.core.checks import one_line, shown
from varangian.core.errors import BadInput
from varangian.core.models.base import Sample
from varangian.core.models.stacked import Stacked

CPU = torch.device("cpu")


def check_model(model: Any, loss: Any) -> None:
    """Refuse what is no module, or no loss."""
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise BadInput(f"model is the class {model.__name__}; pass a module, such as {model.__name__}(…)")
    if not isinstance(model, nn.Module):
        raise BadInput(f"model must be an nn.Module, but is {shown(model)}")
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise BadInput(f"parameter {name} of the model is on torch's meta device and has no values yet")
        if not parameter.is_floating_point():
            raise BadInput(f"parameter {name} of the model is of {parameter.dtype}; parameters must be real numbers")
    if isinstance(loss, type):
        raise BadInput(f"loss is the class {loss.__name__}; pass a function, such as {loss.__name__}()")
    if not callable(loss):
        raise BadInput(f"loss must be a function of (predictions, targets), but is {shown(loss)}")


def tried(model: Stacked, pool: Pool, what: str, batch: int) -> Stacked:
    """Try a few items, with the smallest and the largest label among them, in training and in judging.

    Returns:
        The model, which now knows whether its training draws random numbers.
    """
    places, extremes = _usual(pool, min(batch, 4)), _extreme_labels(pool)
    row = model.start(1, torch.float32, CPU)
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        # Losses warn when they broadcast targets to the shape of predictions, which is never intended.
        warnings.simplefilter("error", UserWarning)
        sample = _sample(pool, places)
        x, y = sample
        before = torch.get_rng_state()
        try:
            value = _loss(model, row[0], sample)
        except Exception as error:
            raise BadInput(
                f"the {what} data does not fit the model: inputs of shape {tuple(x[0].shape)}, targets of shape "
                f"{tuple(y[0].shape)} and type {y.dtype}: {one_line(error)}"
            ) from error
        _check_loss(value)
        if not torch.equal(before, torch.get_rng_state()):
            raise BadInput(
                "the model draws random numbers when it is evaluated; use nn.Dropout, or write "
                "F.dropout(x, p, training=self.training)"
            )
        for place in extremes:
            _check_label(model, pool, what, int(place), row[0])
        with torch.no_grad():
            _attempt(lambda: model.judge(row[:, None], sample), "judged")
            _attempt(lambda: model.gradient(row, sample), "trained")
        draws = not torch.equal(before, torch.get_rng_state())
    return replace(model, random=model.random or draws)


def _loss(model: Stacked, row: Tensor, sample: Sample) -> Any:
    with torch.no_grad():
        return model.loss(model.predict(row, sample[0][0]), sample[1][0])


def _attempt(step: Callable[[], object], done: str) -> None:
    try:
        step()
    except Exception as error:
        hint = "; all agents are computed in one pass by torch.func.vmap" if "vmap" in str(error) else ""
        raise BadInput(f"the model cannot be {done}: {one_line(error)}{hint}") from error


def _check_loss(value: Any) -> None:
    if not isinstance(value, Tensor):
        raise BadInput(f"the loss must be a tensor with one number, but is of type {type(value).__name__}")
    if value.ndim:
        raise BadInput(
            f"the loss must be one number per batch, but has shape {tuple(value.shape)}; take the mean over the batch"
        )
    if not value.is_floating_point():
        raise BadInput(f"the loss must be a real number, but is of {value.dtype}; it needs a gradient")
    if bool(value.isnan()):
        raise BadInput("the loss of the first model is nan; check the loss, and the numbers of the model")


def _usual(pool: Pool, most: int) -> Tensor:
    """Some items. Where targets are labels, those with the middle label, which is hardly out of range."""
    if pool.y.is_floating_point() or pool.y.ndim > 1:
        return torch.arange(len(pool.y))[:most]
    return torch.nonzero(pool.y == pool.y.median())[:most, 0]


def _extreme_labels(pool: Pool) -> Tensor:
    """The items with the smallest and with the largest label, if targets are labels."""
    if pool.y.is_floating_point():
        return torch.empty(0, dtype=torch.long)
    label = pool.y.reshape(len(pool.y), -1)[:, 0].long()
    return torch.stack((label.argmin(), label.argmax()))


def _check_label(model: Stacked, pool: Pool, what: str, place: int, row: Tensor) -> None:
    """An item alone: a loss may leave out a label such as −100, and is then nan where no other is left."""
    sample = _sample(pool, torch.tensor([place]))
    label, owner = int(sample[1].flatten()[0]), int((pool.members == place).any(1).int().argmax())
    where = f"label {label} in the {what} data of agent {owner}"
    try:
        value = _loss(model, row, sample)
    except Exception as error:
        raise BadInput(f"{where} does not fit the model: {one_line(error)}") from error
    if bool(value.isnan()):
        raise BadInput(f"the loss is nan for {where}; labels must be 0 … classes − 1 (cross-entropy leaves out −100)")


def _sample(pool: Pool, places: Tensor) -> Sample:
    """These items as the sample of a single agent."""
    return tuple(as_dtype(part[places], torch.float32)[None] for part in (pool.x, pool.y))


def check_metrics(model: Stacked, pool: Pool, metrics: Mapping[str, Callable[..., Any]]) -> None:
    """Try every metric on the test data of the first agent."""
    first = pool.part(torch.zeros(1, dtype=torch.long))
    row = model.start(1, torch.float32, CPU)
    for name, metric in metrics.items():
        if not callable(metric):
            raise BadInput(f"metric {name!r} must be a function of (predictions, targets), but is {shown(metric)}")
        try:
            with torch.no_grad():
                value = HeldOut(model, first, {name: metric})(row)[name]
        except Exception as error:
            raise BadInput(
                f"metric {name!r} failed on the test data of agent 0; it must return one value per item: "
                f"{one_line(error)}"
            ) from error
        if not bool(value.isfinite().all()):
            raise BadInput(f"metric {name!r} is {float(value[0])} on the test data of agent 0; it must be finite")

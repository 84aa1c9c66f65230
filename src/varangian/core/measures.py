"""Metrics on test data: of items, averaged over an agent's items, or of sets, such as F1, AUC and calibration error."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from varangian.core.errors import BadInput

Metric = Callable[[Tensor, Tensor], Any]
"""From predictions and targets to one value per item, or to one number for all of them."""

_MEASURED = {"loss", "test_loss", "train_loss", "regret", "msd", "byzantine_weight", "kept", "backdoor_success"}
_DIMENSIONS = {"seed", "round", "agent", "epoch", "snapshot", "slot", "axis", "cell", "rule", "attack", "byzantine"}
_OTHERS = {"weight", "sender", "byzantine_agent", "group", "position", "seconds", "name", "study", "rounds"}
_ON_CLUSTERS = {"exchanged_bytes", "stage_seconds", "stage"}
RESERVED = _MEASURED | _DIMENSIONS | _OTHERS | _ON_CLUSTERS
"""Names that results use for something else."""
_HIGHER = {"f1", "fbeta", "auc", "auroc", "ap", "map", "precision", "recall", "sensitivity", "specificity", "r2", "iou"}
_HIGHER |= {"jaccard", "dice", "mcc", "kappa", "similarity", "correlation", "psnr", "ssim"}


def higher_is_better(metric: str) -> bool:
    """Whether the name of a metric says that higher values are better.

    >>> [higher_is_better(name) for name in ("accuracy", "macro_f1", "test_auc", "calibration_error", "brier")]
    [True, True, True, False, False]
    """
    words = re.split(r"[^a-z0-9]+", metric.lower())
    return "accuracy" in metric or "explained" in metric or not _HIGHER.isdisjoint(words)


@runtime_checkable
class Accumulating(Protocol):
    """A metric that collects items and then gives one value, as those of torchmetrics do."""

    def update(self, predicted: Tensor, y: Tensor) -> None: ...
    def compute(self) -> Any: ...
    def reset(self) -> None: ...


@dataclass(frozen=True, eq=False)
class OfSet:
    """A metric of a whole set of items: one number for the predictions and targets of one agent.

    Agents are measured one after another, since such metrics can rarely be vectorised.
    """

    metric: Metric | Accumulating
    name: str

    def __call__(
        self, predicted: Float[Tensor, "agent item ..."], y: Tensor, counts: Tensor
    ) -> Float[Tensor, " agent"]:
        """The value of every agent, from its first `counts[agent]` items."""
        rows = zip(predicted, y, counts.tolist(), strict=True)
        values = [self._one(own[:count], target[:count]) for own, target, count in rows]
        return torch.tensor(values, dtype=torch.float64, device=predicted.device)

    def _one(self, predicted: Tensor, y: Tensor) -> float:
        return one_number(measured(self.metric, predicted, y), self.name)

    def to(self, device: torch.device) -> OfSet:
        """The same metric on another device."""
        if not isinstance(self.metric, torch.nn.Module):
            return self
        return OfSet(copy.deepcopy(self.metric).to(device), self.name)


def measured(metric: Metric | Accumulating, predicted: Tensor, y: Tensor) -> Any:
    """The value of a metric on these items; earlier items do not count."""
    if not isinstance(metric, Accumulating):
        return metric(predicted, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torchmetrics warns where an agent lacks a class
        metric.reset()
        metric.update(predicted, y)
        value = metric.compute()
        metric.reset()
    return value


def one_number(value: Any, name: str) -> float:
    """
    >>> one_number(torch.tensor(0.5), "f1")
    0.5
    """
    try:
        number = torch.as_tensor(value)
        if number.ndim == 0:
            return float(number)
        about = f"a tensor of shape {tuple(number.shape)}"
    except (TypeError, ValueError, RuntimeError):
        about = f"a value of type {type(value).__name__}"
    raise BadInput(f"the metric {name!r} must give one number for all items, or one per item, but gave {about}")


def read_metrics(
    metrics: Mapping[str, Metric | Accumulating], predicted: Tensor, y: Tensor
) -> dict[str, Metric | OfSet]:
    """The metrics, each tried on a few items to see whether it is one of items or of sets.

    Args:
        metrics: Functions of (predictions, targets), or metrics of torchmetrics, by name.
        predicted: Predictions for at least two items.
        y: Their targets.
    """
    return {name: _read(name, metric, predicted, y) for name, metric in metrics.items() if check_name(name, metric)}


def _read(name: str, metric: Metric | Accumulating, predicted: Tensor, y: Tensor) -> Metric | OfSet:
    if isinstance(metric, type) or not callable(metric):
        raise BadInput(f"the metric {name!r} must be a function of (predictions, targets), but is {metric!r}")
    own = copy.deepcopy(metric) if isinstance(metric, Accumulating) else metric
    try:
        with torch.no_grad():
            value = measured(own, predicted, y)
    except Exception as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        about = f"predictions of shape {tuple(predicted.shape)} and targets of shape {tuple(y.shape)}"
        raise BadInput(f"the metric {name!r} failed on {about}: {said}") from error
    if isinstance(value, Tensor) and value.ndim == 1 and len(value) == len(y) and not isinstance(own, Accumulating):
        return metric
    one_number(value, name)
    return OfSet(own, name)


def check_name(name: str, metric: object) -> bool:
    """Refuse names that results use for something else, and names that say the wrong direction."""
    if not isinstance(name, str) or not re.fullmatch(r"[^\W\d_][\w .-]*", name):
        raise BadInput(f"a metric cannot be called {name!r}; use letters, digits, _ and -, and begin with a letter")
    taken = name in RESERVED or name.startswith(("alone_", "train_")) or re.search(r"_group_\d+$", name)
    if taken:
        raise BadInput(f"a metric cannot be called {name!r}: results use this name for something else; choose another")
    if getattr(metric, "higher_is_better", None) and not higher_is_better(name):
        raise BadInput(
            f"higher values of the metric {name!r} are better, but its name does not say so; put a word such as f1, "
            "auc, recall or accuracy into it"
        )
    return True

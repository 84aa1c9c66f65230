"""Data as people have it: tensors, NumPy arrays, tables, datasets and loaders, made into checked tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from varangian.core.checks import one_line
from varangian.core.errors import BadInput

Items = (
    tuple[Tensor, Tensor]
    | tuple[ArrayLike, ArrayLike]
    | Dataset[tuple[Tensor, Tensor]]
    | DataLoader[tuple[Tensor, ...]]
)
"""The data of one agent: a pair (inputs, targets) of tensors or arrays, a map-style Dataset of such pairs, or a
DataLoader of batches of them."""


def check_one_per_agent(data: Any, what: str) -> None:
    """Refuse what is not a sequence with one entry per agent."""
    if isinstance(data, Dataset | DataLoader):
        raise BadInput(f"the {what} data is one {type(data).__name__}; give a list with one dataset per agent")
    if isinstance(data, str | bytes | dict) or not isinstance(data, Sequence):
        raise BadInput(f"the {what} data is {_kind(data)}; give a list with one pair (inputs, targets) per agent")
    if isinstance(data, tuple) and len(data) == 2 and all(isinstance(part, Tensor | np.ndarray) for part in data):
        raise BadInput(f"the {what} data is one pair (inputs, targets); give a list with one such pair per agent")
    if not data:
        raise BadInput(f"the {what} data is empty; give one dataset per agent")


def tensors_of(items: Any, where: str) -> tuple[Tensor, Tensor]:
    """The inputs and targets of one agent. `where` names the agent in error messages.

    A dataset is read once, item by item. A loader is read once, batch by batch: its sampler decides which items the
    agent has, and how often.
    """
    x, y = _read(items, where)
    if not x.ndim or not y.ndim:
        raise BadInput(f"{where} is one number, not a list of items; give arrays whose first dimension is the item")
    if len(x) != len(y):
        raise BadInput(f"{where} has {len(x)} inputs and {len(y)} targets")
    if not len(x):
        raise BadInput(f"{where} is empty; the agent has no data: give every agent at least one item")
    check_finite(x, f"{where} has inputs")
    check_finite(y, f"{where} has targets")
    # Losses take labels as 64-bit integers only.
    labels = y.ndim == 1 and not y.is_floating_point() and not y.is_complex() and y.dtype != torch.bool
    return x, y.long() if labels else y


def check_finite(values: Tensor, what: str) -> None:
    """Refuse nan and infinity; say where the first one is."""
    if values.is_floating_point() and not bool(values.isfinite().all()):
        bad = ~values.isfinite().reshape(len(values), -1).all(1)
        first, number = int(bad.int().argmax()), int(bad.sum())
        raise BadInput(
            f"{what} that are not finite, the first in item {first} ({number} in all); remove or replace them"
        )


def _read(items: Any, where: str) -> tuple[Tensor, Tensor]:
    if isinstance(items, DataLoader):
        return _of_loader(items, where)
    if isinstance(items, IterableDataset):
        raise BadInput(f"{where} is a stream ({type(items).__name__}); give a map-style dataset, with len and []")
    if isinstance(items, Dataset):
        try:
            drawn = [items[i] for i in range(len(items))]  # type: ignore[arg-type]
            if not drawn:
                return torch.empty(0, 1), torch.empty(0)
            x, y = (torch.stack([torch.as_tensor(item[part]) for item in drawn]) for part in (0, 1))
        except Exception as error:
            raise BadInput(f"{where} is not a map-style dataset of equal-shaped pairs: {one_line(error)}") from error
        return x, y
    if isinstance(items, Tensor | np.ndarray | str | dict) or not isinstance(items, Sequence) or len(items) != 2:
        raise BadInput(f"{where} is {_kind(items)}; give a pair (inputs, targets), a Dataset or a DataLoader")
    return _tensor(items[0], f"{where}: the inputs"), _tensor(items[1], f"{where}: the targets")


def _of_loader(loader: DataLoader[Any], where: str) -> tuple[Tensor, Tensor]:
    if isinstance(loader.dataset, IterableDataset):
        raise BadInput(f"{where} is a loader of a stream; give a loader of a map-style dataset, with len and []")
    try:
        batches = [(torch.as_tensor(batch[0]), torch.as_tensor(batch[1])) for batch in loader]
        if not batches:
            return torch.empty(0, 1), torch.empty(0)
        x, y = (torch.cat([batch[part] for batch in batches]) for part in (0, 1))
    except Exception as error:
        raise BadInput(f"{where} is not a loader of pairs (inputs, targets): {one_line(error)}") from error
    return x, y


def _tensor(values: Any, where: str) -> Tensor:
    if isinstance(values, Tensor):
        if values.is_meta:
            raise BadInput(f"{where} are on torch's meta device and hold no numbers")
        return values.detach().cpu()
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "biuf":
            raise BadInput(f"{where} are not numbers but {array.dtype}; turn them into numbers first")
        # A copy: torch has no arrays that are read-only or have negative strides.
        return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))
    except (ValueError, TypeError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{where} cannot be made into one array: {one_line(error)}") from error


def _kind(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"of type {type(value).__name__}" + ("" if shape is None else f" with shape {tuple(shape)}")

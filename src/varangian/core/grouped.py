"""Data as scikit-learn has it (`X`, `y`, `groups`), one agent per group, split into training and test data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from varangian.core.draws import Draws
from varangian.core.errors import BadInput

Array = np.ndarray[Any, Any]
NUMBERS = "fiub"
"""NumPy's kinds of numbers: floating point, signed and unsigned integers, truth values."""


@dataclass(frozen=True, eq=False)
class Grouped:
    """The data of every agent, for `Task.supervised`."""

    train: list[tuple[Tensor, Tensor]]
    test: list[tuple[Tensor, Tensor]]
    names: list[str]
    """The group of every agent."""
    classes: list[Any]
    """What each label stands for; empty if targets are real numbers."""


def by_group(x: Any, y: Any, groups: Any, *, test_share: float = 0.25, seed: int = 0) -> Grouped:
    """Every group becomes an agent. A share of its rows, drawn by seed, becomes its test data.

    Args:
        x: Features, one row per item: a NumPy array, a pandas DataFrame, a tensor or a list.
        y: Targets. Texts, integers and truth values are classes, and are numbered 0, 1, …. Floating-point numbers are
            real targets, and become a column, as `nn.Linear(…, 1)` predicts it.
        groups: The group of every row: texts or numbers. Agents are in the order of the sorted groups.
        test_share: The share of each group's rows for testing; at least one row.
        seed: Another seed gives another split. Use it in a function from the seed to a task.

    Returns:
        `train` and `test` with one pair of tensors per agent, `names` and `classes`.

    >>> x, y, who = [[0.0], [1.0], [2.0], [3.0]], ["no", "no", "yes", "no"], ["ann", "bob", "ann", "bob"]
    >>> data = by_group(x, y, who, test_share=0.5)
    >>> data.names, data.classes, [len(inputs) for inputs, _ in data.train]
    (['ann', 'bob'], ['no', 'yes'], [1, 1])
    """
    if not 0 < test_share < 1:
        raise BadInput(f"test_share must be between 0 and 1, but is {test_share}")
    inputs, (targets, classes), members = _features(x), _targets(y), _column(groups, "groups")
    for name, part in (("y", targets), ("groups", members)):
        if len(part) != len(inputs):
            raise BadInput(f"x has {len(inputs)} rows, but {name} has {len(part)}")
    names, number = np.unique(members, return_inverse=True)
    counts = np.bincount(number.ravel(), minlength=len(names))
    if not len(names) or counts.min() < 2:
        small = [str(name) for name, count in zip(names, counts, strict=True) if count < 2]
        many = f"{len(small)} groups have" if len(small) > 1 else "one group has"
        raise BadInput(
            f"{many} only one row ({', '.join(small[:3])}), and every agent needs one to train and one to test on; "
            "leave such groups out"
            if small
            else "there are no rows"
        )
    lots = Draws.of(seed, len(names)).uniform("split", 0, int(counts.max()))
    train: list[tuple[Tensor, Tensor]] = []
    test: list[tuple[Tensor, Tensor]] = []
    # The rows of each group, in their order in the table.
    rows = np.split(np.argsort(number.ravel(), kind="stable"), counts.cumsum()[:-1])
    for own, lot in zip(rows, lots, strict=True):
        mixed = torch.from_numpy(own)[lot[: len(own)].argsort()]
        held = min(len(own) - 1, max(1, round(len(own) * test_share)))
        train.append((inputs[mixed[held:]], targets[mixed[held:]]))
        test.append((inputs[mixed[:held]], targets[mixed[:held]]))
    return Grouped(train, test, [str(name) for name in names], classes)


def _features(x: Any) -> Tensor:
    values = np.asarray(x)
    if values.dtype.kind not in NUMBERS:
        named = [str(c) for c in getattr(x, "columns", ()) if np.asarray(x[c]).dtype.kind not in NUMBERS]
        which = f"the columns {', '.join(named)} of x hold" if named else "x holds"
        raise BadInput(f"{which} something else than numbers; turn it into numbers, or leave it out")
    if values.ndim == 0:
        raise BadInput("x is a single number; give one row per item")
    features = torch.from_numpy(values.astype(np.float32))
    _check_finite(features, "x")
    return features[:, None] if features.ndim == 1 else features


def _targets(y: Any) -> tuple[Tensor, list[Any]]:
    values = _column(y, "y")
    if values.dtype.kind == "f":
        targets = torch.from_numpy(values.astype(np.float32))[:, None]
        _check_finite(targets, "y")
        return targets, []
    classes, label = np.unique(values, return_inverse=True)
    return torch.from_numpy(label.ravel().astype(np.int64)), classes.tolist()


def _column(given: Any, name: str) -> Array:
    values: Array = np.asarray(given)
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if values.ndim != 1:
        raise BadInput(f"{name} must have one entry per row, but has shape {values.shape}")
    missing = np.array([one is None or one != one for one in values.tolist()], dtype=bool)
    if missing.any():
        raise BadInput(f"{name} has no value in row {int(missing.argmax())}; leave such rows out")
    return values.astype(str) if values.dtype.kind == "O" else values


def _check_finite(values: Tensor, name: str) -> None:
    bad = ~values.flatten(1).isfinite().all(1) if values.ndim > 1 else ~values.isfinite()
    if bool(bad.any()):
        raise BadInput(f"{name} has a value that is not finite in row {int(bad.byte().argmax())}; replace or remove it")

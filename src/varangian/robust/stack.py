"""The door of this room: what comes in as vectors, who of them is there, and how many may lie.

Vectors come as a plain stack `(n, d)`, or as padded neighbourhoods `(..., n, d)` with a mask of who is present; slot 0
of a neighbourhood is the receiver itself. A vector with nan or inf is not a vector: it counts as absent and as one of
the f, so that the result is that of the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from varangian.errors import BadInput

Array = TypeVar("Array", Tensor, NDArray[Any])
"""Torch in, torch out; NumPy in, NumPy out."""

Number = int | Int[Tensor, "*batch"]
"""The same for all neighbourhoods, or one for each."""

Mask = Bool[Tensor, "*batch n"] | Bool[np.ndarray, "*batch n"] | None

_HALF = (torch.float16, torch.bfloat16)
_KNOWN = (*_HALF, torch.float32, torch.float64, np.dtype("f2"), np.dtype("f4"), np.dtype("f8"))


class Present(NamedTuple):
    """Who takes part: said to be there, and finite."""

    who: Bool[Tensor, "*batch n"] | None
    """None where it is everyone, and known to be."""
    number: Number
    lost: Number
    """How many were said to be there and are not finite: as many fewer liars are left among the others."""
    size: Float[Tensor, "*batch n"] | None = None
    """The largest magnitude in each vector, where it had to be found."""


@dataclass(frozen=True, eq=False)
class Stack(Generic[Array]):
    """Vectors as tensors, and the way back to what the caller uses."""

    vectors: Float[Tensor, "*batch n d"]
    mask: Bool[Tensor, "*batch n"] | None
    numpy: bool

    @property
    def n(self) -> int:
        return self.vectors.shape[-2]

    @property
    def d(self) -> int:
        return self.vectors.shape[-1]

    @property
    def work(self) -> torch.dtype:
        """What is computed in."""
        return torch.float32 if self.vectors.dtype in _HALF else self.vectors.dtype

    @property
    def may_look(self) -> bool:
        """Whether numbers may steer what is done next: on an accelerator that would wait for it, and the vectors of
        many neighbourhoods do not agree on what to do."""
        return self.mask is None and self.vectors.ndim == 2 and self.vectors.device.type == "cpu"

    def back(self, result: Tensor) -> Array:
        """In the caller's kind of array."""
        return cast(Array, result.numpy() if self.numpy else result)

    def vector(self, result: Float[Tensor, "*batch d"], present: Present) -> Array:
        """A result in the type of the vectors; slot 0, made finite, where nobody is present."""
        result = result.to(self.vectors.dtype)
        if present.who is not None:
            nobody = torch.as_tensor(present.number == 0, device=result.device)
            result = torch.where(nobody[..., None], self.vectors[..., 0, :].nan_to_num(), result)
        return self.back(result)

    def columns(self, at_once: int) -> Iterator[slice]:
        """Blocks of columns that hold about so many numbers, or 100 times as many where calls are what costs."""
        if self.vectors.device.type != "cpu":
            at_once *= 100
        width = max(1, at_once * self.d // max(1, self.vectors.numel()))
        for start in range(0, self.d, width):
            yield slice(start, min(start + width, self.d))


def admit(vectors: Array, mask: Mask = None) -> Stack[Array]:
    """Check what came in, by its shape and type alone."""
    kind = getattr(vectors, "dtype", type(vectors).__name__)
    if kind not in _KNOWN:
        raise BadInput(f"vectors must be a torch or NumPy array of floating numbers, not {kind}")
    if vectors.ndim < 2 or 0 in vectors.shape[-2:]:
        raise BadInput(f"vectors must be a stack (n, d) of at least one number, not {tuple(vectors.shape)}")
    tensor = _tensor(vectors) if isinstance(vectors, np.ndarray) else vectors.detach()
    if mask is None:
        return Stack(tensor, None, isinstance(vectors, np.ndarray))
    who = torch.as_tensor(mask, device=tensor.device)
    if who.dtype != torch.bool or who.shape != tensor.shape[:-1]:
        want, got = tuple(tensor.shape[:-1]), f"{tuple(who.shape)} of {who.dtype}"
        raise BadInput(f"a mask says who is present: it must be {want} of torch.bool, not {got}")
    return Stack(tensor, who, isinstance(vectors, np.ndarray))


def _tensor(array: NDArray[Any]) -> Tensor:
    """A view where that is possible: torch has no arrays that cannot be written to, or that run backwards."""
    possible = array.flags.writeable and all(step >= 0 for step in array.strides)
    return torch.from_numpy(array if possible else array.copy())


def look(stack: Stack[Any]) -> Present:
    """Who is present. A plain stack is looked at, and most often everyone is; elsewhere nobody waits for the answer."""
    if stack.may_look:
        total = stack.vectors.sum() if stack.vectors.dtype == stack.work else math.nan
        # A sum is finite only where all its terms are, and costs a tenth of asking each.
        if math.isfinite(total):
            return everyone(stack)
    # Nan is the largest of all, and below nothing.
    size = torch.maximum(stack.vectors.amax(-1), -stack.vectors.amin(-1))
    finite = size < math.inf
    if stack.may_look:
        number = int(finite.sum())
        return everyone(stack) if number == stack.n else Present(finite, number, stack.n - number, size)
    if stack.mask is None:
        return Present(finite, finite.sum(-1), (~finite).sum(-1), size)
    who = finite & stack.mask
    return Present(who, who.sum(-1), (stack.mask & ~finite).sum(-1), size)


def everyone(stack: Stack[Any]) -> Present:
    return Present(None, stack.n, 0)


class Bound(NamedTuple):
    """times · f + plus < n: how many liars a rule bears."""

    times: Literal[1, 2]
    plus: int

    def check(self, rule: str, f: Number, stack: Stack[Any]) -> None:
        """With shapes and whole numbers alone; with a mask, or one f for each neighbourhood, f is lowered instead."""
        if isinstance(f, Tensor):
            if f.is_floating_point() or f.dtype == torch.bool or f.shape != stack.vectors.shape[:-2]:
                want = tuple(stack.vectors.shape[:-2])
                raise BadInput(f"{rule} takes f as a whole number, or as a tensor {want} of them, not {f.dtype}")
            return
        if isinstance(f, bool) or not isinstance(f, int) or f < 0:
            raise BadInput(f"{rule} takes f as a whole number that is not negative, not {f!r}")
        if stack.mask is None and self.times * f + self.plus >= stack.n:
            raise BadInput(f"{rule} needs {self}, but n is {stack.n} and f is {f}")

    def bear(self, f: Number, present: Present) -> Number:
        """f less those already found out, and no more than the number present can bear."""
        if isinstance(present.number, Tensor):
            left = torch.as_tensor(f, device=present.number.device) - present.lost
            return left.minimum((present.number - self.plus - 1) // self.times).clamp(min=0)
        if isinstance(f, Tensor):
            f = int(f)
        return max(0, min(int(f - present.lost), (present.number - self.plus - 1) // self.times))

    def __str__(self) -> str:
        left = "f" if self.times == 1 else f"{self.times}f"
        return f"{left} + {self.plus} < n" if self.plus else f"{left} < n"


MINORITY = Bound(2, 0)


def settled(change: Tensor, tolerance: float) -> bool:
    """Whether to stop before the last iteration; on an accelerator looking would wait for it, so there it is never."""
    return change.device.type == "cpu" and float(change.abs_().max()) <= tolerance

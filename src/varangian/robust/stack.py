"""The input of all robust functions: the vectors, which of them are present, and how many may be Byzantine.

Vectors come as a plain stack `(n, d)`, or as padded neighbourhoods `(..., n, d)` with a mask that says which are
present. Slot 0 of a neighbourhood is the receiver itself. A vector with nan or inf counts as absent and as one of the
f, so the result is that of the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from varangian.core.errors import BadInput
from varangian.core.tracing import has_values

Array = TypeVar("Array", Tensor, NDArray[Any])
"""Torch in, torch out; NumPy in, NumPy out."""

Number = int | Int[Tensor, "*batch"]
"""One number for all neighbourhoods, or one for each."""

Mask = Bool[Tensor, "*batch n"] | Bool[np.ndarray, "*batch n"] | None
"""Which vectors are present. None means all."""

_HALF = (torch.float16, torch.bfloat16)
_KNOWN = (*_HALF, torch.float32, torch.float64, np.dtype("f2"), np.dtype("f4"), np.dtype("f8"))


class Present(NamedTuple):
    """Which vectors take part: those that the mask admits and that are finite."""

    who: Bool[Tensor, "*batch n"] | None
    """None if it is known that all vectors are present."""
    number: Number
    """How many vectors are present."""
    lost: Number
    """How many vectors were admitted but are not finite. So many fewer Byzantine vectors are left among the others."""
    size: Float[Tensor, "*batch n"] | None = None
    """The largest magnitude in each vector, if it was computed."""


class Stack(NamedTuple, Generic[Array]):
    """The vectors as a tensor, and the way back to the caller's kind of array."""

    vectors: Float[Tensor, "*batch n d"]
    mask: Bool[Tensor, "*batch n"] | None
    numpy: bool
    """Whether the caller's array is from NumPy."""
    may_look: bool
    """Whether the code may branch on the numbers: those of a plain stack on a CPU.

    On an accelerator it would have to wait for them. And the neighbourhoods of a batch would not agree on a branch.
    """

    @property
    def n(self) -> int:
        return self.vectors.shape[-2]

    @property
    def d(self) -> int:
        return self.vectors.shape[-1]

    @property
    def work(self) -> torch.dtype:
        """The type of the computation."""
        return torch.float32 if self.vectors.dtype in _HALF else self.vectors.dtype

    def back(self, result: Tensor) -> Array:
        """The result as the caller's kind of array."""
        return cast(Array, result.numpy() if self.numpy else result)

    def vector(self, result: Float[Tensor, "*batch d"], present: Present) -> Array:
        """The result in the type of the vectors. Where no vector is present, it is slot 0, made finite."""
        if result.dtype != self.vectors.dtype:
            result = result.to(self.vectors.dtype)
        if present.who is not None:
            nobody = torch.as_tensor(present.number == 0, device=result.device)
            result = torch.where(nobody[..., None], self.vectors[..., 0, :].nan_to_num(), result)
        return self.back(result)

    def columns(self, at_once: int) -> Iterator[slice]:
        """Blocks of columns with about `at_once` numbers. On accelerators they are 100 times as large, because call
        overhead dominates."""
        if not self.vectors.is_cpu:
            at_once *= 100
        width = max(1, at_once * self.d // max(1, self.vectors.numel()))
        for start in range(0, self.d, width):
            yield slice(start, min(start + width, self.d))

    def block(self, columns: slice) -> Float[Tensor, "*batch n columns"]:
        """Some columns in the type of the computation. They are not copied if they have it already."""
        block = self.vectors if columns.stop - columns.start == self.d else self.vectors[..., columns]
        return block if block.dtype == self.work else block.to(self.work)


def admit(vectors: Array, mask: Mask = None) -> Stack[Array]:
    """Check the input by its shape and type alone."""
    kind = getattr(vectors, "dtype", type(vectors).__name__)
    if kind not in _KNOWN:
        raise BadInput(f"vectors must be a torch or NumPy array of floating-point numbers, not {kind}")
    if vectors.ndim < 2 or 0 in vectors.shape[-2:]:
        raise BadInput(
            f"vectors must be a stack (n, d) with at least one number, but their shape is {tuple(vectors.shape)}"
        )
    tensor = _tensor(vectors) if isinstance(vectors, np.ndarray) else vectors.detach()
    numpy = isinstance(vectors, np.ndarray)
    if mask is None:
        return Stack(tensor, None, numpy, tensor.ndim == 2 and tensor.is_cpu)
    who = torch.as_tensor(mask, device=tensor.device)
    if who.dtype != torch.bool or who.shape != tensor.shape[:-1]:
        want, got = tuple(tensor.shape[:-1]), f"{tuple(who.shape)} of {who.dtype}"
        raise BadInput(f"a mask says which vectors are present: it must be {want} of torch.bool, not {got}")
    return Stack(tensor, who, numpy, False)


def _tensor(array: NDArray[Any]) -> Tensor:
    """A view if possible. Torch has no arrays that are read-only or have negative strides."""
    possible = array.flags.writeable and all(step >= 0 for step in array.strides)
    return torch.from_numpy(array if possible else array.copy())


def look(stack: Stack[Any]) -> Present:
    """Which vectors are present. A plain stack on a CPU is inspected, and most often all are present. Elsewhere nothing
    waits for the answer."""
    if stack.may_look:
        total = stack.vectors.sum() if stack.vectors.dtype == stack.work else math.nan
        # A sum is finite only if all its terms are, and it takes a tenth of the time of asking each.
        if math.isfinite(total):
            return everyone(stack)
    # Amax and maximum pass nan on, and nan < inf is false.
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
    """All vectors are present."""
    return Present(None, stack.n, 0)


class Bound(NamedTuple):
    """times · f + plus < n: how many Byzantine vectors a function tolerates."""

    times: Literal[1, 2]
    plus: int

    def check(self, rule: str, f: Number, stack: Stack[Any]) -> None:
        """Refuse an f out of bounds, by shapes and whole numbers alone. With a mask, or with one f per neighbourhood,
        `bear` lowers f instead."""
        if isinstance(f, Tensor):
            if f.is_floating_point() or f.dtype == torch.bool or f.shape != stack.vectors.shape[:-2]:
                want, got = tuple(stack.vectors.shape[:-2]), f"{tuple(f.shape)} of {f.dtype}"
                raise BadInput(f"{rule} needs f to be a whole number, or a tensor {want} of them, not {got}")
            return
        if isinstance(f, bool) or not isinstance(f, int) or f < 0:
            raise BadInput(f"{rule} needs f to be a whole number of 0 or more, not {f!r}")
        if stack.mask is None and self.times * f + self.plus >= stack.n:
            raise BadInput(f"{rule} needs {self}, but n is {stack.n} and f is {f}")

    def bear(self, f: Number, present: Present) -> Number:
        """f less the vectors already found to be bad, and at most what the number present tolerates."""
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
"""Byzantine vectors are fewer than half."""


def ranked(values: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """The values of each row in ascending order. NumPy compares many numbers at once, unlike torch on a CPU.

    >>> ranked(torch.tensor([[3.0, 1.0, 2.0]]))
    tensor([[1., 2., 3.]])
    """
    if not has_values(values):
        return values.sort(-1).values
    return torch.from_numpy(np.sort(values.numpy(), axis=-1))

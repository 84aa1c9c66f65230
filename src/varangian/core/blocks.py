"""How numbers lie in memory, and work on many rows in blocks that a processor's cache can hold.

Where agents have few parameters, their matrix is stored column after column: operations then run along agents, not
along two or three numbers at a time. Torch keeps the order of a matrix in everything it computes from it, number by
number; only where rows are put together must somebody see to it.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

Done = TypeVar("Done")

FEW = 8
"""Up to how many parameters a matrix of models is stored column after column."""
ROWS = 2**14
"""How many rows of such a matrix make a block."""

_AT_ONCE: ContextVar[int] = ContextVar("blocks worked on at once", default=1)


def by_column(matrix: Float[Tensor, "row column"]) -> Float[Tensor, "row column"]:
    """The same matrix, stored column after column.

    >>> by_column(torch.zeros(5, 2)).stride()
    (1, 5)
    """
    return matrix.T.contiguous().T


def is_by_column(values: Tensor, rows: int = 0) -> bool:
    """Whether what follows the dimension of rows is stored column after column."""
    return values.ndim > rows + 1 and values.stride(rows) == 1 and values.shape[rows] > 1


def joined(parts: Sequence[Tensor], rows: int = 0) -> Tensor:
    """The rows of all parts, stored as those of the first are; `rows` is the dimension they are in."""
    if len(parts) == 1:
        return parts[0]
    if is_by_column(parts[0], rows):
        return torch.cat([part.movedim(rows, -1) for part in parts], dim=-1).movedim(-1, rows)
    return torch.cat(list(parts), dim=rows)


def replaced(
    matrix: Float[Tensor, "row column"], rows: Int[Tensor, " some"], new: Float[Tensor, "some column"]
) -> Float[Tensor, "row column"]:
    """The matrix with some of its rows replaced, stored as it was."""
    return matrix.clone().index_copy_(0, rows, new)


def each(function: Callable[..., Done], *parts: Sequence[Any], device: torch.device) -> list[Done]:
    """`function` of every first part, every second, …: several at a time where torch may use several threads.

    One thread for a whole block instead of several for each operation: they need not wait for each other. A GPU is
    asked one thing after another, by one thread.

    >>> each(lambda a, b: a + b, [1, 2], [10, 20], device=torch.device("cpu"))
    [11, 22]
    """
    threads = min(at_once(), len(parts[0]))
    if threads < 2 or device.type != "cpu":
        return list(map(function, *parts))
    learning = torch.is_grad_enabled()

    def alike(*part: Any) -> Done:
        with torch.set_grad_enabled(learning):  # which every thread decides for itself
            return function(*part)

    return list(_pool(threads, os.getpid()).map(alike, *parts))


def at_once() -> int:
    """How many blocks are worked on at once."""
    return max(_AT_ONCE.get(), torch.get_num_threads())


@contextmanager
def blockwise(threads: int) -> Iterator[None]:
    """Several threads for blocks and one for everything between them: threads that share small operations spend more
    time waiting for each other than they save, and very much more when other programs want the same cores."""
    before, token = torch.get_num_threads(), _AT_ONCE.set(threads)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _AT_ONCE.reset(token)


def own_copy(module: nn.Module) -> nn.Module:
    """A module for this thread alone: calling one with other parameters puts them in place while it is called."""
    if threading.current_thread() is threading.main_thread():
        return module
    copies: WeakKeyDictionary[nn.Module, nn.Module] = _OF_THREAD.__dict__.setdefault("copies", WeakKeyDictionary())
    if module not in copies:
        copies[module] = copy.deepcopy(module)
    return copies[module]


_OF_THREAD = threading.local()


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads of this process: a forked one inherits the pool but not its threads."""
    return ThreadPoolExecutor(threads, "varangian", initializer=torch.set_num_threads, initargs=(1,))


def by_blocks(function: Callable[..., Any], *parts: Any, whole: bool = False) -> Any:
    """`function` of tensors, or of tuples of them, with a row an agent, block by block where there are many rows.

    Each row of what it returns, tensors or tuples of them too, must depend on the same agent's rows alone.

    >>> by_blocks(lambda a, b: (a + b, a - b), torch.tensor([1, 2]), torch.tensor([3, 4]))
    (tensor([4, 6]), tensor([-2, -2]))
    """
    if whole or len(parts[0]) <= ROWS or parts[0].device.type != "cpu":
        return function(*parts)
    leaves, given = tree_flatten(parts)
    blocks = each(
        lambda *block: tree_flatten(function(*tree_unflatten(list(block), given))),
        *(leaf.split(ROWS) for leaf in leaves),
        device=parts[0].device,
    )
    of_leaves = zip(*(block for block, _ in blocks), strict=True)
    return tree_unflatten([joined(of_leaf) for of_leaf in of_leaves], blocks[0][1])

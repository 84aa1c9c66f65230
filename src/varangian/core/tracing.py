"""Whether code in Python may look at the numbers of a tensor."""

from __future__ import annotations

import torch
from torch import Tensor


def has_values(tensor: Tensor) -> bool:
    """Whether Python may decide by the numbers of a tensor, or give them to NumPy, without waiting for them.

    Not on a GPU, where the program would have to wait. And not where torch only follows what is done with a tensor, as
    in `torch.compile`, `vmap` or `torch.jit.trace`: there the decision would hold for other numbers, too.

    >>> has_values(torch.ones(2)), has_values(torch.ones(2, device="meta"))
    (True, False)
    """
    wrapped: bool = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    plain = type(tensor) is Tensor and not wrapped and torch._C._get_tracing_state() is None
    return plain and tensor.is_cpu

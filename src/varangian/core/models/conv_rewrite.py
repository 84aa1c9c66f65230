"""Rewrites small convolutional networks so that they compute the same in less time.

1. Convolutions over images with few channels are slow. On a CPU the reason is torch's memory layout; a matrix product
   over windows is twenty times as fast. On a GPU the reason is that libraries pad the channels. There, too, a product
   over windows is faster. Unrolled into single terms and fused with the pooling after it, the convolution takes a
   seventh of the time.
2. Max-pooling before a ReLU gives the same numbers as after it, and the ReLU then has a quarter of the work.
3. On a GPU, so has a bias that is added after max-pooling. Before it, a bias takes as long as the pooling itself:
   compilers pass over all images once more.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, pad, unfold

FEW_CHANNELS = 4
"""The most input channels for which a convolution is computed over windows."""
FEW_TERMS = 64
"""The most products per output, after pooling, for which a convolution on a GPU is unrolled or stores its windows."""


def rewritten(module: nn.Module) -> nn.Module:
    """A faster copy of a network: the same parameters under the same names, and the same results up to rounding.

    >>> rewritten(nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2)))
    Sequential(
      (0): WindowConv2d(1, 8, kernel_size=(3, 3), stride=(1, 1), pool=2)
      (1): Identity()
      (2): ReLU()
    )
    """
    module = copy.deepcopy(module)
    for part in module.modules():
        if type(part) is nn.Conv2d and _suits_windows(part):
            part.__class__ = WindowConv2d
    uses = Counter(part for _, part in module.named_modules(remove_duplicate=False))
    for layers in _chains(module):
        _pool_first(layers)
        _pool_within(layers, uses)
    return module


class PooledConv2d(nn.Conv2d):
    """A convolution together with the max-pooling after it."""

    pool = 1
    """The side of the pooling squares; 1 means no pooling."""

    def forward(self, input: Float[Tensor, "item channel height width"]) -> Float[Tensor, "item filter high wide"]:
        if input.device.type == "cpu":
            return self._pooled(super().forward(input))
        return self.pooled_with_bias(self._conv_forward(input, self.weight, None))

    def pooled_with_bias(self, images: Tensor) -> Tensor:
        """The sum is largest where the image is: rounding does not change the order of numbers."""
        pooled = self._pooled(images)
        return pooled if self.bias is None else pooled + self.bias.view(-1, 1, 1)

    def extra_repr(self) -> str:
        about: str = super().extra_repr()  # type: ignore[no-untyped-call]
        return about + (f", pool={self.pool}" if self.pool > 1 else "")

    def _pooled(self, images: Tensor) -> Tensor:
        return images if self.pool == 1 else max_pool2d(images, self.pool)


class WindowConv2d(PooledConv2d):
    """A convolution over few channels as a product of every window with the filters."""

    def forward(self, input: Float[Tensor, "item channel height width"]) -> Float[Tensor, "item filter high wide"]:
        if isinstance(self.padding, str) or input.ndim != 4:
            return super().forward(input)
        if input.device.type == "cpu":
            return self._pooled(self.as_matrix_product(input))
        if self.terms > FEW_TERMS:
            return super().forward(input)
        # Unrolled, it is many small operations. This is fast only if a compiler fuses them.
        if self.stride == (1, 1) and torch.compiler.is_compiling():
            return self.unrolled(input)
        return self.pooled_with_bias(self.over_views(input))

    @property
    def terms(self) -> int:
        """The number of products per output, after pooling."""
        return self.weight[0].numel() * self.pool**2

    def unrolled(self, input: Float[Tensor, "item channel height width"]) -> Float[Tensor, "item filter high wide"]:
        """The convolution term by term. A term is a shifted image times one weight per filter.

        Terms are summed in float32, or in the type of the input if that is more precise.
        """
        assert not isinstance(self.padding, str)
        (pad_high, pad_wide), (high, wide) = self.padding, self.kernel_size
        exact = torch.promote_types(input.dtype, torch.float32)
        images = pad(input, (pad_wide, pad_wide, pad_high, pad_high))
        # Compilers store what is viewed with strides. Otherwise they would look for the borders again in every term.
        images = images.as_strided(images.shape, images.stride()).to(exact)
        weight = self.weight.to(exact)
        rows, columns = ((images.shape[2] - high + 1) // self.pool, (images.shape[3] - wide + 1) // self.pool)
        step, best = self.pool, None
        for down, right in product(range(self.pool), repeat=2):
            total = None
            for channel, i, j in product(range(self.in_channels), range(high), range(wide)):
                top, left = down + i, right + j
                ends = top + step * (rows - 1) + 1, left + step * (columns - 1) + 1
                shifted = images[:, channel, None, top : ends[0] : step, left : ends[1] : step]
                term = shifted * weight[:, channel, i, j].view(-1, 1, 1)
                total = term if total is None else total + term
            assert total is not None
            best = total if best is None else torch.maximum(best, total)
        assert best is not None
        if self.bias is not None:
            best = best + self.bias.to(exact).view(-1, 1, 1)
        return best.to(input.dtype).contiguous(memory_format=torch.channels_last)

    def over_views(self, input: Float[Tensor, "item channel height width"]) -> Float[Tensor, "item filter high wide"]:
        """The convolution without bias as one matrix product per image, for a GPU.

        One kernel copies the windows of all images from views. `unfold` would start a kernel for every image.
        """
        assert not isinstance(self.padding, str)
        (pad_high, pad_wide), (high, wide), (down, right) = self.padding, self.kernel_size, self.stride
        images = pad(input, (pad_wide, pad_wide, pad_high, pad_high))
        windows = images.unfold(2, high, down).unfold(3, wide, right).permute(0, 1, 4, 5, 2, 3)
        product = self.weight.flatten(1) @ windows.flatten(4).flatten(1, 3)
        summed: Tensor = product.unflatten(2, windows.shape[4:])
        return summed

    def as_matrix_product(
        self, input: Float[Tensor, "item channel height width"]
    ) -> Float[Tensor, "item filter high wide"]:
        """The convolution as one matrix product over all windows, for a CPU."""
        assert not isinstance(self.padding, str)
        sizes = zip(input.shape[2:], self.padding, self.kernel_size, self.stride, strict=True)
        shape = tuple((size + 2 * pad - kernel) // step + 1 for size, pad, kernel, step in sizes)
        windows = unfold(input, self.kernel_size, padding=self.padding, stride=self.stride)
        summed = windows.mT @ self.weight.flatten(1).mT
        if self.bias is not None:
            summed += self.bias
        # The filters are the last dimension in memory: other convolutions are fastest with this layout.
        images: Tensor = summed.unflatten(1, shape).permute(0, 3, 1, 2)
        return images


def _suits_windows(layer: nn.Conv2d) -> bool:
    plain = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
    return plain and layer.in_channels <= FEW_CHANNELS


def _chains(module: nn.Module) -> Iterator[nn.Sequential]:
    """Sequences whose layers are called one after the other. A `forward` of the user's own may call any of them."""
    if type(module) is nn.Sequential:
        yield module
        for layer in module:
            yield from _chains(layer)


def _pool_first(layers: nn.Sequential) -> None:
    """Swap every ReLU with a max-pooling layer right after it. Neither has parameters, so no name changes."""
    for place in range(len(layers) - 1):
        layer, next = layers[place], layers[place + 1]
        if type(layer) is nn.ReLU and type(next) is nn.MaxPool2d and not (next.return_indices or _watched(layer, next)):
            layers[place], layers[place + 1] = next, layer


def _pool_within(layers: nn.Sequential, uses: Mapping[nn.Module, int]) -> None:
    """Move a max-pooling layer into the convolution right before it, unless the convolution is used elsewhere, too."""
    for place in range(len(layers) - 1):
        layer, next = layers[place], layers[place + 1]
        if type(next) is not nn.MaxPool2d or not _plain(next) or uses[layer] > 1 or _watched(layer, next):
            continue
        if type(layer) is nn.Conv2d:
            layer.__class__ = PooledConv2d
        if isinstance(layer, PooledConv2d) and layer.pool == 1:
            layer.pool = next.kernel_size if isinstance(next.kernel_size, int) else next.kernel_size[0]
            layers[place + 1] = nn.Identity()


def _plain(pool: nn.MaxPool2d) -> bool:
    """Whether the pooling uses squares without overlap, padding or dilation."""
    sides = {pool.kernel_size, pool.stride} if isinstance(pool.kernel_size, int) else {*pool.kernel_size, pool.stride}
    usual = not pool.padding and pool.dilation == 1 and not pool.ceil_mode and not pool.return_indices
    return len(sides) == 1 and usual


def _watched(*layers: nn.Module) -> bool:
    """Whether hooks of the user's own see what these layers compute."""
    return any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers)

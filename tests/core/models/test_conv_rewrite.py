"""Rewritten networks give the same results as the originals."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from varangian.core.models.conv_rewrite import PooledConv2d, WindowConv2d, rewritten
from varangian.studies.digits import cnn

NETWORKS = {
    "the paper's": (cnn(), 1, 28),
    "three channels": (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3)), 3, 13),
    "odd sides": (nn.Sequential(nn.Conv2d(1, 4, (3, 5), padding=(2, 1)), nn.MaxPool2d((3, 3)), nn.ReLU()), 1, 11),
    "strides": (nn.Sequential(nn.Conv2d(2, 4, 3, stride=2, bias=False), nn.ReLU(), nn.MaxPool2d(2)), 2, 12),
    "pools that overlap": (nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(3, stride=1)), 1, 9),
    "padded pools": (nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2, padding=1), nn.ReLU()), 1, 9),
    "same size": (nn.Sequential(nn.Conv2d(1, 4, 3, padding="same"), nn.ReLU(), nn.MaxPool2d(2)), 1, 8),
    "a pool alone": (nn.Sequential(nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(1, 2, 3)), 1, 12),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_same_numbers_and_names(name: str) -> None:
    network, channels, size = NETWORKS[name]
    network = network.double()
    cheaper = rewritten(network)
    x = torch.randn(5, channels, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(cheaper(x), network(x), rtol=1e-12, atol=1e-12)
    assert list(dict(cheaper.named_parameters())) == list(dict(network.named_parameters()))
    for layer in cheaper:
        on_gpu: list[torch.Tensor] = []
        if isinstance(layer, WindowConv2d) and not isinstance(layer.padding, str):
            on_gpu += [layer.unrolled(x)] if layer.stride == (1, 1) else []
            on_gpu.append(layer.pooled_with_bias(layer.over_views(x)))
        elif isinstance(layer, PooledConv2d):
            on_gpu.append(layer.pooled_with_bias(layer._conv_forward(x, layer.weight, None)))
        x = layer(x)
        for result in on_gpu:
            torch.testing.assert_close(result, x, rtol=1e-12, atol=1e-12)


class OverViews(nn.Module):
    """What a GPU computes."""

    def __init__(self, layer: WindowConv2d) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer.over_views(x)


def test_the_gradients_of_many_models_at_once() -> None:
    layer = rewritten(nn.Sequential(nn.Conv2d(2, 4, 3, stride=2, padding=1)))[0]
    assert isinstance(layer, WindowConv2d)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 5, 2, 9, 9, dtype=torch.float64, generator=generator)
    weights = torch.randn(3, *layer.weight.shape, dtype=torch.float64, generator=generator)

    def ours(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return functional_call(OverViews(layer), {"layer.weight": weight}, (x,)).square().sum()

    def usual(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv2d(x, weight, stride=2, padding=1).square().sum()

    leaves = weights.requires_grad_(), x.requires_grad_()
    found, wanted = (torch.autograd.grad(vmap(loss)(*leaves).sum(), leaves) for loss in (ours, usual))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_low_precision_is_summed_in_float32() -> None:
    layer = rewritten(cnn())[0]
    x = torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    exact, coarse = layer.unrolled(x), layer.bfloat16().unrolled(x.bfloat16())  # type: ignore[operator]
    assert coarse.dtype == torch.bfloat16 and coarse.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(coarse.float(), exact, rtol=0.02, atol=0.01)


def test_what_a_network_is_told_apart_by_names_the_pool() -> None:
    assert "pool=2" in repr(rewritten(cnn()))


def test_a_convolution_that_is_used_elsewhere_does_not_pool() -> None:
    shared, x = nn.Conv2d(8, 8, 3, padding=1), torch.randn(2, 8, 12, 12)
    network = nn.Sequential(shared, nn.ReLU(), shared, nn.MaxPool2d(2))
    torch.testing.assert_close(rewritten(network)(x), network(x))


class Indirect(nn.Module):
    """Calls the layers of a sequence one by one, with something in between."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.MaxPool2d(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[2](torch.tanh(-self.layers[0](x)))


def test_layers_that_a_forward_of_ones_own_calls_stay_as_they_are() -> None:
    network, x = Indirect(), torch.randn(2, 8, 12, 12)
    torch.testing.assert_close(rewritten(network)(x), network(x))


def test_hooks_see_what_they_saw_before() -> None:
    network, x = nn.Sequential(nn.Conv2d(8, 8, 3), nn.MaxPool2d(2)), torch.randn(2, 8, 12, 12)
    network[0].register_forward_hook(lambda layer, given, out: -out)
    torch.testing.assert_close(rewritten(network)(x), network(x))


def test_pooling_that_returns_places_stays_as_it_is() -> None:
    network, x = nn.Sequential(nn.Conv2d(8, 8, 3), nn.MaxPool2d(2, return_indices=True)), torch.randn(2, 8, 12, 12)
    torch.testing.assert_close(rewritten(network)(x), network(x))


def test_single_images() -> None:
    network, x = nn.Sequential(nn.Conv2d(1, 8, 3), nn.MaxPool2d(2)), torch.randn(1, 12, 12)
    torch.testing.assert_close(rewritten(network)(x), network(x))

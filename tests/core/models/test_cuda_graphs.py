"""CUDA graphs on a GPU: replayed passes give the same results as direct ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from varangian import Graph, Task, attacks, rules, simulate
from varangian.core.models.cuda_graphs import CudaGraphed, forward_of
from varangian.core.models.stacked import Stacked

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3)
    return nn.Sequential(*layers)


def sample(agents: int, seed: int, device: str = "cuda") -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x, y = torch.randn(agents, 5, 1, 8, 8, generator=draw), torch.randint(3, (agents, 5), generator=draw)
    return x.to(device), y.to(device)


@needs_gpu
@pytest.mark.parametrize("what", ["judge", "judge_all", "gradient"])
def test_a_replayed_pass_gives_what_the_pass_gives_whatever_came_before(what: str) -> None:
    plain = Stacked.of(network(), cross_entropy)
    graphed = CudaGraphed(plain)
    start = plain.start(6, torch.float32, torch.device("cuda"))
    with torch.no_grad():
        for seed in range(3):
            draw = torch.Generator("cuda").manual_seed(seed)
            rows = start + 0.1 * torch.randn(start.shape, generator=draw, device="cuda")
            models = rows[:, None].repeat(1, 2, 1) if what == "judge" else rows
            expected = getattr(plain, what)(models, sample(6, seed))
            found = getattr(graphed, what)(models, sample(6, seed))
            again = getattr(graphed, what)(models * 2, sample(6, seed))
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
            assert not torch.allclose(again, found), "a later replay must not change an earlier result"


@needs_gpu
def test_a_run_on_a_gpu_is_the_run_on_a_cpu() -> None:
    data = [tuple(part[agent] for part in sample(4, 9, "cpu")) for agent in range(4)]
    task = Task.supervised(network(), cross_entropy, data, test=data, batch=5, step_size=0.05)  # type: ignore[arg-type]
    results = [
        simulate(
            task,
            Graph.complete(4),
            rule=rules.loss_based(),
            attack=attacks.sign_flip(),
            byzantine=[1],
            rounds=20,
            device=device,
        )
        for device in ("cpu", "cuda")
    ]
    assert abs(results[0]["test_loss"] - results[1]["test_loss"]).max() < 1e-2  # TF32 has ten bits
    assert (results[0]["kept"] == results[1]["kept"]).mean() > 0.9


def test_layers_of_one_s_own_are_run_as_they_are() -> None:
    class Doubled(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.inner, self.factor = nn.Linear(2, 1), factor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.factor * self.inner(x)

    x = torch.ones(3, 2)
    made: list[Any] = [Doubled(2.0), Doubled(5.0)]
    outputs = [forward_of(module)(dict(module.named_parameters()), x) for module in made]
    for module, output in zip(made, outputs, strict=True):
        torch.testing.assert_close(output, module(x))

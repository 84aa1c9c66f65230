"""Loops with one thread per agent, as on a GPU. They are checked on a CPU too, where they take one agent at a time."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import pytest
import torch
from tests.helpers.kernels import ATTACKS, both_ways, localized

import varangian
from varangian import attacks, rules, studies
from varangian.core.cpp.build import built, has_compiler
from varangian.engine.compute.cpp.agent_loop import agent_loop
from varangian.engine.compute.cpp.translate import Untranslatable
from varangian.engine.compute.cuda.gpu_loop import gpu_source

DEVICES = [
    pytest.param("cpu", marks=pytest.mark.skipif(sys.platform == "win32" or not has_compiler(), reason="no compiler")),
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")),
]


def one_agent_at_a_time(dtype: torch.dtype, translated: str, *loop: str) -> ctypes.CDLL:
    """A library for a CPU from the code for a GPU."""
    return built(gpu_source(dtype, translated, *(f"cpp/{name}" for name in loop)))


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A device that runs the code for a GPU."""
    if request.param == "cpu":
        monkeypatch.setattr("varangian.engine.kernels.table_loop.library", one_agent_at_a_time)
        monkeypatch.setattr("varangian.engine.compute.cpp.agent_loop.library", one_agent_at_a_time)
    return str(request.param)


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
@pytest.mark.parametrize("rule", [rules.loss_based(), rules.loss_based(keep="all"), rules.anchored()], ids=str)
def test_a_loop_does_what_the_rule_says(rule: Any, attack: Any, device: str) -> None:
    both_ways(localized(60, torch.float64, device), rule, attack, 12, 1e-9)


@pytest.mark.parametrize("rule", [rules.loss_based(), rules.anchored()], ids=str)
def test_agents_without_a_new_sample_keep_their_models(rule: Any, device: str) -> None:
    both_ways(localized(60, torch.float64, device, skip=0.5, stale="wait"), rule, attacks.uniform(15, 16), 10, 1e-9)


def test_truth_values_are_combined_as_in_torch(device: str) -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        positive = a[:, 0] > 0
        either = (positive & ~(b > 0)) | ~(positive | (a[:, 1] < b))
        return [either, ~either, torch.where(~positive & ~either, a[:, 0].exp(), b.sqrt().clamp(0.1, 2))]

    a, b = torch.randn(1000, 2, device=device), torch.randn(1000, device=device)
    for ours, theirs in zip(agent_loop(function, (a, b))(a, b), function(a, b), strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)


def test_other_number_types_are_refused() -> None:
    with pytest.raises(Untranslatable, match=r"no loop for torch\.float16"):
        gpu_source(torch.float16, "", "cuda/each.cu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_compiled_run_on_a_gpu_ends_where_the_plain_one_does() -> None:
    study = studies.target_localization(agents=100)
    asked: dict[str, Any] = {"attack": attacks.uniform(15, 16), "byzantine": 20, "rounds": 40, "device": "cuda"}
    for rule in (rules.loss_based(), rules.anchored()):
        plain, ours = (varangian.simulate(study, rule=rule, **asked, compile=how) for how in (False, True))
        assert abs(float(ours["regret"][..., -1, :].mean() / plain["regret"][..., -1, :].mean()) - 1) < 0.01

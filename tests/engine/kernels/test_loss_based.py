"""C++ loops against what they replace: formulas against torch, and the kernel against the paper's rule."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.kernels import (
    ATTACKS,
    both_ways,
    honest_exchange,
    localized,
    localized_scene,
    with_hubs,
    world_of,
)
from torch import Tensor

import varangian
from varangian import Graph, attacks, rules, studies
from varangian.core.cpp.build import has_compiler
from varangian.core.exchange import Exchange
from varangian.core.execution import DEFAULT, Execution
from varangian.engine.compute.compile import Compiled
from varangian.engine.compute.cpp import build
from varangian.engine.compute.cpp.agent_loop import agent_loop
from varangian.engine.compute.cpp.translate import Untranslatable, names_of, translated
from varangian.engine.kernels import register
from varangian.engine.kernels.loss_based import Loop, loop_for
from varangian.engine.kernels.registry import kernel_for
from varangian.engine.round import combine, play_round
from varangian.engine.state import begin
from varangian.engine.world import prepare
from varangian.rules.evidence import Smoothed

pytestmark = pytest.mark.skipif(
    sys.platform == "win32" or not has_compiler(),
    reason="there is no C++ compiler that knows vectors",
)

FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "squares": lambda a, b: (a[:, 0] * b - a[:, 1]).square(),
    "powers": lambda a, b: (a**3).sum(1) + b**2 - b.reciprocal(),
    "Huber": lambda a, b: torch.nn.functional.huber_loss(a[:, 0], b, reduction="none", delta=0.5),
    "logistic": lambda a, b: torch.log1p(torch.exp(-b * a.sum(1))),
    "clamped": lambda a, b: a.clamp(-0.5, 0.5) * b[:, None],
    "largest": lambda a, b: torch.maximum(a.amax(1), b) - torch.minimum(a.amin(1), b).abs(),
    "mean": lambda a, b: a.mean(1, keepdim=True) / (1 + b.square())[:, None],
    "waves": lambda a, b: a.unbind(1)[2].sin() + b.cos() * a[:, :2].tanh().sum(1) - (a * a).sum(-1).sqrt(),
    "two results": lambda a, b: (torch.where(a > b[:, None], a, -a), (b < 0) & (a[:, 0] >= 0)),
    "every other": lambda a, b: a[:, ::2].sum(1) * b.pow(2.0),
    "constants": lambda a, b: torch.where(b > 0, math.nan, torch.where(b < -1, -math.inf, b)) + 1.5,
    "exponentials": lambda a, b: a.exp() + b.expm1()[:, None] + torch.log(a.abs() + 1),
}


def results(name: str, a: Tensor, b: Tensor) -> list[Tensor]:
    found = FUNCTIONS[name](a, b)
    return [*found] if isinstance(found, tuple) else [found]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_translated_functions_give_the_same(dtype: torch.dtype) -> None:
    """All of them in one text: to compile it takes hardly longer than to compile one."""
    draw = torch.Generator().manual_seed(0)
    near = 1e-5 if dtype == torch.float32 else 1e-13
    for agents in (37, 16, 1):
        a, b = torch.randn(agents, 3, generator=draw, dtype=dtype), torch.randn(agents, generator=draw, dtype=dtype)
        a[0, 0], b[-1] = math.nan, math.inf
        if agents > 16:
            a[17], b[3] = -math.inf, math.nan
        for given in ((a, b), (a.T.contiguous().T, b)):
            found = iter(agent_loop(lambda a, b: [r for name in FUNCTIONS for r in results(name, a, b)], given)(*given))
            for name in FUNCTIONS:
                for expected in results(name, *given):
                    torch.testing.assert_close(
                        next(found),
                        expected,
                        rtol=near,
                        atol=near,
                        equal_nan=True,
                        msg=lambda why, name=name: f"{name}: {why}",
                    )


def test_large_networks_are_shared_among_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("varangian.engine.compute.cpp.agent_loop.ROWS", 8)

    a, b = torch.randn(61, 3), torch.randn(61)
    (ours,) = agent_loop(lambda a, b: [FUNCTIONS["clamped"](a, b)], (a, b), threads=2)(a, b)
    torch.testing.assert_close(ours, FUNCTIONS["clamped"](a, b))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda a, b: a - a.mean(0), "selects or sums over agents"),
        (lambda a, b: a[1:] + b[1:, None], "selects or sums over agents"),
        (lambda a, b: a.sort(1).values, "no C.. for aten.sort"),
        (lambda a, b: b**2.5, "no C.. for aten.pow"),
        (lambda a, b: a[::2] + 1, "selects or sums over agents"),
        (lambda a, b: a.sum(()), "selects or sums over agents"),
        (lambda a, b: a.sum(1, dtype=torch.float64), "with dtype"),
        (lambda a, b: a if bool(b.sum() > 0) else -a, "cannot be traced"),
        (lambda a, b: a[None] + b[:, None], "before agents"),
        (lambda a, b: sum(a[:, k % 3] * k for k in range(500)), "more than 400 lines"),
        (lambda a, b: b + torch.arange(5.0), "no C.. for aten.arange|it contains"),
    ],
)
def test_an_untranslatable_function_gives_a_reason(function: Any, reason: str) -> None:
    given = torch.ones(5, 3), torch.ones(5)
    with pytest.raises(Untranslatable, match=reason):
        translated(function, given, names_of("a{}", given))


def test_only_numbers_of_agents_of_one_type_are_translated() -> None:
    with pytest.raises(Untranslatable, match="one row per agent"):
        agent_loop(lambda a, b: [a + b], (torch.ones(5), torch.tensor(1.0)))
    with pytest.raises(Untranslatable, match="several number types"):
        agent_loop(lambda a, b: [a + b], (torch.ones(5), torch.ones(5, dtype=torch.float64)))
    with pytest.raises(Untranslatable, match="no vectors of"):
        agent_loop(lambda a: [a + a], (torch.ones(5, dtype=torch.bfloat16),))


def test_a_compiler_that_refuses_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(Untranslatable, match="false failed"):
        build.library(torch.float32, "one more text", "each.cpp")


def test_a_full_disk_is_no_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*args: Any, **settings: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("varangian.core.cpp.build.Path.write_text", full)
    world = localized(12, torch.float32)
    with torch.no_grad(), pytest.warns(UserWarning, match="No space left on device"):
        # A formula that is not used elsewhere in this file, so that it is not compiled already.
        assert loop_for(rules.loss_based(keep="all", smoothing=0.123), honest_exchange(world), DEFAULT) is None


RULES = [
    rules.loss_based(),
    rules.loss_based(keep="all", smoothing=0.7),
    rules.loss_based(judge="same", start=2.0),
    rules.loss_based(smoothing=1.0),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_the_loop_does_what_the_rule_says(rule: Any, attack: Any) -> None:
    both_ways(localized(45, torch.float64), rule, attack, rounds=6, tolerance=1e-11)


@pytest.mark.parametrize("stale", ["wait", "last", "skipped"])
@pytest.mark.parametrize("attack", [attacks.uniform(15, 16), attacks.pulling(step=0.3)], ids=repr)
@pytest.mark.parametrize("judge", ["next", "same"])
def test_the_loop_where_agents_have_no_new_sample(judge: Any, attack: Any, stale: str) -> None:
    world = localized(45, torch.float64, skip=0.6, stale=stale)
    both_ways(world, rules.loss_based(judge=judge), attack, rounds=6, tolerance=1e-11)


def test_the_loop_in_single_precision_and_beyond_one_tile() -> None:
    both_ways(localized(1100, torch.float32), rules.loss_based(), attacks.uniform(15, 16), rounds=4, tolerance=1e-4)
    both_ways(localized(100, torch.float32), rules.loss_based(), attacks.not_finite(), rounds=4, tolerance=1e-4)


def test_models_that_are_never_wrong_share_all_weight() -> None:
    """Shares of 1e36 times parameters of 1e6 overflow; their mean does not."""
    start = torch.full((20, 2), 1e6)
    start[::2, 1] = 2e6
    world = world_of(
        lambda theta, sample: (theta[..., 0] - sample[0]).square(), 20, start, Graph.complete(20), start[:, 0]
    )
    both_ways(world, rules.loss_based(), attacks.silent(), rounds=2, tolerance=1e-6)
    with torch.no_grad():
        state = begin(world, rules.loss_based(), attacks.silent())
        world = replace(world, executor=Compiled(DEFAULT))
        state, _ = play_round(world, rules.loss_based(), attacks.silent(), state)
    assert state.models[:, 1].allclose(torch.tensor(1.5e6))


def test_losses_that_are_no_numbers_are_no_evidence() -> None:
    start = torch.linspace(-1, 1, 30).view(15, 2)
    loss = lambda theta, sample: torch.log(theta[..., 0]) ** 2 + theta[..., 1] * sample[0]  # noqa: E731
    both_ways(
        world_of(loss, 15, start, Graph.ring(15, 3), torch.ones(15)), rules.loss_based(), attacks.silent(), 3, 1e-5
    )


def test_a_formula_without_cpp_is_compiled_by_torch() -> None:
    start = torch.linspace(-1, 1, 12).view(6, 2)
    world = world_of(lambda t, s: t.sort(-1).values[..., 0] ** 2, 6, start, Graph.ring(6), torch.ones(6))
    with torch.no_grad(), pytest.warns(UserWarning, match="loss-based is not one compiled loop here"):
        assert loop_for(rules.loss_based(), honest_exchange(world), DEFAULT) is None


def test_the_loop_is_for_compiled_runs_of_the_papers_rule() -> None:
    class like_it(rules.loss_based):
        """A subclass may compute something else."""

    with torch.no_grad():
        exchange = honest_exchange(localized(12, torch.float32))
        assert isinstance(kernel_for(rules.loss_based(), exchange, DEFAULT), Loop)
        assert kernel_for(rules.average(), exchange, DEFAULT) is None
        assert kernel_for(like_it(), exchange, DEFAULT) is None
        assert kernel_for(rules.loss_based(weigh="regret"), exchange, DEFAULT) is None


def test_a_rule_of_ones_own_can_bring_a_kernel() -> None:
    """A kernel is used in compiled runs only, and only without gradients."""

    @dataclass(frozen=True)
    class keeping(rules.alone):
        """No cooperation, with a kernel."""

    calls: list[int] = []

    def make(rule: keeping, exchange: Exchange, execution: Execution) -> Any:
        def kernel(exchange: Exchange, memory: Any) -> Any:
            calls.append(exchange.round)
            return exchange.adapted, [None for _ in exchange.wiring.tables], memory

        return kernel

    register(keeping, make)
    plain, compiled = (prepare([localized_scene(12)], [1], 0.3, Execution(compile=way)) for way in (False, True))
    ends = []
    for world in (plain, compiled):
        with torch.no_grad():
            state = begin(world, keeping(), attacks.silent())
            for _ in range(3):
                state, _ = play_round(world, keeping(), attacks.silent(), state)
        ends.append(state.models)
    torch.testing.assert_close(*ends)
    assert calls == [0, 1, 2]
    combine(compiled, keeping(), state.rule, honest_exchange(compiled, state))  # with gradients
    assert calls == [0, 1, 2]


def test_a_compiled_run_ends_where_the_plain_one_does() -> None:
    settings: dict[str, Any] = {"rounds": 40, "byzantine": 8, "attack": attacks.uniform(15, 16), "dtype": "float64"}
    study = studies.target_localization(agents=40)
    plain, compiled = (varangian.simulate(study, compile=compile, **settings) for compile in (False, True))
    torch.testing.assert_close(*(torch.tensor(run["regret"].values) for run in (compiled, plain)), rtol=1e-9, atol=1e-9)


def test_phi_is_kept_as_the_rule_keeps_it() -> None:
    world, rule = localized(12, torch.float32), rules.loss_based()
    world = replace(world, executor=Compiled(DEFAULT))
    with torch.no_grad():
        state = begin(world, rule, attacks.silent())
        after, _ = play_round(world, rule, attacks.silent(), state)
    assert isinstance(after.rule[0], Smoothed)
    assert after.rule[0].total.stride() == state.rule[0].total.stride()


def test_agents_that_stand_apart_in_their_tables() -> None:
    world = with_hubs()
    for attack in (attacks.uniform(15, 16), attacks.not_finite(), attacks.pulling(step=0.3)):
        both_ways(world, rules.loss_based(), attack, rounds=3, tolerance=1e-11)
        both_ways(world, rules.loss_based(smoothing=0.4, judge="same"), attack, rounds=3, tolerance=1e-11)


def test_what_threads_write_to_outlives_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call ends before a thread begins: all buffers that the thread uses must still exist."""
    held: list[Any] = []

    def interrupted(execution: Execution, function: Any, *parts: Any) -> None:
        held.append(function)
        raise KeyboardInterrupt

    world, rule = localized(40, torch.float32), rules.loss_based()
    with torch.no_grad():
        state = begin(world, rule, attacks.silent())
        exchange = honest_exchange(world, state)
        loop = loop_for(rule, exchange, DEFAULT)
        assert loop is not None
        step = agent_loop(lambda a: [a + a], (torch.ones(40),))
        monkeypatch.setattr(Execution, "each", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loop(exchange, state.rule)
    with pytest.raises(KeyboardInterrupt):
        step(torch.ones(40))

    kept = [world.listening, loop.forgetting]
    names = [inspect.getclosurevars(function).nonlocals for function in held]
    kept += [*names[0]["alive"], *names[1]["matrices"]]
    spans = [(part.untyped_storage().data_ptr(), part.untyped_storage().nbytes()) for part in kept]
    pointers = [number for number in (*names[0]["given"], *names[1]["begin"]) if number > 2**20]
    assert len(pointers) > 12
    assert all(any(first <= pointer < first + size for first, size in spans) for pointer in pointers)

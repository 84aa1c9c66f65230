"""When the engine compiles by itself, and what it then computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from varangian import Task, rules, simulate, studies
from varangian.core.cpp.build import has_compiler
from varangian.core.execution import Execution
from varangian.core.stopwatch import Stopwatch
from varangian.engine.compute import choice
from varangian.engine.compute.choice import with_compiling

needs_compiler = pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")
LOCALIZATION = studies.target_localization(agents=50).task(0)


def decided(
    asked: str = "auto", task: Task = LOCALIZATION, networks: int = 1, rule: Any = None, rounds: int = 10**6
) -> bool:
    rule = rules.loss_based() if rule is None else rule
    return with_compiling(Execution(), asked, task, networks, rule, rounds).compile


@needs_compiler
def test_it_compiles_where_that_pays() -> None:
    assert decided()
    assert not decided(rounds=1000), "too few rounds"
    assert decided(rounds=1000, networks=500), "many networks side by side"
    assert not decided(rule=rules.average()), "a rule without a kernel"
    data = [(torch.zeros(4, 2), torch.zeros(4, 1))] * 3
    linear = Task.supervised(torch.nn.Linear(2, 1), torch.nn.functional.mse_loss, data)
    assert not decided(task=linear), "not a formula"


def test_on_a_gpu_it_compiles_long_runs_if_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiles(device: str, rounds: int) -> bool:
        execution = Execution(torch.device(device))
        return with_compiling(execution, "auto", LOCALIZATION, 1, rules.loss_based(), rounds).compile

    monkeypatch.setattr(choice, "can_compile", lambda: True)
    assert compiles("cuda", 10**4)
    assert not compiles("cuda", 1000)
    assert not compiles("mps", 10**4), "another kind of GPU"
    monkeypatch.setattr(choice, "can_compile", lambda: False)
    assert not compiles("cuda", 10**4)


def test_where_nothing_can_be_compiled_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "can_compile", lambda: False)
    with pytest.warns(UserWarning, match="compile has no effect on cuda"):
        choice.executor_for(Execution(torch.device("cuda"), compile=True), Stopwatch())


def test_it_does_not_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not decided()


def test_what_was_asked_for_stays() -> None:
    for asked in ("on", "off"):
        given = Execution(compile=asked == "on")
        assert with_compiling(given, asked, LOCALIZATION, 1, rules.loss_based(), 10**6) is given


@needs_compiler
def test_the_engine_s_own_choice_gives_the_same_results_and_bits(monkeypatch: pytest.MonkeyPatch, recwarn: Any) -> None:
    monkeypatch.setattr(choice, "PAYS", 1)
    run = {"rule": rules.loss_based(), "rounds": 30, "byzantine": 5, "dtype": "float64"}
    study = studies.target_localization(agents=40)
    one, again = (simulate(study, **run) for _ in range(2))
    plain = simulate(study, **run, compile="off")
    assert "compile" in one.timings and "compile" not in plain.timings
    for name in ("regret", "loss", "weight"):
        assert np.array_equal(one[name], again[name])
        np.testing.assert_allclose(one[name], plain[name], rtol=1e-9, atol=1e-12)
    assert not [warning for warning in recwarn if "uncompiled" in str(warning.message)]


@needs_compiler
def test_a_rule_whose_kernel_does_not_fit_runs_as_it_is(monkeypatch: pytest.MonkeyPatch, recwarn: Any) -> None:
    monkeypatch.setattr(choice, "PAYS", 1)
    run = {"rule": rules.loss_based(weigh="regret"), "rounds": 10, "dtype": "float64"}
    ours, plain = (simulate(studies.target_localization(agents=20), **run, compile=how) for how in ("auto", "off"))
    np.testing.assert_allclose(ours["regret"], plain["regret"], rtol=1e-9)
    assert not [warning for warning in recwarn if "uncompiled" in str(warning.message)]

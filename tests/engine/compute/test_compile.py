"""Compiled rounds against plain ones: the same numbers, and a plain run if something cannot be compiled."""

from __future__ import annotations

import math
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import varangian
from varangian import BadInput, Graph, Task, attacks, rules, studies
from varangian.core.execution import DEFAULT, Execution
from varangian.core.inbox import Inbox
from varangian.core.optimisers import adam
from varangian.engine.compute import compile as fused
from varangian.engine.compute.cpp.translate import Untranslatable
from varangian.engine.round import play_round
from varangian.engine.state import begin
from varangian.engine.world import prepare
from varangian.rules.base import Combined

compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX") or {"darwin": "clang++"}.get(sys.platform, "g++")) is None,
    reason="there is no C++ compiler",
)


@pytest.fixture
def _traced_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the traced graph operation by operation. This tests all of our own code without the time of a compiler."""

    def untranslatable(*args: Any) -> Any:
        raise Untranslatable

    monkeypatch.setattr(fused, "_loops", lambda graph, given, callers: graph)
    monkeypatch.setattr(fused, "_LOOPS", {})
    monkeypatch.setattr(fused, "agent_loop", untranslatable)
    monkeypatch.setattr(fused, "kernel_for", lambda *args: None)


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*compile.*", UserWarning)
        yield


def softmax(agents: int = 6, layers: nn.Module | None = None, **settings: Any) -> Task:
    draw = torch.Generator().manual_seed(0)
    data = [(torch.randn(9 + k, 4, generator=draw), torch.randint(3, (9 + k,), generator=draw)) for k in range(agents)]
    torch.manual_seed(0)
    return Task.supervised(layers or nn.Linear(4, 3), nn.functional.cross_entropy, data, batch=4, **settings)


def small() -> Any:
    return studies.target_localization(agents=12)


def both(task: Any, graph: Any = None, **settings: Any) -> tuple[xr.Dataset, xr.Dataset]:
    settings = {"rounds": 12, "dtype": "float64", **settings}
    return varangian.simulate(task, graph, **settings), varangian.simulate(task, graph, compile=True, **settings)


def agree(one: xr.Dataset, other: xr.Dataset, tolerance: float = 1e-9) -> None:
    one, other = one.drop_vars("seconds"), other.drop_vars("seconds")
    assert set(one.variables) == set(other.variables)
    for name in one.variables:
        a, b = one[name].values, other[name].values
        if a.dtype.kind == "f":
            np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance, err_msg=str(name))
        else:
            assert (a == b).all(), name


@compiler
def test_a_compiled_run_is_the_plain_run() -> None:
    agree(*both(small(), byzantine=3, attack=attacks.uniform(15, 16)))


@compiler
def test_seeds_side_by_side_are_compiled_as_one_network() -> None:
    agree(*both(small(), byzantine=4, attack=attacks.not_finite(), seeds=3))


@compiler
def test_matrix_products_and_two_faced_senders_are_compiled_too() -> None:
    pulled = both(
        softmax(), byzantine=2, attack=attacks.pulling(step=0.3), rule=rules.distance_based(), dtype="float32"
    )
    agree(*pulled, tolerance=1e-5)


@compiler
def test_a_run_goes_on_compiled_from_a_plain_checkpoint_and_back(tmp_path: Path) -> None:
    class Interrupt:
        def start(self, world: Any, state: Any, rounds: int) -> None: ...

        def round(self, world: Any, state: Any, recorder: Any) -> None:
            if state.round == 5:
                raise KeyboardInterrupt

        def end(self, world: Any, state: Any) -> None: ...

    settings: dict[str, Any] = {"rounds": 12, "byzantine": 3, "attack": attacks.uniform(15, 16), "dtype": "float64"}
    whole = varangian.simulate(small(), **settings)
    for first in (False, True):
        folder = tmp_path / str(first)
        with pytest.raises(KeyboardInterrupt):
            varangian.simulate(small(), compile=first, checkpoint=folder, callbacks=[Interrupt()], **settings)
        rest = varangian.simulate(small(), compile=not first, checkpoint=folder, resume=True, **settings)
        agree(whole, rest)


def changing(round: int) -> Graph:
    return (Graph.ring(6), Graph.star(6), Graph.complete(6))[round // 3 % 3]


RULES = [
    rules.alone(),
    rules.average(),
    rules.distance_based(target="ahead", p=1),
    rules.loss_based(weigh="regret", judge="same", start=1.0),
    rules.loss_based(keep="all", smoothing=1.0),
    rules.trimmed_mean(f=1),
    rules.trimmed_mean(f=1, keep_own=False),
    rules.krum(f=1),
    rules.clipped_gossip(),
    rules.verified(),
    rules.interpolated(),
    rules.threshold_clustering(),
    rules.clipped(rules.average()),
]
NETWORKS: dict[str, tuple[Any, Any, Any]] = {
    "localization": (small(), None, attacks.pulling(step=0.3)),
    "complete": (softmax(), Graph.complete(6), attacks.not_finite()),
    "ring of networks, Adam": (
        softmax(layers=nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), optimiser=adam(), skip=0.3),
        Graph.ring(6),
        attacks.uniform(0, 1),
    ),
    "trunk shared, changing graph": (
        softmax(layers=nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), share=["0"]),
        changing,
        attacks.silent(),
    ),
}


@pytest.mark.usefixtures("_traced_only")
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_what_is_traced_computes_the_same(rule: Any, network: str) -> None:
    task, graph, attack = NETWORKS[network]
    # If all agents hear the same, the rule first tests whether all messages arrived, which cannot be traced.
    looks = rule == rules.trimmed_mean(f=1, keep_own=False) and network in ("complete", "trunk shared, changing graph")
    with pytest.warns(UserWarning, match="runs uncompiled: combined") if looks else nullcontext():
        agree(*both(task, graph, rule=rule, byzantine=2, attack=attack, rounds=8))


@pytest.mark.usefixtures("_traced_only")
def test_messages_for_one_edge_where_all_hear_all_run_plainly() -> None:
    with pytest.warns(UserWarning, match="runs uncompiled: combined, loss_based"):
        agree(*both(softmax(), rule=rules.loss_based(), byzantine=2, attack=attacks.pulling(step=0.3)))


@pytest.mark.usefixtures("_traced_only")
def test_a_rule_that_draws_random_numbers_runs_plainly() -> None:
    """Traced once, it would draw the same numbers in every round."""
    with pytest.warns(UserWarning, match="runs uncompiled: combined, bucketing: it uses the number of the round"):
        agree(*both(softmax(), Graph.ring(6), rule=rules.bucketing(), byzantine=1, attack=attacks.uniform(0, 1)))


@pytest.mark.usefixtures("_traced_only")
def test_threads_share_what_is_traced_of_blocks_and_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("varangian.core.graph.CACHE_ENTRIES", 128)
    monkeypatch.setattr("varangian.engine.compute.blocks.ROWS", 16)
    ends: list[Tensor] = []
    for compile in (False, True):
        execution = Execution(threads=2, compile=compile)
        world = prepare([studies.target_localization(agents=60).scene(0)], [0], 0.2, execution, torch.float64)
        assert len(world.wiring(0).tables) > 3
        with torch.no_grad(), world.execution.applied():
            state = begin(world, rules.loss_based(), attacks.uniform(15, 16))
            for _ in range(6):
                state, _ = play_round(world, rules.loss_based(), attacks.uniform(15, 16), state)
        ends.append(state.models)
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("_traced_only")
@pytest.mark.parametrize("agents", [6000, 20_000])
def test_samples_of_large_networks_are_drawn_at_once(agents: int) -> None:
    scene = studies.target_localization(agents=agents).scene(0)
    plain = [prepare([scene], [0], 0.2, DEFAULT).sample(round) for round in (3, 40)]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):  # the second run uses what the first one compiled
            world = prepare([scene], [0], 0.2, Execution(compile=True))
            for _ in range(3):
                drawn = [world.sample(round) for round in (3, 40)]
            torch.testing.assert_close(drawn, plain, rtol=0, atol=0)
    again = world.sample(41)
    assert all(type(part) is Tensor for part in again)


@dataclass(frozen=True)
class counting:
    """Averages, and uses something that compiled code cannot."""

    looks: str

    def init(self, table: Tensor) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Combined[tuple[()]]:
        other = rules.average() if self.decides(inbox) else rules.alone()
        return other.combine(inbox, state)

    def decides(self, inbox: Inbox) -> bool:
        match self.looks:
            case "remainder":
                return inbox.round % 2 == 0
            case "equality":
                return inbox.round == 3
            case "truth":
                return bool(inbox.truth.normal.any())
            case "number":
                return float(inbox.own.sum()) > 0.5
            case "names":
                return len(torch.nonzero(inbox.own > 0)) > 3
        raise ValueError(self.looks)


@pytest.mark.usefixtures("_traced_only")
@pytest.mark.parametrize(
    ("looks", "reason"),
    [
        ("remainder", "the number of the round"),
        ("equality", "the number of the round"),
        ("truth", "the truth"),
        ("number", ""),
        ("names", ""),
    ],
)
def test_a_rule_that_cannot_be_compiled_runs_plainly_after_one_warning(looks: str, reason: str) -> None:
    with pytest.warns(UserWarning, match=f"runs uncompiled: combined, counting: .*{reason}") as warned:
        plain, compiled = both(small(), rule=counting(looks), byzantine=2)
    assert len([one for one in warned if "compile" in str(one.message)]) == 1
    agree(plain, compiled, tolerance=1e-15)


@pytest.mark.usefixtures("_traced_only")
def test_training_that_draws_is_not_compiled() -> None:
    task = softmax(layers=nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 3)))
    with pytest.warns(UserWarning, match=r"uncompiled: step: it draws random numbers"):
        agree(*both(task, byzantine=1, rule=rules.loss_based()))


@pytest.mark.usefixtures("_traced_only")
def test_long_functions_and_ever_new_shapes_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "MAX_SHAPES", 2)
    with pytest.warns(UserWarning, match="limit of 2 shapes"):
        agree(*both(softmax(), changing, rule=rules.loss_based()))
    monkeypatch.setattr(fused, "MAX_OPERATIONS", 5)
    with pytest.warns(UserWarning, match="more than 5 operations"):
        agree(*both(small()))


@pytest.mark.usefixtures("_traced_only")
def test_an_attack_that_looks_ahead_sees_the_same() -> None:
    agree(*both(small(), byzantine=2, attack=attacks.best_response(ahead=4), rounds=5))


def test_without_a_compiler_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BadInput, match=r"compile needs a C.. compiler, but there is no no-such-compiler"):
        varangian.simulate(small(), rounds=2, compile=True)


def test_a_broken_compiler_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise OSError("disk full")

    monkeypatch.setattr(fused, "_loops", broken)
    with pytest.warns(UserWarning, match="disk full"):
        agree(*both(softmax(agents=5), rule=rules.loss_based()), tolerance=0)


def test_what_computes_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "_loops", lambda graph, given, callers: lambda *given: [2 * v for v in graph(*given)])
    monkeypatch.setattr(fused, "_LOOPS", {})
    with pytest.warns(UserWarning, match="the compiled function gives other results"):
        agree(*both(softmax(agents=5), rule=rules.loss_based()), tolerance=0)


numbers = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -1.5, 1e308])


@given(st.lists(numbers, min_size=1), *[st.one_of(st.none(), numbers)] * 3)
def test_our_nan_to_num_is_torchs(values: list[float], nan: Any, posinf: Any, neginf: Any) -> None:
    given = torch.tensor(values, dtype=torch.float64)
    ours = fused._nan_to_num(given, nan, posinf, neginf)
    torch.testing.assert_close(ours, torch.nan_to_num(given, nan, posinf, neginf), rtol=0, atol=0, equal_nan=True)

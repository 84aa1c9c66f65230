"""The C++ loop against the rule `anchored`, on everything that hostile senders and odd losses can do."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.kernels import ATTACKS, attacked_exchange, both_ways, localized, with_hubs, world_of

import varangian
from varangian import Graph, attacks, rules, studies
from varangian.core.cpp.build import has_compiler
from varangian.core.execution import DEFAULT
from varangian.engine.compute.compile import Compiled
from varangian.engine.kernels.anchored import Loop, loop_for
from varangian.engine.kernels.registry import kernel_for
from varangian.engine.round import play_round
from varangian.engine.state import begin
from varangian.rules.anchored import Memory

pytestmark = pytest.mark.skipif(
    sys.platform == "win32" or not has_compiler(),
    reason="there is no C++ compiler that knows vectors",
)

OTHERS = rules.anchored(
    judge="same", scales=(0.3, 0.1, 0.05), significance=(0.0, 1.0, 3.0), own_significance=0.5, sudden=0.5, reach=1.0
)


@pytest.mark.parametrize("attack", [*ATTACKS, attacks.trust_then_strike(gifts=2)], ids=repr)
@pytest.mark.parametrize("rule", [rules.anchored(), OTHERS, rules.anchored(sudden=0.01, trust=0, leash=1)], ids=repr)
def test_the_loop_does_what_the_rule_says(rule: Any, attack: Any) -> None:
    both_ways(localized(45, torch.float64), rule, attack, rounds=8, tolerance=1e-11)


@pytest.mark.parametrize("stale", ["wait", "last", "skipped"])
@pytest.mark.parametrize("judge", ["next", "same"])
def test_the_loop_where_agents_have_no_new_sample(judge: Any, stale: str) -> None:
    world = localized(45, torch.float64, skip=0.6, stale=stale)
    both_ways(world, rules.anchored(judge=judge), attacks.pulling(step=0.3), rounds=8, tolerance=1e-11)


def test_the_loop_in_single_precision_and_beyond_one_tile() -> None:
    both_ways(localized(1100, torch.float32), rules.anchored(), attacks.uniform(15, 16), rounds=4, tolerance=1e-4)
    both_ways(localized(100, torch.float32), rules.anchored(), attacks.not_finite(), rounds=8, tolerance=1e-4)


def test_agents_that_stand_apart_in_their_tables() -> None:
    world = with_hubs()
    for attack in (attacks.uniform(15, 16), attacks.not_finite(), attacks.pulling(step=0.3)):
        both_ways(world, rules.anchored(), attack, rounds=3, tolerance=1e-11)


def test_losses_that_are_no_numbers_are_no_evidence() -> None:
    """Some anchors have no finite loss, so that their agents do not listen, and some messages have none."""
    start = torch.linspace(-1, 1, 30).view(15, 2)
    loss = lambda theta, sample: torch.log(theta[..., 0]) ** 2 + theta[..., 1] * sample[0]  # noqa: E731
    world = world_of(loss, 15, start, Graph.ring(15, 3), torch.ones(15), step_size=0.01)
    state = both_ways(world, rules.anchored(), attacks.silent(), rounds=4, tolerance=1e-5)
    ages = state.rule[0].unit.age
    assert (ages == 0.75).any()
    assert (ages > 0.75).any()


def test_means_of_huge_models_do_not_overflow() -> None:
    """Sums of shares times 3e38 do, and agents would then stay where they are."""
    start = torch.full((20, 2), 3e38)
    start[:, 1] = torch.linspace(1, 2, 20)
    loss = lambda theta, sample: (theta[..., 1] - sample[0]).square()  # noqa: E731
    world = world_of(loss, 20, start, Graph.complete(20), torch.zeros(20))
    rule, ends = rules.anchored(), []
    with torch.no_grad():
        state = begin(world, rule, attacks.silent())
        for executor in (world.executor, Compiled(DEFAULT)):
            after, _ = play_round(replace(world, executor=executor), rule, attacks.silent(), state)
            ends.append(after.models)
    torch.testing.assert_close(*ends)
    assert (ends[0][1:, 1] < start[1:, 1] - 0.02).all()


def test_the_loop_is_for_the_rule_without_another_inside() -> None:
    class like_it(rules.anchored):
        """A subclass may compute something else."""

    world = localized(12, torch.float32)
    with torch.no_grad():
        exchange = attacked_exchange(world, rules.anchored(), attacks.silent())
        assert isinstance(kernel_for(rules.anchored(), exchange, DEFAULT), Loop)
        assert kernel_for(like_it(), exchange, DEFAULT) is None
        assert kernel_for(rules.anchored(rules.average()), exchange, DEFAULT) is None


def test_without_a_compiler_torch_runs_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")
    rule = rules.anchored(scales=(0.1, 0.09, 0.08, 0.07), significance=(1, 1, 1, 1))  # compiled in no other test
    world = localized(12, torch.float32)
    with torch.no_grad(), pytest.warns(UserWarning, match="anchored is not one compiled loop here"):
        assert loop_for(rule, attacked_exchange(world, rule, attacks.silent()), DEFAULT) is None


def test_memory_is_kept_as_the_rule_keeps_it() -> None:
    world, rule = localized(12, torch.float32), rules.anchored()
    with torch.no_grad():
        state = begin(world, rule, attacks.silent())
        after, _ = play_round(replace(world, executor=Compiled(DEFAULT)), rule, attacks.silent(), state)
    assert isinstance(after.rule[0], Memory)
    for name in ("times", "mean", "variance"):
        ours, theirs = (getattr(memory.compared, name) for memory in (after.rule[0], state.rule[0]))
        assert ours.shape == theirs.shape
        assert ours.stride() == theirs.stride()


class Interrupt:
    """Interrupts the run after 15 rounds."""

    def start(self, world: Any, state: Any, rounds: int) -> None: ...

    def round(self, world: Any, state: Any, recorder: Any) -> None:
        if state.round == 15:
            raise KeyboardInterrupt

    def end(self, world: Any, state: Any) -> None: ...


def test_compiled_and_plain_runs_continue_each_other(tmp_path: Path) -> None:
    """All of a run compiled, the first half of it, the second half, or none: the same end."""
    study = studies.target_localization(agents=30)
    settings: dict[str, Any] = {
        "rule": rules.anchored(),
        "rounds": 30,
        "byzantine": 6,
        "attack": attacks.uniform(15, 16),
        "dtype": "float64",
    }
    ends = []
    for first in (False, True):
        for second in (False, True):
            folder = tmp_path / f"{first}-{second}"
            with pytest.raises(KeyboardInterrupt):
                varangian.simulate(study, compile=first, checkpoint=folder, callbacks=[Interrupt()], **settings)
            ends.append(varangian.simulate(study, compile=second, checkpoint=folder, resume=True, **settings))
    expected, *others = (torch.tensor(end["regret"].values) for end in ends)
    for other in others:
        torch.testing.assert_close(other, expected, rtol=1e-9, atol=1e-9)

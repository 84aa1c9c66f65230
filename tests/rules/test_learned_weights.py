"""L2C: by hand, its gradient against autograd, and what it learns."""

from __future__ import annotations

import math

import pytest
import torch
from inboxes import first_of, one_agent
from means import error, estimation, two_clusters

from varangian import BadInput, Graph, rules, simulate
from varangian.rules.learned_weights import l2c
from varangian.testing import check_rule

torch.set_num_threads(1)


def test_other_settings_keep_the_contract() -> None:
    check_rule(l2c(step=3.0, judge="same"))


def test_the_first_step_by_hand() -> None:
    # The mixture of (2, 0) and (0, 0) is (1, 0), with gradient (2, 0) of its square. g = ½ (2, −2), so α = (−1, 1).
    model, weights = first_of(l2c(step=1.0), one_agent([2, 0], [0, 0], None))
    share = math.exp(1) / (math.exp(1) + math.exp(-1))
    assert weights == pytest.approx([1 - share, share, 0])
    assert model == pytest.approx([2 * (1 - share), 0])


def test_the_step_goes_down_the_gradient_of_the_mixture() -> None:
    own, *others = ([3.0, -1.0], [0.5, 2.0], [-1.0, 4.0])
    aim, step, before = torch.tensor([1.0, 1.0]).double(), 0.3, [0.2, -0.4, 0.1]
    inbox = one_agent(own, *others, aim=aim.tolist())
    logits = torch.tensor(before, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        mixture = logits.softmax(0) @ torch.tensor([own, *others], dtype=torch.float64)
        (gradient,) = torch.autograd.grad((mixture - aim).square().sum(), logits)
    expected = logits.detach() - step * gradient / gradient.abs().max()
    table = torch.tensor(before, dtype=torch.float64).expand(3, 3).contiguous()
    torch.testing.assert_close(l2c(step).combine(inbox, (table,)).state[0][0], expected)


def test_a_silent_neighbour_keeps_what_was_learned_about_it() -> None:
    heard, silent = one_agent([2, 0], [0, 0]), one_agent([2, 0], None)
    assert first_of(l2c(step=1.0), heard, silent)[1] == [1, 0]
    once, later = first_of(l2c(step=1.0), heard)[1], first_of(l2c(step=1.0), heard, silent, heard)[1]
    assert once is not None and later is not None and later[1] > once[1]


def test_equal_models_teach_nothing() -> None:
    assert first_of(l2c(step=1.0), one_agent([2, 0], [2, 0]))[1] == [0.5, 0.5]


@pytest.mark.parametrize("step", [0.0, -1.0, math.inf])
def test_a_step_out_of_bounds_is_refused(step: float) -> None:
    with pytest.raises(BadInput, match=f"step is {step}"):
        l2c(step=step)


def test_it_learns_who_has_the_same_task() -> None:
    """Two clusters of tasks and no adversary, as in the paper: weights find the own cluster, and models profit."""
    task, graph = estimation(two_clusters()), Graph.complete(20)
    learned, alone, averaged = (error(task, graph, r) for r in (l2c(step=0.5), rules.alone(), rules.average()))
    assert learned < alone / 2 < averaged
    result = simulate(task, graph, rule=l2c(step=0.5), rounds=60).isel(seed=0, snapshot=-1)
    same = result["sender"] % 2 == result["agent"] % 2
    assert float(result["weight"].where(same).sum("slot").min()) > 0.95

"""Attacks that need no knowledge, by hand. `tests/engine/test_round.py` compares them with loops."""

from __future__ import annotations

from dataclasses import replace

import torch
from attack_views import view_of
from torch import Tensor, nn

from varangian import Graph
from varangian.attacks import shrink
from varangian.core.models.base import Formula
from varangian.core.models.stacked import Stacked


def rows(*models: list[float]) -> Tensor:
    return torch.tensor(models, dtype=torch.float64)


def test_shrink_has_one_factor_for_each_tensor_and_they_multiply() -> None:
    """A model of a tensor with two numbers and one with one number. The sender's honest model goes 1, 2, 4."""
    attack, sizes = shrink(0.5), (2, 1)
    state = attack.init(rows([1, 1, 1]))
    expected = rows([1, 1, 1])[0]
    for round, (before, after) in enumerate([(1.0, 2.0), (2.0, 4.0), (4.0, 4.0)]):
        adapted = rows([0, 0, 0], [after] * 3)
        view = replace(view_of(Graph.complete(2), [1], adapted, round=round), sizes=sizes)
        one, two = (0.5 * view.draws.uniform("shrink attack", round, 2, torch.float64)[0]).tolist()
        assert one != two
        expected = (expected + after - before) * torch.tensor([one, one, two], dtype=torch.float64)
        sent, state = attack.send(view, state)
        torch.testing.assert_close(sent.rows[0], expected)


def test_shrink_from_the_first_round_is_the_honest_model_times_a_factor() -> None:
    view = view_of(Graph.complete(2), [1], rows([0, 0], [6, 8]))
    sent, _ = shrink(0.1).send(view, shrink(0.1).init(rows([5, 5])))
    factor = 0.1 * view.draws.uniform("shrink attack", 0, 1, torch.float64)[0, 0]
    torch.testing.assert_close(sent.rows[0], rows([6, 8])[0] * factor)


def test_models_know_the_sizes_of_the_tensors_they_send() -> None:
    layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    assert Stacked.of(layers, nn.functional.mse_loss).sizes == (12, 4, 4, 4, 8, 2)
    assert Stacked.of(layers, nn.functional.mse_loss, share=["2"]).sizes == (8, 2)
    assert Formula(5, lambda theta, sample: theta.sum(-1)).sizes == (5,)

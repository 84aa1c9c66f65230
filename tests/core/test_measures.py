"""Metrics of sets are measured on each agent's own items; names that results use are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchmetrics import classification, functional

import varangian as vg
from varangian import BadInput, Graph, Task, attacks

AGENTS = 5


def data(seed: int) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    sizes = [11 + 4 * agent for agent in range(AGENTS)]
    x = [torch.randn(size, 3, generator=draw) for size in sizes]
    return [(own, (own.sum(1) + torch.randn(len(own), generator=draw) > 0).long()) for own in x]


def task_of(metrics: Any, **settings: Any) -> Task:
    torch.manual_seed(0)
    settings = {"test": data(1), "batch": 5, "step_size": 0.2} | settings
    return Task.supervised(nn.Linear(3, 2), cross_entropy, data(0), metrics=metrics, **settings)


def chance(predicted: Tensor) -> Tensor:
    return predicted.softmax(-1)[:, 1]


class OfTwo(torchmetrics.Metric):
    """A metric of torchmetrics that takes the scores of two classes."""

    higher_is_better = True

    def __init__(self) -> None:
        super().__init__()
        self.inner = classification.BinaryAUROC()

    def update(self, predicted: Tensor, y: Tensor) -> None:
        self.inner.update(chance(predicted), y)

    def compute(self) -> Tensor:
        return self.inner.compute()  # type: ignore[no-any-return]

    def reset(self) -> None:
        super().reset()
        self.inner.reset()


SETS: dict[str, Any] = {
    "macro_f1": classification.MulticlassF1Score(2),
    "auc": OfTwo(),
    "calibration_error": classification.MulticlassCalibrationError(2),
    "f1": lambda p, y: functional.f1_score(p.argmax(-1), y, task="binary"),
    "spread": lambda p, y: float(p.std()),
}


def test_metrics_of_sets_are_those_of_each_agents_items() -> None:
    """Agents have different numbers of items, and a mean over items or batches would be another number."""
    result = vg.simulate(task_of(SETS), Graph.ring(AGENTS), rounds=10)
    for agent, (x, y) in enumerate(data(1)):
        predicted = result.module(agent)(x).detach()
        expected = {
            "macro_f1": classification.MulticlassF1Score(2)(predicted, y),
            "auc": classification.BinaryAUROC()(chance(predicted), y),
            "calibration_error": classification.MulticlassCalibrationError(2)(predicted, y),
            "f1": classification.BinaryF1Score()(predicted.argmax(-1), y),
            "spread": predicted.std(),
        }
        for name, value in expected.items():
            found = float(result[name].isel(seed=0, epoch=-1, agent=agent))
            assert found == pytest.approx(float(value), abs=1e-6), (agent, name)


def test_metrics_of_items_are_averaged_as_before() -> None:
    right = {"accuracy": lambda p, y: p.argmax(-1) == y}
    one = vg.simulate(task_of(right), rounds=6)
    both = vg.simulate(task_of(right | {"macro_f1": SETS["macro_f1"]}), rounds=6)
    np.testing.assert_array_equal(one["accuracy"], both["accuracy"])
    np.testing.assert_array_equal(one["test_loss"], both["test_loss"])


def test_the_given_metric_is_left_alone() -> None:
    metric = classification.MulticlassAccuracy(2)
    metric.update(torch.tensor([[0.0, 1.0]]), torch.tensor([0]))
    vg.simulate(task_of({"accuracy": metric}), rounds=3)
    assert float(metric.compute()) == 0  # still the one item, which was wrong


def test_the_worst_agent_is_the_one_with_the_lowest_f1() -> None:
    result = vg.simulate(task_of(SETS), attack=attacks.sign_flip(), byzantine=[2], rounds=6)
    row, end = vg.summary(result)[0], vg.final(result, "macro_f1")
    assert row["macro_f1_worst"] == pytest.approx(float(end.min()))
    assert row["calibration_error_worst"] == pytest.approx(float(vg.final(result, "calibration_error").max()))


def test_training_data_and_anchors_are_measured_too() -> None:
    task = task_of({"macro_f1": SETS["macro_f1"]}, watch_training=True)
    result = vg.simulate(task, rule=vg.rules.anchored(), rounds=6)
    assert {"macro_f1", "train_macro_f1"} <= set(result.data_vars)


def test_parts_of_a_network_measure_their_own_agents() -> None:
    task = task_of(SETS)
    models = torch.randn(AGENTS, 8, generator=torch.Generator().manual_seed(0))
    assert task.held_out is not None
    whole = task.held_out(models)
    part = task.part(torch.tensor([3, 1]))
    assert part.held_out is not None
    for name, value in part.held_out(models[[3, 1]]).items():
        torch.testing.assert_close(value, whole[name][[3, 1]])


def test_an_attack_that_thinks_ahead_does_not_pay_for_them() -> None:
    asked: list[int] = []

    def counted(p: Tensor, y: Tensor) -> float:
        asked.append(len(y))
        return 0.5

    attack, rule = attacks.best_response(ahead=20), vg.rules.loss_based()
    vg.simulate(task_of({"half": counted}), rule=rule, attack=attack, byzantine=[0], rounds=2)
    assert len(asked) <= 2 + AGENTS


@pytest.mark.parametrize(
    "name", ["loss", "test_loss", "kept", "agent", "weight", "train_f1", "alone_auc", "f1_group_2"]
)
def test_names_of_ours_are_refused(name: str) -> None:
    with pytest.raises(BadInput, match="results use this name for something else"):
        task_of({name: lambda p, y: p.argmax(-1) == y})


@pytest.mark.parametrize("name", ["", "a/b", "../f1", "_x", 3])
def test_names_that_no_file_could_have_are_refused(name: Any) -> None:
    with pytest.raises(BadInput, match="cannot be called"):
        task_of({name: lambda p, y: p.argmax(-1) == y})


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (classification.MulticlassF1Score, "must be a function"),
        (classification.MulticlassF1Score(2, average=None), r"gave a tensor of shape \(2,\)"),
        (lambda p, y: p, r"gave a tensor of shape \(16, 2\)"),
        (lambda p, y: {"f1": 1}, "gave a value of type dict"),
        (lambda p, y: p.nothing, "failed on predictions of shape"),
        (classification.BinaryF1Score(), "failed on predictions of shape"),
        (7, "must be a function"),
    ],
)
def test_what_is_no_metric_is_refused(metric: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        task_of({"own_f1": metric})


def test_a_name_says_which_direction_is_better() -> None:
    with pytest.raises(BadInput, match="its name does not say so"):
        task_of({"quality": classification.MulticlassF1Score(2)})

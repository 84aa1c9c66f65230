"""The success of a backdoor is measured, where an attack has a trigger."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_tasks import AGENTS, softmax
from torch import nn

from varangian import Graph, attacks, rules, simulate, studies
from varangian.core.execution import DEFAULT
from varangian.core.task import Task
from varangian.engine.results import summary
from varangian.engine.triggers import SUCCESS, trigger_test


def by_first_feature() -> Task:
    """Agent k has test items of classes 0, 1, 1 (k even) or 0, 0 (k odd). Models label as weights say."""
    items = [torch.tensor([0, 1, 1]), torch.tensor([0, 0])]
    data = [(torch.zeros(len(own), 2), own) for own in items]
    metrics = {"accuracy": lambda p, y: (p.argmax(-1) == y).double()}
    return Task.supervised(nn.Linear(2, 2), nn.functional.cross_entropy, data, test=data, metrics=metrics)


def test_success_counts_items_of_other_classes_only() -> None:
    attack = attacks.backdoor(target=0, features=(1,), value=1.0)
    test = trigger_test(by_first_feature(), attack, DEFAULT)
    assert test is not None
    # Rows: weight (2 × 2, label by feature), then bias. The trigger is feature 1 = 1.
    falls, resists = [0.0, 5.0, 0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    found = test(torch.tensor([falls, falls]))[SUCCESS]
    assert found[0] == 1 and found[1].isnan(), "agent 1 has only items of the target class"
    assert test(torch.tensor([resists, falls]))[SUCCESS][0] == 0


def test_attacks_without_a_trigger_and_tasks_without_labels_have_no_test() -> None:
    assert trigger_test(softmax(), attacks.label_flip(), DEFAULT) is None
    assert trigger_test(studies.target_localization().task(0), attacks.backdoor(), DEFAULT) is None


@pytest.mark.parametrize("seeds", [1, 2])
def test_runs_record_success_at_every_evaluation(seeds: int) -> None:
    settings: dict[str, Any] = {"rule": rules.average(), "byzantine": 4, "rounds": 10, "seeds": seeds, "device": "cpu"}
    result = simulate(softmax(), Graph.complete(AGENTS), attack=attacks.backdoor(), **settings)
    assert result[SUCCESS].dims == ("seed", "epoch", "agent")
    rows = summary(result)
    assert len(rows) == seeds and all(
        0 <= row["backdoor_success_mean"] <= row["backdoor_success_worst"] for row in rows
    )
    clean = simulate(softmax(), Graph.complete(AGENTS), attack=attacks.label_flip(), **settings)
    assert SUCCESS not in clean


def test_the_backdoor_gets_into_an_average_and_clean_accuracy_stays() -> None:
    """Two classes, told apart by feature 0. The trigger is feature 1, which is always 0 in clean data."""
    draw = torch.Generator().manual_seed(0)

    def items(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(count, 2, generator=draw)
        x[:, 1] = 0
        return x, (x[:, 0] > 0).long()

    metrics = {"accuracy": lambda p, y: (p.argmax(-1) == y).double()}
    data, test = ([items(40) for _ in range(10)] for _ in range(2))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Linear(2, 2)
    task = Task.supervised(model, nn.functional.cross_entropy, data, test=test, metrics=metrics, step_size=0.3)
    attack = attacks.backdoor(target=0, features=(1,), share=0.5)
    row, calm = (
        summary(simulate(task, rule=rules.average(), attack=attack, byzantine=count, rounds=100, device="cpu"))[0]
        for count in (3, 0)
    )
    assert row["accuracy_mean"] > 0.9 and calm["accuracy_mean"] > 0.9
    assert row["backdoor_success_mean"] > 0.9 > 0.6 > calm["backdoor_success_mean"]

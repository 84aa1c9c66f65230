"""What studies on finite datasets share: few training items an agent."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from varangian import BadInput, studies
from varangian.core.batches import Batches, HeldOut
from varangian.core.task import Evaluations
from varangian.studies.supervised import batch_size


def needs_data(make: Any) -> None:
    try:
        make().scene(0)
    except BadInput as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("make", [studies.school, studies.human_activity, studies.digits])
def test_items_are_the_first_of_the_training_data_and_the_test_data_stays(make: Any) -> None:
    needs_data(make)
    few, more, whole = (make(items=items).scene(3).task for items in (8, 12, None))
    assert isinstance(few.stream, Batches)
    assert few.stream.pool.counts.tolist() == [8] * few.agents
    assert few.stream.batch == 2
    assert few.epoch == 4
    # Digits deals images to one agent after the other, so only the first agent keeps its images.
    for agent in (0,) if make is studies.digits else (0, few.agents - 1):
        first, second = (task.stream.pool.x[task.stream.pool.members[agent, :8]] for task in (few, more))
        assert torch.equal(first, second), "more items contain fewer"
    tested = [task.tested for task in (few, whole)]
    one, other = (part.parts[0] if isinstance(part, Evaluations) else part for part in tested)
    if isinstance(one, HeldOut) and isinstance(other, HeldOut):
        assert torch.equal(one.pool.x, other.pool.x)


def test_no_agent_of_digits_shares_an_item_or_skips_a_batch() -> None:
    needs_data(studies.digits)
    task = studies.digits(items=16).scene(0).task
    assert isinstance(task.stream, Batches)
    members = task.stream.pool.members
    assert len(members.unique()) == members.numel()
    assert task.skip == 0.0


def test_a_batch_is_at_most_a_quarter_of_the_items() -> None:
    assert [batch_size(10, items) for items in (None, 1, 8, 32, 100)] == [10, 1, 2, 8, 10]


@pytest.mark.parametrize("make", [studies.school, studies.human_activity, studies.digits])
def test_no_items_are_refused(make: Any) -> None:
    with pytest.raises(BadInput, match="items must be at least 1"):
        make(items=0)


def test_more_items_than_there_are_images_are_refused() -> None:
    needs_data(studies.digits)
    with pytest.raises(BadInput, match="lower items"):
        studies.digits(items=10**6).scene(0)

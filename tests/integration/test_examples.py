"""The examples run, and show what they say they show."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import torch

torch.set_num_threads(1)

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_model_of_ones_own_survives_what_ruins_the_average() -> None:
    accuracy = example("own_model").main(rounds=24)
    assert accuracy["alone"] > 70, "there is nothing to lose"
    assert accuracy["average"] < 40, "chance is 25 %"
    assert accuracy["loss_based"] < accuracy["alone"] - 15, "lies are kept while nobody knows anything"
    assert accuracy["patient"] > accuracy["alone"] - 3


def test_sharing_a_trunk_beats_no_cooperation_with_two_byzantine_agents() -> None:
    accuracy = example("own_heads").main()
    everyone, those_with_little_data = (
        cooperating - alone for alone, cooperating in zip(accuracy["alone"], accuracy["loss_based"], strict=True)
    )
    assert accuracy["alone"][0] > 70, "the baseline was not left to fail"
    assert everyone > 4
    assert those_with_little_data > 8

"""A rule, an attack or a metric that fails in the middle of a run: who, when, and what is saved."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers.small_tasks import softmax
from torch import Tensor

import varangian
from varangian import BadInput, Graph, attacks, rules
from varangian.core.errors import RunFailed
from varangian.rules.base import Combined

torch.set_num_threads(1)
AT = 3
"""The round that fails, counted from 0."""


@dataclass(frozen=True)
class fragile:
    """The average, which fails in one round until it is mended."""

    mended: list[bool]

    def __repr__(self) -> str:
        return "fragile()"

    def init(self, table: Tensor) -> tuple[()]:
        return ()

    def combine(self, inbox: Any, state: tuple[()]) -> Combined[tuple[()]]:
        if inbox.round == AT and not self.mended:
            raise ZeroDivisionError("a bad day")
        return rules.average().combine(inbox, ())


class moody(attacks.sign_flip):
    """An attack that fails in one round."""

    def send(self, view: Any, state: Any) -> Any:
        if view.round == AT:
            raise KeyError("mood")
        return super().send(view, state)


class Failing:
    """A callback that fails after some rounds."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def start(self, world: Any, state: Any, rounds: int) -> None: ...

    def round(self, world: Any, state: Any, recorder: Any) -> None:
        if state.round == AT:
            raise self.error

    def end(self, world: Any, state: Any) -> None: ...


def run(**given: Any) -> Any:
    return varangian.simulate(softmax(), **({"graph": Graph.ring(14), "rounds": 6} | given))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_rule_that_fails_is_named_and_the_rounds_before_are_kept(tmp_path: Path, threads: int) -> None:
    mended: list[bool] = []
    with pytest.raises(RunFailed) as caught:
        run(rule=fragile(mended), checkpoint=tmp_path, threads=threads)
    line = str(caught.value)
    assert line.startswith("rule fragile() failed in round 4: ZeroDivisionError: a bad day; the rounds before are in ")
    assert "\n" not in line
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert "in combine" in "".join(traceback.format_exception(caught.value)), "the original traceback is lost"
    assert [path.name for path in tmp_path.iterdir()] == ["seeds-0-0.checkpoint"]
    mended.append(True)
    resumed = run(rule=fragile(mended), checkpoint=tmp_path, resume=True)
    np.testing.assert_array_equal(resumed["loss"], run(rule=fragile(mended))["loss"])


def test_an_attack_that_fails_is_named() -> None:
    with pytest.raises(RunFailed, match=r"^attack moody\(.*\) failed in round 4: KeyError: .*checkpoint=FOLDER"):
        run(attack=moody(), byzantine=2)


def test_a_metric_that_fails_late_is_told_apart(tmp_path: Path) -> None:
    calls: list[int] = []

    def metric(predicted: Tensor, label: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) > 3:  # twice before the run, and in round 2
            raise ValueError("enough")
        return predicted[..., 0]

    data = [(torch.ones(5, 2), torch.zeros(5, dtype=torch.long))] * 3
    settings: dict[str, Any] = {"test": data, "metrics": {"mine": metric}, "epoch": 2}
    task = varangian.Task.supervised(torch.nn.Linear(2, 2), torch.nn.functional.cross_entropy, data, **settings)
    with pytest.raises(RunFailed, match=r"^measuring failed in round 4: ValueError: enough"):
        varangian.simulate(task, rule=varangian.rules.loss_based(), rounds=6, checkpoint=tmp_path)
    assert list(tmp_path.glob("*.checkpoint"))


@pytest.mark.parametrize("error", [BadInput("not like this"), RuntimeError("as it is")])
def test_other_errors_pass_as_they_are_and_nothing_is_lost(error: Exception, tmp_path: Path) -> None:
    with pytest.raises(type(error), match=str(error)) as caught:
        run(callbacks=[Failing(error)], checkpoint=tmp_path)
    assert caught.value is error
    assert list(tmp_path.glob("*.checkpoint"))


def test_nothing_is_written_if_the_first_round_fails(tmp_path: Path) -> None:
    class useless(fragile):
        def combine(self, inbox: Any, state: tuple[()]) -> Combined[tuple[()]]:
            raise ZeroDivisionError

    with pytest.raises(RunFailed, match="failed in round 1"):
        run(rule=useless([]), checkpoint=tmp_path)
    assert not list(tmp_path.iterdir())

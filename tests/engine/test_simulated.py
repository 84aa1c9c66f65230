"""What `simulate` returns: a dataset as before, with models, tables and what was run."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from small_tasks import softmax
from torch import nn
from torch.nn.functional import cross_entropy

import varangian as vg
from varangian import BadInput, Graph, Scene, Task, attacks, rules, studies

LIES: dict[str, Any] = {"attack": attacks.sign_flip(), "byzantine": [1, 4], "rounds": 10}


def drawn(seed: int) -> Task:
    """Another split and another start for every seed."""
    draw = torch.Generator().manual_seed(seed)
    x, y = torch.randn(4, 12, 3, generator=draw), torch.randint(2, (4, 12), generator=draw)
    torch.manual_seed(seed)
    return Task.supervised(nn.Linear(3, 2), cross_entropy, list(zip(x, y, strict=True)), batch=3)


@pytest.fixture(scope="module")
def result() -> vg.Result:
    return vg.simulate(softmax(), Graph.ring(14), rule=rules.loss_based(keep="all"), seeds=2, **LIES)


# A dataset as before ----------------------------------------------------------------------------------------------


def test_a_result_is_a_dataset(result: vg.Result) -> None:
    assert isinstance(result, xr.Dataset)
    assert result["loss"].dims == ("seed", "round", "agent")
    assert vg.final(result, "accuracy").dims == ("seed", "agent")
    both = xr.concat([result, result], "again")
    xr.testing.assert_equal(both.isel(again=0), result)
    assert float(result.isel(seed=0)["loss"].mean()) == pytest.approx(float(result["loss"][0].mean()))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_keep_everything(result: vg.Result, copied: Any) -> None:
    again = copied(result)
    xr.testing.assert_identical(again, result)
    assert torch.equal(again.models_of(1).rows, result.models_of(1).rows)


def test_a_result_goes_through_a_file(result: vg.Result, tmp_path: Path) -> None:
    result.to_netcdf(tmp_path / "one.nc")
    again = vg.load(tmp_path / "one.nc")
    xr.testing.assert_identical(again, result)
    assert again.curves().equals(result.curves())


# What was run -----------------------------------------------------------------------------------------------------


def test_a_result_says_what_was_run(result: vg.Result) -> None:
    assert result.attrs["rule"] == "loss-based:keep=all"
    assert result.attrs["attack"] == "sign-flip"
    assert json.loads(result.attrs["byzantine"]) == [1, 4]
    assert result.attrs["version"] == vg.__version__
    settings = json.loads(result.attrs["settings"])
    assert (settings["rounds"], settings["judge"], settings["forgetting"]) == (10, "next", 0.3)


def test_a_study_says_its_settings() -> None:
    study = studies.target_localization(agents=5, step_size=0.05)
    settings = json.loads(vg.simulate(study, rounds=3, dtype="float64").attrs["settings"])
    assert settings["study"] == "target-localization"
    assert (settings["agents"], settings["step_size"], settings["rounds"]) == (5, 0.05, 3)
    assert settings["dtype"] == "float64"


def test_a_rule_of_ones_own_with_tensors_has_a_name() -> None:
    from dataclasses import dataclass, field

    @dataclass(frozen=True)
    class leaning(rules.average):  # type: ignore[misc]
        by: torch.Tensor = field(default_factory=lambda: torch.zeros(3))

    assert vg.simulate(softmax(), rule=leaning(), rounds=1).attrs["rule"] == "leaning:by=tensor(3,)"


# Seeds ------------------------------------------------------------------------------------------------------------


def test_one_task_starts_and_splits_alike_for_all_seeds(result: vg.Result) -> None:
    first = vg.simulate(softmax(), rounds=1, seeds=2, rule=rules.alone(), start=None)
    assert first.attrs["seeds_change"] == result.attrs["seeds_change"]
    assert "not the data or the start" in first.attrs["seeds_change"]


def test_a_function_of_the_seed_draws_data_and_start_anew() -> None:
    result = vg.simulate(drawn, rounds=2, seeds=[3, 5], rule=rules.alone())
    for seed in (3, 5):
        alone = vg.simulate(drawn(seed), rounds=2, seeds=[seed], rule=rules.alone())
        np.testing.assert_array_equal(result["loss"].sel(seed=seed), alone["loss"].sel(seed=seed))
        assert torch.equal(result.models_of(seed).rows, alone.models.rows)
    fixed = vg.simulate(drawn(3), rounds=2, seeds=[3, 5], rule=rules.alone())
    assert not np.array_equal(fixed["loss"].sel(seed=5), result["loss"].sel(seed=5))
    assert "drawn anew" in result.attrs["seeds_change"]


def test_a_function_of_the_seed_may_bring_a_graph() -> None:
    lonely = vg.simulate(lambda seed: Scene(drawn(seed), Graph.from_edges(4, [])), rounds=4, seeds=2)
    alone = vg.simulate(drawn, rounds=4, seeds=2, rule=rules.alone())
    np.testing.assert_allclose(lonely["loss"], alone["loss"], rtol=1e-5)
    with pytest.raises(BadInput, match="has its own graph"):
        vg.simulate(lambda seed: Scene(drawn(seed), Graph.ring(4)), Graph.ring(4))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda seed: None, "must return a Task or a Scene, but returned NoneType"),
        (studies.target_localization, "write studies.target_localization"),
        ("school", "write studies.school"),
    ],
)
def test_what_is_no_task_is_refused(given: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        vg.simulate(given)


# Models -----------------------------------------------------------------------------------------------------------


class Last:
    """Remembers the last models of every seed."""

    def __init__(self) -> None:
        self.models: list[torch.Tensor] = []

    def start(self, world: Any, state: Any, rounds: int) -> None: ...

    def round(self, world: Any, state: Any, recorder: Any) -> None: ...

    def end(self, world: Any, state: Any) -> None:
        self.models.append(state.used.clone())


@pytest.mark.parametrize("rule", [rules.loss_based(), rules.ditto(), rules.anchored()], ids=lambda r: type(r).__name__)
def test_models_are_those_that_the_last_round_left(rule: Any) -> None:
    last = Last()
    result = vg.simulate(softmax(), rule=rule, seeds=2, callbacks=[last], **LIES)
    for seed in (0, 1):
        assert torch.equal(result.models_of(seed).rows, last.models[seed])
    state = result.models[3]
    assert {name: tuple(value.shape) for name, value in state.items()} == {"weight": (3, 5), "bias": (3,)}
    assert torch.equal(torch.cat([state["weight"].flatten(), state["bias"]]), last.models[0][3])
    assert len(result.models) == 14 and result.models.seed == 0


def test_a_module_predicts_what_was_measured(result: vg.Result) -> None:
    task = softmax()
    pool = task.held_out.parts[0].pool  # type: ignore[union-attr]
    for agent in (0, 7):
        own = pool.members[agent, : pool.counts[agent]]
        module = result.module(agent, seed=1)
        right = (module(pool.x[own]).argmax(-1) == pool.y[own]).double().mean()
        assert float(right) == pytest.approx(float(result["accuracy"].isel(epoch=-1).sel(seed=1, agent=agent)))
        assert not module.training


def test_a_state_dict_is_a_copy(result: vg.Result) -> None:
    result.models[0]["bias"].fill_(9)
    assert not bool((result.models[0]["bias"] == 9).any())


def test_agents_in_another_order_in_memory_get_their_own_models(monkeypatch: pytest.MonkeyPatch) -> None:
    study = studies.target_localization(agents=40)
    usual = vg.simulate(study, rounds=5)
    monkeypatch.setattr("varangian.engine.compute.agent_order.LARGE", 10)
    other = vg.simulate(study, rounds=5)
    torch.testing.assert_close(other.models.rows, usual.models.rows)


def test_large_models_are_kept_only_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("varangian.engine.trained.SMALL", 100)
    with pytest.raises(BadInput, match="save_models=True"):
        _ = vg.simulate(softmax(), rounds=1).models
    assert len(vg.simulate(softmax(), rounds=1, save_models=True).models) == 14
    monkeypatch.undo()
    with pytest.raises(BadInput, match="has no models"):
        _ = vg.simulate(softmax(), rounds=1, save_models=False).models


def test_a_part_of_a_result_says_that_it_has_no_models(result: vg.Result) -> None:
    with pytest.raises(BadInput, match="a part or a copy"):
        _ = result.isel(seed=0).models
    with pytest.raises(BadInput, match="the seeds 0, 1, but not 7"):
        result.models_of(7)


class Stop:
    def start(self, world: Any, state: Any, rounds: int) -> None: ...

    def round(self, world: Any, state: Any, recorder: Any) -> None:
        if world.seeds == (1,) and state.round == 4:
            raise KeyboardInterrupt

    def end(self, world: Any, state: Any) -> None: ...


def test_a_resumed_run_has_the_models_of_all_seeds(tmp_path: Path) -> None:
    whole = vg.simulate(drawn, seeds=3, rounds=8)
    with pytest.raises(KeyboardInterrupt):
        vg.simulate(drawn, seeds=3, rounds=8, checkpoint=tmp_path, callbacks=[Stop()])
    resumed = vg.simulate(drawn, seeds=3, rounds=8, checkpoint=tmp_path, resume=True)
    for seed in range(3):
        torch.testing.assert_close(resumed.models_of(seed).rows, whole.models_of(seed).rows)


def test_seeds_that_were_finished_without_models_are_run_again(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        vg.simulate(drawn, seeds=2, rounds=8, checkpoint=tmp_path, callbacks=[Stop()], save_models=False)
    resumed = vg.simulate(drawn, seeds=2, rounds=8, checkpoint=tmp_path, resume=True, save_models=True)
    assert torch.equal(resumed.models.rows, vg.simulate(drawn, rounds=8).models.rows)

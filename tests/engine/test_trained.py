"""The models of all agents: state dicts that fit their module, files, and starts of other runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_tasks import softmax
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

import varangian as vg
from varangian import AgentModels, BadInput, Graph, Task, rules, studies
from varangian.core.models.stacked import Stacked
from varangian.engine.cluster.partition import parts as partitioned
from varangian.engine.cluster.subnetwork import cut, world_of
from varangian.engine.trained import rows_to_start


class Tied(nn.Module):
    """Two layers that share their weights, a layer that is frozen, and running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed = nn.Linear(4, 4).requires_grad_(False)
        self.norm = nn.BatchNorm1d(4)
        self.there, self.back = nn.Linear(4, 4), nn.Linear(4, 4)
        self.back.weight = self.there.weight

    def forward(self, x: Tensor) -> Tensor:
        there: Tensor = self.there(self.norm(self.fixed(x))).relu()
        return self.back(there)  # type: ignore[no-any-return]


def tied_task() -> Task:
    torch.manual_seed(0)
    data = [(torch.randn(12, 4), torch.randn(12, 4)) for _ in range(3)]
    return Task.supervised(Tied(), mse_loss, data, batch=4, step_size=0.05)


def test_state_dicts_fit_a_module_with_ties_statistics_and_frozen_layers(tmp_path: Path) -> None:
    result = vg.simulate(tied_task(), rounds=4)
    fresh = Tied()
    assert list(result.models[1]) == list(fresh.state_dict())
    fresh.load_state_dict(result.models[1])
    x = torch.randn(5, 4)
    assert torch.equal(fresh.eval()(x), result.module(1)(x))
    result.models.save(tmp_path / "m.safetensors")
    again = AgentModels.load(tmp_path / "m.safetensors")
    module = Tied()
    # The file holds each number once, so the second name of a shared tensor is not in it.
    assert module.load_state_dict(again[1], strict=False).missing_keys == ["back.weight"]
    assert torch.equal(module.eval()(x), result.module(1)(x))


def test_a_formula_has_theta_and_no_module() -> None:
    result = vg.simulate(studies.target_localization(agents=4), rounds=3)
    assert list(result.models[2]) == ["theta"]
    assert result.models[2]["theta"].shape == (2,)
    with pytest.raises(BadInput, match="no module"):
        result.module(2)
    with pytest.raises(IndexError, match="4 agents"):
        result.models[4]


# Starting from models ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["models", "list", "file", "path"])
def test_a_run_goes_on_from_the_models_of_another(form: str, tmp_path: Path) -> None:
    task = softmax()
    first = vg.simulate(task, rounds=6, rule=rules.alone())
    file = tmp_path / "models.safetensors"
    first.models.save(file)
    start: Any = {"models": first.models, "list": list(first.models), "file": str(file), "path": file}[form]
    seen: list[Tensor] = []

    class First:
        def start(self, world: Any, state: Any, rounds: int) -> None:
            seen.append(state.models.clone())

        def round(self, world: Any, state: Any, recorder: Any) -> None: ...
        def end(self, world: Any, state: Any) -> None: ...

    vg.simulate(task, rounds=1, start=start, callbacks=[First()])
    assert torch.equal(seen[0], first.models.rows)


def test_one_state_dict_is_the_start_of_all_agents() -> None:
    layer = nn.Linear(5, 3)
    rows = rows_to_start(softmax().model, 14, layer.state_dict())
    assert rows.shape == (14, 18)
    assert torch.equal(rows[0], rows[13])
    assert torch.equal(rows[0, :15], layer.weight.flatten())


def test_running_statistics_and_frozen_layers_are_started_from_too() -> None:
    task = tied_task()
    models = vg.simulate(task, rounds=4).models
    assert torch.equal(rows_to_start(task.model, 3, models), models.rows)
    assert torch.equal(rows_to_start(task.model, 3, list(models)), models.rows)


LAYER = nn.Linear(5, 3).state_dict()


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ([LAYER] * 3, "the models of 3 agents, but the task has 14"),
        ({"weight": LAYER["weight"]}, "start has no 'bias'"),
        ({**LAYER, "wieght": LAYER["weight"]}, "did you mean 'weight'"),
        ({**LAYER, "bias": torch.zeros(4)}, r"'bias' has shape \(4,\), but the model needs \(3,\)"),
        ([LAYER] * 13 + [{**LAYER, "bias": torch.zeros(1)}], "start, agent 13: 'bias'"),
        ({**LAYER, "bias": torch.tensor([1.0, float("nan"), 0])}, "not finite"),
        (7, "start takes state dicts or a file, but got int"),
        ("nowhere.safetensors", "does not exist"),
    ],
)
def test_a_start_that_does_not_fit_is_refused(start: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        vg.simulate(softmax(), rounds=1, start=start)


def test_other_frozen_parameters_are_not_ignored_in_silence() -> None:
    task, other = tied_task(), Tied()
    with pytest.raises(BadInput, match=r"the frozen parameter 'fixed\.weight' is not that of the model"):
        vg.simulate(task, rounds=1, start=other.state_dict())


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"\x80\x04nonsense" * 10)
    with pytest.raises(BadInput, match="does not hold the models"):
        AgentModels.load(tmp_path / "x.safetensors")


def test_a_part_of_a_network_starts_from_its_rows() -> None:
    task = softmax()
    rows = torch.randn(14, 18, generator=torch.Generator().manual_seed(0))
    scene = vg.Scene(task, Graph.ring(14), start=rows)
    part_of = partitioned(Graph.ring(14), 3)
    for part in cut(scene, 0, 4, part_of, vg.attacks.sign_flip()):
        world = world_of(part)
        assert torch.equal(world.start, rows[part.own])
        assert torch.equal(world.first_of_byzantine, rows[part.heard[part.byzantine]])


def test_only_what_is_trained_is_in_a_row() -> None:
    model = Stacked.of(Tied(), cross_entropy)
    assert "fixed.weight" not in model.names
    assert set(AgentModels.of(model, torch.zeros(2, model.parameters)).common) == {
        "fixed.weight",
        "fixed.bias",
        "norm.num_batches_tracked",
    }

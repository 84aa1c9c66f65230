"""Frozen parameters (`requires_grad=False`) are neither trained nor sent, and count in all predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import varangian as vg
from varangian import BadInput, Draws, Graph, Task, attacks, rules
from varangian.core.models.stacked import Stacked
from varangian.core.optimisers import adam, sgd

AGENTS, ROUNDS = 4, 6


def net(normalised: bool = False) -> nn.Module:
    torch.manual_seed(0)
    between: tuple[nn.Module, ...] = (nn.BatchNorm1d(6),) if normalised else ()
    layers = nn.Sequential(nn.Linear(3, 6), *between, nn.ReLU(), nn.Linear(6, 2))
    layers[0].requires_grad_(False)
    return layers


def data() -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    return [(torch.randn(15, 3, generator=draw), torch.randint(2, (15,), generator=draw)) for _ in range(AGENTS)]


def task_of(module: nn.Module, **settings: Any) -> Task:
    return Task.supervised(module, cross_entropy, data(), test=data(), batch=5, step_size=0.1, **settings)


def test_a_row_holds_only_what_is_trained() -> None:
    model = Stacked.of(net(), cross_entropy)
    assert (model.parameters, model.shared, model.frozen) == (14, 14, ("0.weight", "0.bias"))


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (sgd(), lambda p: torch.optim.SGD(p, 0.1)),
        (sgd(momentum=0.9, weight_decay=0.2), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.2)),
        (adam(weight_decay=0.2), lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.2)),
    ],
    ids=["sgd", "momentum", "adam"],
)
def test_training_alone_is_what_a_plain_loop_does(normalised: bool, ours: Any, theirs: Any) -> None:
    task = task_of(net(normalised), optimiser=ours)
    result = vg.simulate(task, rule=rules.alone(), rounds=ROUNDS, dtype="float64")
    x, y = task.stream.samples(Draws.of(0, AGENTS), 0, ROUNDS, torch.float64)
    for agent in range(AGENTS):
        own = net(normalised).double().train()
        optimiser = theirs([p for p in own.parameters() if p.requires_grad])
        for round in range(ROUNDS):
            optimiser.zero_grad()
            cross_entropy(own(x[round, agent]), y[round, agent]).backward()
            optimiser.step()
        for name, value in result.module(agent).state_dict().items():
            if not name.endswith("num_batches_tracked"):
                torch.testing.assert_close(value, own.state_dict()[name].to(value.dtype), rtol=1e-7, atol=1e-9)
        assert torch.equal(result.models[agent]["0.weight"].float(), net()[0].weight)  # type: ignore[index]


RULES = [rules.average(), rules.loss_based(), rules.krum(), rules.median(), rules.ditto(), rules.anchored()]
RULES += [rules.fltrust(), rules.interpolated()]


@pytest.mark.parametrize("graph", [Graph.complete(AGENTS), Graph.ring(AGENTS)], ids=["complete", "ring"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_a_frozen_trunk_is_the_same_as_features_computed_before(rule: Any, graph: Graph) -> None:
    """The last layer on the outputs of the trunk is the same run: judging, sending and measuring included."""
    whole = net().double()
    trunk, head = whole[:2], whole[2]  # type: ignore[index]
    with torch.no_grad():
        features = [(trunk(x.double()), y) for x, y in data()]
    settings: dict[str, Any] = {"batch": 5, "step_size": 0.1}
    # In a Sequential: a single linear layer has formulas of its own, which round differently.
    plain = Task.supervised(nn.Sequential(head), cross_entropy, features, test=features, **settings)
    double = [(x.double(), y) for x, y in data()]
    frozen = Task.supervised(whole, cross_entropy, double, test=double, **settings)
    run: dict[str, Any] = {"rule": rule, "attack": attacks.sign_flip(), "byzantine": [2], "rounds": ROUNDS}
    one, other = (vg.simulate(task, graph, dtype="float64", **run) for task in (plain, frozen))
    torch.testing.assert_close(other.models.rows, one.models.rows, rtol=1e-6, atol=1e-8)
    for name in ("loss", "test_loss"):
        torch.testing.assert_close(torch.tensor(other[name].values), torch.tensor(one[name].values), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_a_single_linear_layer_with_a_frozen_part(name: str) -> None:
    """A single linear layer has formulas of its own, which must not leave the frozen part out."""
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    getattr(layer, name).requires_grad_(False)
    task = task_of(layer)
    model = task.model
    x, y = task.stream.samples(Draws.of(0, AGENTS), 0, 1, torch.float32)
    start = model.start(AGENTS, torch.float32, torch.device("cpu"))
    judged = model.judge(start[:, None], (x[0], y[0]))[:, 0]
    everyone = model.judge_all(start, (x[0], y[0]))
    for agent in range(AGENTS):
        torch.testing.assert_close(judged[agent], cross_entropy(layer(x[0, agent]), y[0, agent]))
        torch.testing.assert_close(everyone[0, agent], cross_entropy(layer(x[0, agent]), y[0, agent]))
    layers = model.linear_layers(start, (x[0], y[0]))  # type: ignore[attr-defined]
    assert len(layers) == (name == "bias")
    assert len(vg.simulate(task, rounds=3).models) == AGENTS


def test_sharing_a_part() -> None:
    task = task_of(net(), share=["2.weight"])
    assert (task.model.parameters, task.model.shared) == (14, 12)
    result = vg.simulate(task, rule=rules.average(), rounds=3)
    assert torch.allclose(result.models[0]["2.weight"], result.models[1]["2.weight"])
    assert not torch.allclose(result.models[0]["2.bias"], result.models[1]["2.bias"])
    with pytest.raises(BadInput, match="share names '0', which is frozen"):
        task_of(net(), share=["0"])


def test_a_model_that_is_all_frozen_is_refused() -> None:
    with pytest.raises(BadInput, match="no parameters to learn; all of them are frozen"):
        task_of(net().requires_grad_(False))


def test_a_convolution_may_be_frozen() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 2))
    module[0].requires_grad_(False)
    draw = torch.Generator().manual_seed(0)
    images = [(torch.randn(8, 1, 8, 8, generator=draw), torch.randint(2, (8,), generator=draw)) for _ in range(3)]
    task = Task.supervised(module, cross_entropy, images, test=images, batch=4)
    result = vg.simulate(task, rounds=3)
    assert torch.equal(result.models[2]["0.weight"], module[0].weight)
    loss = cross_entropy(result.module(2)(images[2][0]), images[2][1]).detach()
    assert float(result["test_loss"].isel(seed=0, epoch=-1, agent=2)) == pytest.approx(float(loss), rel=1e-5)


def test_judging_in_a_lower_precision() -> None:
    exact, rounded = (vg.simulate(task_of(net()), rounds=5, judge_dtype=dtype) for dtype in (None, "bfloat16"))
    assert abs(exact["test_loss"] - rounded["test_loss"]).max() < 0.1


class Stop:
    def start(self, world: Any, state: Any, rounds: int) -> None: ...

    def round(self, world: Any, state: Any, recorder: Any) -> None:
        if state.round == 3:
            raise KeyboardInterrupt

    def end(self, world: Any, state: Any) -> None: ...


def test_a_checkpoint_is_resumed_only_with_the_same_frozen_parameters(tmp_path: Path) -> None:
    whole = vg.simulate(task_of(net()), rounds=ROUNDS)
    with pytest.raises(KeyboardInterrupt):
        vg.simulate(task_of(net()), rounds=ROUNDS, checkpoint=tmp_path, callbacks=[Stop()])
    other = net()
    with torch.no_grad():
        other[0].bias += 1  # type: ignore[index]
    with pytest.raises(BadInput, match="another run"):
        vg.simulate(task_of(other), rounds=ROUNDS, checkpoint=tmp_path, resume=True)
    resumed = vg.simulate(task_of(net()), rounds=ROUNDS, checkpoint=tmp_path, resume=True)
    assert torch.equal(resumed.models.rows, whole.models.rows)

"""Tasks: data and batches, optimisers that equal torch's, and errors before a run starts."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import Dataset, TensorDataset

import varangian
from varangian import BadInput, Graph, Task, rules
from varangian.core.draws import Draws
from varangian.core.models.base import Formula
from varangian.core.optimisers import adam, sgd
from varangian.core.task import Quadratic, loss_alone

torch.set_num_threads(1)
Pair = tuple[Tensor, Tensor]


def numbered(counts: list[int]) -> list[Pair]:
    """Distinguishable items: 100 k + i is both input and target of item i of agent k."""
    return [(x[:, None], x[:, None]) for k, n in enumerate(counts) for x in [torch.arange(100.0 * k, 100 * k + n)]]


def regression(counts: list[int], seed: int = 0, features: int = 3) -> list[Pair]:
    draw = torch.Generator().manual_seed(seed)
    return [(torch.randn(n, features, generator=draw), torch.randn(n, 1, generator=draw)) for n in counts]


def linear(features: int = 3, out: int = 1) -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(features, out)


class Models:
    """Keeps every round's models."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def start(self, world: Any, state: Any, rounds: int) -> None:
        self.seen.append(state.models.clone())

    def round(self, world: Any, state: Any, recorder: Any) -> None:
        self.seen.append(state.models.clone())

    def end(self, world: Any, state: Any) -> None: ...


def models_of(task: Task, rounds: int = 10, **settings: Any) -> Tensor:
    """The models of all rounds, (round, agent, parameter), starting with the initial ones."""
    watch = Models()
    varangian.simulate(task, rounds=rounds, callbacks=[watch], **({"rule": rules.alone()} | settings))
    return torch.stack(watch.seen)


# Data ---------------------------------------------------------------------------------------------------------


class Squares(Dataset[Pair]):
    """A minimal map-style dataset."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair

    def __len__(self) -> int:
        return len(self.pair[0])

    def __getitem__(self, index: int) -> Pair:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.pair[0][index], self.pair[1][index]


@pytest.mark.parametrize("wrap", [Squares, lambda pair: TensorDataset(*pair)])
def test_datasets_and_tensors_are_the_same(wrap: Any) -> None:
    data = regression([7, 5, 9])
    settings: dict[str, Any] = {"test": regression([4, 2, 3], seed=1), "batch": 3}
    by_tensor = varangian.simulate(Task.supervised(linear(), mse_loss, data, **settings), rounds=9)
    settings["test"] = [wrap(pair) for pair in settings["test"]]
    by_dataset = varangian.simulate(Task.supervised(linear(), mse_loss, [wrap(p) for p in data], **settings), rounds=9)
    assert by_tensor.drop_vars("seconds").identical(by_dataset.drop_vars("seconds"))


@pytest.mark.parametrize(("counts", "batch"), [([6, 6, 6], 3), ([12, 4, 1, 7], 4), ([5], 5), ([7, 3], 2), ([2, 3], 8)])
def test_every_item_is_seen_equally_often_in_every_pass(counts: list[int], batch: int) -> None:
    task = Task.supervised(linear(1), mse_loss, numbered(counts), batch=batch)
    assert task.epoch == math.ceil(max(counts) / batch)
    draws, orders = Draws.of(0, len(counts)), []
    for epoch in range(3):
        x, y = task.stream.samples(draws, epoch * task.epoch, task.epoch, torch.float32)
        assert x.shape == (task.epoch, len(counts), batch, 1)
        assert torch.equal(x, y)
        for k, n in enumerate(counts):
            items, times = (x[:, k].flatten() - 100 * k).long().unique(return_counts=True)
            assert items.tolist() == list(range(n)), "an item was not seen, or belongs to another agent"
            assert int(times.max() - times.min()) <= 1
            if task.epoch * batch == n:
                assert times.tolist() == [1] * n
        orders.append(x[:, 0].flatten().tolist())
    if counts[0] >= 5:
        assert orders[0] != orders[1] != orders[2], "the order is not drawn anew"


def test_batches_do_not_depend_on_how_they_are_asked_for() -> None:
    stream = Task.supervised(linear(1), mse_loss, numbered([7, 4]), batch=2).stream
    draws = Draws.of(3, 2)
    whole = stream.samples(draws, 0, 12, torch.float64)[0]
    assert whole.dtype == torch.float64
    for start, count in ((0, 5), (3, 4), (11, 1)):
        assert torch.equal(stream.samples(Draws.of(3, 2), start, count, torch.float64)[0], whole[start : start + count])
    assert not torch.equal(stream.samples(Draws.of(4, 2), 0, 12, torch.float64)[0], whole)


@pytest.mark.parametrize("skip", [0.3, torch.tensor([0.0, 0.9] * 20)])
def test_agents_skip_batches_as_often_as_asked(skip: Any) -> None:
    agents, rounds = 40, 101
    task = Task.supervised(linear(), mse_loss, regression([30] * agents), batch=2, skip=skip, step_size=0.01)
    moved = (models_of(task, rounds).diff(dim=0) != 0).any(2).double()[1:]  # all agents have a first batch
    wanted = 1 - torch.as_tensor(skip, dtype=torch.float64).expand(agents)
    assert bool(((moved.mean(0) - wanted).abs() <= 5 * (wanted * (1 - wanted) / (rounds - 1)).sqrt()).all())


def test_who_skips_keeps_its_last_sample() -> None:
    task = Task.supervised(linear(), mse_loss, regression([30] * 3), batch=2, skip=torch.tensor([0.0, 0.999, 0.0]))
    result = varangian.simulate(task, rule=rules.alone(), rounds=5)
    loss = result["loss"].values[0]
    assert len(np.unique(loss[1:, 1])) == 1
    assert len(np.unique(loss[1:, 0])) == 4


# Errors ------------------------------------------------------------------------------------------------------

X, Y, LABELS = torch.randn(6, 3), torch.randn(6, 1), torch.tensor([0, 1, 2, 0, 1, 2])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Task.supervised(linear(4), mse_loss, [(X, Y)]), r"does not fit the model: inputs of shape \(4, 3\)"),
        (lambda: Task.supervised(linear(3, 3), cross_entropy, [(X, LABELS.float())]), "does not fit the model"),
        (lambda: Task.supervised(linear(3, 2), cross_entropy, [(X, LABELS)]), "does not fit the model"),
        (lambda: Task.supervised(linear(3, 2), mse_loss, [(X, torch.randn(6, 5))]), "does not fit the model"),
        (lambda: Task.supervised(linear(), mse_loss, [(X, Y), (X, Y[:5])]), "agent 1 has 6 inputs and 5 targets"),
        (lambda: Task.supervised(linear(), mse_loss, [(X, Y), (X[:0], Y[:0])]), "data of agent 1 is empty"),
        (lambda: Task.supervised(linear(), mse_loss, [(X, Y), (torch.randn(6, 4), Y)]), "agent 1 has items of"),
        (lambda: Task.supervised(linear(), mse_loss, [(X, Y), (X.double(), Y)]), "agent 1 has items of"),
        (lambda: Task.supervised(linear(), mse_loss, [(X, Y), (X / 0, Y)]), "agent 1 has inputs that are not finite"),
        (lambda: Task.supervised(linear(), mse_loss, []), "the train data is empty"),
        (lambda: Task.supervised(linear(), mse_loss, [(X, Y)], batch=0), "batch must be a whole number of at least 1"),
        (lambda: Task.supervised(linear(), mse_loss, [(X, Y)], test=[]), "empty|for 1 agents and test data for 0"),
        (lambda: Task.supervised(linear(), mse_loss, [(X, Y)], test=[(X, Y)] * 2), "1 agents and test data for 2"),
        (lambda: Task.supervised(nn.ReLU(), mse_loss, [(X, Y)]), "no parameters"),
        (lambda: Task.supervised(linear(), mse_loss, [(X, Y)], share=["wieght"]), "did you mean 'weight'"),
        (lambda: Task.supervised(linear(), lambda p, y: (p - y) ** 2, [(X, Y)]), "one number per batch"),
        (lambda: Task.supervised(linear(), mse_loss, [Ragged()]), "agent 0 is not a map-style dataset"),
        (lambda: Task.supervised(linear(), mse_loss, [(X, Y)], step_size=-0.1), "step_size must be finite"),
        (lambda: Task.supervised(linear(), mse_loss, [(X, Y)], step_size=math.nan), "step_size"),
        (lambda: Task.supervised(linear(), mse_loss, [(X, Y)], forgetting=0.0), r"\(0, 1\]"),
        (lambda: Task.supervised(linear(), mse_loss, [(X, Y)], forgetting=1.1), r"\(0, 1\]"),
        (lambda: Task.supervised(linear(), mse_loss, [(X, Y)], skip=1.0), "skip"),
        (lambda: Task.supervised(linear(), mse_loss, [(X, Y)], step_size=torch.ones(2)), "1 agents"),
        # Unsuitable data of a later agent, or test data, must be found before the run starts.
        (lambda: Task.supervised(linear(3, 3), cross_entropy, [(X, LABELS), (X, LABELS + 1)]), "does not fit"),
        (lambda: Task.supervised(linear(), mse_loss, [(X, Y)], test=[(torch.randn(6, 4), Y)]), "does not fit"),
        # Predictions (10, 1) and targets (10,) broadcast to (10, 10): torch only warns, but the loss is wrong.
        (lambda: Task.supervised(linear(), mse_loss, [(X, Y[:, 0])]), "does not fit"),
        (lambda: sgd(momentum=1.0), "momentum"),
        (lambda: sgd(weight_decay=-1.0), "weight_decay"),
        (lambda: adam(beta1=1.0), "beta1"),
        (lambda: adam(beta2=-0.1), "beta2"),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_misfits_are_refused_in_one_clear_line(make: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


class Ragged(Dataset[Pair]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Pair:
        return torch.zeros(index + 1), torch.zeros(1)


# Measuring ----------------------------------------------------------------------------------------------------


def accuracy(predicted: Tensor, y: Tensor) -> Tensor:
    return predicted.argmax(-1) == y


def test_held_out_metrics_equal_a_computation_by_hand() -> None:
    draw = torch.Generator().manual_seed(0)
    counts = [5, 1, 8]
    data = [(torch.randn(n, 3, generator=draw), torch.randint(4, (n,), generator=draw)) for n in counts]
    task = Task.supervised(linear(3, 4), cross_entropy, data, test=data, metrics={"accuracy": accuracy}, batch=4)
    models = torch.randn(3, 16, generator=draw, dtype=torch.float64)
    task.model.start(3, torch.float64, torch.device("cpu"))
    assert task.held_out is not None
    measured = task.held_out(models)
    assert set(measured) == {"test_loss", "accuracy"}
    for k, (x, y) in enumerate(data):
        weight, bias = models[k, :12].view(4, 3), models[k, 12:]
        predicted = x.double() @ weight.T + bias
        assert float(measured["test_loss"][k]) == pytest.approx(float(cross_entropy(predicted, y)), abs=1e-12)
        assert float(measured["accuracy"][k]) == pytest.approx(float((predicted.argmax(1) == y).double().mean()))


@pytest.mark.parametrize("net", [linear(4, 3), nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))], ids=repr)
def test_the_loss_alone_is_the_loss_with_other_metrics(net: nn.Module) -> None:
    """Of several trials at once, too, and so are its gradients."""
    noise = torch.manual_seed(3)
    data = [(torch.randn(n, 4, generator=noise), torch.arange(n) % 3) for n in (7, 2, 5)]
    metrics = {"accuracy": lambda predicted, y: (predicted.argmax(-1) == y).double()}
    tested = Task.supervised(net, cross_entropy, data, test=data, metrics=metrics).tested
    assert tested is not None
    models = torch.randn(2, 3, sum(p.numel() for p in net.parameters()), generator=noise, dtype=torch.float64)
    found = []
    for measure in (tested, loss_alone(tested)):
        for part in (models, models[0], models):  # twice, since items are kept
            leaf = part.clone().requires_grad_()
            loss = measure(leaf)["test_loss"]
            (slope,) = torch.autograd.grad(loss.sum(), leaf)
            found.append((loss.detach(), slope))
    for usual, alone in zip(found[:3], found[3:], strict=True):
        torch.testing.assert_close(usual, alone)
    own = QuadraticOnly()
    assert loss_alone(own) is own, "a user's own evaluation stays as it is"


class QuadraticOnly:
    """An evaluation of a user."""

    def __call__(self, models: Tensor) -> dict[str, Tensor]:
        return {"test_loss": models.square().sum(-1)}

    def to(self, device: torch.device) -> Any:
        return self


def test_held_out_data_is_measured_after_every_epoch_and_at_the_end() -> None:
    task = Task.supervised(linear(), mse_loss, regression([9, 4]), test=regression([3, 5]), batch=3)
    result = varangian.simulate(task, rounds=8)
    assert result["epoch"].values.tolist() == [1, 2, 3]
    assert result["test_loss"].dims == ("seed", "epoch", "agent")


def test_the_streaming_loss_is_of_the_model_before_it_saw_the_sample() -> None:
    task = Task.supervised(linear(), mse_loss, regression([9, 6]), batch=3)
    models = models_of(task, 5, dtype="float64")
    result = varangian.simulate(task, rule=rules.alone(), rounds=5, dtype="float64")
    x, y = task.stream.samples(Draws.of(0, 2), 1, 5, torch.float64)
    by_hand = ((x * models[:-1, :, None, :3]).sum(-1) + models[:-1, :, None, 3] - y[..., 0]).square().mean(2)
    np.testing.assert_allclose(result["loss"].values[0], by_hand, rtol=1e-12)


def test_quadratic_risk_is_the_formula() -> None:
    optimum, curvature = torch.tensor([[1.0, 2.0]]), torch.tensor([[[2.0, 1.0], [1.0, 3.0]]])
    measured = Quadratic(optimum, curvature)(torch.tensor([[2.0, 0.0]]))
    assert measured["regret"].tolist() == [2 * 1 + 2 * (1 * 1 * -2) + 3 * 4]
    assert measured["msd"].tolist() == [5.0]


# Sharing, schedules, optimisers -------------------------------------------------------------------------------


def test_only_what_is_shared_travels() -> None:
    net = nn.Sequential(linear(3, 4), nn.Tanh(), linear(4, 1))
    data = regression([8, 8, 8])
    task = Task.supervised(net, mse_loss, data, batch=4, share=["2"], step_size=0.2)
    assert task.model.shared == 5
    mixed = models_of(task, 1, rule=rules.average(), graph=Graph.complete(3))[1]
    apart = models_of(task, 1, rule=rules.alone(), graph=Graph.complete(3))[1]
    assert torch.allclose(mixed[:, :5], apart[:, :5].mean(0).expand(3, 5))
    assert torch.equal(mixed[:, 5:], apart[:, 5:])
    assert not torch.allclose(apart[0, 5:], apart[1, 5:])


def test_everyone_starts_from_the_module_as_given_and_leaves_it_so() -> None:
    module = linear()
    before = [p.detach().clone() for p in module.parameters()]
    models = models_of(Task.supervised(module, mse_loss, regression([6, 6]), batch=3), 4)
    row = torch.cat([p.flatten() for p in before])
    assert torch.equal(models[0], row.repeat(2, 1))
    assert not torch.equal(models[-1], models[0])
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))


def test_a_module_of_doubles_is_not_rounded_on_its_way() -> None:
    module = linear().double()
    with torch.no_grad():
        module.weight.add_(1e-12)
    models = models_of(Task.supervised(module, mse_loss, regression([6]), batch=3), 1, dtype="float64")
    assert torch.equal(models[0, 0, :3], module.weight.detach().flatten())


TORCH: list[tuple[Any, Any]] = [
    (sgd(), lambda p, lr: torch.optim.SGD(p, lr)),
    (sgd(momentum=0.9), lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9)),
    (sgd(weight_decay=0.1), lambda p, lr: torch.optim.SGD(p, lr, weight_decay=0.1)),
    (sgd(0.8, 0.05), lambda p, lr: torch.optim.SGD(p, lr, momentum=0.8, weight_decay=0.05)),
    (adam(), lambda p, lr: torch.optim.Adam(p, lr)),
    (adam(0.8, 0.99, 1e-4, 0.1), lambda p, lr: torch.optim.Adam(p, lr, (0.8, 0.99), 1e-4, 0.1)),
]


@pytest.mark.parametrize(("ours", "theirs"), TORCH, ids=[repr(ours) for ours, _ in TORCH])
@pytest.mark.parametrize("schedule", [None, lambda round: 0.9**round])
def test_optimisers_are_torch_s(ours: Any, theirs: Any, schedule: Any) -> None:
    step_size = torch.tensor([0.05, 0.2], dtype=torch.float64)
    net = nn.Sequential(linear(3, 4), nn.Tanh(), linear(4, 1))
    data = regression([8, 5])
    task = Task.supervised(net, mse_loss, data, batch=4, optimiser=ours, step_size=step_size, schedule=schedule)
    models = models_of(task, 15, dtype="float64")
    x, y = task.stream.samples(Draws.of(0, 2), 0, 15, torch.float64)
    for agent in range(2):
        own = copy.deepcopy(net).double()
        optimiser = theirs(own.parameters(), float(step_size[agent]))
        for round in range(15):
            for group in optimiser.param_groups:
                group["lr"] = float(step_size[agent]) * (schedule(round) if schedule else 1)
            optimiser.zero_grad()
            mse_loss(own(x[round, agent]), y[round, agent]).backward()
            optimiser.step()
        row = torch.cat([p.detach().flatten() for p in own.parameters()])
        assert torch.allclose(models[-1, agent], row, rtol=1e-10, atol=1e-12)


def test_agents_that_skip_count_their_own_adam_steps() -> None:
    """The first step of Adam has size μ whatever the gradient, also for agents that start later."""
    task = Task.supervised(linear(), mse_loss, regression([20, 20]), batch=4, optimiser=adam(), step_size=0.1, skip=0.5)
    models = models_of(task, 1, dtype="float64")
    assert torch.allclose(models.diff(dim=0).abs(), torch.full((1, 2, 4), 0.1, dtype=torch.float64), rtol=1e-5)


def test_a_step_size_of_zero_stands_still() -> None:
    task = Task.supervised(linear(), mse_loss, regression([6, 6]), batch=3, step_size=torch.tensor([0.0, 0.1]))
    moved = models_of(task, 3)
    assert torch.equal(moved[0, 0], moved[-1, 0])
    assert not torch.equal(moved[0, 1], moved[-1, 1])


@pytest.mark.parametrize("loss", [mse_loss, nn.functional.l1_loss, nn.functional.smooth_l1_loss])
@pytest.mark.parametrize("graph", [Graph.ring(9), Graph.complete(9)], ids=repr)
def test_regression_runs_on_sparse_and_dense_graphs(loss: Any, graph: Graph) -> None:
    task = Task.supervised(linear(), loss, regression([6] * 9), batch=3)
    assert bool(np.isfinite(varangian.simulate(task, graph, rounds=3)["loss"]).all())


@pytest.mark.parametrize("share", [None, ["weight"]])
def test_a_stacked_module_judges_as_a_loop_does(share: Any) -> None:
    task = Task.supervised(linear(), mse_loss, regression([6, 6]), batch=3, share=share)
    model = task.model
    draw = torch.Generator().manual_seed(2)
    rows = torch.randn(2, 5, 4, generator=draw)
    model.start(2, torch.float32, torch.device("cpu"))
    x, y = (part[0] for part in task.stream.samples(Draws.of(0, 2), 0, 1, torch.float32))
    by_hand = torch.stack(
        [torch.stack([((x[k] @ row[:3] + row[3]) - y[k, :, 0]).square().mean() for row in rows[k]]) for k in range(2)]
    )
    assert torch.allclose(model.judge(rows, (x, y)), by_hand, rtol=1e-5)
    assert torch.allclose(model.judge_all(rows[0], (x, y))[:, 0], by_hand[0], rtol=1e-5)


def test_a_formula_s_own_gradient_is_autograd_s() -> None:
    from varangian.studies.target_localization import gradient_of_squared_error, squared_error

    theta = torch.randn(5, 2, dtype=torch.float64)
    sample = (torch.randn(5, 2, dtype=torch.float64), torch.randn(5, dtype=torch.float64))
    written = Formula(2, squared_error, gradient_of_squared_error).gradient(theta, sample)
    assert torch.allclose(written, Formula(2, squared_error).gradient(theta, sample))

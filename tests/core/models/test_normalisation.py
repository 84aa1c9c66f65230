"""Running statistics of normalisation layers: they equal torch's, are private, and are used to judge others."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import xarray as xr
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import varangian
from varangian import Graph, Task, attacks, rules
from varangian.core.draws import Draws
from varangian.core.errors import BadInput
from varangian.core.models.stacked import Stacked
from varangian.core.optimisers import adam, sgd

torch.set_num_threads(1)

ROUNDS, BATCH, LABELS = 8, 5, 3


def flat() -> nn.Module:
    """Trained in one vectorised pass. No bias before a norm: its gradient is only rounding, which Adam scales up."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 7, bias=False), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, LABELS))


def images() -> nn.Module:
    """Trained agent by agent on a CPU, like all models with convolutions."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 2, 2, bias=False), nn.BatchNorm2d(2, momentum=0.3),
        nn.Flatten(), nn.Linear(8, LABELS),
    )  # fmt: skip


class ImagesAtOnce(nn.Module):
    """BatchNorm2d without a convolution, so training is vectorised."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.norm, self.head = nn.BatchNorm2d(1), nn.Linear(25, LABELS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x).flatten(1))


NETS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "1d, vectorised": (flat, (6,)),
    "2d, one by one": (images, (1, 5, 5)),
    "2d, vectorised": (ImagesAtOnce, (1, 5, 5)),
}
every_net = pytest.mark.parametrize("net", NETS)
BUFFERS = ("running_mean", "running_var")


def data(net: str, agents: int = 3, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """The inputs of every agent have their own mean and scale, so that statistics differ."""
    draw = torch.Generator().manual_seed(seed)
    shape = NETS[net][1]
    return [
        ((k + 1) * torch.randn(20, *shape, generator=draw) + 2 * k, torch.randint(LABELS, (20,), generator=draw))
        for k in range(agents)
    ]


def task_of(net: str, agents: int = 3, **settings: Any) -> Task:
    return Task.supervised(NETS[net][0](), cross_entropy, data(net, agents), batch=BATCH, **settings)


class Watch:
    """Keeps every round's models, and may stop the run."""

    def __init__(self, stop: int | None = None) -> None:
        self.seen: list[Tensor] = []
        self.stop = stop

    def start(self, world: Any, state: Any, rounds: int) -> None:
        self.seen.append(state.models.clone())

    def round(self, world: Any, state: Any, recorder: Any) -> None:
        self.seen.append(state.models.clone())
        if state.round == self.stop:
            raise KeyboardInterrupt

    def end(self, world: Any, state: Any) -> None: ...


def models_of(task: Task, rounds: int = ROUNDS, **settings: Any) -> Tensor:
    """The models of all rounds, (round, agent, parameter), starting with the initial ones."""
    watch = Watch()
    settings = {"rule": rules.alone(), "dtype": "float64"} | settings
    varangian.simulate(task, rounds=rounds, callbacks=[watch], **settings)
    return torch.stack(watch.seen)


def stacked(task: Task) -> Stacked:
    assert isinstance(task.model, Stacked)
    return task.model


def local_part(task: Task) -> int:
    """How many numbers at the end of a row are statistics."""
    buffers = stacked(task).training.named_buffers()
    return sum(buffer.numel() for name, buffer in buffers if name.endswith(BUFFERS))


def row_of(task: Task, module: nn.Module) -> Tensor:
    """The parameters of a module as a row of the matrix."""
    kept = dict(module.named_parameters()) | dict(module.named_buffers())
    return torch.cat([kept[name].detach().reshape(-1) for name in stacked(task).names])


# Equal to torch ---------------------------------------------------------------------------------------------------

OPTIMISERS: list[tuple[Any, Any]] = [
    (sgd(), lambda p: torch.optim.SGD(p, 0.1)),
    (sgd(momentum=0.9, weight_decay=0.2), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.2)),
    (adam(), lambda p: torch.optim.Adam(p, 0.1)),
    (adam(weight_decay=0.2), lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.2)),
]


@every_net
@pytest.mark.parametrize(("ours", "theirs"), OPTIMISERS, ids=[repr(ours) for ours, _ in OPTIMISERS])
def test_training_leaves_what_torch_leaves(net: str, ours: Any, theirs: Any) -> None:
    """Parameters and statistics of every agent are compared in every round; decay and Adam do not change statistics."""
    task = task_of(net, optimiser=ours, step_size=0.1)
    models = models_of(task)
    x, y = task.stream.samples(Draws.of(0, 3), 0, ROUNDS, torch.float64)
    for agent in range(3):
        own = NETS[net][0]().double().train()
        optimiser = theirs(own.parameters())
        for round in range(ROUNDS):
            optimiser.zero_grad()
            cross_entropy(own(x[round, agent]), y[round, agent]).backward()
            optimiser.step()
            assert torch.allclose(models[round + 1, agent], row_of(task, own), rtol=1e-8, atol=1e-9), round


@every_net
def test_the_module_given_is_left_as_it_was(net: str) -> None:
    module = NETS[net][0]()
    before = copy.deepcopy(module.state_dict())
    varangian.simulate(Task.supervised(module, cross_entropy, data(net), batch=BATCH), rounds=3)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@every_net
def test_a_row_starts_with_the_statistics_given(net: str) -> None:
    module = NETS[net][0]()
    for name, buffer in module.named_buffers():
        if name.endswith(BUFFERS):
            buffer.fill_(2.5)
    task = Task.supervised(module, cross_entropy, data(net), batch=BATCH)
    first = models_of(task, 1)[0]
    assert bool((first[:, -local_part(task) :] == 2.5).all())


# Private -------------------------------------------------------------------------------------------------------


@every_net
@pytest.mark.parametrize("share", [None, "head"])
def test_statistics_are_no_part_of_what_is_shared(net: str, share: str | None) -> None:
    module = NETS[net][0]()
    last = [name for name, _ in module.named_parameters() if name.endswith("weight")][-1]
    model = Stacked.of(module, cross_entropy, [last] if share else None)
    travelling = dict(module.named_parameters())
    wanted = travelling[last].numel() if share else sum(p.numel() for p in travelling.values())
    assert model.shared == wanted
    assert model.statistics
    assert all(name.endswith(BUFFERS) for name in model.statistics)
    assert model.names[-len(model.statistics) :] == model.statistics


@every_net
def test_averaging_mixes_parameters_and_leaves_statistics(net: str) -> None:
    task = task_of(net)
    mixed, apart = (models_of(task, 1, rule=rule)[1] for rule in (rules.average(), rules.alone()))
    shared = task.model.shared
    assert torch.allclose(mixed[:, :shared], apart[:, :shared].mean(0).expand(3, -1))
    assert torch.equal(mixed[:, shared:], apart[:, shared:])
    assert not torch.allclose(apart[0, shared:], apart[1, shared:])


def disturbed(task: Task, agent: int) -> Task:
    """The same task, but that agent starts with extreme statistics."""
    model = stacked(task)
    count = local_part(task)

    class Disturbed(Stacked):
        def start(self, *where: Any) -> Tensor:
            rows = super().start(*where)
            rows[agent, -count:] = 77.0
            return rows

    other = Disturbed(**vars(model))
    return Task(**(vars(task) | {"model": other}))


@every_net
@pytest.mark.parametrize("rule", [rules.average(), rules.distance_based(), rules.loss_based()], ids=repr)
@pytest.mark.parametrize("graph", [Graph.complete(4), Graph.ring(4)], ids=repr)
def test_a_neighbours_statistics_change_nothing_for_me(net: str, rule: Any, graph: Graph) -> None:
    """Training does not look at them, so neither what agent 1 sends nor what others make of it may differ.

    The first round only: after it, agent 1 may combine otherwise, since it judges with what it has.
    """
    task = task_of(net, agents=4)
    usual, other = (models_of(t, 1, rule=rule, graph=graph)[1] for t in (task, disturbed(task, 1)))
    others = [0, 2, 3]
    assert torch.equal(usual[others], other[others])
    assert not torch.equal(usual[1], other[1])


def test_an_attack_sees_and_sends_no_statistics() -> None:
    widths: list[tuple[int, int]] = []

    class Looking(attacks.uniform):
        def send(self, view: Any, state: Any) -> Any:
            sent = super().send(view, state)
            widths.append((view.adapted.shape[1], sent[0].rows.shape[1]))
            return sent

    task = task_of("2d, one by one")
    varangian.simulate(task, rounds=2, attack=Looking(), byzantine=1)
    assert widths == [(task.model.shared, task.model.shared)] * 2


@every_net
@pytest.mark.parametrize("graph", [Graph.complete(3), Graph.ring(3)], ids=repr)
def test_neighbours_are_judged_with_ones_own_statistics(net: str, graph: Graph) -> None:
    task = task_of(net)
    adapted = models_of(task, 1)[1]
    tables: list[Tensor] = []

    class Looking(rules.alone):
        def combine(self, inbox: Any, state: Any) -> Any:
            tables.append(torch.zeros(3, 3, dtype=torch.float64).scatter_(1, inbox.source, inbox.loss()))
            return super().combine(inbox, state)

    models_of(task, 1, rule=Looking(), graph=graph)
    x, y = (part[1] for part in task.stream.samples(Draws.of(0, 3), 0, 2, torch.float64))
    shared = task.model.shared
    for me in range(3):
        for neighbour in range(3):
            row = torch.cat((adapted[neighbour, :shared], adapted[me, shared:]))
            by_hand = loss_by_hand(net, task, row, x[me], y[me])
            assert float(tables[0][me, neighbour]) == pytest.approx(by_hand, rel=1e-9)
            if me != neighbour:
                theirs = loss_by_hand(net, task, adapted[neighbour], x[me], y[me])
                assert abs(theirs - by_hand) > 1e-6, "the test does not tell whose statistics were used"


def loss_by_hand(net: str, task: Task, row: Tensor, x: Tensor, y: Tensor) -> float:
    """Compared with torch's module in evaluation mode."""
    module = NETS[net][0]().double()
    kept = dict(module.named_parameters()) | dict(module.named_buffers())
    names = stacked(task).names
    with torch.no_grad():
        for name, part in zip(names, row.split([kept[name].numel() for name in names]), strict=True):
            kept[name].copy_(part.view_as(kept[name]))
        return float(cross_entropy(module.eval()(x), y))


# Skipping, resuming, dropout -----------------------------------------------------------------------------------


@every_net
def test_who_skips_keeps_its_statistics(net: str) -> None:
    task = task_of(net, skip=torch.tensor([0.0, 0.999, 0.0]))
    statistics = models_of(task)[:, :, -local_part(task) :]
    assert torch.equal(statistics[1, 1], statistics[-1, 1])
    moved = (statistics.diff(dim=0) != 0).any(2)
    assert bool(moved[0].all()), "everyone has a first batch"
    assert bool(moved[:, [0, 2]].all())


def with_dropout() -> Task:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(6, 7), nn.Dropout(0.4), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, LABELS))
    return Task.supervised(module, cross_entropy, data("1d, vectorised"), batch=BATCH)


def with_dropout_and_convolutions() -> Task:
    module = nn.Sequential(nn.Dropout2d(0.4), images())
    return Task.supervised(module, cross_entropy, data("2d, one by one"), batch=BATCH)


TASKS: dict[str, Any] = {net: lambda net=net: task_of(net, optimiser=adam(), skip=0.3) for net in NETS} | {
    "dropout, vectorised": with_dropout,
    "dropout, one by one": with_dropout_and_convolutions,
}


def same_bits(one: xr.Dataset, other: xr.Dataset) -> bool:
    return one.drop_vars("seconds").identical(other.drop_vars("seconds"))


@pytest.mark.parametrize("name", TASKS)
def test_an_interrupted_run_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rounds": ROUNDS, "attack": attacks.uniform(), "byzantine": 1}
    whole = Watch()
    expected = varangian.simulate(TASKS[name](), callbacks=[whole], **settings)
    with pytest.raises(KeyboardInterrupt):
        varangian.simulate(TASKS[name](), callbacks=[Watch(stop=3)], checkpoint=tmp_path, **settings)
    rest = Watch()
    resumed = varangian.simulate(TASKS[name](), callbacks=[rest], checkpoint=tmp_path, resume=True, **settings)
    assert same_bits(resumed, expected)
    assert torch.equal(torch.stack(rest.seen), torch.stack(whole.seen[3:]))


@pytest.mark.parametrize("name", TASKS)
def test_two_runs_are_equal_whatever_torchs_own_generator_does(name: str) -> None:
    task = TASKS[name]()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = models_of(task)
    assert torch.equal(torch.get_rng_state(), before), "the caller's generator was used"
    torch.manual_seed(6)
    torch.rand(3)
    assert torch.equal(first, models_of(task))


def test_dropout_draws_anew_for_every_agent_and_round() -> None:
    """With equal data and no steps, statistics can differ only by what dropout removed."""
    torch.manual_seed(1)
    module = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(6, momentum=1.0), nn.Linear(6, LABELS))
    x, y = torch.ones(BATCH, 6), torch.zeros(BATCH, dtype=torch.long)
    task = Task.supervised(module, cross_entropy, [(x, y)] * 3, batch=BATCH, step_size=0.0)
    means = models_of(task)[1:, :, task.model.shared :][..., :6].flatten(0, 1)
    assert len(means.unique(dim=0)) > 0.9 * len(means)


def test_nothing_is_dropped_when_judging() -> None:
    task = with_dropout()
    model = task.model
    rows = model.start(3, torch.float32, torch.device("cpu"))
    sample = tuple(part[0] for part in task.stream.samples(Draws.of(0, 3), 0, 1, torch.float32))
    assert torch.equal(model.judge(rows[:, None], sample), model.judge(rows[:, None], sample))


def test_without_running_statistics_nobody_elses_data_enters_my_judgement() -> None:
    stacked = Stacked.of(
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2)), cross_entropy
    )
    models = stacked.start(3, torch.float64, torch.device("cpu")) + torch.arange(3.0)[:, None] / 10
    sample = (torch.randn(3, 6, 3, dtype=torch.float64), torch.arange(18).view(3, 6) % 2)
    one_by_one = stacked.judge(models.expand(3, -1, -1), sample).T
    torch.testing.assert_close(stacked.judge_all(models, sample), one_by_one)


def test_a_mean_over_all_batches_is_refused() -> None:
    with pytest.raises(BadInput, match="momentum"):
        Stacked.of(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=None)), cross_entropy)

"""Wrong arguments are refused before the first round, each in one line that says what is wrong and what to do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, mse_loss
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import varangian
from varangian import BadInput, Graph, Task, attacks, optimisers, rules, studies
from varangian.core.messages import ToAll, ToEach
from varangian.rules.base import Combined

torch.set_num_threads(1)
AGENTS = 4
DRAW = torch.Generator().manual_seed(0)
X = torch.randn(6, 3, generator=DRAW)
Y = torch.randn(6, 1, generator=DRAW)
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


def net(inputs: int = 3, outputs: int = 1) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs)


def regression(**settings: Any) -> Task:
    given = {"model": net(), "loss": mse_loss, "train": [(X, Y)] * AGENTS, "batch": 2} | settings
    return Task.supervised(given.pop("model"), given.pop("loss"), given.pop("train"), **given)


def labelled(**settings: Any) -> Task:
    return regression(**{"model": net(3, 3), "loss": cross_entropy, "train": [(X, LABELS)] * AGENTS} | settings)


class NoMoreRounds:
    """Fails if a round is finished: bad input must be found before."""

    def start(self, world: Any, state: Any, rounds: int) -> None: ...

    def round(self, world: Any, state: Any, recorder: Any) -> None:
        pytest.fail("a round was played")

    def end(self, world: Any, state: Any) -> None: ...


def run(**settings: Any) -> Any:
    given = {"task": regression(), "rounds": 3, "callbacks": [NoMoreRounds()]} | settings
    return varangian.simulate(given.pop("task"), given.pop("graph", None), **given)


# Rules, attacks, models, losses and metrics that are wrong ----------------------------------------------------------


class Own:
    """A rule whose result is changed by a function."""

    def __init__(self, change: Callable[[Any, Combined[Any]], Any], init: Any = ()) -> None:
        self.change, self.first = change, init

    def __repr__(self) -> str:
        return "own()"

    def init(self, table: Tensor) -> Any:
        return self.first

    def combine(self, inbox: Any, state: Any) -> Any:
        combined = rules.average().combine(inbox, ())
        return self.change(inbox, combined)


class Sends:
    """An attack that sends what a function makes of a view."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self.make = make

    def __repr__(self) -> str:
        return "sends()"

    def init(self, own: Tensor) -> tuple[()]:
        return ()

    def send(self, view: Any, state: Any) -> Any:
        return self.make(view)


class Poison(Sends):
    """An attack on data."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        super().__init__(lambda view: (ToAll(view.own), ()))
        self.change = change

    def __repr__(self) -> str:
        return "poison()"

    def poison(self, sample: Any, labels: int) -> Any:
        return self.change(sample)


class Functional(nn.Module):
    def __init__(self, always: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.always = nn.Linear(3, 1), always

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = dropout(x, 0.5, training=True if self.always else self.training)
        out: Tensor = self.layer(hidden)
        return out


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out if bool(out.mean() > 0) else -out


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        while True:
            yield X[0], Y[0]


class OfNames(Dataset[Any]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return {"x": X[index], "y": Y[index]}


def broken(*_: Any) -> Any:
    raise ZeroDivisionError("no such thing")


def with_nan(values: Tensor) -> Tensor:
    return values.index_fill(0, torch.tensor([4]), math.nan)


TESTED: dict[str, Any] = {"test": [(X, LABELS)] * AGENTS}
SILENT: dict[str, Any] = {"byzantine": 1}


class Case(NamedTuple):
    make: Callable[[], Any]
    says: str
    """A part of the line."""


DOOR: dict[str, Case] = {
    # The task.
    "groups of another length": Case(
        lambda: regression(groups=[0, 1]), "groups has 2 numbers, but the task has 4 agents"
    ),
    "groups as words": Case(lambda: regression(groups=["a", "b", "a", "b"]), "each of groups must be a whole number"),
    "nan in targets": Case(
        lambda: regression(train=[(X, Y), (X, with_nan(Y))]),
        "train data of agent 1 has targets that are not finite, the first in item 4",
    ),
    "nan in inputs": Case(
        lambda: regression(train=[(X, Y), (with_nan(X), Y)]),
        "train data of agent 1 has inputs that are not finite, the first in item 4",
    ),
    "nan in test targets": Case(
        lambda: regression(test=[(X, Y)] * 3 + [(X, with_nan(Y))]), "test data of agent 3 has targets"
    ),
    "an agent without data": Case(lambda: regression(train=[(X, Y), (X[:0], Y[:0])]), "train data of agent 1 is empty"),
    "a label too large": Case(
        lambda: labelled(train=[(X, LABELS), (X, LABELS + 1)]), "label 3 in the training data of agent 1 does not fit"
    ),
    "a negative label": Case(
        lambda: labelled(train=[(X, LABELS), (X, LABELS - 1)]), "label -1 in the training data of agent 1 does not fit"
    ),
    "label -100": Case(
        lambda: labelled(train=[(X, LABELS), (X, torch.where(LABELS == 1, -100, LABELS))]),
        "the loss is nan for label -100 in the training data of agent 1",
    ),
    "label -100 in a loss of one's own": Case(
        lambda: labelled(
            loss=lambda p, y: cross_entropy(p, y, label_smoothing=0.1),
            train=[(X, torch.where(LABELS == 1, -100, LABELS))] * AGENTS,
        ),
        "the loss is nan for label -100",
    ),
    "a metric that fails": Case(lambda: labelled(**TESTED, metrics={"mine": broken}), "metric 'mine' failed on"),
    "a metric that is nan": Case(
        lambda: labelled(**TESTED, metrics={"mine": lambda p, y: p[..., 0] * math.nan}),
        "metric 'mine' is nan on the test data of agent 0",
    ),
    "a metric that is no function": Case(
        lambda: labelled(**TESTED, metrics={"mine": "accuracy"}), "metric 'mine' must be a function"
    ),
    "metrics as a list": Case(lambda: labelled(**TESTED, metrics=[broken]), "metrics must be functions by name"),
    "metrics without test data": Case(lambda: labelled(metrics={"mine": broken}), "metrics are measured on test data"),
    "epoch as a wrong word": Case(lambda: regression(epoch="bogus"), "unknown epoch 'bogus'"),
    "epoch 0": Case(lambda: regression(epoch=0), "epoch must be a whole number of at least 1, but is 0"),
    "judge as a wrong word": Case(lambda: regression(judge="bogus"), "unknown judge 'bogus'; (known: next, same)"),
    "stale as a wrong word": Case(lambda: regression(stale="lst"), "unknown stale 'lst'; did you mean 'last'?"),
    "batch 2.5": Case(lambda: regression(batch=2.5), "batch must be a whole number of at least 1, but is 2.5"),
    "batch 0": Case(lambda: regression(batch=0), "batch must be a whole number of at least 1, but is 0"),
    "watch_training 2.5": Case(lambda: regression(watch_training=2.5), "watch_training must be a whole number"),
    "step_size nan": Case(lambda: regression(step_size=math.nan), "step_size must be finite"),
    "step_size as text": Case(lambda: regression(step_size="small"), "step_size must be a number, or one per agent"),
    "step_size of other agents": Case(lambda: regression(step_size=np.ones(3)), "step_size has shape (3,)"),
    "an optimiser of torch": Case(lambda: regression(optimiser=torch.optim.Adam), "optimiser must be one of ours"),
    "an optimiser by its class": Case(lambda: regression(optimiser=optimisers.adam), "optimisers.adam()"),
    "a schedule that is no function": Case(lambda: regression(schedule=0.5), "schedule must be a function"),
    # Data.
    "one pair for all agents": Case(lambda: regression(train=(X, Y)), "one pair (inputs, targets); give a list"),
    "one dataset for all agents": Case(
        lambda: regression(train=TensorDataset(X, Y)), "give a list with one dataset per agent"
    ),
    "data by name": Case(lambda: regression(train={"a": (X, Y)}), "give a list with one pair"),
    "inputs without targets": Case(lambda: regression(train=[X, X]), "data of agent 0 is of type Tensor"),
    "texts": Case(lambda: regression(train=[(np.array([["a"]] * 6), Y)]), "the inputs are not numbers"),
    "a stream without end": Case(lambda: regression(train=[Endless()]), "data of agent 0 is a stream (Endless)"),
    "a loader of a stream": Case(lambda: regression(train=[DataLoader(Endless())]), "a loader of a stream"),
    "items by name": Case(lambda: regression(train=[OfNames()]), "not a map-style dataset of equal-shaped pairs"),
    "a loader of items by name": Case(lambda: regression(train=[DataLoader(OfNames())]), "not a loader of pairs"),
    "test data of another shape": Case(
        lambda: regression(test=[(torch.ones(6, 5), Y)] * AGENTS), "the test data does not fit the model"
    ),
    "test data of other agents": Case(
        lambda: regression(test=[(X, Y)]), "training data for 4 agents and test data for 1"
    ),
    # Model and loss.
    "a model by its class": Case(lambda: regression(model=nn.Linear), "model is the class Linear; pass a module"),
    "a model that is no module": Case(lambda: regression(model=torch.sin), "model must be an nn.Module"),
    "a model without values": Case(lambda: regression(model=nn.Linear(3, 1, device="meta")), "meta device"),
    "outputs that do not fit": Case(lambda: regression(model=net(3, 2)), "the training data does not fit the model"),
    "a model that branches on values": Case(lambda: regression(model=Branching()), "the model cannot be judged"),
    "a loss by its class": Case(lambda: labelled(loss=nn.CrossEntropyLoss), "loss is the class CrossEntropyLoss"),
    "a loss that is no function": Case(lambda: regression(loss="mse"), "loss must be a function"),
    "a loss per item": Case(lambda: regression(loss=lambda p, y: (p - y).square()), "one number per batch"),
    "a loss of whole numbers": Case(lambda: labelled(loss=lambda p, y: (p.argmax(1) != y).sum()), "torch.int64"),
    "a loss that is a float": Case(lambda: regression(loss=lambda p, y: 1.0), "must be a tensor with one number"),
    "a loss without gradient": Case(
        lambda: labelled(loss=lambda p, y: (p.argmax(1) != y).float().mean()), "the model cannot be trained"
    ),
    "a loss that is nan": Case(
        lambda: regression(loss=lambda p, y: (p - y).mean() * math.nan), "loss of the first model is nan"
    ),
    "a loss that fails": Case(lambda: regression(loss=broken), "ZeroDivisionError: no such thing"),
    "dropout in evaluation": Case(
        lambda: regression(model=Functional(always=True)), "F.dropout(x, p, training=self.training)"
    ),
    # The run.
    "repeated seeds": Case(lambda: run(seeds=[1, 2, 1]), "seeds names seed 1 twice"),
    "a negative seed": Case(
        lambda: run(seeds=[0, -1]), "a seed is a whole number from 0 to 2⁶³ − 1, but one of seeds is -1"
    ),
    "seeds 1.5": Case(lambda: run(seeds=1.5), "seeds must be a whole number of at least 1, but is 1.5"),
    "seeds as text": Case(lambda: run(seeds="3"), "seeds must be a whole number of at least 1, but is '3'"),
    "no seeds": Case(lambda: run(seeds=[]), "a run needs at least one seed"),
    "rounds 1.5": Case(lambda: run(rounds=1.5), "rounds must be a whole number of at least 1, but is 1.5"),
    "rounds True": Case(lambda: run(rounds=True), "rounds must be a whole number of at least 1, but is True"),
    "rounds 0": Case(lambda: run(rounds=0), "rounds must be a whole number of at least 1, but is 0"),
    "byzantine 1.5": Case(lambda: run(byzantine=1.5), "a share of Byzantine agents must be at least 0 and below 1"),
    "byzantine nan": Case(lambda: run(byzantine=math.nan), "a share of Byzantine agents"),
    "more Byzantine than agents": Case(lambda: run(byzantine=5), "byzantine must be between 0 and 4, but is 5"),
    "a Byzantine agent that is not there": Case(
        lambda: run(byzantine=[4]), "byzantine names agent 4; agents are 0 … 3"
    ),
    "a Byzantine agent twice": Case(lambda: run(byzantine=[1, 1]), "byzantine names agent 1 twice"),
    "a mask of Byzantine agents": Case(
        lambda: run(byzantine=np.array([True, False, False, False])), "each of byzantine must be a whole number"
    ),
    "byzantine as text": Case(lambda: run(byzantine="1"), "byzantine must be a number, a share or a list"),
    "resume without a checkpoint": Case(lambda: run(resume=True), "resume=True needs checkpoint="),
    "a checkpoint that is a file": Case(lambda: run(checkpoint=__file__), "checkpoint must be a folder"),
    "a rule by its class": Case(lambda: run(rule=rules.krum), "rule is the class krum; write rules.krum()"),
    "a rule by its name": Case(
        lambda: run(rule="loss-based"), "rule is the text 'loss-based'; write rules.loss_based()"
    ),
    "an attack by its class": Case(lambda: run(attack=attacks.alie), "attack is the class alie; write attacks.alie()"),
    "an attack by its name": Case(lambda: run(attack="alie"), "attack is the text 'alie'; write attacks.alie()"),
    "an attack as a rule": Case(lambda: run(rule=attacks.alie()), "that is not for rule="),
    "a rule as an attack": Case(lambda: run(attack=rules.krum()), "that is not for attack="),
    "a function as a rule": Case(lambda: run(rule=print), "pass a value with the methods init and combine"),
    "a rule of one's own by its class": Case(lambda: run(rule=Own), "pass a value, such as Own()"),
    "a study by its class": Case(lambda: run(task=studies.digits), "task is the class digits; write studies.digits()"),
    "a study by its name": Case(lambda: run(task="school"), "task is the text 'school'; write studies.school()"),
    "a module as a task": Case(lambda: run(task=net()), "pass a Task, a study or a function from the seed to a Task"),
    "a graph of another size": Case(lambda: run(graph=Graph.ring(5)), "the graph has 5 agents, but the task has 4"),
    "a graph of 2.5 agents": Case(lambda: Graph.ring(2.5), "the number of agents of a graph must be a whole number"),
    "a graph of no agents": Case(lambda: Graph.star(0), "a graph needs at least one agent, not 0"),
    "a matrix as a graph": Case(lambda: run(graph=np.ones((4, 4))), "graph must be a Graph, a networkx graph or"),
    "a graph by its class": Case(lambda: run(graph=Graph), "graph must be a Graph"),
    "a function that returns no graph": Case(lambda: run(graph=lambda round: None), "graph(0) must return a Graph"),
    "a callback by its class": Case(lambda: run(callbacks=[NoMoreRounds]), "a callback needs the methods"),
    "one callback instead of a list": Case(lambda: run(callbacks=NoMoreRounds()), "callbacks must be a list"),
    "a schedule that fails late": Case(
        lambda: run(task=regression(schedule=lambda t: 1 / (2 - t))),
        "schedule(2) failed; it must return a number: ZeroDivision",
    ),
    "a schedule that is nan": Case(lambda: run(task=regression(schedule=lambda t: math.nan)), "schedule(0) is nan"),
    "a schedule without a result": Case(lambda: run(task=regression(schedule=lambda t: None)), "schedule(0) failed"),
    "dtype int": Case(lambda: run(dtype=int), "unknown dtype"),
    "compile as text": Case(lambda: run(compile="yes"), "unknown compile 'yes'"),
    # The first round.
    "models of another shape": Case(
        lambda: run(rule=Own(lambda inbox, c: c._replace(models=c.models[:, :2]))),
        "rule own() returns models as (4, 2) of float32, but they must be (4, 4) of float32",
    ),
    "models of another type": Case(
        lambda: run(rule=Own(lambda inbox, c: c._replace(models=c.models.double()))), "models as (4, 4) of float64"
    ),
    "models that are nan": Case(
        lambda: run(rule=Own(lambda inbox, c: c._replace(models=c.models * math.nan))),
        "rule own() returns models that are not finite, for 4 of 4 agents",
    ),
    "weights of another shape": Case(
        lambda: run(rule=Own(lambda inbox, c: c._replace(weights=c.weights[:, 1:]))),
        "rule own() returns weights as (4, 3)",
    ),
    "weights that are nan": Case(
        lambda: run(rule=Own(lambda inbox, c: c._replace(weights=c.weights * math.nan))), "weights that are not finite"
    ),
    "weights that do not sum to one": Case(
        lambda: run(rule=Own(lambda inbox, c: c._replace(weights=c.weights / 2))),
        "rule own() returns weights that sum to 0.5",
    ),
    "negative weights": Case(
        lambda: run(rule=Own(lambda inbox, c: c._replace(weights=-c.weights))),
        "rule own() returns a negative weight, -0.25",
    ),
    "weights of nobody": Case(
        lambda: run(
            graph=Graph.star(4),
            rule=Own(lambda inbox, c: c._replace(weights=torch.full_like(c.weights, 1 / c.weights.shape[1]))),
        ),
        "rule own() gives a weight to a slot without a message",
    ),
    "a state of numbers": Case(
        lambda: run(rule=Own(lambda inbox, c: c._replace(state=(1,)), init=(torch.zeros(4),))), "a state with int"
    ),
    "a state that grows": Case(
        lambda: run(rule=Own(lambda inbox, c: c._replace(state=(torch.zeros(4),)))), "a state of another structure"
    ),
    "a rule that returns a tensor": Case(
        lambda: run(rule=Own(lambda inbox, c: c.models)), "return rules.Combined(models, weights, state)"
    ),
    "messages of another shape": Case(
        lambda: run(attack=Sends(lambda view: (ToAll(view.adapted), ())), **SILENT),
        "attack sends() returns messages, one row per Byzantine agent, as (4, 4) of float32, but they must be (1, 4)",
    ),
    "messages for other edges": Case(
        lambda: run(attack=Sends(lambda view: (ToEach(view.own), ())), **SILENT), "must be (3, 4) of float32"
    ),
    "messages of another type": Case(
        lambda: run(attack=Sends(lambda view: (ToAll(view.own.double()), ())), **SILENT), "as (1, 4) of float64"
    ),
    "silence that is no mask": Case(
        lambda: run(attack=Sends(lambda view: (ToAll(view.own, torch.zeros(1)), ())), **SILENT),
        "sends() returns silent",
    ),
    "poison of another shape": Case(
        lambda: run(attack=Poison(lambda sample: sample[:1]), **SILENT),
        "attack poison() poisons a sample of [((1, 2",
    ),
    "poison of another type": Case(
        lambda: run(attack=Poison(lambda sample: (sample[0].double(), sample[1])), **SILENT), "torch.float64"
    ),
    "an attack that returns a tensor": Case(
        lambda: run(attack=Sends(lambda view: view.own), **SILENT), "return ToAll(rows) or ToEach(rows)"
    ),
}


@pytest.mark.parametrize("name", DOOR)
def test_bad_input_is_refused_before_the_first_round(name: str) -> None:
    with pytest.raises(BadInput) as caught:
        DOOR[name].make()
    line = str(caught.value)
    assert DOOR[name].says in line
    assert "\n" not in line
    assert len(line) <= 330


def test_a_nan_sent_on_purpose_is_allowed() -> None:
    result = run(attack=attacks.not_finite(), byzantine=1, callbacks=[])
    assert np.isfinite(result["loss"].values[:, :, ~result["byzantine_agent"].values[0]]).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_huge_messages_are_no_fault_of_the_rule(dtype: str) -> None:
    huge = Sends(lambda view: (ToAll(torch.full_like(view.own, 3e38)), ()))
    run(attack=huge, byzantine=3, rule=rules.average(), callbacks=[], dtype=dtype)

"""What each agent learns, from which stream of samples, and at which step size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from varangian.core.batches import Batches, EpochEnds, HeldOut, Pool, as_dtype, pooled
from varangian.core.checks import check_word, shown, whole_number, whole_numbers
from varangian.core.draws import Draws
from varangian.core.errors import BadInput
from varangian.core.execution import Execution, using
from varangian.core.given_data import Items, check_finite
from varangian.core.measures import Accumulating, Metric, OfSet, read_metrics
from varangian.core.models.base import Model, Models, Sample
from varangian.core.models.stacked import Loss, Stacked
from varangian.core.optimisers import Optimiser, sgd
from varangian.core.trial import check_metrics, check_model, tried

Some = slice | Int[Tensor, " some"]
"""A choice of agents."""
PerAgent = float | Float[Tensor, " agent"]
TEST_LOSS = "test_loss"
JudgedOn = Literal["next", "same"]
"""Judge neighbours on the next sample, before training on it, or on the same sample the agent just trained on."""
SampleKind = Literal["next", "same", "unseen"]
"""The samples of a round. The `unseen` one is for rules with fold models: see `folds`."""
Stale = Literal["wait", "last", "skipped"]
"""What agents without a new sample do: wait for one, judge on their last one, or judge on the one that they skip."""


class Stream(Protocol):
    """Where samples come from. `samples` is a pure function of its arguments."""

    @property
    def agents(self) -> int: ...

    def samples(self, draws: Draws, start: int, rounds: int, dtype: torch.dtype) -> Sample:
        """The samples of the rounds start … start + rounds − 1: tensors of shape (round, agent, …)."""
        ...

    def to(self, device: torch.device) -> Stream: ...


class Evaluation(Protocol):
    """Measures every agent's model; returns one number per agent for each metric."""

    def __call__(self, models: Models) -> Mapping[str, Float[Tensor, " agent"]]: ...

    def to(self, device: torch.device) -> Evaluation: ...


@runtime_checkable
class Moving(Protocol):
    """An evaluation that changes from round to round, because what agents look for changes."""

    def at(self, round: int) -> Evaluation:
        """The evaluation of the models after so many rounds."""
        ...


def at_round(evaluation: Evaluation, round: int) -> Evaluation:
    """The evaluation of the models after so many rounds; most evaluations are the same in all rounds."""
    return evaluation.at(round) if isinstance(evaluation, Moving) else evaluation


@runtime_checkable
class Divisible(Protocol):
    """A stream or an evaluation that can be restricted to some agents.

    This allows work in blocks, in another order of agents, or on several machines.
    """

    def part(self, agents: Some) -> Divisible: ...


@runtime_checkable
class Copyable(Protocol):
    """A part of a stream or an evaluation that shares data with other parts, and can copy what it needs."""

    def compact_copy(self) -> Copyable: ...


@dataclass(frozen=True, eq=False)
class Evaluations:
    """Combines several evaluations into one."""

    parts: tuple[Evaluation, ...]

    def __call__(self, models: Models) -> Mapping[str, Float[Tensor, " agent"]]:
        return {name: value for part in self.parts for name, value in part(models).items()}

    def using(self, execution: Execution) -> Evaluations:
        """The same evaluations with the threads and the memory of `execution`."""
        return Evaluations(tuple(using(part, execution) for part in self.parts))

    def to(self, device: torch.device) -> Evaluations:
        return Evaluations(tuple(part.to(device) for part in self.parts))

    def part(self, agents: Some) -> Evaluations:
        """The same evaluations for some of the agents."""
        return Evaluations(tuple(part_of(part, agents) for part in self.parts))

    def compact_copy(self) -> Evaluations:
        """The same evaluations with a copy of only the data that they need."""
        return Evaluations(tuple(_compact_copy(part) for part in self.parts))


def side_by_side(
    parts: Sequence[Evaluation], agents: int, dtype: torch.dtype
) -> Callable[[Models], Mapping[str, Float[Tensor, " agent"]]]:
    """One evaluation for several networks side by side, each with `agents` agents."""
    known = [part for part in parts if isinstance(part, Quadratic)]
    if known and len(known) == len(parts):
        optimum, curvature = (torch.cat([getattr(q, name) for q in known]) for name in ("optimum", "curvature"))
        return Quadratic(optimum.to(dtype), curvature.to(dtype))

    def of(models: Models) -> Mapping[str, Float[Tensor, " agent"]]:
        measured = [part(own) for part, own in zip(parts, models.split(agents, -2), strict=True)] if parts else []
        return {name: torch.cat([m[name] for m in measured], -1) for name in measured[0]} if measured else {}

    return of


def round_by_round(
    parts: Sequence[Evaluation], agents: int, dtype: torch.dtype
) -> Callable[[int], Callable[[Models], Mapping[str, Float[Tensor, " agent"]]]]:
    """From the number of rounds to one evaluation for several networks side by side."""
    if any(isinstance(part, Moving) for part in parts):
        return lambda round: side_by_side([at_round(part, round) for part in parts], agents, dtype)
    always = side_by_side(parts, agents, dtype)
    return lambda round: always


def loss_alone(evaluation: Evaluation) -> Evaluation:
    """The part of an evaluation on test data that measures the loss, without other metrics if it is one of ours."""
    parts = evaluation.parts if isinstance(evaluation, Evaluations) else (evaluation,)
    of_loss = [part.without_metrics() for part in parts if isinstance(part, HeldOut) and part.loss_name == TEST_LOSS]
    return of_loss[0] if of_loss else evaluation


def takes_trials(evaluation: Evaluation | None) -> bool:
    """Whether an evaluation takes models with a dimension for trials before the agents."""
    if isinstance(evaluation, Evaluations):
        return all(map(takes_trials, evaluation.parts))
    return isinstance(evaluation and at_round(evaluation, 0), Quadratic | HeldOut)


@dataclass(frozen=True, eq=False)
class Quadratic:
    """A risk that is known exactly: r_k(θ) − r_k* = (θ − θ_k*)ᵀ H_k (θ − θ_k*)."""

    optimum: Float[Tensor, "agent parameter"]
    curvature: Float[Tensor, "agent parameter parameter"]

    def __call__(self, models: Models) -> Mapping[str, Float[Tensor, " agent"]]:
        """The regret, and the mean square deviation ‖θ − θ*‖². Models may have more dimensions before the agents."""
        error = models - self.optimum
        bent = (self.curvature @ error[..., None])[..., 0]
        return {"regret": (error * bent).sum(-1), "msd": error.square().sum(-1)}

    def to(self, device: torch.device) -> Quadratic:
        return Quadratic(self.optimum.to(device), self.curvature.to(device))

    def part(self, agents: Some) -> Quadratic:
        """The same risk for some of the agents."""
        return Quadratic(self.optimum[agents], self.curvature[agents])


@dataclass(frozen=True, eq=False)
class Task:
    """What every agent of a network learns. `Task.supervised` makes one from an nn.Module and data."""

    model: Model
    """The model and its loss."""
    stream: Stream
    """Where samples come from."""
    step_size: PerAgent = 0.1
    """μ_k, one for all agents or one per agent."""
    forgetting: PerAgent = 0.1
    """The forgetting factor ν_k, in (0, 1]."""
    skip: PerAgent = 0.0
    """The probability that an agent gets no new batch. It then takes no step, and does not judge."""
    judge: JudgedOn = "next"
    """Whether agents judge their neighbours on the next sample or on the one they just trained on.

    A sender that knows the sample an agent has trained on can make a model that is good there and bad elsewhere."""
    stale: Stale = "wait"
    """What an agent that skips a batch does: `wait`, judge on its `last` batch, or judge on the `skipped` one.

    The authors of the paper let agents judge on the batch that they skip."""
    optimiser: Optimiser = field(default_factory=sgd)
    schedule: Callable[[int], float] | None = None
    """From the round to a factor on every step size."""
    exact: Evaluation | None = None
    """What is known exactly about the models; measured every round."""
    held_out: Evaluation | None = None
    """What is measured on held-out data, and on training data if wanted; every `epoch` rounds."""
    epoch: int | None = None
    """How many rounds an epoch has."""
    groups: Sequence[int] | None = None
    """The number of each agent's task, if it is known. Figures, tables and clairvoyant reference rules use it."""
    names: Sequence[str] | None = None
    """What each agent is called in tables, such as the group whose data it has."""
    together: bool = False
    """Whether several seeds may share one run: their model is the same, and call overhead dominates their rounds."""

    def __post_init__(self) -> None:
        if self.agents < 1:
            raise BadInput("a task needs at least one agent")
        for name in ("step_size", "forgetting", "skip"):
            object.__setattr__(self, name, _per_agent(getattr(self, name), name, self.agents))
        check_word(self.judge, "judge", JudgedOn)
        check_word(self.stale, "stale", Stale)
        if isinstance(self.optimiser, type) or not isinstance(self.optimiser, Optimiser):
            raise BadInput(f"optimiser must be one of ours, such as optimisers.adam(), but is {shown(self.optimiser)}")
        if self.schedule is not None and not callable(self.schedule):
            raise BadInput(f"schedule must be a function from the round to a factor, but is {shown(self.schedule)}")
        if self.epoch is not None:
            object.__setattr__(self, "epoch", whole_number(self.epoch, "epoch", least=1))
        if self.groups is not None:
            object.__setattr__(self, "groups", tuple(whole_numbers(self.groups, "groups")))
            if len(self.groups) != self.agents:
                raise BadInput(
                    f"groups has {len(self.groups)} numbers, but the task has {self.agents} agents; give one each"
                )
        step_size = torch.as_tensor(self.step_size)
        if not bool(((step_size >= 0) & (step_size < float("inf"))).all()):
            raise BadInput(f"step_size must be finite and not negative, but is {self.step_size}")
        check_forgetting(self.forgetting)
        skip = torch.as_tensor(self.skip)
        if not bool(((skip >= 0) & (skip < 1)).all()):
            raise BadInput(f"skip must be a probability below 1, but is {self.skip}")
        if self.names is not None and len(self.names) != self.agents:
            raise BadInput(f"there are {len(self.names)} names, but the task has {self.agents} agents")
        if self.held_out is not None and self.epoch is None:
            raise BadInput("a task with held_out needs epoch, the number of rounds after which it is measured")

    @property
    def agents(self) -> int:
        return self.stream.agents

    @cached_property
    def sample_size(self) -> int:
        """How many numbers the sample of one round has, for all agents together. One is drawn to find out."""
        return sum(part.numel() for part in self.stream.samples(Draws.of(0, self.agents), 0, 1, torch.float32))

    @property
    def tested(self) -> Evaluation | None:
        """The part of `held_out` that measures on data that no agent trains on."""
        if not isinstance(self.held_out, Evaluations):
            return self.held_out
        parts = [part for part in self.held_out.parts if not isinstance(part, HeldOut) or part.loss_name == TEST_LOSS]
        return Evaluations(tuple(parts)) if parts else None

    def part(self, agents: Int[Tensor, " some"]) -> Task:
        """The task of some of the agents, with a copy of only their data."""
        return replace(
            self,
            stream=_compact_copy(part_of(self.stream, agents)),
            exact=self.exact and _compact_copy(part_of(self.exact, agents)),
            held_out=self.held_out and _compact_copy(part_of(self.held_out, agents)),
            names=None if self.names is None else [self.names[agent] for agent in agents.tolist()],
            groups=None if self.groups is None else torch.as_tensor(self.groups)[agents].tolist(),
            step_size=_rows(self.step_size, agents),
            forgetting=_rows(self.forgetting, agents),
            skip=_rows(self.skip, agents),
        )

    @staticmethod
    def supervised(
        model: nn.Module,
        loss: Loss,
        train: Sequence[Items] | Pool,
        *,
        test: Sequence[Items] | Pool | None = None,
        metrics: Mapping[str, Metric | Accumulating] | None = None,
        batch: int = 10,
        epoch: EpochEnds | int = "longest",
        share: Sequence[str] | str | None = None,
        step_size: PerAgent = 0.1,
        forgetting: PerAgent = 0.1,
        skip: PerAgent = 0.0,
        judge: JudgedOn = "next",
        stale: Stale = "wait",
        optimiser: Optimiser | None = None,
        schedule: Callable[[int], float] | None = None,
        groups: Sequence[int] | None = None,
        names: Sequence[str] | None = None,
        watch_training: bool | int = False,
    ) -> Task:
        """A task from any module, any loss and any data.

        Args:
            model: All agents start from this module.
            loss: `loss(predictions, targets)` returns the mean over a batch.
            train: The training data, one entry per agent: a pair of tensors (inputs, targets), or a map-style Dataset
                of such pairs. Agents may have different amounts of data. With a `Pool`, agents share data without
                copying it.
            test: Test data in the same form. By default there is none.
            metrics: Functions of (predictions, targets) by name, measured on each agent's test items after every epoch.
                One that returns one value per item is averaged. One that returns a single number is a metric of all
                items together, such as F1 or AUC. Metrics of `torchmetrics` can be given as they are.
            batch: How many items an agent gets per round.
            epoch: When an epoch ends: after the `longest` or the `shortest` pass through an agent's data, or after
                this number of rounds.
            share: The parameters to send to neighbours, by name or by the start of their names. By default all.
            step_size: μ_k, one for all agents or one per agent.
            forgetting: The forgetting factor ν_k, in (0, 1].
            skip: The probability that an agent gets no new batch. It then takes no step, and does not judge.
            judge: Judge neighbours on the `next` sample, or on the `same` one that the agent has just trained on.
            stale: What an agent that skips a batch does: `wait`, judge on its `last` one, or on the `skipped` one.
            optimiser: How agents take steps. By default plain SGD.
            schedule: From the round to a factor on every step size.
            groups: The number of each agent's task, if it is known.
            names: What each agent is called in tables.
            watch_training: Measure on training data too: on all of it (True), or on this many items per agent.

        Returns:
            A task that can be passed to `simulate`.

        >>> data = [(torch.randn(20, 3), torch.randn(20, 1)) for _ in range(4)]
        >>> task = Task.supervised(nn.Linear(3, 1), nn.functional.mse_loss, data, batch=5, step_size=0.05)
        >>> task.agents, task.epoch
        (4, 4)
        """
        check_model(model, loss)
        if metrics is not None and not isinstance(metrics, Mapping):
            raise BadInput(f"metrics must be functions by name, but is {shown(metrics)}")
        if metrics and test is None and not watch_training:
            raise BadInput("metrics are measured on test data; give test=, or watch_training=True")
        share = [share] if isinstance(share, str) else share
        stream = Batches.of(_pool(train, "train"), batch, epoch)
        stacked = tried(Stacked.of(model, loss, share), stream.pool, "training", stream.batch)
        measures = _measures(stacked, stream.pool, metrics or {})
        parts: list[Evaluation] = []
        if test is not None:
            held_out = _pool(test, "test")
            if held_out.agents != stream.agents:
                given = f"training data for {stream.agents} agents and test data for {held_out.agents}"
                raise BadInput(f"there is {given}; give both for the same agents")
            tried(stacked, held_out, "test", stream.batch)
            check_metrics(stacked, held_out, measures)
            parts.append(HeldOut(stacked, held_out, measures))
        if watch_training:
            items = None if watch_training is True else whole_number(watch_training, "watch_training", least=1)
            watched = stream.pool if items is None else stream.pool.first(items)
            parts.append(HeldOut(stacked, watched, measures, loss_name="train_loss", prefix="train_"))
        return Task(
            model=stacked,
            stream=stream,
            step_size=step_size,
            forgetting=forgetting,
            skip=skip,
            judge=judge,
            stale=stale,
            optimiser=optimiser or sgd(),
            schedule=schedule,
            held_out=Evaluations(tuple(parts)) if parts else None,
            epoch=stream.rounds_per_pass,
            groups=groups,
            names=names,
        )


def check_forgetting(nu: PerAgent | None) -> None:
    """Refuse a forgetting factor outside (0, 1]."""
    if nu is not None and not bool(((torch.as_tensor(nu) > 0) & (torch.as_tensor(nu) <= 1)).all()):
        raise BadInput(f"the forgetting factor ν must lie in (0, 1], but is {nu}")


Parted = TypeVar("Parted", Stream, Evaluation)


def part_of(whole: Parted, agents: Some) -> Parted:
    """A stream or an evaluation, restricted to some agents."""
    if not isinstance(whole, Divisible):
        raise BadInput(f"{type(whole).__name__} cannot be split over machines; give it a method part(agents)")
    return cast(Parted, whole.part(agents))


def _per_agent(value: Any, name: str, agents: int) -> PerAgent:
    """One number for all agents, or a tensor with one per agent; also from NumPy and from lists."""
    try:
        numbers = torch.as_tensor(np.asarray(value)) if not isinstance(value, Tensor) else value.detach()
        if numbers.is_complex() or numbers.dtype == torch.bool:
            raise TypeError
    except (TypeError, ValueError, RuntimeError):
        raise BadInput(f"{name} must be a number, or one per agent, but is {shown(value)}") from None
    if not numbers.ndim:
        return float(numbers)
    if numbers.shape != (agents,):
        raise BadInput(f"{name} has shape {tuple(numbers.shape)}, but the task has {agents} agents")
    return numbers if numbers.is_floating_point() else numbers.double()


def _rows(value: PerAgent, agents: Some) -> PerAgent:
    return value[agents] if isinstance(value, Tensor) and value.ndim else value


def _compact_copy(part: Parted) -> Parted:
    return cast(Parted, part.compact_copy()) if isinstance(part, Copyable) else part


def _pool(data: Sequence[Items] | Pool, what: str) -> Pool:
    if not isinstance(data, Pool):
        return pooled(data, what)
    check_finite(data.x, f"the {what} data has inputs")
    check_finite(data.y, f"the {what} data has targets")
    return data


def _measures(model: Stacked, pool: Pool, metrics: Mapping[str, Metric | Accumulating]) -> Mapping[str, Metric | OfSet]:
    """The metrics, tried on a few predictions of the first model. At least two items: one has no shape to tell."""
    places = torch.linspace(0, len(pool.x) - 1, 16).long()
    x, y = as_dtype(pool.x[places], torch.float32), as_dtype(pool.y[places], torch.float32)
    with torch.no_grad():
        predicted = model.predict(model.start(1, torch.float32, torch.device("cpu"))[0], x)
    return read_metrics(metrics, predicted, y)

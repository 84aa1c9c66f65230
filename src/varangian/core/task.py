"""What each agent learns, from which stream, at which pace."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeVar, cast, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from varangian.core.batches import Batches, EpochEnds, HeldOut, Items, Pool, as_dtype, pooled
from varangian.core.draws import Draws
from varangian.core.execution import Execution, using
from varangian.core.models.base import Model, Models, Sample
from varangian.core.models.stacked import Loss, Stacked
from varangian.core.optimisers import Optimiser, sgd
from varangian.errors import BadInput

Some = slice | Int[Tensor, " some"]
"""Which agents."""
PerAgent = float | Float[Tensor, " agent"]
TEST_LOSS = "test_loss"
JudgedOn = Literal["next", "same"]
"""Judge neighbours on the next sample, before training on it, or on the one just trained on."""


class Stream(Protocol):
    """Where samples come from. `samples` is a pure function of its arguments."""

    @property
    def agents(self) -> int: ...

    def samples(self, draws: Draws, start: int, rounds: int, dtype: torch.dtype) -> Sample:
        """What arrives in the rounds start … start + rounds − 1: tensors that begin with (round, agent)."""
        ...

    def to(self, device: torch.device) -> Stream: ...


class Evaluation(Protocol):
    """How good models are on data that nobody trains on."""

    def __call__(self, models: Models) -> Mapping[str, Float[Tensor, " agent"]]: ...

    def to(self, device: torch.device) -> Evaluation: ...


@runtime_checkable
class Divisible(Protocol):
    """A stream, or an evaluation, of which some agents' part can be had: to work on it in blocks, in another order, or
    on several machines."""

    def part(self, agents: Some) -> Divisible: ...


@runtime_checkable
class Copyable(Protocol):
    """What shares its data with other parts of the same, and can have a copy of what it needs."""

    def compact_copy(self) -> Copyable: ...


@dataclass(frozen=True, eq=False)
class Evaluations:
    """Evaluations evaluations as one."""

    parts: tuple[Evaluation, ...]

    def __call__(self, models: Models) -> Mapping[str, Float[Tensor, " agent"]]:
        return {name: value for part in self.parts for name, value in part(models).items()}

    def using(self, execution: Execution) -> Evaluations:
        """The same, with so many threads and so much memory."""
        return Evaluations(tuple(using(part, execution) for part in self.parts))

    def to(self, device: torch.device) -> Evaluations:
        return Evaluations(tuple(part.to(device) for part in self.parts))

    def part(self, agents: Some) -> Evaluations:
        """Of some agents."""
        return Evaluations(tuple(part_of(part, agents) for part in self.parts))

    def compact_copy(self) -> Evaluations:
        """The same, holding no more data than it needs."""
        return Evaluations(tuple(_compact_copy(part) for part in self.parts))


def side_by_side(
    parts: Sequence[Evaluation], agents: int, dtype: torch.dtype
) -> Callable[[Models], Mapping[str, Float[Tensor, " agent"]]]:
    """One evaluation for several networks side by side, each of so many agents."""
    known = [part for part in parts if isinstance(part, Quadratic)]
    if known and len(known) == len(parts):
        optimum, curvature = (torch.cat([getattr(q, name) for q in known]) for name in ("optimum", "curvature"))
        return Quadratic(optimum.to(dtype), curvature.to(dtype))

    def of(models: Models) -> Mapping[str, Float[Tensor, " agent"]]:
        measured = [part(own) for part, own in zip(parts, models.split(agents), strict=True)] if parts else []
        return {name: torch.cat([m[name] for m in measured]) for name in measured[0]} if measured else {}

    return of


@dataclass(frozen=True, eq=False)
class Quadratic:
    """A risk known exactly: r_k(θ) − r_k* = (θ − θ_k*)ᵀ H_k (θ − θ_k*)."""

    optimum: Float[Tensor, "agent parameter"]
    curvature: Float[Tensor, "agent parameter parameter"]

    def __call__(self, models: Models) -> Mapping[str, Float[Tensor, " agent"]]:
        """Regret, and mean square deviation ‖θ − θ*‖²."""
        error = models - self.optimum
        bent = (self.curvature @ error[:, :, None])[:, :, 0]
        return {"regret": (error * bent).sum(1), "msd": error.square().sum(1)}

    def to(self, device: torch.device) -> Quadratic:
        return Quadratic(self.optimum.to(device), self.curvature.to(device))

    def part(self, agents: Some) -> Quadratic:
        """Of some agents."""
        return Quadratic(self.optimum[agents], self.curvature[agents])


@dataclass(frozen=True, eq=False)
class Task:
    """What every agent of a network learns.

    A model with its loss, a stream of samples, and each agent's step size μ_k, forgetting factor ν_k and probability
    of going without a batch (it then keeps its last sample to judge on, and takes no step). `Task.supervised` makes
    one from an nn.Module and data.
    """

    model: Model
    stream: Stream
    step_size: PerAgent = 0.1
    forgetting: PerAgent = 0.1
    skip: PerAgent = 0.0
    judge: JudgedOn = "next"
    optimiser: Optimiser = field(default_factory=sgd)
    schedule: Callable[[int], float] | None = None
    """From the round to a factor on every step size."""
    exact: Evaluation | None = None
    """Measured every round: what can be known exactly about the models."""
    held_out: Evaluation | None = None
    """Measured every `epoch` rounds."""
    epoch: int | None = None
    groups: Sequence[int] | None = None
    """Which agents share a task, where that is known; pictures, tables and clairvoyant references look at it."""
    together: bool = False
    """Several seeds may share one run: same model, and rounds so small that calls cost more than numbers."""

    def __post_init__(self) -> None:
        if self.agents < 1:
            raise BadInput("a task needs at least one agent")
        for name in ("step_size", "forgetting", "skip"):
            value = torch.as_tensor(getattr(self, name))
            if value.ndim and value.shape != (self.agents,):
                raise BadInput(f"{name} has shape {tuple(value.shape)}, but the task has {self.agents} agents")
        step_size = torch.as_tensor(self.step_size)
        if not bool(((step_size >= 0) & (step_size < float("inf"))).all()):
            raise BadInput(f"step_size must not be negative or infinite, but is {self.step_size}")
        forgetting = torch.as_tensor(self.forgetting)
        if not bool(((forgetting > 0) & (forgetting <= 1)).all()):
            raise BadInput(f"forgetting factor ν must lie in (0, 1], but is {self.forgetting}")
        skip = torch.as_tensor(self.skip)
        if not bool(((skip >= 0) & (skip < 1)).all()):
            raise BadInput(f"skip is a probability below 1, but is {self.skip}")
        if self.held_out is not None and (self.epoch is None or self.epoch < 1):
            raise BadInput("a task with held-out data must say how many rounds an epoch has")

    @property
    def agents(self) -> int:
        return self.stream.agents

    @property
    def tested(self) -> Evaluation | None:
        """What `held_out` measures on data that nobody trains on, and nothing else."""
        if not isinstance(self.held_out, Evaluations):
            return self.held_out
        parts = [part for part in self.held_out.parts if not isinstance(part, HeldOut) or part.loss_name == TEST_LOSS]
        return Evaluations(tuple(parts)) if parts else None

    def part(self, agents: Int[Tensor, " some"]) -> Task:
        """What some of the agents learn, with their data alone."""
        return replace(
            self,
            stream=_compact_copy(part_of(self.stream, agents)),
            exact=self.exact and _compact_copy(part_of(self.exact, agents)),
            held_out=self.held_out and _compact_copy(part_of(self.held_out, agents)),
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
        metrics: Mapping[str, Callable[[Tensor, Tensor], Tensor]] | None = None,
        batch: int = 10,
        epoch: EpochEnds | int = "longest",
        share: Sequence[str] | None = None,
        step_size: PerAgent = 0.1,
        forgetting: PerAgent = 0.1,
        skip: PerAgent = 0.0,
        judge: JudgedOn = "next",
        optimiser: Optimiser | None = None,
        schedule: Callable[[int], float] | None = None,
        groups: Sequence[int] | None = None,
        watch_training: bool | int = False,
    ) -> Task:
        """A task from any module, any loss and any data.

        `train` and `test` hold one item an agent: a pair of tensors (inputs, targets) or a map-style Dataset of such
        pairs; amounts may differ. Agents who draw from the same data share a `Pool` without copying it.
        `loss(predictions, targets)` is the mean over a batch. `metrics` maps names to functions of (predictions,
        targets) with one value a sample, averaged over each agent's test items after every epoch, and over its
        training items too with `watch_training`, or over so many of them. An epoch ends with the longest pass through
        an agent's data, with the shortest, or after so many rounds. `share` names the parameters that travel (all
        unless given). The rest are `Task`'s own fields.

        >>> data = [(torch.randn(20, 3), torch.randn(20, 1)) for _ in range(4)]
        >>> task = Task.supervised(nn.Linear(3, 1), nn.functional.mse_loss, data, batch=5, step_size=0.05)
        >>> task.agents, task.epoch
        (4, 4)
        """
        if batch < 1:
            raise BadInput(f"a batch needs at least one sample, not {batch}")
        if isinstance(epoch, int) and epoch < 1:
            raise BadInput(f"an epoch needs at least one round, not {epoch}")
        stacked = Stacked.of(model, loss, share)
        stream = Batches.of(_pool(train, "train"), batch, epoch)
        _check_fit(stacked, stream.pool, "training")
        measures = dict(metrics or {})
        parts: list[Evaluation] = []
        if test is not None:
            held_out = _pool(test, "test")
            if held_out.agents != stream.agents:
                raise BadInput(f"there is training data for {stream.agents} agents and test data for {held_out.agents}")
            _check_fit(stacked, held_out, "test")
            parts.append(HeldOut(stacked, held_out, measures))
        if watch_training:
            watched = stream.pool if watch_training is True else stream.pool.first(watch_training)
            parts.append(HeldOut(stacked, watched, measures, loss_name="train_loss", prefix="train_"))
        return Task(
            model=stacked,
            stream=stream,
            step_size=step_size,
            forgetting=forgetting,
            skip=skip,
            judge=judge,
            optimiser=optimiser or sgd(),
            schedule=schedule,
            held_out=Evaluations(tuple(parts)) if parts else None,
            epoch=stream.rounds_per_pass,
            groups=groups,
        )


Parted = TypeVar("Parted", Stream, Evaluation)


def part_of(whole: Parted, agents: Some) -> Parted:
    """Some agents' part of a stream or an evaluation."""
    if not isinstance(whole, Divisible):
        raise BadInput(f"{type(whole).__name__} cannot be parted among machines; give it a method part(agents)")
    return cast(Parted, whole.part(agents))


def _rows(value: PerAgent, agents: Some) -> PerAgent:
    return value[agents] if isinstance(value, Tensor) and value.ndim else value


def _compact_copy(part: Parted) -> Parted:
    return cast(Parted, part.compact_copy()) if isinstance(part, Copyable) else part


def _pool(data: Sequence[Items] | Pool, what: str) -> Pool:
    return data if isinstance(data, Pool) else pooled(data, what)


def _check_fit(model: Stacked, pool: Pool, what: str) -> None:
    """Try a few items, those with the extreme labels among them, so that misfits are named before anything runs."""
    some = torch.arange(min(4, len(pool.x)))
    if not pool.y.is_floating_point():
        label = pool.y.reshape(len(pool.y), -1)[:, 0]
        some = torch.cat((some, label.argmin()[None], label.argmax()[None]))
    x, y = as_dtype(pool.x[some], torch.float32), as_dtype(pool.y[some], torch.float32)
    row = model.start(1, torch.float32, torch.device("cpu"))[0]
    try:
        with torch.no_grad(), warnings.catch_warnings():
            # Losses warn when they stretch targets over predictions, which is never meant.
            warnings.simplefilter("error", UserWarning)
            value = model.loss(model.predict(row, x), y)
    except (RuntimeError, ValueError, IndexError, TypeError, UserWarning) as error:
        raise BadInput(
            f"the {what} data does not fit the model: inputs of shape {tuple(x.shape)}, targets of shape "
            f"{tuple(y.shape)} and type {y.dtype}: {str(error).splitlines()[0]}"
        ) from error
    if value.ndim:
        raise BadInput(f"the loss must be one number a batch, but has shape {tuple(value.shape)}")

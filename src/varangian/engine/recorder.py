"""What is measured during a run. It stays on the device until it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from varangian.core.errors import BadInput
from varangian.core.graph import Graph
from varangian.core.models.base import Models, own_loss
from varangian.core.scene import Scene
from varangian.engine.state import Seen, State
from varangian.engine.world import World

Measured = Mapping[str, Float[Tensor, " agent"]]

OF_ANCHORS = ("regret", "accuracy", "rmse", "test_loss")
"""Metrics that are also measured for anchors, which are the models of no cooperation."""


def measure(world: World, state: State, seen: Seen) -> Measured:
    """The metrics of every agent after a round.

    `loss` is the loss of the model that an agent had when its current sample arrived. So no model is measured on data
    that it has already seen. `regret` and `msd` exist if the task knows its risk, and `byzantine_weight` and `kept` if
    the rule has weights. `alone_regret` is that of no cooperation, if the rule has anchors.
    """
    measured = {"loss": own_loss(world.model, seen.before, state.sample)}
    exact = world.exact_at(state.round)
    measured |= exact(state.used)
    measured |= measure_anchors(exact, state)
    if all(weights is not None for weights in seen.weights):
        of_tables = [
            torch.stack(((weights * from_byzantine).sum(1), (weights[:, 1:] > 0).sum(1).to(weights.dtype)))
            for weights, from_byzantine in zip(seen.weights, seen.wiring.from_byzantine, strict=True)
            if weights is not None
        ]
        byzantine_weight, kept = seen.wiring.join_tables([of_table.T for of_table in of_tables]).unbind(1)
        measured |= {"byzantine_weight": byzantine_weight, "kept": kept}
    return measured


def measure_anchors(metrics: Callable[[Models], Measured], state: State) -> Measured:
    """What no cooperation would have reached, as `alone_…`. Empty if the rule has no anchors."""
    if state.second is None or state.second.personal:
        return {}
    return {f"alone_{name}": value for name, value in metrics(state.second.models).items() if name in OF_ANCHORS}


@dataclass
class Recorder:
    """Keeps what is measured: metrics every `every` rounds, held-out data every epoch, and snapshots of weights."""

    every: int = 1
    snapshots: int = 0
    """About how many times to keep all weights, for figures that show who trusts whom."""
    rounds: list[int] = field(default_factory=list[int])
    streaming: dict[str, list[Tensor]] = field(default_factory=dict[str, list[Tensor]])
    evaluated: list[int] = field(default_factory=list[int])
    """The rounds after which held-out data was used …"""
    epochs: list[int] = field(default_factory=list[int])
    """… and the epochs to which they belong."""
    held_out: dict[str, list[Tensor]] = field(default_factory=dict[str, list[Tensor]])
    weight_rounds: list[int] = field(default_factory=list[int])
    weights: list[Tensor] = field(default_factory=list[Tensor])

    def record(self, world: World, state: State, seen: Seen, rounds: int) -> None:
        """Record the round that led to `state`; the run has `rounds` rounds."""
        done = state.round
        if done % self.every == 0 or done == rounds:
            self.rounds.append(done)
            _append(self.streaming, measure(world, state, seen))
        epoch = world.task.epoch
        if world.task.held_out is not None and epoch and (done % epoch == 0 or done == rounds):
            self.evaluated.append(done)
            self.epochs.append(-(-done // epoch))
            _append(self.held_out, world.held_out(state.used))
            _append(self.held_out, measure_anchors(world.held_out, state))
        weights = [of_table for of_table in seen.weights if of_table is not None]
        known = self.snapshots and len(weights) == len(seen.weights) and seen.wiring.uniform
        if known and is_snapshot(done, rounds, self.snapshots):
            self.weight_rounds.append(done)
            self.weights.append(seen.wiring.join_tables(weights))

    def part(self, agents: slice) -> Recorder:
        """The record of some agents so far, for those who look at it while recording goes on. Nothing is copied."""
        return replace(
            self,
            streaming={name: _Rows(rows, agents) for name, rows in self.streaming.items()},
            held_out={name: _Rows(rows, agents) for name, rows in self.held_out.items()},
            weights=_Rows(self.weights, agents),
        )

    def split(self, parts: int) -> list[Recorder]:
        """The records of so many parts of the network, each with the same number of agents."""

        def split_rows(rows: list[Tensor]) -> list[list[Tensor]]:
            return [list(part) for part in torch.stack(rows).chunk(parts, 1)] if rows else [[] for _ in range(parts)]

        streaming = {name: split_rows(rows) for name, rows in self.streaming.items()}
        held_out = {name: split_rows(rows) for name, rows in self.held_out.items()}
        weights = split_rows(self.weights)
        return [
            replace(
                self,
                streaming={name: of_parts[part] for name, of_parts in streaming.items()},
                held_out={name: of_parts[part] for name, of_parts in held_out.items()},
                weights=weights[part],
            )
            for part in range(parts)
        ]

    def so_far(self) -> Recorder:
        """A copy of the record, for another thread that reads it while recording goes on."""
        return Recorder(
            every=self.every,
            snapshots=self.snapshots,
            rounds=list(self.rounds),
            streaming={name: list(rows) for name, rows in self.streaming.items()},
            evaluated=list(self.evaluated),
            epochs=list(self.epochs),
            held_out={name: list(rows) for name, rows in self.held_out.items()},
            weight_rounds=list(self.weight_rounds),
            weights=list(self.weights),
        )

    def tensors(self, done: int) -> dict[str, Tensor]:
        """The record of the first `done` rounds as tensors, for a checkpoint.

        An interrupt may come while a round is being recorded, so later rounds are left out.
        """
        rounds, epochs = _first(self.rounds, done), _first(self.evaluated, done)
        snapshots = _first(self.weight_rounds, done)
        out = {f"streaming/{name}": torch.stack(rows[: len(rounds)]) for name, rows in self.streaming.items() if rounds}
        out |= {f"held_out/{name}": torch.stack(rows[: len(epochs)]) for name, rows in self.held_out.items() if epochs}
        if snapshots:
            out["weights"] = torch.stack(self.weights[: len(snapshots)])
        kept = {"rounds": rounds, "evaluated": epochs, "weight_rounds": snapshots, "epochs": self.epochs[: len(epochs)]}
        return out | {name: torch.tensor(numbers, dtype=torch.long) for name, numbers in kept.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from what the method `tensors` returned."""
        for name, value in tensors.items():
            kind, _, metric = name.partition("/")
            if kind in ("streaming", "held_out"):
                getattr(self, kind)[metric] = list(value)
            elif kind == "weights":
                self.weights = list(value)
            else:
                setattr(self, kind, value.tolist())


def is_snapshot(done: int, rounds: int, snapshots: int) -> bool:
    """Whether to keep all weights after `done` of `rounds` rounds, if they are kept about `snapshots` times."""
    apart = max(1, rounds // snapshots)
    early = done < apart and done & (done - 1) == 0  # powers of two: weights change most in early rounds
    return early or done % apart == 0 or done == rounds


def recording_plan(scenes: Sequence[Scene], rounds: int, every: int | None) -> tuple[int, int]:
    """How often to record: every how many rounds, and how many snapshots of weights.

    By default every round is recorded, if that takes only megabytes. Large models are recorded ten times per epoch:
    their own loss is needed only for the record, and would take a good part of the time of a round. Weights are kept
    for small networks only.
    """
    task = scenes[0].task
    numbers = task.agents * len(scenes) * rounds
    often = (task.epoch or 1) // 10 if task.model.parameters >= 10**5 else 1
    if every is not None and every < 1:
        raise BadInput(f"record_every must be at least 1, but is {every}")
    few = task.agents <= 200 and isinstance(scenes[0].graph, Graph)
    return every or max(1, often, numbers // 10**7), 20 if few else 0


def _first(rounds: list[int], done: int) -> list[int]:
    return [round for round in rounds if round <= done]


class _Rows(list[Tensor]):
    """Rows of a record, cut to some agents when they are looked at."""

    def __init__(self, rows: list[Tensor], agents: slice) -> None:
        super().__init__(rows)
        self.agents = agents

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return _Rows(found, self.agents) if isinstance(place, slice) else found[self.agents]

    def __iter__(self) -> Iterator[Tensor]:
        return (row[self.agents] for row in super().__iter__())


def _append(columns: dict[str, list[Tensor]], measured: Measured) -> None:
    """Columns are in the order of measuring. A checkpoint has them in alphabetical order."""
    if columns.keys() == measured.keys() and list(columns) != list(measured):
        ordered = {name: columns[name] for name in measured}
        columns.clear()
        columns.update(ordered)
    for name, value in measured.items():
        columns.setdefault(name, []).append(value)

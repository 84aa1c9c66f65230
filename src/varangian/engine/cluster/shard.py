"""The rounds of one part of a network: adapt, send to the other parts, receive from them, combine.

This module does not depend on how messages travel. The caller holds the parts, in one process or in many, and calls
the methods of each shard in turn.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from varangian.attacks.base import Attack
from varangian.core.execution import Execution
from varangian.core.layout import by_column, is_by_column, joined
from varangian.core.messages import HonestMessages
from varangian.core.models.base import Models, Sample
from varangian.engine import checkpoint as checkpoints
from varangian.engine.cluster.subnetwork import Part, world_of
from varangian.engine.device import torch_dtype
from varangian.engine.fingerprint import fingerprint
from varangian.engine.first_round import CheckedAttack, CheckedRule
from varangian.engine.options import RunOptions
from varangian.engine.recorder import Recorder
from varangian.engine.round import adapt, listen
from varangian.engine.state import begin
from varangian.engine.world import World, attacked
from varangian.rules.base import Rule

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class ShardOptions:
    """What all shards have in common."""

    rule: Rule[Any]
    attack: Attack[Any]
    rounds: int
    every: int
    """The number of rounds from one record to the next."""
    snapshots: int
    """How often all weights are recorded."""
    options: RunOptions
    keep_models: bool = False
    """Whether the final models are part of what a shard has recorded."""
    threads: int = 1


@dataclass
class StageTimes:
    """The seconds that a part spent on each stage, and the bytes it sent to other parts."""

    adapt: float = 0.0
    exchange: float = 0.0
    judge: float = 0.0
    combine: float = 0.0
    bytes: int = 0
    rounds: int = 0


class Shard:
    """A part and its state. One round is `tell`, then `adapt_others`, then `hear`."""

    def __init__(self, part: Part, shard_options: ShardOptions) -> None:
        torch.set_num_threads(shard_options.threads)
        self.part, self.shard_options = part, shard_options
        self.device, options = torch.device(shard_options.options.device), shard_options.options
        execution = Execution(self.device, shard_options.threads)
        dtype = torch_dtype(options.dtype)
        world = world_of(part, execution, dtype, options.judge_dtype, options.byzantine_listen)
        world = attacked(world, shard_options.attack)
        self.spent = StageTimes()
        self.world: World = replace(world, judging=_Timed(world.judging, self.spent))
        self.recorder = Recorder(shard_options.every, shard_options.snapshots)
        self.mark = fingerprint(self.world, shard_options.rule, shard_options.attack, shard_options.rounds, options)
        self._to = [rows.to(self.device) for rows in part.to]
        self._at = [rows.to(self.device) for rows in part.at]
        self._place = part.place.to(self.device)
        self._threads = ExitStack()
        self._threads.enter_context(self.world.execution.applied())
        with torch.no_grad():
            self.state = begin(self.world, shard_options.rule, shard_options.attack)

    # A round ----------------------------------------------------------------------------------------------------

    def tell(self) -> list[Array]:
        """Adapt the agents that other parts receive from. Returns one message for each of these parts."""
        start = time.perf_counter()
        border = slice(0, self.part.border)
        with torch.no_grad():
            self._adapted = [adapt(self.world, self.state, border)] if self.part.border else []
            messages = [self._message_of(rows) for rows in self._to if len(rows)]
        self.spent.adapt += time.perf_counter() - start
        self.spent.bytes += sum(message.nbytes for message in messages)
        return messages

    def _message_of(self, rows: Tensor) -> Array:
        shared = self.world.model.shared
        models = self._adapted[0][0][rows, :shared]
        if self.part.everyone:
            models = torch.stack((models, self.state.models[rows, :shared]))
        return models.contiguous().cpu().numpy()

    def adapt_others(self) -> None:
        """Adapt the remaining agents, which no other part receives from, while messages travel."""
        start = time.perf_counter()
        if self.part.border < len(self.part.own):
            with torch.no_grad():
                self._adapted.append(adapt(self.world, self.state, slice(self.part.border, None)))
        self._waiting = time.perf_counter()
        self.spent.adapt += self._waiting - start

    def hear(self, messages: Sequence[Array]) -> int:
        """Judge and combine the models of this part's agents and the messages of other parts.

        Messages are ordered by the number of the part that sent them. Returns the number of finished rounds.
        """
        models, *optimisers = zip(*((m, *o) for m, o in self._adapted), strict=True)
        adapted, optimiser = joined(models), tuple(joined(parts) for parts in optimisers)
        with torch.no_grad():
            honest = self._gathered(adapted, messages)
            began, judged = time.perf_counter(), self.spent.judge
            self.spent.exchange += began - self._waiting
            rule, attack = self.shard_options.rule, self.shard_options.attack
            if not self.state.round:
                rule, attack = CheckedRule(rule), CheckedAttack(attack)
            after, seen = listen(self.world, rule, attack, self.state, adapted, optimiser, honest)
            self.spent.combine += time.perf_counter() - began - (self.spent.judge - judged)
            self.recorder.record(self.world, after, seen, self.shard_options.rounds)
        self.state = after
        self.spent.rounds += 1
        return after.round

    def _gathered(self, adapted: Models, messages: Sequence[Array]) -> HonestMessages:
        """One row for each agent in `part.heard`."""
        shared = self.world.model.shared
        rows = [at for at in self._at if len(at)]
        heard = [torch.from_numpy(message).to(self.device) for message in messages]
        if self.part.everyone:
            now, before = zip(*(both.unbind() for both in heard), strict=True) if heard else ((), ())
            return HonestMessages(
                self._rows(adapted[:, :shared], rows, now), self._rows(self._own_before, rows, before)
            )
        everyone = self._rows(adapted[:, :shared], rows, heard)
        if not len(self.world.byzantine):
            return HonestMessages(everyone, everyone)
        # The attack is local: it needs earlier models of the victims only, and the victims are this part's agents.
        # So the rows of other agents may hold any value.
        return HonestMessages(everyone, everyone.index_copy(0, self._place, self._own_before))

    @property
    def _own_before(self) -> Float[Tensor, "agent shared"]:
        return self.state.models[:, : self.world.model.shared]

    def _rows(self, own: Tensor, places: Sequence[Tensor], others: Sequence[Tensor]) -> Float[Tensor, "row shared"]:
        out = own.new_empty(len(self.part.heard), own.shape[1])
        out = by_column(out) if is_by_column(own) else out
        out[self._place] = own
        for at, message in zip(places, others, strict=True):
            out[at] = message
        return out

    # Checkpoints and results ------------------------------------------------------------------------------------

    def kept(self) -> bytes:
        """The state and the records, as the bytes of a checkpoint."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "part"
            checkpoints.save(path, self.state, self.recorder, self.mark)
            return path.read_bytes()

    def restore(self, kept: bytes) -> int:
        """Continue from the bytes that `kept` returned. Returns the number of finished rounds."""
        self.recorder = Recorder(self.shard_options.every, self.shard_options.snapshots)
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            path = Path(folder) / "checkpoint"
            path.write_bytes(kept)
            rule, attack = self.shard_options.rule, self.shard_options.attack
            self.state = checkpoints.load(
                path, lambda round: begin(self.world, rule, attack, round), self.recorder, self.mark
            )
        return self.state.round

    def recorded(self) -> dict[str, Array]:
        """The metrics of this part's agents, and the sender in each slot of the recorded weights."""
        found = {name: tensor.cpu().numpy() for name, tensor in self.recorder.tensors(self.state.round).items()}
        if self.recorder.weights:
            wiring = self.world.wiring(0)
            found["senders"] = self.part.heard[wiring.join_tables([t.senders for t in wiring.tables]).cpu()].numpy()
        if self.shard_options.keep_models:
            found["models"] = self.state.used[None].cpu().numpy()
        return found


@dataclass(frozen=True, eq=False)
class _Timed:
    """A model that adds up the seconds spent on judging."""

    model: Any
    spent: StageTimes = field(repr=False)

    def judge(self, models: Tensor, sample: Sample) -> Tensor:
        start = time.perf_counter()
        losses: Tensor = self.model.judge(models, sample)
        self.spent.judge += time.perf_counter() - start
        return losses

    def judge_all(self, models: Tensor, sample: Sample) -> Tensor:
        start = time.perf_counter()
        losses: Tensor = self.model.judge_all(models, sample)
        self.spent.judge += time.perf_counter() - start
        return losses

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

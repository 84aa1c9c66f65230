"""A Byzantine process: it has valid keys, trains on its own data, hears its neighbours, and sends an attack.

It is one of the Byzantine agents of a study, and knows who the others are. In lockstep it sends last: after it has
heard the honest messages of the round. What it cannot hear, it takes to be as it was when it last heard it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import torch
from torch import Tensor

from varangian.agent.config import AgentConfig, rule_of, study_of
from varangian.agent.hostile import Workshop, flooding_payloads, hostile_payloads
from varangian.agent.lockstep import Lockstep
from varangian.agent.mailbox import Mailbox, Received
from varangian.agent.message import Header, Message, Schema, encode
from varangian.agent.transport import Transport
from varangian.attacks.base import AnyAttack, in_words, knowledge_of
from varangian.core.errors import BadInput
from varangian.core.execution import Execution
from varangian.core.messages import HonestMessages, ToEach
from varangian.engine.round import adapt, byzantine_messages, next_sample
from varangian.engine.rule_memory import initial_memory
from varangian.engine.state import State, begin
from varangian.engine.world import attacked, prepare


def check_attack(attack: AnyAttack) -> None:
    """Refuse an attack that needs to know what no process of a fleet can know."""
    beyond = tuple(kind for kind in knowledge_of(attack) if kind != "messages")
    if beyond:
        raise BadInput(
            f"the attack {type(attack).__name__.replace('_', '-')} knows {in_words(beyond)}, which a process of a "
            "fleet cannot know; use another attack, or `varangian run`"
        )


@dataclass
class ByzantineNode:
    """A Byzantine agent at work."""

    config: AgentConfig
    attack: AnyAttack
    byzantine: tuple[int, ...]
    """The numbers of all Byzantine agents."""
    mailbox: Mailbox
    transport: Transport
    schema: Schema
    seal: Callable[[bytes], bytes]
    session: int
    hostile: str | None = None
    """A hostile mode, in place of the attack."""
    stop: Event = field(default_factory=Event)
    flood: Callable[[list[bytes]], object] = lambda payloads: None
    """Begins to send these again and again, as fast as it can."""

    def run(self) -> None:
        """Attack until `stop` is set, or until all rounds of the configuration are finished."""
        config, numbers = self.config, self.config.numbers()
        self.me = numbers[config.name]
        study = study_of(config)
        scene = study.scene(config.task.seed or 0)
        execution = Execution(torch.device("cpu"), threads=1)
        whole = prepare([scene], [config.task.seed or 0], self.byzantine, execution, self.schema.dtype)
        self.world, self.rule = attacked(whole, self.attack), rule_of(config)
        self.lockstep = Lockstep(self.mailbox, self.transport, config.deadline, config.start_deadline)
        self.honest = [name for name, number in numbers.items() if number not in self.byzantine]
        with torch.no_grad():
            state = begin(self.world, self.rule, self.attack)
            self.memory = initial_memory(self.rule, self.world.wiring(0), self.schema.dtype)
            heard = state.models[:, : self.world.model.shared].clone()
            if config.pace == "lockstep":
                self.lockstep.meet(self.honest, self.stop)
            while not self.stop.is_set() and (config.rounds is None or state.round < config.rounds):
                began = time.monotonic()
                state, heard = self._play(state, heard)
                if config.pace == "free":
                    self.stop.wait(max(0.0, began + config.period - time.monotonic()))
        if config.pace == "lockstep":
            self.stop.wait(config.deadline)

    def _play(self, state: State, before: Tensor) -> tuple[State, Tensor]:
        """One round: train, listen, send. Returns the next state, and the last known model of every agent."""
        own = slice(self.me, self.me + 1)
        trained, optimiser = adapt(self.world, state, own)
        heard = before.clone()
        heard[own] = trained[:, : self.world.model.shared]
        for name, one in self._listen(state.round).items():
            heard[self.config.numbers()[name]] = one.message.vector
        header = Header(self.config.name, self.session, state.round, time.time(), self.schema.fingerprint)
        attack = state.attack
        if self.hostile is not None:
            self._be_hostile(header)
        else:
            attack = self._send(state, heard, before, header)
        models = state.models.clone()
        models[own] = trained
        whole = tuple(part.clone() for part in state.optimiser)
        for part, new in zip(whole, optimiser, strict=True):
            part[own] = new
        sample, fresh = next_sample(self.world, state)
        return State(state.round + 1, models, sample, fresh, whole, state.rule, attack), heard

    def _listen(self, round: int) -> dict[str, Received]:
        if self.config.pace == "free":
            return self.mailbox.collect(time.monotonic())
        return self.lockstep.wait(round, self.honest, self.stop)

    def _send(self, state: State, heard: Tensor, before: Tensor, header: Header) -> Any:
        """Send what the attack says. Returns the next state of the attack."""
        wiring, honest = self.world.wiring(0), HonestMessages(heard, before)
        sent, after = byzantine_messages(self.world, self.rule, self.memory, self.attack, state, heard, honest, wiring)
        if sent is None:
            return after
        place = self.byzantine.index(self.me)
        if not isinstance(sent, ToEach):
            if sent.silent is None or not bool(sent.silent[place]):
                self.transport.publish(self._sealed(header, sent.rows[place]))
            return after
        names = {number: name for name, number in self.config.numbers().items()}
        for edge in torch.nonzero(wiring.sender == self.me)[:, 0].tolist():
            receiver = int(wiring.receiver[edge])
            if receiver in names and (sent.silent is None or not bool(sent.silent[edge])):
                self.transport.publish(self._sealed(header, sent.rows[edge]), to=names[receiver])
        return after

    def _sealed(self, header: Header, row: Tensor) -> bytes:
        return self.seal(encode(Message(header, row), self.schema))

    def _be_hostile(self, header: Header) -> None:
        if header.round == 0:
            zeros = torch.zeros(self.schema.numbers, dtype=self.schema.dtype)
            self.first = self._sealed(header, zeros)
        shop = Workshop(self.schema, self.seal, header, self.first)
        if self.hostile == "flood" and header.round == 0:
            self.flood(flooding_payloads(shop))
        for payload in hostile_payloads(str(self.hostile), shop):
            self.transport.publish(payload)

"""The loop of one agent: adapt, publish, judge what has arrived, combine, save. It never blocks on a neighbour."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event

from varangian.agent.config import AgentConfig
from varangian.agent.lockstep import Lockstep
from varangian.agent.mailbox import Mailbox, Received
from varangian.agent.message import Header, Message, Schema, encode
from varangian.agent.peer_round import Outcome, Peer
from varangian.agent.state import Saver
from varangian.agent.status import Status, Watcher, of_mailbox, peak_memory
from varangian.agent.transport import Transport
from varangian.core.models.base import Models
from varangian.engine.state import State

log = logging.getLogger("varangian.agent")


@dataclass
class Node:
    """One agent at work. The transport's thread fills the mailbox; everything else happens in `run`."""

    config: AgentConfig
    peer: Peer
    state: State
    mailbox: Mailbox
    transport: Transport
    schema: Schema
    seal: Callable[[bytes], bytes]
    """Puts a message into a signed envelope."""
    session: int
    saver: Saver
    watchers: Sequence[Watcher] = ()
    stop: Event = field(default_factory=Event)
    """Set it to end the loop after the round."""
    refused: Callable[[], Mapping[str, int]] = dict
    """What the network layer has refused so far, by reason."""
    unsaved: int = 0
    """How many times the state could not be saved."""
    evaluated: Mapping[str, float] = field(default_factory=dict[str, float])
    """What held-out data said last, and after which round."""
    evaluated_at: int = 0

    def __post_init__(self) -> None:
        config = self.config
        self.lockstep = Lockstep(self.mailbox, self.transport, config.deadline, config.start_deadline)

    def run(self) -> State:
        """Play rounds until `stop` is set or `config.rounds` are finished. The last state is saved."""
        saved = time.monotonic()
        if self.config.pace == "lockstep":
            self.lockstep.meet([one.name for one in self.config.neighbours], self.stop)
        while not self.stop.is_set() and (self.config.rounds is None or self.state.round < self.config.rounds):
            began = time.monotonic()
            self._catch_up()
            self.play()
            if time.monotonic() - saved >= self.config.save_every:
                self.save()
                saved = time.monotonic()
            if self.config.pace == "free":
                self.stop.wait(max(0.0, began + self.config.period - time.monotonic()))
        self.save()
        if self.config.pace == "lockstep" and self.config.neighbours:
            self.stop.wait(self.config.deadline)  # the last message is still on its way to slower neighbours
        return self.state

    def play(self) -> None:
        """One round."""
        began, before = time.monotonic(), self.state
        adapted, optimiser = self.peer.adapt(before)
        self.transport.publish(self._payload(adapted))
        heard = self._heard()
        numbers = self.config.numbers()
        messages = {numbers[name]: one.message.vector for name, one in heard.items()}
        outcome = self.peer.listen(before, adapted, optimiser, messages)
        self.state = outcome.state
        seconds = time.monotonic() - began
        self._evaluate()
        status = self._status(outcome, heard, seconds)
        for watcher in self.watchers:
            watcher(status)

    def save(self) -> None:
        """Save the state. A full disk is reported, and training goes on."""
        try:
            self.saver.save(self.state)
        except OSError as error:
            self.unsaved += 1
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            log.error(
                "the state of round %d was not saved, training goes on: %s",
                self.state.round,
                "the disk is full" if full else error,
                extra={"event": "not saved", "round": self.state.round},
            )

    def _payload(self, adapted: Models) -> bytes:
        header = Header(self.config.name, self.session, self.state.round, time.time(), self.schema.fingerprint)
        return self.seal(encode(Message(header, self.peer.message(adapted)), self.schema))

    def _evaluate(self) -> None:
        """At the end of an epoch, and of the run: measure on held-out data."""
        epoch, done = self.peer.world.task.epoch, self.state.round
        if self.peer.world.task.held_out is None or not epoch:
            return
        if done % epoch == 0 or done == self.config.rounds:
            self.evaluated, self.evaluated_at = self.peer.evaluated(self.state), done

    def _status(self, outcome: Outcome, heard: Mapping[str, Received], seconds: float) -> Status:
        names, of = {number: name for name, number in self.config.numbers().items()}, outcome.weights
        return Status(
            agent=self.config.name,
            round=self.state.round,
            time=time.time(),
            seconds=seconds,
            measured=outcome.measured,
            evaluated=self.evaluated,
            evaluated_at=self.evaluated_at,
            weights=None if of is None else {names[number]: weight for number, weight in of.items()},
            refused=dict(self.refused()),
            unsaved=self.unsaved,
            memory=peak_memory(),
            cpu=time.process_time(),
            **of_mailbox(self.mailbox, heard, [one.name for one in self.config.neighbours]),
        )

    def _heard(self) -> dict[str, Received]:
        """What to judge now: at a free pace whatever has arrived, in lockstep the messages of this very round."""
        if self.config.pace == "free":
            return self.mailbox.collect(time.monotonic())
        names = [one.name for one in self.config.neighbours]
        return self.lockstep.wait(self.state.round, names, self.stop)

    def _catch_up(self) -> None:
        """In lockstep, follow most neighbours if they are far ahead: nobody sends old rounds again.

        One round ahead is usual: they have heard this agent, and this agent still waits for others. So the agent goes
        to the round before theirs. They send it again, and those of them that are still in it wait for this agent.
        """
        if self.config.pace == "free":
            return
        reached = self.lockstep.round_of_most([one.name for one in self.config.neighbours])
        if reached <= self.state.round + 1:
            return
        target = (reached if self.config.rounds is None else min(reached, self.config.rounds)) - 1
        log.info("goes on from round %d to round %d", self.state.round, target, extra={"event": "catch up"})
        self.state = self.state._replace(round=target)

"""One agent from its configuration: keys, data, network, state; until it is told to stop."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import torch

from varangian.agent.config import AgentConfig, rule_of, share_of
from varangian.agent.envelope import OVERHEAD, Verifier, seal
from varangian.agent.identity import Identity
from varangian.agent.logs import log_round
from varangian.agent.mailbox import Mailbox, Payload
from varangian.agent.message import Schema
from varangian.agent.node import Node
from varangian.agent.peer_round import Peer
from varangian.agent.state import Saver, fingerprint, load, next_session
from varangian.agent.status import Watcher
from varangian.agent.transport import Addresses, Transport, ZenohTransport
from varangian.core.errors import BadInput
from varangian.experiments.lock import locked

log = logging.getLogger("varangian.agent")


def run_agent(config: AgentConfig, stop: threading.Event, watchers: Sequence[Watcher] = ()) -> None:
    """Play rounds until `stop` is set, or until all rounds of the configuration are finished.

    Args:
        config: The agent.
        stop: Set it to end after the round.
        watchers: Called after every round.
    """
    torch.set_num_threads(1)
    identity = identity_of(config)
    peer = Peer(share_of(config), rule_of(config))
    with ExitStack() as stack:
        folder = stack.enter_context(state_folder(config))
        mark = fingerprint(peer, config.name)
        found = load(folder, peer, mark)
        for damaged in found.damaged if found else ():
            log.error("%s is damaged: %s", damaged.path, damaged.reason, extra={"event": "damaged state"})
        state = found.state if found else peer.first()
        log.info("starts at round %d", state.round, extra={"event": "start", "round": state.round})
        session = next_session(folder)
        schema = Schema.of(peer.world.model, config.wire_dtype, peer.world.start.dtype)
        mailbox, transport, sealed = connected(config, identity, schema)
        stack.callback(transport.close)
        node = Node(
            config,
            peer,
            state,
            mailbox,
            transport,
            schema,
            sealed,
            session,
            Saver(folder, mark),
            [*watchers, *([log_round] if config.log_rounds else [])],
            stop,
        )
        node.run()
        log.info("stops at round %d", node.state.round, extra={"event": "stop", "round": node.state.round})


def identity_of(config: AgentConfig) -> Identity:
    """The agent's keys. Their name must be the agent's."""
    identity = Identity.load(config.path(config.keys))
    if identity.name != config.name:
        raise BadInput(f"the certificate in {config.keys} is for {identity.name}, but the agent is {config.name}")
    return identity


def connected(
    config: AgentConfig, identity: Identity, schema: Schema
) -> tuple[Mailbox, Transport, Callable[[bytes], bytes]]:
    """A mailbox that the network fills, the transport, and what puts messages into envelopes."""
    names = [one.name for one in config.neighbours]
    mailbox = Mailbox(names, schema, Verifier(identity, config.fleet), config.limits)
    addresses = Addresses(config.listen, {one.name: one.address for one in config.neighbours})

    def deliver(sender: str, payload: Payload) -> None:
        mailbox.offer(sender, payload, time.monotonic())

    transport = ZenohTransport(identity, config.fleet, addresses, deliver, schema.longest + OVERHEAD)
    return mailbox, transport, partial(seal, identity=identity, fleet=config.fleet)


@contextmanager
def state_folder(config: AgentConfig) -> Iterator[Path]:
    """The state folder, locked: two processes with one state would overwrite each other."""
    folder = config.path(config.state)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"the state folder {folder} cannot be made: {error.strerror}") from error
    with locked(folder):
        yield folder


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set within this block, for a process that finishes its round first."""
    stop = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: stop.set()) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)

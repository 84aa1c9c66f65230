"""How payloads travel between neighbours: Zenoh in peer mode over TLS.

Every pair of neighbours has a key of its own for each direction: `varangian/FLEET/SENDER/RECEIVER`. Access control
allows a link to carry only the two keys of the names at its ends, as their certificates have them. There is no
discovery: an agent connects to the addresses that it was given, and accepts only certificates of its authority.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from cryptography.hazmat.primitives.serialization import Encoding

from varangian.agent.certificates import checked_name
from varangian.agent.counted_log import CountedLog
from varangian.agent.identity import Credentials, Identity
from varangian.agent.mailbox import Payload
from varangian.agent.sender import Resend, Sender
from varangian.core.errors import BadInput

if TYPE_CHECKING:
    import zenoh

log = logging.getLogger(__name__)

Deliver = Callable[[str, Payload], None]
"""Called from the transport's threads with the sender's name and what it sent."""

_ADDRESS = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
_OVERHEAD = 4096
"""What Zenoh adds to a payload, at most."""
WATCH = 1.0
"""Seconds between looks at the key files."""
WARN, WARN_EVERY = timedelta(days=14), 86_400.0
"""How long before its certificate ends an agent warns, and the seconds between warnings."""


class Transport(Protocol):
    """Sends an agent's newest payloads to its neighbours, and hands over what they send. Never blocks on them."""

    def publish(self, payload: bytes, to: str | None = None) -> None:
        """Send this to every neighbour, or to one. Older payloads that have not been sent yet may be dropped."""
        ...

    def connected(self) -> frozenset[str]:
        """The neighbours that are connected now, and hear what is published."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Addresses:
    """Where an agent listens, and where its neighbours do: `host:port`, or `[address]:port` for IPv6."""

    listen: str | None
    """None if neighbours cannot reach this agent; then it must reach them."""
    neighbours: Mapping[str, str | None]
    """From a neighbour's name to its address. None if only the neighbour can open the connection."""

    def __post_init__(self) -> None:
        for name in self.neighbours:
            checked_name(name)
        for address in (self.listen, *self.neighbours.values()):
            if address is not None and not _ADDRESS.fullmatch(address):
                raise BadInput(f"{address!r} is no address; write host:port")


class ZenohTransport:
    """Zenoh in peer mode over TLS with mutual authentication, to the given neighbours only.

    The key files are watched: after a renewal or a new revocation list, the session is opened again.
    """

    def __init__(
        self,
        identity: Identity,
        fleet: str,
        addresses: Addresses,
        deliver: Deliver,
        longest: int,
        resend: Resend | None = None,
    ) -> None:
        """Open the session. Neighbours need not be there yet.

        Args:
            identity: This agent's certificate and whom it trusts.
            fleet: The name of the fleet; agents of different fleets do not hear each other.
            addresses: Where to listen and connect.
            deliver: What to do with what arrives.
            longest: The most bytes of a payload. Zenoh drops longer ones while it puts them together.
            resend: What is sent again, and when. By default the last payload.
        """
        if identity.name in addresses.neighbours:
            raise BadInput(f"{identity.name} cannot be its own neighbour; remove it from the neighbours")
        self._identity = identity
        self._fleet = checked_name(fleet)
        self._addresses = addresses
        self._deliver = deliver
        self._longest = longest
        self.refused = CountedLog(log)
        """Counts connections with valid certificates of those that are no neighbours, or revoked."""
        self._lock = threading.Lock()
        """Guards the session, which the watching thread replaces."""
        self._closing = threading.Event()
        self._senders: dict[str, Sender] = {}
        self._session: _Session | None = self._opened()
        for name in addresses.neighbours:
            self._senders[name] = Sender(name, partial(self._put, name), resend or Resend())
        self._watcher = threading.Thread(target=self._watch, name="watch-keys", daemon=True)
        self._watcher.start()

    def publish(self, payload: bytes, to: str | None = None) -> None:
        """Send this to every neighbour, or to one. Payloads that are too old to be sent again are dropped."""
        for name in self._senders if to is None else (to,):
            self._senders[name].send(payload)

    def connected(self) -> frozenset[str]:
        """The neighbours that are connected now, and have subscribed to what this agent sends."""
        with self._lock:
            publishers = self._session.publishers if self._session else {}
            # Zenoh's type stubs call it a bool.
            statuses: dict[str, Any] = {name: one.matching_status for name, one in publishers.items()}
        return frozenset(name for name, status in statuses.items() if status.matching)

    def close(self) -> None:
        """Stop sending and receiving."""
        self._closing.set()
        for sender in self._senders.values():
            sender.close()
        self._watcher.join()
        with self._lock:
            if self._session is not None:
                self._session.close()
        for sender in self._senders.values():
            sender.join()

    def _put(self, name: str, payload: bytes) -> None:
        """Hand a payload to Zenoh. Blocks while the link to this neighbour is full."""
        import zenoh

        with self._lock:
            publisher = self._session and self._session.publishers.get(name)
        if publisher:
            try:
                publisher.put(payload)
            except zenoh.ZError as error:  # the session is being closed
                log.debug("could not send to %s: %s", name, error)

    def _opened(self) -> _Session:
        """A new session with the credentials as they are now. Revoked neighbours are left out."""
        import zenoh

        mine, me = self._identity.now, self._identity.name
        allowed = {name: at for name, at in self._addresses.neighbours.items() if not mine.has_revoked(name)}
        addresses = Addresses(self._addresses.listen, allowed)
        settings = zenoh_settings(mine, me, self._fleet, addresses, self._longest)
        try:
            session = zenoh.open(zenoh.Config.from_json5(json.dumps(settings)))
        except zenoh.ZError as error:
            raise BadInput(f"cannot listen on {addresses.listen}: {error}; choose another address") from error
        newest_links: zenoh.handlers.RingChannel[zenoh.LinkEvent] = zenoh.handlers.RingChannel(64)
        # Not a callback: Zenoh's own threads would call Python, and one that does so while Python ends aborts it.
        links = session.info.declare_link_events_listener(newest_links, history=True)
        publishers, hearing = {}, [threading.Thread(target=self._watch_links, args=(links,), name="links", daemon=True)]
        hearing[0].start()
        for name in allowed:
            newest_two: zenoh.handlers.RingChannel[zenoh.Sample] = zenoh.handlers.RingChannel(2)
            # A ring keeps the newest two and drops the rest before Python sees it: a flood costs next to nothing.
            inbox = session.declare_subscriber(key(self._fleet, name, me), newest_two)
            hearing.append(threading.Thread(target=self._receive, args=(name, inbox), name=f"hear-{name}", daemon=True))
            hearing[-1].start()
            publishers[name] = session.declare_publisher(
                key(self._fleet, me, name), congestion_control=zenoh.CongestionControl.BLOCK, express=True
            )
        return _Session(session, publishers, tuple(hearing))

    def _receive(self, sender: str, inbox: zenoh.Subscriber[zenoh.handlers.Handler[zenoh.Sample]]) -> None:
        """Hand over what a neighbour sends, until the session is closed."""
        import zenoh

        with suppress(zenoh.ZError):
            for sample in inbox:
                try:
                    self._deliver(sender, sample.payload)
                except Exception:  # one bad delivery must not make this agent deaf to its neighbour
                    log.exception("could not deliver a message of %s", sender)

    def _watch_links(self, links: zenoh.LinkEventsListener[zenoh.handlers.Handler[zenoh.LinkEvent]]) -> None:
        """Count who connects without a right to be heard, until the session is closed."""
        import zenoh

        with suppress(zenoh.ZError):
            for event in links:
                self._notice(event)

    def _notice(self, event: zenoh.LinkEvent) -> None:
        import zenoh

        name = event.link.auth_identifier or ""
        if event.kind != zenoh.SampleKind.PUT:
            return
        if name not in self._addresses.neighbours:
            self.refused.add("stranger", f"{name!r} of this fleet is connected but no neighbour; it is not heard")
        elif self._identity.now.has_revoked(name):
            self.refused.add("revoked", f"{name} is connected but revoked; it is not heard")

    def _watch(self) -> None:
        """Open the session again when the key files change."""
        stale, warned = False, -WARN_EVERY
        while not self._closing.wait(WATCH):
            stale = self._identity.refresh() or stale
            left = self._identity.now.certificate.not_valid_after_utc - datetime.now(UTC)
            if left < WARN and time.monotonic() - warned >= WARN_EVERY:
                warned = time.monotonic()
                log.warning("this agent's certificate ends in %d days; renew it", left.days)
            if stale:
                log.info("the key files changed; opening the session again")
                with self._lock:
                    if self._session is not None:
                        self._session.close()
                        self._session = None
                    try:
                        self._session = self._opened()
                        stale = False
                    except BadInput as error:
                        log.warning("could not open the session again, trying on: %s", error)
                for sender in self._senders.values():
                    sender.repeat()


@dataclass(frozen=True)
class _Session:
    session: zenoh.Session
    publishers: Mapping[str, zenoh.Publisher]
    hearing: tuple[threading.Thread, ...]

    def close(self) -> None:
        """Close the session, and wait for its threads: a process that ends while one of them waits would abort."""
        self.session.close()
        for thread in self.hearing:
            thread.join()


def key(fleet: str, sender: str, receiver: str) -> str:
    """The Zenoh key of everything that `sender` sends to `receiver`."""
    return f"varangian/{fleet}/{sender}/{receiver}"


def zenoh_settings(mine: Credentials, me: str, fleet: str, addresses: Addresses, longest: int) -> dict[str, Any]:
    """Zenoh's configuration: TLS only, no discovery, no forwarding, and access control by certificate name.

    Args:
        mine: This agent's key and certificate, and the authority.
        me: Its name.
        fleet: The name of the fleet.
        addresses: Where to listen and connect.
        longest: The most bytes of a payload.
    """

    def encoded(pem: bytes) -> str:
        return base64.b64encode(pem).decode()

    private, certificate = encoded(mine.key_pem), encoded(mine.certificate.public_bytes(Encoding.PEM))
    connect = [f"tls/{address}" for address in addresses.neighbours.values() if address is not None]
    return {
        "mode": "peer",
        "listen": {"endpoints": [] if addresses.listen is None else [f"tls/{addresses.listen}"]},
        "connect": {"endpoints": connect, "timeout_ms": -1, "exit_on_failure": False},
        "open": {"return_conditions": {"connect_scouted": False, "declares": False}},
        "scouting": {"delay": 0, "multicast": {"enabled": False}, "gossip": {"enabled": False}},
        "adminspace": {"enabled": False},
        "access_control": _access_control(me, fleet, addresses),
        "transport": {
            "unicast": {"compression": {"enabled": False}, "qos": {"enabled": False}},
            "shared_memory": {"enabled": False},
            "link": {
                "protocols": ["tls"],
                "rx": {"max_message_size": longest + _OVERHEAD},
                "tls": {
                    "root_ca_certificate_base64": encoded(mine.authority.public_bytes(Encoding.PEM)),
                    "listen_private_key_base64": private,
                    "listen_certificate_base64": certificate,
                    "connect_private_key_base64": private,
                    "connect_certificate_base64": certificate,
                    "enable_mtls": True,
                    "verify_name_on_connect": True,
                    "close_link_on_expiration": True,
                },
            },
        },
    }


def _access_control(me: str, fleet: str, addresses: Addresses) -> dict[str, Any]:
    """A link whose certificate says `name` carries the two keys of this pair, and nothing else."""
    rules: list[dict[str, Any]] = []
    for name in addresses.neighbours:
        from_it, to_it = key(fleet, name, me), key(fleet, me, name)
        for flow, message, allowed in (
            ("ingress", "put", from_it),
            ("egress", "declare_subscriber", from_it),
            ("egress", "put", to_it),
            ("ingress", "declare_subscriber", to_it),
        ):
            rule = {"id": f"{name} {flow} {message}", "flows": [flow], "messages": [message]}
            rules.append({**rule, "key_exprs": [allowed], "permission": "allow"})
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": [{"id": name, "cert_common_names": [name]} for name in addresses.neighbours],
        "policies": [
            {"rules": [rule["id"] for rule in rules if rule["id"].split()[0] == name], "subjects": [name]}
            for name in addresses.neighbours
        ],
    }

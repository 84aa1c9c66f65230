"""Zenoh over TLS between real processes: who is heard, and who is not."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import zenoh
from cryptography.x509 import load_der_x509_certificate
from small_fleets import FLEET, SCHEMA, Someone, fleet, free_port, sealed, with_certificate

from varangian.agent import keys
from varangian.agent.envelope import OVERHEAD, Verifier
from varangian.agent.identity import Credentials, Identity
from varangian.agent.mailbox import Mailbox, Payload
from varangian.agent.transport import Addresses, ZenohTransport, key, zenoh_settings
from varangian.core.errors import BadInput

HELPERS = Path(__file__).parents[1] / "helpers"
PATIENCE = 120.0
"""Seconds until a test gives up on something that must happen. A busy machine may need them."""


class Agent:
    """A listening agent in a process of its own."""

    def __init__(self, folder: Path, port: int, neighbours: dict[str, str | None], log: Path) -> None:
        self.port = port
        self._log = log
        command = [sys.executable, str(HELPERS / "listening_agent.py"), str(folder), str(port), json.dumps(neighbours)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(HELPERS), *sys.path))}
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
            )

    def ask(self) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        told: dict[str, Any] = json.loads(self._process.stdout.readline())
        return told

    def ask_until(self, wanted: Callable[[dict[str, Any]], bool], act: Callable[[], object] = lambda: None) -> Any:
        """Ask until the answer is as wanted, and do something before every question."""
        end = time.monotonic() + PATIENCE
        while True:
            act()
            told = self.ask()
            if wanted(told):
                return told
            assert time.monotonic() < end, told
            time.sleep(0.05)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def close(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(PATIENCE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("fleet")
    fleet(found / "keys", ["me", "a", "b", "gone", "stranger"])
    fleet(found / "other", ["me", "a"])
    return found


@pytest.fixture(scope="module")
def me(folder: Path) -> Iterator[Agent]:
    """The agent that impostors try to reach. Its neighbours are a, b and gone."""
    agent = Agent(folder / "keys" / "agents" / "me", free_port(), dict.fromkeys(("a", "b", "gone")), folder / "me.log")
    agent.ask()
    yield agent
    assert agent.close() == 0


def identity(folder: Path, name: str, authority: str = "keys") -> Identity:
    return Identity.load(folder / authority / "agents" / name)


@contextmanager
def speaking(credentials: Credentials, me: Agent, mode: str = "client", **changes: Any) -> Iterator[zenoh.Session]:
    """A Zenoh session to the agent without any scruples: no access control, and any key it likes.

    In client mode it sends also what nobody has subscribed to.
    """
    settings = zenoh_settings(credentials, "x", FLEET, Addresses(None, {"me": f"localhost:{me.port}"}), 10**7)
    settings.update(mode=mode, access_control={"enabled": False, "default_permission": "allow"})
    settings["connect"] |= {"timeout_ms": 0, "exit_on_failure": True}
    settings["transport"]["link"]["tls"] |= changes
    with zenoh.open(zenoh.Config.from_json5(json.dumps(settings))) as session:
        yield session


def nothing_new(before: dict[str, Any], after: dict[str, Any]) -> bool:
    return bool(after["accepted"] == before["accepted"] and after["heard"] == before["heard"])


def counted(kind: str, more_than: dict[str, Any]) -> Callable[[dict[str, Any]], bool]:
    return lambda told: told["refused"].get(kind, 0) > more_than["refused"].get(kind, 0)


def test_a_neighbour_is_heard(me: Agent, folder: Path) -> None:
    a = identity(folder, "a")
    box = Mailbox(["me"], SCHEMA, Verifier(a, FLEET))
    transport = ZenohTransport(
        a,
        FLEET,
        Addresses(None, {"me": f"localhost:{me.port}"}),
        lambda sender, payload: box.offer(sender, payload, time.monotonic()),
        SCHEMA.longest + OVERHEAD,
    )
    try:
        for round in range(3):
            transport.publish(sealed(a, "a", round))
            told = me.ask_until(lambda told, round=round: told["heard"].get("a") == round)
        assert told["connected"] == ["a"]
        assert transport.connected() == {"me"}
        end = time.monotonic() + PATIENCE
        while not box.collect(time.monotonic()):
            assert box.wait(end - time.monotonic()), "and the other way round"
    finally:
        transport.close()


def test_an_unscrupulous_neighbour_is_heard_on_its_own_key_only(me: Agent, folder: Path) -> None:
    """It has a valid certificate. Under its own name it is heard, so the test reaches the agent; not under b's."""
    a, before = identity(folder, "a"), me.ask()
    with speaking(a.now, me) as session:

        def forge() -> None:
            session.put(key(FLEET, "b", "me"), sealed(a, "b", 100))
            session.put(key(FLEET, "b", "me"), sealed(a, "a", 100))
            session.put(f"varangian/{FLEET}/*/me", sealed(a, "b", 100))
            session.put("**", sealed(a, "b", 100))
            session.put(key(FLEET, "a", "me"), sealed(identity(folder, "b"), "b", 100))

        after = me.ask_until(counted("forbidden-key", more_than=before), forge)
        after = me.ask_until(lambda told: told["rejected"].get("a sender", 0) > 0, forge)
        assert nothing_new(before, after), "also b's own message is not heard on a's key"
        assert not [line for line in after["rejected"] if line.startswith("b")], "nothing reached b's box"
        end = time.monotonic() + 2.0
        while time.monotonic() < end:  # a was muted for a second because of b's message on its key
            time.sleep(0.1)
        me.ask_until(
            lambda told: told["heard"].get("a") == 101, lambda: session.put(key(FLEET, "a", "me"), sealed(a, "a", 101))
        )
        assert me.ask()["accepted"].get("b") is None


def test_nobody_hears_what_is_for_another(me: Agent, folder: Path) -> None:
    heard: list[str] = []
    with speaking(identity(folder, "a").now, me, mode="peer") as session:
        for wanted in ("**", f"varangian/{FLEET}/me/*", key(FLEET, "me", "b"), key(FLEET, "me", "a")):
            session.declare_subscriber(wanted, lambda sample: heard.append(str(sample.key_expr)))
        me.ask_until(lambda told: key(FLEET, "me", "a") in heard)
    assert set(heard) == {key(FLEET, "me", "a")}


@pytest.mark.parametrize("kind", ["unknown authority", "expired certificate"])
def test_an_invalid_certificate_gets_no_connection(me: Agent, folder: Path, kind: str) -> None:
    a, before = identity(folder, "a"), me.ask()
    authority = folder / ("other" if kind == "unknown authority" else "keys")
    lifetime = timedelta(days=1) if kind == "unknown authority" else -timedelta(seconds=1)
    credentials = with_certificate(a.now, authority, "a", lifetime)
    with suppress(zenoh.ZError), speaking(credentials, me) as session:
        session.put(key(FLEET, "a", "me"), sealed(Someone(credentials), "a", 1000))
        pytest.fail("the connection was accepted")
    after = me.ask_until(counted(kind.replace(" ", "-"), more_than=before))
    assert nothing_new(before, after)
    assert kind in me.log


def test_no_certificate_gets_no_connection(me: Agent, folder: Path) -> None:
    before = me.ask()
    with suppress(zenoh.ZError), speaking(identity(folder, "a").now, me, enable_mtls=False) as session:
        session.put(key(FLEET, "a", "me"), sealed(identity(folder, "a"), "a", 1000))
        pytest.fail("the connection was accepted")
    assert nothing_new(before, me.ask_until(counted("no-certificate", more_than=before)))


def test_plain_tcp_gets_no_connection(me: Agent, folder: Path) -> None:
    before = me.ask()
    settings = {"mode": "client", "connect": {"endpoints": [f"tcp/127.0.0.1:{me.port}"], "timeout_ms": 1000}}
    settings["scouting"] = {"multicast": {"enabled": False}}
    with pytest.raises(zenoh.ZError):
        zenoh.open(zenoh.Config.from_json5(json.dumps(settings)))
    with socket.create_connection(("127.0.0.1", me.port)) as plain:
        plain.sendall(b"GET / HTTP/1.0\r\n\r\n" * 100)
        assert b"HTTP" not in plain.recv(1000)
    assert nothing_new(before, me.ask_until(counted("not-tls", more_than=before)))


def test_garbage_inside_tls_does_no_harm(me: Agent, folder: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(folder / "keys" / "ca.crt")
    context.load_cert_chain(folder / "keys" / "agents" / "a" / "agent.pem")
    before = me.ask()
    with (
        socket.create_connection(("127.0.0.1", me.port)) as plain,
        context.wrap_socket(plain, False, True, True, "localhost") as link,
        suppress(OSError),  # the agent may hang up first
    ):
        link.sendall(os.urandom(2**16))
    assert nothing_new(before, me.ask())


def test_a_member_of_the_fleet_that_is_no_neighbour_is_not_heard(me: Agent, folder: Path) -> None:
    stranger, before = identity(folder, "stranger"), me.ask()
    with speaking(stranger.now, me) as session:

        def speak() -> None:
            for name in ("stranger", "a"):
                session.put(key(FLEET, name, "me"), sealed(stranger, name, 1000))

        me.ask_until(counted("stranger", more_than=before), speak)
        for _ in range(10):
            speak()
            after = me.ask()
    assert nothing_new(before, after)
    assert after["rejected"] == before["rejected"], "access control dropped it before the mailbox"


def test_a_revoked_neighbour_is_cut_off_while_agents_run(me: Agent, folder: Path) -> None:
    gone = identity(folder, "gone")
    with speaking(gone.now, me) as session:
        me.ask_until(
            lambda told: told["heard"].get("gone") == 1,
            lambda: session.put(key(FLEET, "gone", "me"), sealed(gone, "gone", 1)),
        )
    keys.revoke(folder / "keys", "gone")
    before = me.ask_until(lambda told: "opening the session again" in me.log)
    with speaking(gone.now, me) as session:
        after = me.ask_until(
            counted("revoked", more_than=before), lambda: session.put(key(FLEET, "gone", "me"), sealed(gone, "gone", 2))
        )
    assert nothing_new(before, after)


def test_impostors_write_few_lines(me: Agent, folder: Path) -> None:
    """All the refusals above were counted; each kind had its line, at most one a minute."""
    before = me.ask()
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", me.port)) as plain:
            plain.sendall(b"nonsense" * 10)
            plain.recv(100)
    me.ask_until(lambda told: told["refused"]["not-tls"] >= before["refused"]["not-tls"] + 20)
    assert 1 <= sum("not tls" in line for line in me.log.splitlines()) <= 1 + PATIENCE / 60 * 4


def test_an_agent_goes_on_with_a_renewed_certificate(folder: Path, tmp_path: Path) -> None:
    """No restart: it opens its session with the new certificate, and is heard with it."""
    of = fleet(tmp_path / "keys", ["me", "a"])
    agent = Agent(tmp_path / "keys" / "agents" / "me", free_port(), {"a": None}, tmp_path / "log")
    old = of["me"].now.certificate.serial_number
    heard: list[int] = []

    def hear(sender: str, payload: Payload) -> None:
        sent = bytes(payload)
        Verifier(of["a"], FLEET)(sender, sent)
        heard.append(load_der_x509_certificate(sent[8 : 8 + int.from_bytes(sent[4:6])]).serial_number)

    transport = ZenohTransport(of["a"], FLEET, Addresses(None, {"me": f"localhost:{agent.port}"}), hear, 10**6)
    try:
        agent.ask_until(lambda told: old in heard)
        keys.renew(tmp_path / "keys", "me")
        new = identity(tmp_path, "me").now.certificate.serial_number
        agent.ask_until(lambda told: new in heard)
    finally:
        transport.close()
        assert agent.close() == 0


def test_an_address_in_use_is_bad_input(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(BadInput, match="cannot listen on"):
            ZenohTransport(identity(folder, "a"), FLEET, Addresses(at, {}), lambda *_: None, 100)


@pytest.mark.parametrize(
    "address",
    ["", "host", "host:", ":80", "host:80#verify_name_on_connect=false", "a b:1", "tcp/host:1", "h:1?x=1", "[::1:80"],
)
def test_addresses_are_checked(address: str) -> None:
    with pytest.raises(BadInput, match="host:port"):
        Addresses("localhost:7447", {"a": address})
    with pytest.raises(BadInput, match="host:port"):
        Addresses(address, {})


def test_an_agent_is_not_its_own_neighbour(folder: Path) -> None:
    with pytest.raises(BadInput, match="its own neighbour"):
        ZenohTransport(identity(folder, "a"), FLEET, Addresses(None, {"a": None}), lambda *_: None, 100)

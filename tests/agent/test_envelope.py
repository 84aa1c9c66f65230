"""Signed envelopes: only the sender itself, with a valid certificate of the fleet, can make one that opens."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_der_x509_certificate
from hypothesis import given
from hypothesis import strategies as st
from small_fleets import FLEET, Someone, fleet, with_certificate

from varangian.agent import keys
from varangian.agent.certificates import new_key
from varangian.agent.envelope import KEPT, OVERHEAD, Verifier, seal
from varangian.agent.identity import Identity
from varangian.agent.message import Reason, Rejected

BODY = b"a model" * 100


class Place(NamedTuple):
    folder: Path
    of: dict[str, Identity]
    verify: Verifier


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("fleet")
    of = fleet(folder / "keys", ["me", "a", "b"])
    fleet(folder / "other", ["me", "a"])
    return Place(folder, of, Verifier(of["me"], FLEET))


def reason(verify: Callable[[str, bytes], memoryview], sender: str, payload: bytes) -> Reason | None:
    try:
        verify(sender, payload)
    except Rejected as rejected:
        return rejected.reason
    return None


def test_a_neighbours_envelope_opens(place: Place) -> None:
    payload = seal(BODY, place.of["a"], FLEET)
    assert bytes(place.verify("a", payload)) == BODY
    assert len(payload) - len(BODY) < OVERHEAD


def test_another_name_than_the_certificates_is_refused(place: Place) -> None:
    assert reason(place.verify, "b", seal(BODY, place.of["a"], FLEET)) == Reason.SENDER


def test_another_fleet_with_the_same_authority_is_refused(place: Place) -> None:
    assert reason(place.verify, "a", seal(BODY, place.of["a"], "another")) == Reason.SIGNATURE


def test_another_authority_is_refused(place: Place) -> None:
    stranger = Identity.load(place.folder / "other" / "agents" / "a")
    assert reason(place.verify, "a", seal(BODY, stranger, FLEET)) == Reason.CERTIFICATE


def test_the_authority_itself_is_no_agent(place: Place) -> None:
    """A certificate that may sign others is not accepted as an agent's, even if the names were the same."""
    like = place.of["a"].now
    payload = seal(BODY, Someone(like.__class__(like.key, like.authority, like.authority, frozenset(), 1)), FLEET)
    assert reason(place.verify, "a", payload) == Reason.CERTIFICATE


def test_an_expired_certificate_is_refused(place: Place) -> None:
    old = Someone(with_certificate(place.of["a"].now, place.folder / "keys", "a", -timedelta(seconds=1)))
    assert reason(place.verify, "a", seal(BODY, old, FLEET)) == Reason.EXPIRED


def test_a_certificate_expires_while_agents_run(place: Place) -> None:
    payload = seal(BODY, place.of["a"], FLEET)
    clock = [datetime.now(UTC)]
    verify = Verifier(place.of["me"], FLEET, lambda: clock[0])
    assert reason(verify, "a", payload) is None
    clock[0] += timedelta(days=366)
    assert reason(verify, "a", payload) == Reason.EXPIRED
    clock[0] -= 2 * timedelta(days=366)
    assert reason(verify, "a", payload) == Reason.EXPIRED, "not yet valid"


def test_a_clock_that_is_wrong_by_an_hour_refuses_no_new_certificate(place: Place) -> None:
    payload = seal(BODY, place.of["a"], FLEET)
    for skew in (timedelta(minutes=-59), timedelta(hours=1)):
        assert reason(Verifier(place.of["me"], FLEET, lambda s=skew: datetime.now(UTC) + s), "a", payload) is None


def test_a_revoked_certificate_is_refused_from_the_next_message_on(tmp_path: Path) -> None:
    of = fleet(tmp_path / "keys", ["me", "a"])
    verify = Verifier(of["me"], FLEET)
    payload = seal(BODY, of["a"], FLEET)
    assert reason(verify, "a", payload) is None
    keys.revoke(tmp_path / "keys", "a")
    assert of["me"].refresh()
    assert reason(verify, "a", payload) == Reason.REVOKED


def test_a_renewed_certificate_is_accepted(tmp_path: Path) -> None:
    of = fleet(tmp_path / "keys", ["me", "a"])
    verify = Verifier(of["me"], FLEET)
    keys.renew(tmp_path / "keys", "a")
    assert of["a"].refresh()
    assert reason(verify, "a", seal(BODY, of["a"], FLEET)) is None


def test_a_copied_certificate_without_its_key_is_useless(place: Place) -> None:
    like = place.of["a"].now
    thief = Someone(like.__class__(new_key(), like.certificate, like.authority, frozenset(), 1))
    assert reason(place.verify, "a", seal(BODY, thief, FLEET)) == Reason.SIGNATURE


def test_every_byte_of_an_envelope_counts(place: Place) -> None:
    payload = seal(BODY, place.of["a"], FLEET)
    own = place.of["a"].now.certificate
    certificate = range(8, 8 + len(own.public_bytes(Encoding.DER)))
    for position in range(len(payload)):
        changed = bytearray(payload)
        changed[position] ^= 1
        if reason(place.verify, "a", bytes(changed)) is None:
            # The encoding of the authority's signature has a byte that does not count. What it signed is the same.
            found = load_der_x509_certificate(bytes(changed[certificate.start : certificate.stop]))
            assert found.tbs_certificate_bytes == own.tbs_certificate_bytes and found.signature == own.signature


@given(
    st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), max_size=6),
    st.integers(0, 1500),
    st.tuples(st.integers(0, 2**16 - 1), st.integers(0, 2**16 - 1)),
    st.binary(max_size=300),
)
def test_only_rejections_escape(
    place: Place, flips: list[tuple[int, int]], cut: int, lengths: tuple[int, int], rest: bytes
) -> None:
    payload = bytearray(seal(BODY, place.of["a"], FLEET))
    for position, value in flips:
        payload[position] = value
    reason(place.verify, "a", bytes(payload[:cut]))
    assert reason(place.verify, "a", struct.pack(">4sHH", b"VRG1", *lengths) + rest) is not None


def test_a_verifier_remembers_few_certificates(tmp_path: Path) -> None:
    of = fleet(tmp_path / "keys", ["me", "a"])
    verify = Verifier(of["me"], FLEET)
    for _ in range(KEPT + 10):
        new = Someone(with_certificate(of["a"].now, tmp_path / "keys", "a", timedelta(days=1)))
        assert reason(verify, "a", seal(b"", new, FLEET)) is None
    assert len(verify._known) <= KEPT

"""The envelope of a message: the sender's certificate and its signature of the body.

TLS proves who is at the other end of a link, and Zenoh's access control binds that name to what it may publish. But
neither reaches this library together with a message. So every message also carries a proof of its own.

    "VRG1" | length of certificate, 2 bytes | length of signature, 2 bytes | certificate, DER | signature, DER | body

Numbers are big-endian. The signature is ECDSA with SHA-256 over "varangian message 1", the fleet's name and the body.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.hashes import SHA256, Hash
from cryptography.hazmat.primitives.serialization import Encoding

from varangian.agent.certificates import checked_name, common_name, is_issued_by, is_valid_at
from varangian.agent.identity import Identity
from varangian.agent.message import Reason, Rejected

MAGIC = b"VRG1"
_START = struct.Struct(">4sHH")
LONGEST_CERTIFICATE = 4096
LONGEST_SIGNATURE = 80
OVERHEAD = _START.size + LONGEST_CERTIFICATE + LONGEST_SIGNATURE
"""The most bytes that an envelope adds to a body."""
KEPT = 256
"""How many certificates a verifier remembers to be the authority's."""


def _digest(fleet: str, body: bytes | memoryview) -> bytes:
    hashed = Hash(SHA256())
    hashed.update(b"varangian message 1\0" + fleet.encode() + b"\0")
    hashed.update(body)
    return hashed.finalize()


def seal(body: bytes, identity: Identity, fleet: str) -> bytes:
    """The body with this agent's certificate and signature."""
    mine = identity.now
    certificate = mine.certificate.public_bytes(Encoding.DER)
    signature = mine.key.sign(_digest(fleet, body), ec.ECDSA(Prehashed(SHA256())))
    return b"".join((_START.pack(MAGIC, len(certificate), len(signature)), certificate, signature, body))


class Verifier:
    """Opens envelopes: `Verifier(identity, fleet)(sender, payload)` is the body, or raises `Rejected`.

    The certificate must be issued by the fleet's authority to `sender`, be valid now by this agent's clock, and not be
    revoked; the signature must be its key's. A new revocation list counts from the next message on.
    """

    def __init__(
        self, identity: Identity, fleet: str, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._identity = identity
        self._fleet = checked_name(fleet)
        self._clock = clock
        self._known: dict[tuple[bytes, str, x509.Certificate], x509.Certificate] = {}

    def __call__(self, sender: str, payload: bytes) -> memoryview:
        view = memoryview(payload)
        if len(view) < _START.size:
            raise Rejected(Reason.ENVELOPE, "too short")
        magic, certificate_length, signature_length = _START.unpack_from(view)
        if magic != MAGIC or certificate_length > LONGEST_CERTIFICATE or signature_length > LONGEST_SIGNATURE:
            raise Rejected(Reason.ENVELOPE, "does not start like one")
        middle = _START.size + certificate_length
        end = middle + signature_length
        if end > len(view):
            raise Rejected(Reason.ENVELOPE, "truncated")
        certificate = self._certificate(sender, bytes(view[_START.size : middle]))
        if not is_valid_at(certificate, self._clock()):
            raise Rejected(Reason.EXPIRED, f"until {certificate.not_valid_after_utc:%Y-%m-%d %H:%M}")
        if certificate.serial_number in self._identity.now.revoked:
            raise Rejected(Reason.REVOKED)
        public = certificate.public_key()
        assert isinstance(public, ec.EllipticCurvePublicKey)  # `is_issued_by` has checked it
        try:
            public.verify(bytes(view[middle:end]), _digest(self._fleet, view[end:]), ec.ECDSA(Prehashed(SHA256())))
        except InvalidSignature:
            raise Rejected(Reason.SIGNATURE) from None
        return view[end:]

    def _certificate(self, sender: str, encoded: bytes) -> x509.Certificate:
        """The certificate, if the authority issued it to this sender. The authority's signature is checked once."""
        authority = self._identity.now.authority
        address = encoded, sender, authority
        known = self._known.get(address)
        if known is not None:
            return known
        try:
            certificate = x509.load_der_x509_certificate(encoded)
            named = common_name(certificate)
            theirs = is_issued_by(certificate, authority)
        except Exception as error:  # a parser of hostile input; whatever it says, this is no certificate
            raise Rejected(Reason.CERTIFICATE, "not readable") from error
        if not theirs:
            raise Rejected(Reason.CERTIFICATE, "of another authority")
        if named != sender:
            raise Rejected(Reason.SENDER, "the certificate has another name")
        if len(self._known) >= KEPT:
            self._known.clear()
        self._known[address] = certificate
        return certificate

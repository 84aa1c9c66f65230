"""Who an agent is on the network: its key and certificate, the authority it trusts, and who has been revoked."""

from __future__ import annotations

import logging
import os
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from varangian.agent.certificates import common_name, is_about, is_issued_by, is_valid_at, list_number
from varangian.core.errors import BadInput

log = logging.getLogger(__name__)

FILES = ("agent.pem", "ca.crt", "ca.crl")


@dataclass(frozen=True)
class Credentials:
    """What the files of an agent's folder said when they were read."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    authority: x509.Certificate
    revoked: frozenset[int]
    """Serial numbers on the revocation list."""
    list_number: int
    """The number of the revocation list. A list with a smaller one is older."""

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def has_revoked(self, name: str) -> bool:
        """Whether a certificate of this name is on the revocation list. Revoked names are never given again."""
        return any(is_about(serial, name) for serial in self.revoked)


class Identity:
    """The files of one agent's folder: `agent.pem`, `ca.crt`, `ca.crl`. `refresh` reads them again when they change."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = self._stamps()
        self.now = read_credentials(folder)
        warn_of_readers(folder / "agent.pem")

    @staticmethod
    def load(folder: Path) -> Identity:
        """Read and check the folder; `BadInput` says what is wrong with it."""
        return Identity(folder)

    @property
    def name(self) -> str:
        """The name in the certificate."""
        return common_name(self.now.certificate) or ""

    def refresh(self) -> bool:
        """Read the files again if they changed. True if something is new. Invalid files are logged and not used."""
        stamps = self._stamps()
        if stamps == self._seen:
            return False
        self._seen = stamps
        try:
            found = read_credentials(self._folder)
            if common_name(found.certificate) != self.name:
                raise BadInput(f"{self._folder} now holds the certificate of another agent")
            if found.list_number < self.now.list_number:
                raise BadInput(f"{self._folder / 'ca.crl'} is older than the list in use")
        except BadInput as error:
            log.warning("new key files are not used: %s", error)
            return False
        warn_of_readers(self._folder / "agent.pem")
        same = found.certificate == self.now.certificate and found.authority == self.now.authority
        changed = not same or found.revoked != self.now.revoked
        self.now = found
        return changed

    def _stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Changes whenever a file is replaced or written."""
        found: list[tuple[int, int, int] | None] = []
        for file in FILES:
            try:
                about = (self._folder / file).stat()
                found.append((about.st_mtime_ns, about.st_ino, about.st_size))
            except OSError:
                found.append(None)
        return tuple(found)


def warn_of_readers(key: Path) -> None:
    """Say so if other users of this machine can read a private key."""
    try:
        shared = os.name == "posix" and key.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    except OSError:  # it is being replaced; `refresh` looks again
        return
    if shared:
        log.warning("other users of this machine may read %s, which holds a private key; run: chmod 600 %s", key, key)


def read_credentials(folder: Path) -> Credentials:
    """Read and check the files of an agent's folder. An agent does not start without a revocation list."""
    advice = "copy the agent's folder again from the authority"
    try:
        own, above, revocations = ((folder / file).read_bytes() for file in FILES)
    except OSError as error:
        raise BadInput(f"cannot read {error.filename}: {error.strerror}; {advice}") from error
    try:
        key = load_pem_private_key(own, password=None)
        certificate = x509.load_pem_x509_certificate(own)
        authority = x509.load_pem_x509_certificate(above)
        listed = x509.load_pem_x509_crl(revocations)
        number = list_number(listed)
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.ExtensionNotFound) as error:
        raise BadInput(f"a file in {folder} is damaged ({error}); {advice}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise BadInput(f"the key and the certificate in {folder / 'agent.pem'} do not belong together; {advice}")
    if common_name(certificate) is None or not is_issued_by(certificate, authority):
        raise BadInput(f"{folder / 'ca.crt'} did not issue {folder / 'agent.pem'}; {advice}")
    public = authority.public_key()
    if not isinstance(public, ec.EllipticCurvePublicKey) or not listed.is_signature_valid(public):
        raise BadInput(f"{folder / 'ca.crl'} is not signed by {folder / 'ca.crt'}; {advice}")
    if not is_valid_at(certificate, datetime.now(UTC)):
        until = certificate.not_valid_after_utc
        raise BadInput(f"the certificate in {folder} is valid until {until:%Y-%m-%d %H:%M} UTC only; renew it")
    revoked = frozenset(entry.serial_number for entry in listed)
    if certificate.serial_number in revoked:
        raise BadInput(f"the certificate in {folder} was revoked; ask the authority for one with another name")
    return Credentials(key, certificate, authority, revoked, number)

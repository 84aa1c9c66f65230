"""Certificates of an authority and its agents: how they are made, and what makes one valid."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from varangian.core.errors import BadInput

CLOCK_SKEW = timedelta(hours=1)
"""Certificates are valid from an hour before they are made, for machines whose clocks are slow."""
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_RANDOM_BITS = 80


def checked_name(name: str) -> str:
    """The name of an agent or a fleet, if it is valid: 1 to 63 small letters, digits and hyphens, not first or last.

    >>> checked_name("hospital-a")
    'hospital-a'
    """
    if not _NAME.fullmatch(name):
        raise BadInput(f"{name!r} is no name here; use up to 63 small letters, digits and hyphens")
    return name


def name_mark(name: str) -> int:
    """What the serial numbers of a name's certificates start with, so that a revocation list tells whose they are.

    It is the start of a hash of the name. Its first two bits are 01: serial numbers are positive and of one length.

    >>> name_mark("hospital-a").bit_length()
    63
    """
    start = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
    return start & (2**62 - 1) | 2**62


def is_about(serial: int, name: str) -> bool:
    """Whether a serial number was given to this name."""
    return serial >> _RANDOM_BITS == name_mark(name)


def new_key() -> ec.EllipticCurvePrivateKey:
    """A key on the curve P-256: every TLS library knows it, and signing takes some ten microseconds."""
    return ec.generate_private_key(ec.SECP256R1())


def authority_certificate(key: ec.EllipticCurvePrivateKey, lifetime: timedelta) -> x509.Certificate:
    """The authority's certificate, signed by itself. Its name is random, so that no two authorities are confused."""
    name = _subject(f"varangian-{secrets.token_hex(8)}")
    public = key.public_key()
    return (
        _certificate(name, name, public, x509.random_serial_number(), lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )


def agent_certificate(
    key: ec.EllipticCurvePrivateKey,
    authority: tuple[ec.EllipticCurvePrivateKey, x509.Certificate],
    name: str,
    hosts: Sequence[str],
    lifetime: timedelta,
) -> x509.Certificate:
    """A certificate for an agent.

    Args:
        key: The agent's key.
        authority: The key and certificate of the authority.
        name: The agent's name.
        hosts: Host names and addresses at which neighbours reach it.
        lifetime: How long the certificate is valid.
    """
    signer, above = authority
    if datetime.now(UTC) + lifetime > above.not_valid_after_utc:
        raise BadInput(
            f"the authority's own certificate ends on {above.not_valid_after_utc:%Y-%m-%d}; ask for fewer days"
        )
    serial = name_mark(checked_name(name)) << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    return (
        _certificate(_subject(name), above.subject, key.public_key(), serial, lifetime)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )


def revocation_list(
    authority: tuple[ec.EllipticCurvePrivateKey, x509.Certificate],
    revoked: Iterable[tuple[int, datetime]],
    number: int,
) -> x509.CertificateRevocationList:
    """The signed list of revoked serial numbers. `number` grows with every list."""
    key, certificate = authority
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(certificate.subject)
        .last_update(datetime.now(UTC))
        # Agents do not enforce this date: a fleet must not stop because nobody copied a new list.
        .next_update(certificate.not_valid_after_utc)
        .add_extension(x509.CRLNumber(number), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    for serial, when in revoked:
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(when).build()
        builder = builder.add_revoked_certificate(entry)
    return builder.sign(key, hashes.SHA256())


def list_number(revocations: x509.CertificateRevocationList) -> int:
    """The number of a revocation list."""
    return revocations.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number


def common_name(certificate: x509.Certificate) -> str | None:
    """The name that a certificate is for. None if it has none or several."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else None


def is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether the authority itself signed this certificate, for an agent."""
    try:
        certificate.verify_directly_issued_by(authority)
        limits = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (InvalidSignature, ValueError, TypeError, x509.ExtensionNotFound):
        return False
    return not limits.ca and isinstance(certificate.public_key(), ec.EllipticCurvePublicKey)


def is_valid_at(certificate: x509.Certificate, when: datetime) -> bool:
    """Whether the certificate has begun and not expired."""
    return certificate.not_valid_before_utc <= when <= certificate.not_valid_after_utc


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, serial: int, lifetime: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + lifetime)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        if not _HOST.fullmatch(host):
            raise BadInput(f"{host!r} is no host name and no address; give one without a port") from None
        return x509.DNSName(host.lower())


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )

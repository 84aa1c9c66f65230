"""The authority of a fleet on disk: makes, renews and revokes the certificates of its agents.

An authority's folder holds `ca.key`, `ca.crt`, `ca.crl` and `issued.json`, a list of every certificate it made. The
folder `agents/NAME` in it holds what the agent NAME needs, and is copied to that agent's machine: `agent.pem` (key and
certificate), `ca.crt` and `ca.crl`. Whoever has `ca.key` can speak as any agent: keep it off the agents' machines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from varangian.agent.certificates import (
    agent_certificate,
    authority_certificate,
    checked_name,
    list_number,
    new_key,
    revocation_list,
)
from varangian.core.errors import BadInput
from varangian.core.files import whole
from varangian.experiments.lock import locked

YEAR = timedelta(days=365)
LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Issued:
    """One certificate that the authority made. Times are in ISO 8601, UTC."""

    name: str
    serial: str
    """In hexadecimal."""
    until: str
    hosts: tuple[str, ...]
    revoked: str | None = None
    """When it was revoked."""


class _Authority(NamedTuple):
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    issued: tuple[Issued, ...]


def create_authority(folder: Path, lifetime: timedelta = 10 * YEAR) -> None:
    """Make a new certificate authority in `folder`. Refuses to touch one that is there."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with locked(folder):
        there = [file for file in ("ca.key", "ca.crt", "ca.crl", "issued.json", "agents") if (folder / file).exists()]
        if there:
            raise BadInput(f"{folder / there[0]} is there already; name another folder, or remove the old authority")
        key = new_key()
        certificate = authority_certificate(key, lifetime)
        _write(folder / "ca.key", _pem(key), mode=0o600)
        _write(folder / "ca.crt", certificate.public_bytes(Encoding.PEM))
        _write(folder / "ca.crl", revocation_list((key, certificate), [], 1).public_bytes(Encoding.PEM))
        _note(folder, ())


def issue(folder: Path, name: str, hosts: Sequence[str] = LOCAL, lifetime: timedelta = YEAR) -> Path:
    """A key and a certificate for the agent `name`, in the new folder `folder/agents/name`.

    Args:
        folder: The authority's folder.
        name: Up to 63 small letters, digits and hyphens.
        hosts: Host names and addresses at which neighbours reach this agent.
        lifetime: How long the certificate is valid.
    """
    checked_name(name)
    with _opened(folder) as authority:
        of_name = [entry for entry in authority.issued if entry.name == name]
        if any(entry.revoked for entry in of_name):
            raise BadInput(f"{name} was revoked, and its name is not given again; choose another name")
        if of_name or (folder / "agents" / name).exists():
            raise BadInput(f"{name} has a certificate; run `varangian keys renew {name}`, or choose another name")
        return _certify(folder, authority, name, tuple(hosts), lifetime)


def renew(folder: Path, name: str, hosts: Sequence[str] | None = None, lifetime: timedelta = YEAR) -> Path:
    """A new key and certificate for `name`. Running agents that use the folder pick them up.

    Args:
        folder: The authority's folder.
        name: An agent with a certificate.
        hosts: Where neighbours reach it. By default those of its last certificate.
        lifetime: How long the certificate is valid.
    """
    with _opened(folder) as authority:
        last = _of(name, authority)[-1]
        if last.revoked:
            raise BadInput(f"{name} was revoked and cannot be renewed; issue a certificate with another name")
        return _certify(folder, authority, name, tuple(hosts or last.hosts), lifetime)


def revoke(folder: Path, name: str) -> Path:
    """Revoke every certificate of `name`. Returns the new revocation list, to be copied to all agents.

    The copies in `folder/agents` are replaced here.
    """
    with _opened(folder) as authority:
        _of(name, authority)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        entries = [replace(e, revoked=e.revoked or now) if e.name == name else e for e in authority.issued]
        number = list_number(x509.load_pem_x509_crl((folder / "ca.crl").read_bytes())) + 1
        revoked = [(int(e.serial, 16), datetime.fromisoformat(e.revoked)) for e in entries if e.revoked]
        revocations = revocation_list((authority.key, authority.certificate), revoked, number)
        _note(folder, entries)
        for path in (folder / "ca.crl", *sorted((folder / "agents").glob("*/ca.crl"))):
            _write(path, revocations.public_bytes(Encoding.PEM))
    return folder / "ca.crl"


def issued(folder: Path) -> tuple[Issued, ...]:
    """Every certificate that the authority in `folder` made, oldest first."""
    path = folder / "issued.json"
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        return tuple(Issued(**{**entry, "hosts": tuple(entry["hosts"])}) for entry in entries)
    except FileNotFoundError:
        raise BadInput(f"{folder} holds no authority; make one with `varangian keys init {folder}`") from None
    except (ValueError, TypeError, KeyError) as error:
        raise BadInput(f"{path} is damaged ({error}); restore it from a backup") from error


@contextmanager
def _opened(folder: Path) -> Iterator[_Authority]:
    """The authority in a folder, for one writer at a time: a certificate that is not noted could not be revoked."""
    issued(folder)
    with locked(folder):
        try:
            key = load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
            certificate = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        except (OSError, ValueError, TypeError) as error:
            raise BadInput(f"cannot read the authority in {folder} ({error}); restore it from a backup") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise BadInput(f"ca.key and ca.crt in {folder} do not belong together; restore them from a backup")
        yield _Authority(key, certificate, issued(folder))


def _of(name: str, authority: _Authority) -> list[Issued]:
    checked_name(name)
    found = [entry for entry in authority.issued if entry.name == name]
    if not found:
        raise BadInput(f"no certificate was issued to {name}; `varangian keys list` shows all")
    return found


def _certify(folder: Path, authority: _Authority, name: str, hosts: tuple[str, ...], lifetime: timedelta) -> Path:
    """Make a key and a certificate, note it, and write the agent's folder."""
    key = new_key()
    made = agent_certificate(key, (authority.key, authority.certificate), name, hosts, lifetime)
    until = made.not_valid_after_utc.isoformat(timespec="seconds")
    _note(folder, (*authority.issued, Issued(name, f"{made.serial_number:x}", until, hosts)))
    target = folder / "agents" / name
    target.mkdir(parents=True, exist_ok=True, mode=0o700)
    _write(target / "ca.crt", (folder / "ca.crt").read_bytes())
    _write(target / "ca.crl", (folder / "ca.crl").read_bytes())
    # Key and certificate are one file, so that a renewal replaces both at once.
    _write(target / "agent.pem", _pem(key) + made.public_bytes(Encoding.PEM), mode=0o600)
    return target


def _note(folder: Path, entries: Sequence[Issued]) -> None:
    text = json.dumps([asdict(entry) for entry in entries], indent=1)
    _write(folder / "issued.json", f"{text}\n".encode())


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, content: bytes, mode: int = 0o644) -> None:
    with whole(path, mode) as file:
        file.write_bytes(content)
